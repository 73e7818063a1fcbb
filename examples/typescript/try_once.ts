// Try once and go on otherwise: for work that somebody else is doing already.

import { Client, tryWithLock } from "@quorate/client";
import { check, unique } from "./demo.js";

const client = new Client();

async function refreshCache(lock: string): Promise<string> {
  // That nobody can know who holds it (no quorum, no server) is an error, and not "somebody else does it".
  const tried = await tryWithLock(client, lock, () => "refreshed", { owner: "try_once.ts" });
  // There is no holder in the answer while the nodes have not agreed on one.
  return tried.ran ? tried.value : `left to ${tried.holder?.owner ?? "someone"}`;
}

const lock = unique("cache");
await client.lock(lock, { owner: "worker-1" }, async () => {
  check((await refreshCache(lock)) === "left to worker-1", "while another holds it, it goes on and knows who");
});
check((await refreshCache(lock)) === "refreshed", "once it is free, it does the work");
