//! Fencing tokens on their own: `/v1/fencing`. The same sequence as the lock's of that name.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::{Ask, Call, Context};
use super::fields::{Fields, Source};
use super::problem::Problem;
use super::problem_docs::{NodeProblems, StaleProblems};
use super::{NamePath, Shared, delivery};
use crate::domain::Token;
use crate::service::TokenCheck;

/// A new token.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "orders:42", "fencing_token": 1_790_000_000_000_000_u64}))]
pub struct IssuedToken {
    /// The sequence.
    #[schema(value_type = String, example = "orders:42")]
    name: String,
    /// Greater than every token of this name before it.
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
    fencing_token: u64,
}

/// What is known of a token.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "orders:42", "status": "current", "highest_token": 1_790_000_000_000_000_u64}))]
pub struct TokenState {
    /// The sequence.
    #[schema(value_type = String, example = "orders:42")]
    name: String,
    /// `current`: no later token has been issued. `unknown`: the token is higher than any that is known.
    #[schema(value_type = String, example = "current")]
    status: &'static str,
    /// The highest token known. Left out if none is known, e.g. after the retention.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
    highest_token: Option<u64>,
}

/// Where a sequence stands.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "orders:42", "highest_token": 1_790_000_000_000_000_u64}))]
pub struct Fence {
    /// The sequence.
    #[schema(value_type = String, example = "orders:42")]
    name: String,
    /// The highest token known. Left out if none is known, e.g. after the retention.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
    highest_token: Option<u64>,
}

/// Issuing says nothing but the name; an empty body or `{}` will do.
pub struct Nothing;

impl Ask for Nothing {
    const SOURCE: Source = Source::Body;

    fn read(_: &mut Fields<'_>, _: &Context<'_>) -> Option<Self> {
        Some(Self)
    }
}

/// Body of `check`.
#[derive(ToSchema)]
#[schema(example = json!({"fencing_token": 1_790_000_000_000_000_u64}))]
pub struct CheckToken {
    /// The token of the holder that wants to write.
    #[schema(value_type = i64, minimum = 1, maximum = 9007199254740991_i64)]
    fencing_token: Token,
}

impl Ask for CheckToken {
    const SOURCE: Source = Source::Body;

    fn read(fields: &mut Fields<'_>, _: &Context<'_>) -> Option<Self> {
        let token =
            fields.integer("fencing_token", 1..=Token::MAX).and_then(|number| Token::new(number).ok());
        fields.require("fencing_token", token).map(|fencing_token| Self { fencing_token })
    }
}

/// Issue a token.
///
/// Issues the next token of the name's sequence, which the lock of that name shares.
#[utoipa::path(
    post,
    path = "/v1/fencing/{name}/issue",
    operation_id = "issueToken",
    tag = "fencing",
    params(NamePath),
    responses((status = 200, description = "The token.", body = IssuedToken), NodeProblems)
)]
pub(super) async fn issue_token(
    State(ctx): State<Shared>,
    Call(name, Nothing): Call<Nothing>,
) -> Result<Response, Problem> {
    let token = ctx.service.issue_token(&name).await?;
    delivery::json(&IssuedToken { name: name.to_string(), fencing_token: token.get() })
}

/// Check a token.
///
/// Reads without changing anything. The real protection belongs into the protected resource: a write that succeeds only if the stored token is smaller (`… WHERE fence_token < $2`). While a node does not answer, 503 also says that only that node could tell whether a later token has been issued.
#[utoipa::path(
    post,
    path = "/v1/fencing/{name}/check",
    operation_id = "checkToken",
    tag = "fencing",
    params(NamePath),
    request_body = CheckToken,
    responses((status = 200, description = "No later token has been issued.", body = TokenState), StaleProblems)
)]
pub(super) async fn check_token(
    State(ctx): State<Shared>,
    Call(name, CheckToken { fencing_token }): Call<CheckToken>,
) -> Result<Response, Problem> {
    let (status, highest) = match ctx.service.check_token(&name, fencing_token).await? {
        TokenCheck::Current { highest } => ("current", Some(highest)),
        TokenCheck::Unknown { highest } => ("unknown", highest),
    };
    delivery::json(&TokenState { name: name.to_string(), status, highest_token: highest.map(Token::get) })
}

/// Read the highest token.
///
/// The highest token that a quorum of nodes knows.
#[utoipa::path(
    get,
    path = "/v1/fencing/{name}",
    operation_id = "getFence",
    tag = "fencing",
    params(NamePath),
    responses((status = 200, description = "The highest token, if one is known.", body = Fence), NodeProblems)
)]
pub(super) async fn get_fence(
    State(ctx): State<Shared>,
    Call(name, ()): Call<()>,
) -> Result<Response, Problem> {
    let highest = ctx.service.get_fence(&name).await?;
    delivery::json(&Fence { name: name.to_string(), highest_token: highest.map(Token::get) })
}
