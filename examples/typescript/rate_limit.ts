// At most N calls per minute: permits that are never given back but left to expire. In any window of
// `ttl_ms` there are at most `limit` grants, at whatever moment it begins.

import { check, unique } from "./demo.js";
import { acquire, Refused, type Lease } from "./quorate.js";

/** Resolves when the call may be made, or throws semaphore_full. For a minute: window_ms 60_000. */
function rateLimited(name: string, limit: number, window_ms: number, wait_ms = 0): Promise<Lease> {
  return acquire(`semaphores/${name}`, { limit, ttl_ms: window_ms, wait_ms }); // and no release
}

const [name, limit, window_ms] = [unique("sms"), 4, 2_000];
const calls: { since: number; until: number }[] = []; // granted at the earliest, at the latest

async function callNow(wait_ms: number): Promise<void> {
  const permit = await rateLimited(name, limit, window_ms, wait_ms);
  calls.push({ since: permit.since, until: performance.now() });
}

for (let i = 0; i < limit; i++) await callNow(0);
const refusal = await rateLimited(name, limit, window_ms).catch((error: unknown) => error);
check(Refused.is(refusal, "semaphore_full"), "the fifth call within the window is refused");
check(Refused.is(refusal) && (refusal.problem.retry_after_ms ?? -1) >= 0, "and told when to try again");
for (let i = 0; i <= limit; i++) await callNow(20_000);

const gaps = calls.slice(limit).map((later, i) => later.until - (calls[i]?.since ?? 0));
check(Math.min(...gaps) >= window_ms, `${calls.length} calls, never more than ${limit} in ${window_ms} ms`);
