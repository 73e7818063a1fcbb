// Common uses of a lock, each a few lines over the client.

import type { Holder } from "./api.js";
import type { Client } from "./client.js";
import { NotAcquiredError } from "./errors.js";
import type { Body, Leadership, Lease } from "./lease.js";
import type { AcquireOptions, CampaignOptions, LockOptions } from "./options.js";
import { aborted, isReason } from "./signals.js";
import { standBy } from "./standby.js";

/** Runs the function under the lock. */
export function withLock<T>(client: Client, name: string, body: Body<T>, options: LockOptions = {}): Promise<T> {
  return client.lock(name, options, body);
}

/** Runs the function under all of the locks. */
export function withLocks<T>(client: Client, names: string[], body: Body<T>, options: AcquireOptions = {}): Promise<T> {
  return client.locks(names, options, body);
}

export type Tried<T> = { ran: true; value: T } | { ran: false; holder: Holder | undefined };

/** Does not run the function where somebody else holds the lock. That nobody can know who holds it is still an error. */
export async function tryWithLock<T>(
  client: Client, name: string, body: Body<T>, options: Omit<LockOptions, "waitMs"> = {},
): Promise<Tried<T>> {
  let lease: Lease;
  try {
    lease = await client.lock(name, { ...options, waitMs: 0 });
  } catch (error) {
    if (error instanceof NotAcquiredError && !options.signal?.aborted) return { ran: false, holder: error.holder };
    throw error;
  }
  return { ran: true, value: await lease.use(body, options.signal) };
}

export interface Once {
  /** Whether it was done before: by a mark that `work` leaves in the same transaction as its effect. */
  done(): Promise<boolean> | boolean;
  work: Body<void>;
}

/**
 * Does something once, however often it is asked for: `duplicate` where somebody else is at it. A lock is no place to
 * remember what was done: `done` is.
 */
export async function idempotent(
  client: Client, name: string, { done, work }: Once, options: Omit<LockOptions, "waitMs"> = {},
): Promise<"processed" | "already_processed" | "duplicate"> {
  const tried = await tryWithLock(client, name, async (lease, signal) => {
    if (await done()) return "already_processed";
    await work(lease, signal);
    return "processed";
  }, options);
  return tried.ran ? tried.value : "duplicate";
}

/** Runs the function in one process of many, and in another one when that loses the lock or ends. */
export function singleton<T>(client: Client, name: string, body: Body<T>, options: Omit<LockOptions, "waitMs"> = {}): Promise<T> {
  return standBy(() => client.lock(name, options), body, options.signal);
}

export interface LeaderHooks {
  became(leadership: Leadership, signal: AbortSignal): Promise<void> | void;
  /** Called before the leadership is given up: so it comes before another's `became`, unless the leadership was lost. */
  lost(term: number): Promise<void> | void;
}

/** Leads whenever it can, until the signal is aborted. */
export async function leader(
  client: Client, election: string, hooks: LeaderHooks, options: Omit<CampaignOptions, "waitMs"> & { signal: AbortSignal },
): Promise<void> {
  try {
    await client.lead(election, options, async (leadership, signal) => {
      try {
        await hooks.became(leadership, signal);
        await aborted(signal);
      } finally {
        await hooks.lost(leadership.term);
      }
      throw signal.reason;
    });
  } catch (error) {
    if (!isReason(error, options.signal)) throw error;
  }
}
