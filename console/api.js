// The public HTTP API as the console calls it. All addresses are relative to the page, so that the console works behind
// a path prefix too.

const BASE = new URL('.', location.href);
const KEY = 'quorate-api-key';

/** An answer other than 2xx, with the problem document that the server sent; status 0 if there was no answer. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The server answered ${status}.`);
    this.status = status;
    this.code = body.code;
    this.body = body;
  }
}

/** The API key. The browser keeps it for this tab only; it is sent as a header and stands in no URL. */
export const key = {
  get: () => sessionStorage.getItem(KEY) || '',
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

const headers = (body) => ({
  ...(key.get() && { Authorization: `Bearer ${key.get()}` }),
  ...(body !== undefined && { 'Content-Type': 'application/json' }),
});

async function send(method, path, { body, query, signal, accept } = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query || {})) {
    if (value !== undefined && value !== '') url.searchParams.set(name, value);
  }
  const request = {
    method,
    signal,
    cache: 'no-store',
    headers: { ...headers(body), ...(accept && { Accept: accept }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  };
  const answer = await fetch(url, request).catch((error) => {
    if (signal?.aborted) throw error;
    throw new Problem(0, { detail: 'The server does not answer.' });
  });
  if (answer.ok) return answer;
  let problem = {};
  try {
    problem = await answer.json();
  } catch {
    // A proxy in between answers with a page of its own.
  }
  throw new Problem(answer.status, problem);
}

/** One call; the JSON of its answer. Throws a `Problem` where the answer is not 2xx. */
export const call = async (method, path, options) => (await send(method, path, options)).json();

export const get = (path, query, signal) => call('GET', path, { query, signal });

export const text = async (path, signal) => (await send('GET', path, { signal })).text();

/** The path of a primitive's name: `path('locks', 'orders:42')`. */
export const path = (kind, name, ...rest) => ['v1', kind, encodeURIComponent(name), ...rest].join('/');

/** Address of the server, as a curl line needs it. */
export const address = (relative) => new URL(relative, BASE).href;

/** Calls `on(event, data)` for each event of a stream until it ends or `signal` is aborted. */
export async function stream(relative, on, signal) {
  const answer = await send('GET', relative, { signal, accept: 'text/event-stream' });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      let event = 'message';
      let data = '';
      for (const line of block.split('\n')) {
        if (line.startsWith('event:')) event = line.slice(6).trim();
        if (line.startsWith('data:')) data += line.slice(5).trim();
      }
      if (data) on(event, JSON.parse(data));
    }
  }
}

/** Every page of a list, at most `most` entries; `more` is true where the server has further ones. */
export async function list(kind, prefix, signal, most = 20000) {
  const all = [];
  let cursor;
  do {
    const page = await get(`v1/${kind}`, { prefix, cursor, limit: 1000 }, signal);
    all.push(...page[kind]);
    cursor = page.next_cursor;
  } while (cursor && all.length < most);
  return { entries: all, more: Boolean(cursor) };
}

/** What the key may do: `{name?, scopes, prefixes?}`. A server without keys allows everything. */
export const ownKey = (signal) => get('v1/key', {}, signal);

/** Whether this is `quorate dev`, whose nodes are in its own process. */
export const isTrial = async (signal) =>
  (await get('v1/nodes', {}, signal)).nodes.every((node) => node.address.startsWith('embedded-'));
