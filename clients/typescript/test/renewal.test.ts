// Scenarios S20 to S30: renewal and loss.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { LeaseLostError, type Lease } from "../src/index.js";
import { Fault, Program, client, observer, own, problem, shared, unique, until, type Fate } from "./support.js";

const here = shared();
const a = () => here.urls[0] as string;

const lost = (lease: Lease) => new Promise<LeaseLostError>((resolve) => lease.onLost(resolve));

test("S25: a check made first thing after a pause fails", async (t) => {
  const lease = await client(t, here.urls).lock(unique(), { ttlMs: 500 });
  const ends = performance.now() + lease.remainingMs();
  while (performance.now() <= ends); // no timer runs meanwhile
  assert.throws(() => lease.check(), { name: "LeaseLostError", code: "lease_expired" });
  assert.equal(lease.remainingMs(), 0);
});

describe("renewal and loss", { concurrency: 8 }, () => {
  test("S20: a block of three ttls is held throughout", async (t) => {
    const [mine, name] = [client(t, here.urls), unique()];
    await mine.lock(name, { ttlMs: 3_000 }, async (lease, signal) => {
      for (let i = 0; i < 6; i++) {
        await sleep(1_500, undefined, { signal });
        lease.check();
        assert.equal((await observer(a()).lock(name)).fencing_token, lease.fencingToken);
      }
    });
  });

  test("S21 and S22: renewal goes on at the next server and without a node", async (t) => {
    const deployment = await own(t, 2);
    const [mine, name] = [client(t, deployment.urls), unique()];
    await mine.lock(name, { ttlMs: 3_000 }, async (lease, signal) => {
      await deployment.servers[0]?.kill();
      deployment.nodes[0]?.kill("SIGKILL");
      await sleep(6_000, undefined, { signal });
      lease.check();
      assert.equal(await observer(deployment.urls[1] as string).held(name), true);
    });
  });

  test("S23: without any server the loss is told when the validity ends", async (t) => {
    const deployment = await own(t, 1);
    const mine = client(t, deployment.urls);
    let work: Lease | undefined;
    const block = mine.lock(unique(), { ttlMs: 1_000 }, async (lease, signal) => {
      work = lease;
      const validUntil = performance.now() + lease.remainingMs();
      await deployment.servers[0]?.kill();
      // A control timer, so that a busy machine holds up both.
      const control = sleep(validUntil + 50 - performance.now(), "not told in time");
      assert.ok((await Promise.race([lost(lease), control])) instanceof LeaseLostError);
      assert.equal(signal.reason, lease.signal.reason);
      assert.equal(lease.remainingMs(), 0);
      assert.throws(() => lease.check(), LeaseLostError);
    });
    await assert.rejects(block, { name: "LeaseLostError", code: "lease_expired" });
    await assert.rejects(work?.release() as Promise<void>, LeaseLostError);
  });

  test("S24: a forced release is a loss by the next renewal", async (t) => {
    const [mine, name] = [client(t, here.urls), unique()];
    const block = mine.lock(name, { ttlMs: 3_000 }, async (lease) => {
      const ends = performance.now() + lease.remainingMs();
      await observer(a()).forceRelease(name);
      assert.equal((await lost(lease)).code, "lease_lost");
      assert.ok(performance.now() < ends);
    });
    await assert.rejects(block, { name: "LeaseLostError", code: "lease_lost" });
  });

  test("S24: a lease that was taken away is a loss where its block ends", async (t) => {
    const [mine, name] = [client(t, here.urls), unique()];
    await assert.rejects(mine.lock(name, {}, () => observer(a()).forceRelease(name)), LeaseLostError);
    await assert.rejects(async () => {
      await using lease = await mine.lock(name);
      await observer(a()).forceRelease(lease.names[0] as string);
    }, LeaseLostError);
  });

  test("S24: work that stops by the signal of a loss ends with the loss", async (t) => {
    const [mine, name] = [client(t, here.urls), unique()];
    const block = mine.lock(name, { ttlMs: 1_000 }, async (_, signal) => {
      await observer(a()).forceRelease(name);
      await sleep(10_000, undefined, { signal });
    });
    await assert.rejects(block, LeaseLostError);
  });

  test("S25: a pause past the ttl is noticed at once", async (t) => {
    const program = new Program(t, "paused", [here.urls.join(), unique(), "1000"]);
    await program.says("held");
    program.process.kill("SIGSTOP");
    await sleep(1_300);
    program.process.kill("SIGCONT");
    await program.ended;
    assert.deepEqual([program.lines, program.process.exitCode], [["held", "told"], 0], program.errors);
  });

  test("S26: a pause of a third of the ttl loses nothing", async (t) => {
    const program = new Program(t, "paused", [here.urls.join(), unique(), "3000"]);
    await program.says("held");
    program.process.kill("SIGSTOP");
    await sleep(1_000);
    program.process.kill("SIGCONT");
    await sleep(3_000);
    assert.equal(program.process.exitCode, null, program.lines.join("; "));
    program.process.stdin?.end();
    await program.ended;
    assert.equal(program.lines.at(-1), "kept");
  });

  test("S27: the wall clock does not matter", async (t) => {
    const [mine, name, real] = [client(t, here.urls), unique(), Date.now];
    t.after(() => void (Date.now = real));
    for (const step of [3_600_000, -3_600_000]) {
      // Long enough for a machine that is busy with other tests.
      await mine.lock(name, { ttlMs: 6_000 }, async (lease, signal) => {
        Date.now = () => real() + step;
        await sleep(7_000, undefined, { signal });
        assert.ok(lease.remainingMs() > 0 && lease.remainingMs() <= 6_000);
      });
    }
  });

  test("S28: the error of the body comes before the loss", async (t) => {
    const [mine, name] = [client(t, here.urls), unique()];
    const block = mine.lock(name, {}, async () => {
      await observer(a()).forceRelease(name);
      throw new RangeError("mine");
    });
    await assert.rejects(block, new RangeError("mine"));
  });

  test("S29: two hundred leases are renewed together", async (t) => {
    const [fault, name] = [await Fault.before(t, a()), unique()];
    const mine = client(t, fault.url);
    const leases = await Promise.all(Array.from({ length: 200 }, (_, i) => mine.lock(`${name}:${i}`, { ttlMs: 9_000 })));
    fault.requests.clear();
    await sleep(12_000); // four rounds
    for (const lease of leases) lease.check();
    const [all, together] = [[...fault.requests.values()].reduce((sum, n) => sum + n, 0), fault.requests.get("/v1/leases/extend")];
    // One that was acquired long after the others, on a busy machine, is due alone, and extended alone.
    assert.ok(together !== undefined && all < 10 * 5, `${together} requests for many, ${all} in all`);
    await Promise.all(leases.map((lease) => lease.release()));
  });

  test("S29: of the leases that are renewed together each is told how it went", async (t) => {
    const [fault, name] = [await Fault.before(t, a()), unique()];
    const rounds: number[] = [];
    fault.before = (path, body): Fate | undefined => {
      if (path !== "/v1/leases/extend") return undefined;
      const leases = body["leases"] as Array<{ primitive: string; name?: string; names?: string[]; lease_id: string }>;
      rounds.push(leases.length);
      const results = leases.map(({ name, names, lease_id }) => {
        if (name?.endsWith(":gone")) return { problem: { code: "lease_lost", detail: "it is gone" } };
        return names ? { problem: { code: "quorum_unavailable", detail: "not now" } } : { lease: { lease_id, ttl_ms: 6_000, validity_ms: 5_900, waited_ms: 0 } };
      });
      return { status: 200, body: { results } };
    };
    const mine = client(t, fault.url);
    const options = { ttlMs: 6_000 }; // those that are due within a second go together
    const [gone, kept, both] = await Promise.all([
      mine.lock(`${name}:gone`, options), mine.semaphore(name, { ...options, limit: 1 }), mine.locks([`${name}:a`, `${name}:b`], options),
    ]);
    assert.equal((await lost(gone)).code, "lease_lost");
    assert.deepEqual(rounds, [3]);
    await until(() => fault.requests.get("/v1/multilocks/extend")); // again, and alone
    kept.check();
    both.check();
  });

  test("S29: a server without a heartbeat for many leases gets a renewal for each", async (t) => {
    const [fault, name] = [await Fault.before(t, a()), unique()];
    let asked = 0;
    fault.before = (path): Fate | undefined => {
      if (path !== "/v1/leases/extend") return undefined;
      asked += 1;
      return problem(404, "not_found");
    };
    const mine = client(t, fault.url);
    const leases = await Promise.all(Array.from({ length: 20 }, (_, i) => mine.lock(`${name}:${i}`, { ttlMs: 4_000 })));
    await until(() => [...fault.requests.keys()].filter((path) => /:\d+\/extend$/.test(path)).length === 20);
    const [first, each] = [asked, fault.requests.get(`/v1/locks/${name}:0/extend`) ?? 0];
    assert.ok(first >= 1);
    await sleep(4_000); // no later round asks again
    for (const lease of leases) lease.check();
    assert.equal(asked, first);
    assert.ok((fault.requests.get(`/v1/locks/${name}:0/extend`) ?? 0) > each);
    await Promise.all(leases.map((lease) => lease.release()));
  });

  test("S30: a slow server costs no lease", async (t) => {
    const [fault, name] = [await Fault.before(t, a()), unique()];
    const end = new AbortController();
    fault.before = async (path) => {
      if (path.endsWith("/extend")) await sleep(10_000, undefined, { signal: end.signal }).catch(() => {});
      return undefined;
    };
    await client(t, [fault.url, here.urls[1] as string]).lock(name, { ttlMs: 3_000 }, async (lease, signal) => {
      await sleep(6_000, undefined, { signal });
      lease.check();
    });
    end.abort();
  });

  test("a callback that is added after the loss is called, once", async (t) => {
    const [mine, name] = [client(t, here.urls), unique()];
    const lease = await mine.lock(name, { ttlMs: 600 });
    await observer(a()).forceRelease(name);
    let called = 0;
    lease.onLost(() => called++);
    await lost(lease);
    const late = await lost(lease);
    assert.equal(late, lease.signal.reason);
    await until(() => called === 1);
    assert.equal(lease.remainingMs(), 0);
  });

  test("nothing secret is shown", async (t) => {
    const { inspect } = await import("node:util");
    const secret = "the-secret-key";
    const mine = client(t, here.urls, { apiKey: secret });
    const lease = await mine.lock(unique());
    const shown = [mine, lease].map((one) => inspect(one, { depth: 9, showHidden: true }) + JSON.stringify(one)).join();
    assert.ok(!shown.includes(secret) && !shown.includes(lease.answer.lease_id), shown);
  });
});
