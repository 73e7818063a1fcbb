// Code of somebody who has installed the package: it compiles strictly, and runs without any server.

import { Client, NotAcquiredError, UnavailableError, type Lease, type LockState } from "@quorate/client";

const client = new Client({ servers: ["http://127.0.0.1:1"] });

export async function once(): Promise<LockState> {
  await using lease = await client.lock("orders:42", { ttlMs: 30_000 });
  lease.onLost(({ code }) => console.log(code));
  return client.getLock("orders:42");
}

const work = (lease: Lease, signal: AbortSignal): number => (signal.aborted ? 0 : lease.fencingToken);
try {
  await client.lock("orders:42", { waitMs: 0 }, work);
} catch (error) {
  if (!(error instanceof UnavailableError) || error instanceof NotAcquiredError) throw error;
}
