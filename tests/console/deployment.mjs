// Three Redis servers and a Quorate server over them, in a folder of their own.

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
const KEYS = { operator: ['read', 'lock', 'admin'], worker: ['read', 'lock'], team: ['read', 'lock'] };

export class Deployment {
  static async start({ keys = false } = {}) {
    const one = new Deployment();
    one.folder = mkdtempSync(join(tmpdir(), 'quorate-console-'));
    one.nodes = [];
    for (let i = 0; i < 3; i += 1) {
      const port = await freePort();
      one.nodes.push({ port, process: spawn('redis-server', ['--port', port, '--bind', '127.0.0.1', '--save', '', '--dir', one.folder],
        { stdio: 'ignore' }) });
    }
    const redis = one.nodes.flatMap(({ port }) => ['--redis', `redis://127.0.0.1:${port}`]);
    await eventually(() => spawnSync(process.env.QUORATE_BIN, ['init', ...redis]).status === 0, 'init');
    const port = await freePort();
    one.url = `http://127.0.0.1:${port}`;
    const flags = ['--listen', `127.0.0.1:${port}`];
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
    one.server = spawn(process.env.QUORATE_BIN, ['serve', ...redis, ...flags], { stdio: 'ignore' });
    await eventually(async () => (await fetch(`${one.url}/readyz`)).ok, 'ready');
    return one;
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
