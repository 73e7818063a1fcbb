// Events and counters of lock use: what this process does, and what the server counts for all.

import { setTimeout as sleep } from "node:timers/promises";
import { check, unique } from "./demo.js";
import { acquire, call, QUORATE_URL, Refused, type Ask } from "./quorate.js";

const counters = { acquired: 0, refused: 0, released: 0, lost: 0 };

/**
 * A line for the log, and one more in a counter: hand both to whatever you monitor with. Never the
 * lease_id: whoever has it is the holder.
 */
function event(kind: keyof typeof counters, what: string, more: object): void {
  counters[kind]++;
  console.error(JSON.stringify({ event: kind, what, ...more }));
}

async function observed<T>(what: string, ask: Ask, work: () => Promise<T>): Promise<T> {
  let begun = performance.now();
  const since = () => Math.round(performance.now() - begun);
  const lease = await acquire(what, ask).catch((error: unknown) => {
    if (Refused.is(error)) event("refused", what, { code: error.problem.code, after_ms: since() });
    throw error;
  });
  const token = lease.answer.fencing_token;
  event("acquired", what, { token, waited_ms: lease.answer.waited_ms });
  begun = performance.now();
  try {
    return await work();
  } finally {
    // false: it was not held any more.
    event((await lease.release()) ? "released" : "lost", what, { token, held_ms: since() });
  }
}

/** The server's own counters, for Prometheus. They have no lock names: see the list for those. */
async function serverCounts(primitive: string, outcome: string): Promise<number> {
  const text = await (await fetch(`${QUORATE_URL}/metrics`)).text();
  const line = text.split("\n").find((line) =>
    ["quorate_acquisitions_total{", `primitive="${primitive}"`, `outcome="${outcome}"`].every((part) => line.includes(part)));
  return Number(line?.split(" ").at(-1) ?? 0);
}

const name = unique("observed");
const [granted, held] = [await serverCounts("lock", "granted"), await serverCounts("lock", "held")];

await observed(`locks/${name}`, { owner: "importer" }, async () => {
  const { locks } = await call<{ locks: { owner?: string; remaining_ms?: number }[] }>("GET", `/v1/locks?prefix=${name}`);
  check(locks[0]?.owner === "importer" && (locks[0].remaining_ms ?? 0) > 0, "who holds what, and for how long, is listed");
  await observed(`locks/${name}`, { owner: "second" }, async () => {}).catch(() => {});
});
await observed(`locks/${name}`, { ttl_ms: 100 }, () => sleep(300)); // works longer than its lease lasts

check(JSON.stringify(counters) === '{"acquired":2,"refused":1,"released":1,"lost":1}', `counted here: ${JSON.stringify(counters)}`);
check((await serverCounts("lock", "granted")) >= granted + 2, "the server counts what it grants");
check((await serverCounts("lock", "held")) >= held + 1, "and what it refuses");
