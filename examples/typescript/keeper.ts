// Extends a lease in the background: the heart of auto_extension.ts, used by others too.

import { setTimeout as sleep } from "node:timers/promises";
import { Refused, type Lease } from "./quorate.js";

/**
 * Runs `work` while the lease is extended at a third of its ttl, and gives the lease back after it.
 *
 * The signal that `work` gets is aborted when the lease is lost, and at the latest a tenth of the ttl
 * before it ends without an extension, so that the work has time to stop. Hand it on: to fetch, to
 * timers, to child processes.
 */
export async function kept<T>(lease: Lease, work: (lost: AbortSignal) => Promise<T>): Promise<T> {
  const [lost, done] = [new AbortController(), new AbortController()];
  const keeping = keep(lease, done.signal).then((held) => held || lost.abort(new Error("the lease is lost")));
  try {
    return await work(lost.signal);
  } finally {
    done.abort();
    await keeping; // no extension may overtake the release
    if (!lost.signal.aborted) await lease.release().catch(() => {}); // it ends with its ttl
  }
}

/** True when it was ended by `done`, false when the lease is lost. */
async function keep(lease: Lease, done: AbortSignal): Promise<boolean> {
  const ttl = lease.answer.ttl_ms;
  let pause = ttl / 3;
  for (;;) {
    const left = lease.validUntil - ttl / 10 - performance.now();
    await sleep(Math.max(0, Math.min(pause, left)), undefined, { signal: done }).catch(() => {});
    if (done.aborted) return true;
    if (left <= pause) return false; // time is up
    try {
      // A server that hangs must leave time for another try.
      await lease.extend(AbortSignal.timeout(Math.ceil(Math.min(left - pause, ttl / 4))));
      pause = ttl / 3;
    } catch (error) {
      if (Refused.is(error, "lease_lost")) return false;
      pause = ttl / 30; // no quorum or no server: as long as there is time, again
    }
  }
}
