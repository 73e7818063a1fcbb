// What the recipes share: a request, a lease, and its end by this machine's own clock.
//
// No dependencies. A client generated from the OpenAPI document does as well (docs/clients.md).

export const QUORATE_URL = process.env.QUORATE_URL ?? "http://127.0.0.1:8080";

/** An answer that is not 2xx, as RFC 9457 has it. */
export interface Problem {
  code: string; // lock_held, quorum_unavailable, lease_lost …
  detail?: string;
  retry_after_ms?: number;
  holder?: { owner?: string; fencing_token?: number; remaining_ms: number };
}

export class Refused extends Error {
  constructor(readonly problem: Problem) {
    super(`${problem.code}: ${problem.detail ?? ""}`);
  }
  static is(error: unknown, ...codes: string[]): error is Refused {
    return error instanceof Refused && (codes.length === 0 || codes.includes(error.problem.code));
  }
}

/** One request; throws Refused, or what fetch throws where no server answers in time. */
export async function call<T>(method: string, path: string, body?: object, signal = AbortSignal.timeout(90_000)): Promise<T> {
  const key = process.env.QUORATE_API_KEY;
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  const answer = await fetch(QUORATE_URL + path, { method, headers, signal, ...(body && { body: JSON.stringify(body) }) });
  if (answer.ok) return (await answer.json()) as T;
  const problem = answer.headers.get("content-type")?.startsWith("application/problem+json");
  throw new Refused(problem ? ((await answer.json()) as Problem) : { code: `http_${answer.status}` }); // a proxy in between
}

export interface Ask {
  ttl_ms?: number; wait_ms?: number; owner?: string; request_id?: string; metadata?: Record<string, string>;
  names?: string[]; limit?: number; permits?: number; candidate?: string; value?: string;
}

export interface Granted {
  lease_id: string; ttl_ms: number; validity_ms: number; waited_ms: number;
  fencing_token: number; fencing_tokens: Record<string, number>; term: number;
}

/** Held until `release`, or until `validUntil` on performance.now() unless extended. */
export class Lease {
  validUntil: number;
  readonly since: number;
  private readonly body: object;

  constructor(private readonly what: string, names: string[] | undefined, sent: number, readonly answer: Granted) {
    this.body = { lease_id: answer.lease_id, ...(names && { names }) };
    // Counted from the earliest moment it can have been granted: the way here takes time too.
    this.since = sent + answer.waited_ms;
    this.validUntil = this.since + answer.validity_ms;
  }

  async extend(signal?: AbortSignal): Promise<void> {
    const sent = performance.now();
    const answer = await call<Granted>("POST", `/v1/${this.what}/extend`, this.body, signal);
    this.validUntil = sent + answer.validity_ms;
  }

  async release(signal?: AbortSignal): Promise<boolean> {
    const verb = this.what.startsWith("elections/") ? "resign" : "release";
    return (await call<{ released: boolean }>("POST", `/v1/${this.what}/${verb}`, this.body, signal)).released;
  }
}

/** acquire("locks/orders:42", { ttl_ms: 10_000 }); also "semaphores/…", "elections/…", "multilocks". */
export async function acquire(what: string, ask: Ask = {}, signal?: AbortSignal): Promise<Lease> {
  const verb = what.startsWith("elections/") ? "campaign" : "acquire";
  const sent = performance.now();
  return new Lease(what, ask.names, sent, await call<Granted>("POST", `/v1/${what}/${verb}`, ask, signal));
}
