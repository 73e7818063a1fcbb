// Generated from openapi/quorate-v1.json by scripts/generate.mjs. Do not edit.

/** Body of `acquire` and `hold`. */
export type AcquireLock = {
  /** If the lease expires instead of being released, the name stays taken for this much longer, in milliseconds, so that a holder that was paused can notice. Left out: 0. */
  lock_delay_ms?: number | null;
  /** However often the lease is extended, it ends this long after it was acquired, in milliseconds: from `ttl_ms` to 30 days. Left out: there is no such limit. */
  max_hold_ms?: number | null;
  /** Flat map of strings, shown with the owner: at most 16 entries and 1024 bytes in all. */
  metadata?: Record<string, string> | null;
  /** `exclusive` excludes all other leases of the name. Any number of `shared` ones exclude exclusive ones and are excluded by them. Left out: `exclusive`. */
  mode?: string | null;
  /** Free label of the holder, shown to everyone who may read the lock or semaphore. */
  owner?: string | null;
  /** Makes a retry safe: the same `request_id` gets the same lease and token back while it is held. A request that waits and ends without the lease keeps its place in the queue of the server for 10 s, for the next one with its `request_id`. The header `Idempotency-Key` means the same. */
  request_id?: string | null;
  /** Life of the lease without extension, in milliseconds: at most the server's `max_ttl`. Left out: 30 000, or `max_ttl` where that is shorter. */
  ttl_ms?: number | null;
  /** How long to wait, in milliseconds: at most the server's `max_wait`. 0 or left out: one attempt. */
  wait_ms?: number | null;
};

/** Body of `acquire`. */
export type AcquireMultilock = {
  /** If the lease expires instead of being released, the name stays taken for this much longer, in milliseconds, so that a holder that was paused can notice. Left out: 0. */
  lock_delay_ms?: number | null;
  /** However often the lease is extended, it ends this long after it was acquired, in milliseconds: from `ttl_ms` to 30 days. Left out: there is no such limit. */
  max_hold_ms?: number | null;
  /** Flat map of strings, shown with the owner: at most 16 entries and 1024 bytes in all. */
  metadata?: Record<string, string> | null;
  /** The names of the locks: 2 to 64, all different, in any order. */
  names: Array<string>;
  /** Free label of the holder, shown to everyone who may read the lock or semaphore. */
  owner?: string | null;
  /** Makes a retry safe: the same `request_id` gets the same lease and token back while it is held. A request that waits and ends without the lease keeps its place in the queue of the server for 10 s, for the next one with its `request_id`. The header `Idempotency-Key` means the same. */
  request_id?: string | null;
  /** Life of the lease without extension, in milliseconds: at most the server's `max_ttl`. Left out: 30 000, or `max_ttl` where that is shorter. */
  ttl_ms?: number | null;
  /** How long to wait, in milliseconds: at most the server's `max_wait`. 0 or left out: one attempt. */
  wait_ms?: number | null;
};

/** Body of `acquire` and `hold`. */
export type AcquireSemaphore = {
  /** How many permits the semaphore has. Each request is judged by its own limit, so that a rolling change works. Requests with different limits do not wait for each other. */
  limit: number;
  /** If the lease expires instead of being released, the name stays taken for this much longer, in milliseconds, so that a holder that was paused can notice. Left out: 0. */
  lock_delay_ms?: number | null;
  /** However often the lease is extended, it ends this long after it was acquired, in milliseconds: from `ttl_ms` to 30 days. Left out: there is no such limit. */
  max_hold_ms?: number | null;
  /** Flat map of strings, shown with the owner: at most 16 entries and 1024 bytes in all. */
  metadata?: Record<string, string> | null;
  /** Free label of the holder, shown to everyone who may read the lock or semaphore. */
  owner?: string | null;
  /** How many permits to acquire, all or nothing; at most `limit`. Left out: 1. */
  permits?: number | null;
  /** Makes a retry safe: the same `request_id` gets the same lease and token back while it is held. A request that waits and ends without the lease keeps its place in the queue of the server for 10 s, for the next one with its `request_id`. The header `Idempotency-Key` means the same. */
  request_id?: string | null;
  /** Life of the lease without extension, in milliseconds: at most the server's `max_ttl`. Left out: 30 000, or `max_ttl` where that is shorter. */
  ttl_ms?: number | null;
  /** How long to wait, in milliseconds: at most the server's `max_wait`. 0 or left out: one attempt. */
  wait_ms?: number | null;
};

/** A lease of any primitive, with the members that the answer to an extension by itself has. */
export type AnyLease = {
  /** When it was acquired. For display only. */
  acquired_at: string;
  /** How many granting rounds were needed. */
  attempts: number;
  /** Elections: who leads. */
  candidate?: string;
  /** When its validity ends. For display only. */
  expires_at: string;
  /** The fencing token. A multilock has `fencing_tokens` instead. */
  fencing_token?: number;
  /** The fencing token of each name of a multilock. */
  fencing_tokens?: Record<string, number>;
  /** With `max_hold_ms`: no extension reaches further than this. For display only. */
  hold_until?: string;
  /** The secret that extends and releases the lease. Whoever has it is the holder; it is never shown again. */
  lease_id: string;
  /** Semaphores: the limit that was asked for. */
  limit?: number;
  /** Locks and multilocks: `exclusive` or `shared`. */
  mode?: string;
  /** The name. A multilock has `names` instead. */
  name?: string;
  /** The names of a multilock. */
  names?: Array<string>;
  /** The votes. */
  nodes: Nodes;
  /** The holder's label. */
  owner?: string;
  /** Semaphores: how many permits the lease has. */
  permits?: number;
  /** Semaphores: the permits held. */
  slots?: Array<number>;
  /** Elections: the fencing token. */
  term?: number;
  /** Life of the lease without extension, in milliseconds. */
  ttl_ms: number;
  /** How long the holder may rely on the lease, in milliseconds from when the answer was written: the remaining time less an allowance for clock drift. */
  validity_ms: number;
  /** Elections: what the leader proclaims. */
  value?: string;
  /** How long the caller waited for it, in milliseconds. */
  waited_ms: number;
};

/** Body of `campaign` and `hold`. */
export type Campaign = {
  /** Who campaigns. */
  candidate: string;
  /** If the lease expires instead of being released, the name stays taken for this much longer, in milliseconds, so that a holder that was paused can notice. Left out: 0. */
  lock_delay_ms?: number | null;
  /** However often the lease is extended, it ends this long after it was acquired, in milliseconds: from `ttl_ms` to 30 days. Left out: there is no such limit. */
  max_hold_ms?: number | null;
  /** Makes a retry safe: the same `request_id` gets the same lease and token back while it is held. A request that waits and ends without the lease keeps its place in the queue of the server for 10 s, for the next one with its `request_id`. The header `Idempotency-Key` means the same. */
  request_id?: string | null;
  /** Life of the lease without extension, in milliseconds: at most the server's `max_ttl`. Left out: 30 000, or `max_ttl` where that is shorter. */
  ttl_ms?: number | null;
  /** The value that the leader proclaims from the start, e.g. an address. */
  value?: string | null;
  /** How long to wait, in milliseconds: at most the server's `max_wait`. 0 or left out: one attempt. */
  wait_ms?: number | null;
};

/** Body of `check`. */
export type CheckToken = {
  /** The token of the holder that wants to write. */
  fencing_token: number;
};

/** A page of elections. */
export type ElectionList = {
  /** The elections, by name. */
  elections: Array<ElectionState>;
  /** Cursor of the next page; left out on the last page. */
  next_cursor?: string;
};

/** An election as everyone may see it. */
export type ElectionState = {
  /** The candidate that leads. Left out while the election is vacant. */
  leader?: string;
  /** The election. */
  name: string;
  /** The answers of the nodes, counted. */
  nodes: Nodes;
  /** Time until the leader's lease expires unless extended, in milliseconds. */
  remaining_ms?: number;
  /** Opaque; changes with the leader, the term, the value and vacancy. For use as `after`. */
  revision: string;
  /** Strictly greater than the term of every earlier leader. */
  term?: number;
  /** What the leader proclaims. */
  value?: string;
  /** Candidates that wait at this server. */
  waiters: number;
};

/** Body of `extend`. */
export type Extend = {
  /** The secret of the lease. */
  lease_id: string;
  /** The new remaining time, in milliseconds: at most the server's `max_ttl`. It replaces what remains and is not added to it. Left out: the lease's own ttl. */
  ttl_ms?: number | null;
};

/** Body of `extend`. */
export type ExtendMultilock = {
  /** The secret of the lease. */
  lease_id: string;
  /** The names of the locks: 2 to 64, all different, in any order. */
  names: Array<string>;
  /** The new remaining time, in milliseconds: at most the server's `max_ttl`. It replaces what remains and is not added to it. Left out: the lease's own ttl. */
  ttl_ms?: number | null;
};

/** What became of one lease: `lease` or `problem`. */
export type ExtensionOfMany = {
  /** The lease as it is now. */
  lease?: AnyLease;
  /** Why it was not extended. */
  problem?: ProblemOfMany;
};

/** Where a sequence stands. */
export type Fence = {
  /** The highest token known. Left out if none is known, e.g. after the retention. */
  highest_token?: number;
  /** The sequence. */
  name: string;
};

/** One thing that is wrong with a request. */
export type FieldError = {
  /** What is wrong: a field (`ttl_ms`, `names[1]`, `metadata.team`), `name` for the name in the path, a query parameter, a header, or `body` as a whole. */
  field: string;
  /** Why it is wrong. */
  message: string;
};

/** A holder's lease, as everyone may see it. Which members it has depends on what is held. */
export type Holder = {
  /** Elections: who leads. */
  candidate?: string;
  /** Locks and semaphores: the fencing token. */
  fencing_token?: number;
  /** Locks and semaphores: what the holder attached. */
  metadata?: Record<string, string>;
  /** Locks and semaphores: the holder's label. */
  owner?: string;
  /** Time until the lease expires unless extended, in milliseconds. */
  remaining_ms: number;
  /** Semaphores: the permits held, by number. */
  slots?: Array<number>;
  /** Elections: the fencing token. */
  term?: number;
  /** Elections: what the leader proclaims. */
  value?: string;
};

/** A new token. */
export type IssuedToken = {
  /** Greater than every token of this name before it. */
  fencing_token: number;
  /** The sequence. */
  name: string;
};

/** A node that is to be a member. */
export type JoiningMember = {
  /** The URL of the node. It must be in this server's list; a password need not be said again. */
  url: string;
};

/** What a key may do. */
export type Key = {
  /** Its name in the key file; left out if the server asks for no keys. */
  name?: string;
  /** What the names begin with that it may touch; left out for all names. */
  prefixes?: Array<string>;
  /** What it may do: `read`, `lock`, `admin`. */
  scopes: Array<string>;
};

/** A leader's lease. */
export type Leadership = {
  /** When it was acquired. For display only. */
  acquired_at: string;
  /** How many granting rounds were needed. */
  attempts: number;
  /** Who leads: the candidate of the campaign. */
  candidate: string;
  /** When its validity ends. For display only. */
  expires_at: string;
  /** The term, under the name that it has in other leases. */
  fencing_token: number;
  /** With `max_hold_ms`: no extension reaches further than this. For display only. */
  hold_until?: string;
  /** The secret that extends and releases the lease. Whoever has it is the holder; it is never shown again. */
  lease_id: string;
  /** The election. */
  name: string;
  /** The votes. */
  nodes: Nodes;
  /** The holder's label. */
  owner?: string;
  /** Strictly greater than the term of every earlier leader. */
  term: number;
  /** Life of the lease without extension, in milliseconds. */
  ttl_ms: number;
  /** How long the holder may rely on the lease, in milliseconds from when the answer was written: the remaining time less an allowance for clock drift. */
  validity_ms: number;
  /** What the leader proclaims. */
  value?: string;
  /** How long the caller waited for it, in milliseconds. */
  waited_ms: number;
};

/** A lock's lease. */
export type Lease = {
  /** When it was acquired. For display only. */
  acquired_at: string;
  /** How many granting rounds were needed. */
  attempts: number;
  /** When its validity ends. For display only. */
  expires_at: string;
  /** Greater than the token of every earlier lease of this name; of a shared lease, of every earlier exclusive one. Send it to the resource that the lock protects. */
  fencing_token: number;
  /** With `max_hold_ms`: no extension reaches further than this. For display only. */
  hold_until?: string;
  /** The secret that extends and releases the lease. Whoever has it is the holder; it is never shown again. */
  lease_id: string;
  /** `exclusive`, or `shared`: beside other shared leases of the name. */
  mode: string;
  /** The lock. */
  name: string;
  /** The votes. */
  nodes: Nodes;
  /** The holder's label. */
  owner?: string;
  /** Life of the lease without extension, in milliseconds. */
  ttl_ms: number;
  /** How long the holder may rely on the lease, in milliseconds from when the answer was written: the remaining time less an allowance for clock drift. */
  validity_ms: number;
  /** How long the caller waited for it, in milliseconds. */
  waited_ms: number;
};

/** One lease of many. */
export type LeaseOfMany = {
  /** The secret of the lease. */
  lease_id: string;
  /** The name. A multilock has `names` instead. */
  name?: string | null;
  /** The names of the locks: 2 to 64, all different, in any order. */
  names?: Array<string> | null;
  /** What it is a lease of: `lock`, `multilock`, `semaphore` or `election`. */
  primitive: string;
  /** The new remaining time, in milliseconds: at most the server's `max_ttl`. Left out: the lease's own ttl. A release takes no notice of it. */
  ttl_ms?: number | null;
};

/** The process answers. */
export type Liveness = {
  /** Always `live`. */
  status: string;
};

/** A page of locks. */
export type LockList = {
  /** The locks, by name. */
  locks: Array<LockState>;
  /** Cursor of the next page; left out on the last page. */
  next_cursor?: string;
};

/** A lock as everyone may see it. */
export type LockState = {
  /** When it was acquired. For display only. */
  acquired_at?: string;
  /** The fencing token of an exclusive lease. */
  fencing_token?: number;
  /** Whether a quorum of nodes agrees on one lease. */
  held: boolean;
  /** Of shared leases: who holds them, up to 16 of those that last longest. */
  holders?: Array<Holder>;
  /** Of shared leases: how many there are. */
  holders_total?: number;
  /** What the holder attached. */
  metadata?: Record<string, string>;
  /** Of a lock that is held: `exclusive` or `shared`. */
  mode?: string;
  /** The lock. */
  name: string;
  /** The answers of the nodes, counted. */
  nodes: Nodes;
  /** The holder's label. */
  owner?: string;
  /** Time until the lease expires unless extended, in milliseconds; of shared leases, until the last of them does. */
  remaining_ms?: number;
  /** Opaque; changes with every grant, release and expiry, or of more than 16 shared leases with how many there are. For use as `after`. */
  revision: string;
  /** Requests that wait for this lock at this server, alone or together with other locks. */
  waiters: number;
};

/** What became of each lease. */
export type ManyExtended = {
  /** In the order of the request. */
  results: Array<ExtensionOfMany>;
};

/** Many leases. */
export type ManyLeases = {
  /** The leases, each of them by itself: what becomes of one says nothing of the others. */
  leases: Array<LeaseOfMany>;
};

/** What became of each lease. */
export type ManyReleased = {
  /** In the order of the request. */
  results: Array<ReleaseOfMany>;
};

/** A member. */
export type Member = {
  /** By which address it is reached, without password. Left out if no server has reached it yet. */
  address?: string;
  /** The run id of its Redis process. */
  id: string;
  /** As in `listNodes`; a member that no URL of this server leads to is `down`. */
  state: string;
  /** For a member that does not vote yet: until it does, in milliseconds. */
  votes_in_ms?: number;
};

/** All members. */
export type MemberList = {
  /** The change that is under way. The next one has to wait for its end. */
  changing?: string;
  /** Counts the changes. 0 while the nodes belong to no deployment yet. */
  epoch: number;
  /** The members. A quorum is a majority of them. */
  members: Array<Member>;
};

/** A lease of several locks. */
export type MultilockLease = {
  /** When it was acquired. For display only. */
  acquired_at: string;
  /** How many granting rounds were needed. */
  attempts: number;
  /** When its validity ends. For display only. */
  expires_at: string;
  /** The fencing token of each name: greater than that of every earlier lease of the name. */
  fencing_tokens: Record<string, number>;
  /** With `max_hold_ms`: no extension reaches further than this. For display only. */
  hold_until?: string;
  /** The secret that extends and releases the lease. Whoever has it is the holder; it is never shown again. */
  lease_id: string;
  /** Always `exclusive`. */
  mode: string;
  /** The locks, in the order of the request. */
  names: Array<string>;
  /** The votes. */
  nodes: Nodes;
  /** The holder's label. */
  owner?: string;
  /** Life of the lease without extension, in milliseconds. */
  ttl_ms: number;
  /** How long the holder may rely on the lease, in milliseconds from when the answer was written: the remaining time less an allowance for clock drift. */
  validity_ms: number;
  /** How long the caller waited for it, in milliseconds. */
  waited_ms: number;
};

/** A node as this server sees it. */
export type Node = {
  /** The node's address, without password. */
  address: string;
  /** The node's label in metrics and logs. */
  id: string;
  /** How long the node takes to answer, in milliseconds. */
  latency_ms?: number;
  /** Why the node does not vote. */
  reason?: string;
  /** The version of Redis. */
  redis_version?: string;
  /** `voting`, `quarantined`, `down` (it does not answer, or could grant nothing) or `refused`. */
  state: string;
  /** For a quarantined node: time until it votes again, in milliseconds. */
  voting_in_ms?: number;
};

/** All nodes. */
export type NodeList = {
  /** Whether a quorum of nodes votes. */
  available: boolean;
  /** The nodes, in the order of the configuration. */
  nodes: Array<Node>;
  /** How many make a quorum. */
  quorum: number;
};

/** The answers of the nodes, counted. */
export type Nodes = {
  /** Nodes that abstained or did not answer. */
  failed: number;
  /** Nodes that granted, extended or released the lease. A lease is asked of a quorum first, and the answer does not wait for more: so 2 of 3 is the usual sight, and as good as 3. */
  granted: number;
  /** Nodes that hold another lease; in the answer to a read, nodes that hold a lease. */
  held: number;
  /** How many make a quorum. */
  quorum: number;
  /** Nodes that are configured. */
  total: number;
};

/** Every answer that is not 2xx (RFC 9457). Which of the members after `request_id` are present depends on `code`. */
export type Problem = {
  /** The kind of problem, for programs: `invalid_request`, `unauthenticated`, `forbidden`, `not_found`, `method_not_allowed`, `payload_too_large`, `unsupported_media_type`, `lock_held`, `semaphore_full`, `election_lost`, `lease_lost`, `hold_limit_reached`, `stale_token`, `change_in_progress`, `unsafe_change`, `too_many_waiters`, `quorum_unavailable`, `shutting_down`, `overloaded` or `internal`. */
  code: string;
  /** What happened in this case, for people. */
  detail: string;
  /** `invalid_request`: all errors that can be found at once. */
  errors?: Array<FieldError>;
  /** `stale_token`: the highest token known. */
  highest_token?: number;
  /** `lock_held`, `election_lost`: who holds it. Left out if no single lease has a quorum. */
  holder?: Holder;
  /** `semaphore_full`: who holds the permits. `lock_held`: who holds shared leases, up to 16 of those that last longest. */
  holders?: Array<Holder>;
  /** `lock_held`, where shared leases hold it: how many they are. */
  holders_total?: number;
  /** `lock_held`: the mode of what holds it, `exclusive` or `shared`. */
  mode?: string;
  /** The answers of the nodes, counted. */
  nodes?: Nodes;
  /** The request's `X-Request-Id`, which is also in the server's log. */
  request_id: string;
  /** When to try again, in milliseconds. The header `Retry-After` has the same in whole seconds, rounded up. */
  retry_after_ms?: number;
  /** The HTTP status. */
  status: number;
  /** Short text, the same for every problem of this kind. */
  title: string;
  /** URI reference of this kind of problem. */
  type: string;
};

/** Why one of many leases was not extended or released. */
export type ProblemOfMany = {
  /** As in the answer to a request of its own: `lease_lost`, `hold_limit_reached`, `quorum_unavailable` or `shutting_down`. */
  code: string;
  /** What happened in this case, for people. */
  detail: string;
};

/** Body of `proclaim`. */
export type Proclaim = {
  /** The secret of the leader's lease. */
  lease_id: string;
  /** The value that all observers will see. */
  value: string;
};

/** A quorum of nodes votes. */
export type Readiness = {
  /** The state of the nodes: `granted` counts those that vote. */
  nodes: Nodes;
  /** Always `ready`: a server that is not ready answers 503. */
  status: string;
};

/** Body of `release` and `resign`: one of the two. */
export type Release = {
  /** The secret of the lease. */
  lease_id?: string | null;
  /** In place of `lease_id`: what the request of this id has. Its wait at this server ends, with its place in the queue, and the lease that it got at any server is given back. */
  request_id?: string | null;
};

/** Body of `release`: one of `lease_id` and `request_id`. */
export type ReleaseMultilock = {
  /** The secret of the lease. */
  lease_id?: string | null;
  /** The names of the locks: 2 to 64, all different, in any order. */
  names: Array<string>;
  /** In place of `lease_id`: what the request of this id, for the same names, has. Its wait at this server ends, with its place in the queues, and the lease that it got at any server is given back. */
  request_id?: string | null;
  /** Without effect: so that the body of `extend` is one of `release`, too. */
  ttl_ms?: number | null;
};

/** What became of one lease: `released` or `problem`. */
export type ReleaseOfMany = {
  /** Why that is not known. */
  problem?: ProblemOfMany;
  /** Whether the lease was held until now. */
  released?: boolean;
};

/** Whether something was released by this call. */
export type Released = {
  /** `false` if the lease was not held (any more): releasing twice is no error. */
  released: boolean;
};

/** A lease of one or more permits. */
export type SemaphoreLease = {
  /** When it was acquired. For display only. */
  acquired_at: string;
  /** How many granting rounds were needed. */
  attempts: number;
  /** When its validity ends. For display only. */
  expires_at: string;
  /** Greater than every earlier token of each of its slots. Tokens of other slots are not ordered with it: their holders are concurrent. */
  fencing_token: number;
  /** With `max_hold_ms`: no extension reaches further than this. For display only. */
  hold_until?: string;
  /** The secret that extends and releases the lease. Whoever has it is the holder; it is never shown again. */
  lease_id: string;
  /** The limit that was asked for. */
  limit: number;
  /** The semaphore. */
  name: string;
  /** The votes. */
  nodes: Nodes;
  /** The holder's label. */
  owner?: string;
  /** How many permits the lease has. */
  permits: number;
  /** The permits held: numbers from 0 to limit − 1. */
  slots: Array<number>;
  /** Life of the lease without extension, in milliseconds. */
  ttl_ms: number;
  /** How long the holder may rely on the lease, in milliseconds from when the answer was written: the remaining time less an allowance for clock drift. */
  validity_ms: number;
  /** How long the caller waited for it, in milliseconds. */
  waited_ms: number;
};

/** A page of semaphores. */
export type SemaphoreList = {
  /** Cursor of the next page; left out on the last page. */
  next_cursor?: string;
  /** The semaphores, by name. */
  semaphores: Array<SemaphoreState>;
};

/** A semaphore as everyone may see it. */
export type SemaphoreState = {
  /** Who holds them. */
  holders: Array<Holder>;
  /** How many permits are taken. */
  in_use: number;
  /** The semaphore. */
  name: string;
  /** The answers of the nodes, counted. */
  nodes: Nodes;
  /** Opaque; changes with every grant, release and expiry. For use as `after`. */
  revision: string;
  /** Requests that wait for this semaphore at this server. */
  waiters: number;
};

/** What is known of a token. */
export type TokenState = {
  /** The highest token known. Left out if none is known, e.g. after the retention. */
  highest_token?: number;
  /** The sequence. */
  name: string;
  /** `current`: no later token has been issued. `unknown`: the token is higher than any that is known. */
  status: string;
};

/** One who waits. */
export type Waiter = {
  /** What the request attached. */
  metadata?: Record<string, string>;
  /** For what; left out for a multilock. */
  name?: string;
  /** The locks of a multilock. */
  names?: Array<string>;
  /** The label of the request; in an election, the candidate. */
  owner?: string;
  /** The position in this server's queue; 1 is next. That of a multilock is the last of its positions in the queues of its locks. */
  position: number;
  /** `lock`, `multilock`, `semaphore` or `election`. */
  primitive: string;
  /** How long it waits at most, in milliseconds. */
  wait_ms: number;
  /** How long it has waited, in milliseconds. */
  waited_ms: number;
};

/** A page of those who wait. */
export type WaiterList = {
  /** Cursor of the next page; left out on the last page. */
  next_cursor?: string;
  /** Those who wait, in the order of arrival. */
  waiters: Array<Waiter>;
};
