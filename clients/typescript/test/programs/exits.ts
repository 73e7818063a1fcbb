// Holds a lock, and ends in the way that it is told.

import { Client } from "../../src/index.js";

const [servers = "", name = "", how] = process.argv.slice(2);
const lease = await new Client({ servers }).lock(name, { ttlMs: 60_000 });
lease.check();
console.log("held");
process.stdin.resume().once("end", () => {
  if (how === "by an error") throw new Error("of the program");
  if (how === "by process.exit") process.exit(3);
});
