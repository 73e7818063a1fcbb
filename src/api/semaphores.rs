//! Counting semaphores: `/v1/semaphores`.

use axum::response::Response;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::caller::Caller;
use super::changes::{self, ForcePermits, Since};
use super::document::{LeaseProblems, NodeProblems, SemaphoreProblems, StreamProblems};
use super::fields::{Given, optional, within};
use super::heartbeat::Heartbeats;
use super::leases::{self, Extend, Release, lease_answer, lease_example, owned_acquisition};
use super::lists::{self, ListQuery};
use super::problem::Problem;
use super::request::{Answer, Json, Named, Nothing, Query};
use super::state::{Context, Limits};
use super::stream;
use super::views::{HolderView, NodesView, Released, Show};
use crate::domain::Name;
use crate::service::semaphores::LIMIT_MAX;
use crate::service::{AcquireOptions, Held, Lease, Primitive, Resource, Target, View};

lease_answer! {
    /// A lease of one or more permits.
    #[schema(example = json!(lease_example(json!({"name": "mailer", "owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64, "limit": 10, "permits": 2, "slots": [3, 7]}))))]
    pub struct SemaphoreLease {
        /// The semaphore.
        #[schema(value_type = String, example = "mailer")]
        name: Name,
        /// Greater than every earlier token of each of its slots. Tokens of other slots are not ordered with it: their holders are concurrent.
        fencing_token: u64,
        /// The limit that was asked for.
        #[schema(minimum = 1, maximum = 10_000)]
        limit: u32,
        /// How many permits the lease has.
        #[schema(minimum = 1, maximum = 10_000)]
        permits: u32,
        /// The permits held: numbers from 0 to limit − 1.
        slots: Vec<u32>,
    }
}

/// How a lease of permits is shown.
pub(super) fn show(name: Name) -> impl Show<SemaphoreLease> {
    move |lease, wall_ms| {
        let (token, slots) = (lease.handle.token.get(), lease.slots.clone());
        SemaphoreLease::new(name.clone(), token, limit(lease), permits(lease), slots, lease, wall_ms)
    }
}

/// The limit that a lease was asked for with.
pub(super) fn limit(lease: &Lease) -> u32 {
    // What the nodes do not tell any more is at least what the slots need.
    let lowest = || lease.slots.iter().max().map_or(1, |slot| slot + 1);
    lease.note.limit.unwrap_or_else(lowest)
}

/// How many permits a lease has.
pub(super) fn permits(lease: &Lease) -> u32 {
    lease.slots.len() as u32
}

owned_acquisition! {
    /// Body of `acquire` and `hold`.
    #[schema(example = json!({"limit": 10, "permits": 2, "ttl_ms": 30_000, "wait_ms": 5000, "owner": "worker-7"}))]
    pub struct AcquireSemaphore {
        /// How many permits the semaphore has. Each request is judged by its own limit, so that a rolling change works. Requests with different limits do not wait for each other.
        #[serde(default)]
        #[garde(dive, custom(within(1..=LIMIT_MAX.into())))]
        #[schema(value_type = u32, required = true, minimum = 1, maximum = 10_000)]
        limit: Given<u64>,
        /// How many permits to acquire, all or nothing; at most `limit`. Left out: 1.
        #[garde(dive, custom(within(1..=LIMIT_MAX.into())))]
        #[schema(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
        permits: Option<Given<u64>>,
    }
}

impl AcquireSemaphore {
    fn read(mut self, name: Name, limits: &Limits) -> Result<(Target, AcquireOptions), Problem> {
        let limit = std::mem::take(&mut self.limit).take()?;
        let permits = optional(self.permits.take())?.unwrap_or(1);
        if permits > limit {
            let why = format!("must be at most the limit, which is {limit}");
            return Err(Problem::field("permits", why));
        }
        let target = Target::Semaphore { name, limit: limit as u32, permits: permits as u32 };
        Ok((target, self.owned_options(limits)?))
    }
}

fn example() -> serde_json::Value {
    json!({
        "name": "mailer", "in_use": 2,
        "holders": [{"slots": [3, 7], "owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64, "remaining_ms": 12_345}],
        "revision": "9f86d081884c7d659a2feaa0", "waiters": 0,
        "nodes": {"total": 3, "quorum": 2, "granted": 0, "held": 3, "failed": 0},
    })
}

/// A semaphore as everyone may see it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!(example()))]
pub struct SemaphoreState {
    /// The semaphore.
    #[schema(value_type = String, example = "mailer")]
    name: Name,
    /// How many permits are taken.
    in_use: u32,
    /// Who holds them.
    holders: Vec<HolderView>,
    /// Opaque; changes with every grant, release and expiry. For use as `after`.
    revision: String,
    /// Requests that wait for this semaphore at this server.
    waiters: u64,
    /// The answers of the nodes, counted.
    nodes: NodesView,
}

impl SemaphoreState {
    fn new(name: Name, view: View) -> Self {
        let in_use = view.in_use();
        let View { holders, revision, waiters, nodes, .. } = view;
        let holders = HolderView::all(Primitive::Semaphore, holders);
        let (waiters, nodes) = (waiters as u64, nodes.into());
        Self { name, in_use, holders, revision, waiters, nodes }
    }
}

/// A page of semaphores.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"semaphores": [example()], "next_cursor": "6d61696c6572"}))]
pub struct SemaphoreList {
    /// The semaphores, by name.
    semaphores: Vec<SemaphoreState>,
    /// Cursor of the next page; left out on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Acquire permits of a semaphore.
///
/// Acquires `permits` of `limit` permits, all or nothing. Never more than `limit` are held. Requests with the same limit that wait at the same server are served in order of arrival, so a request for many permits is not overtaken by requests for few: each gets only permits beyond those that earlier requests want. Permits that are never released but left to expire make a rate limit: at most `limit` grants in any window of `ttl_ms`.
#[utoipa::path(post, path = "/v1/semaphores/{name}/acquire", request_body = AcquireSemaphore,
    responses((status = 200, description = "Granted, each permit by a quorum of nodes.", body = SemaphoreLease), SemaphoreProblems))]
pub async fn acquire_semaphore(
    app: Context,
    heartbeats: Heartbeats,
    Named(name): Named,
    Json(asked): Json<AcquireSemaphore>,
) -> Result<Response, Problem> {
    let (target, options) = asked.read(name.clone(), &app.limits)?;
    leases::acquire(&app, heartbeats, target, options, show(name)).await
}

/// Extend a lease of permits.
///
/// Sets the remaining time of all its permits to `ttl_ms`; it is not added to what remains.
#[utoipa::path(post, path = "/v1/semaphores/{name}/extend", request_body = Extend,
    responses((status = 200, description = "The lease as it is now.", body = SemaphoreLease), LeaseProblems))]
pub async fn extend_semaphore(
    app: Context,
    Named(name): Named,
    Json(asked): Json<Extend>,
) -> Answer<SemaphoreLease> {
    leases::extend(&app, Held::Semaphore(name.clone()), asked, show(name)).await
}

/// Release permits.
///
/// Releases all permits of the lease. Idempotent: for a lease that is not held any more the answer is `released: false`.
#[utoipa::path(post, path = "/v1/semaphores/{name}/release", request_body = Release,
    responses((status = 200, description = "Whether the lease was held until now.", body = Released), NodeProblems))]
pub async fn release_semaphore(
    app: Context,
    Named(name): Named,
    Json(asked): Json<Release>,
) -> Answer<Released> {
    leases::release(&app, Held::Semaphore(name), asked).await
}

/// Read a semaphore.
///
/// Who holds which permits, as a quorum of nodes stores it. With `after` and `wait_ms` a long poll: answers as soon as the revision differs from `after`, or after `wait_ms`. A grant by another server is seen within about half a second.
#[utoipa::path(get, path = "/v1/semaphores/{name}", params(Since),
    responses((status = 200, description = "The semaphore and its holders.", body = SemaphoreState), NodeProblems))]
pub async fn get_semaphore(
    app: Context,
    heartbeats: Heartbeats,
    Named(name): Named,
    Query(asked): Query<Since>,
) -> Result<Response, Problem> {
    changes::look(&app, heartbeats, Resource::Semaphore, name, asked, SemaphoreState::new).await
}

/// Observe a semaphore.
///
/// An event stream: the current state first, then each change, as `changed` with a `SemaphoreState` as data. The `id` of an event is its revision. A grant by another server is seen within about half a second; a lease that lasted for less may not be seen at all. After 10 s without an event, a comment is sent as a heartbeat.
#[utoipa::path(get, path = "/v1/semaphores/{name}/observe",
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream",
            example = "id: 9f86d081884c7d659a2feaa0\nevent: changed\ndata: {\"name\":\"mailer\",\"in_use\":2, …}\n\n: heartbeat\n\n"),
        StreamProblems
    ),
    extensions(("x-events" = json!(stream::observe_events_doc("SemaphoreState", &["changed"])))))]
pub async fn observe_semaphore(
    app: Context,
    Named(name): Named,
    _: Query<Nothing>,
) -> Result<Response, Problem> {
    changes::observe(&app, Resource::Semaphore, name, |_| "changed", SemaphoreState::new).await
}

/// List the semaphores in use.
///
/// Lists the semaphores of which a quorum of nodes names a holder, as `listLocks` lists locks. A page can be shorter than `limit` where its semaphores have very many holders.
#[utoipa::path(get, path = "/v1/semaphores", params(ListQuery),
    responses((status = 200, description = "A page of semaphores.", body = SemaphoreList), NodeProblems))]
pub async fn list_semaphores(app: Context, Query(asked): Query<ListQuery>) -> Answer<SemaphoreList> {
    let (semaphores, next_cursor) =
        lists::page(&app, Resource::Semaphore, &asked, SemaphoreState::new).await?;
    Ok(Json(SemaphoreList { semaphores, next_cursor }))
}

/// Force the release of permits.
///
/// Takes all permits away from their holders, or with `fencing_token` those of one lease. For operators, when a holder is known to be dead. A holder that is still alive notices only at its next extension; until then only fencing stops its writes. The server logs who did it, and why.
#[utoipa::path(delete, path = "/v1/semaphores/{name}", params(ForcePermits),
    responses((status = 200, description = "Whether anybody held what was to be released.", body = Released), NodeProblems))]
pub async fn force_release_semaphore(
    app: Context,
    caller: Caller,
    Named(name): Named,
    Query(asked): Query<ForcePermits>,
) -> Answer<Released> {
    changes::force(&app, caller, Resource::Semaphore, name, asked.fencing_token, asked.reason).await
}

/// Hold permits while the connection is open.
///
/// An event stream, as for locks: `waiting` (`{position}`), `acquired` (`SemaphoreLease`) or `denied` (`Problem`, ends the stream), `extended` (`SemaphoreLease`), `lost` (`Problem`, ends the stream), `released` (`{reason}`, ends the stream).
#[utoipa::path(post, path = "/v1/semaphores/{name}/hold", request_body = AcquireSemaphore,
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream",
            example = "id: 1\nevent: acquired\ndata: {\"name\":\"mailer\", …}\n\n: heartbeat\n\nid: 2\nevent: extended\ndata: {\"name\":\"mailer\", …}\n\n"),
        SemaphoreProblems
    ),
    extensions(("x-events" = json!(stream::hold_events_doc("SemaphoreLease")))))]
pub async fn hold_semaphore(
    app: Context,
    caller: Caller,
    Named(name): Named,
    Json(asked): Json<AcquireSemaphore>,
) -> Result<Response, Problem> {
    let (target, options) = asked.read(name.clone(), &app.limits)?;
    leases::hold(&app, caller, target, options, show(name)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fields;

    #[test]
    fn more_permits_than_the_limit_are_refused() {
        let limits = Limits::default();
        let read = |body: &str| {
            let asked: AcquireSemaphore = fields::from_json(body.as_bytes()).unwrap();
            fields::check(&asked, &limits).map_err(|_| ())?;
            match asked.read(Name::new("a").unwrap(), &limits) {
                Ok((Target::Semaphore { limit, permits, .. }, _)) => Ok((limit, permits)),
                _ => Err(()),
            }
        };
        assert_eq!(read(r#"{"limit":10}"#), Ok((10, 1)));
        assert_eq!(read(r#"{"limit":10000,"permits":10000}"#), Ok((10_000, 10_000)));
        for bad in [
            "{}",
            r#"{"limit":0}"#,
            r#"{"limit":10001}"#,
            r#"{"limit":2,"permits":3}"#,
            r#"{"limit":2,"permits":0}"#,
        ] {
            assert_eq!(read(bad), Err(()), "{bad}");
        }
    }
}
