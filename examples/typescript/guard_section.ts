// Guard a section: take the lock, work, give it back, whatever happens in between.

import { Client } from "@quorate/client";
import { setTimeout as sleep } from "node:timers/promises";
import { check, failure, unique } from "./demo.js";

const client = new Client();

async function add(account: { balance: number }, amount: number, lock: string): Promise<void> {
  await client.lock(lock, { waitMs: 30_000, owner: "guard_section.ts" }, async () => {
    const balance = account.balance; // read, compute, write: not atomic by itself
    await sleep(10);
    account.balance = balance + amount;
  });
}

const lock = unique("account");
const account = { balance: 0 };
await Promise.all(Array.from({ length: 8 }, () => add(account, 10, lock)));
check(account.balance === 80, "eight clerks at once lose no booking");

const failing = { get balance(): number { throw new RangeError("the work fails"); } };
check((await failure(add(failing as { balance: number }, 10, lock))) instanceof RangeError, "the error of a section is its caller's");
check(!(await client.getLock(lock)).held, "and the lock is given back");
