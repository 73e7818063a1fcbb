// Renews a client's leases, many by one request, and notices when one is over.

import { isLease } from "./acquisition.js";
import type { Lease as Granted } from "./api.js";
import { now } from "./clock.js";
import { QuorateError, UnavailableError } from "./errors.js";
import { releaseAtExit, type Holder } from "./exit.js";
import type { Held } from "./held.js";
import { another, type Server, type Servers } from "./servers.js";
import type { TlsFiles } from "./tls.js";

/** A request may name so many leases, and its body have 256 KiB. */
const MOST_AT_ONCE = 500;
const MOST_BYTES = 200_000;
const LEAST_TIMEOUT_MS = 250;
/** A timer stands still while the machine is suspended, and a lease does not. */
const LONGEST_SLEEP_MS = 1_000;
/** How long a server that does not take many leases at once is asked for each. */
const ONE_BY_ONE_MS = 60_000;

interface Result {
  lease?: Granted;
  problem?: { code: string; detail?: string };
}

export class Renewer implements Holder {
  readonly leases = new Set<Held>();
  /** Until when leases are renewed one by one there. */
  readonly #oneByOne = new Map<Server, number>();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly servers: Servers, readonly apiKey: string | undefined, readonly tls: TlsFiles) {}

  add(held: Held): void {
    this.leases.add(held);
    releaseAtExit(this);
    this.wake();
  }

  remove(held: Held): void {
    if (!this.leases.delete(held)) return;
    releaseAtExit(this);
    this.wake();
  }

  /** Sets the timer anew, to the next renewal or end. */
  wake(): void {
    clearTimeout(this.#timer);
    if (this.leases.size === 0) return;
    let next = Infinity;
    let keepsAlive = false;
    for (const held of this.leases) {
      next = Math.min(next, held.validUntil, held.renewal ? Infinity : held.renewAt);
      keepsAlive ||= held.keepsAlive;
    }
    this.#timer = setTimeout(() => this.#run(), Math.min(LONGEST_SLEEP_MS, Math.max(0, Math.ceil(next - now()))));
    // A lease that is merely held must not keep a process alive.
    if (!keepsAlive) (this.#timer as { unref?(): void }).unref?.();
  }

  #run(): void {
    const time = now();
    for (const held of [...this.leases]) this.#expire(held, time);
    const waiting = [...this.leases].filter(({ renewal }) => !renewal);
    if (waiting.some(({ renewAt }) => renewAt <= time)) {
      // Those that are due soon go along, so that the leases of a client come to be renewed together.
      const due = waiting.filter(({ renewAt, ttlMs }) => renewAt - ttlMs / 6 <= time);
      for (const batch of batches(due)) this.#send(batch);
    }
    this.wake();
  }

  #send(batch: Held[]): void {
    const renewal = this.#renew(batch, this.servers.current).finally(() => {
      const time = now();
      for (const held of batch) {
        held.renewal = undefined;
        this.#expire(held, time);
      }
      this.wake();
    });
    for (const held of batch) held.renewal = renewal;
  }

  #expire(held: Held, time: number): void {
    held.expire(time);
    if (!held.active) this.remove(held);
  }

  /** Never throws: each lease is told how it went. */
  async #renew(batch: Held[], server: Server): Promise<void> {
    const timeoutMs = Math.max(LEAST_TIMEOUT_MS, Math.min(...batch.map(({ ttlMs }) => ttlMs)) / 4);
    if (batch.length === 1 || (this.#oneByOne.get(server) ?? 0) > now()) {
      await Promise.all(batch.map((held) => this.#renewOne(held, server, timeoutMs)));
      return;
    }
    const leases = batch.map(({ target, answer }) => ({ ...target.label, lease_id: answer.lease_id }));
    const sent = now();
    try {
      const is = (answer: Record<string, unknown>) => Array.isArray(answer["results"]);
      const { results } = await this.servers.ask<{ results: Result[] }>(server, { path: "/v1/leases/extend", body: { leases }, timeoutMs, is });
      batch.forEach((held, i) => this.#renewedTogether(held, server, sent, results[i]));
    } catch (error) {
      // It does not know the request, or does not take it as a whole.
      if (error instanceof QuorateError && !(error instanceof UnavailableError)) {
        this.#oneByOne.set(server, now() + ONE_BY_ONE_MS);
        return this.#renew(batch, server);
      }
      this.#failed(batch, server, error);
    }
  }

  #renewedTogether(held: Held, server: Server, sent: number, result: Result | undefined): void {
    if (result?.lease && isLease({ ...result.lease })) return held.renewed(sent, result.lease.validity_ms);
    const code = result?.problem?.code ?? "no_result";
    const failure = new QuorateError(code, result?.problem?.detail ?? "the answer does not say how it went");
    if (code !== "lease_lost" && code !== "hold_limit_reached") this.servers.leave(server);
    held.notRenewed(failure, code);
  }

  async #renewOne(held: Held, server: Server, timeoutMs: number): Promise<void> {
    const sent = now();
    try {
      const request = { path: held.target.path("extend"), body: held.body, timeoutMs, is: isLease };
      held.renewed(sent, (await this.servers.ask<Granted>(server, request)).validity_ms);
    } catch (error) {
      this.#failed([held], server, error);
    }
  }

  #failed(batch: Held[], server: Server, error: unknown): void {
    if (error instanceof UnavailableError && another(error)) this.servers.leave(server);
    for (const held of batch) held.notRenewed(error, error instanceof QuorateError ? error.code : undefined);
  }
}

/** Some bytes of a body: names are ASCII. */
const bytesOf = ({ target }: Held): number => target.names.reduce((sum, name) => sum + name.length + 3, 150);

/** As few requests as can be. */
export function batches(due: Held[]): Held[][] {
  const all: Held[][] = [];
  let bytes = Infinity;
  for (const held of due) {
    bytes += bytesOf(held);
    const last = all.at(-1);
    if (last && last.length < MOST_AT_ONCE && bytes <= MOST_BYTES) last.push(held);
    else {
      all.push([held]);
      bytes = bytesOf(held);
    }
  }
  return all;
}
