// The servers that a client knows, and one request to one of them.

import type { Problem } from "./api.js";
import { now } from "./clock.js";
import { InvalidRequestError, QuorateError, UnavailableError, invalid, refusal } from "./errors.js";
import { linked } from "./signals.js";

/** How much later than its wait an answer may come. */
export const ANSWER_MS = 10_000;
const CONNECT_MS = 3_000;

/** The part of `fetch` that is used: so any other fetch will do. */
export type Fetch = (url: string, init: FetchInit) => Promise<FetchAnswer>;
export interface FetchInit {
  method: string;
  headers: Record<string, string>;
  body?: string;
  redirect: "error";
  signal: AbortSignal;
}
export interface FetchAnswer {
  ok: boolean;
  status: number;
  headers: { get(name: string): string | null };
  text(): Promise<string>;
}

export interface Request {
  method?: string;
  path: string;
  body?: object | undefined;
  /** How long the answer may take. */
  timeoutMs: number;
  /** Whether an answer is one of a server: a page with status 200 comes from something between. */
  is?: (answer: Record<string, unknown>) => boolean;
  signal?: AbortSignal | undefined;
}

/** A server by its number. */
export type Server = number;

export class Servers {
  readonly urls: string[];
  readonly #headers: Record<string, string>;
  readonly #fetch: Fetch;
  /** Servers that answered, and have not failed to since. */
  readonly #reached = new Set<Server>();
  #current: Server = 0;

  constructor(urls: string[], apiKey: string | undefined, fetcher: Fetch) {
    if (urls.length === 0) throw invalid("servers", "must name at least one URL");
    this.urls = urls.map((url) => {
      const parsed = URL.canParse(url) ? new URL(url) : undefined;
      if (!parsed || !/^https?:$/.test(parsed.protocol) || parsed.username || parsed.password || parsed.search) {
        throw invalid("servers", "must be http:// or https:// URLs without a password or query");
      }
      return url.replace(/\/+$/, "");
    });
    // fetch would show a key that is no header's value in its error.
    if (apiKey !== undefined && !/^[!-~]+$/.test(apiKey)) throw invalid("apiKey", "must be printable ASCII characters without spaces");
    this.#headers = { Accept: "application/json", ...(apiKey !== undefined && { Authorization: `Bearer ${apiKey}` }) };
    this.#fetch = fetcher;
  }

  /** The one to ask: the same as long as it answers, because each has a queue of its own. */
  get current(): Server {
    return this.#current;
  }

  /** All of them, the current one first. */
  inTurn(): Server[] {
    return this.urls.map((_, i) => (this.#current + i) % this.urls.length);
  }

  /** Goes on to the next one, unless that has been done. */
  leave(server: Server): void {
    this.#reached.delete(server);
    if (this.#current === server) this.#current = (server + 1) % this.urls.length;
  }

  /** Asks one server after the other until one answers. */
  async askAll<T>(request: Request): Promise<T> {
    let failure: unknown;
    for (const server of this.inTurn()) {
      for (let again = false; ; again = true) {
        try {
          return await this.ask<T>(server, request);
        } catch (error) {
          if (request.signal?.aborted || !(error instanceof UnavailableError)) throw error;
          failure = error;
          if (!again && isBroken(error)) continue;
          if (another(error)) this.leave(server);
          break;
        }
      }
    }
    throw failure;
  }

  /** The answer. Throws the server's refusal, `UnavailableError` where there is no answer, or the signal's reason. */
  async ask<T>(server: Server, request: Request): Promise<T> {
    const ends = now() + request.timeoutMs;
    // fetch has no time-out for connecting, and the answer may rightly take as long as its wait.
    if (!this.#reached.has(server) && request.timeoutMs > CONNECT_MS) {
      await this.#fetched(server, { path: "/livez", method: "GET", timeoutMs: CONNECT_MS, signal: request.signal });
    }
    const { answer, text } = await this.#fetched(server, { ...request, timeoutMs: ends - now() });
    const content = parsed(text);
    if (answer.ok && content && (request.is?.(content) ?? true)) return content as T;
    if (answer.ok) throw this.#unavailable(server, "the answer is not that of a server");
    const problem = typeof content?.["code"] === "string" ? (content as Partial<Problem>) : undefined;
    throw refusal(answer.status, problem, answer.headers.get("retry-after"));
  }

  async #fetched(server: Server, { method = "POST", path, body, timeoutMs, signal }: Request): Promise<{ answer: FetchAnswer; text: string }> {
    signal?.throwIfAborted();
    const { controller, unlink } = linked(signal);
    const timer = setTimeout(() => controller.abort(new Error("no answer in time")), Math.max(0, Math.ceil(timeoutMs)));
    const headers = body ? { ...this.#headers, "Content-Type": "application/json" } : this.#headers;
    const init = { method, headers, ...(body && { body: JSON.stringify(body) }), redirect: "error" as const, signal: controller.signal };
    try {
      const send = this.#fetch; // not as a method: a browser's fetch refuses another `this`
      const answer = await send(this.urls[server] + path, init);
      const text = await answer.text();
      this.#reached.add(server);
      return { answer, text };
    } catch (error) {
      signal?.throwIfAborted();
      throw this.#unavailable(server, causes(controller.signal.aborted ? controller.signal.reason : error), error);
    } finally {
      clearTimeout(timer);
      unlink();
    }
  }

  #unavailable(server: Server, what: string, cause?: unknown): UnavailableError {
    return new UnavailableError("no_server", `${this.urls[server]}: ${what}`, {}, { cause });
  }
}

/** Whether another server may do better. Where too many wait, this one is well. */
export function another(error: QuorateError): boolean {
  return error.problem.status !== 429;
}

/** Whether the connection broke: it may have been an idle one that the server closed, so the request is made again. */
export function isBroken(error: QuorateError): boolean {
  const { code, cause } = (error.cause ?? {}) as { code?: string; cause?: { code?: string } };
  return ["UND_ERR_SOCKET", "ECONNRESET", "EPIPE"].includes(cause?.code ?? code ?? "");
}

/** How long one request waits. A server that refuses it makes it shorter, for all requests of a client. */
export class Piece {
  constructor(public ms: number) {}

  /** Whether the server refused the length of the wait, so that a shorter one may do. */
  shorten(error: QuorateError, askedMs: number): boolean {
    if (askedMs < 100 || !(error instanceof InvalidRequestError) || !error.errors.some(({ field }) => field === "wait_ms")) return false;
    this.ms = Math.min(this.ms, Math.floor(askedMs / 2));
    return true;
  }
}

function parsed(text: string): Record<string, unknown> | undefined {
  try {
    const content: unknown = JSON.parse(text);
    return typeof content === "object" && content !== null ? (content as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

/** fetch says "fetch failed", and why only in the cause. */
function causes(error: unknown): string {
  const { message, cause } = error as { message?: string; cause?: { message?: string; code?: string } };
  return [message ?? String(error), cause?.message || cause?.code].filter(Boolean).join(": ");
}
