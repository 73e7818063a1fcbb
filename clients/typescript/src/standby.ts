// Standing by: to hold a lease whenever it can be had, and to work under it.

import { UnavailableError } from "./errors.js";
import type { Body, Lease } from "./lease.js";
import { sleep } from "./signals.js";

const AGAIN_MS = 1_000;

/**
 * Acquires, works, and acquires again where the lease was lost. It ends as the work ends under a lease that
 * was not lost, or with the signal's reason.
 */
export async function standBy<T, L extends Lease>(
  acquire: () => Promise<L>,
  body: Body<T, L>,
  signal: AbortSignal | undefined,
): Promise<T> {
  for (;;) {
    let lease: L;
    try {
      lease = await acquire();
    } catch (error) {
      if (signal?.aborted || !(error instanceof UnavailableError)) throw error;
      await sleep(error.retryAfterMs ?? AGAIN_MS, signal);
      continue;
    }
    try {
      return await lease.use(body, signal);
    } catch (error) {
      if (!lease.signal.aborted || error !== lease.signal.reason) throw error;
      signal?.throwIfAborted();
    }
  }
}
