//! Fencing tokens on their own: `/v1/fencing`. The same sequence as the lock's of that name.

use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::document::{NodeProblems, StaleProblems};
use super::fields::Given;
use super::request::{Answer, Asked, Json, Named, Nothing, Query};
use super::state::{Context, Limits};
use crate::domain::{Name, Token};
use crate::service::TokenCheck;

/// A new token.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "orders:42", "fencing_token": 1_790_000_000_000_000_u64}))]
pub struct IssuedToken {
    /// The sequence.
    #[schema(value_type = String, example = "orders:42")]
    name: Name,
    /// Greater than every token of this name before it.
    fencing_token: u64,
}

/// What is known of a token.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "orders:42", "status": "current", "highest_token": 1_790_000_000_000_000_u64}))]
pub struct TokenState {
    /// The sequence.
    #[schema(value_type = String, example = "orders:42")]
    name: Name,
    /// `current`: no later token has been issued. `unknown`: the token is higher than any that is known.
    #[schema(value_type = String, example = "current")]
    status: &'static str,
    /// The highest token known. Left out if none is known, e.g. after the retention.
    #[serde(skip_serializing_if = "Option::is_none")]
    highest_token: Option<u64>,
}

/// Where a sequence stands.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "orders:42", "highest_token": 1_790_000_000_000_000_u64}))]
pub struct Fence {
    /// The sequence.
    #[schema(value_type = String, example = "orders:42")]
    name: Name,
    /// The highest token known. Left out if none is known, e.g. after the retention.
    #[serde(skip_serializing_if = "Option::is_none")]
    highest_token: Option<u64>,
}

/// Body of `check`.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits))]
#[schema(example = json!({"fencing_token": 1_790_000_000_000_000_u64}))]
pub struct CheckToken {
    /// The token of the holder that wants to write.
    #[serde(default)]
    #[garde(dive)]
    #[schema(value_type = i64, required = true, minimum = 1, maximum = 9007199254740991_i64)]
    fencing_token: Given<Token>,
}

impl Asked for CheckToken {}

/// Issue a token.
///
/// Issues the next token of the name's sequence, which the lock of that name shares.
#[utoipa::path(post, path = "/v1/fencing/{name}/issue",
    responses((status = 200, description = "The token.", body = IssuedToken), NodeProblems))]
pub async fn issue_token(app: Context, Named(name): Named, _: Json<Nothing>) -> Answer<IssuedToken> {
    let token = app.service.issue_token(&name).await?;
    Ok(Json(IssuedToken { name, fencing_token: token.get() }))
}

/// Check a token.
///
/// Reads without changing anything. The real protection belongs into the protected resource: a write that succeeds only if the stored token is smaller (`… WHERE fence_token < $2`). While a node does not answer, 503 also says that only that node could tell whether a later token has been issued.
#[utoipa::path(post, path = "/v1/fencing/{name}/check", request_body = CheckToken,
    responses((status = 200, description = "No later token has been issued.", body = TokenState), StaleProblems))]
pub async fn check_token(
    app: Context,
    Named(name): Named,
    Json(asked): Json<CheckToken>,
) -> Answer<TokenState> {
    let (status, highest) = match app.service.check_token(&name, asked.fencing_token.take()?).await? {
        TokenCheck::Current { highest } => ("current", Some(highest)),
        TokenCheck::Unknown { highest } => ("unknown", highest),
    };
    Ok(Json(TokenState { name, status, highest_token: highest.map(Token::get) }))
}

/// Read the highest token.
///
/// The highest token that a quorum of nodes knows.
#[utoipa::path(get, path = "/v1/fencing/{name}",
    responses((status = 200, description = "The highest token, if one is known.", body = Fence), NodeProblems))]
pub async fn get_fence(app: Context, Named(name): Named, _: Query<Nothing>) -> Answer<Fence> {
    let highest = app.service.get_fence(&name).await?;
    Ok(Json(Fence { name, highest_token: highest.map(Token::get) }))
}
