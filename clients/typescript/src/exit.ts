// Gives back at the end of a process of Node what its clients still hold.

import { builtin, host, isNode } from "./host.js";
import type { Held } from "./held.js";
import type { Servers } from "./servers.js";
import type { TlsFiles } from "./tls.js";

const TIMEOUT_MS = 5_000;

export interface Holder {
  readonly servers: Servers;
  readonly apiKey: string | undefined;
  readonly tls: TlsFiles;
  readonly leases: ReadonlySet<Held>;
}

/** The clients that hold something. */
const holders = new Set<Holder>();
let listening = false;

/** Nothing asynchronous runs any more in a process that ends: another process does it, and is waited for. */
const PROGRAM = `
import http from "node:http";
import https from "node:https";
import { readFileSync } from "node:fs";
import { rootCertificates } from "node:tls";
let text = "";
for await (const piece of process.stdin) text += piece;
await Promise.all(JSON.parse(text).map(({ servers, apiKey, tls, leases }) => {
  const headers = { "Content-Type": "application/json", ...(apiKey && { Authorization: "Bearer " + apiKey }) };
  const cert = tls.clientCert && readFileSync(tls.clientCert);
  const ca = tls.ca && [...rootCertificates, readFileSync(tls.ca)];
  const options = { method: "POST", headers, timeout: 4000 / servers.length, ...(cert && { cert, key: cert }), ...(ca && { ca }) };
  const released = (url, body) => new Promise((resolve) => {
    const request = (url.startsWith("https:") ? https : http).request(url, options, (answer) => {
      answer.resume().on("close", () => resolve(answer.statusCode === 200));
    });
    request.on("error", () => resolve(false)).on("timeout", () => request.destroy()).end(JSON.stringify(body));
  });
  return Promise.all(leases.map(async ({ path, body }) => {
    for (const server of servers) if (await released(server + path, body)) return;
  }));
}));
process.exit();
`;

/** To be called whenever the leases of a client have changed. */
export function releaseAtExit(holder: Holder): void {
  if (holder.leases.size === 0) holders.delete(holder);
  else if (isNode) holders.add(holder);
  if (listening || holders.size === 0) return;
  listening = true;
  host?.once?.("exit", releaseAll);
}

function releaseAll(): void {
  const clients = [...holders].map(({ servers, apiKey, tls, leases }) => ({
    servers: servers.inTurn().map((server) => servers.urls[server]),
    apiKey,
    tls,
    leases: [...leases].map(({ target, body }) => ({ path: target.path("release"), body })),
  }));
  if (clients.length === 0 || !host?.execPath) return;
  const processes = builtin<{ spawnSync(file: string, args: string[], options: object): void }>("node:child_process");
  // The leases go by stdin: arguments are seen by everyone.
  const options = { input: JSON.stringify(clients), timeout: TIMEOUT_MS, stdio: ["pipe", "ignore", "ignore"] };
  processes?.spawnSync(host.execPath, ["--input-type=module", "-e", PROGRAM], options);
}
