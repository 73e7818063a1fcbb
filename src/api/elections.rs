//! Leader election: `/v1/elections`.

use axum::response::Response;
use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::caller::Caller;
use super::changes::{self, Force, Since};
use super::document::{ElectionProblems, LeaseProblems, NodeProblems, StreamProblems};
use super::fields::{Given, optional};
use super::heartbeat::Heartbeats;
use super::leases::{self, Extend, Release, acquisition, lease_answer, lease_example};
use super::lists::{self, ListQuery};
use super::problem::Problem;
use super::request::{Answer, Asked, Json, Named, Nothing, Query};
use super::state::{Context, Limits};
use super::stream;
use super::views::{NodesView, Released, Show};
use crate::domain::{Candidate, LeaseHandle, Name, Value};
use crate::service::{AcquireOptions, Held, Note, Resource, Target, View};

lease_answer! {
    /// A leader's lease.
    #[schema(example = json!(lease_example(json!({
        "name": "scheduler", "candidate": "host-2", "value": "10.0.0.2:7000",
        "term": 1_790_000_000_000_000_u64, "fencing_token": 1_790_000_000_000_000_u64,
    }))))]
    pub struct Leadership {
        /// The election.
        #[schema(value_type = String, example = "scheduler")]
        name: Name,
        /// Who leads: the candidate of the campaign.
        #[schema(value_type = String, example = "host-2")]
        candidate: String,
        /// What the leader proclaims.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, example = "10.0.0.2:7000")]
        value: Option<Value>,
        /// Strictly greater than the term of every earlier leader.
        term: u64,
        /// The term, under the name that it has in other leases.
        fencing_token: u64,
    }
}

/// How a leader's lease is shown.
pub(super) fn show(name: Name) -> impl Show<Leadership> {
    move |lease, wall_ms| {
        let term = lease.handle.token.get();
        let candidate = lease.note.candidate.as_ref().map_or("", Candidate::as_str).to_owned();
        Leadership::new(name.clone(), candidate, lease.note.value.clone(), term, term, lease, wall_ms)
    }
}

acquisition! {
    /// Body of `campaign` and `hold`.
    #[schema(example = json!({"candidate": "host-2", "value": "10.0.0.2:7000", "ttl_ms": 10_000, "wait_ms": 5000}))]
    pub struct Campaign {
        /// Who campaigns.
        #[serde(default)]
        #[garde(dive)]
        #[schema(value_type = String, required = true, min_length = 1, max_length = 128)]
        candidate: Given<Candidate>,
        /// The value that the leader proclaims from the start, e.g. an address.
        #[garde(dive)]
        #[schema(value_type = Option<String>, max_length = 1024)]
        value: Option<Given<Value>>,
    }
}

impl Campaign {
    fn read(mut self, limits: &Limits) -> Result<AcquireOptions, Problem> {
        let candidate = Some(std::mem::take(&mut self.candidate).take()?);
        let value = optional(self.value.take())?;
        self.options(limits, Note { candidate, value, ..Note::default() })
    }
}

/// Body of `proclaim`.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits))]
#[schema(example = json!({"lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000", "value": "10.0.0.2:7001"}))]
pub struct Proclaim {
    /// The secret of the leader's lease.
    #[serde(default)]
    #[garde(dive)]
    #[schema(value_type = String, required = true, min_length = 46, max_length = 46, pattern = "^[0-9a-f]{46}$")]
    lease_id: Given<LeaseHandle>,
    /// The value that all observers will see.
    #[serde(default)]
    #[garde(dive)]
    #[schema(value_type = String, required = true, max_length = 1024)]
    value: Given<Value>,
}

impl Asked for Proclaim {}

fn example() -> serde_json::Value {
    json!({
        "name": "scheduler", "leader": "host-2", "value": "10.0.0.2:7000", "term": 1_790_000_000_000_000_u64,
        "remaining_ms": 8000, "revision": "65bfeda25e000-0", "waiters": 1,
        "nodes": {"total": 3, "quorum": 2, "granted": 0, "held": 3, "failed": 0},
    })
}

/// An election as everyone may see it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!(example()))]
pub struct ElectionState {
    /// The election.
    #[schema(value_type = String, example = "scheduler")]
    name: Name,
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
    term: Option<u64>,
    /// Time until the leader's lease expires unless extended, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_ms: Option<u64>,
    /// Opaque; changes with the leader, the term, the value and vacancy. For use as `after`.
    revision: String,
    /// Candidates that wait at this server.
    waiters: u64,
    /// The answers of the nodes, counted.
    nodes: NodesView,
}

impl ElectionState {
    fn new(name: Name, view: View) -> Self {
        let View { mut holders, revision, waiters, nodes, .. } = view;
        let holder = holders.pop();
        let term = holder.as_ref().map(|holder| holder.token.get());
        let remaining_ms = holder.as_ref().map(|holder| holder.remaining_ms);
        let (leader, value) =
            holder.map_or((None, None), |holder| (holder.note.candidate, holder.note.value));
        let (waiters, nodes) = (waiters as u64, nodes.into());
        Self { name, leader, value, term, remaining_ms, revision, waiters, nodes }
    }
}

/// A page of elections.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"elections": [example()], "next_cursor": "7363686564756c6572"}))]
pub struct ElectionList {
    /// The elections, by name.
    elections: Vec<ElectionState>,
    /// Cursor of the next page; left out on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Campaign for leadership.
///
/// Waits up to `wait_ms` until the election is vacant. A leader that stops extending can be replaced after its ttl, one that resigns at once.
#[utoipa::path(post, path = "/v1/elections/{name}/campaign", request_body = Campaign,
    responses((status = 200, description = "Elected by a quorum of nodes.", body = Leadership), ElectionProblems))]
pub async fn campaign(
    app: Context,
    heartbeats: Heartbeats,
    Named(name): Named,
    Json(asked): Json<Campaign>,
) -> Result<Response, Problem> {
    let options = asked.read(&app.limits)?;
    leases::acquire(&app, heartbeats, Target::Election(name.clone()), options, show(name)).await
}

/// Stay leader.
///
/// Sets the remaining time to `ttl_ms`; it is not added to what remains. A lost leadership stays lost.
#[utoipa::path(post, path = "/v1/elections/{name}/extend", request_body = Extend,
    responses((status = 200, description = "The leadership as it is now.", body = Leadership), LeaseProblems))]
pub async fn extend_election(
    app: Context,
    Named(name): Named,
    Json(asked): Json<Extend>,
) -> Answer<Leadership> {
    leases::extend(&app, Held::Election(name.clone()), asked, show(name)).await
}

/// Resign.
///
/// The next waiting candidate is elected at once. Idempotent: for a leadership that is not held any more the answer is `released: false`.
#[utoipa::path(post, path = "/v1/elections/{name}/resign", request_body = Release,
    responses((status = 200, description = "Whether the caller led until now.", body = Released), NodeProblems))]
pub async fn resign(app: Context, Named(name): Named, Json(asked): Json<Release>) -> Answer<Released> {
    leases::release(&app, Held::Election(name), asked).await
}

/// Proclaim a value as leader.
///
/// All observers see it. Neither the term nor the remaining time changes.
#[utoipa::path(post, path = "/v1/elections/{name}/proclaim", request_body = Proclaim,
    responses((status = 200, description = "The leadership with the new value.", body = Leadership), LeaseProblems))]
pub async fn proclaim(
    app: Context,
    Named(name): Named,
    Json(Proclaim { lease_id, value }): Json<Proclaim>,
) -> Answer<Leadership> {
    let lease = app.service.proclaim(&name, lease_id.take()?, value.take()?).await?;
    Ok(Json(show(name)(&lease, app.service.wall_ms())))
}

/// See who leads.
///
/// With `after` and `wait_ms` a long poll: answers as soon as the revision differs from `after`, or after `wait_ms`.
#[utoipa::path(get, path = "/v1/elections/{name}", params(Since),
    responses((status = 200, description = "The election, vacant or not.", body = ElectionState), NodeProblems))]
pub async fn get_leader(
    app: Context,
    heartbeats: Heartbeats,
    Named(name): Named,
    Query(asked): Query<Since>,
) -> Result<Response, Problem> {
    changes::look(&app, heartbeats, Resource::Election, name, asked, ElectionState::new).await
}

/// Observe an election.
///
/// An event stream: the current state first, then each change, as `leader` or `vacant` with an `ElectionState` as data; a proclaim is a `leader` event with the new value. The `id` of an event is its revision. After 10 s without an event, a comment is sent as a heartbeat.
#[utoipa::path(get, path = "/v1/elections/{name}/observe",
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream",
            example = "id: 65bfeda25e000-0\nevent: leader\ndata: {\"name\":\"scheduler\",\"leader\":\"host-2\", …}\n\n: heartbeat\n\n"),
        StreamProblems
    ),
    extensions(("x-events" = json!(stream::observe_events_doc("ElectionState", &["leader", "vacant"])))))]
pub async fn observe_election(
    app: Context,
    Named(name): Named,
    _: Query<Nothing>,
) -> Result<Response, Problem> {
    let event = |view: &View| if view.holders.is_empty() { "vacant" } else { "leader" };
    changes::observe(&app, Resource::Election, name, event, ElectionState::new).await
}

/// List the elections that have a leader.
///
/// Lists the elections of which a quorum of nodes names the leader, as `listLocks` lists locks.
#[utoipa::path(get, path = "/v1/elections", params(ListQuery),
    responses((status = 200, description = "A page of elections.", body = ElectionList), NodeProblems))]
pub async fn list_elections(app: Context, Query(asked): Query<ListQuery>) -> Answer<ElectionList> {
    let (elections, next_cursor) = lists::page(&app, Resource::Election, &asked, ElectionState::new).await?;
    Ok(Json(ElectionList { elections, next_cursor }))
}

/// Force a leader to resign.
///
/// For operators, when a leader is known to be dead. A leader that is still alive notices only at its next extension; until then only fencing stops its writes. The server logs who did it, and why.
#[utoipa::path(delete, path = "/v1/elections/{name}", params(Force),
    responses((status = 200, description = "Whether anybody led.", body = Released), NodeProblems))]
pub async fn force_resign(
    app: Context,
    caller: Caller,
    Named(name): Named,
    Query(asked): Query<Force>,
) -> Answer<Released> {
    changes::force(&app, caller, Resource::Election, name, None, asked.reason).await
}

/// Lead while the connection is open.
///
/// An event stream, as for locks: `waiting` (`{position}`), `acquired` (`Leadership`) or `denied` (`Problem`, ends the stream), `extended` (`Leadership`), `lost` (`Problem`, ends the stream), `released` (`{reason}`, ends the stream).
#[utoipa::path(post, path = "/v1/elections/{name}/hold", request_body = Campaign,
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream",
            example = "id: 1\nevent: waiting\ndata: {\"position\":1}\n\nid: 2\nevent: acquired\ndata: {\"name\":\"scheduler\", …}\n\n"),
        ElectionProblems
    ),
    extensions(("x-events" = json!(stream::hold_events_doc("Leadership")))))]
pub async fn hold_election(
    app: Context,
    caller: Caller,
    Named(name): Named,
    Json(asked): Json<Campaign>,
) -> Result<Response, Problem> {
    let options = asked.read(&app.limits)?;
    leases::hold(&app, caller, Target::Election(name.clone()), options, show(name)).await
}
