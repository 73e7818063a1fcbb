// Try once and go on otherwise: for work that somebody else is doing already.

import { check, unique } from "./demo.js";
import { acquire, Refused, type Lease } from "./quorate.js";

async function refreshCache(lock: string): Promise<string> {
  let lease: Lease;
  try {
    lease = await acquire(lock, { ttl_ms: 10_000, owner: "try_once.ts" }); // wait_ms 0: the answer comes at once
  } catch (error) {
    if (!Refused.is(error, "lock_held")) throw error; // no quorum, say, is not "somebody else does it"
    // No holder in the answer: the nodes have not agreed on one yet.
    return `left to ${error.problem.holder?.owner ?? "someone"}`;
  }
  try {
    return "refreshed";
  } finally {
    await lease.release();
  }
}

const lock = `locks/${unique("cache")}`;
const lease = await acquire(lock, { owner: "worker-1" });
check((await refreshCache(lock)) === "left to worker-1", "while another holds it, it goes on and knows who");
await lease.release();
check((await refreshCache(lock)) === "refreshed", "once it is free, it does the work");
