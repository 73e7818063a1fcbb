// Several resources at once: a transfer between two accounts, by one lease over both.

import { Client, NotAcquiredError } from "@quorate/client";
import { setTimeout as sleep } from "node:timers/promises";
import { check, failure, unique } from "./demo.js";

const client = new Client();

async function transfer(accounts: Map<string, number>, source: string, target: string, amount: number): Promise<void> {
  // All or nothing, and the order of names does not matter: two transfers in opposite
  // directions cannot wait for each other for ever.
  await client.locks([source, target], { waitMs: 30_000 }, async () => {
    const [before, after] = [accounts.get(source) ?? 0, accounts.get(target) ?? 0];
    await sleep(5);
    accounts.set(source, before - amount).set(target, after + amount);
  });
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

const audit = await client.lock(ann, { owner: "auditor" }); // its members are ordinary locks
const refusal = await failure(client.locks([ann, bob], { waitMs: 0 }));
check(refusal instanceof NotAcquiredError, "a multilock keeps out of a lock that is held");
await (await client.lock(bob, { waitMs: 0 })).release();
check(true, "and has taken none of the others");
await audit.release();
