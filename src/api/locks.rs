//! Exclusive locks: `/v1/locks`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::auth::Key;
use super::extract::{Ask, Call, Context, Plain};
use super::fields::{Fields, Source};
use super::leases::{self, AcquireTerms, Acquires, Extend, Labels, Release, Shows};
use super::problem::Problem;
use super::problem_docs::{LeaseProblems, LockProblems, NodeProblems};
use super::views::{LeaseTerms, NodesView, Released, Timestamp, lease_example};
use super::{NamePath, Shared, delivery, streams};
use crate::domain::{Invalid, Metadata, Name, Owner};
use crate::service::{AcquireOptions, Held, Inspection, Lease, Target};

/// A lock, asked for by name.
pub struct Lock(pub Name);

/// A lock's lease.
#[derive(Serialize, ToSchema)]
#[schema(as = Lease, example = json!(lease_example(json!({"name": "orders:42", "owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64}))))]
pub struct LockLease<'a> {
    /// The lock.
    #[schema(example = "orders:42")]
    name: &'a str,
    /// Greater than the token of every earlier lease of this name. Send it to the resource that the lock protects.
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
    fencing_token: u64,
    #[serde(flatten)]
    terms: LeaseTerms<'a>,
}

impl Shows for Lock {
    type View<'a> = LockLease<'a>;

    fn show<'a>(&'a self, lease: &'a Lease, wall_ms: u64) -> LockLease<'a> {
        let terms = LeaseTerms::new(lease, wall_ms);
        LockLease { name: self.0.as_str(), fencing_token: lease.handle.token.get(), terms }
    }
}

impl Acquires for Lock {
    fn target(&self) -> Target {
        Target::Lock(self.0.clone())
    }
}

/// Body of `acquire` and `hold`.
#[derive(ToSchema)]
#[schema(example = json!({"ttl_ms": 30_000, "wait_ms": 0, "owner": "worker-7", "metadata": {"job": "invoices"}}))]
pub struct AcquireLock {
    #[serde(flatten)]
    terms: AcquireTerms,
    #[serde(flatten)]
    labels: Labels,
}

impl Ask for AcquireLock {
    const SOURCE: Source = Source::Body;

    fn read(fields: &mut Fields<'_>, context: &Context<'_>) -> Option<Self> {
        Some(Self { terms: AcquireTerms::read(fields, context), labels: Labels::read(fields) })
    }
}

impl AcquireLock {
    fn into_options(self) -> AcquireOptions {
        self.labels.into_options(self.terms)
    }
}

/// A lock as everyone may see it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "name": "orders:42", "held": true, "owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64,
    "remaining_ms": 12_345, "acquired_at": "2026-09-21T14:13:20.000Z", "waiters": 2,
    "nodes": {"total": 3, "quorum": 2, "granted": 0, "held": 3, "failed": 0},
}))]
pub struct LockState {
    /// The lock.
    #[schema(value_type = String, example = "orders:42")]
    name: String,
    /// Whether a quorum of nodes agrees on one lease.
    held: bool,
    /// The holder's label.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    owner: Option<Owner>,
    /// What the holder attached.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    metadata: Metadata,
    /// The lease's fencing token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
    fencing_token: Option<u64>,
    /// Time until the lease expires unless extended, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    remaining_ms: Option<u64>,
    /// When it was acquired. For display only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    acquired_at: Option<Timestamp>,
    /// Requests that wait for this lock at this server, alone or together with other locks.
    #[schema(minimum = 0)]
    waiters: u64,
    /// The answers of the nodes, counted.
    nodes: NodesView,
}

impl LockState {
    fn new(name: Name, inspection: Inspection) -> Self {
        let Inspection { holder, waiters, nodes, .. } = inspection;
        let mut state = Self {
            name: name.to_string(),
            held: false,
            owner: None,
            metadata: Metadata::default(),
            fencing_token: None,
            remaining_ms: None,
            acquired_at: None,
            waiters: waiters as u64,
            nodes: nodes.into(),
        };
        if let Some(holder) = holder {
            state.held = true;
            state.owner = holder.note.owner;
            state.metadata = holder.note.metadata;
            state.fencing_token = Some(holder.token.get());
            state.remaining_ms = Some(holder.remaining_ms);
            state.acquired_at = Some(holder.note.acquired_at_ms).filter(|&ms| ms > 0).map(Timestamp);
        }
        state
    }
}

/// A page of locks.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "locks": [{
        "name": "orders:42", "held": true, "owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64,
        "remaining_ms": 12_345, "acquired_at": "2026-09-21T14:13:20.000Z", "waiters": 2,
        "nodes": {"total": 3, "quorum": 2, "granted": 0, "held": 3, "failed": 0},
    }],
    "next_cursor": "6f72646572733a3432",
}))]
pub struct LockList {
    /// The locks, by name.
    locks: Vec<LockState>,
    /// Cursor of the next page; left out on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Which locks to list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListLocks {
    /// Only names that begin with this.
    #[param(required = false, max_length = 200, pattern = "^[A-Za-z0-9._~:@-]*$", example = "orders:")]
    prefix: String,
    /// How many locks to return at most.
    #[param(value_type = u32, required = false, minimum = 1, maximum = 1000, default = 100, example = 100)]
    limit: usize,
    /// `next_cursor` of the previous page, with the same prefix.
    #[param(value_type = Option<String>, max_length = 400, example = "6f72646572733a3432")]
    cursor: Option<Cursor>,
}

/// The name after which a page begins. Hex, so that nobody builds one by hand and relies on it.
struct Cursor(String);

impl Cursor {
    fn parse(text: &str) -> Result<Self, Invalid> {
        let name = hex::decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        match name {
            Some(name) if !name.is_empty() && Name::is_prefix(&name) => Ok(Self(name)),
            _ => Err(Invalid("is not a next_cursor of this list".into())),
        }
    }

    fn text(after: &str) -> String {
        hex::encode(after)
    }
}

impl Ask for ListLocks {
    const SOURCE: Source = Source::Query;

    fn read(fields: &mut Fields<'_>, _: &Context<'_>) -> Option<Self> {
        let prefix = fields.text("prefix", |text| {
            if Name::is_prefix(text) {
                Ok(text.to_owned())
            } else {
                Err(Invalid("is not the beginning of a name".into()))
            }
        });
        let limit = fields.integer("limit", 1..=1000).unwrap_or(100) as usize;
        let cursor = fields.text("cursor", Cursor::parse);
        Some(Self { prefix: prefix.unwrap_or_default(), limit, cursor })
    }

    fn permit(&self, key: &Key) -> Result<(), Problem> {
        key.permit_listing(&self.prefix)
    }
}

/// Acquire a lock.
///
/// Acquires the lock for `ttl_ms`, waiting up to `wait_ms`. Requests that wait at the same server are served in order of arrival. If the client goes away before the answer, the attempt is undone.
#[utoipa::path(
    post,
    path = "/v1/locks/{name}/acquire",
    operation_id = "acquireLock",
    tag = "locks",
    params(NamePath),
    request_body = AcquireLock,
    responses((status = 200, description = "Granted by a quorum of nodes.", body = LockLease), LockProblems)
)]
pub(super) async fn acquire_lock(
    State(ctx): State<Shared>,
    Call(name, asked): Call<AcquireLock>,
) -> Result<Response, Problem> {
    leases::acquire(&ctx, Lock(name), asked.into_options()).await
}

/// Extend a lock's lease.
///
/// Sets the remaining time to `ttl_ms`; it is not added to what remains. A lost lease stays lost, even if nobody else has taken the lock since.
#[utoipa::path(
    post,
    path = "/v1/locks/{name}/extend",
    operation_id = "extendLock",
    tag = "locks",
    params(NamePath),
    request_body = Extend,
    responses((status = 200, description = "The lease as it is now.", body = LockLease), LeaseProblems)
)]
pub(super) async fn extend_lock(
    State(ctx): State<Shared>,
    Call(name, asked): Call<Extend>,
) -> Result<Response, Problem> {
    leases::extend(&ctx, Held::Lock(name.clone()), Lock(name), asked).await
}

/// Release a lock.
///
/// Idempotent: for a lease that is not held any more the answer is `released: false`.
#[utoipa::path(
    post,
    path = "/v1/locks/{name}/release",
    operation_id = "releaseLock",
    tag = "locks",
    params(NamePath),
    request_body = Release,
    responses((status = 200, description = "Whether the lease was held until now.", body = Released), NodeProblems)
)]
pub(super) async fn release_lock(
    State(ctx): State<Shared>,
    Call(name, asked): Call<Release>,
) -> Result<Response, Problem> {
    leases::release(&ctx, Held::Lock(name), asked).await
}

/// Read a lock.
///
/// Asks a quorum of nodes. The answer may be out of date when it arrives: never use it to decide who may write.
#[utoipa::path(
    get,
    path = "/v1/locks/{name}",
    operation_id = "getLock",
    tag = "locks",
    params(NamePath),
    responses((status = 200, description = "The lock, held or not.", body = LockState), NodeProblems)
)]
pub(super) async fn get_lock(
    State(ctx): State<Shared>,
    Call(name, ()): Call<()>,
) -> Result<Response, Problem> {
    let inspection = ctx.service.get_lock(&name).await?;
    delivery::json(&LockState::new(name, inspection))
}

/// List the locks that are held.
///
/// Lists the locks that a quorum of nodes names. Locks that are taken or released while the pages are read may or may not appear. Left out are locks of which only an unreachable node could tell whether they are held; for these `getLock` answers 503.
#[utoipa::path(
    get,
    path = "/v1/locks",
    operation_id = "listLocks",
    tag = "locks",
    params(ListLocks),
    responses((status = 200, description = "A page of locks.", body = LockList), NodeProblems)
)]
pub(super) async fn list_locks(
    State(ctx): State<Shared>,
    Plain(asked): Plain<ListLocks>,
) -> Result<Response, Problem> {
    let after = asked.cursor.as_ref().map(|cursor| cursor.0.as_str());
    let page = ctx.service.list_locks(&asked.prefix, after, asked.limit).await?;
    delivery::json(&LockList {
        locks: page.locks.into_iter().map(|(name, inspection)| LockState::new(name, inspection)).collect(),
        next_cursor: page.next_after.as_deref().map(Cursor::text),
    })
}

/// Force the release of a lock.
///
/// For operators, when a holder is known to be dead. A holder that is still alive notices only at its next extension; until then only fencing stops its writes.
#[utoipa::path(
    delete,
    path = "/v1/locks/{name}",
    operation_id = "forceReleaseLock",
    tag = "locks",
    params(NamePath),
    responses((status = 200, description = "Whether anybody held the lock.", body = Released), NodeProblems)
)]
pub(super) async fn force_release_lock(
    State(ctx): State<Shared>,
    Call(name, ()): Call<()>,
) -> Result<Response, Problem> {
    let released = ctx.service.force_release_lock(&name).await?;
    delivery::json(&Released { released })
}

/// Hold a lock while the connection is open.
///
/// The answer is an event stream. The server waits, acquires, extends at a third of the ttl, and releases as soon as the client disconnects; `curl -N` is a complete client. Events, each with an `id` and JSON data: `waiting` (`{position}`), then `acquired` (`Lease`) or `denied` (`Problem`, ends the stream); `extended` (`Lease`); `lost` (`Problem`, ends the stream); `released` (`{reason}`, ends the stream: the server drains, or the client does not read). After 10 s without an event, a comment is sent as a heartbeat. With `wait_ms` 0 a refusal is an ordinary 409. A lease that several streams with the same `request_id` have is released with the last of them. One that an earlier `acquire` with the same `request_id` was answered is released only by a stream that has lasted until its own first extension (5 s at most), since whoever got that answer may still use it.
#[utoipa::path(
    post,
    path = "/v1/locks/{name}/hold",
    operation_id = "holdLock",
    tag = "locks",
    params(NamePath),
    request_body = AcquireLock,
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream",
            example = "id: 1\nevent: acquired\ndata: {\"name\":\"orders:42\", …}\n\n: heartbeat\n\nid: 2\nevent: extended\ndata: {\"name\":\"orders:42\", …}\n\n"),
        LockProblems
    ),
    extensions(("x-events" = json!(streams::hold_events_doc("Lease"))))
)]
pub(super) async fn hold_lock(
    State(ctx): State<Shared>,
    asked: (HeaderMap, Call<AcquireLock>),
) -> Result<Response, Problem> {
    let (headers, Call(name, asked)) = asked;
    leases::hold(&ctx, &headers, Lock(name), asked.into_options()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_text_form_and_nothing_else_is_one() {
        assert_eq!(Cursor::parse(&Cursor::text("orders:42")).unwrap().0, "orders:42");
        for bad in ["", "x", "orders:42", "6f7", "ff", "2f", "00"] {
            assert!(Cursor::parse(bad).is_err(), "{bad}");
        }
    }
}
