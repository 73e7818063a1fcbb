// Real servers over real redis-servers, and a proxy that does to chosen requests what networks do.

import { execFile, spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { createServer, request, type IncomingMessage, type Server as HttpServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { after, before, type TestContext } from "node:test";
import { promisify } from "node:util";
import { Client, type ClientOptions, type LockState } from "../src/index.js";

export const BINARY = process.env["QUORATE_BIN"] ?? "quorate";

/** Runs a command to its end: its output. */
export const run = async (command: string, ...args: string[]): Promise<string> => (await promisify(execFile)(command, args)).stdout;

/** Waits for it. A condition that never holds is a failure. */
export async function until(condition: () => unknown, withinMs = 15_000): Promise<void> {
  const ends = performance.now() + withinMs;
  while (!(await condition())) {
    if (performance.now() > ends) throw new Error(`it did not happen within ${withinMs} ms: ${String(condition)}`);
    await sleep(5);
  }
}

const names = { count: 0, run: `${process.pid}:${Date.now()}` };
/** A name that no other test has. */
export const unique = (): string => `test:${names.run}:${names.count++}`;

export class Server {
  url = "";
  readonly process: ChildProcess;
  readonly #log: string;

  constructor(directory: string, redis: string[], options: string[]) {
    this.#log = join(directory, `server-${names.count++}.log`);
    const log = openSync(this.#log, "w");
    const flags = redis.flatMap((url) => ["--redis", url]);
    this.process = spawn(BINARY, ["serve", ...flags, "--listen", "127.0.0.1:0", ...options], { stdio: ["ignore", log, log] });
  }

  async listening(): Promise<void> {
    await until(() => {
      const log = readFileSync(this.#log, "utf8");
      if (this.process.exitCode !== null) throw new Error(`the server ended: ${log}`);
      this.url = /^listening on (\S+)$/m.exec(log)?.[1] ?? "";
      return this.url;
    }, 30_000);
  }

  async kill(): Promise<void> {
    const ended = once(this.process, "exit");
    this.process.kill("SIGKILL");
    await ended;
  }
}

const deployments = new Set<Deployment>();
// Also where a test takes too long, and the runner ends this process.
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => process.exit(1));
process.once("exit", () => deployments.forEach((deployment) => deployment.end()));

/** Three nodes, and the servers over them. */
export class Deployment {
  readonly directory = mkdtempSync(join(tmpdir(), "qts-"));
  readonly servers: Server[] = [];
  readonly nodes: ChildProcess[] = [];
  readonly #redis: string[] = [];

  static async start(servers: number): Promise<Deployment> {
    const deployment = new Deployment();
    deployments.add(deployment);
    for (const number of [0, 1, 2]) {
      const home = join(deployment.directory, `node-${number}`);
      mkdirSync(home);
      const flags = ["--port", "0", "--unixsocket", join(home, "redis"), "--save", "", "--dir", home, "--maxmemory-policy", "noeviction"];
      deployment.nodes.push(spawn("redis-server", flags, { stdio: "ignore" }));
      deployment.#redis.push(`unix://${home}/redis`);
    }
    await until(() => deployment.#redis.every((url) => existsSync(url.slice("unix://".length))));
    const flags = deployment.#redis.flatMap((url) => ["--redis", url]);
    await until(() => run(BINARY, "init", ...flags).then(() => true, () => false));
    await Promise.all(Array.from({ length: servers }, () => deployment.serve()));
    return deployment;
  }

  async serve(...options: string[]): Promise<Server> {
    const server = new Server(this.directory, this.#redis, options);
    this.servers.push(server);
    await server.listening();
    if (server.url.startsWith("http:")) await until(async () => (await fetch(`${server.url}/readyz`)).ok, 30_000);
    return server;
  }

  get urls(): string[] {
    return this.servers.map(({ url }) => url);
  }

  end(): void {
    if (!deployments.delete(this)) return;
    for (const process of [...this.nodes, ...this.servers.map((server) => server.process)]) process.kill("SIGKILL");
    rmSync(this.directory, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** Two servers for all tests of a file. */
export function shared(): { deployment: Deployment; urls: string[] } {
  const here = {} as { deployment: Deployment; urls: string[] };
  before(async () => {
    here.deployment = await Deployment.start(2);
    here.urls = here.deployment.urls;
  });
  after(() => here.deployment.end());
  return here;
}

const cleanups = new WeakMap<TestContext, Array<() => unknown>>();
/** Runs after the test, the last one first. */
function afterwards(t: TestContext, cleanup: () => unknown): void {
  const known = cleanups.get(t);
  if (known) return void known.push(cleanup);
  const all = [cleanup];
  cleanups.set(t, all);
  t.after(async () => {
    for (const one of all.reverse()) await one();
  });
}

/** Of the test alone, to break things in. */
export async function own(t: TestContext, servers: number): Promise<Deployment> {
  const deployment = await Deployment.start(servers);
  afterwards(t, () => deployment.end());
  return deployment;
}

/** A client that is closed after the test. */
export function client(t: TestContext, servers: string | string[], options: ClientOptions = {}): Client {
  const made = new Client({ servers, ...options });
  afterwards(t, () => made.close());
  return made;
}

/** What a server says of a name, asked without the client under test. */
export const observer = (url: string) => ({
  async lock(name: string): Promise<LockState> {
    return (await (await fetch(`${url}/v1/locks/${name}`)).json()) as LockState;
  },
  async held(name: string): Promise<boolean> {
    return (await this.lock(name)).held;
  },
  async waiters(name: string): Promise<number> {
    return (await this.lock(name)).waiters;
  },
  async forceRelease(name: string): Promise<void> {
    await fetch(`${url}/v1/locks/${name}`, { method: "DELETE" });
  },
});

type Json = Record<string, unknown>;
export interface Fate {
  status: number;
  body: Json | string;
}
export const problem = (status: number, code: string, more: Json = {}): Fate => ({ status, body: { type: "about:blank", title: code, status, code, ...more } });

/** Forwards to a server, also as an HTTP proxy. */
export class Fault {
  url = "";
  /** How often each path was asked for. */
  readonly requests = new Map<string, number>();
  readonly asked: Array<[path: string, body: Json]> = [];
  /** May answer in the server's place, or hold the request up. */
  before: (path: string, body: Json) => Fate | undefined | Promise<Fate | undefined> = () => undefined;
  /** Sees the answer, may hold it up, and cuts it off by returning true. */
  after: (path: string, answer: Json) => boolean | Promise<boolean> = () => false;
  readonly #server: HttpServer;

  private constructor(private readonly target: string) {
    this.#server = createServer((asked, answer) => void this.#handle(asked, answer).catch(() => asked.socket.destroy()));
  }

  static async before(t: TestContext, target: string): Promise<Fault> {
    const fault = new Fault(target);
    fault.#server.listen(0, "127.0.0.1");
    await once(fault.#server, "listening");
    fault.url = `http://127.0.0.1:${(fault.#server.address() as AddressInfo).port}`;
    afterwards(t, () => {
      fault.#server.closeAllConnections();
      fault.#server.close();
    });
    return fault;
  }

  async #handle(asked: IncomingMessage, answer: ServerResponse): Promise<void> {
    const text = await read(asked);
    const body = text ? (JSON.parse(text) as Json) : {};
    const url = new URL(asked.url ?? "/", this.target);
    this.requests.set(url.pathname, (this.requests.get(url.pathname) ?? 0) + 1);
    this.asked.push([url.pathname, body]);
    let fate = await this.before(url.pathname, body);
    if (!fate) {
      const forwarded = request(url, { method: asked.method, headers: { ...asked.headers, host: url.host } });
      answer.on("close", () => forwarded.destroy());
      forwarded.end(text);
      const [got] = (await once(forwarded, "response")) as [IncomingMessage];
      fate = { status: got.statusCode ?? 0, body: JSON.parse(await read(got)) as Json };
      if (await this.after(url.pathname, fate.body as Json)) return void asked.socket.destroy();
    }
    answer.writeHead(fate.status, { "content-type": fate.status < 400 ? "application/json" : "application/problem+json" });
    answer.end(typeof fate.body === "string" ? fate.body : JSON.stringify(fate.body));
  }
}

async function read(stream: AsyncIterable<Buffer>): Promise<string> {
  const pieces: Buffer[] = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces).toString();
}

/** A program of test/programs, and the lines that it prints. */
export class Program {
  readonly lines: string[] = [];
  readonly process: ChildProcess;
  readonly ended: Promise<unknown>;
  errors = "";

  constructor(t: TestContext, name: string, args: string[], env: NodeJS.ProcessEnv = {}) {
    const file = new URL(`programs/${name}.js`, import.meta.url).pathname;
    this.process = spawn(process.execPath, ["--enable-source-maps", file, ...args], { env: { ...process.env, ...env }, stdio: "pipe" });
    this.ended = once(this.process, "close");
    let rest = "";
    this.process.stdout?.setEncoding("utf8").on("data", (text: string) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop() ?? "";
      this.lines.push(...lines);
    });
    this.process.stderr?.setEncoding("utf8").on("data", (text: string) => (this.errors += text));
    afterwards(t, () => this.process.kill("SIGKILL"));
  }

  async says(word: string): Promise<string> {
    const line = () => this.lines.find((line) => line.startsWith(word));
    await until(() => {
      if (this.process.exitCode !== null && !line()) throw new Error(`the program ended: ${this.lines.join("; ")} ${this.errors}`);
      return line();
    });
    return line() as string;
  }
}
