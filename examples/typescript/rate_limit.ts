// At most N calls per minute: permits that are never given back but left to expire. In any window of
// `perMs` there are at most `limit` grants, at whatever moment it begins.

import { Client, NotAcquiredError } from "@quorate/client";
import { check, failure, unique } from "./demo.js";

const client = new Client();
const [name, limit, perMs] = [unique("sms"), 4, 2_000]; // for a minute: 60_000
const calls: { since: number; until: number }[] = []; // granted at the earliest, at the latest

async function callNow(waitMs: number): Promise<void> {
  const since = performance.now();
  await client.rateLimit(name, { limit, perMs, waitMs });
  calls.push({ since, until: performance.now() });
}

for (let i = 0; i < limit; i++) await callNow(0);
const refusal = await failure(client.rateLimit(name, { limit, perMs, waitMs: 0 }));
check(refusal instanceof NotAcquiredError && refusal.code === "semaphore_full", "the fifth call within the window is refused");
check(refusal instanceof NotAcquiredError && (refusal.retryAfterMs ?? -1) >= 0, "and told when to try again");
for (let i = 0; i <= limit; i++) await callNow(20_000);

const gaps = calls.slice(limit).map((later, i) => later.until - (calls[i]?.since ?? 0));
check(Math.min(...gaps) >= perMs, `${calls.length} calls, never more than ${limit} in ${perMs} ms`);
