// A task longer than the ttl: the client extends the lease at a third of it. The loss is noticed, and the work stopped.

import { Client, LeaseLostError } from "@quorate/client";
import { setTimeout as sleep } from "node:timers/promises";
import { check, failure, unique } from "./demo.js";

/** Hands the signal on to each step, so that it ends in the middle of one. */
async function longTask(steps: number, signal: AbortSignal): Promise<string> {
  for (let step = 0; step < steps; step++) await sleep(100, undefined, { signal });
  return "done";
}

const client = new Client();
const lock = unique("import");

const result = await client.lock(lock, { ttlMs: 3_000 }, (_, signal) => longTask(50, signal));
check(result === "done", "a task of 5 s ends under a lease of 3 s");
check(!(await client.getLock(lock)).held, "and the lock is free after it");

setTimeout(() => void client.request("DELETE", `/v1/locks/${lock}`), 500); // an administrator takes it away
let begun = performance.now();
let lost = await failure(client.lock(lock, { ttlMs: 3_000 }, (_, signal) => longTask(50, signal)));
check(lost instanceof LeaseLostError && lost.code === "lease_lost", "a lease that is taken away stops the work");
check(performance.now() - begun < 2_500, "soon");

let outOfReach = false;
const cut = new Client({ fetch: (url, init) => (outOfReach ? Promise.reject(new Error("no route")) : fetch(url, init)) });
lost = await failure(cut.lock(lock, { ttlMs: 3_000 }, (_, signal) => {
  outOfReach = true;
  begun = performance.now();
  return longTask(50, signal);
}));
check(lost instanceof LeaseLostError && lost.code === "lease_expired", "a server that is out of reach stops the work");
check(performance.now() - begun < 4_500, "when the lease ends");
