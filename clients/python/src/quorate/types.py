"""Bodies and answers of the API. Generated from openapi/quorate-v1.json by tools/generate.py: do not edit."""

from __future__ import annotations

from typing import Any, TypedDict, Union

__all__ = ['NAME', 'VERSION', 'AcquireLock', 'AcquireMultilock', 'AcquireSemaphore', 'AnyLease', 'Campaign', 'CheckToken', 'ElectionList', 'ElectionState', 'Extend', 'ExtendMultilock', 'ExtensionOfMany', 'Fence', 'FieldError', 'Holder', 'IssuedToken', 'JoiningMember', 'Key', 'Leadership', 'Lease', 'LeaseOfMany', 'Liveness', 'LockList', 'LockState', 'ManyExtended', 'ManyLeases', 'ManyReleased', 'Member', 'MemberList', 'MultilockLease', 'Node', 'NodeList', 'Nodes', 'Problem', 'ProblemOfMany', 'Proclaim', 'Readiness', 'Release', 'ReleaseMultilock', 'ReleaseOfMany', 'Released', 'SemaphoreLease', 'SemaphoreList', 'SemaphoreState', 'TokenState', 'Waiter', 'WaiterList']

VERSION = '0.1.0'
"""The version of the document."""
NAME = '^(\\.{0,2}[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*|\\.{3}[A-Za-z0-9._~:@-]*)$'
"""The pattern of a name, which has at most 200 characters."""


class AcquireLock(TypedDict, total=False):
    """Body of `acquire` and `hold`."""

    lock_delay_ms: int
    """
    If the lease expires instead of being released, the name stays taken for this much longer, in
    milliseconds, so that a holder that was paused can notice. Left out: 0.
    """
    max_hold_ms: int
    """
    However often the lease is extended, it ends this long after it was acquired, in milliseconds:
    from `ttl_ms` to 30 days. Left out: there is no such limit.
    """
    metadata: dict[str, str]
    """Flat map of strings, shown with the owner: at most 16 entries and 1024 bytes in all."""
    mode: str
    """
    `exclusive` excludes all other leases of the name. Any number of `shared` ones exclude exclusive
    ones and are excluded by them. Left out: `exclusive`.
    """
    owner: str
    """Free label of the holder, shown to everyone who may read the lock or semaphore."""
    request_id: str
    """
    Makes a retry safe: the same `request_id` gets the same lease and token back while it is held. A
    request that waits and ends without the lease keeps its place in the queue of the server for 10
    s, for the next one with its `request_id`. The header `Idempotency-Key` means the same.
    """
    ttl_ms: int
    """
    Life of the lease without extension, in milliseconds: at most the server's `max_ttl`. Left out:
    30 000, or `max_ttl` where that is shorter.
    """
    wait_ms: int
    """
    How long to wait, in milliseconds: at most the server's `max_wait`. 0 or left out: one attempt.
    """


class _AcquireMultilock(TypedDict):
    names: list[str]
    """The names of the locks: 2 to 64, all different, in any order."""


class AcquireMultilock(_AcquireMultilock, total=False):
    """Body of `acquire`."""

    lock_delay_ms: int
    """
    If the lease expires instead of being released, the name stays taken for this much longer, in
    milliseconds, so that a holder that was paused can notice. Left out: 0.
    """
    max_hold_ms: int
    """
    However often the lease is extended, it ends this long after it was acquired, in milliseconds:
    from `ttl_ms` to 30 days. Left out: there is no such limit.
    """
    metadata: dict[str, str]
    """Flat map of strings, shown with the owner: at most 16 entries and 1024 bytes in all."""
    owner: str
    """Free label of the holder, shown to everyone who may read the lock or semaphore."""
    request_id: str
    """
    Makes a retry safe: the same `request_id` gets the same lease and token back while it is held. A
    request that waits and ends without the lease keeps its place in the queue of the server for 10
    s, for the next one with its `request_id`. The header `Idempotency-Key` means the same.
    """
    ttl_ms: int
    """
    Life of the lease without extension, in milliseconds: at most the server's `max_ttl`. Left out:
    30 000, or `max_ttl` where that is shorter.
    """
    wait_ms: int
    """
    How long to wait, in milliseconds: at most the server's `max_wait`. 0 or left out: one attempt.
    """


class _AcquireSemaphore(TypedDict):
    limit: int
    """
    How many permits the semaphore has. Each request is judged by its own limit, so that a rolling
    change works. Requests with different limits do not wait for each other.
    """


class AcquireSemaphore(_AcquireSemaphore, total=False):
    """Body of `acquire` and `hold`."""

    lock_delay_ms: int
    """
    If the lease expires instead of being released, the name stays taken for this much longer, in
    milliseconds, so that a holder that was paused can notice. Left out: 0.
    """
    max_hold_ms: int
    """
    However often the lease is extended, it ends this long after it was acquired, in milliseconds:
    from `ttl_ms` to 30 days. Left out: there is no such limit.
    """
    metadata: dict[str, str]
    """Flat map of strings, shown with the owner: at most 16 entries and 1024 bytes in all."""
    owner: str
    """Free label of the holder, shown to everyone who may read the lock or semaphore."""
    permits: int
    """How many permits to acquire, all or nothing; at most `limit`. Left out: 1."""
    request_id: str
    """
    Makes a retry safe: the same `request_id` gets the same lease and token back while it is held. A
    request that waits and ends without the lease keeps its place in the queue of the server for 10
    s, for the next one with its `request_id`. The header `Idempotency-Key` means the same.
    """
    ttl_ms: int
    """
    Life of the lease without extension, in milliseconds: at most the server's `max_ttl`. Left out:
    30 000, or `max_ttl` where that is shorter.
    """
    wait_ms: int
    """
    How long to wait, in milliseconds: at most the server's `max_wait`. 0 or left out: one attempt.
    """


class _AnyLease(TypedDict):
    acquired_at: str
    """When it was acquired. For display only."""
    attempts: int
    """How many granting rounds were needed."""
    expires_at: str
    """When its validity ends. For display only."""
    lease_id: str
    """
    The secret that extends and releases the lease. Whoever has it is the holder; it is never shown
    again.
    """
    nodes: Nodes
    """The votes."""
    ttl_ms: int
    """Life of the lease without extension, in milliseconds."""
    validity_ms: int
    """
    How long the holder may rely on the lease, in milliseconds from when the answer was written: the
    remaining time less an allowance for clock drift.
    """
    waited_ms: int
    """How long the caller waited for it, in milliseconds."""


class AnyLease(_AnyLease, total=False):
    """A lease of any primitive, with the members that the answer to an extension by itself has."""

    candidate: str
    """Elections: who leads."""
    fencing_token: int
    """The fencing token. A multilock has `fencing_tokens` instead."""
    fencing_tokens: dict[str, int]
    """The fencing token of each name of a multilock."""
    hold_until: str
    """With `max_hold_ms`: no extension reaches further than this. For display only."""
    limit: int
    """Semaphores: the limit that was asked for."""
    mode: str
    """Locks and multilocks: `exclusive` or `shared`."""
    name: str
    """The name. A multilock has `names` instead."""
    names: list[str]
    """The names of a multilock."""
    owner: str
    """The holder's label."""
    permits: int
    """Semaphores: how many permits the lease has."""
    slots: list[int]
    """Semaphores: the permits held."""
    term: int
    """Elections: the fencing token."""
    value: str
    """Elections: what the leader proclaims."""


class _Campaign(TypedDict):
    candidate: str
    """Who campaigns."""


class Campaign(_Campaign, total=False):
    """Body of `campaign` and `hold`."""

    lock_delay_ms: int
    """
    If the lease expires instead of being released, the name stays taken for this much longer, in
    milliseconds, so that a holder that was paused can notice. Left out: 0.
    """
    max_hold_ms: int
    """
    However often the lease is extended, it ends this long after it was acquired, in milliseconds:
    from `ttl_ms` to 30 days. Left out: there is no such limit.
    """
    request_id: str
    """
    Makes a retry safe: the same `request_id` gets the same lease and token back while it is held. A
    request that waits and ends without the lease keeps its place in the queue of the server for 10
    s, for the next one with its `request_id`. The header `Idempotency-Key` means the same.
    """
    ttl_ms: int
    """
    Life of the lease without extension, in milliseconds: at most the server's `max_ttl`. Left out:
    30 000, or `max_ttl` where that is shorter.
    """
    value: str
    """The value that the leader proclaims from the start, e.g. an address."""
    wait_ms: int
    """
    How long to wait, in milliseconds: at most the server's `max_wait`. 0 or left out: one attempt.
    """


class CheckToken(TypedDict):
    """Body of `check`."""

    fencing_token: int
    """The token of the holder that wants to write."""


class _ElectionList(TypedDict):
    elections: list[ElectionState]
    """The elections, by name."""


class ElectionList(_ElectionList, total=False):
    """A page of elections."""

    next_cursor: str
    """Cursor of the next page; left out on the last page."""


class _ElectionState(TypedDict):
    name: str
    """The election."""
    nodes: Nodes
    """The answers of the nodes, counted."""
    revision: str
    """Opaque; changes with the leader, the term, the value and vacancy. For use as `after`."""
    waiters: int
    """Candidates that wait at this server."""


class ElectionState(_ElectionState, total=False):
    """An election as everyone may see it."""

    leader: str
    """The candidate that leads. Left out while the election is vacant."""
    remaining_ms: int
    """Time until the leader's lease expires unless extended, in milliseconds."""
    term: int
    """Strictly greater than the term of every earlier leader."""
    value: str
    """What the leader proclaims."""


class _Extend(TypedDict):
    lease_id: str
    """The secret of the lease."""


class Extend(_Extend, total=False):
    """Body of `extend`."""

    ttl_ms: int
    """
    The new remaining time, in milliseconds: at most the server's `max_ttl`. It replaces what
    remains and is not added to it. Left out: the lease's own ttl.
    """


class _ExtendMultilock(TypedDict):
    lease_id: str
    """The secret of the lease."""
    names: list[str]
    """The names of the locks: 2 to 64, all different, in any order."""


class ExtendMultilock(_ExtendMultilock, total=False):
    """Body of `extend`."""

    ttl_ms: int
    """
    The new remaining time, in milliseconds: at most the server's `max_ttl`. It replaces what
    remains and is not added to it. Left out: the lease's own ttl.
    """


class ExtensionOfMany(TypedDict, total=False):
    """What became of one lease: `lease` or `problem`."""

    lease: AnyLease
    """The lease as it is now."""
    problem: ProblemOfMany
    """Why it was not extended."""


class _Fence(TypedDict):
    name: str
    """The sequence."""


class Fence(_Fence, total=False):
    """Where a sequence stands."""

    highest_token: int
    """The highest token known. Left out if none is known, e.g. after the retention."""


class FieldError(TypedDict):
    """One thing that is wrong with a request."""

    field: str
    """
    What is wrong: a field (`ttl_ms`, `names[1]`, `metadata.team`), `name` for the name in the path,
    a query parameter, a header, or `body` as a whole.
    """
    message: str
    """Why it is wrong."""


class _Holder(TypedDict):
    remaining_ms: int
    """Time until the lease expires unless extended, in milliseconds."""


class Holder(_Holder, total=False):
    """A holder's lease, as everyone may see it. Which members it has depends on what is held."""

    candidate: str
    """Elections: who leads."""
    fencing_token: int
    """Locks and semaphores: the fencing token."""
    metadata: dict[str, str]
    """Locks and semaphores: what the holder attached."""
    owner: str
    """Locks and semaphores: the holder's label."""
    slots: list[int]
    """Semaphores: the permits held, by number."""
    term: int
    """Elections: the fencing token."""
    value: str
    """Elections: what the leader proclaims."""


class IssuedToken(TypedDict):
    """A new token."""

    fencing_token: int
    """Greater than every token of this name before it."""
    name: str
    """The sequence."""


class JoiningMember(TypedDict):
    """A node that is to be a member."""

    url: str
    """The URL of the node. It must be in this server's list; a password need not be said again."""


class _Key(TypedDict):
    scopes: list[str]
    """What it may do: `read`, `lock`, `admin`."""


class Key(_Key, total=False):
    """What a key may do."""

    name: str
    """Its name in the key file; left out if the server asks for no keys."""
    prefixes: list[str]
    """What the names begin with that it may touch; left out for all names."""


class _Leadership(TypedDict):
    acquired_at: str
    """When it was acquired. For display only."""
    attempts: int
    """How many granting rounds were needed."""
    candidate: str
    """Who leads: the candidate of the campaign."""
    expires_at: str
    """When its validity ends. For display only."""
    fencing_token: int
    """The term, under the name that it has in other leases."""
    lease_id: str
    """
    The secret that extends and releases the lease. Whoever has it is the holder; it is never shown
    again.
    """
    name: str
    """The election."""
    nodes: Nodes
    """The votes."""
    term: int
    """Strictly greater than the term of every earlier leader."""
    ttl_ms: int
    """Life of the lease without extension, in milliseconds."""
    validity_ms: int
    """
    How long the holder may rely on the lease, in milliseconds from when the answer was written: the
    remaining time less an allowance for clock drift.
    """
    waited_ms: int
    """How long the caller waited for it, in milliseconds."""


class Leadership(_Leadership, total=False):
    """A leader's lease."""

    hold_until: str
    """With `max_hold_ms`: no extension reaches further than this. For display only."""
    owner: str
    """The holder's label."""
    value: str
    """What the leader proclaims."""


class _Lease(TypedDict):
    acquired_at: str
    """When it was acquired. For display only."""
    attempts: int
    """How many granting rounds were needed."""
    expires_at: str
    """When its validity ends. For display only."""
    fencing_token: int
    """
    Greater than the token of every earlier lease of this name; of a shared lease, of every earlier
    exclusive one. Send it to the resource that the lock protects.
    """
    lease_id: str
    """
    The secret that extends and releases the lease. Whoever has it is the holder; it is never shown
    again.
    """
    mode: str
    """`exclusive`, or `shared`: beside other shared leases of the name."""
    name: str
    """The lock."""
    nodes: Nodes
    """The votes."""
    ttl_ms: int
    """Life of the lease without extension, in milliseconds."""
    validity_ms: int
    """
    How long the holder may rely on the lease, in milliseconds from when the answer was written: the
    remaining time less an allowance for clock drift.
    """
    waited_ms: int
    """How long the caller waited for it, in milliseconds."""


class Lease(_Lease, total=False):
    """A lock's lease."""

    hold_until: str
    """With `max_hold_ms`: no extension reaches further than this. For display only."""
    owner: str
    """The holder's label."""


class _LeaseOfMany(TypedDict):
    lease_id: str
    """The secret of the lease."""
    primitive: str
    """What it is a lease of: `lock`, `multilock`, `semaphore` or `election`."""


class LeaseOfMany(_LeaseOfMany, total=False):
    """One lease of many."""

    name: str
    """The name. A multilock has `names` instead."""
    names: list[str]
    """The names of the locks: 2 to 64, all different, in any order."""
    ttl_ms: int
    """
    The new remaining time, in milliseconds: at most the server's `max_ttl`. Left out: the lease's
    own ttl. A release takes no notice of it.
    """


class Liveness(TypedDict):
    """The process answers."""

    status: str
    """Always `live`."""


class _LockList(TypedDict):
    locks: list[LockState]
    """The locks, by name."""


class LockList(_LockList, total=False):
    """A page of locks."""

    next_cursor: str
    """Cursor of the next page; left out on the last page."""


class _LockState(TypedDict):
    held: bool
    """Whether a quorum of nodes agrees on one lease."""
    name: str
    """The lock."""
    nodes: Nodes
    """The answers of the nodes, counted."""
    revision: str
    """
    Opaque; changes with every grant, release and expiry, or of more than 16 shared leases with how
    many there are. For use as `after`.
    """
    waiters: int
    """Requests that wait for this lock at this server, alone or together with other locks."""


class LockState(_LockState, total=False):
    """A lock as everyone may see it."""

    acquired_at: str
    """When it was acquired. For display only."""
    fencing_token: int
    """The fencing token of an exclusive lease."""
    holders: list[Holder]
    """Of shared leases: who holds them, up to 16 of those that last longest."""
    holders_total: int
    """Of shared leases: how many there are."""
    metadata: dict[str, str]
    """What the holder attached."""
    mode: str
    """Of a lock that is held: `exclusive` or `shared`."""
    owner: str
    """The holder's label."""
    remaining_ms: int
    """
    Time until the lease expires unless extended, in milliseconds; of shared leases, until the last
    of them does.
    """


class ManyExtended(TypedDict):
    """What became of each lease."""

    results: list[ExtensionOfMany]
    """In the order of the request."""


class ManyLeases(TypedDict):
    """Many leases."""

    leases: list[LeaseOfMany]
    """The leases, each of them by itself: what becomes of one says nothing of the others."""


class ManyReleased(TypedDict):
    """What became of each lease."""

    results: list[ReleaseOfMany]
    """In the order of the request."""


class _Member(TypedDict):
    id: str
    """The run id of its Redis process."""
    state: str
    """As in `listNodes`; a member that no URL of this server leads to is `down`."""


class Member(_Member, total=False):
    """A member."""

    address: str
    """
    By which address it is reached, without password. Left out if no server has reached it yet.
    """
    votes_in_ms: int
    """For a member that does not vote yet: until it does, in milliseconds."""


class _MemberList(TypedDict):
    epoch: int
    """Counts the changes. 0 while the nodes belong to no deployment yet."""
    members: list[Member]
    """The members. A quorum is a majority of them."""


class MemberList(_MemberList, total=False):
    """All members."""

    changing: str
    """The change that is under way. The next one has to wait for its end."""


class _MultilockLease(TypedDict):
    acquired_at: str
    """When it was acquired. For display only."""
    attempts: int
    """How many granting rounds were needed."""
    expires_at: str
    """When its validity ends. For display only."""
    fencing_tokens: dict[str, int]
    """The fencing token of each name: greater than that of every earlier lease of the name."""
    lease_id: str
    """
    The secret that extends and releases the lease. Whoever has it is the holder; it is never shown
    again.
    """
    mode: str
    """Always `exclusive`."""
    names: list[str]
    """The locks, in the order of the request."""
    nodes: Nodes
    """The votes."""
    ttl_ms: int
    """Life of the lease without extension, in milliseconds."""
    validity_ms: int
    """
    How long the holder may rely on the lease, in milliseconds from when the answer was written: the
    remaining time less an allowance for clock drift.
    """
    waited_ms: int
    """How long the caller waited for it, in milliseconds."""


class MultilockLease(_MultilockLease, total=False):
    """A lease of several locks."""

    hold_until: str
    """With `max_hold_ms`: no extension reaches further than this. For display only."""
    owner: str
    """The holder's label."""


class _Node(TypedDict):
    address: str
    """The node's address, without password."""
    id: str
    """The node's label in metrics and logs."""
    state: str
    """
    `voting`, `quarantined`, `down` (it does not answer, or could grant nothing) or `refused`.
    """


class Node(_Node, total=False):
    """A node as this server sees it."""

    latency_ms: float
    """How long the node takes to answer, in milliseconds."""
    reason: str
    """Why the node does not vote."""
    redis_version: str
    """The version of Redis."""
    voting_in_ms: int
    """For a quarantined node: time until it votes again, in milliseconds."""


class NodeList(TypedDict):
    """All nodes."""

    available: bool
    """Whether a quorum of nodes votes."""
    nodes: list[Node]
    """The nodes, in the order of the configuration."""
    quorum: int
    """How many make a quorum."""


class Nodes(TypedDict):
    """The answers of the nodes, counted."""

    failed: int
    """Nodes that abstained or did not answer."""
    granted: int
    """
    Nodes that granted, extended or released the lease. A lease is asked of a quorum first, and the
    answer does not wait for more: so 2 of 3 is the usual sight, and as good as 3.
    """
    held: int
    """Nodes that hold another lease; in the answer to a read, nodes that hold a lease."""
    quorum: int
    """How many make a quorum."""
    total: int
    """Nodes that are configured."""


class _Problem(TypedDict):
    code: str
    """
    The kind of problem, for programs: `invalid_request`, `unauthenticated`, `forbidden`,
    `not_found`, `method_not_allowed`, `payload_too_large`, `unsupported_media_type`, `lock_held`,
    `semaphore_full`, `election_lost`, `lease_lost`, `hold_limit_reached`, `stale_token`,
    `change_in_progress`, `unsafe_change`, `too_many_waiters`, `quorum_unavailable`,
    `shutting_down`, `overloaded` or `internal`.
    """
    detail: str
    """What happened in this case, for people."""
    request_id: str
    """The request's `X-Request-Id`, which is also in the server's log."""
    status: int
    """The HTTP status."""
    title: str
    """Short text, the same for every problem of this kind."""
    type: str
    """URI reference of this kind of problem."""


class Problem(_Problem, total=False):
    """
    Every answer that is not 2xx (RFC 9457). Which of the members after `request_id` are present
    depends on `code`.
    """

    errors: list[FieldError]
    """`invalid_request`: all errors that can be found at once."""
    highest_token: int
    """`stale_token`: the highest token known."""
    holder: Holder
    """`lock_held`, `election_lost`: who holds it. Left out if no single lease has a quorum."""
    holders: list[Holder]
    """
    `semaphore_full`: who holds the permits. `lock_held`: who holds shared leases, up to 16 of those
    that last longest.
    """
    holders_total: int
    """`lock_held`, where shared leases hold it: how many they are."""
    mode: str
    """`lock_held`: the mode of what holds it, `exclusive` or `shared`."""
    nodes: Nodes
    """The answers of the nodes, counted."""
    retry_after_ms: int
    """
    When to try again, in milliseconds. The header `Retry-After` has the same in whole seconds,
    rounded up.
    """


class ProblemOfMany(TypedDict):
    """Why one of many leases was not extended or released."""

    code: str
    """
    As in the answer to a request of its own: `lease_lost`, `hold_limit_reached`,
    `quorum_unavailable` or `shutting_down`.
    """
    detail: str
    """What happened in this case, for people."""


class Proclaim(TypedDict):
    """Body of `proclaim`."""

    lease_id: str
    """The secret of the leader's lease."""
    value: str
    """The value that all observers will see."""


class Readiness(TypedDict):
    """A quorum of nodes votes."""

    nodes: Nodes
    """The state of the nodes: `granted` counts those that vote."""
    status: str
    """Always `ready`: a server that is not ready answers 503."""


class Release(TypedDict, total=False):
    """Body of `release` and `resign`: one of the two."""

    lease_id: str
    """The secret of the lease."""
    request_id: str
    """
    In place of `lease_id`: what the request of this id has. Its wait at this server ends, with its
    place in the queue, and the lease that it got at any server is given back.
    """


class _ReleaseMultilock(TypedDict):
    names: list[str]
    """The names of the locks: 2 to 64, all different, in any order."""


class ReleaseMultilock(_ReleaseMultilock, total=False):
    """Body of `release`: one of `lease_id` and `request_id`."""

    lease_id: str
    """The secret of the lease."""
    request_id: str
    """
    In place of `lease_id`: what the request of this id, for the same names, has. Its wait at this
    server ends, with its place in the queues, and the lease that it got at any server is given
    back.
    """
    ttl_ms: int
    """Without effect: so that the body of `extend` is one of `release`, too."""


class ReleaseOfMany(TypedDict, total=False):
    """What became of one lease: `released` or `problem`."""

    problem: ProblemOfMany
    """Why that is not known."""
    released: bool
    """Whether the lease was held until now."""


class Released(TypedDict):
    """Whether something was released by this call."""

    released: bool
    """`false` if the lease was not held (any more): releasing twice is no error."""


class _SemaphoreLease(TypedDict):
    acquired_at: str
    """When it was acquired. For display only."""
    attempts: int
    """How many granting rounds were needed."""
    expires_at: str
    """When its validity ends. For display only."""
    fencing_token: int
    """
    Greater than every earlier token of each of its slots. Tokens of other slots are not ordered
    with it: their holders are concurrent.
    """
    lease_id: str
    """
    The secret that extends and releases the lease. Whoever has it is the holder; it is never shown
    again.
    """
    limit: int
    """The limit that was asked for."""
    name: str
    """The semaphore."""
    nodes: Nodes
    """The votes."""
    permits: int
    """How many permits the lease has."""
    slots: list[int]
    """The permits held: numbers from 0 to limit − 1."""
    ttl_ms: int
    """Life of the lease without extension, in milliseconds."""
    validity_ms: int
    """
    How long the holder may rely on the lease, in milliseconds from when the answer was written: the
    remaining time less an allowance for clock drift.
    """
    waited_ms: int
    """How long the caller waited for it, in milliseconds."""


class SemaphoreLease(_SemaphoreLease, total=False):
    """A lease of one or more permits."""

    hold_until: str
    """With `max_hold_ms`: no extension reaches further than this. For display only."""
    owner: str
    """The holder's label."""


class _SemaphoreList(TypedDict):
    semaphores: list[SemaphoreState]
    """The semaphores, by name."""


class SemaphoreList(_SemaphoreList, total=False):
    """A page of semaphores."""

    next_cursor: str
    """Cursor of the next page; left out on the last page."""


class SemaphoreState(TypedDict):
    """A semaphore as everyone may see it."""

    holders: list[Holder]
    """Who holds them."""
    in_use: int
    """How many permits are taken."""
    name: str
    """The semaphore."""
    nodes: Nodes
    """The answers of the nodes, counted."""
    revision: str
    """Opaque; changes with every grant, release and expiry. For use as `after`."""
    waiters: int
    """Requests that wait for this semaphore at this server."""


class _TokenState(TypedDict):
    name: str
    """The sequence."""
    status: str
    """
    `current`: no later token has been issued. `unknown`: the token is higher than any that is
    known.
    """


class TokenState(_TokenState, total=False):
    """What is known of a token."""

    highest_token: int
    """The highest token known. Left out if none is known, e.g. after the retention."""


class _Waiter(TypedDict):
    position: int
    """
    The position in this server's queue; 1 is next. That of a multilock is the last of its positions
    in the queues of its locks.
    """
    primitive: str
    """`lock`, `multilock`, `semaphore` or `election`."""
    wait_ms: int
    """How long it waits at most, in milliseconds."""
    waited_ms: int
    """How long it has waited, in milliseconds."""


class Waiter(_Waiter, total=False):
    """One who waits."""

    metadata: dict[str, str]
    """What the request attached."""
    name: str
    """For what; left out for a multilock."""
    names: list[str]
    """The locks of a multilock."""
    owner: str
    """The label of the request; in an election, the candidate."""


class _WaiterList(TypedDict):
    waiters: list[Waiter]
    """Those who wait, in the order of arrival."""


class WaiterList(_WaiterList, total=False):
    """A page of those who wait."""

    next_cursor: str
    """Cursor of the next page; left out on the last page."""
