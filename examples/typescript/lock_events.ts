// Events and counters of lock use: what this process does, and what the server counts for all.

import { Client, LeaseLostError, QuorateError, type LockOptions } from "@quorate/client";
import { setTimeout as sleep } from "node:timers/promises";
import { check, failure, unique } from "./demo.js";

const client = new Client();
const counters = { acquired: 0, refused: 0, released: 0, lost: 0 };

/**
 * A line for the log, and one more in a counter: hand both to whatever you monitor with. Never the
 * lease_id: whoever has it is the holder.
 */
function event(kind: keyof typeof counters, name: string, more: object): void {
  counters[kind]++;
  console.error(JSON.stringify({ event: kind, name, ...more }));
}

async function observed<T>(name: string, options: LockOptions, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  let begun = performance.now();
  const since = () => Math.round(performance.now() - begun);
  const lease = await client.lock(name, options).catch((error: unknown) => {
    if (error instanceof QuorateError) event("refused", name, { code: error.code, after_ms: since() });
    throw error;
  });
  const token = lease.fencingToken;
  event("acquired", name, { token, waited_ms: lease.answer.waited_ms });
  begun = performance.now();
  lease.onLost(({ code }) => event("lost", name, { token, code, held_ms: since() })); // the one to alert on
  try {
    return await lease.use((_, signal) => work(signal));
  } finally {
    if (!lease.signal.aborted) event("released", name, { token, held_ms: since() });
  }
}

/** The server's own counters, for Prometheus. They have no lock names: see the list for those. */
async function serverCounts(primitive: string, outcome: string): Promise<number> {
  const server = process.env["QUORATE_SERVER"]?.split(",")[0] ?? "http://127.0.0.1:8080";
  const text = await (await fetch(`${server}/metrics`)).text();
  const line = text.split("\n").find((line) =>
    ["quorate_acquisitions_total{", `primitive="${primitive}"`, `outcome="${outcome}"`].every((part) => line.includes(part)));
  return Number(line?.split(" ").at(-1) ?? 0);
}

const name = unique("observed");
const [granted, held] = [await serverCounts("lock", "granted"), await serverCounts("lock", "held")];

await observed(name, { owner: "importer" }, async () => {
  const { locks } = await client.request<{ locks: { owner?: string; remaining_ms?: number }[] }>("GET", `/v1/locks?prefix=${name}`);
  check(locks[0]?.owner === "importer" && (locks[0].remaining_ms ?? 0) > 0, "who holds what, and for how long, is listed");
  await failure(observed(name, { owner: "second", waitMs: 0 }, async () => {}));
});
const lost = await failure(observed(name, { ttlMs: 1_000 }, async (signal) => {
  await client.request("DELETE", `/v1/locks/${name}`); // taken away by an administrator
  await sleep(10_000, undefined, { signal });
}));
check(lost instanceof LeaseLostError, "work whose lease is lost ends with that");

check(JSON.stringify(counters) === '{"acquired":2,"refused":1,"released":1,"lost":1}', `counted here: ${JSON.stringify(counters)}`);
check((await serverCounts("lock", "granted")) >= granted + 2, "the server counts what it grants");
check((await serverCounts("lock", "held")) >= held + 1, "and what it refuses");
