// What a client knows of a lease that it was granted, until the lease is released or lost.

import type { Acquired } from "./acquisition.js";
import type { Lease as Granted, Leadership, MultilockLease, SemaphoreLease } from "./api.js";
import { now } from "./clock.js";
import { LeaseLostError } from "./errors.js";
import type { Target } from "./target.js";

export type Answer = Granted & Partial<MultilockLease & SemaphoreLease & Leadership>;

const LOSSES = {
  lease_lost: "a server says that it is not held any more",
  lease_expired: "its validity ended before a server extended it",
  hold_limit_reached: "it was held for as long as maxHoldMs allows",
};

export class Held {
  readonly answer: Answer;
  readonly lost = new AbortController();
  /** When the next renewal is due. */
  renewAt = 0;
  /** The renewal that is under way. */
  renewal: Promise<void> | undefined;
  /** A process in which nothing else runs goes on for it. */
  keepsAlive = false;
  /** Being released, released, or left to its ttl. */
  givenUp = false;
  #validUntil = 0;
  /** When `maxHoldMs` is over. */
  readonly #limitAt: number;
  /** No renewal gets beyond the limit. */
  #limited = false;
  #failure: unknown;

  constructor(readonly target: Target, acquired: Acquired, maxHoldMs = Infinity) {
    this.answer = acquired.answer;
    this.#limitAt = acquired.since + maxHoldMs;
    this.#validFrom(acquired.since, acquired.answer.validity_ms);
  }

  /** The body that extends or releases it. */
  get body(): { names?: string[]; lease_id: string } {
    return { ...this.target.body, lease_id: this.answer.lease_id };
  }
  get ttlMs(): number {
    return this.answer.ttl_ms;
  }
  get validUntil(): number {
    return this.#validUntil;
  }
  /** Neither lost nor given up. */
  get active(): boolean {
    return !this.givenUp && !this.lost.signal.aborted;
  }

  /** It is lost if its time is up. */
  expire(time = now()): void {
    if (time >= this.#validUntil) this.lose(this.#limited ? "hold_limit_reached" : "lease_expired");
  }

  /** A renewal that was sent at this time has succeeded. */
  renewed(sent: number, validityMs: number): void {
    this.expire(); // one that comes after the end changes nothing
    this.#failure = undefined;
    this.#validFrom(sent, validityMs);
  }

  /** A renewal has failed. While there is time it is tried again; only `lease_lost` is the end. */
  notRenewed(failure: unknown, code: string | undefined): void {
    this.#failure = failure;
    this.renewAt = now() + this.ttlMs / 30;
    if (code === "lease_lost") this.lose("lease_lost");
    if (code !== "hold_limit_reached") return;
    this.#limited = true;
    this.renewAt = Infinity;
  }

  /** Tells of the loss, once. */
  lose(code: keyof typeof LOSSES): void {
    if (this.lost.signal.aborted) return;
    const detail = `${this.target.names.join(", ")}: ${LOSSES[code]}`;
    this.lost.abort(new LeaseLostError(code, detail, {}, { cause: this.#failure }));
  }

  #validFrom(sent: number, validityMs: number): void {
    this.#limited = sent + this.ttlMs >= this.#limitAt;
    this.#validUntil = Math.min(sent + validityMs, this.#limitAt);
    this.renewAt = this.#limited ? Infinity : sent + this.ttlMs / 3;
  }
}
