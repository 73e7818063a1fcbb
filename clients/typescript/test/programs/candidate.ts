// A candidate that says at which moments it was the leader. "resign" ends a leadership, the end of input the program.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "../../src/index.js";

const [servers = "", name = "", candidate = "", ttlMs] = process.argv.slice(2);
const client = new Client({ servers });
const end = new AbortController();
let resign = false;
createInterface({ input: process.stdin }).on("line", () => (resign = true)).on("close", () => end.abort());

while (!end.signal.aborted) {
  resign = false;
  await client.lead(name, { candidate, ttlMs: Number(ttlMs), signal: end.signal }, async (leadership, signal) => {
    leadership.onLost(() => console.log("lost"));
    while (!resign) {
      signal.throwIfAborted();
      const at = process.hrtime.bigint();
      leadership.check(); // it is the leader now, so it was at that moment
      console.log(`leads ${leadership.term} ${at}`);
      await sleep(5);
    }
  }).catch((error: unknown) => {
    if (!end.signal.aborted) throw error;
  });
  await sleep(500, undefined, { signal: end.signal }).catch(() => {}); // lets others lead
}
await client.close();
