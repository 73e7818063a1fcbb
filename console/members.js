// The membership, and the changes of it.

import { html, useState } from './vendor/preact-htm.js';
import { call, get, path } from './api.js';
import { count, duration } from './format.js';
import { left, useLive, useNow } from './live.js';
import { Confirm, Failure, Text } from './parts.js';

const quorumOf = (total) => Math.floor(total / 2) + 1;

// How many members there are then, how many of them vote, and what that means.
function outcome(total, voting) {
  const quorum = quorumOf(total);
  const spare = voting - quorum;
  return html`<p>Then ${voting} of ${count(total, 'member')} vote, and ${quorum} must. ${spare < 0
    ? html`<strong>That is no quorum: the server will refuse.</strong>`
    : spare === 0 ? html`<strong>No further node may fail meanwhile.</strong>` : `${count(spare, 'further node')} may fail meanwhile.`}</p>`;
}

const WAIT = 'The next change has to wait until the longest lease granted before is over.';

// Each says what it does from `total` members of which `voting` vote; `lost` is 1 if the member `m` votes.
const CHANGES = {
  close: {
    title: 'Close a member for a restart', verb: 'Close',
    says: (m, total, voting, lost) => html`<p><b><${Text} value=${m.address || m.id} /></b> stops voting now. Restart its Redis: if it
      comes back with its data (AOF or RDB), it votes again at once; otherwise it sits out a quarantine.</p>
      ${outcome(total, voting - lost)}`,
  },
  replace: {
    title: 'Replace a member', verb: 'Replace', url: true,
    says: (m, total, voting, lost) => html`<p>Another node takes the place of <b><${Text} value=${m.address || m.id} /></b>, and votes
      once the longest lease granted before is over.</p>${outcome(total, voting - lost)}`,
  },
  remove: {
    title: 'Remove a member', verb: 'Remove',
    says: (m, total, voting, lost) => html`<p><b><${Text} value=${m.address || m.id} /></b> never votes again. ${WAIT}
      Take its URL out of every server's list afterwards.</p>${outcome(total - 1, voting - lost)}`,
  },
  add: {
    title: 'Add a member', verb: 'Add', url: true,
    says: (_, total, voting) => html`<p>The node becomes a member and votes at once. ${WAIT}</p>${outcome(total + 1, voting + 1)}`,
  },
};

/** Asks for one change. `candidates`: nodes in this server's list that are no members. */
function Change({ kind, member, members, candidates, done, close }) {
  const [url, setUrl] = useState('');
  const { title, verb, says, url: wantsUrl } = CHANGES[kind];
  const act = async () => {
    const of = (...rest) => path('members', member.id, ...rest);
    if (kind === 'add') await call('POST', 'v1/members', { body: { url } });
    if (kind === 'replace') await call('POST', of('replace'), { body: { url } });
    if (kind === 'close') await call('POST', of('close'), { body: {} });
    if (kind === 'remove') await call('DELETE', of());
    done();
  };
  const voting = members.filter((m) => m.state === 'voting').length;
  return html`<${Confirm} title=${title} verb=${verb} act=${act} close=${close}>
    ${says(member, members.length, voting, member?.state === 'voting' ? 1 : 0)}
    ${wantsUrl && html`<label>URL of the node, which every server must list first
      <input required maxlength="500" list="candidates" value=${url} onInput=${(e) => setUrl(e.target.value)}
        placeholder="redis://host:6379" spellcheck=${false} autocomplete="off" /></label>
      <datalist id="candidates">${candidates.map((address) => html`<option value=${address} />`)}</datalist>`}
  <//>`;
}

export function Members({ able }) {
  const live = useLive((signal) => get('v1/members', {}, signal), 1000, []);
  const nodes = useLive((signal) => get('v1/nodes', {}, signal), 3000, []);
  const now = useNow();
  const [change, setChange] = useState();
  const may = able.scopes.includes('admin');
  const { value } = live;
  const known = new Set(value?.members.map((m) => m.address));
  const candidates = (nodes.value?.nodes || []).map((n) => n.address).filter((address) => !known.has(address));
  return html`<h1>Members</h1>
    <p class="quiet">The nodes whose votes count. A majority of them chooses each change, one member at a time.</p>
    <${Failure} error=${live.error} />
    ${value && html`
      <p role="status">Epoch <b>${value.epoch}</b>. ${value.changing ? html`A change is under way: ${value.changing}.` : 'No change is under way.'}</p>
      <div class="scroll" tabindex="0" role="region" aria-label="Members"><table>
        <caption>Members</caption>
        <thead><tr><th scope="col">Member</th><th scope="col">State</th>
          ${may && html`<th scope="col"><span class="hidden">Changes</span></th>`}</tr></thead>
        <tbody>${value.members.map((m) => html`<tr key=${m.id}>
          <td><${Text} value=${m.address || 'not reached by this server'} /><div class="quiet" title=${m.id}><${Text} value=${m.id.slice(0, 8)} />…</div></td>
          <td><span class=${`state ${m.state}`}>${m.state}</span>
            ${m.votes_in_ms !== undefined && html` votes in ${duration(left(m.votes_in_ms, live.at, now))}`}</td>
          ${may && html`<td><div class="buttons">
            <button onClick=${() => setChange({ kind: 'close', member: m })}>Close…</button>
            <button onClick=${() => setChange({ kind: 'replace', member: m })}>Replace…</button>
            <button class="danger" onClick=${() => setChange({ kind: 'remove', member: m })}>Remove…</button></div></td>`}
        </tr>`)}</tbody></table></div>
      ${may && html`<p><button onClick=${() => setChange({ kind: 'add' })}>Add a member…</button></p>`}`}
    ${change && html`<${Change} ...${change} members=${value.members} candidates=${candidates} done=${live.again}
      close=${() => setChange()} />`}`;
}
