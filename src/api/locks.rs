//! Locks, exclusive and shared: `/v1/locks`.

use axum::response::Response;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::caller::Caller;
use super::changes::{self, Force, Since};
use super::document::{LeaseProblems, LockProblems, NodeProblems, StreamProblems};
use super::fields::{Given, optional};
use super::heartbeat::Heartbeats;
use super::leases::{self, Extend, Release, lease_answer, lease_example, owned_acquisition};
use super::lists::{self, ListQuery};
use super::problem::Problem;
use super::request::{Answer, Json, Named, Nothing, Query};
use super::state::{Context, Limits};
use super::stream;
use super::views::{HolderView, NodesView, Released, Show, Timestamp};
use crate::domain::{Metadata, Mode, Name, Owner};
use crate::service::{AcquireOptions, Held, Note, Primitive, Resource, Target, View};

lease_answer! {
    /// A lock's lease.
    #[schema(as = Lease, example = json!(lease_example(json!({"name": "orders:42", "owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64, "mode": "exclusive"}))))]
    pub struct LockLease {
        /// The lock.
        #[schema(value_type = String, example = "orders:42")]
        name: Name,
        /// Greater than the token of every earlier lease of this name; of a shared lease, of every earlier exclusive one. Send it to the resource that the lock protects.
        fencing_token: u64,
        /// `exclusive`, or `shared`: beside other shared leases of the name.
        #[schema(value_type = String, pattern = "^(exclusive|shared)$", example = "exclusive")]
        mode: Mode,
    }
}

/// How a lease of the lock is shown.
pub(super) fn show(name: Name) -> impl Show<LockLease> {
    move |lease, wall_ms| {
        LockLease::new(name.clone(), lease.handle.token.get(), lease.note.mode, lease, wall_ms)
    }
}

owned_acquisition! {
    /// Body of `acquire` and `hold`.
    #[schema(example = json!({"ttl_ms": 30_000, "wait_ms": 0, "owner": "worker-7", "metadata": {"job": "invoices"}}))]
    pub struct AcquireLock {
        /// `exclusive` excludes all other leases of the name. Any number of `shared` ones exclude exclusive ones and are excluded by them. Left out: `exclusive`.
        #[garde(dive)]
        #[schema(value_type = Option<String>, pattern = "^(exclusive|shared)$", example = "exclusive")]
        mode: Option<Given<Mode>>,
    }
}

impl AcquireLock {
    fn lock_options(mut self, limits: &Limits) -> Result<AcquireOptions, Problem> {
        let mode = optional(self.mode.take())?.unwrap_or_default();
        let mut options = self.owned_options(limits)?;
        options.note.mode = mode;
        Ok(options)
    }
}

fn example() -> serde_json::Value {
    json!({
        "name": "orders:42", "held": true, "mode": "exclusive", "owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64,
        "remaining_ms": 12_345, "acquired_at": "2026-09-21T14:13:20.000Z", "revision": "65bfeda25e000-0", "waiters": 2,
        "nodes": {"total": 3, "quorum": 2, "granted": 0, "held": 3, "failed": 0},
    })
}

/// A lock as everyone may see it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!(example()))]
pub struct LockState {
    /// The lock.
    #[schema(value_type = String, example = "orders:42")]
    name: Name,
    /// Whether a quorum of nodes agrees on one lease.
    held: bool,
    /// Of a lock that is held: `exclusive` or `shared`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^(exclusive|shared)$")]
    mode: Option<Mode>,
    /// Of shared leases: who holds them, up to 16 of those that last longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<Vec<HolderView>>,
    /// Of shared leases: how many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    holders_total: Option<u32>,
    /// The holder's label.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    owner: Option<Owner>,
    /// What the holder attached.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    metadata: Metadata,
    /// The fencing token of an exclusive lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    /// Time until the lease expires unless extended, in milliseconds; of shared leases, until the last of them does.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_ms: Option<u64>,
    /// When it was acquired. For display only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    acquired_at: Option<Timestamp>,
    /// Opaque; changes with every grant, release and expiry, or of more than 16 shared leases with how many there are. For use as `after`.
    revision: String,
    /// Requests that wait for this lock at this server, alone or together with other locks.
    waiters: u64,
    /// The answers of the nodes, counted.
    nodes: NodesView,
}

impl LockState {
    fn new(name: Name, view: View) -> Self {
        let held = view.is_held();
        let View { mut holders, sharers, revision, waiters, nodes } = view;
        let (holder, shared) = (holders.pop(), sharers.as_ref());
        let lease = holder.as_ref();
        let mode = lease.map(|of| of.note.mode).or(shared.map(|_| Mode::Shared));
        let fencing_token = lease.map(|of| of.token.get());
        let remaining_ms = lease.map(|of| of.remaining_ms).or(shared.map(|of| of.remaining_ms));
        let holders_total = shared.map(|of| of.total);
        let holders = sharers.map(|of| HolderView::all(Primitive::Lock, of.holders));
        let Note { acquired_at_ms, owner, metadata, .. } =
            holder.map(|holder| holder.note).unwrap_or_default();
        let acquired_at = (acquired_at_ms > 0).then_some(Timestamp(acquired_at_ms));
        let (waiters, nodes) = (waiters as u64, nodes.into());
        Self {
            name,
            held,
            mode,
            holders,
            holders_total,
            owner,
            metadata,
            fencing_token,
            remaining_ms,
            acquired_at,
            revision,
            waiters,
            nodes,
        }
    }
}

/// A page of locks.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"locks": [example()], "next_cursor": "6f72646572733a3432"}))]
pub struct LockList {
    /// The locks, by name.
    locks: Vec<LockState>,
    /// Cursor of the next page; left out on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Acquire a lock.
///
/// Acquires the lock for `ttl_ms`, waiting up to `wait_ms`. Requests that wait at the same server are served in order of arrival. If the client goes away before the answer, the attempt is undone.
#[utoipa::path(post, path = "/v1/locks/{name}/acquire", request_body = AcquireLock,
    responses((status = 200, description = "Granted by a quorum of nodes.", body = LockLease), LockProblems))]
pub async fn acquire_lock(
    app: Context,
    heartbeats: Heartbeats,
    Named(name): Named,
    Json(asked): Json<AcquireLock>,
) -> Result<Response, Problem> {
    let options = asked.lock_options(&app.limits)?;
    leases::acquire(&app, heartbeats, Target::Lock(name.clone()), options, show(name)).await
}

/// Extend a lock's lease.
///
/// Sets the remaining time to `ttl_ms`; it is not added to what remains. A lost lease stays lost, even if nobody else has taken the lock since.
#[utoipa::path(post, path = "/v1/locks/{name}/extend", request_body = Extend,
    responses((status = 200, description = "The lease as it is now.", body = LockLease), LeaseProblems))]
pub async fn extend_lock(app: Context, Named(name): Named, Json(asked): Json<Extend>) -> Answer<LockLease> {
    leases::extend(&app, Held::Lock(name.clone()), asked, show(name)).await
}

/// Release a lock.
///
/// Idempotent: for a lease that is not held any more the answer is `released: false`.
#[utoipa::path(post, path = "/v1/locks/{name}/release", request_body = Release,
    responses((status = 200, description = "Whether the lease was held until now.", body = Released), NodeProblems))]
pub async fn release_lock(app: Context, Named(name): Named, Json(asked): Json<Release>) -> Answer<Released> {
    leases::release(&app, Held::Lock(name), asked).await
}

/// Read a lock.
///
/// Asks a quorum of nodes. The answer may be out of date when it arrives: never use it to decide who may write. With `after` and `wait_ms` a long poll: answers as soon as the revision differs from `after`, or after `wait_ms`. A grant by another server is seen within about half a second.
#[utoipa::path(get, path = "/v1/locks/{name}", params(Since),
    responses((status = 200, description = "The lock, held or not.", body = LockState), NodeProblems))]
pub async fn get_lock(
    app: Context,
    heartbeats: Heartbeats,
    Named(name): Named,
    Query(asked): Query<Since>,
) -> Result<Response, Problem> {
    changes::look(&app, heartbeats, Resource::Lock, name, asked, LockState::new).await
}

/// Observe a lock.
///
/// An event stream: the current state first, then each change, as `held` or `free` with a `LockState` as data. The `id` of an event is its revision. A grant by another server is seen within about half a second; a lease that lasted for less may not be seen at all. After 10 s without an event, a comment is sent as a heartbeat.
#[utoipa::path(get, path = "/v1/locks/{name}/observe",
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream",
            example = "id: 65bfeda25e000-0\nevent: held\ndata: {\"name\":\"orders:42\",\"held\":true, …}\n\nid: free\nevent: free\ndata: {\"name\":\"orders:42\",\"held\":false, …}\n\n"),
        StreamProblems
    ),
    extensions(("x-events" = json!(stream::observe_events_doc("LockState", &["held", "free"])))))]
pub async fn observe_lock(app: Context, Named(name): Named, _: Query<Nothing>) -> Result<Response, Problem> {
    let event = |view: &View| if view.is_held() { "held" } else { "free" };
    changes::observe(&app, Resource::Lock, name, event, LockState::new).await
}

/// List the locks that are held.
///
/// Lists the locks that a quorum of nodes names. Locks that are taken or released while the pages are read may or may not appear. Left out are locks of which only an unreachable node could tell whether they are held; for these `getLock` answers 503.
#[utoipa::path(get, path = "/v1/locks", params(ListQuery),
    responses((status = 200, description = "A page of locks.", body = LockList), NodeProblems))]
pub async fn list_locks(app: Context, Query(asked): Query<ListQuery>) -> Answer<LockList> {
    let (locks, next_cursor) = lists::page(&app, Resource::Lock, &asked, LockState::new).await?;
    Ok(Json(LockList { locks, next_cursor }))
}

/// Force the release of a lock.
///
/// For operators, when a holder is known to be dead. A holder that is still alive notices only at its next extension; until then only fencing stops its writes. The server logs who did it, and why.
#[utoipa::path(delete, path = "/v1/locks/{name}", params(Force),
    responses((status = 200, description = "Whether anybody held the lock.", body = Released), NodeProblems))]
pub async fn force_release_lock(
    app: Context,
    caller: Caller,
    Named(name): Named,
    Query(asked): Query<Force>,
) -> Answer<Released> {
    changes::force(&app, caller, Resource::Lock, name, None, asked.reason).await
}

/// Hold a lock while the connection is open.
///
/// The answer is an event stream. The server waits, acquires, extends at a third of the ttl, and releases as soon as the client disconnects; `curl -N` is a complete client. Events, each with an `id` and JSON data: `waiting` (`{position}`), then `acquired` (`Lease`) or `denied` (`Problem`, ends the stream); `extended` (`Lease`); `lost` (`Problem`, ends the stream); `released` (`{reason}`, ends the stream: the server drains, or the client does not read). After a third of the ttl without an event, 1 s at least and 10 s at most, a comment is sent as a heartbeat. A client that vanishes without closing its connection keeps the lease for about twice its ttl. With `wait_ms` 0 a refusal is an ordinary 409. A lease that several streams with the same `request_id` have is released with the last of them. One that an earlier `acquire` with the same `request_id` was answered is released only by a stream that has lasted until its own first extension (5 s at most), since whoever got that answer may still use it.
#[utoipa::path(post, path = "/v1/locks/{name}/hold", request_body = AcquireLock,
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream",
            example = "id: 1\nevent: acquired\ndata: {\"name\":\"orders:42\", …}\n\n: heartbeat\n\nid: 2\nevent: extended\ndata: {\"name\":\"orders:42\", …}\n\n"),
        LockProblems
    ),
    extensions(("x-events" = json!(stream::hold_events_doc("Lease")))))]
pub async fn hold_lock(
    app: Context,
    caller: Caller,
    Named(name): Named,
    Json(asked): Json<AcquireLock>,
) -> Result<Response, Problem> {
    let options = asked.lock_options(&app.limits)?;
    leases::hold(&app, caller, Target::Lock(name.clone()), options, show(name)).await
}
