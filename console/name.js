// The page of one lock, semaphore or election: its holders, who waits here, its events, the forced release.

import { html, useEffect, useState } from './vendor/preact-htm.js';
import { call, get, list, path, stream } from './api.js';
import { count, duration, plain, time } from './format.js';
import { KINDS } from './kinds.js';
import { left, useLive, useNow } from './live.js';
import { Confirm, Failure, Metadata, Slots, Text } from './parts.js';

const KEPT_EVENTS = 100;

// The observe stream of a name; it is opened anew when it ends.
function useEvents(kind, name, on) {
  const [events, setEvents] = useState([]);
  useEffect(() => {
    setEvents([]);
    const control = new AbortController();
    let timer;
    const open = () =>
      stream(path(kind, name, 'observe'), (event, data) => {
        setEvents((before) => [{ at: Date.now(), event, data }, ...before].slice(0, KEPT_EVENTS));
        on();
      }, control.signal)
        .catch(() => {})
        .then(() => {
          if (!control.signal.aborted) timer = setTimeout(open, 2000);
        });
    open();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [kind, name]);
  return events;
}

const described = (kind, { event, data }) => {
  if (event === 'leader') return `leader ${plain(data.leader)}, term ${data.term}${data.value === undefined ? '' : `, value ${plain(data.value)}`}`;
  if (event === 'changed') return `${count(data.in_use, 'slot')} in use`;
  const holders = KINDS[kind].holders(data);
  return `${event}${holders.length ? ` by ${holders.map((h) => (h.owner === undefined ? 'no name given' : plain(h.owner))).join(', ')}` : ''}`;
};

function Holders({ kind, item, at, force }) {
  const now = useNow();
  const holders = KINDS[kind].holders(item);
  // Shared leases of a lock are taken away together, permits of a semaphore also one by one.
  const forceOne = force && (kind === 'semaphores' || holders.length === 1) && force;
  const aged = holders.some((h) => h.acquired_at);
  if (!holders.length) return html`<p class="quiet">Nobody holds it.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Holders"><table>
    <caption>${kind === 'elections' ? 'Leader' : holders.length > 1 ? 'Holders' : 'Holder'}</caption>
    <thead><tr><th scope="col">${kind === 'elections' ? 'Candidate' : 'Owner'}</th>
      <th scope="col" class="numeric wide">${KINDS[kind].tokenTitle}</th><th scope="col" class="numeric">Time left</th>
      ${aged && html`<th scope="col" class="numeric wide">Age</th>`}${forceOne && html`<th scope="col"><span class="hidden">Action</span></th>`}</tr></thead>
    <tbody>${holders.map((h) => html`<tr key=${h[KINDS[kind].token]}>
      <td>${h.owner === undefined ? html`<span class="quiet">no name given</span>` : html`<${Text} value=${h.owner} />`}
        ${h.value !== undefined && html`<div>value <${Text} value=${h.value} /></div>`}
        ${h.slots && html`<div class="quiet">${h.slots.length > 1 ? 'slots' : 'slot'} ${h.slots.join(', ')}</div>`}
        <div class="narrow quiet">${KINDS[kind].tokenTitle.toLowerCase()} ${h[KINDS[kind].token]}</div>
        <${Metadata} value=${h.metadata} /></td>
      <td class="numeric wide">${h[KINDS[kind].token]}</td>
      <td class="numeric countdown">${duration(left(h.remaining_ms, at, now))}</td>
      ${aged && html`<td class="numeric wide">${h.acquired_at ? duration(Date.now() - Date.parse(h.acquired_at)) : ''}</td>`}
      ${forceOne && html`<td><button class="danger" onClick=${() => force([h])}>Force release</button></td>`}
    </tr>`)}</tbody></table></div>
    ${item.holders_total > holders.length && html`<p class="quiet">${item.holders_total} in all.</p>`}
    ${force && holders.length > 1 && html`<p><button class="danger" onClick=${() => force(holders)}>Force release of all</button></p>`}`;
}

function Waiters({ kind, name, item }) {
  const { value } = useLive((signal) => list('waiters', name, signal), 700, [kind, name]);
  const here = value?.entries.filter((w) => KINDS[kind].waiters.includes(w.primitive)
    && (w.name === name || w.names?.includes(name))) || [];
  return html`<section aria-labelledby="waiters"><h2 id="waiters">Who waits at this server</h2>
    ${!item.waiters && !here.length && html`<p class="quiet">Nobody.</p>`}
    ${item.waiters > 0 && !here.length && html`<p>${count(item.waiters, 'request')}.</p>`}
    ${here.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Waiting requests"><table>
      <thead><tr><th scope="col" class="numeric place">Place</th><th scope="col">Owner</th><th scope="col" class="numeric">Waits for</th>
        <th scope="col" class="numeric">At most</th></tr></thead>
      <tbody>${here.map((w) => html`<tr>
        <td class="numeric">${w.position}</td>
        <td>${w.owner === undefined ? html`<span class="quiet">no name given</span>` : html`<${Text} value=${w.owner} />`}
          ${w.names && html`<div class="quiet">together with ${w.names.filter((n) => n !== name).join(', ')}</div>`}
          <${Metadata} value=${w.metadata} /></td>
        <td class="numeric">${duration(w.waited_ms)}</td><td class="numeric">${duration(w.wait_ms)}</td>
      </tr>`)}</tbody></table></div>`}
  </section>`;
}

export function Name({ kind, name, able }) {
  const live = useLive((signal) => get(path(kind, name), {}, signal), 1000, [kind, name]);
  const events = useEvents(kind, name, live.again);
  const [forced, force] = useState();
  const item = live.value;
  const may = able.scopes.includes('admin');
  const each = kind === 'semaphores';
  const act = async (reason) => {
    await call('DELETE', path(kind, name), { query: { reason, fencing_token: each && forced.length === 1 ? forced[0].fencing_token : undefined } });
    live.again();
  };
  return html`<p><a href=${`#/${kind}`}>${KINDS[kind].title}</a></p>
    <h1><${Text} value=${name} /></h1>
    <${Failure} error=${live.error} />
    ${item && html`
      <dl class="facts">
        ${kind === 'locks' && html`<dt>Mode</dt><dd>${item.held ? item.mode || 'exclusive' : 'free'}</dd>`}
        ${each && html`<dt>Slots in use</dt><dd><${Slots} ...${item} /></dd>`}
        <dt>Nodes</dt><dd>${item.nodes.held || item.nodes.granted} of ${item.nodes.total} hold it, ${item.nodes.quorum} make a quorum</dd>
      </dl>
      <${Holders} kind=${kind} item=${item} at=${live.at} force=${may && force} />
      <${Waiters} kind=${kind} name=${name} item=${item} />
      <section aria-labelledby="events"><h2 id="events">Events since this page was opened</h2>
        <ul class="events" aria-live="polite">${events.map((e) => html`<li><time>${time(e.at)}</time> ${described(kind, e)}</li>`)}</ul>
      </section>`}
    ${forced && html`<${Confirm} title="Release it by force?" verb="Force release" withReason act=${act} close=${() => force()}>
      <p>${forced.length > 1 ? `All ${item.holders_total || forced.length} holders lose their leases`
        : html`${forced[0].owner === undefined ? 'The holder' : html`<b><${Text} value=${forced[0].owner} /></b>`} loses this lease`} at once.
        Others can get the ${KINDS[kind].one} from then on.</p>
      <ul>
        <li>The holder is not stopped. It hears of the loss when it next extends (<code>lease_lost</code>), or its hold
          stream ends with <code>lost</code>.</li>
        <li>Until then it may go on working. Only a check of its ${KINDS[kind].tokenTitle.toLowerCase()} where it writes keeps it out.</li>
      </ul>
    <//>`}`;
}
