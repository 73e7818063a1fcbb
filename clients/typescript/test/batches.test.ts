// How leases are put together in requests.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Held } from "../src/held.js";
import { batches } from "../src/renewer.js";
import { several, single } from "../src/target.js";

const answer = { lease_id: "0".repeat(46), ttl_ms: 1_000, validity_ms: 900, waited_ms: 0 } as ConstructorParameters<typeof Held>[1]["answer"];
const held = (target: ReturnType<typeof single>) => new Held(target, { answer, since: 0, validUntil: 900 });
const body = (batch: Held[]) => JSON.stringify({ leases: batch.map(({ target }) => ({ ...target.label, lease_id: answer.lease_id })) });

test("a request has at most 500 leases and 256 KiB", () => {
  const short = Array.from({ length: 1_200 }, (_, i) => held(single("lock", `a:${i}`)));
  assert.deepEqual(batches(short).map(({ length }) => length), [500, 500, 200]);
  const long = Array.from({ length: 1_200 }, (_, i) => held(single("election", `${i}:`.padEnd(200, "a"))));
  const many = Array.from({ length: 50 }, (_, i) => held(several(Array.from({ length: 64 }, (_, j) => `${i}:${j}:`.padEnd(200, "a")))));
  for (const leases of [long, many, [...short, ...many, ...long]]) {
    const all = batches(leases);
    assert.deepEqual(all.flat(), leases);
    assert.ok(all.every((batch) => batch.length <= 500 && body(batch).length <= 256 * 1024));
  }
  assert.deepEqual(batches([]), []);
});
