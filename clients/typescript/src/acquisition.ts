// One acquisition: as many attempts, at as many servers, as its wait allows, under one request id.

import type { Lease as Granted } from "./api.js";
import { now } from "./clock.js";
import { InvalidRequestError, NotAcquiredError, QuorateError, UnavailableError } from "./errors.js";
import { ANSWER_MS, another, isBroken, type Piece, type Server, type Servers } from "./servers.js";
import { sleep } from "./signals.js";
import type { Target } from "./target.js";

const RELEASE_MS = 5_000;
/** A wait without limit ends after so long without a word about the lock. */
const SILENCE_MS = 30_000;
/** How much later than the caller's wait the answer may come that says how it ended. */
const GRACE_MS = 1_000;
const FIRST_DELAY_MS = 100;
const LAST_DELAY_MS = 2_000;

export interface Acquired {
  answer: Granted;
  /** No earlier than this it was granted. */
  since: number;
  validUntil: number;
}

export class Acquisition {
  /** The same at every attempt: whichever was granted, the next one gets that lease. */
  readonly #requestId = randomId();
  readonly #started = now();
  readonly #ends: number;
  readonly #asked = new Set<Server>();
  /** When each server that failed may be asked again. */
  readonly #notBefore = new Map<Server, number>();
  /** Servers whose connection broke. */
  readonly #broken = new Set<Server>();
  #attempts = 0;
  #delay = FIRST_DELAY_MS;
  #heard = this.#started;

  constructor(
    private readonly servers: Servers,
    private readonly piece: Piece,
    private readonly target: Target,
    private readonly body: Record<string, unknown>,
    private readonly waitMs: number,
    private readonly signal: AbortSignal,
  ) {
    this.#ends = this.#started + waitMs;
  }

  /** The lease, which may be over by now. However it ends but by a lease, call `giveUp` if `leaves` says so. */
  async run(): Promise<Acquired> {
    for (;;) {
      this.signal.throwIfAborted();
      const server = this.#next();
      const asks = this.waitMs === 0 ? 0 : Math.max(0, Math.floor(Math.min(this.piece.ms, this.#ends - now())));
      const sent = now();
      try {
        return await this.#attempt(server, asks, sent);
      } catch (error) {
        // The signal's reason may well be an error of this package: the loss of another lease.
        if (this.signal.aborted || !(error instanceof QuorateError)) throw error;
        await this.#failed(server, error, asks, now() - sent);
      }
    }
  }

  /** Whether a server may still have a place in its queue or a lease of it, after `run` has thrown this. */
  leaves(error: unknown): boolean {
    if (this.signal.aborted || !(error instanceof QuorateError)) return this.#attempts > 0;
    const refused = error instanceof NotAcquiredError ? this.waitMs === 0 : !(error instanceof UnavailableError);
    return this.#attempts > 1 || !refused;
  }

  /** Ends the wait at the servers, and gives back the lease that one may have granted. Never throws. */
  async giveUp(): Promise<void> {
    const body = { ...this.target.body, request_id: this.#requestId };
    const request = { path: this.target.path("release"), body, timeoutMs: RELEASE_MS / 2 };
    const told = await Promise.allSettled([...this.#asked].map((server) => this.servers.ask(server, request)));
    // What a server granted that is gone, another one gives back.
    if (told.every(({ status }) => status === "rejected")) await this.servers.askAll(request).catch(() => {});
  }

  /** The current server, or the first after it that has not failed just now, or the one that may be asked first. */
  #next(): Server {
    const at = (server: Server) => this.#notBefore.get(server) ?? 0;
    const time = now();
    return this.servers.inTurn().reduce((best, other) => (at(best) <= time || at(best) <= at(other) ? best : other));
  }

  async #attempt(server: Server, asks: number, sent: number): Promise<Acquired> {
    this.#attempts += 1;
    this.#asked.add(server);
    const body = { ...this.body, ...this.target.body, request_id: this.#requestId, wait_ms: asks };
    const timeoutMs = this.waitMs === 0 ? ANSWER_MS : Math.min(asks + ANSWER_MS, Math.max(0, this.#ends - sent) + GRACE_MS);
    const request = { path: this.target.path("acquire"), body, timeoutMs, is: isLease, signal: this.signal };
    const answer = await this.servers.ask<Granted>(server, request);
    // Counted from the earliest moment it can have been granted: the way here takes time too.
    const since = Math.min(sent + answer.waited_ms, now());
    return { answer, since, validUntil: since + answer.validity_ms };
  }

  /** Returns when another attempt may be made; throws where none makes sense. */
  async #failed(server: Server, error: QuorateError, askedMs: number, tookMs: number): Promise<void> {
    const retryMs = (error.retryAfterMs ?? this.#delay) * (1 + Math.random() / 2);
    const over = this.waitMs > 0 && this.#ends - now() < 1;
    if (error instanceof NotAcquiredError && this.waitMs > 0 && !over) {
      this.#heard = now();
      this.#notBefore.clear();
      this.#broken.clear();
      // A piece is over. The server keeps the place in the queue, but not for long.
      if (tookMs >= askedMs * 0.9) this.#delay = FIRST_DELAY_MS;
      else await this.#pause(retryMs, error);
      return;
    }
    if (error instanceof InvalidRequestError && this.piece.shorten(error, askedMs)) return;
    if (!(error instanceof UnavailableError) || over) throw error;
    if (isBroken(error) && !this.#broken.has(server)) return void this.#broken.add(server);
    // Without a wait each server is asked once.
    this.#notBefore.set(server, this.waitMs === 0 ? Infinity : now() + retryMs);
    if (another(error)) this.servers.leave(server);
    const pauseMs = (this.#notBefore.get(this.#next()) ?? 0) - now();
    if (pauseMs <= 0) return;
    if (this.waitMs === Infinity && now() - this.#heard >= SILENCE_MS) throw error;
    await this.#pause(pauseMs, error);
  }

  async #pause(ms: number, error: QuorateError): Promise<void> {
    if (ms === Infinity || now() + ms >= this.#ends) throw error;
    this.#delay = Math.min(LAST_DELAY_MS, 2 * this.#delay);
    await sleep(ms, this.signal);
  }
}

export function isLease(answer: Record<string, unknown>): boolean {
  return typeof answer["lease_id"] === "string" && ["ttl_ms", "validity_ms", "waited_ms"].every((field) => Number.isFinite(answer[field]));
}

function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
