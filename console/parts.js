// Small views that the pages share.

import { html, useEffect, useMemo, useRef, useState } from './vendor/preact-htm.js';
import { plain } from './format.js';

/** Outside text: escaped, its direction kept to itself. */
export const Text = ({ value }) => html`<bdi>${plain(value)}</bdi>`;

export const Metadata = ({ value }) =>
  value &&
  html`<span class="metadata">
    ${Object.entries(value).map(([k, v]) => html`<span class="tag"><${Text} value=${k} />=<${Text} value=${v} /></span>`)}
  </span>`;

/** A failed call, said in a box. Nothing where there is none. */
export const Failure = ({ error }) =>
  error &&
  html`<p class="failure" role="alert">
    ${error.status === 401 && 'The server wants an API key: enter one above. '}
    ${error.status === 403 && 'This key may not do that. '}
    ${error.message}
    ${error.code && html` <code>${error.code}</code>`}
  </p>`;

/**
 * A dialog that asks before something is done. `children` say what it will do; `act(reason)` does it. Focus goes into
 * the dialog and back to where it was.
 */
export function Confirm({ title, verb, children, withReason, act, close }) {
  const dialog = useRef();
  const [reason, setReason] = useState('');
  const [error, setError] = useState();
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    return () => before?.focus?.();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await act(reason.trim());
      close();
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="dialog-title">
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${title}</h2>
      ${children}
      ${withReason &&
      html`<label>Reason, for the audit log
        <input maxlength="200" value=${reason} onInput=${(e) => setReason(e.target.value)} autocomplete="off" /></label>`}
      <${Failure} error=${error} />
      <div class="actions">
        <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
        <button class="danger" disabled=${busy}>${verb}</button>
      </div>
    </form>
  </dialog>`;
}

const ROW = 41;

/**
 * A table that can be sorted, of which only the rows in sight are in the page: ten thousand scroll as ten do.
 * `columns` are `{id, title, value(row), view?(row), wide?, numeric?}`; `rowKey(row)` tells rows apart.
 */
export function Table({ label, columns, rows, rowKey, sortedBy }) {
  const [sort, setSort] = useState({ id: sortedBy, down: false });
  const [top, setTop] = useState(0);
  const box = useRef();
  const column = columns.find((c) => c.id === sort.id) || columns[0];
  // Time passes for all rows alike, so their order stays until they are read anew.
  const sorted = useMemo(() => [...rows].sort((a, b) => {
    const x = column.value(a);
    const y = column.value(b);
    const order = x === y ? 0 : x === undefined ? 1 : y === undefined ? -1 : x < y ? -1 : 1;
    return sort.down ? -order : order;
  }), [rows, sort]);
  const height = box.current?.clientHeight || 600;
  const first = Math.max(0, Math.min(Math.floor(top / ROW) - 5, sorted.length - 1));
  const last = Math.min(sorted.length, first + Math.ceil(height / ROW) + 10);
  const spacer = (n) => n > 0 && html`<tr aria-hidden="true" style=${{ height: `${n * ROW}px` }}></tr>`;
  return html`<div class="table" ref=${box} tabindex="0" role="region" aria-label=${label}
    onScroll=${(e) => setTop(e.target.scrollTop)}>
    <table aria-rowcount=${sorted.length + 1}>
      <thead><tr>
        ${columns.map((c) => html`<th key=${c.id} class=${`c-${c.id} ${c.wide ? 'wide' : ''} ${c.numeric ? 'numeric' : ''}`}
          aria-sort=${column === c ? (sort.down ? 'descending' : 'ascending') : 'none'} scope="col">
          <button onClick=${() => setSort({ id: c.id, down: column === c && !sort.down })}>${c.title}</button>
        </th>`)}
      </tr></thead>
      <tbody>
        ${spacer(first)}
        ${sorted.slice(first, last).map((row, i) => html`<tr key=${rowKey(row)} aria-rowindex=${first + i + 2}>
          ${columns.map((c) => html`<td key=${c.id} class=${`${c.wide ? 'wide' : ''} ${c.numeric ? 'numeric' : ''}`}>
            ${c.view ? c.view(row) : c.value(row)}</td>`)}
        </tr>`)}
        ${spacer(sorted.length - last)}
      </tbody>
    </table>
  </div>`;
}

/** One segment a slot, filled where it is taken; beyond `most` slots a plain bar. */
export function Slots({ holders, in_use, most = 64 }) {
  const taken = new Set(holders.flatMap((h) => h.slots));
  const size = Math.max(in_use, ...[...taken].map((slot) => slot + 1));
  if (!size) return html`<span class="quiet">none</span>`;
  const label = `${in_use} in use`;
  if (size > most) return html`<meter min="0" max=${size} value=${in_use} aria-label=${label}></meter> ${in_use}`;
  return html`<span class="slots" role="img" aria-label=${label}>
    ${Array.from({ length: size }, (_, slot) => html`<i class=${taken.has(slot) ? 'taken' : ''}></i>`)}
  </span> ${in_use}`;
}
