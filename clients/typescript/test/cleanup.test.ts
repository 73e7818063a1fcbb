// Scenarios S40 and S41: nothing is left behind.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Program, client, lacks, observer, shared, unique, until } from "./support.js";

const here = shared();
const a = () => here.urls[0] as string;

test("S40: two hundred cancellations at random moments leave nothing behind", async (t) => {
  if (await lacks(t, a(), "release by request_id")) return;
  const [mine, name] = [client(t, here.urls), unique()];
  const names = Array.from({ length: 40 }, (_, i) => `${name}:${i}`);
  let granted = 0;
  for (let round = 0; round < 10; round++) {
    await Promise.all(Array.from({ length: 20 }, async (_, i) => {
      const signal = AbortSignal.timeout(Math.floor(Math.random() * 60));
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
