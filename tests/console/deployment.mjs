// Redis servers and a Quorate server over them, in a folder of their own.

import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const freePort = () =>
  new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

const running = new Set();
process.on('exit', () => running.forEach((child) => child.kill('SIGKILL')));
function start(command, words) {
  const child = spawn(command, words, { stdio: 'ignore' });
  running.add(child);
  child.on('exit', () => running.delete(child));
  return child;
}

/** Asks `check` until it answers something true. */
export async function eventually(check, what, seconds = 30) {
  const end = Date.now() + seconds * 1000;
  let last;
  while (Date.now() < end) {
    try {
      const found = await check();
      if (found) return found;
    } catch (error) {
      last = error;
    }
    await new Promise((done) => setTimeout(done, 50));
  }
  throw new Error(`not within ${seconds} s: ${what}`, { cause: last });
}

/** API keys by name; each is its own secret. */
const KEYS = { operator: ['read', 'lock', 'admin'], worker: ['read', 'lock'], looker: ['read'], team: ['read', 'lock'] };

export class Deployment {
  folder = mkdtempSync(join(tmpdir(), 'quorate-console-'));
  nodes = [];

  /** `quorate dev`. */
  static async dev() {
    const one = new Deployment();
    await one.#serve(['dev']);
    return one;
  }

  /** Three members; `spare` further nodes are in the server's list and belong to nobody. */
  static async start({ keys = false, spare = 0 } = {}) {
    const one = new Deployment();
    for (let i = 0; i < 3 + spare; i += 1) {
      const port = await freePort();
      const words = ['--port', port, '--bind', '127.0.0.1', '--save', '', '--dir', one.folder];
      one.nodes.push({ port, process: start('redis-server', words) });
    }
    const redis = one.nodes.flatMap(({ port }) => ['--redis', `redis://127.0.0.1:${port}`]);
    const members = redis.slice(0, 6);
    await eventually(() => spawnSync(process.env.QUORATE_BIN, ['init', ...members]).status === 0, 'init');
    const flags = [];
    if (keys) {
      const file = join(one.folder, 'keys.toml');
      writeFileSync(file, Object.entries(KEYS).map(([name, scopes]) => `[[key]]
name = "${name}"
sha256 = "${createHash('sha256').update(`secret-of-the-${name}`).digest('hex')}"
scopes = ${JSON.stringify(scopes)}
${name === 'team' ? 'prefixes = ["team:"]' : ''}
`).join('\n'));
      flags.push('--api-keys', file);
    }
    await one.#serve(['serve', ...redis, ...flags]);
    return one;
  }

  async #serve(words) {
    const port = await freePort();
    this.url = `http://127.0.0.1:${port}`;
    this.server = start(process.env.QUORATE_BIN, [...words, '--listen', `127.0.0.1:${port}`]);
    await eventually(async () => (await fetch(`${this.url}/readyz`)).ok, 'ready');
  }

  secret(name) {
    return `secret-of-the-${name}`;
  }

  async call(method, path, body, key) {
    const answer = await fetch(`${this.url}${path}`, {
      method,
      headers: { 'Content-Type': 'application/json', ...(key && { Authorization: `Bearer ${this.secret(key)}` }) },
      body: body && JSON.stringify(body),
    });
    return { status: answer.status, body: await answer.json() };
  }

  acquire(name, body = {}, key) {
    return this.call('POST', `/v1/locks/${encodeURIComponent(name)}/acquire`, { ttl_ms: 60000, ...body }, key);
  }

  kill(node) {
    this.nodes[node].process.kill('SIGKILL');
  }

  async stop() {
    this.server.kill('SIGKILL');
    for (const { process: node } of this.nodes) node.kill('SIGKILL');
    rmSync(this.folder, { recursive: true, force: true });
  }
}
