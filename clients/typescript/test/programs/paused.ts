// Holds a lock, and says when it is lost. It ends with 0 if it was told within 50 ms of going on after a pause.

import { Client, LeaseLostError } from "../../src/index.js";

const [servers = "", name = "", ttlMs] = process.argv.slice(2);
let end = false;
process.stdin.resume().once("end", () => (end = true));

const client = new Client({ servers });
try {
  await client.lock(name, { ttlMs: Number(ttlMs) }, (lease) => new Promise<void>((resolve, reject) => {
    let validUntil = performance.now() + lease.remainingMs();
    const watch = setInterval(() => {
      if (performance.now() > validUntil) {
        // Over while this process stood still. No look at the lease here, which would make the loss known: the
        // client has to find out by itself, before a timer of 50 ms that starts now.
        clearInterval(watch);
        setTimeout(() => {
          console.log(lease.signal.aborted ? "told" : "not told");
          reject(lease.signal.reason);
        }, 50);
        return;
      }
      validUntil = performance.now() + lease.remainingMs();
      if (!end) return;
      console.log("kept");
      clearInterval(watch);
      resolve();
    }, 1);
    console.log("held");
  }));
} catch (error) {
  if (!(error instanceof LeaseLostError)) throw error;
}
await client.close();
process.stdin.destroy();
