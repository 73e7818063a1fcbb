// The clock of leases, with sources that are set by hand.

import assert from "node:assert/strict";
import { test } from "node:test";
import { clock } from "../src/clock.js";

test("the clock goes on while the machine is suspended", () => {
  let [steady, boot] = [5_000, 91_000];
  // The uptime has steps of 10 ms.
  const now = clock({ steady: () => steady, uptime: () => Math.floor(boot / 10) * 10 });
  const began = now();
  for (let i = 0; i < 1_000; i++) {
    [steady, boot] = [steady + 3, boot + 3];
    assert.equal(now() - began, (i + 1) * 3);
  }
  boot += 60_000; // suspended
  assert.ok(Math.abs(now() - began - 63_000) <= 10);
  const after = now();
  [steady, boot] = [steady + 1_000, boot + 1_000];
  assert.equal(now() - after, 1_000);
  boot += 500;
  assert.ok(Math.abs(now() - began - 64_500) <= 10, "the steps do not add up");
});

test("a pause between the readings is no time in suspend", () => {
  let time = 0;
  let pause = 0;
  const now = clock({ steady: () => time, uptime: () => [time, (time += pause)][0] as number });
  pause = 5_000;
  assert.equal(now(), 5_000);
  pause = 0;
  time += 10;
  assert.equal(now(), 5_010);
});
