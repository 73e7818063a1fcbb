// Every kind of failure that calls for something else to be done is a class of its own.

import type { FieldError, Holder, Nodes, Problem } from "./api.js";

/** Any refusal. */
export class QuorateError extends Error {
  override name = "QuorateError";
  constructor(
    /** The kind of problem, for programs: `lock_held`, `quorum_unavailable` … */
    readonly code: string,
    detail: string,
    /** All that the server said, if it was a server that refused. */
    readonly problem: Partial<Problem> = {},
    options?: ErrorOptions,
  ) {
    super(detail ? `${code}: ${detail}` : code, options);
  }
  /** The tally of the nodes' answers, where the server gave one. */
  get nodes(): Nodes | undefined {
    return this.problem.nodes;
  }
  /** When to try again, in milliseconds, where the server said it. */
  get retryAfterMs(): number | undefined {
    const after: unknown = this.problem.retry_after_ms;
    return typeof after === "number" && after >= 0 ? after : undefined;
  }
}

/** Somebody else holds it, and did for as long as was waited: `lock_held`, `semaphore_full`, `election_lost`. */
export class NotAcquiredError extends QuorateError {
  override name = "NotAcquiredError";
  /** Who holds it. Absent for shared leases and semaphores, and while no single lease has a quorum. */
  get holder(): Holder | undefined {
    return this.problem.holder;
  }
  /** All holders that the server named. */
  get holders(): Holder[] {
    return this.problem.holders ?? (this.holder ? [this.holder] : []);
  }
}

/** It cannot be known or had at the moment: no server, no quorum of nodes, or too many who wait. */
export class UnavailableError extends QuorateError {
  override name = "UnavailableError";
}

/**
 * The lease has ended, and the work under it must stop: `lease_lost` (a server said it), `lease_expired`
 * (its validity was over before a server extended it), `hold_limit_reached` (its `maxHoldMs` was over), or
 * `released` (`check` was called after a release).
 */
export class LeaseLostError extends QuorateError {
  override name = "LeaseLostError";
}

/** A later token has been issued: do not write. */
export class StaleTokenError extends QuorateError {
  override name = "StaleTokenError";
  /** The latest token known. */
  get highestToken(): number | undefined {
    return this.problem.highest_token;
  }
}

/** A value that the API does not take. */
export class InvalidRequestError extends QuorateError {
  override name = "InvalidRequestError";
  /** Which fields are wrong, and why. */
  get errors(): FieldError[] {
    return this.problem.errors ?? [];
  }
}

/** The key is missing, unknown, or may not do this: `unauthenticated`, `forbidden`. */
export class ForbiddenError extends QuorateError {
  override name = "ForbiddenError";
}

const KINDS: Record<string, typeof QuorateError> = {
  lock_held: NotAcquiredError,
  semaphore_full: NotAcquiredError,
  election_lost: NotAcquiredError,
  lease_lost: LeaseLostError,
  hold_limit_reached: LeaseLostError,
  stale_token: StaleTokenError,
  invalid_request: InvalidRequestError,
};
const STATUSES: Record<number, typeof QuorateError> = {
  401: ForbiddenError, 403: ForbiddenError, 429: UnavailableError, 502: UnavailableError, 503: UnavailableError, 504: UnavailableError,
};

/** The error for an answer that is not 2xx. `problem` is undefined where the body was none of Quorate's (a proxy's page). */
export function refusal(status: number, problem: Partial<Problem> | undefined, retryAfter: string | null): QuorateError {
  const code = problem?.code ?? `http_${status}`;
  const Kind = KINDS[code] ?? STATUSES[status] ?? QuorateError;
  const said: Partial<Problem> = { status, ...problem };
  if (said.retry_after_ms === undefined && /^\d{1,6}$/.test(retryAfter ?? "")) said.retry_after_ms = Number(retryAfter) * 1000;
  const fields = said.errors?.map(({ field, message }) => `${field}: ${message}`).join("; ");
  return new Kind(code, fields || said.detail || "", said);
}

/** For a value that is wrong before any server is asked. */
export function invalid(field: string, message: string): InvalidRequestError {
  return new InvalidRequestError("invalid_request", `${field}: ${message}`, { code: "invalid_request", errors: [{ field, message }] });
}
