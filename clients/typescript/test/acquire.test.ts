// Scenarios S01 to S09: acquire, hold, release.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { InvalidRequestError, LeaseLostError, NotAcquiredError, StaleTokenError, UnavailableError, type Lease } from "../src/index.js";
import { client, observer, own, shared, unique, until } from "./support.js";

const here = shared();

/** An address at which nothing listens. */
async function closedPort(): Promise<string> {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}

test("S01: a lock is held within its block and free after it", async (t) => {
  const [mine, name] = [client(t, here.urls), unique()];
  const seen = observer(here.urls[1] as string);
  const token = await mine.lock(name, { ttlMs: 2_000, owner: "me" }, async (lease) => {
    const state = await seen.lock(name);
    assert.deepEqual([state.held, state.owner], [true, "me"]);
    assert.ok(lease.remainingMs() > 0 && lease.remainingMs() <= 2_000);
    lease.check();
    return lease.fencingToken;
  });
  assert.equal(await seen.held(name), false);
  const failing = mine.lock(name, {}, (lease) => {
    assert.ok(lease.fencingToken > token);
    throw new RangeError("of the body");
  });
  await assert.rejects(failing, new RangeError("of the body"));
  assert.equal(await seen.held(name), false);
});

test("S01: a lock is held within a block that uses it and free after it", async (t) => {
  const [mine, name] = [client(t, here.urls), unique()];
  const seen = observer(here.urls[0] as string);
  {
    await using lease = await mine.lock(name);
    lease.check();
    assert.equal(await seen.held(name), true);
  }
  assert.equal(await seen.held(name), false);
  {
    using lease = await mine.lock(name);
    lease.check();
  }
  await until(async () => !(await seen.held(name)));
  const released = await mine.lock(name);
  await released.release();
  await released.release(); // twice is no error
  assert.equal(released.remainingMs(), 0);
  assert.throws(() => released.check(), { code: "released" });
});

test("S02: a lock that is held is refused at once with its holder", async (t) => {
  const [mine, other, name] = [client(t, here.urls), client(t, here.urls, { owner: "the other" }), unique()];
  await other.lock(name, {}, async () => {
    const begun = performance.now();
    const refused = await mine.lock(name, { waitMs: 0 }).catch((error: unknown) => error);
    assert.ok(refused instanceof NotAcquiredError);
    assert.deepEqual([refused.code, refused.holder?.owner, refused.nodes?.total], ["lock_held", "the other", 3]);
    assert.ok(performance.now() - begun < 2_000);
  });
});

for (const waitMs of [0, 1_000]) {
  test(`S03: without a server it is unavailable and not held, with a wait of ${waitMs} ms`, async (t) => {
    const begun = performance.now();
    await assert.rejects(client(t, await closedPort()).lock(unique(), { waitMs }), UnavailableError);
    assert.ok(performance.now() - begun < waitMs + 2_000);
  });
}

test("S03: without a quorum it is unavailable with the tally", async (t) => {
  const deployment = await own(t, 1);
  const mine = client(t, deployment.urls);
  for (const node of deployment.nodes.slice(1)) node.kill("SIGKILL");
  for (const waitMs of [0, 1_000]) {
    const refused = await mine.lock(unique(), { waitMs }).catch((error: unknown) => error);
    assert.ok(refused instanceof UnavailableError);
    assert.deepEqual([refused.code, refused.nodes?.quorum], ["quorum_unavailable", 2]);
  }
});

test("S04: ten workers lose no increment", async (t) => {
  const [file, name] = [join(here.deployment.directory, "counter"), unique()];
  writeFileSync(file, "0");
  await Promise.all(Array.from({ length: 10 }, async () => {
    const mine = client(t, here.urls);
    for (let i = 0; i < 100; i++) {
      await mine.lock(name, { ttlMs: 10_000 }, async () => {
        const value = Number(readFileSync(file, "utf8"));
        await sleep(0);
        writeFileSync(file, String(value + 1));
      });
    }
  }));
  assert.equal(readFileSync(file, "utf8"), "1000");
});

test("S05: a semaphore lets no more in than its limit", async (t) => {
  const [mine, name] = [client(t, here.urls), unique()];
  let [inside, most] = [0, 0];
  await Promise.all([1, 1, 1, 1, 1, 1, 2, 2].map(async (permits) => {
    for (let i = 0; i < 5; i++) {
      await mine.semaphore(name, { limit: 3, permits, waitMs: 30_000 }, async (lease) => {
        assert.equal(lease.answer.slots?.length, permits);
        most = Math.max(most, (inside += permits));
        await sleep(10);
        inside -= permits;
      });
    }
  }));
  assert.equal(most, 3);
});

test("S06: locks in any order do not wait for each other for ever", async (t) => {
  const name = unique();
  const [a, b] = [`${name}:a`, `${name}:b`];
  await Promise.all([[a, b], [b, a]].map(async (names) => {
    const mine = client(t, here.urls);
    for (let i = 0; i < 20; i++) {
      const lease = await mine.locks(names, { ttlMs: 10_000, waitMs: 30_000 });
      assert.deepEqual(Object.keys(lease.fencingTokens).sort(), [a, b]);
      assert.throws(() => lease.fencingToken, TypeError);
      await lease.release();
    }
  }));
  await client(t, here.urls).locks([a], {}, (lease) => assert.deepEqual(lease.fencingTokens, { [a]: lease.fencingToken }));
});

test("S07: an exclusive lease comes after the shared ones", async (t) => {
  const [mine, other, name] = [client(t, here.urls), client(t, here.urls), unique()];
  const leases = await Promise.all([1, 2, 3].map(() => mine.lock(name, { shared: true })));
  let granted = false;
  const exclusive = other.lock(name, { waitMs: 20_000 }).then((lease) => ((granted = true), lease));
  await until(async () => (await observer(here.urls[0] as string).waiters(name)) === 1);
  for (const lease of leases) {
    assert.equal(granted, false);
    await lease.release();
  }
  const last = await exclusive;
  assert.ok(leases.every(({ fencingToken }) => fencingToken < last.fencingToken));
  await last.release();
});

test("S08: a lease is renewed up to its limit and no further", async (t) => {
  const [mine, name] = [client(t, here.urls), unique()];
  const begun = performance.now();
  const lease = await mine.lock(name, { ttlMs: 1_000, maxHoldMs: 3_000 });
  const lost = await new Promise<LeaseLostError>((resolve) => lease.onLost(resolve));
  assert.equal(lost.code, "hold_limit_reached");
  assert.ok(performance.now() - begun > 1_500, "it was renewed at first");
  await assert.rejects(lease.release(), lost);
});

test("S09: a value that the API does not take is an error that names the field", async (t) => {
  const [mine, name] = [client(t, here.urls), unique()];
  const cases: Array<[() => Promise<Lease>, string]> = [
    [() => mine.lock("a/b"), "name"],
    [() => mine.lock(".."), "name"],
    [() => mine.lock(name, { ttlMs: 0.5 }), "ttlMs"],
    [() => mine.lock(name, { ttlMs: NaN }), "ttlMs"],
    [() => mine.lock(name, { waitMs: -1 }), "waitMs"],
    [() => mine.lock(name, { ttlMs: 0 }), "ttl_ms"],
    [() => mine.semaphore(name, { limit: 0 }), "limit"],
    [() => mine.locks([name, name]), "names"],
    [() => mine.locks([]), "names"],
  ];
  for (const [ask, field] of cases) {
    const refused = await ask().catch((error: unknown) => error);
    assert.ok(refused instanceof InvalidRequestError, field);
    assert.deepEqual(refused.errors.map((error) => error.field), [field]);
  }
  assert.equal(await observer(here.urls[0] as string).held(name), false);
});

test("a rate limit counts calls in a window", async (t) => {
  const [mine, name] = [client(t, here.urls), unique()];
  const begun = performance.now();
  for (let i = 0; i < 4; i++) await mine.rateLimit(name, { limit: 2, perMs: 1_000, waitMs: 10_000 });
  assert.ok(performance.now() - begun >= 1_000);
  await assert.rejects(mine.rateLimit(name, { limit: 2, perMs: 1_000, waitMs: 0 }), NotAcquiredError);
});

test("fencing tokens are issued and checked", async (t) => {
  const [mine, name] = [client(t, here.urls), unique()];
  const { fencing_token: token } = await mine.issueToken(name);
  assert.equal((await mine.checkToken(name, token)).status, "current");
  await mine.issueToken(name);
  const stale = await mine.checkToken(name, token).catch((error: unknown) => error);
  assert.ok(stale instanceof StaleTokenError && (stale.highestToken ?? 0) > token);
});

test("any call of the API can be made", async (t) => {
  const [mine, name] = [client(t, here.urls), unique()];
  await mine.lock(name, { owner: "me" }, async () => {
    const { locks } = await mine.request<{ locks: Array<{ name: string }> }>("GET", `/v1/locks?prefix=${name}`);
    assert.deepEqual(locks.map((lock) => lock.name), [name]);
    assert.equal((await mine.getLock(name)).owner, "me");
  });
});

test("a client that is closed gives back what it holds and acquires no more", async (t) => {
  const [mine, other, name] = [client(t, here.urls), client(t, here.urls), unique()];
  const seen = observer(here.urls[0] as string);
  await mine.lock(name);
  await other.lock(`${name}:other`);
  const waiting = mine.lock(`${name}:other`);
  await until(async () => (await seen.waiters(`${name}:other`)) === 1);
  await Promise.all([mine.close(), assert.rejects(waiting, { code: "closed" })]);
  assert.equal(await seen.held(name), false);
  await assert.rejects(mine.lock(name), { code: "closed" });
  await until(async () => (await seen.waiters(`${name}:other`)) === 0);
});
