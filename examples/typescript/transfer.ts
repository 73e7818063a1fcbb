// Several resources at once: a transfer between two accounts, by one lease over both.

import { setTimeout as sleep } from "node:timers/promises";
import { check, unique } from "./demo.js";
import { acquire, Refused } from "./quorate.js";

async function transfer(accounts: Map<string, number>, source: string, target: string, amount: number): Promise<void> {
  // All or nothing, and the order of names does not matter: two transfers in opposite
  // directions cannot wait for each other for ever.
  const lease = await acquire("multilocks", { names: [source, target], ttl_ms: 10_000, wait_ms: 30_000 });
  try {
    const [before, after] = [accounts.get(source) ?? 0, accounts.get(target) ?? 0];
    await sleep(5);
    accounts.set(source, before - amount).set(target, after + amount);
  } finally {
    await lease.release();
  }
}

const run = unique("account");
const [ann, bob, eve] = [`${run}:ann`, `${run}:bob`, `${run}:eve`];
const accounts = new Map([ann, bob, eve].map((name) => [name, 100]));

await Promise.all([
  transfer(accounts, ann, bob, 10), transfer(accounts, bob, ann, 5),
  transfer(accounts, bob, eve, 20), transfer(accounts, eve, bob, 7),
  transfer(accounts, eve, ann, 3), transfer(accounts, ann, eve, 1),
]);
check(
  [...accounts.values()].join() === "97,92,111",
  "transfers in all directions do not block each other, and each is done once",
);

const audit = await acquire(`locks/${ann}`, { owner: "auditor" }); // its members are ordinary locks
const refusal = await acquire("multilocks", { names: [ann, bob] }).catch((error: unknown) => error);
check(Refused.is(refusal, "lock_held"), "a multilock keeps out of a lock that is held");
await (await acquire(`locks/${bob}`)).release();
check(true, "and has taken none of the others");
await audit.release();
