// Scenarios S60 to S62: the way to the server.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { inspect } from "node:util";
import { Agent, ProxyAgent, fetch as undiciFetch, type Dispatcher } from "undici";
import { Client, ForbiddenError, InvalidRequestError, UnavailableError, type Fetch } from "../src/index.js";
import { BINARY, Fault, Program, client, own, run, shared, unique } from "./support.js";

const here = shared();

/** The recipe of the README: fetch with another dispatcher. */
const through = (dispatcher: Dispatcher): Fetch => (url, init) => undiciFetch(url, { ...init, dispatcher });

test("S60: a server with a certificate of an own authority", async (t) => {
  const deployment = await own(t, 0);
  const at = (file: string) => join(deployment.directory, file);
  const request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1";
  const made = await run("openssl", ...request.split(" "), "-keyout", at("key.pem"), "-out", at("cert.pem")).catch(() => undefined);
  if (made === undefined) return t.skip("there is no openssl");
  const { url } = await deployment.serve("--tls-cert", at("cert.pem"), "--tls-key", at("key.pem"));
  assert.match(url, /^https:/);

  const refused = await client(t, url).lock(unique(), { waitMs: 0 }).catch((error: unknown) => error);
  assert.ok(refused instanceof UnavailableError);
  assert.match(refused.message, /self[- ]signed certificate/);

  const trusting = new Agent({ connect: { ca: readFileSync(at("cert.pem"), "utf8") } });
  await client(t, url, { fetch: through(trusting) }).lock(unique(), {}, (lease) => lease.check());

  const name = unique();
  const program = new Program(t, "exits", [url, name, "by itself"], { NODE_EXTRA_CA_CERTS: at("cert.pem") });
  await program.says("held");
  program.process.stdin?.end();
  await program.ended;
  assert.deepEqual([program.process.exitCode, program.errors], [0, ""]);
  assert.equal((await client(t, url, { fetch: through(trusting) }).getLock(name)).held, false); // the exit knew the way, too
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
