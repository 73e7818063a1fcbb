// Scenarios S10 to S15, S43 and S63: waiting and retries.

import assert from "node:assert/strict";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { NotAcquiredError, UnavailableError } from "../src/index.js";
import { Fault, client, observer, own, problem, shared, unique, until, type Fate } from "./support.js";

const here = shared();
const a = () => here.urls[0] as string;

describe("waiting and retries", { concurrency: 4 }, () => {
  test("S10: a wait in pieces keeps its place", async (t) => {
    const [fault, name] = [await Fault.before(t, a()), unique()];
    const [first, second] = [client(t, fault.url, { pieceMs: 1_000 }), client(t, fault.url, { pieceMs: 1_000 })];
    const order: string[] = [];
    const holder = await client(t, a()).lock(name);
    const waiting = [first.lock(name, { waitMs: 20_000 }, () => void order.push("first"))];
    await until(async () => (await observer(a()).waiters(name)) === 1);
    waiting.push(second.lock(name, { waitMs: 20_000 }, () => void order.push("second")));
    await until(() => (fault.requests.get(`/v1/locks/${name}/acquire`) ?? 0) >= 6, 30_000);
    await until(async () => (await observer(a()).waiters(name)) === 2); // and not between two pieces
    await holder.release();
    await Promise.all(waiting);
    assert.deepEqual(order, ["first", "second"]);
    assert.equal(new Set(fault.asked.map(([, body]) => body["request_id"]).filter(Boolean)).size, 2);
  });

  test("S10: a server that takes no long waits gets shorter ones", async (t) => {
    const deployment = await own(t, 0);
    const { url } = await deployment.serve("--max-wait", "1s");
    const [mine, name] = [client(t, url), unique()];
    const holder = await mine.lock(name);
    const waiting = mine.lock(name, { waitMs: 20_000 });
    await until(async () => (await observer(url).waiters(name)) === 1);
    await holder.release();
    await (await waiting).release();
  });

  test("S11: a waiter goes on at the next server", async (t) => {
    const deployment = await own(t, 2);
    const [name, [first, second]] = [unique(), deployment.urls as [string, string]];
    const [mine, other] = [client(t, [first, second]), client(t, second)];
    const holder = await other.lock(name);
    const waiting = mine.lock(name, { waitMs: 20_000 });
    await until(async () => (await observer(first).waiters(name)) === 1);
    await deployment.servers[0]?.kill();
    await until(async () => (await observer(second).waiters(name)) === 1);
    await holder.release();
    await (await waiting).release();
  });

  for (const waitMs of [0, 5_000]) {
    for (const alone of [true, false]) {
      test(`S12: an answer that is cut off costs no lease, with a wait of ${waitMs} ms and ${alone ? "one server" : "two"}`, async (t) => {
        const [fault, name] = [await Fault.before(t, a()), unique()];
        const granted: unknown[] = [];
        fault.after = (path, answer) => path.endsWith("/acquire") && granted.push(answer["fencing_token"]) === 1;
        const lease = await client(t, alone ? fault.url : [fault.url, here.urls[1] as string]).lock(name, { waitMs });
        assert.equal(lease.fencingToken, granted[0]);
        await lease.release();
        assert.equal(await observer(a()).held(name), false);
      });
    }
  }

  test("S12: a release whose answer is cut off is no loss", async (t) => {
    const [fault, name] = [await Fault.before(t, a()), unique()];
    let cut = 0;
    fault.after = (path) => path.endsWith("/release") && cut++ === 0;
    await client(t, [fault.url, here.urls[1] as string]).lock(name, {}, () => {});
    await client(t, fault.url).lock(name, {}, () => void (cut = 0));
    assert.equal(await observer(a()).held(name), false);
  });

  test("S13: a server that drains costs nothing", async (t) => {
    const deployment = await own(t, 2);
    const [name, [first, second]] = [unique(), deployment.urls as [string, string]];
    const mine = client(t, [first, second]);
    const lease = await mine.lock(name, { ttlMs: 2_000 });
    const waiting = [1, 2, 3].map(() => mine.lock(name, { ttlMs: 2_000, waitMs: 20_000 }, () => sleep(50)));
    await until(async () => (await observer(first).waiters(name)) === 3);
    deployment.servers[0]?.process.kill("SIGTERM");
    await until(async () => (await observer(second).waiters(name)) === 3);
    await sleep(3_000);
    lease.check();
    await lease.release();
    await Promise.all(waiting);
  });

  for (const [status, code] of [[503, "quorum_unavailable"], [429, "too_many_waiters"], [503, "overloaded"]] as const) {
    test(`S14: retry_after_ms of ${code} is heeded within the wait`, async (t) => {
      const [fault, name] = [await Fault.before(t, a()), unique()];
      const asked: number[] = [];
      fault.before = (path) => {
        if (!path.endsWith("/acquire")) return undefined;
        return asked.push(performance.now()) < 3 ? problem(status, code, { retry_after_ms: 400 }) : undefined;
      };
      const mine = client(t, fault.url);
      await mine.lock(name, { waitMs: 10_000 }, () => {});
      assert.equal(asked.length, 3);
      asked.slice(1).forEach((time, i) => assert.ok(time - (asked[i] ?? 0) >= 400));
      asked.length = 0;
      const begun = performance.now();
      const refused = await mine.lock(name, { waitMs: 300 }).catch((error: unknown) => error);
      assert.ok(refused instanceof UnavailableError && refused.code === code && refused.retryAfterMs === 400);
      assert.equal(asked.length, 1);
      assert.ok(performance.now() - begun < 1_300);
    });
  }

  test("S14: a server that did not wait is not asked again at once", async (t) => {
    const [fault, name] = [await Fault.before(t, a()), unique()];
    const asked: number[] = [];
    fault.before = (path) => {
      if (!path.endsWith("/acquire")) return undefined;
      return asked.push(performance.now()) < 3 ? problem(409, "lock_held", { retry_after_ms: 300 }) : undefined;
    };
    await client(t, [fault.url, here.urls[1] as string]).lock(name, { waitMs: 10_000 }, () => {});
    assert.equal(asked.length, 3);
    asked.slice(1).forEach((time, i) => assert.ok(time - (asked[i] ?? 0) >= 300));
  });

  test("S14: a server that says when to come back is left alone until then, though another fails sooner", async (t) => {
    const [first, second, name] = [await Fault.before(t, a()), await Fault.before(t, a()), unique()];
    const asked: number[] = [];
    first.before = (path) => {
      if (!path.endsWith("/acquire")) return undefined;
      return asked.push(performance.now()) === 1 ? problem(503, "overloaded", { retry_after_ms: 700 }) : undefined;
    };
    second.before = (path) => (path.endsWith("/acquire") ? problem(503, "overloaded", { retry_after_ms: 50 }) : undefined);
    await client(t, [first.url, second.url]).lock(name, { waitMs: 10_000 }, () => {});
    assert.ok((asked[1] ?? 0) - (asked[0] ?? 0) >= 700);
  });

  test("S15: a silent server costs no more than the wait", async (t) => {
    const sockets = new Set<Socket>();
    const silent = createServer((socket) => void sockets.add(socket.on("error", () => {}))).listen(0, "127.0.0.1");
    await new Promise((resolve) => silent.once("listening", resolve));
    t.after(() => {
      silent.close();
      for (const socket of sockets) socket.destroy();
    });
    const url = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`;
    const begun = performance.now();
    await assert.rejects(client(t, url).lock(unique(), { waitMs: 1_000 }), UnavailableError);
    assert.ok(performance.now() - begun < 3_000);
    await client(t, [url, a()]).lock(unique(), { waitMs: 20_000 }, () => {}); // and is left for one that answers
  });

  for (const [what, fate] of Object.entries<Fate>({
    "a proxy's 502": { status: 502, body: "<html>" },
    "a page with 200": { status: 200, body: "<html>" },
    "other JSON with 200": { status: 200, body: { lease_id: "none", validity_ms: "long" } },
  })) {
    test(`S16: ${what} is no answer`, async (t) => {
      const [fault, name] = [await Fault.before(t, a()), unique()];
      fault.before = (path) => (path.endsWith("/acquire") || path.endsWith("/release") ? fate : undefined);
      await assert.rejects(client(t, fault.url).lock(name, { waitMs: 0 }), UnavailableError);
      await client(t, [fault.url, a()]).lock(name, { waitMs: 0 }, (lease) => lease.check());
    });
  }

  test("S44: a lease that is over when its answer comes is none", async (t) => {
    const [fault, name] = [await Fault.before(t, a()), unique()];
    const ids: unknown[] = [];
    fault.after = async (path) => {
      if (path.endsWith("/acquire") && ids.push(fault.asked.at(-1)?.[1]["request_id"]) === 1) await sleep(800);
      return false;
    };
    const lease = await client(t, fault.url).lock(name, { ttlMs: 500, waitMs: 20_000 });
    lease.check();
    assert.equal(new Set(ids).size, ids.length);
    assert.ok(ids.length > 1);
    await lease.release();
    ids.length = 0;
    await assert.rejects(client(t, fault.url).lock(name, { ttlMs: 500, waitMs: 0 }), { name: "UnavailableError", code: "lease_expired" });
  });

  test("S43: a waiter behind one that gives up is served", async (t) => {
    const [mine, other, name] = [client(t, a()), client(t, a()), unique()];
    const seen = observer(a());
    const holder = await other.lock(name);
    const stop = new AbortController();
    const [timedOut, stopped] = [mine.lock(name, { waitMs: 500 }), mine.lock(name, { signal: stop.signal })];
    await until(async () => (await seen.waiters(name)) === 2);
    const behind = other.lock(name, { waitMs: 20_000 });
    await until(async () => (await seen.waiters(name)) === 3);
    stop.abort();
    await assert.rejects(stopped, { name: "AbortError" });
    await assert.rejects(timedOut, NotAcquiredError);
    await until(async () => (await seen.waiters(name)) === 1);
    await holder.release();
    const begun = performance.now();
    await (await behind).release();
    assert.ok(performance.now() - begun < 5_000);
  });

  test("S63: many tasks share a client", async (t) => {
    const [mine, name] = [client(t, here.urls), unique()];
    const inside = new Map<string, number>();
    await Promise.all(Array.from({ length: 50 }, async (_, i) => {
      const lock = `${name}:${i % 7}`;
      for (let round = 0; round < 5; round++) {
        await mine.lock(lock, { waitMs: 30_000 }, async () => {
          inside.set(lock, (inside.get(lock) ?? 0) + 1);
          await sleep(1);
          assert.equal(inside.get(lock), 1);
          inside.set(lock, 0);
        });
      }
    }));
  });
});
