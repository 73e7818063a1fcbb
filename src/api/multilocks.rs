//! Several locks at once, all or nothing, under one lease: `/v1/multilocks`.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Array, ArrayBuilder, ObjectBuilder, Type};

use super::Shared;
use super::auth::Key;
use super::extract::{Ask, Context, Plain};
use super::fields::{Fields, Source};
use super::leases::{self, AcquireTerms, Acquires, Extend, Labels, Release, Shows};
use super::problem::Problem;
use super::problem_docs::{LeaseProblems, LockProblems, NodeProblems};
use super::views::{LeaseTerms, Released, lease_example};
use crate::domain::{LeaseHandle, Name};
use crate::service::multilocks::{NAMES_MAX, NAMES_MIN};
use crate::service::{Held, Lease, Target};

/// The names of a multilock.
pub struct Multilock(pub Vec<Name>);

/// A lease of several locks.
#[derive(Serialize, ToSchema)]
#[schema(example = json!(lease_example(json!({
    "names": ["accounts:7", "accounts:9"], "owner": "worker-7",
    "fencing_tokens": {"accounts:7": 1_790_000_000_000_000_u64, "accounts:9": 1_790_000_000_000_000_u64},
}))))]
pub struct MultilockLease<'a> {
    /// The locks, in the order of the request.
    #[schema(value_type = Vec<String>)]
    names: Vec<&'a str>,
    /// The fencing token of each name: greater than that of every earlier lease of the name.
    #[schema(value_type = BTreeMap<String, i64>)]
    fencing_tokens: BTreeMap<&'a str, u64>,
    #[serde(flatten)]
    terms: LeaseTerms<'a>,
}

impl Shows for Multilock {
    type View<'a> = MultilockLease<'a>;

    fn show<'a>(&'a self, lease: &'a Lease, wall_ms: u64) -> MultilockLease<'a> {
        let token = lease.handle.token.get();
        MultilockLease {
            names: self.0.iter().map(Name::as_str).collect(),
            fencing_tokens: self.0.iter().map(|name| (name.as_str(), token)).collect(),
            terms: LeaseTerms::new(lease, wall_ms),
        }
    }
}

impl Acquires for Multilock {
    fn target(&self) -> Target {
        Target::Multilock(self.0.clone())
    }
}

fn read_names(fields: &mut Fields<'_>) -> Option<Vec<Name>> {
    let names = fields.names("names", NAMES_MIN..=NAMES_MAX);
    fields.require("names", names)
}

/// The items as the name in a path is; the derive macro can describe the array only.
fn names_schema() -> Array {
    let name = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(200))
        .pattern(Some(r"^(\.{0,2}[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*|\.{3}[A-Za-z0-9._~:@-]*)$"));
    ArrayBuilder::new()
        .items(name)
        .min_items(Some(2))
        .max_items(Some(64))
        .unique_items(true)
        .description(Some("The names of the locks: 2 to 64, all different, in any order."))
        .build()
}

fn permit_all(names: &[Name], key: &Key) -> Result<(), Problem> {
    names.iter().try_for_each(|name| key.permit(name))
}

/// Body of `acquire`.
#[derive(ToSchema)]
#[schema(example = json!({"names": ["accounts:7", "accounts:9"], "ttl_ms": 30_000, "wait_ms": 5000, "owner": "worker-7"}))]
pub struct AcquireMultilock {
    /// The locks: 2 to 64 distinct names, in any order.
    #[schema(schema_with = names_schema)]
    names: Vec<Name>,
    #[serde(flatten)]
    terms: AcquireTerms,
    #[serde(flatten)]
    labels: Labels,
}

impl Ask for AcquireMultilock {
    const SOURCE: Source = Source::Body;

    fn read(fields: &mut Fields<'_>, context: &Context<'_>) -> Option<Self> {
        let names = read_names(fields);
        let (terms, labels) = (AcquireTerms::read(fields, context), Labels::read(fields));
        Some(Self { names: names?, terms, labels })
    }

    fn permit(&self, key: &Key) -> Result<(), Problem> {
        permit_all(&self.names, key)
    }
}

/// Body of `extend`.
#[derive(ToSchema)]
#[schema(example = json!({"names": ["accounts:7", "accounts:9"], "lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000", "ttl_ms": 30_000}))]
pub struct ExtendMultilock {
    /// All names of the lease, in any order.
    #[schema(schema_with = names_schema)]
    names: Vec<Name>,
    #[serde(flatten)]
    extend: Extend,
}

impl Ask for ExtendMultilock {
    const SOURCE: Source = Source::Body;

    fn read(fields: &mut Fields<'_>, context: &Context<'_>) -> Option<Self> {
        let names = read_names(fields);
        let extend = Extend::read(fields, context);
        Some(Self { names: names?, extend: extend? })
    }

    fn permit(&self, key: &Key) -> Result<(), Problem> {
        permit_all(&self.names, key)
    }
}

/// Body of `release`.
#[derive(ToSchema)]
#[schema(example = json!({"names": ["accounts:7", "accounts:9"], "lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000"}))]
pub struct ReleaseMultilock {
    /// All names of the lease, in any order.
    #[schema(schema_with = names_schema)]
    names: Vec<Name>,
    /// The secret of the lease.
    #[schema(value_type = String, min_length = 46, max_length = 46, pattern = "^[0-9a-f]{46}$")]
    lease_id: LeaseHandle,
    /// Without effect: so that the body of `extend` is one of `release`, too.
    #[schema(minimum = 100, example = 30_000)]
    #[expect(dead_code, reason = "its bounds hold all the same")]
    ttl_ms: Option<u64>,
}

impl Ask for ReleaseMultilock {
    const SOURCE: Source = Source::Body;

    fn read(fields: &mut Fields<'_>, context: &Context<'_>) -> Option<Self> {
        let names = read_names(fields);
        let Extend { lease_id, ttl_ms } = Extend::read(fields, context)?;
        Some(Self { names: names?, lease_id, ttl_ms })
    }

    fn permit(&self, key: &Key) -> Result<(), Problem> {
        permit_all(&self.names, key)
    }
}

/// Acquire several locks at once.
///
/// All or nothing, under one lease, and without deadlock in any order of names. The members are ordinary locks: they exclude single locks of the same names.
#[utoipa::path(
    post,
    path = "/v1/multilocks/acquire",
    operation_id = "acquireMultilock",
    tag = "multilocks",
    request_body = AcquireMultilock,
    responses((status = 200, description = "All granted, each by a quorum of nodes.", body = MultilockLease), LockProblems)
)]
pub(super) async fn acquire_multilock(
    State(ctx): State<Shared>,
    Plain(AcquireMultilock { names, terms, labels }): Plain<AcquireMultilock>,
) -> Result<Response, Problem> {
    leases::acquire(&ctx, Multilock(names), labels.into_options(terms)).await
}

/// Extend a lease of several locks.
///
/// Sets the remaining time of all locks to `ttl_ms`; it is not added to what remains. If one lock is lost, or a name is given that the lease does not cover, the lease is lost and the other locks are released. A lock whose name is left out keeps its remaining time.
#[utoipa::path(
    post,
    path = "/v1/multilocks/extend",
    operation_id = "extendMultilock",
    tag = "multilocks",
    request_body = ExtendMultilock,
    responses((status = 200, description = "The lease as it is now.", body = MultilockLease), LeaseProblems)
)]
pub(super) async fn extend_multilock(
    State(ctx): State<Shared>,
    Plain(ExtendMultilock { names, extend }): Plain<ExtendMultilock>,
) -> Result<Response, Problem> {
    leases::extend(&ctx, Held::Multilock(names.clone()), Multilock(names), extend).await
}

/// Release several locks.
///
/// Idempotent: for a lease that is not held any more the answer is `released: false`. A lock whose name is left out stays held until its ttl ends.
#[utoipa::path(
    post,
    path = "/v1/multilocks/release",
    operation_id = "releaseMultilock",
    tag = "multilocks",
    request_body = ReleaseMultilock,
    responses((status = 200, description = "Whether the lease was held until now.", body = Released), NodeProblems)
)]
pub(super) async fn release_multilock(
    State(ctx): State<Shared>,
    Plain(ReleaseMultilock { names, lease_id, .. }): Plain<ReleaseMultilock>,
) -> Result<Response, Problem> {
    leases::release(&ctx, Held::Multilock(names), Release { lease_id }).await
}
