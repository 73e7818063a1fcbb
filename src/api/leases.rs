//! Acquire, extend, release and hold: written once, for locks, multilocks, semaphores and elections.
//!
//! A resource says what is asked for ([`Acquires`]) and what its lease looks like ([`Shows`]); the
//! way there and back is the same.

use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::{Ask, Context};
use super::fields::{Fields, Source};
use super::problem::Problem;
use super::views::Released;
use super::{Limits, Shared, delivery, streams};
use crate::domain::{LeaseHandle, Metadata, Owner, RequestId};
use crate::service::{AcquireOptions, Held, Lease, Note, Target};

/// The shortest ttl, in milliseconds.
pub const TTL_MS_MIN: u64 = 100;
/// The ttl where none is given, unless the server's longest is shorter.
const TTL_MS_DEFAULT: u64 = 30_000;

/// What all acquisitions can say.
#[derive(Debug, ToSchema)]
pub struct AcquireTerms {
    /// Life of the lease without extension, in milliseconds: 100 to the server's `max_ttl` (300 000 unless configured). Left out: 30 000, or `max_ttl` where that is shorter.
    #[schema(value_type = u64, minimum = 100, required = false, example = 30_000)]
    pub ttl_ms: u64,
    /// How long to wait, in milliseconds: 0 to the server's `max_wait` (60 000 unless configured). 0 or left out: one attempt.
    #[schema(value_type = u64, minimum = 0, required = false, example = 5000)]
    pub wait_ms: u64,
    /// Makes a retry safe: the same `request_id` gets the same lease and token back while it is held. The header `Idempotency-Key` means the same.
    #[schema(value_type = Option<String>, min_length = 8, max_length = 128, pattern = "^[A-Za-z0-9._~:@-]+$")]
    pub request_id: Option<RequestId>,
}

impl AcquireTerms {
    /// Reads them; what is wrong is noted and replaced by a default.
    pub fn read(fields: &mut Fields<'_>, context: &Context<'_>) -> Self {
        let Limits { max_ttl_ms, max_wait_ms, .. } = *context.limits;
        Self {
            ttl_ms: fields
                .integer("ttl_ms", TTL_MS_MIN..=max_ttl_ms)
                .unwrap_or(TTL_MS_DEFAULT.min(max_ttl_ms)),
            wait_ms: fields.integer("wait_ms", 0..=max_wait_ms).unwrap_or(0),
            request_id: context.request_id(fields),
        }
    }

    /// With what is stored beside the lease.
    pub fn into_options(self, note: Note) -> AcquireOptions {
        AcquireOptions { ttl_ms: self.ttl_ms, wait_ms: self.wait_ms, note, request: self.request_id }
    }
}

/// What the holder of a lock or of permits may attach.
#[derive(ToSchema)]
pub struct Labels {
    /// Free label of the holder, shown to everyone who may read the lock or semaphore.
    #[schema(value_type = Option<String>, max_length = 128)]
    pub owner: Option<Owner>,
    /// Flat map of strings, shown with the owner: at most 16 entries and 1024 bytes in all.
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    pub metadata: Metadata,
}

impl Labels {
    /// Reads them; what is wrong is noted and left out.
    pub fn read(fields: &mut Fields<'_>) -> Self {
        let owner = fields.text("owner", Owner::new);
        let metadata = fields
            .map("metadata")
            .and_then(|map| Metadata::new(map).map_err(|invalid| fields.wrong("metadata", invalid.0)).ok());
        Self { owner, metadata: metadata.unwrap_or_default() }
    }

    /// What is stored with the lease.
    pub fn into_options(self, terms: AcquireTerms) -> AcquireOptions {
        terms.into_options(Note { owner: self.owner, metadata: self.metadata, ..Note::default() })
    }
}

/// Body of `extend`.
#[derive(ToSchema)]
#[schema(example = json!({"lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000", "ttl_ms": 30_000}))]
pub struct Extend {
    /// The secret of the lease.
    #[schema(value_type = String, min_length = 46, max_length = 46, pattern = "^[0-9a-f]{46}$")]
    pub lease_id: LeaseHandle,
    /// The new remaining time, in milliseconds: 100 to the server's `max_ttl`. It replaces what remains and is not added to it. Left out: the lease's own ttl.
    #[schema(minimum = 100, example = 30_000)]
    pub ttl_ms: Option<u64>,
}

impl Ask for Extend {
    const SOURCE: Source = Source::Body;

    fn read(fields: &mut Fields<'_>, context: &Context<'_>) -> Option<Self> {
        let lease_id = read_lease_id(fields);
        let ttl_ms = fields.integer("ttl_ms", TTL_MS_MIN..=context.limits.max_ttl_ms);
        Some(Self { lease_id: lease_id?, ttl_ms })
    }
}

/// Body of `release` and `resign`.
#[derive(ToSchema)]
#[schema(example = json!({"lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000"}))]
pub struct Release {
    /// The secret of the lease.
    #[schema(value_type = String, min_length = 46, max_length = 46, pattern = "^[0-9a-f]{46}$")]
    pub lease_id: LeaseHandle,
}

impl Ask for Release {
    const SOURCE: Source = Source::Body;

    fn read(fields: &mut Fields<'_>, _: &Context<'_>) -> Option<Self> {
        read_lease_id(fields).map(|lease_id| Self { lease_id })
    }
}

/// The `lease_id` that must be there.
pub fn read_lease_id(fields: &mut Fields<'_>) -> Option<LeaseHandle> {
    let lease_id = fields.text("lease_id", LeaseHandle::parse);
    fields.require("lease_id", lease_id)
}

/// How a lease of a target is shown to its holder.
pub trait Shows: Send + Sync + Unpin + 'static {
    /// The answer.
    type View<'a>: Serialize;

    /// `lease` as it is now; `wall_ms` is what the wall clock shows.
    fn show<'a>(&'a self, lease: &'a Lease, wall_ms: u64) -> Self::View<'a>;
}

/// What an acquisition asks for.
pub trait Acquires: Shows {
    /// What is acquired.
    fn target(&self) -> Target;
}

/// One try or a wait, and the lease.
pub async fn acquire(
    ctx: &Shared,
    what: impl Acquires,
    options: AcquireOptions,
) -> Result<Response, Problem> {
    let granted = ctx.service.acquire(&what.target(), &options).await?;
    delivery::lease(granted, |lease| delivery::to_bytes(&what.show(lease, ctx.wall_ms())))
}

/// A lease bound to the connection. Without waiting, a refusal is the plain 409.
pub async fn hold(
    ctx: &Shared,
    headers: &HeaderMap,
    what: impl Acquires,
    options: AcquireOptions,
) -> Result<Response, Problem> {
    let target = what.target();
    let slot = ctx.streams.open(Some(target.primitive()))?;
    let render = streams::held_events(ctx, headers, what);
    if options.wait_ms > 0 {
        return Ok(streams::held(ctx, slot, ctx.service.hold(target, options), render));
    }
    let granted = ctx.service.acquire(&target, &options).await?;
    Ok(streams::held(ctx, slot, ctx.service.hold_granted(target.held(), granted), render))
}

/// The remaining time set anew.
pub async fn extend(ctx: &Shared, held: Held, shows: impl Shows, asked: Extend) -> Result<Response, Problem> {
    let lease = ctx.service.extend(&held, asked.lease_id, asked.ttl_ms).await?;
    delivery::json(&shows.show(&lease, ctx.wall_ms()))
}

/// Given back.
pub async fn release(ctx: &Shared, held: Held, asked: Release) -> Result<Response, Problem> {
    let released = ctx.service.release(&held, asked.lease_id).await?;
    delivery::json(&Released { released })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::api::problem::Kind;

    fn terms(limits: Limits, body: &str) -> Result<AcquireTerms, Kind> {
        let headers = HeaderMap::new();
        let context = Context { limits: &limits, headers: &headers };
        let mut fields = Fields::of_body(body.as_bytes());
        let terms = AcquireTerms::read(&mut fields, &context);
        fields.finish(Some(terms)).map_err(|problem| problem.kind())
    }

    #[test]
    fn the_default_ttl_is_thirty_seconds_or_the_longest_where_that_is_shorter() {
        assert_eq!(terms(Limits::default(), "").unwrap().ttl_ms, 30_000);
        let short = Limits { max_ttl_ms: 5000, ..Limits::default() };
        assert_eq!(terms(short, "").unwrap().ttl_ms, 5000);
        assert_eq!(terms(short, r#"{"ttl_ms":5001}"#).unwrap_err(), Kind::InvalidRequest);
    }

    #[test]
    fn the_bounds_of_durations_are_inclusive() {
        let read = |body: &str| terms(Limits::default(), body).map(|terms| (terms.ttl_ms, terms.wait_ms));
        assert_eq!(read(r#"{"ttl_ms":100,"wait_ms":0}"#), Ok((100, 0)));
        assert_eq!(read(r#"{"ttl_ms":300000,"wait_ms":60000}"#), Ok((300_000, 60_000)));
        for bad in [r#"{"ttl_ms":99}"#, r#"{"ttl_ms":300001}"#, r#"{"wait_ms":60001}"#, r#"{"wait_ms":-1}"#] {
            assert_eq!(read(bad), Err(Kind::InvalidRequest), "{bad}");
        }
    }

    #[test]
    fn a_lease_id_of_impossible_shape_is_invalid_and_not_repeated() {
        let body = br#"{"lease_id":"hunter2"}"#;
        let mut fields = Fields::of_body(body);
        let lease_id = read_lease_id(&mut fields);
        let problem = fields.finish(lease_id).unwrap_err();
        assert_eq!(problem.kind(), Kind::InvalidRequest);
        assert!(!String::from_utf8(problem.to_json("r")).unwrap().contains("hunter2"));
    }

    #[test]
    fn metadata_beyond_its_bounds_is_refused() {
        let many: BTreeMap<String, String> = (0..17).map(|i| (format!("k{i}"), String::new())).collect();
        let long = BTreeMap::from([("k".to_owned(), "x".repeat(1024))]);
        for map in [many, long] {
            let body = json!({ "metadata": map }).to_string();
            let mut fields = Fields::of_body(body.as_bytes());
            let labels = Labels::read(&mut fields);
            assert_eq!(fields.finish(Some(labels.owner)).unwrap_err().kind(), Kind::InvalidRequest);
        }
    }
}
