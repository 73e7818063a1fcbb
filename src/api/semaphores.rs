//! Counting semaphores: `/v1/semaphores`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::extract::{Ask, Call, Context};
use super::fields::{Fields, Source};
use super::leases::{self, AcquireTerms, Acquires, Extend, Labels, Release, Shows};
use super::problem::Problem;
use super::problem_docs::{LeaseProblems, NodeProblems, SemaphoreProblems};
use super::views::{HolderView, LeaseTerms, NodesView, Released, lease_example};
use super::{NamePath, Shared, delivery, streams};
use crate::domain::Name;
use crate::service::semaphores::LIMIT_MAX;
use crate::service::{Held, Lease, Primitive, Target};

/// Permits, asked for by name.
pub struct Permits {
    name: Name,
    limit: u32,
    permits: u32,
}

impl Permits {
    pub(super) fn new(name: Name, limit: u32, permits: u32) -> Self {
        Self { name, limit, permits }
    }
}

/// A semaphore whose lease is extended.
struct Semaphore(Name);

/// A lease of one or more permits.
#[derive(Serialize, ToSchema)]
#[schema(example = json!(lease_example(json!({"name": "mailer", "owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64, "limit": 10, "permits": 2, "slots": [3, 7]}))))]
pub struct SemaphoreLease<'a> {
    /// The semaphore.
    #[schema(example = "mailer")]
    name: &'a str,
    /// Greater than every earlier token of each of its slots. Tokens of other slots are not ordered with it: their holders are concurrent.
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
    fencing_token: u64,
    /// The limit that was asked for.
    #[schema(minimum = 1, maximum = 10_000)]
    limit: u32,
    /// How many permits the lease has.
    #[schema(minimum = 1, maximum = 10_000)]
    permits: u32,
    /// The permits held: numbers from 0 to limit − 1.
    slots: &'a [u32],
    #[serde(flatten)]
    terms: LeaseTerms<'a>,
}

impl<'a> SemaphoreLease<'a> {
    fn new(name: &'a Name, lease: &'a Lease, wall_ms: u64) -> Self {
        let lowest = || lease.slots.iter().max().map_or(1, |slot| slot + 1);
        Self {
            name: name.as_str(),
            fencing_token: lease.handle.token.get(),
            // What the nodes do not tell any more is at least what the slots need.
            limit: lease.note.limit.unwrap_or_else(lowest),
            permits: lease.slots.len() as u32,
            slots: &lease.slots,
            terms: LeaseTerms::new(lease, wall_ms),
        }
    }
}

impl Shows for Permits {
    type View<'a> = SemaphoreLease<'a>;

    fn show<'a>(&'a self, lease: &'a Lease, wall_ms: u64) -> SemaphoreLease<'a> {
        SemaphoreLease::new(&self.name, lease, wall_ms)
    }
}

impl Shows for Semaphore {
    type View<'a> = SemaphoreLease<'a>;

    fn show<'a>(&'a self, lease: &'a Lease, wall_ms: u64) -> SemaphoreLease<'a> {
        SemaphoreLease::new(&self.0, lease, wall_ms)
    }
}

impl Acquires for Permits {
    fn target(&self) -> Target {
        Target::Semaphore { name: self.name.clone(), limit: self.limit, permits: self.permits }
    }
}

/// Body of `acquire` and `hold`.
#[derive(ToSchema)]
#[schema(example = json!({"limit": 10, "permits": 2, "ttl_ms": 30_000, "wait_ms": 5000, "owner": "worker-7"}))]
pub struct AcquireSemaphore {
    /// How many permits the semaphore has. Each request is judged by its own limit, so that a rolling change works. Requests with different limits do not wait for each other.
    #[schema(minimum = 1, maximum = 10_000)]
    limit: u32,
    /// How many permits to acquire, all or nothing; at most `limit`. Left out: 1.
    #[schema(minimum = 1, maximum = 10_000, required = false)]
    permits: u32,
    #[serde(flatten)]
    terms: AcquireTerms,
    #[serde(flatten)]
    labels: Labels,
}

impl Ask for AcquireSemaphore {
    const SOURCE: Source = Source::Body;

    fn read(fields: &mut Fields<'_>, context: &Context<'_>) -> Option<Self> {
        let limit = fields.integer("limit", 1..=LIMIT_MAX.into());
        let limit = fields.require("limit", limit);
        let permits = fields.integer("permits", 1..=LIMIT_MAX.into()).unwrap_or(1);
        if let Some(limit) = limit.filter(|&limit| permits > limit) {
            fields.wrong("permits", format!("must be at most the limit, which is {limit}"));
        }
        let (terms, labels) = (AcquireTerms::read(fields, context), Labels::read(fields));
        Some(Self { limit: limit? as u32, permits: permits as u32, terms, labels })
    }
}

/// A semaphore as everyone may see it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "name": "mailer", "in_use": 2,
    "holders": [{"slots": [3, 7], "owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64, "remaining_ms": 12_345}],
    "waiters": 0, "nodes": {"total": 3, "quorum": 2, "granted": 0, "held": 3, "failed": 0},
}))]
pub struct SemaphoreState {
    /// The semaphore.
    #[schema(value_type = String, example = "mailer")]
    name: String,
    /// How many permits are taken.
    #[schema(minimum = 0)]
    in_use: u32,
    /// Who holds them.
    holders: Vec<HolderView>,
    /// Requests that wait for this semaphore at this server.
    #[schema(minimum = 0)]
    waiters: u64,
    /// The answers of the nodes, counted.
    nodes: NodesView,
}

/// Acquire permits of a semaphore.
///
/// Acquires `permits` of `limit` permits, all or nothing. Never more than `limit` are held. Requests with the same limit that wait at the same server are served in order of arrival, so a request for many permits is not overtaken by requests for few: each gets only permits beyond those that earlier requests want. Permits that are never released but left to expire make a rate limit: at most `limit` grants in any window of `ttl_ms`.
#[utoipa::path(
    post,
    path = "/v1/semaphores/{name}/acquire",
    operation_id = "acquireSemaphore",
    tag = "semaphores",
    params(NamePath),
    request_body = AcquireSemaphore,
    responses((status = 200, description = "Granted, each permit by a quorum of nodes.", body = SemaphoreLease), SemaphoreProblems)
)]
pub(super) async fn acquire_semaphore(
    State(ctx): State<Shared>,
    Call(name, asked): Call<AcquireSemaphore>,
) -> Result<Response, Problem> {
    let AcquireSemaphore { limit, permits, terms, labels } = asked;
    leases::acquire(&ctx, Permits::new(name, limit, permits), labels.into_options(terms)).await
}

/// Extend a lease of permits.
///
/// Sets the remaining time of all its permits to `ttl_ms`; it is not added to what remains.
#[utoipa::path(
    post,
    path = "/v1/semaphores/{name}/extend",
    operation_id = "extendSemaphore",
    tag = "semaphores",
    params(NamePath),
    request_body = Extend,
    responses((status = 200, description = "The lease as it is now.", body = SemaphoreLease), LeaseProblems)
)]
pub(super) async fn extend_semaphore(
    State(ctx): State<Shared>,
    Call(name, asked): Call<Extend>,
) -> Result<Response, Problem> {
    leases::extend(&ctx, Held::Semaphore(name.clone()), Semaphore(name), asked).await
}

/// Release permits.
///
/// Releases all permits of the lease. Idempotent: for a lease that is not held any more the answer is `released: false`.
#[utoipa::path(
    post,
    path = "/v1/semaphores/{name}/release",
    operation_id = "releaseSemaphore",
    tag = "semaphores",
    params(NamePath),
    request_body = Release,
    responses((status = 200, description = "Whether the lease was held until now.", body = Released), NodeProblems)
)]
pub(super) async fn release_semaphore(
    State(ctx): State<Shared>,
    Call(name, asked): Call<Release>,
) -> Result<Response, Problem> {
    leases::release(&ctx, Held::Semaphore(name), asked).await
}

/// Read a semaphore.
///
/// Who holds which permits, as a quorum of nodes stores it.
#[utoipa::path(
    get,
    path = "/v1/semaphores/{name}",
    operation_id = "getSemaphore",
    tag = "semaphores",
    params(NamePath),
    responses((status = 200, description = "The semaphore and its holders.", body = SemaphoreState), NodeProblems)
)]
pub(super) async fn get_semaphore(
    State(ctx): State<Shared>,
    Call(name, ()): Call<()>,
) -> Result<Response, Problem> {
    let view = ctx.service.get_semaphore(&name).await?;
    delivery::json(&SemaphoreState {
        name: name.to_string(),
        in_use: view.in_use,
        holders: view
            .holders
            .into_iter()
            .map(|holder| HolderView::new(Primitive::Semaphore, holder))
            .collect(),
        waiters: view.waiters as u64,
        nodes: view.nodes.into(),
    })
}

/// Hold permits while the connection is open.
///
/// An event stream, as for locks: `waiting` (`{position}`), `acquired` (`SemaphoreLease`) or `denied` (`Problem`, ends the stream), `extended` (`SemaphoreLease`), `lost` (`Problem`, ends the stream), `released` (`{reason}`, ends the stream).
#[utoipa::path(
    post,
    path = "/v1/semaphores/{name}/hold",
    operation_id = "holdSemaphore",
    tag = "semaphores",
    params(NamePath),
    request_body = AcquireSemaphore,
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream",
            example = "id: 1\nevent: acquired\ndata: {\"name\":\"mailer\", …}\n\n: heartbeat\n\nid: 2\nevent: extended\ndata: {\"name\":\"mailer\", …}\n\n"),
        SemaphoreProblems
    ),
    extensions(("x-events" = json!(streams::hold_events_doc("SemaphoreLease"))))
)]
pub(super) async fn hold_semaphore(
    State(ctx): State<Shared>,
    asked: (HeaderMap, Call<AcquireSemaphore>),
) -> Result<Response, Problem> {
    let (headers, Call(name, asked)) = asked;
    let AcquireSemaphore { limit, permits, terms, labels } = asked;
    leases::hold(&ctx, &headers, Permits::new(name, limit, permits), labels.into_options(terms)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Limits;

    #[test]
    fn more_permits_than_the_limit_are_refused() {
        let (limits, headers) = (Limits::default(), HeaderMap::new());
        let read = |body: &'static str| {
            let mut fields = Fields::of_body(body.as_bytes());
            let asked = AcquireSemaphore::read(&mut fields, &Context { limits: &limits, headers: &headers });
            fields.finish(asked).map(|asked| (asked.limit, asked.permits)).map_err(|_| ())
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
