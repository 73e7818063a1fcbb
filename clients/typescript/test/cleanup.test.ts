// Scenarios S40 and S41: nothing is left behind.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { NotAcquiredError } from "../src/index.js";
import { Fault, Program, client, observer, shared, unique, until } from "./support.js";

const here = shared();
const a = () => here.urls[0] as string;

test("S40: two hundred cancellations at random moments leave nothing behind", async (t) => {
  const [mine, name] = [client(t, here.urls), unique()];
  const names = Array.from({ length: 40 }, (_, i) => `${name}:${i}`);
  let granted = 0;
  for (let round = 0; round < 10; round++) {
    await Promise.all(Array.from({ length: 20 }, async (_, i) => {
      // Late enough at last for some to be granted on a busy machine, too.
      const signal = AbortSignal.timeout(Math.floor(Math.random() * (round < 9 ? 60 : 3_000)));
      await mine.lock(names[(20 * round + i) % 15 + round] as string, { ttlMs: 60_000, signal }, async (_, signal) => {
        granted += 1;
        await sleep(Math.random() * 30, undefined, { signal });
      }).catch((error: unknown) => {
        if (!signal.aborted) throw error;
      });
    }));
  }
  assert.ok(granted > 0 && granted < 200, `${granted} of them were granted`);
  const free = async () => {
    const { locks } = await mine.request<{ locks: Array<{ held: boolean }> }>("GET", `/v1/locks?prefix=${name}&limit=1000`);
    return locks.every(({ held }) => !held);
  };
  await until(free, 5_000); // of 60 that their ttl would take
  for (const one of names) assert.equal(await observer(a()).waiters(one), 0);
});

test("S40: a caller who gives up says so to each server that was asked", async (t) => {
  const [fault, name] = [await Fault.before(t, a()), unique()];
  await client(t, a()).lock(name, {}, async () => {
    const mine = client(t, fault.url);
    const signal = AbortSignal.timeout(300);
    await assert.rejects(mine.lock(name, { signal }), { name: "TimeoutError" });
    await assert.rejects(mine.lock(name, { waitMs: 200 }), NotAcquiredError);
    await mine.close(); // which waits for what goes on in the background
    const ids = (verb: string) => new Set(fault.asked.filter(([path]) => path.endsWith(verb)).map(([, body]) => body["request_id"]));
    assert.equal(ids("/release").size, 2);
    assert.deepEqual(ids("/release"), ids("/acquire"));
    await assert.rejects(client(t, fault.url).lock(name, { waitMs: 0 }), NotAcquiredError);
    assert.equal(ids("/release").size, 2); // a plain refusal leaves nothing
  });
});

test("S40: a lease that is granted as its caller leaves is given back", async (t) => {
  const name = unique();
  const stop = new AbortController();
  const mine = client(t, a(), {
    // The answer is here, and read by the client only after its caller has left.
    fetch: async (url, init) => {
      const answer = await fetch(url, { ...init, signal: null });
      const text = await answer.text();
      if (url.endsWith("/acquire")) stop.abort();
      return { ok: answer.ok, status: answer.status, headers: answer.headers, text: () => Promise.resolve(text) };
    },
  });
  await assert.rejects(mine.lock(name, { ttlMs: 60_000, signal: stop.signal }), { name: "AbortError" });
  await mine.close();
  assert.equal(await observer(a()).held(name), false);
});

test("a process that waits for nothing else goes on while a function runs under a lease", async (t) => {
  const name = unique();
  const program = new Program(t, "exits", [here.urls.join(), name, "by the loss"]);
  await program.says("held");
  await observer(a()).forceRelease(name);
  await program.says("lost");
  await program.ended;
  assert.equal(program.process.exitCode, 0);
});

for (const [how, status] of [["by itself", 0], ["by an error", 1], ["by process.exit", 3]] as const) {
  test(`S41: the leases of a process that ends ${how} are free at once`, async (t) => {
    const [name, seen] = [unique(), observer(a())];
    const program = new Program(t, "exits", [here.urls.join(), name, how]);
    await program.says("held");
    assert.equal(await seen.held(name), true);
    program.process.stdin?.end();
    await program.ended;
    assert.equal(program.process.exitCode, status);
    if (status !== 1) assert.equal(program.errors, "");
    assert.equal(await seen.held(name), false);
  });
}
