// The frame: which page is shown, the navigation, the API key.

import { html, render, useEffect, useState } from './vendor/preact-htm.js';
import { isTrial, key, ownKey } from './api.js';
import { plain } from './format.js';
import { KINDS } from './kinds.js';
import { Members } from './members.js';
import { Name } from './name.js';
import { Names } from './names.js';
import { Overview } from './overview.js';
import { Failure } from './parts.js';
import { Try } from './try.js';

// '#/locks/orders%3A42' -> ['locks', 'orders:42']
function route() {
  try {
    return location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  } catch {
    return [''];
  }
}

function KeyForm({ changed }) {
  const [value, setValue] = useState('');
  const submit = (event) => {
    event.preventDefault();
    key.set(value.trim());
    setValue('');
    changed();
  };
  if (key.get()) {
    return html`<button onClick=${() => { key.set(''); changed(); }}>Forget the key</button>`;
  }
  return html`<form class="key" onSubmit=${submit}>
    <label><span class="hidden">API key</span>
      <input type="password" placeholder="API key" value=${value} onInput=${(e) => setValue(e.target.value)} autocomplete="off" /></label>
    <button>Use</button>
  </form>`;
}

function Page({ parts: [page, name], able }) {
  if (KINDS[page]) {
    return name ? html`<${Name} key=${`${page}/${name}`} kind=${page} name=${name} able=${able} />`
      : html`<${Names} key=${page} kind=${page} able=${able} />`;
  }
  if (page === 'members') return html`<${Members} able=${able} />`;
  if (page === 'try') return html`<${Try} able=${able} />`;
  return html`<${Overview} />`;
}

function App() {
  const [parts, setParts] = useState(route());
  const [able, setAble] = useState();
  const [error, setError] = useState();
  const [keys, setKeys] = useState(0);
  useEffect(() => {
    const moved = () => {
      setParts(route());
      document.querySelector('main')?.focus();
    };
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }, []);
  useEffect(() => {
    const control = new AbortController();
    const { signal } = control;
    setError();
    setAble();
    const begin = async () => {
      const own = await ownKey(signal);
      // What a newcomer sees first.
      if (!location.hash && own.scopes.includes('read') && (await isTrial(signal))) location.replace('#/try');
      setAble(own);
    };
    begin().catch((failed) => signal.aborted || setError(failed));
    return () => control.abort();
  }, [keys]);
  const may = (scope) => able?.scopes.includes(scope);
  const links = [
    ...(may('read') ? [['', 'Overview'], ...Object.entries(KINDS).map(([kind, { title }]) => [kind, title]), ['members', 'Members']] : []),
    ...(may('lock') ? [['try', 'Try it']] : []),
  ];
  const page = links.find(([path]) => path === parts[0])?.[1];
  useEffect(() => {
    document.title = [parts[1] && plain(parts[1]), page, 'Quorate'].filter(Boolean).join(' – ');
  }, [page, parts[1]]);
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.querySelector('main').focus(); }}>Skip to the content</a>
    <header>
      <a class="brand" href="#/"><img src="console/icon.svg" alt="" width="24" height="24" />Quorate</a>
      <nav aria-label="Pages">${links.map(([page, title]) => html`<a href=${`#/${page}`}
        aria-current=${parts[0] === page ? 'page' : undefined}>${title}</a>`)}
        <a href="docs">API</a></nav>
      <${KeyForm} changed=${() => setKeys(keys + 1)} />
    </header>
    <main tabindex="-1">
      ${error && html`<h1>Console</h1><${Failure} error=${error} />`}
      ${able && html`<${Page} key=${keys} parts=${parts} able=${able} />`}
    </main>
    <footer>${able?.name && `Key ${able.name}: ${able.scopes.join(', ')}; ${able.prefixes
      ? `names that begin with ${able.prefixes.join(', ')}` : 'all names'}`}</footer>`;
}

render(html`<${App} />`, document.getElementById('app'));
