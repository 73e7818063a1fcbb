// The client without a face: how to acquire, hold and release.

import { Acquisition } from "./acquisition.js";
import type { Released } from "./api.js";
import { now } from "./clock.js";
import { QuorateError, UnavailableError } from "./errors.js";
import { Held } from "./held.js";
import { acquireBody, waitOf, type AnyOptions } from "./options.js";
import type { Renewer } from "./renewer.js";
import { ANSWER_MS, Piece, another, type Servers } from "./servers.js";
import { linked, sleep, within } from "./signals.js";
import type { Target } from "./target.js";

const RELEASE_MS = 5_000;
const RELEASE_AGAIN_MS = 100;

export class Core {
  readonly servers: Servers;
  readonly piece: Piece;
  /** The acquisitions under way. */
  readonly #acquiring = new Set<AbortController>();
  #closed = false;
  readonly #background = new Set<Promise<void>>();

  constructor(readonly renewer: Renewer, pieceMs: number, private readonly owner: string | undefined) {
    this.servers = renewer.servers;
    this.piece = new Piece(pieceMs);
  }

  /** One call, at one server after the other until one answers. */
  call<T>(method: string, path: string, body?: object, waitMs = 0, signal?: AbortSignal): Promise<T> {
    return this.servers.askAll({ method, path, body, timeoutMs: ANSWER_MS + waitMs, signal });
  }

  /** A lease, kept renewed. However it ends but by a lease, nothing is left behind. */
  async acquire(target: Target, options: AnyOptions): Promise<Held> {
    const body = acquireBody(options.candidate === undefined ? { owner: this.owner, ...options } as AnyOptions : options);
    const waitMs = waitOf(options);
    const ends = now() + waitMs;
    if (this.#closed) throw closed();
    const { controller, unlink } = linked(options.signal);
    this.#acquiring.add(controller);
    try {
      for (;;) {
        const held = await this.#acquireOnce(target, body, waitMs && Math.max(1, ends - now()), options.maxHoldMs, controller.signal);
        if (held.validUntil > now() && !controller.signal.aborted) {
          this.renewer.add(held);
          return held;
        }
        // This process was paused, or the network slow: by now somebody else may have it.
        this.#inBackground(this.release(held));
        controller.signal.throwIfAborted();
        if (now() >= ends) throw new UnavailableError("lease_expired", `${target.names.join(", ")}: it was over when its answer was read`);
      }
    } finally {
      this.#acquiring.delete(controller);
      unlink();
    }
  }

  async #acquireOnce(target: Target, body: Record<string, unknown>, waitMs: number, maxHoldMs: number | undefined, signal: AbortSignal): Promise<Held> {
    const acquisition = new Acquisition(this.servers, this.piece, target, body, waitMs, signal);
    try {
      return new Held(target, await acquisition.run(), maxHoldMs);
    } catch (error) {
      if (acquisition.leaves(error)) this.#inBackground(acquisition.giveUp());
      throw error;
    }
  }

  /** Gives it back. That it was not held any more is a loss; that no server answers is none. Never throws. */
  async release(held: Held): Promise<void> {
    const ends = now() + RELEASE_MS;
    if (!held.givenUp) held.expire();
    held.givenUp = true;
    this.renewer.remove(held);
    // A renewal that arrives after the release could bring it back at some nodes.
    if (held.renewal) await within(RELEASE_MS, held.renewal);
    const released = this.#released(held, ends);
    // Where it was lost some nodes may still have it, but nobody waits for them.
    if (held.lost.signal.aborted) this.#inBackground(released);
    else await released;
  }

  async #released(held: Held, ends: number): Promise<void> {
    const is = ({ released }: Record<string, unknown>) => typeof released === "boolean";
    const request = { path: held.target.path("release"), body: held.body, is };
    for (let round = 0; ; round++) {
      for (const [i, server] of this.servers.inTurn().entries()) {
        try {
          const { released } = await this.servers.ask<Released>(server, { ...request, timeoutMs: Math.max(1_000, ends - now()) });
          // Where an earlier try got no answer, it may have been that one that released it.
          if (!released && round === 0 && i === 0) held.lose("lease_lost");
          return;
        } catch (error) {
          if (!(error instanceof UnavailableError)) return; // it ends with its ttl
          if (another(error)) this.servers.leave(server);
        }
      }
      if (now() + RELEASE_AGAIN_MS >= Math.min(ends, held.validUntil)) break;
      await sleep(RELEASE_AGAIN_MS);
    }
    held.expire();
  }

  /** Gives back all that is held, and waits for it. What is being acquired fails. */
  async close(): Promise<void> {
    this.#closed = true;
    for (const controller of this.#acquiring) controller.abort(closed());
    await Promise.all([...this.renewer.leases].map((held) => this.release(held)));
    await Promise.all(this.#background);
  }

  #inBackground(work: Promise<void>): void {
    const done: Promise<void> = work.then(() => void this.#background.delete(done));
    this.#background.add(done);
  }
}

function closed(): QuorateError {
  return new QuorateError("closed", "the client is closed");
}
