// Scenarios S70 to S75: helpers.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { UnavailableError, idempotent, leader, singleton, tryWithLock, withLock, withLocks } from "../src/index.js";
import { client, observer, shared, unique, until } from "./support.js";

const here = shared();
const a = () => here.urls[0] as string;

test("S70: withLock and withLocks let one in at a time and return the result", async (t) => {
  const [mine, other, name] = [client(t, here.urls), client(t, here.urls), unique()];
  let [inside, most] = [0, 0];
  const body = async () => {
    most = Math.max(most, ++inside);
    await sleep(5);
    return inside--;
  };
  const results = await Promise.all([mine, other, mine, other].flatMap((one) => [
    withLock(one, name, body), withLocks(one, [name, `${name}:b`], body),
  ]));
  assert.deepEqual([most, new Set(results)], [1, new Set([1])]);
});

test("S71: tryWithLock does not run where the lock is held, and says who holds it", async (t) => {
  const [mine, other, name] = [client(t, here.urls), client(t, here.urls, { owner: "other" }), unique()];
  const held = await other.lock(name);
  const refused = await tryWithLock(mine, name, () => assert.fail());
  assert.deepEqual([refused.ran, !refused.ran && refused.holder?.owner], [false, "other"]);
  await held.release();
  assert.deepEqual(await tryWithLock(mine, name, () => "done"), { ran: true, value: "done" });
  await assert.rejects(tryWithLock(client(t, "http://127.0.0.1:1"), name, () => {}), UnavailableError);
});

test("S72: an event that is delivered many times is processed once", async (t) => {
  const [clients, name] = [[client(t, here.urls), client(t, here.urls)], unique()];
  let [marked, runs, fails] = [false, 0, true];
  const event = {
    done: () => marked,
    work: async () => {
      runs += 1;
      await sleep(100);
      if (fails) throw new RangeError("the work fails");
      marked = true;
    },
  };
  const deliver = (one = clients[0]) => idempotent(one as (typeof clients)[0], name, event);
  await assert.rejects(deliver(), RangeError);
  [fails, runs] = [false, 0];
  const outcomes = await Promise.all(Array.from({ length: 6 }, (_, i) => deliver(clients[i % 2])));
  assert.deepEqual(outcomes.sort(), [...Array<string>(5).fill("duplicate"), "processed"]);
  assert.equal(await deliver(), "already_processed");
  assert.equal(runs, 1);
});

test("S73: a leader's hooks come in pairs and in order", async (t) => {
  const [name, stops] = [unique(), [new AbortController(), new AbortController()]];
  const events: string[] = [];
  const lead = (candidate: string, i: number) => leader(client(t, here.urls), name, {
    became: async (_, signal) => {
      events.push(`${candidate} became`);
      await sleep(20, undefined, { signal });
    },
    lost: async () => {
      await sleep(20);
      events.push(`${candidate} lost`);
    },
  }, { candidate, ttlMs: 2_000, signal: stops[i]?.signal as AbortSignal });
  const ended = [lead("a", 0)];
  await until(() => events.includes("a became"));
  const taken = client(t, here.urls);
  ended.push(lead("b", 1));
  await until(async () => (await taken.getLeader(name)).waiters === 1);
  stops[0]?.abort();
  await until(() => events.includes("b became"));
  stops[1]?.abort();
  await Promise.all(ended);
  assert.deepEqual(events, ["a became", "a lost", "b became", "b lost"]);
});

test("S74: of two singletons one runs, and the other takes over", async (t) => {
  const [mine, other, name] = [client(t, here.urls), client(t, here.urls), unique()];
  const runs: string[] = [];
  const first = singleton(mine, name, async () => {
    runs.push("first");
    await until(async () => (await observer(a()).waiters(name)) === 1);
    return 1;
  });
  await until(() => runs.length === 1);
  assert.deepEqual(await Promise.all([first, singleton(other, name, () => runs.push("second"))]), [1, 2]);
  assert.deepEqual(runs, ["first", "second"]);
});

test("S74: a singleton that loses its lock stands by again, and an error of its own ends it", async (t) => {
  const [mine, name] = [client(t, here.urls), unique()];
  let runs = 0;
  const ended = singleton(mine, name, async (_, signal) => {
    if (++runs > 1) throw new UnavailableError("no_server", "of another lock");
    await observer(a()).forceRelease(name);
    await sleep(10_000, undefined, { signal });
  }, { ttlMs: 1_000 });
  await assert.rejects(ended, { message: "no_server: of another lock" });
  assert.equal(runs, 2);
  await assert.rejects(singleton(mine, name, () => Promise.reject(undefined)), (error) => error === undefined);
});

test("S75: a write under a lease that was lost changes nothing", async (t) => {
  const [mine, other, name] = [client(t, here.urls), client(t, here.urls), unique()];
  const row = { text: "empty", fence: 0 };
  const write = (text: string, fence: number) => row.fence < fence && Boolean(Object.assign(row, { text, fence }));
  const lost = await mine.lock(name, { ttlMs: 30_000 });
  await observer(a()).forceRelease(name);
  const next = await other.lock(name);
  assert.equal(write("next", next.fencingToken), true);
  assert.equal(write("late", lost.fencingToken), false);
  assert.equal(row.text, "next");
});
