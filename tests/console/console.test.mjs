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
  await tab.goto(`${url}/console#/${page}`);
  await tab.getByRole('heading', { level: 1 }).waitFor();
  return tab;
}
const done = async (tab) => {
  await tab.context().close();
  assert.deepEqual(complaints, []);
};

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
    console.log(`# appeared after ${Date.now() - begun} ms`);
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

  it('releases one permit of a semaphore, or the leader of an election', async () => {
    for (const owner of ['a', 'b']) await server.call('POST', '/v1/semaphores/gpu/acquire', { limit: 3, ttl_ms: 60000, owner });
    const tab = await open(server.url, 'semaphores');
    await tab.getByRole('link', { name: 'gpu' }).click();
    await tab.getByRole('row').filter({ hasText: 'a' }).filter({ hasText: 'Force' }).first().waitFor();
    await tab.getByRole('row', { name: /^a/ }).getByRole('button').click();
    await tab.getByRole('dialog').getByRole('button', { name: 'Force release' }).click();
    await tab.getByRole('row', { name: /^a/ }).waitFor({ state: 'detached' });
    await tab.getByRole('row', { name: /^b/ }).waitFor();
    await server.call('POST', '/v1/elections/cron/campaign', { candidate: 'host-1', value: '10.0.0.1', ttl_ms: 60000 });
    await tab.getByRole('link', { name: 'Elections' }).click();
    await tab.getByRole('link', { name: 'cron' }).click();
    await tab.getByRole('cell', { name: 'host-1' }).waitFor();
    await tab.getByRole('button', { name: 'Force release' }).click();
    await tab.getByRole('dialog').getByRole('button', { name: 'Force release' }).click();
    await tab.getByText('Nobody holds it.').waitFor();
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
    await tab.getByText(`${evil}⟨U+202E⟩txt.exe`).waitFor();
    await tab.getByText('שלום').waitFor();
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

  it('names members and says what a change does before it does it', async () => {
    const tab = await open(server.url, 'members');
    await tab.getByText(/^Epoch/).waitFor();
    await tab.getByRole('button', { name: 'Remove…' }).first().click();
    await tab.getByRole('dialog').getByText('no longer votes').waitFor();
    await tab.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();
    assert.equal((await server.call('GET', '/v1/members')).body.members.length, 3);
    await done(tab);
  });

  it('has nothing that axe calls serious, and fits a phone, in both themes', async () => {
    await server.acquire('axe:1', { owner: 'a', metadata: { k: 'v' } });
    const pictures = process.env.QUORATE_SCREENSHOTS;
    if (pictures) mkdirSync(pictures, { recursive: true });
    for (const colorScheme of ['light', 'dark']) {
      for (const width of [1280, 390]) {
        const tab = await open(server.url, '', { colorScheme, viewport: { width, height: 900 } });
        for (const page of ['', 'locks', 'locks/axe:1', 'semaphores', 'elections', 'try']) {
          await tab.goto(`${server.url}/console#/${page}`);
          await tab.locator('main :is(table, form, .verdict)').first().waitFor();
          const { violations } = await new AxeBuilder({ page: tab }).analyze();
          const serious = violations.filter((v) => ['serious', 'critical'].includes(v.impact));
          assert.deepEqual(serious.map((v) => `${page} ${colorScheme} ${width}: ${v.id} ${v.nodes[0].html}`), []);
          assert.ok(await tab.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${page} is wider than ${width}`);
          if (pictures) await tab.screenshot({ path: `${pictures}/${(page || 'overview').replace(/\W/g, '_')}-${width}-${colorScheme}.png` });
        }
        await done(tab);
      }
    }
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
    const names = Array.from({ length: 10000 }, (_, i) => `many:${String(i).padStart(5, '0')}`);
    const take = async () => {
      for (let name = names.pop(); name; name = names.pop()) {
        const { status } = await server.acquire(name, { ttl_ms: 290000 });
        assert.equal(status, 200);
      }
    };
    await Promise.all(Array.from({ length: 16 }, take));
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
    await done(tab);
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
    await tab.getByText(`key ${name}`).waitFor();
  };

  it('asks for a key, keeps it for the tab and puts it in no URL', async () => {
    const context = await browser.newContext();
    const tab = await context.newPage();
    const urls = [];
    tab.on('request', (request) => urls.push(request.url()));
    await tab.goto(`${server.url}/console`);
    await tab.getByText('enter one above').waitFor();
    await use(tab, 'operator');
    await tab.getByText('All 3 nodes vote').waitFor();
    await tab.reload();
    await tab.getByText('All 3 nodes vote').waitFor();
    assert.ok(urls.every((url) => !url.includes('secret')));
    const other = await context.newPage();
    await other.goto(`${server.url}/console`);
    await other.getByText('enter one above').waitFor();
    await context.close();
  });

  it('offers no forced release to a key without admin, and the server refuses it', async () => {
    await server.acquire('guarded:1', { owner: 'someone' }, 'operator');
    const context = await browser.newContext();
    const tab = await context.newPage();
    await tab.goto(`${server.url}/console#/locks/guarded:1`);
    await use(tab, 'worker');
    await tab.getByRole('cell', { name: 'someone' }).waitFor();
    assert.equal(await tab.getByRole('button', { name: 'Force release' }).count(), 0);
    assert.equal((await server.call('DELETE', '/v1/locks/guarded:1', undefined, 'worker')).status, 403);
    await tab.getByRole('button', { name: 'Forget the key' }).click();
    await use(tab, 'operator');
    await tab.getByRole('button', { name: 'Force release' }).waitFor();
    await context.close();
  });

  it('says which names a key may touch', async () => {
    await server.acquire('team:1', { owner: 'ours' }, 'team');
    const context = await browser.newContext();
    const tab = await context.newPage();
    await tab.goto(`${server.url}/console#/locks`);
    await use(tab, 'team');
    await tab.getByText('names team:').waitFor();
    await tab.getByLabel('Names that begin with').fill('team:');
    await tab.getByRole('link', { name: 'team:1' }).waitFor();
    await context.close();
  });
});
