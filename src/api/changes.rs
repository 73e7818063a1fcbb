//! Waiting for a change, and taking leases away: what is asked of locks, semaphores and elections alike.

use axum::response::Response;
use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::caller::Caller;
use super::fields::{Given, digits, optional, within};
use super::heartbeat::Heartbeats;
use super::problem::{Kind, Problem};
use super::request::{Answer, Asked, Json};
use super::state::{AppState, Limits};
use super::stream;
use super::views::Released;
use crate::domain::{Name, Reason, Token};
use crate::service::{Resource, View};

/// Revisions are opaque; no real one is longer than this.
const REVISION_LEN_MAX: usize = 256;

/// What to wait for before the answer.
#[derive(Deserialize, Validate, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits as limits))]
pub struct Since {
    /// Answer as soon as the revision differs from this one, or after `wait_ms`. Opaque: any text but the current revision counts as different.
    #[garde(dive, custom(revision))]
    #[param(value_type = Option<String>, max_length = 256, example = "65bfeda25e000-0")]
    after: Option<Given<String>>,
    /// How long to wait for a change, in milliseconds: at most the server's `max_wait`. Without `after` the answer comes at once, so the first request of a loop may send the same `wait_ms` as the others.
    #[serde(default, deserialize_with = "digits")]
    #[garde(dive, custom(within(0..=limits.max_wait_ms)))]
    #[param(value_type = Option<u64>, minimum = 0, maximum = 60_000, default = 0, example = 5000)]
    wait_ms: Option<Given<u64>>,
}

impl Asked for Since {}

/// A rule for garde. What no server ever gave out differs from every revision, and that is all.
fn revision(after: &Option<Given<String>>, _: &Limits) -> garde::Result {
    match after.as_ref().and_then(Given::get) {
        Some(text) if text.chars().count() > REVISION_LEN_MAX => {
            Err(garde::Error::new(format!("must be at most {REVISION_LEN_MAX} characters long")))
        }
        _ => Ok(()),
    }
}

/// As it is now, or as soon as it differs.
pub async fn look<V: Serialize + Send + 'static>(
    app: &AppState,
    heartbeats: Heartbeats,
    resource: Resource,
    name: Name,
    asked: Since,
    show: impl FnOnce(Name, View) -> V + Send + 'static,
) -> Result<Response, Problem> {
    let (after, wait_ms) = (optional(asked.after)?, optional(asked.wait_ms)?.unwrap_or(0));
    let (app, wait_ms) = (AppState::clone(app), heartbeats.wait_ms(wait_ms));
    let look = async move {
        let view = app.service.look_after(resource, &name, after.as_deref(), wait_ms).await?;
        Ok(Json(show(name, view)))
    };
    heartbeats.answer(look).await
}

/// A stream of its changes. `event`: how one that looks like this is called.
pub async fn observe<V: Serialize>(
    app: &AppState,
    resource: Resource,
    name: Name,
    event: impl Fn(&View) -> &'static str + Send + 'static,
    show: impl Fn(Name, View) -> V + Send + 'static,
) -> Result<Response, Problem> {
    let slot = app.streams.open(None)?;
    let changes = app.service.observe(resource, &name).await?;
    Ok(stream::observed(slot, changes, event, move |view| show(name.clone(), view)))
}

/// Why a lease is taken away.
#[derive(Deserialize, Validate, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits))]
pub struct Force {
    /// Why, for the server's log. One line.
    #[garde(dive)]
    #[param(value_type = Option<String>, min_length = 1, max_length = 200, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]+$", example = "its host is gone")]
    pub(super) reason: Option<Given<Reason>>,
}

impl Asked for Force {}

/// From whom permits are taken away, and why.
#[derive(Deserialize, Validate, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits))]
pub struct ForcePermits {
    /// Only the lease with this token, as `getSemaphore` shows it. Left out: all leases.
    #[serde(default, deserialize_with = "digits")]
    #[garde(dive)]
    #[param(value_type = Option<i64>, minimum = 1, maximum = 9_007_199_254_740_991_u64, example = 1_790_000_000_000_000_u64)]
    pub(super) fencing_token: Option<Given<Token>>,
    /// Why, for the server's log. One line.
    #[garde(dive)]
    #[param(value_type = Option<String>, min_length = 1, max_length = 200, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]+$", example = "its host is gone")]
    pub(super) reason: Option<Given<Reason>>,
}

impl Asked for ForcePermits {}

/// Taken away from its holder, and written down: both also if the caller leaves meanwhile.
pub async fn force(
    app: &AppState,
    caller: Caller,
    resource: Resource,
    name: Name,
    token: Option<Given<Token>>,
    reason: Option<Given<Reason>>,
) -> Answer<Released> {
    let (token, reason) = (optional(token)?, optional(reason)?);
    let (service, underway) = (app.service.clone(), app.service.engine.underway());
    let forced = tokio::spawn(async move {
        let released = service.force_release(resource, &name, token).await;
        caller.took_away(resource, &name, token, reason.as_ref(), released.as_ref().ok().copied());
        drop(underway);
        released
    });
    let released = forced.await.map_err(|_| Problem::from(Kind::Internal))??;
    Ok(Json(Released { released }))
}
