//! The members of the deployment: `/v1/members`. Changing them is for keys with the scope `admin`.

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::caller::Caller;
use super::document::{MemberProblems, NodeProblems};
use super::fields::Given;
use super::problem::Problem;
use super::request::{Answer, Asked, Json, Nothing, Query};
use super::state::{AppState, Context, Limits};
use crate::service::members::{Change, MemberView, MembersView};

/// Longest URL, and longest name of a member.
const LENGTH_MAX: usize = 500;

/// A member.
#[derive(Serialize, ToSchema)]
pub struct Member {
    /// The run id of its Redis process.
    #[schema(example = "8c1f6a0b5d2e4f7a9b3c6d8e0f1a2b3c4d5e6f70")]
    id: String,
    /// By which address it is reached, without password. Left out if no server has reached it yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "redis://10.0.0.1:6379")]
    address: Option<String>,
    /// As in `listNodes`; a member that no URL of this server leads to is `down`.
    #[schema(value_type = String, example = "voting")]
    state: &'static str,
    /// For a member that does not vote yet: until it does, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    votes_in_ms: Option<u64>,
}

/// All members.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "epoch": 4,
    "members": [
        {"id": "8c1f6a0b5d2e4f7a9b3c6d8e0f1a2b3c4d5e6f70", "address": "redis://10.0.0.1:6379", "state": "voting"},
        {"id": "0f1a2b3c4d5e6f708c1f6a0b5d2e4f7a9b3c6d8e", "address": "redis://10.0.0.2:6379", "state": "voting"},
        {"id": "9b3c6d8e0f1a2b3c4d5e6f708c1f6a0b5d2e4f7a", "address": "redis://10.0.0.3:6379", "state": "quarantined", "votes_in_ms": 21_300},
    ],
    "changing": "1 of 3 members do not vote yet",
}))]
pub struct MemberList {
    /// Counts the changes. 0 while the nodes belong to no deployment yet.
    #[schema(minimum = 0)]
    epoch: u64,
    /// The members. A quorum is a majority of them.
    members: Vec<Member>,
    /// The change that is under way. The next one has to wait for its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    changing: Option<String>,
}

impl From<MembersView> for MemberList {
    fn from(view: MembersView) -> Self {
        let member =
            |MemberView { id, address, state, votes_in_ms }| Member { id, address, state, votes_in_ms };
        let members = view.members.into_iter().map(member).collect();
        Self { epoch: view.epoch, members, changing: view.changing }
    }
}

/// What `listMembers` answers with.
pub fn member_list(view: MembersView) -> serde_json::Value {
    // Numbers and texts always serialize.
    serde_json::to_value(MemberList::from(view)).unwrap_or_default()
}

/// A node that is to be a member.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits))]
#[schema(example = json!({"url": "redis://10.0.0.4:6379"}))]
pub struct JoiningMember {
    /// The URL of the node. It must be in this server's list; a password need not be said again.
    #[serde(default)]
    #[garde(dive)]
    #[schema(value_type = String, required = true, max_length = 500, pattern = "^[a-z]+://[!-~]+$")]
    url: Given<String>,
}

impl Asked for JoiningMember {}

impl JoiningMember {
    fn url(self) -> Result<String, Problem> {
        let url = self.url.take()?;
        let is_url = url.len() <= LENGTH_MAX
            && url.split_once("://").is_some_and(|(scheme, rest)| {
                !scheme.is_empty()
                    && scheme.bytes().all(|byte| byte.is_ascii_lowercase())
                    && !rest.is_empty()
                    && rest.bytes().all(|byte| byte.is_ascii_graphic())
            });
        let why = format!("must be the URL of a node, of at most {LENGTH_MAX} characters");
        if is_url { Ok(url) } else { Err(Problem::field("url", why)) }
    }
}

/// The member that the path names: by its id, by `n1`, `n2` … of `listNodes`, or by its address.
pub struct Id(String);

impl FromRequestParts<AppState> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        let bad = || Problem::field("id", "is not the id of a member");
        let params = RawPathParams::from_request_parts(parts, app).await.map_err(|_| bad())?;
        let id = params.iter().next().map_or("", |(_, id)| id);
        let is_id =
            !id.is_empty() && id.len() <= LENGTH_MAX && id.bytes().all(|byte| byte.is_ascii_graphic());
        if is_id { Ok(Self(id.to_owned())) } else { Err(bad()) }
    }
}

async fn change(app: &AppState, caller: &Caller, change: Change) -> Answer<MemberList> {
    let members = app.service.change_members(&change).await?;
    caller.changed_members(&change, members.epoch);
    Ok(Json(members.into()))
}

/// List the members.
///
/// The members of the deployment, whatever nodes this server's list names. Their number is N, and a quorum is a majority of them.
#[utoipa::path(get, path = "/v1/members",
    responses((status = 200, description = "All members.", body = MemberList), NodeProblems))]
pub async fn list_members(app: Context, _: Query<Nothing>) -> Json<MemberList> {
    Json(app.service.members().into())
}

/// Add a member.
///
/// The node votes at once. Its URL must be in the list of every server first: until it is a member it shows there as `refused`. Answers once the change is chosen; the next one has to wait for the longest leases granted before it.
#[utoipa::path(post, path = "/v1/members", request_body = JoiningMember,
    responses((status = 200, description = "The members then.", body = MemberList), MemberProblems))]
pub async fn add_member(
    app: Context,
    caller: Caller,
    Json(asked): Json<JoiningMember>,
) -> Answer<MemberList> {
    change(&app, &caller, Change::Add(asked.url()?)).await
}

/// Replace a member.
///
/// Another node takes its place, and votes once the longest leases granted have expired.
#[utoipa::path(post, path = "/v1/members/{id}/replace", request_body = JoiningMember,
    params(("id" = String, Path, min_length = 1, max_length = 500, pattern = "^[!-~]+$", description = "The member that goes: its id, its `n1`, `n2` … of `listNodes`, or its address.", example = "n3")),
    responses((status = 200, description = "The members then.", body = MemberList), MemberProblems))]
pub async fn replace_member(
    app: Context,
    caller: Caller,
    Id(id): Id,
    Json(asked): Json<JoiningMember>,
) -> Answer<MemberList> {
    change(&app, &caller, Change::Replace(id, asked.url()?)).await
}

/// Remove a member.
///
/// It never votes again. The next change has to wait for the longest leases granted.
#[utoipa::path(delete, path = "/v1/members/{id}",
    params(("id" = String, Path, min_length = 1, max_length = 500, pattern = "^[!-~]+$", description = "The member: its id, its `n1`, `n2` … of `listNodes`, or its address.", example = "n3")),
    responses((status = 200, description = "The members then.", body = MemberList), MemberProblems))]
pub async fn remove_member(
    app: Context,
    caller: Caller,
    Id(id): Id,
    _: Query<Nothing>,
) -> Answer<MemberList> {
    change(&app, &caller, Change::Remove(id)).await
}

/// Close a member for a restart.
///
/// It stops voting. If it still knows that after its restart, it has lost nothing and votes again at once; if not, it sits out a quarantine.
#[utoipa::path(post, path = "/v1/members/{id}/close",
    params(("id" = String, Path, min_length = 1, max_length = 500, pattern = "^[!-~]+$", description = "The member: its id, its `n1`, `n2` … of `listNodes`, or its address.", example = "n3")),
    responses((status = 200, description = "The members then.", body = MemberList), MemberProblems))]
pub async fn close_member(app: Context, caller: Caller, Id(id): Id, _: Json<Nothing>) -> Answer<MemberList> {
    change(&app, &caller, Change::Close(id)).await
}
