// Retry: let the server wait (wait_ms), or ask again with delay and jitter; bounded either way.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { check, unique } from "./demo.js";
import { acquire, Refused, type Ask, type Lease } from "./quorate.js";

const WORTH_RETRYING = [
  "lock_held", "semaphore_full", "election_lost",
  "quorum_unavailable", "shutting_down", "too_many_waiters", "overloaded",
];

interface Bounds { attempts: number; deadline_ms: number; base_ms?: number; cap_ms?: number }

/** Ends after so many attempts or so much time, whatever comes first, with the last refusal. */
async function acquireWithRetry(what: string, ask: Ask, bounds: Bounds): Promise<Lease> {
  const { attempts, deadline_ms, base_ms = 50, cap_ms = 5_000 } = bounds;
  const ends = performance.now() + deadline_ms;
  // The same id at every attempt: had the answer to one that was granted got lost, the next
  // one gets that very lease instead of being locked out by it.
  const request_id = randomUUID();
  for (let attempt = 0; ; attempt++) {
    try {
      return await acquire(what, { ...ask, request_id });
    } catch (error) {
      // What is not a Refused comes from fetch: no server answers.
      if (Refused.is(error) && !Refused.is(error, ...WORTH_RETRYING)) throw error;
      // Full jitter: those who were refused together do not come back together.
      let delay = Math.random() * Math.min(cap_ms, base_ms * 2 ** attempt);
      if (Refused.is(error)) delay += error.problem.retry_after_ms ?? 0;
      if (attempt + 1 >= attempts || performance.now() + delay > ends) throw error;
      await sleep(delay);
    }
  }
}

const lock = `locks/${unique("report")}`;
const refused = (attempt: Promise<Lease>) => attempt.then(() => false, (error: unknown) => Refused.is(error, "lock_held"));

let holder = await acquire(lock);
setTimeout(() => void holder.release(), 500);
let lease = await acquire(lock, { wait_ms: 10_000 });
check(lease.answer.waited_ms >= 300, "wait_ms: one request, granted as soon as it is free");
await lease.release();

holder = await acquire(lock);
setTimeout(() => void holder.release(), 500);
lease = await acquireWithRetry(lock, {}, { attempts: 50, deadline_ms: 20_000, cap_ms: 200 });
check(true, "with delay and jitter: granted at some attempt after it is free");

check(await refused(acquireWithRetry(lock, {}, { attempts: 3, deadline_ms: 20_000 })), "bounded by attempts");
const begun = performance.now();
check(await refused(acquireWithRetry(lock, {}, { attempts: 1e6, deadline_ms: 1_000 })), "bounded by a deadline");
check(performance.now() - begun < 4_000, "which is kept");
await lease.release();
