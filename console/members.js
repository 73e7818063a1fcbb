// The membership, and the changes of it.

import { html, useState } from './vendor/preact-htm.js';
import { call, get, path } from './api.js';
import { duration } from './format.js';
import { left, useLive, useNow } from './live.js';
import { Confirm, Failure, Text } from './parts.js';

const CHANGES = {
  replace: { title: 'Replace a member', verb: 'Replace', url: true, says: (m) => html`<p>The node at the URL takes the place of
    <b>${m.id}</b>. It votes only after the longest lease that was granted is over; until then one vote fewer is to be had.</p>` },
  remove: { title: 'Remove a member', verb: 'Remove', says: (m) => html`<p><b>${m.id}</b> no longer votes, and the quorum is that
    of one member fewer. What it stores is not deleted. The next change can begin once the longest lease granted is over.</p>` },
  close: { title: 'Close a member for a restart', verb: 'Close', says: (m) => html`<p><b>${m.id}</b> stops voting now. Restart its Redis: if it
    comes back with its data (AOF or RDB), it votes again within seconds; otherwise it waits its quarantine.</p>` },
  add: { title: 'Add a member', verb: 'Add', url: true, says: () => html`<p>The node at the URL becomes a member and votes. The
    quorum becomes that of one member more. Every server must list its URL.</p>` },
};

export function Members({ able }) {
  const live = useLive((signal) => get('v1/members', {}, signal), 1000, []);
  const now = useNow();
  const [change, setChange] = useState();
  const [url, setUrl] = useState('');
  const may = able.scopes.includes('admin');
  const begin = (kind, member) => {
    setUrl('');
    setChange({ kind, member });
  };
  const act = async () => {
    const { kind, member } = change;
    if (kind === 'add') await call('POST', 'v1/members', { body: { url } });
    if (kind === 'replace') await call('POST', path('members', member.id, 'replace'), { body: { url } });
    if (kind === 'close') await call('POST', path('members', member.id, 'close'), { body: {} });
    if (kind === 'remove') await call('DELETE', path('members', member.id));
    live.again();
  };
  const value = live.value;
  return html`<h1>Members</h1>
    <p class="quiet">The nodes whose votes count. A majority of them chooses each change, one member at a time.</p>
    <${Failure} error=${live.error} />
    ${value && html`
      <p role="status">Epoch <b>${value.epoch}</b>.${value.changing && ' A change is under way.'}</p>
      <div class="scroll" tabindex="0" role="region" aria-label="Members"><table>
        <caption>Members</caption>
        <thead><tr><th scope="col">Member</th><th scope="col">Address</th><th scope="col">State</th>
          ${may && html`<th scope="col"><span class="hidden">Changes</span></th>`}</tr></thead>
        <tbody>${value.members.map((m) => html`<tr key=${m.id}>
          <td><${Text} value=${m.id} /></td><td><${Text} value=${m.address || ''} /></td>
          <td><span class=${`state ${m.state}`}>${m.state}</span>
            ${m.votes_in_ms !== undefined && html` votes in ${duration(left(m.votes_in_ms, live.at, now))}`}</td>
          ${may && html`<td class="buttons">
            <button onClick=${() => begin('close', m)}>Close…</button>
            <button onClick=${() => begin('replace', m)}>Replace…</button>
            <button class="danger" onClick=${() => begin('remove', m)}>Remove…</button></td>`}
        </tr>`)}</tbody></table></div>
      ${may && html`<p><button onClick=${() => begin('add')}>Add a member…</button></p>`}`}
    ${change && html`<${Confirm} title=${CHANGES[change.kind].title} verb=${CHANGES[change.kind].verb} act=${act}
      close=${() => setChange()}>
      ${CHANGES[change.kind].says(change.member)}
      ${CHANGES[change.kind].url && html`<label>URL of the node
        <input required value=${url} onInput=${(e) => setUrl(e.target.value)} placeholder="redis://host:6379" spellcheck=${false} autocomplete="off" /></label>`}
    <//>`}`;
}
