// Try it: a lock from the page, with the curl line that does the same.

import { html, useState } from './vendor/preact-htm.js';
import { address, call, key, path } from './api.js';
import { duration, shellWord } from './format.js';
import { left, useNow } from './live.js';

const curl = (relative, body) =>
  [`curl -X POST ${address(relative)}`, "-H 'Content-Type: application/json'",
    key.get() && '-H "Authorization: Bearer $QUORATE_API_KEY"', `-d ${shellWord(JSON.stringify(body))}`]
    .filter(Boolean).join(' \\\n  ');

// Only pages from https or this machine may use the clipboard.
function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  getSelection().selectAllChildren(document.getElementById('curl-line'));
  return document.execCommand('copy');
}

export function Try({ able }) {
  const [name, setName] = useState(`${able.prefixes?.[0] ?? 'orders:'}42`);
  const [owner, setOwner] = useState('me');
  const [ttl, setTtl] = useState(30000);
  const [lease, setLease] = useState();
  const [said, setSaid] = useState();
  const now = useNow();
  const remaining = lease && left(lease.validity_ms, lease.at, now);
  const bodies = {
    acquire: { ttl_ms: Number(ttl), ...(owner && { owner }) },
    extend: { lease_id: lease?.lease_id, ttl_ms: Number(ttl) },
    release: { lease_id: lease?.lease_id },
  };
  const run = async (verb) => {
    const relative = path('locks', lease && verb !== 'acquire' ? lease.name : name, verb);
    const line = curl(relative, bodies[verb]);
    try {
      const answer = await call('POST', relative, { body: bodies[verb] });
      setLease(verb === 'release' ? undefined : { ...answer, at: performance.now() });
      setSaid({ line, answer });
    } catch (problem) {
      if (problem.code === 'lease_lost') setLease();
      setSaid({ line, answer: problem.body || { detail: problem.message } });
    }
  };
  return html`<h1>Try it</h1>
    <p>Take a lock here, and watch others be refused: in a second tab, or with the curl line in a terminal.</p>
    <form class="try" onSubmit=${(e) => { e.preventDefault(); run('acquire'); }}>
      <label>Name <input required maxlength="200" value=${name} onInput=${(e) => setName(e.target.value)} spellcheck=${false} autocomplete="off" /></label>
      <label>Owner <input maxlength="128" value=${owner} onInput=${(e) => setOwner(e.target.value)} autocomplete="off" /></label>
      <label>Lease, ms <input type="number" min="100" value=${ttl} onInput=${(e) => setTtl(e.target.value)} /></label>
      <div class="actions">
        <button class="primary">Acquire</button>
        <button type="button" disabled=${!lease} onClick=${() => run('extend')}>Extend</button>
        <button type="button" disabled=${!lease} onClick=${() => run('release')}>Release</button>
      </div>
    </form>
    ${lease && html`<p><span role="status">${remaining > 0
      ? html`You hold <a href=${`#/locks/${encodeURIComponent(lease.name)}`}>${lease.name}</a> with token${' '}
          <b>${lease.fencing_token}</b>.`
      : 'The lease is over: it was not extended in time.'}</span>
      ${remaining > 0 && html` <b class="countdown">${duration(remaining)}</b> left.`}</p>`}
    ${said && html`<section aria-labelledby="curl"><h2 id="curl">The same with curl</h2>
      <pre tabindex="0" id="curl-line">${said.line}</pre>
      <button onClick=${() => copy(said.line)}>Copy</button>
      <h2>Answer</h2><pre tabindex="0">${JSON.stringify(said.answer, null, 2)}</pre></section>`}`;
}
