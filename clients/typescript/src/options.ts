// What a caller may ask for, and the request body that says so.

import { invalid } from "./errors.js";

/** A dead leader is to be replaced sooner than the server's default would have it. */
const ELECTION_TTL_MS = 10_000;

export interface AcquireOptions {
  /** Life of the lease without renewal. Left out: the server's default, 30,000. */
  ttlMs?: number;
  /** How long to wait: 0 is one attempt. Left out: as long as it takes. */
  waitMs?: number;
  /** A label shown to those who are refused. Left out: the client's. */
  owner?: string;
  /** A flat map of strings, shown with the owner. */
  metadata?: Record<string, string>;
  /** The lease ends so long after it was acquired, however often it is renewed. */
  maxHoldMs?: number;
  /** Where the lease expires instead of being released, the name stays taken for so much longer. */
  lockDelayMs?: number;
  /** Ends the wait, and aborts the signal that the guarded function gets. */
  signal?: AbortSignal;
}

export interface LockOptions extends AcquireOptions {
  /** Together with other shared leases, but with no exclusive one. */
  shared?: boolean;
}

export interface SemaphoreOptions extends AcquireOptions {
  /** How many permits there are. */
  limit: number;
  /** How many of them to acquire, all or none. Left out: 1. */
  permits?: number;
}

export interface CampaignOptions extends Omit<AcquireOptions, "owner" | "metadata"> {
  /** Life of the leadership without renewal. Left out: 10,000. */
  ttlMs?: number;
  /** Who campaigns. */
  candidate: string;
  /** What the leader proclaims, e.g. its address. */
  value?: string;
}

export interface RateLimitOptions extends Pick<AcquireOptions, "waitMs" | "signal"> {
  /** How many calls there may be in any window. */
  limit: number;
  /** How long a window is. */
  perMs: number;
}

export type AnyOptions = AcquireOptions & Partial<LockOptions & SemaphoreOptions & CampaignOptions>;

/** The body without `wait_ms` and `request_id`, which each attempt adds. */
export function acquireBody(options: AnyOptions): Record<string, unknown> {
  const fields = {
    ttl_ms: milliseconds("ttlMs", options.ttlMs ?? (options.candidate === undefined ? undefined : ELECTION_TTL_MS)),
    max_hold_ms: milliseconds("maxHoldMs", options.maxHoldMs),
    lock_delay_ms: milliseconds("lockDelayMs", options.lockDelayMs),
    owner: options.owner,
    metadata: options.metadata,
    mode: options.shared ? "shared" : undefined,
    limit: options.limit,
    permits: options.permits,
    candidate: options.candidate,
    value: options.value,
  };
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

/** The caller's limit: Infinity where there is none. */
export function waitOf({ waitMs }: AcquireOptions): number {
  return waitMs === undefined || waitMs === Infinity ? Infinity : (milliseconds("waitMs", waitMs) as number);
}

/** JSON has no NaN, and the server no fractions: never a lease of another length than was asked for. */
function milliseconds(field: string, value: number | undefined): number | undefined {
  if (value !== undefined && !(Number.isSafeInteger(value) && value >= 0)) {
    throw invalid(field, `must be a whole number of milliseconds, not ${String(value)}`);
  }
  return value;
}
