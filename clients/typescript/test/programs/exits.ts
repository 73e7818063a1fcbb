// Holds a lock, and ends in the way that it is told.

import { Client, type LeaseLostError } from "../../src/index.js";

const [servers = "", name = "", how] = process.argv.slice(2);
const client = new Client({ servers });
if (how === "by the loss") {
  // Nothing but the lease keeps this process alive.
  const lost = client.lock(name, { ttlMs: 1_500 }, (lease) => new Promise<void>((resolve) => {
    lease.onLost(() => resolve());
    console.log("held");
  }));
  await lost.catch(({ code }: LeaseLostError) => console.log("lost", code));
  process.exit();
}
const lease = await client.lock(name, { ttlMs: 60_000 });
lease.check();
console.log("held");
process.stdin.resume().once("end", () => {
  if (how === "by an error") throw new Error("of the program");
  if (how === "by process.exit") process.exit(3);
});
