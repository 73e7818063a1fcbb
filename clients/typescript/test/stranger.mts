// Code of somebody who has installed the package: it compiles strictly, and runs in Node, Deno and Bun alike.

import { Client, LeaseLostError, NotAcquiredError, UnavailableError, tryWithLock, type Lease, type LockState } from "@quorate/client";

function check(holds: boolean, claim: string): void {
  if (!holds) throw new Error(claim);
}
const failure = (work: Promise<unknown>): Promise<unknown> => work.then(() => undefined, (error: unknown) => error);

const client = new Client(); // by QUORATE_SERVER
const name = `stranger:${Math.random()}`;

await client.lock(name, { ttlMs: 1_500, owner: "me" }, async (lease) => {
  await new Promise((resolve) => setTimeout(resolve, 2_500));
  lease.check();
  check((await client.getLock(name)).owner === "me", "it is renewed");
  const refused = await failure(client.lock(name, { waitMs: 0 }));
  check(refused instanceof NotAcquiredError && refused.holder?.owner === "me", "it is held");
  const signal = AbortSignal.timeout(300);
  check((await failure(client.lock(name, { signal }))) === signal.reason, "a wait can be aborted");
});

const stopped = (_: Lease, signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
const lost = client.lock(name, { ttlMs: 1_500 }, async (lease, signal) => {
  await client.request("DELETE", `/v1/locks/${name}`);
  await stopped(lease, signal);
});
const loss = await failure(lost);
check(loss instanceof LeaseLostError && loss.code === "lease_lost", "a loss is noticed");

const nobody = new Client({ servers: "http://127.0.0.1:1" });
check((await failure(nobody.lock(name, { waitMs: 0 }))) instanceof UnavailableError, "without a server it is unavailable");
const tried = await tryWithLock(client, name, (lease: Lease) => lease.fencingToken);
check(tried.ran && tried.value > 0, "it is free again");

async function disposed(): Promise<LockState> {
  await using lease = await client.lock(name);
  lease.check();
  return client.getLock(name);
}
check((await disposed()).held && !(await client.getLock(name)).held, "await using holds and releases");
for await (const { leader } of client.observeElection(name)) {
  check(leader === undefined, "nobody leads");
  break;
}
await client.lock(name);
await client.close();
check((await failure(client.lock(name)) as Error).message.includes("closed"), "a closed client acquires nothing");
