//! Many leases in one request, for a worker that holds hundreds: `/v1/leases`.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Array, Type};

use super::auth;
use super::document::NodeProblems;
use super::fields::{self, Given, within};
use super::leases::{TTL_MS_MIN, lease_answer, lease_example};
use super::multilocks::{Names, distinct, names_schema};
use super::problem::{FieldError, Problem};
use super::request::{Answer, Asked, Json};
use super::semaphores;
use super::state::{Context, Limits};
use crate::access::Key;
use crate::domain::{LeaseHandle, Mode, Name, Value};
use crate::service::{Held, Lease, Primitive};

/// How many leases one request may name.
const LEASES_MAX: usize = 500;

/// How much longer a body may be than that of other requests: 256 KiB in place of 64.
const BODY_FACTOR: usize = 4;

/// One lease of many.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[garde(context(Limits as limits))]
pub struct LeaseOfMany {
    /// What it is a lease of: `lock`, `multilock`, `semaphore` or `election`.
    #[serde(default)]
    #[garde(dive)]
    #[schema(value_type = String, required = true, pattern = "^(lock|multilock|semaphore|election)$")]
    primitive: Given<Primitive>,
    /// The name. A multilock has `names` instead.
    #[garde(dive)]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 200, pattern = "^(\\.{0,2}[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*|\\.{3}[A-Za-z0-9._~:@-]*)$")]
    name: Option<Given<Name>>,
    #[serde(default)]
    #[garde(dive, custom(distinct_if_any))]
    #[schema(schema_with = names_if_any, required = false)]
    names: Option<Names>,
    /// The secret of the lease.
    #[serde(default)]
    #[garde(dive)]
    #[schema(value_type = String, required = true, min_length = 46, max_length = 46, pattern = "^[0-9a-f]{46}$")]
    lease_id: Given<LeaseHandle>,
    /// The new remaining time, in milliseconds: at most the server's `max_ttl`. Left out: the lease's own ttl. A release takes no notice of it.
    #[garde(dive, custom(within(TTL_MS_MIN..=limits.max_ttl_ms)))]
    #[schema(value_type = Option<u64>, minimum = 100, maximum = 300_000, example = 30_000)]
    ttl_ms: Option<Given<u64>>,
}

fn as_many_as_may_be(leases: &[LeaseOfMany], _: &Limits) -> garde::Result {
    match leases.len() {
        1..=LEASES_MAX => Ok(()),
        _ => Err(garde::Error::new(format!("must have 1 to {LEASES_MAX} leases"))),
    }
}

fn names_if_any() -> Array {
    let mut names = names_schema();
    names.schema_type = [Type::Array, Type::Null].into_iter().collect();
    names
}

fn distinct_if_any(names: &Option<Names>, limits: &Limits) -> garde::Result {
    names.as_ref().map_or(Ok(()), |names| distinct(names, limits))
}

/// Many leases.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits))]
#[schema(example = json!({"leases": [
    {"primitive": "lock", "name": "orders:42", "lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000", "ttl_ms": 30_000},
    {"primitive": "semaphore", "name": "mailer", "lease_id": "1d2b3a4950658c7e6f1d2b3a4950658c065bfeda25e001"},
]}))]
pub struct ManyLeases {
    /// The leases, each of them by itself: what becomes of one says nothing of the others.
    #[serde(default)]
    #[garde(dive, custom(as_many_as_may_be))]
    #[schema(required = true, min_items = 1, max_items = 500)]
    leases: Vec<LeaseOfMany>,
}

impl Asked for ManyLeases {
    fn body_bytes_max(limits: &Limits) -> usize {
        limits.body_bytes_max.saturating_mul(BODY_FACTOR)
    }

    fn permit(&self, key: &Key) -> Result<(), Problem> {
        let names =
            self.leases.iter().flat_map(|lease| lease.name.iter().chain(lease.names.iter().flatten()));
        names.filter_map(Given::get).try_for_each(|name| auth::permit(key, name))
    }
}

impl ManyLeases {
    /// Of each lease what it covers, its secret and the ttl, if these fit together in all of them.
    fn read(self) -> Result<Vec<(Held, LeaseHandle, Option<u64>)>, Problem> {
        let mut wrong = Vec::new();
        let mut read = Vec::with_capacity(self.leases.len());
        for (i, lease) in self.leases.into_iter().enumerate() {
            let (name, names) = (fields::optional(lease.name)?, lease.names.map(fields::all).transpose()?);
            let held = match (lease.primitive.take()?, name, names) {
                (Primitive::Multilock, None, Some(names)) => Ok(Held::Multilock(names)),
                (Primitive::Lock, Some(name), None) => Ok(Held::Lock(name)),
                (Primitive::Semaphore, Some(name), None) => Ok(Held::Semaphore(name)),
                (Primitive::Election, Some(name), None) => Ok(Held::Election(name)),
                (Primitive::Multilock, ..) => Err(("names", "are what a multilock has, and no name")),
                _ => Err(("name", "is required, and names are a multilock's")),
            };
            match held {
                Ok(held) => read.push((held, lease.lease_id.take()?, fields::optional(lease.ttl_ms)?)),
                Err((field, why)) => wrong.push(FieldError::new(format!("leases[{i}].{field}"), why)),
            }
        }
        if wrong.is_empty() { Ok(read) } else { Err(Problem::invalid(wrong)) }
    }
}

lease_answer! {
    /// A lease of any primitive, with the members that the answer to an extension by itself has.
    #[schema(example = json!(lease_example(json!({"name": "orders:42", "fencing_token": 1_790_000_000_000_000_u64}))))]
    pub struct AnyLease {
        /// The name. A multilock has `names` instead.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        name: Option<Name>,
        /// The names of a multilock.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schema(value_type = Vec<String>, required = false)]
        names: Vec<Name>,
        /// The fencing token. A multilock has `fencing_tokens` instead.
        #[serde(skip_serializing_if = "Option::is_none")]
        fencing_token: Option<u64>,
        /// The fencing token of each name of a multilock.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        #[schema(value_type = BTreeMap<String, i64>, required = false)]
        fencing_tokens: BTreeMap<String, u64>,
        /// Locks and multilocks: `exclusive` or `shared`.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, pattern = "^(exclusive|shared)$")]
        mode: Option<Mode>,
        /// Semaphores: the limit that was asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(minimum = 1, maximum = 10_000)]
        limit: Option<u32>,
        /// Semaphores: how many permits the lease has.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(minimum = 1, maximum = 10_000)]
        permits: Option<u32>,
        /// Semaphores: the permits held.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schema(required = false)]
        slots: Vec<u32>,
        /// Elections: who leads.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        candidate: Option<String>,
        /// Elections: what the leader proclaims.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        value: Option<Value>,
        /// Elections: the fencing token.
        #[serde(skip_serializing_if = "Option::is_none")]
        term: Option<u64>,
    }
}

fn show(held: Held, lease: &Lease, wall_ms: u64) -> AnyLease {
    let token = lease.handle.token.get();
    let term = matches!(held, Held::Election(_)).then_some(token);
    let mode = matches!(held, Held::Lock(_) | Held::Multilock(_)).then_some(lease.note.mode);
    let permits = matches!(held, Held::Semaphore(_)).then(|| semaphores::permits(lease));
    let limit = permits.map(|_| semaphores::limit(lease));
    let (name, names, tokens) = match held {
        Held::Multilock(names) => {
            let tokens = names.iter().map(|name| (name.to_string(), token)).collect();
            (None, names, tokens)
        }
        Held::Lock(name) | Held::Semaphore(name) | Held::Election(name) => {
            (Some(name), Vec::new(), BTreeMap::new())
        }
    };
    let alone = name.is_some().then_some(token);
    let candidate = lease.note.candidate.as_ref().map(|candidate| candidate.as_str().to_owned());
    let (slots, value) = (lease.slots.clone(), lease.note.value.clone());
    AnyLease::new(
        name, names, alone, tokens, mode, limit, permits, slots, candidate, value, term, lease, wall_ms,
    )
}

/// Why one of many leases was not extended or released.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"code": "lease_lost", "detail": "The lease expired, was released, or its nodes lost it: stop what it protects."}))]
pub struct ProblemOfMany {
    /// As in the answer to a request of its own: `lease_lost`, `hold_limit_reached`, `quorum_unavailable` or `shutting_down`.
    code: &'static str,
    /// What happened in this case, for people.
    detail: String,
}

impl From<Problem> for ProblemOfMany {
    fn from(problem: Problem) -> Self {
        Self { code: problem.kind().code(), detail: problem.detail().to_owned() }
    }
}

/// What became of one lease: `lease` or `problem`.
#[derive(Serialize, ToSchema)]
pub struct ExtensionOfMany {
    /// The lease as it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<AnyLease>,
    /// Why it was not extended.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemOfMany>,
}

/// What became of each lease.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"results": [
    {"lease": lease_example(json!({"name": "orders:42", "fencing_token": 1_790_000_000_000_000_u64}))},
    {"problem": {"code": "lease_lost", "detail": "The lease expired, was released, or its nodes lost it: stop what it protects."}},
]}))]
pub struct ManyExtended {
    /// In the order of the request.
    results: Vec<ExtensionOfMany>,
}

/// What became of one lease: `released` or `problem`.
#[derive(Serialize, ToSchema)]
pub struct ReleaseOfMany {
    /// Whether the lease was held until now.
    #[serde(skip_serializing_if = "Option::is_none")]
    released: Option<bool>,
    /// Why that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemOfMany>,
}

/// What became of each lease.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"results": [{"released": true}, {"released": false}]}))]
pub struct ManyReleased {
    /// In the order of the request.
    results: Vec<ReleaseOfMany>,
}

/// Extend many leases.
///
/// Extends each of 1 to 500 leases as by itself, all at once: the heartbeat of a worker that holds many. The body may have 256 KiB.
#[utoipa::path(post, path = "/v1/leases/extend", request_body = ManyLeases,
    responses((status = 200, description = "What became of each lease, in the order of the request.", body = ManyExtended), NodeProblems))]
pub async fn extend_leases(app: Context, Json(asked): Json<ManyLeases>) -> Answer<ManyExtended> {
    let extensions = asked.read()?.into_iter().map(|(held, handle, ttl_ms)| {
        let app = &app;
        async move {
            match app.service.extend(&held, handle, ttl_ms).await {
                Ok(lease) => {
                    ExtensionOfMany { lease: Some(show(held, &lease, app.service.wall_ms())), problem: None }
                }
                Err(error) => ExtensionOfMany { lease: None, problem: Some(Problem::from(error).into()) },
            }
        }
    });
    Ok(Json(ManyExtended { results: join_all(extensions).await }))
}

/// Release many leases.
///
/// Releases each of 1 to 500 leases as by itself, all at once. The body may have 256 KiB.
#[utoipa::path(post, path = "/v1/leases/release", request_body = ManyLeases,
    responses((status = 200, description = "What became of each lease, in the order of the request.", body = ManyReleased), NodeProblems))]
pub async fn release_leases(app: Context, Json(asked): Json<ManyLeases>) -> Answer<ManyReleased> {
    let releases = asked.read()?.into_iter().map(|(held, handle, _)| {
        let app = &app;
        async move {
            match app.service.release(&held, handle).await {
                Ok(released) => ReleaseOfMany { released: Some(released), problem: None },
                Err(error) => ReleaseOfMany { released: None, problem: Some(Problem::from(error).into()) },
            }
        }
    });
    Ok(Json(ManyReleased { results: join_all(releases).await }))
}
