// A lease as its holder sees it.

import type { Leadership as GrantedLeadership } from "./api.js";
import { now } from "./clock.js";
import type { Core } from "./core.js";
import { LeaseLostError } from "./errors.js";
import type { Answer, Held } from "./held.js";
import { isReason, linked } from "./signals.js";

/** Work under a lease. The signal is aborted when the lease is lost, or by the caller's own signal. */
export type Body<T, L extends Lease = Lease> = (lease: L, signal: AbortSignal) => Promise<T> | T;

/**
 * A lease that is renewed until it is released or lost. It can be held by `await using`, which releases it
 * where the block ends, or by `using`, which does not wait for the release.
 */
export class Lease {
  readonly #core: Core;
  readonly #held: Held;
  #release: Promise<void> | undefined;

  /** @internal */
  constructor(core: Core, held: Held) {
    this.#core = core;
    this.#held = held;
  }

  /** The server's answer to the acquisition. Its `lease_id` is a secret: whoever has it is the holder. */
  get answer(): Readonly<Answer> {
    return this.#held.answer;
  }
  /** The names that it covers. */
  get names(): string[] {
    return [...this.#held.target.names];
  }
  /**
   * Greater than that of every earlier lease of the name: send it to the resource. Several locks have a token each, in
   * `fencingTokens`; then this throws.
   */
  get fencingToken(): number {
    const token = (this.answer.fencing_token as number | undefined) ?? this.answer.term;
    if (token === undefined) throw new TypeError("several locks have a token each: see fencingTokens");
    return token;
  }
  /** The token of each name. */
  get fencingTokens(): Record<string, number> {
    return this.answer.fencing_tokens ?? Object.fromEntries(this.names.map((name) => [name, this.fencingToken]));
  }
  /** Life of the lease without renewal. */
  get ttlMs(): number {
    return this.#held.ttlMs;
  }
  /** Aborted with a `LeaseLostError` when the lease is lost, at the latest when its validity ends. */
  get signal(): AbortSignal {
    return this.#held.lost.signal;
  }

  /** How long it is valid from now on without a renewal; 0 once it is lost or released. */
  remainingMs(): number {
    if (!this.#held.active) return 0;
    this.#held.expire();
    return this.signal.aborted ? 0 : this.#held.validUntil - now();
  }

  /** Throws where it is not held any more, by the clock at this moment. */
  check(): void {
    if (this.#held.active) this.#held.expire();
    this.signal.throwIfAborted();
    if (this.#held.givenUp) throw new LeaseLostError("released", `${this.names.join(", ")}: it was released`);
  }

  /** Calls back once, when it is lost; at once if it is lost already. */
  onLost(callback: (lost: LeaseLostError) => void): void {
    const call = () => callback(this.signal.reason as LeaseLostError);
    if (this.signal.aborted) queueMicrotask(call);
    else this.signal.addEventListener("abort", call, { once: true });
  }

  /**
   * Gives it back. Throws `LeaseLostError` where it was not held any more. That no server answers is no error: it
   * ends with its ttl. Further calls end as the first one.
   */
  async release(): Promise<void> {
    await (this.#release ??= this.#core.release(this.#held));
    this.signal.throwIfAborted();
  }

  /** Leaves it to its ttl: it is neither renewed nor released any more, and its end is no loss. */
  abandon(): void {
    this.#release ??= Promise.resolve();
    this.#held.givenUp = true;
    this.#core.renewer.remove(this.#held);
  }

  /** Runs a function under it, and releases it afterwards. An error of the function's own goes before the loss. */
  async use<T>(body: Body<T, this>, signal?: AbortSignal): Promise<T> {
    const { controller, unlink } = linked(this.signal, signal);
    this.#held.keepsAlive = true;
    this.#core.renewer.wake();
    let result: T;
    try {
      result = await body(this, controller.signal);
    } catch (error) {
      await this.release().catch(() => {});
      // An abort that the loss brought about is no error of its own.
      throw isReason(error, this.signal) ? this.signal.reason : error;
    } finally {
      unlink();
    }
    await this.release();
    return result;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  [Symbol.dispose](): void {
    if (this.#held.active) this.#held.expire();
    void this.release().catch(() => {});
    this.signal.throwIfAborted();
  }

  /** For what a kind of lease can do besides. @internal */
  protected async ask<T>(path: string, body: object): Promise<T> {
    try {
      return await this.#core.call("POST", path, { ...this.#held.body, ...body });
    } catch (error) {
      if (error instanceof LeaseLostError && error.code === "lease_lost" && this.#held.active) this.#held.lose("lease_lost");
      throw error;
    }
  }
}

/** A lease of an election. */
export class Leadership extends Lease {
  /** The fencing token, which grows with every leader. */
  get term(): number {
    return this.fencingToken;
  }

  /** Makes a new value known to the observers. */
  async proclaim(value: string): Promise<void> {
    await this.ask<GrantedLeadership>(`/v1/elections/${this.names[0]}/proclaim`, { value });
  }
}
