// Scenarios S60 to S62: the way to the server.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { once } from "node:events";
import { createServer } from "node:https";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";
import { Agent, ProxyAgent, fetch as undiciFetch, type Dispatcher } from "undici";
import { Client, ForbiddenError, InvalidRequestError, UnavailableError, type Fetch } from "../src/index.js";
import { BINARY, Fault, Program, client, own, run, shared, unique } from "./support.js";

const here = shared();

/** The recipe of the README: fetch with another dispatcher. */
const through = (dispatcher: Dispatcher): Fetch => (url, init) => undiciFetch(url, { ...init, dispatcher });

/** A certificate with its key in one file, signed by itself or by another. */
async function certificate(at: (file: string) => string, name: string, ca?: string): Promise<string> {
  const request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -addext subjectAltName=IP:127.0.0.1";
  const signer = ca === undefined ? [] : ["-CA", ca, "-CAkey", ca, "-addext", "basicConstraints=critical,CA:FALSE"];
  await run("openssl", ...request.split(" "), "-subj", `/CN=${name}`, "-keyout", at(`${name}.key`), "-out", at(`${name}.crt`), ...signer);
  writeFileSync(at(`${name}.pem`), readFileSync(at(`${name}.crt`), "utf8") + readFileSync(at(`${name}.key`), "utf8"));
  return at(`${name}.pem`);
}

test("S60: a server with a certificate of an own authority", async (t) => {
  const deployment = await own(t, 0);
  const ca = await certificate((file) => join(deployment.directory, file), "server");
  const { url } = await deployment.serve("--tls-cert", ca, "--tls-key", ca);
  assert.match(url, /^https:/);

  const refused = await client(t, url).lock(unique(), { waitMs: 0 }).catch((error: unknown) => error);
  assert.ok(refused instanceof UnavailableError);
  assert.match(refused.message, /self[- ]signed certificate/);

  await client(t, url, { ca }).lock(unique(), { ttlMs: 1_000 }, async (lease, signal) => {
    await sleep(1_500, undefined, { signal });
    lease.check();
  });
  const trusting = new Agent({ connect: { ca: readFileSync(ca, "utf8") } });
  await client(t, url, { fetch: through(trusting) }).lock(unique(), {}, (lease) => lease.check());
  assert.throws(() => new Client({ servers: url, ca: "/no/such/file" }), InvalidRequestError);

  for (const variable of ["QUORATE_CA", "NODE_EXTRA_CA_CERTS"]) {
    const name = unique();
    const program = new Program(t, "exits", [url, name, "by itself"], { [variable]: ca });
    await program.says("held");
    program.process.stdin?.end();
    await program.ended;
    assert.deepEqual([program.process.exitCode, program.errors], [0, ""]);
    assert.equal((await client(t, url, { ca }).getLock(name)).held, false); // the exit knew the way, too
  }
});

test("S60: a server that demands a certificate", async (t) => {
  const deployment = await own(t, 0);
  const at = (file: string) => join(deployment.directory, file);
  const ca = await certificate(at, "server");
  const authority = await certificate(at, "authority");
  const { url } = await deployment.serve("--tls-cert", ca, "--tls-key", ca, "--tls-client-ca", authority);
  await assert.rejects(client(t, url, { ca }).lock(unique(), { waitMs: 0 }), UnavailableError);
  const name = unique();
  const clientCert = await certificate(at, "client", authority);
  await client(t, url, { ca, clientCert }).lock(name, {}, (lease) => lease.check());
  const program = new Program(t, "exits", [url, name, "by itself"], { QUORATE_CA: ca, QUORATE_CLIENT_CERT: clientCert });
  await program.says("held");
  program.process.stdin?.end();
  await program.ended;
  assert.equal((await client(t, url, { ca, clientCert }).getLock(name)).held, false);
});

test("S60: requests that are sent by https ride through a broken connection, and end with the wait", async (t) => {
  const deployment = await own(t, 0);
  const ca = await certificate((file) => join(deployment.directory, file), "server");
  const pem = readFileSync(ca);
  let asked = 0;
  // In place of the server: it breaks the first connection, answers the second time, and is silent from then on.
  const server = createServer({ cert: pem, key: pem }, (request, answer) => {
    asked += 1;
    if (asked === 1) return void request.socket.destroy();
    if (asked === 2) answer.end(JSON.stringify({ name: "a", held: false, waiters: 0 }));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const mine = client(t, `https://127.0.0.1:${(server.address() as AddressInfo).port}`, { ca });
  await assert.rejects(mine.lock("a", { waitMs: 3_000 }), UnavailableError);
  assert.ok(asked >= 3);
});

test("S61: keys, and what happens without the right one", async (t) => {
  const deployment = await own(t, 0);
  const made = await run(BINARY, "keys", "new", "--name", "tests", "--scope", "read", "--scope", "lock", "--prefix", "mine:");
  const key = /^quorate_\w+$/m.exec(made)?.[0] ?? assert.fail(made);
  const keys = join(deployment.directory, "keys.toml");
  writeFileSync(keys, made.slice(made.indexOf("[[key]]")));
  const { url } = await deployment.serve("--api-keys", keys);

  for (const [apiKey, name, code] of [[undefined, "mine:a", "unauthenticated"], ["wrong-key", "mine:a", "unauthenticated"], [key, "theirs:a", "forbidden"]] as const) {
    const mine = client(t, url, apiKey === undefined ? {} : { apiKey });
    const begun = performance.now();
    const refused = await mine.lock(name).catch((error: unknown) => error); // whatever the wait
    assert.ok(refused instanceof ForbiddenError && refused.code === code, String(refused));
    assert.ok(performance.now() - begun < 5_000);
    assert.ok(apiKey === undefined || !inspect([refused, mine], { depth: 9 }).includes(apiKey));
  }
  await client(t, url, { apiKey: key }).lock("mine:a", {}, (lease) => lease.check());
  for (const [name, value] of Object.entries({ QUORATE_API_KEY: `${key}\n`, QUORATE_SERVER: `http://127.0.0.1:1, ${url}/` })) process.env[name] = value;
  t.after(() => ["QUORATE_API_KEY", "QUORATE_SERVER"].forEach((name) => delete process.env[name]));
  const fromEnvironment = new Client();
  await fromEnvironment.lock("mine:b", {}, (lease) => lease.check());
  await fromEnvironment.close();
});

test("S61: a key or URL of impossible shape is refused, and not shown", () => {
  for (const options of [{ apiKey: "a secret\n" }, { servers: "http://user:secret@localhost" }, { servers: "localhost:8080" }, { servers: [] }]) {
    assert.throws(() => new Client(options), (error: unknown) => error instanceof InvalidRequestError && !inspect(error).includes("secret"));
  }
});

test("S62: a proxy between client and server", async (t) => {
  const fault = await Fault.before(t, here.urls[0] as string);
  const proxy = new ProxyAgent({ uri: fault.url, proxyTunnel: false });
  const name = unique();
  await client(t, here.urls[1] as string, { fetch: through(proxy) }).lock(name, {}, (lease) => lease.check());
  assert.equal(fault.requests.get(`/v1/locks/${name}/acquire`), 1);
});
