// The table of all locks, semaphores or elections that are held.

import { html, useState } from './vendor/preact-htm.js';
import { list } from './api.js';
import { count, duration, plain } from './format.js';
import { KINDS, holder } from './kinds.js';
import { left, useLive, useNow } from './live.js';
import { Failure, Metadata, Slots, Table } from './parts.js';

const age = (item) => (item.acquired_at ? Date.now() - Date.parse(item.acquired_at) : undefined);

function columnsOf(kind, rows, at, now) {
  const first = (item) => KINDS[kind].holders(item)[0] || {};
  const longest = (item) => Math.max(...KINDS[kind].holders(item).map((h) => h.remaining_ms ?? 0));
  const remaining = (item) => left(longest(item), at, now);
  return [
    { id: 'name', title: 'Name', value: (i) => i.name,
      view: (i) => html`<a href=${`#/${kind}/${encodeURIComponent(i.name)}`}>${plain(i.name)}</a>` },
    { id: 'holder', title: kind === 'elections' ? 'Leader' : 'Holder', value: (i) => holder(kind, i), wide: kind === 'semaphores',
      view: (i) => html`<bdi>${holder(kind, i)}</bdi>${first(i).metadata && html` <${Metadata} value=${first(i).metadata} />`}` },
    kind === 'semaphores'
      ? { id: 'slots', title: 'Slots in use', value: (i) => i.in_use, view: (i) => html`<${Slots} ...${i} most=${16} />` }
      : { id: 'token', title: KINDS[kind].tokenTitle, value: (i) => first(i)[KINDS[kind].token], wide: true, numeric: true },
    rows.some((i) => i.mode === 'shared') && { id: 'mode', title: 'Mode', value: (i) => i.mode || 'exclusive', wide: true },
    kind === 'locks' && { id: 'age', title: 'Age', value: age, view: (i) => duration(age(i)), wide: true, numeric: true },
    { id: 'left', title: 'Time left', value: remaining, view: (i) => duration(remaining(i)), numeric: true },
    { id: 'waiters', title: 'Waiters here', value: (i) => i.waiters, wide: true, numeric: true },
  ].filter(Boolean);
}

export function Names({ kind, able }) {
  const [prefix, setPrefix] = useState(able.prefixes?.[0] ?? '');
  const kindOf = KINDS[kind];
  const { value, at, error } = useLive((signal) => list(kind, prefix, signal), 700, [kind, prefix]);
  const now = useNow();
  const [name, setName] = useState('');
  const open = (event) => {
    event.preventDefault();
    if (name) location.hash = `#/${kind}/${encodeURIComponent(name)}`;
  };
  return html`<h1>${kindOf.title}</h1>
    <div class="tools">
      <label>Names that begin with
        <input type="search" value=${prefix} onInput=${(e) => setPrefix(e.target.value)} spellcheck=${false} autocomplete="off" /></label>
      <form onSubmit=${open}><label>Go to a name
        <input value=${name} onInput=${(e) => setName(e.target.value)} spellcheck=${false} autocomplete="off" /></label>
        <button>Open</button></form>
    </div>
    <${Failure} error=${error} />
    ${value && html`
      <p class="quiet" role="status">${count(value.entries.length, kindOf.one)} ${kindOf.taken}${value.more
        ? ', and more: narrow the prefix' : ''}.</p>
      <${Table} label=${`Held ${kindOf.title.toLowerCase()}`} columns=${columnsOf(kind, value.entries, at, now)} rows=${value.entries}
        rowKey=${(i) => i.name} sortedBy="name" />`}`;
}
