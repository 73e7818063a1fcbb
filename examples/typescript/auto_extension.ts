// A task longer than the ttl: extended at a third of it, the loss noticed, the work stopped. How it
// is extended is in keeper.ts.

import { setTimeout as sleep } from "node:timers/promises";
import { check, unique } from "./demo.js";
import { kept } from "./keeper.js";
import { acquire, call } from "./quorate.js";

/** Waits by `lost` as well, so that it ends in the middle of a step. */
async function longTask(steps: number, lost: AbortSignal): Promise<string> {
  for (let step = 0; step < steps; step++) await sleep(100, undefined, { signal: lost });
  return "done";
}

const lock = `locks/${unique("import")}`;
const outcome = (task: Promise<string>) => task.catch((error: unknown) => (error as Error).name);

let lease = await acquire(lock, { ttl_ms: 3_000 });
const result = await outcome(kept(lease, (lost) => longTask(50, lost)));
check(result === "done", "a task of 5 s ends under a lease of 3 s");
check(!(await call<{ held: boolean }>("GET", `/v1/${lock}`)).held, "and the lock is free after it");

lease = await acquire(lock, { ttl_ms: 3_000 });
setTimeout(() => void call("DELETE", `/v1/${lock}`), 500); // an administrator takes it away
const begun = performance.now();
check((await outcome(kept(lease, (lost) => longTask(50, lost)))) === "AbortError", "a lease that is taken away stops the work");
check(performance.now() - begun < 2_500, "soon");

lease = await acquire(lock, { ttl_ms: 4_000 });
lease.extend = () => Promise.reject(new Error("connection refused")); // the server is out of reach from now on
check((await outcome(kept(lease, (lost) => longTask(50, lost)))) === "AbortError", "a server that is out of reach stops the work");
check(performance.now() < lease.validUntil, "before the lease has ended");
