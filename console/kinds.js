// The three primitives: what the console says of each.

import { plain } from './format.js';

/** By the path segment of the API. */
export const KINDS = {
  locks: {
    title: 'Locks', one: 'lock', taken: 'held', waiters: ['lock', 'multilock'], token: 'fencing_token', tokenTitle: 'Token',
    holders: (item) =>
      item.holders || (item.held ? [{ owner: item.owner, metadata: item.metadata, fencing_token: item.fencing_token,
        remaining_ms: item.remaining_ms, acquired_at: item.acquired_at, mode: item.mode }] : []),
  },
  semaphores: {
    title: 'Semaphores', one: 'semaphore', taken: 'in use', waiters: ['semaphore'], token: 'fencing_token', tokenTitle: 'Token',
    holders: (item) => item.holders,
  },
  elections: {
    title: 'Elections', one: 'election', taken: 'with a leader', waiters: ['election'], token: 'term', tokenTitle: 'Term',
    holders: (item) => (item.leader ? [{ owner: item.leader, value: item.value, term: item.term,
      remaining_ms: item.remaining_ms, acquired_at: item.acquired_at }] : []),
  },
};

/** Who holds it, in a few words. */
export const holder = (kind, item) => {
  const holders = KINDS[kind].holders(item);
  if (!holders.length) return '';
  const named = holders.map((h) => (h.owner === undefined ? 'no name given' : plain(h.owner)));
  const more = (item.holders_total || holders.length) - 1;
  return more > 0 ? `${named[0]} and ${more} more` : named[0];
};
