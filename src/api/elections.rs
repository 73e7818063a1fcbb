//! Leader election: `/v1/elections`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Ask, Call, Context};
use super::fields::{Fields, Source};
use super::leases::{self, AcquireTerms, Acquires, Extend, Release, Shows};
use super::problem::Problem;
use super::problem_docs::{ElectionProblems, LeaseProblems, NodeProblems, StreamProblems};
use super::views::{LeaseTerms, NodesView, Released, lease_example};
use super::{NamePath, Shared, delivery, streams};
use crate::domain::{Candidate, Invalid, LeaseHandle, Name, Value};
use crate::service::{AcquireOptions, Held, LeaderView, Lease, Note, Target};

/// Revisions are opaque; no real one is longer than this.
const REVISION_LEN_MAX: usize = 256;

/// An election, asked for by name.
pub struct Election(pub Name);

/// A leader's lease.
#[derive(Serialize, ToSchema)]
#[schema(example = json!(lease_example(json!({
    "name": "scheduler", "candidate": "host-2", "value": "10.0.0.2:7000",
    "term": 1_790_000_000_000_000_u64, "fencing_token": 1_790_000_000_000_000_u64,
}))))]
pub struct Leadership<'a> {
    /// The election.
    #[schema(example = "scheduler")]
    name: &'a str,
    /// Who leads: the candidate of the campaign.
    #[schema(example = "host-2")]
    candidate: &'a str,
    /// What the leader proclaims.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "10.0.0.2:7000")]
    value: Option<&'a str>,
    /// Strictly greater than the term of every earlier leader.
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
    term: u64,
    /// The term, under the name that it has in other leases.
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
    fencing_token: u64,
    #[serde(flatten)]
    terms: LeaseTerms<'a>,
}

impl Shows for Election {
    type View<'a> = Leadership<'a>;

    fn show<'a>(&'a self, lease: &'a Lease, wall_ms: u64) -> Leadership<'a> {
        let term = lease.handle.token.get();
        Leadership {
            name: self.0.as_str(),
            candidate: lease.note.candidate.as_ref().map_or("", Candidate::as_str),
            value: lease.note.value.as_ref().map(Value::as_str),
            term,
            fencing_token: term,
            terms: LeaseTerms::new(lease, wall_ms),
        }
    }
}

impl Acquires for Election {
    fn target(&self) -> Target {
        Target::Election(self.0.clone())
    }
}

/// Body of `campaign` and `hold`.
#[derive(ToSchema)]
#[schema(example = json!({"candidate": "host-2", "value": "10.0.0.2:7000", "ttl_ms": 10_000, "wait_ms": 5000}))]
pub struct Campaign {
    /// Who campaigns.
    #[schema(value_type = String, min_length = 1, max_length = 128)]
    candidate: Candidate,
    /// The value that the leader proclaims from the start, e.g. an address.
    #[schema(value_type = Option<String>, max_length = 1024)]
    value: Option<Value>,
    #[serde(flatten)]
    terms: AcquireTerms,
}

impl Ask for Campaign {
    const SOURCE: Source = Source::Body;

    fn read(fields: &mut Fields<'_>, context: &Context<'_>) -> Option<Self> {
        let candidate = fields.text("candidate", Candidate::new);
        let candidate = fields.require("candidate", candidate);
        let value = fields.text("value", Value::new);
        let terms = AcquireTerms::read(fields, context);
        Some(Self { candidate: candidate?, value, terms })
    }
}

impl Campaign {
    fn into_options(self) -> AcquireOptions {
        let note = Note { candidate: Some(self.candidate), value: self.value, ..Note::default() };
        self.terms.into_options(note)
    }
}

/// Body of `proclaim`.
#[derive(ToSchema)]
#[schema(example = json!({"lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000", "value": "10.0.0.2:7001"}))]
pub struct Proclaim {
    /// The secret of the leader's lease.
    #[schema(value_type = String, min_length = 46, max_length = 46, pattern = "^[0-9a-f]{46}$")]
    lease_id: LeaseHandle,
    /// The value that all observers will see.
    #[schema(value_type = String, max_length = 1024)]
    value: Value,
}

impl Ask for Proclaim {
    const SOURCE: Source = Source::Body;

    fn read(fields: &mut Fields<'_>, _: &Context<'_>) -> Option<Self> {
        let lease_id = leases::read_lease_id(fields);
        let value = fields.text("value", Value::new);
        let value = fields.require("value", value);
        Some(Self { lease_id: lease_id?, value: value? })
    }
}

/// An election as everyone may see it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "name": "scheduler", "leader": "host-2", "value": "10.0.0.2:7000", "term": 1_790_000_000_000_000_u64,
    "remaining_ms": 8000, "revision": "65bfeda25e000-0", "waiters": 1,
    "nodes": {"total": 3, "quorum": 2, "granted": 0, "held": 3, "failed": 0},
}))]
pub struct ElectionState {
    /// The election.
    #[schema(value_type = String, example = "scheduler")]
    name: String,
    /// The candidate that leads. Left out while the election is vacant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    leader: Option<Candidate>,
    /// What the leader proclaims.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    value: Option<Value>,
    /// Strictly greater than the term of every earlier leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
    term: Option<u64>,
    /// Time until the leader's lease expires unless extended, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    remaining_ms: Option<u64>,
    /// Opaque; changes with the leader, the term, the value and vacancy. For use as `after`.
    revision: String,
    /// Candidates that wait at this server.
    #[schema(minimum = 0)]
    waiters: u64,
    /// The answers of the nodes, counted.
    nodes: NodesView,
}

impl ElectionState {
    pub(super) fn new(name: &Name, view: LeaderView) -> Self {
        let LeaderView { holder, revision, waiters, nodes } = view;
        let term = holder.as_ref().map(|holder| holder.token.get());
        let remaining_ms = holder.as_ref().map(|holder| holder.remaining_ms);
        let (leader, value) =
            holder.map_or((None, None), |holder| (holder.note.candidate, holder.note.value));
        let (name, waiters, nodes) = (name.to_string(), waiters as u64, nodes.into());
        Self { name, leader, value, term, remaining_ms, revision, waiters, nodes }
    }

    /// Whether nobody leads.
    pub(super) fn is_vacant(&self) -> bool {
        self.term.is_none()
    }

    pub(super) fn revision(&self) -> &str {
        &self.revision
    }
}

/// What to wait for when looking at an election.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct GetLeader {
    /// Answer as soon as the revision differs from this one, or after `wait_ms`. Opaque: any text but the current revision counts as different.
    #[param(max_length = 256, example = "65bfeda25e000-0")]
    after: Option<String>,
    /// How long to wait for a change, in milliseconds: 0 to the server's `max_wait` (60 000 unless configured). Without `after` the answer comes at once, so the first request of a loop may send the same `wait_ms` as the others.
    #[param(required = false, minimum = 0, default = 0, example = 5000)]
    wait_ms: u64,
}

impl Ask for GetLeader {
    const SOURCE: Source = Source::Query;

    fn read(fields: &mut Fields<'_>, context: &Context<'_>) -> Option<Self> {
        let after = fields.text("after", |text| {
            // Opaque: what no server ever gave out differs from every revision, and that is all.
            if text.len() <= REVISION_LEN_MAX {
                Ok(text.to_owned())
            } else {
                Err(Invalid("must be at most 256 bytes long".into()))
            }
        });
        let wait_ms = fields.integer("wait_ms", 0..=context.limits.max_wait_ms).unwrap_or(0);
        Some(Self { after, wait_ms })
    }
}

/// Campaign for leadership.
///
/// Waits up to `wait_ms` until the election is vacant. A leader that stops extending can be replaced after its ttl, one that resigns at once.
#[utoipa::path(
    post,
    path = "/v1/elections/{name}/campaign",
    operation_id = "campaign",
    tag = "elections",
    params(NamePath),
    request_body = Campaign,
    responses((status = 200, description = "Elected by a quorum of nodes.", body = Leadership), ElectionProblems)
)]
pub(super) async fn campaign(
    State(ctx): State<Shared>,
    Call(name, asked): Call<Campaign>,
) -> Result<Response, Problem> {
    leases::acquire(&ctx, Election(name), asked.into_options()).await
}

/// Stay leader.
///
/// Sets the remaining time to `ttl_ms`; it is not added to what remains. A lost leadership stays lost.
#[utoipa::path(
    post,
    path = "/v1/elections/{name}/extend",
    operation_id = "extendElection",
    tag = "elections",
    params(NamePath),
    request_body = Extend,
    responses((status = 200, description = "The leadership as it is now.", body = Leadership), LeaseProblems)
)]
pub(super) async fn extend_election(
    State(ctx): State<Shared>,
    Call(name, asked): Call<Extend>,
) -> Result<Response, Problem> {
    leases::extend(&ctx, Held::Election(name.clone()), Election(name), asked).await
}

/// Resign.
///
/// The next waiting candidate is elected at once. Idempotent: for a leadership that is not held any more the answer is `released: false`.
#[utoipa::path(
    post,
    path = "/v1/elections/{name}/resign",
    operation_id = "resign",
    tag = "elections",
    params(NamePath),
    request_body = Release,
    responses((status = 200, description = "Whether the caller led until now.", body = Released), NodeProblems)
)]
pub(super) async fn resign(
    State(ctx): State<Shared>,
    Call(name, asked): Call<Release>,
) -> Result<Response, Problem> {
    leases::release(&ctx, Held::Election(name), asked).await
}

/// Proclaim a value as leader.
///
/// All observers see it. Neither the term nor the remaining time changes.
#[utoipa::path(
    post,
    path = "/v1/elections/{name}/proclaim",
    operation_id = "proclaim",
    tag = "elections",
    params(NamePath),
    request_body = Proclaim,
    responses((status = 200, description = "The leadership with the new value.", body = Leadership), LeaseProblems)
)]
pub(super) async fn proclaim(
    State(ctx): State<Shared>,
    Call(name, Proclaim { lease_id, value }): Call<Proclaim>,
) -> Result<Response, Problem> {
    let lease = ctx.service.proclaim(&name, lease_id, value).await?;
    delivery::json(&Election(name).show(&lease, ctx.wall_ms()))
}

/// See who leads.
///
/// With `after` and `wait_ms` a long poll: answers as soon as the revision differs from `after`, or after `wait_ms`.
#[utoipa::path(
    get,
    path = "/v1/elections/{name}",
    operation_id = "getLeader",
    tag = "elections",
    params(NamePath, GetLeader),
    responses((status = 200, description = "The election, vacant or not.", body = ElectionState), NodeProblems)
)]
pub(super) async fn get_leader(
    State(ctx): State<Shared>,
    Call(name, asked): Call<GetLeader>,
) -> Result<Response, Problem> {
    let view = ctx.service.get_leader(&name, asked.after.as_deref(), asked.wait_ms).await?;
    delivery::json(&ElectionState::new(&name, view))
}

/// Observe an election.
///
/// An event stream: the current state first, then each change, as `leader` or `vacant` with an `ElectionState` as data; a proclaim is a `leader` event with the new value. The `id` of an event is its revision. After 10 s without an event, a comment is sent as a heartbeat.
#[utoipa::path(
    get,
    path = "/v1/elections/{name}/observe",
    operation_id = "observeElection",
    tag = "elections",
    params(NamePath),
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream",
            example = "id: 65bfeda25e000-0\nevent: leader\ndata: {\"name\":\"scheduler\",\"leader\":\"host-2\", …}\n\n: heartbeat\n\n"),
        StreamProblems
    ),
    extensions(("x-events" = json!(streams::observe_events_doc())))
)]
pub(super) async fn observe_election(
    State(ctx): State<Shared>,
    Call(name, ()): Call<()>,
) -> Result<Response, Problem> {
    let slot = ctx.streams.open(None)?;
    let changes = ctx.service.observe(&name).await?;
    Ok(streams::observed(slot, changes, name))
}

/// Lead while the connection is open.
///
/// An event stream, as for locks: `waiting` (`{position}`), `acquired` (`Leadership`) or `denied` (`Problem`, ends the stream), `extended` (`Leadership`), `lost` (`Problem`, ends the stream), `released` (`{reason}`, ends the stream).
#[utoipa::path(
    post,
    path = "/v1/elections/{name}/hold",
    operation_id = "holdElection",
    tag = "elections",
    params(NamePath),
    request_body = Campaign,
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream",
            example = "id: 1\nevent: waiting\ndata: {\"position\":1}\n\nid: 2\nevent: acquired\ndata: {\"name\":\"scheduler\", …}\n\n"),
        ElectionProblems
    ),
    extensions(("x-events" = json!(streams::hold_events_doc("Leadership"))))
)]
pub(super) async fn hold_election(
    State(ctx): State<Shared>,
    asked: (HeaderMap, Call<Campaign>),
) -> Result<Response, Problem> {
    let (headers, Call(name, asked)) = asked;
    leases::hold(&ctx, &headers, Election(name), asked.into_options()).await
}
