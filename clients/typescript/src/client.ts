// The client: it renews what is acquired through it, and gives it back.

import type { ElectionState, IssuedToken, LockState, SemaphoreState, TokenState } from "./api.js";
import { Core } from "./core.js";
import { environment } from "./host.js";
import { Leadership, Lease, type Body } from "./lease.js";
import { observe } from "./observe.js";
import type { AcquireOptions, CampaignOptions, LockOptions, RateLimitOptions, SemaphoreOptions } from "./options.js";
import { Renewer } from "./renewer.js";
import { Servers, type Fetch } from "./servers.js";
import { standBy } from "./standby.js";
import { checkName, several, single } from "./target.js";
import { tlsFetch } from "./tls.js";

export interface ClientOptions {
  /** One URL or several. Left out: `QUORATE_SERVER`, separated by commas, or http://127.0.0.1:8080. */
  servers?: string | string[];
  /** Sent as a bearer token. Left out: `QUORATE_API_KEY`. */
  apiKey?: string;
  /** The label of leases that name no owner of their own. */
  owner?: string;
  /** A file of certificates to trust besides the usual ones, not in browsers. Left out: `QUORATE_CA`. */
  ca?: string;
  /** A file with certificate and key, where the server demands one. Left out: `QUORATE_CLIENT_CERT`. */
  clientCert?: string;
  /** Another fetch, e.g. one that goes through a proxy. It has its own ways to trust an authority. */
  fetch?: Fetch;
  /** How long one request waits at most; longer waits are made of several. Left out: 20,000. */
  pieceMs?: number;
}

export class Client {
  readonly #core: Core;

  constructor(options: ClientOptions = {}) {
    const servers = options.servers ?? environment("QUORATE_SERVER") ?? "http://127.0.0.1:8080";
    const urls = (Array.isArray(servers) ? servers : servers.split(",")).map((url) => url.trim()).filter(Boolean);
    const apiKey = options.apiKey ?? environment("QUORATE_API_KEY")?.trim();
    const tls = { ca: options.ca ?? environment("QUORATE_CA"), clientCert: options.clientCert ?? environment("QUORATE_CLIENT_CERT") };
    const https = urls.some((url) => url.startsWith("https:")) ? tlsFetch(tls) : undefined;
    const usual: Fetch = (url, init) => (https && url.startsWith("https:") ? https(url, init) : fetch(url, init));
    const renewer = new Renewer(new Servers(urls, apiKey, options.fetch ?? usual), apiKey, tls);
    this.#core = new Core(renewer, options.pieceMs ?? 20_000, options.owner);
  }

  /** A lock: until its `release`, or around a function. */
  lock(name: string, options?: LockOptions): Promise<Lease>;
  lock<T>(name: string, options: LockOptions, body: Body<T>): Promise<T>;
  async lock<T>(name: string, options: LockOptions = {}, body?: Body<T>): Promise<Lease | T> {
    const lease = new Lease(this.#core, await this.#core.acquire(single("lock", name), options));
    return body ? lease.use(body, options.signal) : lease;
  }

  /** Several locks at once, all or none, whatever the order of names. */
  locks(names: string[], options?: AcquireOptions): Promise<Lease>;
  locks<T>(names: string[], options: AcquireOptions, body: Body<T>): Promise<T>;
  async locks<T>(names: string[], options: AcquireOptions = {}, body?: Body<T>): Promise<Lease | T> {
    const lease = new Lease(this.#core, await this.#core.acquire(several(names), options));
    return body ? lease.use(body, options.signal) : lease;
  }

  /** Permits of a semaphore. */
  semaphore(name: string, options: SemaphoreOptions): Promise<Lease>;
  semaphore<T>(name: string, options: SemaphoreOptions, body: Body<T>): Promise<T>;
  async semaphore<T>(name: string, options: SemaphoreOptions, body?: Body<T>): Promise<Lease | T> {
    const lease = new Lease(this.#core, await this.#core.acquire(single("semaphore", name), options));
    return body ? lease.use(body, options.signal) : lease;
  }

  /** Resolves when a call may be made: at most `limit` in any window of `perMs`, by permits that are left to expire. */
  async rateLimit(name: string, { perMs, ...options }: RateLimitOptions): Promise<void> {
    (await this.semaphore(name, { ...options, ttlMs: perMs })).abandon();
  }

  /** Leads once: until its `release`, or around a function. See `lead` for more than once. */
  campaign(election: string, options: CampaignOptions): Promise<Leadership>;
  campaign<T>(election: string, options: CampaignOptions, body: Body<T, Leadership>): Promise<T>;
  async campaign<T>(election: string, options: CampaignOptions, body?: Body<T, Leadership>): Promise<Leadership | T> {
    const leadership = new Leadership(this.#core, await this.#core.acquire(single("election", election), options));
    return body ? leadership.use(body, options.signal) : leadership;
  }

  /**
   * Campaigns, runs the function as the leader, and campaigns again where the leadership was lost. It ends as the
   * function ends while it leads, or with the reason of `options.signal`.
   */
  lead<T>(election: string, options: Omit<CampaignOptions, "waitMs">, body: Body<T, Leadership>): Promise<T> {
    return standBy(() => this.campaign(election, options), body, options.signal);
  }

  /** Who leads: the present state, then each change, as long as it is iterated. */
  async *observeElection(election: string, { signal }: { signal?: AbortSignal } = {}): AsyncGenerator<ElectionState, void, void> {
    const path = this.#path("elections", election);
    yield* observe<ElectionState>((query, waitMs) => this.#core.call("GET", path + query, undefined, waitMs, signal), this.#core.piece, signal);
  }

  async getLock(name: string): Promise<LockState> {
    return this.#core.call("GET", this.#path("locks", name));
  }

  async getSemaphore(name: string): Promise<SemaphoreState> {
    return this.#core.call("GET", this.#path("semaphores", name));
  }

  async getLeader(election: string): Promise<ElectionState> {
    return this.#core.call("GET", this.#path("elections", election));
  }

  /** The next fencing token of the name, of the same sequence as the lock's. */
  async issueToken(name: string): Promise<IssuedToken> {
    return this.#core.call("POST", `${this.#path("fencing", name)}/issue`);
  }

  /** For resources that cannot compare tokens themselves. Throws `StaleTokenError` where a later one has been issued. */
  async checkToken(name: string, fencingToken: number): Promise<TokenState> {
    return this.#core.call("POST", `${this.#path("fencing", name)}/check`, { fencing_token: fencingToken });
  }

  /** Any other call of the API, at one server after the other until one answers. */
  request<T>(method: "GET" | "POST" | "DELETE", path: string, body?: object): Promise<T> {
    return this.#core.call(method, path, body);
  }

  /** Gives back all that is held, and waits for it. What is being acquired fails, and so does all later on. */
  close(): Promise<void> {
    return this.#core.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #path(kind: string, name: string): string {
    checkName(name);
    return `/v1/${kind}/${name}`;
  }
}
