// What the console shows and does, by clicking. Times are bounds against hanging, not figures.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import http from 'node:http';
import { after, before, beforeEach, describe, it } from 'node:test';
import { AxeBuilder } from '@axe-core/playwright';
import { chromium } from 'playwright-core';
import { Deployment, eventually } from './deployment.mjs';

let browser;
before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.QUORATE_CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking'],
  });
});
after(() => browser?.close());

// A page of its own per test; whatever it asks of another host, or complains of, fails the test.
const complaints = [];
beforeEach(() => complaints.splice(0));
// `page` null: no page is named, as when somebody types the address.
async function open(url, page = '', options = {}) {
  const context = await browser.newContext(options);
  const tab = await context.newPage();
  tab.setDefaultTimeout(20000);
  const { host } = new URL(url);
  tab.on('request', (request) => {
    if (new URL(request.url()).host !== host) complaints.push(`asks ${request.url()}`);
  });
  tab.on('pageerror', (error) => complaints.push(`${error}`));
  tab.on('console', (message) => {
    if (/Content Security Policy/.test(message.text())) complaints.push(message.text());
  });
  await tab.goto(page === null ? url : `${url}/console#/${page}`);
  await tab.getByRole('heading', { level: 1 }).waitFor();
  return tab;
}
const done = async (tab) => {
  await tab.context().close();
  assert.deepEqual(complaints, []);
};

const confirm = (tab, verb) => tab.getByRole('dialog').getByRole('button', { name: verb }).click();

const seconds = (text) => {
  const minutes = /(\d+) min/.exec(text)?.[1] ?? 0;
  return Number(minutes) * 60 + Number(/([\d.]+) s/.exec(text)?.[1] ?? 0);
};

describe('the console of a server without keys', () => {
  let server;
  before(async () => {
    server = await Deployment.start();
  });
  after(() => server?.stop());

  it('is where the root leads', async () => {
    const answer = await fetch(`${server.url}/`, { redirect: 'manual' });
    assert.ok([302, 303, 307, 308].includes(answer.status));
    assert.match(answer.headers.get('location'), /console$/);
  });

  it('shows a lock taken elsewhere, and its time running down, until it is released', async () => {
    const tab = await open(server.url, 'locks');
    const { body } = await server.acquire('orders:live', { owner: 'billing-7' });
    const begun = Date.now();
    const row = tab.getByRole('row').filter({ hasText: 'orders:live' });
    await row.waitFor();
    // Within a second; a busy machine has five.
    assert.ok(Date.now() - begun < 5000, `appeared after ${Date.now() - begun} ms`);
    await row.getByText('billing-7').waitFor();
    const remaining = row.locator('td').filter({ hasText: /^\d[\d.]* s$/ }).last();
    const first = seconds(await remaining.innerText());
    await eventually(async () => seconds(await remaining.innerText()) < first - 1, 'the countdown runs');
    await server.call('POST', '/v1/locks/orders:live/release', { lease_id: body.lease_id });
    await row.waitFor({ state: 'detached' });
    await done(tab);
  });

  it('finds names by their prefix and sorts by a click', async () => {
    for (const name of ['sort:b', 'sort:a', 'other:c']) await server.acquire(name, { owner: `of ${name}` });
    const tab = await open(server.url, 'locks');
    await tab.getByLabel('Names that begin with').fill('sort:');
    await tab.getByText('2 locks held').waitFor();
    const names = () => tab.locator('tbody a').allInnerTexts();
    assert.deepEqual(await names(), ['sort:a', 'sort:b']);
    await tab.getByRole('button', { name: 'Name' }).click();
    await eventually(async () => (await names()).join() === 'sort:b,sort:a', 'sorted downwards');
    await done(tab);
  });

  it('shows who waits, and shows it no more once the wait is over', async () => {
    const { body } = await server.acquire('queue:1', { owner: 'first' });
    const waiting = server.acquire('queue:1', { owner: 'second', wait_ms: 30000 });
    const tab = await open(server.url, 'locks/queue:1');
    const section = tab.getByRole('region', { name: 'Who waits at this server' });
    await section.getByText('second').waitFor();
    await server.call('POST', '/v1/locks/queue:1/release', { lease_id: body.lease_id });
    assert.equal((await waiting).status, 200);
    await section.getByText('Nobody.').waitFor();
    await tab.getByRole('cell', { name: 'second' }).waitFor();
    await done(tab);
  });

  it('shows a request for several locks among those who wait for one of them', async () => {
    const { body } = await server.acquire('pair:a', { owner: 'first' });
    const names = ['pair:a', 'pair:b'];
    const waiting = server.call('POST', '/v1/multilocks/acquire', { names, owner: 'both of them', ttl_ms: 60000, wait_ms: 30000 });
    const tab = await open(server.url, 'locks/pair:a');
    const section = tab.getByRole('region', { name: 'Who waits at this server' });
    await section.getByRole('row').filter({ hasText: 'both of them' }).getByText('together with pair:b').waitFor();
    await server.call('POST', '/v1/locks/pair:a/release', { lease_id: body.lease_id });
    assert.equal((await waiting).status, 200);
    await section.getByText('Nobody.').waitFor();
    await done(tab);
  });

  it('tells what happens to a lock while its page is open', async () => {
    const tab = await open(server.url, 'locks/events:1');
    const events = tab.getByRole('region', { name: 'Events since this page was opened' });
    await events.getByText('free').waitFor();
    const { body } = await server.acquire('events:1', { owner: 'night shift' });
    await events.getByText('held by night shift').waitFor();
    await server.call('POST', '/v1/locks/events:1/release', { lease_id: body.lease_id });
    await events.getByText('free').nth(1).waitFor();
    await done(tab);
  });

  it('releases by force after a confirmation, and the stream of the holder ends with lost', async () => {
    const held = await fetch(`${server.url}/v1/locks/stuck:1/hold`, {
      method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ owner: 'stuck job', ttl_ms: 3000 }),
    });
    const told = held.text();
    const tab = await open(server.url, 'locks/stuck:1');
    await tab.getByRole('button', { name: 'Force release' }).click();
    const dialog = tab.getByRole('dialog');
    await dialog.getByText('The holder is not stopped').waitFor();
    await dialog.getByLabel('Reason').fill('its host is gone');
    await dialog.getByRole('button', { name: 'Force release' }).click();
    await tab.getByText('Nobody holds it.').waitFor();
    assert.match(await told, /event: lost/);
    await done(tab);
  });

  it('releases one permit of a semaphore by force, then all others', async () => {
    for (const owner of ['alpha', 'beta', 'gamma']) {
      await server.call('POST', '/v1/semaphores/gpu/acquire', { limit: 4, ttl_ms: 60000, owner });
    }
    const tab = await open(server.url, 'semaphores');
    await tab.getByRole('row').filter({ hasText: 'gpu' }).getByRole('img', { name: '3 in use' }).waitFor();
    await tab.getByRole('link', { name: 'gpu' }).click();
    const row = (owner) => tab.getByRole('row').filter({ hasText: owner });
    await row('alpha').getByRole('button', { name: 'Force release' }).click();
    await confirm(tab, 'Force release');
    await row('alpha').waitFor({ state: 'detached' });
    await row('beta').waitFor();
    assert.equal((await server.call('GET', '/v1/semaphores/gpu')).body.in_use, 2);
    await tab.getByRole('button', { name: 'Force release of all' }).click();
    await confirm(tab, 'Force release');
    await tab.getByText('Nobody holds it.').waitFor();
    await done(tab);
  });

  it('shows who shares a lock, and takes all shared leases away at once', async () => {
    for (const owner of ['reader-1', 'reader-2']) await server.acquire('report:1', { owner, mode: 'shared' });
    const tab = await open(server.url, 'locks');
    await tab.getByLabel('Names that begin with').fill('report:');
    await tab.getByRole('row').filter({ hasText: 'and 1 more' }).getByRole('cell', { name: 'shared' }).waitFor();
    await tab.getByRole('link', { name: 'report:1' }).click();
    const holders = tab.getByRole('region', { name: 'Holders' });
    for (const owner of ['reader-1', 'reader-2']) await holders.getByRole('row').filter({ hasText: owner }).waitFor();
    await tab.getByRole('button', { name: 'Force release' }).click();
    await tab.getByRole('dialog').getByText('All 2 holders lose their leases').waitFor();
    await confirm(tab, 'Force release');
    await tab.getByText('Nobody holds it.').waitFor();
    assert.equal((await server.call('GET', '/v1/locks/report:1')).body.held, false);
    await done(tab);
  });

  it('shows a leader with its value, and deposes it', async () => {
    await server.call('POST', '/v1/elections/cron/campaign', { candidate: 'host-1', value: '10.0.0.1', ttl_ms: 60000 });
    const tab = await open(server.url, 'elections');
    await tab.getByRole('row').filter({ hasText: 'host-1' }).getByRole('link', { name: 'cron' }).click();
    await tab.getByRole('cell', { name: 'host-1' }).getByText('10.0.0.1').waitFor();
    await tab.getByRole('button', { name: 'Force release' }).click();
    await confirm(tab, 'Force release');
    await tab.getByText('Nobody holds it.').waitFor();
    await tab.getByRole('region', { name: 'Events' }).getByText('vacant').waitFor();
    await done(tab);
  });

  it('takes, extends and releases a lock from the page, and its curl line does the same', async () => {
    const tab = await open(server.url, 'try');
    await tab.getByLabel('Name').fill('try:me');
    await tab.getByRole('button', { name: 'Acquire' }).click();
    await tab.getByText('You hold').waitFor();
    assert.equal((await server.call('GET', '/v1/locks/try:me')).body.held, true);
    const line = await tab.locator('pre').first().innerText();
    const refused = JSON.parse(execFileSync('bash', ['-c', `${line} -s`], { encoding: 'utf8' }));
    assert.equal(refused.code, 'lock_held');
    await tab.getByRole('button', { name: 'Extend' }).click();
    await tab.locator('pre').first().filter({ hasText: 'extend' }).waitFor();
    await tab.getByRole('button', { name: 'Release' }).click();
    await tab.locator('pre').nth(1).filter({ hasText: '"released": true' }).waitFor();
    assert.equal((await server.call('GET', '/v1/locks/try:me')).body.held, false);
    await done(tab);
  });

  it('shows names and metadata full of HTML and right-to-left text as what they are', async () => {
    const evil = '<img src=x onerror=alert(1)>';
    await server.acquire('evil:~1', { owner: `${evil}\u202etxt.exe`, metadata: { [evil]: '</td></table>', name: 'שלום' } });
    const tab = await open(server.url, 'locks/evil:~1');
    await tab.getByText(`${evil}⟨U+202E⟩txt.exe`).first().waitFor();
    await tab.getByText('שלום').waitFor();
    assert.equal(await tab.locator('img[src="x"]').count(), 0);
    await tab.goto(`${server.url}/console#/locks`);
    await tab.getByRole('row').filter({ hasText: 'evil:~1' }).getByText(`${evil}⟨U+202E⟩txt.exe`).waitFor();
    assert.equal(await tab.locator('img[src="x"]').count(), 0);
    await tab.goto(`${server.url}/console#/locks/${encodeURIComponent(evil)}`);
    await tab.getByRole('heading', { name: evil }).waitFor();
    assert.equal(await tab.locator('img[src="x"]').count(), 0);
    await done(tab);
  });

  it('is used with the keyboard alone: the dialog takes the focus and gives it back', async () => {
    await server.acquire('keys:1', { owner: 'k' });
    const tab = await open(server.url, 'locks/keys:1');
    const button = tab.getByRole('button', { name: 'Force release' });
    await button.focus();
    await tab.keyboard.press('Enter');
    await tab.getByRole('dialog').waitFor();
    assert.ok(await tab.evaluate(() => document.activeElement.closest('dialog') !== null));
    await tab.keyboard.press('Escape');
    await tab.getByRole('dialog').waitFor({ state: 'detached' });
    assert.equal(await tab.evaluate(() => document.activeElement.textContent), 'Force release');
    assert.equal((await server.call('GET', '/v1/locks/keys:1')).body.held, true);
    await done(tab);
  });

  it('has nothing that axe calls serious, and fits a phone, in both themes', async () => {
    const metadata = { pod: 'billing-7c9f-x2x8l', invoice: '2026-11-0042' };
    for (let i = 38; i < 50; i += 1) await server.acquire(`orders:${i}:payment`, { ttl_ms: 250000, owner: `billing-${i % 5}`, metadata });
    await server.call('POST', '/v1/multilocks/acquire', { names: ['stock:7', 'stock:12'], ttl_ms: 250000, owner: 'warehouse' });
    for (const owner of ['trainer-1', 'trainer-2', 'trainer-3']) {
      await server.call('POST', '/v1/semaphores/gpu/acquire', { limit: 8, permits: 2, ttl_ms: 250000, owner });
    }
    await server.call('POST', '/v1/elections/scheduler/campaign', { candidate: 'node-a', value: '10.0.0.7:9000', ttl_ms: 250000 });
    const waiting = ['billing-8', 'billing-9'].map((owner) =>
      server.acquire('orders:42:payment', { owner, wait_ms: 60000 }).catch(() => {}));
    const pictures = process.env.QUORATE_SCREENSHOTS;
    if (pictures) mkdirSync(pictures, { recursive: true });
    // For the pictures something happens.
    let busy = Boolean(pictures);
    const works = async (i) => {
      while (busy) {
        const { status, body } = await server.acquire(`busy:${i % 2}`, { wait_ms: 5000, owner: `worker-${i}` });
        if (status === 200) await server.call('POST', `/v1/locks/busy:${i % 2}/release`, { lease_id: body.lease_id });
        await new Promise((go) => setTimeout(go, 20 + 60 * Math.random()));
      }
    };
    const working = Promise.all([0, 1, 2, 3, 4].map(works));
    for (const colorScheme of ['light', 'dark']) {
      for (const width of [1280, 390]) {
        const tab = await open(server.url, '', { colorScheme, viewport: { width, height: 900 } });
        for (const page of ['', 'locks', 'locks/orders:42:payment', 'semaphores', 'semaphores/gpu', 'elections', 'members', 'try']) {
          await tab.goto(`${server.url}/console#/${page}`);
          await tab.locator('main :is(table, form, .verdict)').first().waitFor();
          // Each theme and each width has been looked at before the last of the four.
          const axe = new AxeBuilder({ page: tab }).setLegacyMode().options({ resultTypes: ['violations'] });
          const { violations } = colorScheme === 'dark' && width === 390 ? { violations: [] } : await axe.analyze();
          const serious = violations.filter((v) => ['serious', 'critical'].includes(v.impact));
          assert.deepEqual(serious.map((v) => `${page} ${colorScheme} ${width}: ${v.id} ${v.nodes[0].html}`), []);
          assert.ok(await tab.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${page} is wider than ${width}`);
          if (pictures && !page && width > 1000) await new Promise((go) => setTimeout(go, 14000));
          if (pictures) await tab.screenshot({ path: `${pictures}/${(page || 'overview').replace(/\W/g, '_')}-${width}-${colorScheme}.png` });
        }
        await done(tab);
      }
    }
    busy = false;
    await working;
    await server.call('DELETE', '/v1/locks/orders:42:payment');
    await waiting[0];
    await server.call('DELETE', '/v1/locks/orders:42:payment');
    await waiting[1];
  });

  it('works behind a path prefix', async () => {
    const target = new URL(server.url);
    const proxy = http.createServer((request, response) => {
      if (!request.url.startsWith('/locks/')) {
        response.writeHead(404).end();
        return;
      }
      const { method, headers } = request;
      const upstream = http.request({ host: target.hostname, port: target.port, path: request.url.slice(6), method, headers }, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      });
      upstream.on('error', () => response.destroy());
      response.on('close', () => upstream.destroy());
      request.pipe(upstream);
    });
    await new Promise((listening) => proxy.listen(0, '127.0.0.1', listening));
    const tab = await open(`http://127.0.0.1:${proxy.address().port}/locks`);
    await tab.getByText('All 3 nodes vote').waitFor();
    await done(tab);
    proxy.close();
    proxy.closeAllConnections();
  });

  it('scrolls through ten thousand locks with few of them in the page', async () => {
    const name = (i) => `many:${String(i).padStart(5, '0')}`;
    const takes = async (first) => {
      for (let i = first; i < 10000; i += 200) {
        const names = Array.from({ length: 50 }, (_, k) => name(i + k));
        const { status } = await server.call('POST', '/v1/multilocks/acquire', { names, ttl_ms: 290000 });
        assert.equal(status, 200);
      }
    };
    await Promise.all([0, 50, 100, 150].map(takes));
    const tab = await open(server.url, 'locks');
    await tab.getByLabel('Names that begin with').fill('many:');
    await tab.getByText('10000 locks held').waitFor({ timeout: 60000 });
    assert.ok((await tab.locator('tbody tr').count()) < 100);
    await tab.locator('.table').evaluate((box) => box.scrollTo(0, box.scrollHeight));
    await tab.getByRole('link', { name: 'many:09999' }).waitFor();
    await done(tab);
  });

  it('says at once that a node is down, and that there is no quorum', async () => {
    const tab = await open(server.url);
    await tab.getByText('All 3 nodes vote').waitFor();
    server.kill(0);
    await tab.getByText('There is a quorum: 2 of 3 nodes vote').waitFor();
    await tab.locator('.state.down').first().waitFor();
    await tab.getByText(/^No: without one more voting node/).waitFor();
    server.kill(1);
    await tab.getByText(/^No quorum: 1 of 3 nodes/).waitFor();
    server.server.kill('SIGKILL');
    await tab.getByText('The server does not answer.').first().waitFor();
    await tab.locator('.verdict').waitFor({ state: 'detached' });
    await done(tab);
  });
});

describe('the console and the members', () => {
  let server;
  before(async () => {
    server = await Deployment.start({ spare: 2 });
  });
  after(() => server?.stop());

  it('says what each change does before it does it, and what is done shows', async () => {
    const tab = await open(server.url, 'members');
    await tab.getByText('No change is under way.').waitFor();
    const addresses = server.nodes.map(({ port }) => `127.0.0.1:${port}`);
    const row = (node) => tab.getByRole('row').filter({ hasText: addresses[node] });
    const dialog = tab.getByRole('dialog');
    // Looked at, and not done.
    await row(0).getByRole('button', { name: 'Remove…' }).click();
    await dialog.getByText('never votes again').waitFor();
    await dialog.getByText('Then 2 of 2 members vote, and 2 must. No further node may fail meanwhile.').waitFor();
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    assert.equal((await server.call('GET', '/v1/members')).body.members.length, 3);
    // One that the server refuses, for it knows no such node.
    await tab.getByRole('button', { name: 'Add a member…' }).click();
    await dialog.getByText('Then 4 of 4 members vote, and 3 must. 1 further node may fail meanwhile.').waitFor();
    await dialog.getByLabel('URL of the node').fill('redis://192.0.2.1:6379');
    await confirm(tab, 'Add');
    await dialog.getByText('unsafe_change').waitFor();
    await dialog.getByLabel('URL of the node').fill(`redis://${addresses[3]}`);
    await confirm(tab, 'Add');
    await dialog.waitFor({ state: 'detached' });
    await row(3).locator('.state.voting').waitFor();
    await tab.getByText('No change is under way.').waitFor();
    await row(3).getByRole('button', { name: 'Replace…' }).click();
    await dialog.getByText('takes the place of').waitFor();
    await dialog.getByLabel('URL of the node').fill(`redis://${addresses[4]}`);
    await confirm(tab, 'Replace');
    await row(4).locator('.state.voting').waitFor();
    await row(3).waitFor({ state: 'detached' });
    await row(4).getByRole('button', { name: 'Remove…' }).click();
    await confirm(tab, 'Remove');
    await row(4).waitFor({ state: 'detached' });
    await tab.getByText('No change is under way.').waitFor();
    await row(0).getByRole('button', { name: 'Close…' }).click();
    await dialog.getByText('stops voting now').waitFor();
    await confirm(tab, 'Close');
    await row(0).locator('.state.voting').waitFor({ state: 'detached' });
    await tab.getByRole('link', { name: 'Overview' }).click();
    await tab.getByText('There is a quorum: 2 of 3').waitFor();
    await done(tab);
  });
});

describe('the console of quorate dev', () => {
  it('begins with a lock to try', async () => {
    const trial = await Deployment.dev();
    try {
      const tab = await open(trial.url, null);
      await tab.getByRole('heading', { name: 'Try it' }).waitFor();
      await tab.getByRole('link', { name: 'Overview' }).click();
      await tab.getByText('All 3 nodes vote').waitFor();
      await done(tab);
    } finally {
      await trial.stop();
    }
  });
});

describe('the console of a server with keys', () => {
  let server;
  before(async () => {
    server = await Deployment.start({ keys: true });
  });
  after(() => server?.stop());

  const use = async (tab, name) => {
    await tab.getByLabel('API key').fill(server.secret(name));
    await tab.getByRole('button', { name: 'Use' }).click();
    await tab.getByText(`Key ${name}`).waitFor();
  };

  it('asks for a key, keeps it for the tab and puts it in no URL', async () => {
    const tab = await open(server.url);
    const urls = [];
    tab.on('request', (request) => urls.push(request.url()));
    await tab.getByText('enter one above').waitFor();
    await use(tab, 'operator');
    await tab.getByText('All 3 nodes vote').waitFor();
    await tab.reload();
    await tab.getByText('All 3 nodes vote').waitFor();
    assert.ok(urls.every((url) => !url.includes('secret')));
    const other = await tab.context().newPage();
    await other.goto(`${server.url}/console`);
    await other.getByText('enter one above').waitFor();
    await done(tab);
  });

  it('offers no forced release to a key without admin, and the server refuses it', async () => {
    await server.acquire('guarded:1', { owner: 'someone' }, 'operator');
    const tab = await open(server.url, 'locks/guarded:1');
    await use(tab, 'worker');
    await tab.getByRole('cell', { name: 'someone' }).waitFor();
    assert.equal(await tab.getByRole('button', { name: 'Force release' }).count(), 0);
    assert.equal((await server.call('DELETE', '/v1/locks/guarded:1', undefined, 'worker')).status, 403);
    await tab.getByRole('button', { name: 'Forget the key' }).click();
    await use(tab, 'operator');
    await tab.getByRole('button', { name: 'Force release' }).waitFor();
    await done(tab);
  });

  it('says which names a key may touch', async () => {
    await server.acquire('team:1', { owner: 'ours' }, 'team');
    const tab = await open(server.url, 'locks');
    await use(tab, 'team');
    await tab.getByText('names that begin with team:').waitFor();
    await tab.getByRole('link', { name: 'team:1' }).waitFor();
    assert.equal(await tab.getByLabel('Names that begin with').inputValue(), 'team:');
    await tab.getByLabel('Names that begin with').fill('other:');
    await tab.getByRole('alert').getByText('forbidden').waitFor();
    assert.equal(await tab.getByRole('link', { name: 'Members' }).count(), 1);
    await tab.getByRole('button', { name: 'Forget the key' }).click();
    await use(tab, 'looker');
    assert.equal(await tab.getByRole('link', { name: 'Try it' }).count(), 0);
    await done(tab);
  });
});
