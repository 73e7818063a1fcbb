// Guard a section: take the lock, work, give it back, whatever happens in between.

import { setTimeout as sleep } from "node:timers/promises";
import { check, unique } from "./demo.js";
import { acquire, call } from "./quorate.js";

async function add(account: { balance: number }, amount: number, lock: string): Promise<void> {
  // wait_ms: ask once and wait in the server's queue, instead of asking again and again.
  const lease = await acquire(lock, { ttl_ms: 10_000, wait_ms: 30_000, owner: "guard_section.ts" });
  try {
    const balance = account.balance; // read, compute, write: not atomic by itself
    await sleep(10);
    account.balance = balance + amount;
  } finally {
    await lease.release();
  }
}

const lock = `locks/${unique("account")}`;
const account = { balance: 0 };
await Promise.all(Array.from({ length: 8 }, () => add(account, 10, lock)));
check(account.balance === 80, "eight clerks at once lose no booking");

const failing = { get balance(): number { throw new Error("the work fails"); } };
const failed = await add(failing as { balance: number }, 10, lock).then(() => false, () => true);
check(failed && !(await call<{ held: boolean }>("GET", `/v1/${lock}`)).held, "a section that fails gives the lock back");
