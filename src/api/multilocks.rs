//! Several locks at once, all or nothing, under one lease: `/v1/multilocks`.

use std::collections::BTreeMap;

use axum::response::Response;
use garde::Validate;
use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Array, ArrayBuilder, ObjectBuilder, Type};

use super::auth;
use super::document::{LeaseProblems, LockProblems, NodeProblems};
use super::fields::{self, Given, within};
use super::heartbeat::Heartbeats;
use super::leases::{
    self, Extend, Release, TTL_MS_MIN, lease_answer, lease_example, one_of_two, owned_acquisition,
};
use super::problem::Problem;
use super::request::{Answer, Asked, Json};
use super::state::{Context, Limits, NAME_PATTERN};
use super::views::{Released, Show};
use crate::access::Key;
use crate::domain::{self, LeaseHandle, Mode, Name};
use crate::service::{Held, NAMES, Target};

lease_answer! {
    /// A lease of several locks.
    #[schema(example = json!(lease_example(json!({
        "names": ["accounts:7", "accounts:9"], "owner": "worker-7", "mode": "exclusive",
        "fencing_tokens": {"accounts:7": 1_790_000_000_000_000_u64, "accounts:9": 1_790_000_000_000_000_u64},
    }))))]
    pub struct MultilockLease {
        /// The locks, in the order of the request.
        #[schema(value_type = Vec<String>)]
        names: Vec<Name>,
        /// The fencing token of each name: greater than that of every earlier lease of the name.
        #[schema(value_type = BTreeMap<String, i64>)]
        fencing_tokens: BTreeMap<String, u64>,
        /// Always `exclusive`.
        #[schema(value_type = String, pattern = "^exclusive$", example = "exclusive")]
        mode: Mode,
    }
}

/// How a lease of several locks is shown.
pub(super) fn show(names: Vec<Name>) -> impl Show<MultilockLease> {
    move |lease, wall_ms| {
        let token = lease.handle.token.get();
        let tokens = names.iter().map(|name| (name.to_string(), token)).collect();
        MultilockLease::new(names.clone(), tokens, lease.note.mode, lease, wall_ms)
    }
}

/// Names as they came.
pub(super) type Names = Vec<Given<Name>>;

/// The items as the name in a path is; the derive macro can describe the array only.
pub(super) fn names_schema() -> Array {
    let name = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(200))
        .pattern(Some(NAME_PATTERN));
    ArrayBuilder::new()
        .items(name)
        .min_items(Some(*NAMES.start()))
        .max_items(Some(*NAMES.end()))
        .unique_items(true)
        .description(Some("The names of the locks: 2 to 64, all different, in any order."))
        .build()
}

/// A rule for garde: as many names as may be, all different.
pub(super) fn distinct(names: &Names, _: &Limits) -> garde::Result {
    if !NAMES.contains(&names.len()) {
        return Err(garde::Error::new(format!("must have {} to {} names", NAMES.start(), NAMES.end())));
    }
    let twice = |(i, name): (usize, &Given<Name>)| {
        let name = name.get()?;
        names[..i].iter().any(|before| before.get() == Some(name)).then(|| name.to_string())
    };
    match names.iter().enumerate().find_map(twice) {
        Some(name) => Err(garde::Error::new(format!("has {name} twice"))),
        None => Ok(()),
    }
}

fn permit_all(names: &Names, key: &Key) -> Result<(), Problem> {
    names.iter().filter_map(Given::get).try_for_each(|name| auth::permit(key, name))
}

owned_acquisition! {
    /// Body of `acquire`.
    #[schema(example = json!({"names": ["accounts:7", "accounts:9"], "ttl_ms": 30_000, "wait_ms": 5000, "owner": "worker-7"}))]
    pub struct AcquireMultilock {
        #[serde(default)]
        #[garde(dive, custom(distinct))]
        #[schema(schema_with = names_schema, required = true)]
        names: Names,
    }
    asked {
        fn permit(&self, key: &Key) -> Result<(), Problem> {
            permit_all(&self.names, key)
        }
    }
}

/// Body of `extend`.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits as limits))]
#[schema(example = json!({"names": ["accounts:7", "accounts:9"], "lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000", "ttl_ms": 30_000}))]
pub struct ExtendMultilock {
    #[serde(default)]
    #[garde(dive, custom(distinct))]
    #[schema(schema_with = names_schema, required = true)]
    names: Names,
    /// The secret of the lease.
    #[serde(default)]
    #[garde(dive)]
    #[schema(value_type = String, required = true, min_length = 46, max_length = 46, pattern = "^[0-9a-f]{46}$")]
    lease_id: Given<LeaseHandle>,
    /// The new remaining time, in milliseconds: at most the server's `max_ttl`. It replaces what remains and is not added to it. Left out: the lease's own ttl.
    #[garde(dive, custom(within(TTL_MS_MIN..=limits.max_ttl_ms)))]
    #[schema(value_type = Option<u64>, minimum = 100, maximum = 300_000, example = 30_000)]
    ttl_ms: Option<Given<u64>>,
}

impl Asked for ExtendMultilock {
    fn permit(&self, key: &Key) -> Result<(), Problem> {
        permit_all(&self.names, key)
    }
}

/// Body of `release`: one of `lease_id` and `request_id`.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits as limits))]
#[schema(example = json!({"names": ["accounts:7", "accounts:9"], "lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000"}))]
pub struct ReleaseMultilock {
    #[serde(default)]
    #[garde(dive, custom(distinct))]
    #[schema(schema_with = names_schema, required = true)]
    names: Names,
    /// The secret of the lease.
    #[garde(dive, custom(one_of_two(self.request_id.is_some())))]
    #[schema(value_type = Option<String>, min_length = 46, max_length = 46, pattern = "^[0-9a-f]{46}$")]
    lease_id: Option<Given<LeaseHandle>>,
    /// In place of `lease_id`: what the request of this id, for the same names, has. Its wait at this server ends, with its place in the queues, and the lease that it got at any server is given back.
    #[garde(dive)]
    #[schema(value_type = Option<String>, min_length = 8, max_length = 128, pattern = "^[A-Za-z0-9._~:@-]+$")]
    request_id: Option<Given<domain::RequestId>>,
    /// Without effect: so that the body of `extend` is one of `release`, too.
    #[garde(dive, custom(within(TTL_MS_MIN..=limits.max_ttl_ms)))]
    #[schema(value_type = Option<u64>, minimum = 100, maximum = 300_000, example = 30_000)]
    ttl_ms: Option<Given<u64>>,
}

impl Asked for ReleaseMultilock {
    fn permit(&self, key: &Key) -> Result<(), Problem> {
        permit_all(&self.names, key)
    }
}

/// Acquire several locks at once.
///
/// All or nothing, under one lease, and without deadlock in any order of names. The members are ordinary locks: they exclude single locks of the same names.
#[utoipa::path(post, path = "/v1/multilocks/acquire", request_body = AcquireMultilock,
    responses((status = 200, description = "All granted, each by a quorum of nodes.", body = MultilockLease), LockProblems))]
pub async fn acquire_multilock(
    app: Context,
    heartbeats: Heartbeats,
    Json(mut asked): Json<AcquireMultilock>,
) -> Result<Response, Problem> {
    let names = fields::all(std::mem::take(&mut asked.names))?;
    let options = asked.owned_options(&app.limits)?;
    leases::acquire(&app, heartbeats, Target::Multilock(names.clone()), options, show(names)).await
}

/// Extend a lease of several locks.
///
/// Sets the remaining time of all locks to `ttl_ms`; it is not added to what remains. If one lock is lost, or a name is given that the lease does not cover, the lease is lost and the other locks are released. A lock whose name is left out keeps its remaining time.
#[utoipa::path(post, path = "/v1/multilocks/extend", request_body = ExtendMultilock,
    responses((status = 200, description = "The lease as it is now.", body = MultilockLease), LeaseProblems))]
pub async fn extend_multilock(
    app: Context,
    Json(ExtendMultilock { names, lease_id, ttl_ms }): Json<ExtendMultilock>,
) -> Answer<MultilockLease> {
    let names = fields::all(names)?;
    leases::extend(&app, Held::Multilock(names.clone()), Extend { lease_id, ttl_ms }, show(names)).await
}

/// Release several locks.
///
/// Idempotent: for a lease that is not held any more the answer is `released: false`. A lock whose name is left out stays held until its ttl ends.
#[utoipa::path(post, path = "/v1/multilocks/release", request_body = ReleaseMultilock,
    responses((status = 200, description = "Whether the lease was held until now.", body = Released), NodeProblems))]
pub async fn release_multilock(
    app: Context,
    Json(ReleaseMultilock { names, lease_id, request_id, .. }): Json<ReleaseMultilock>,
) -> Answer<Released> {
    leases::release(&app, Held::Multilock(fields::all(names)?), Release { lease_id, request_id }).await
}
