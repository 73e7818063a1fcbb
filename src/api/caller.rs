//! Who asks: the key that let the request in, the id of the request, the connection.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tower_http::request_id::RequestId;

use super::peer::UserTimeout;
use crate::access::Key;
use crate::domain::{Name, Primitive, Reason, Token};
use crate::service::members::Change;
use crate::telemetry::audit;

/// The caller's key, where keys are asked for, the id of the request, and the connection where there is one.
pub struct Caller {
    pub(super) key: Option<Arc<Key>>,
    pub(super) request_id: String,
    pub(super) user_timeout: Option<UserTimeout>,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let (key, user_timeout) = (parts.extensions.get().cloned(), parts.extensions.get().cloned());
        Ok(Self { key, request_id: request_id(parts), user_timeout })
    }
}

/// The id of the request.
pub fn request_id(parts: &Parts) -> String {
    let id = parts.extensions.get().and_then(|id: &RequestId| id.header_value().to_str().ok());
    id.unwrap_or_default().to_owned()
}

impl Caller {
    /// Whether it may touch all of these names.
    pub fn covers(&self, names: &[Name]) -> bool {
        self.key.as_ref().is_none_or(|key| names.iter().all(|name| key.covers(name.as_str())))
    }

    /// It had the members changed.
    pub fn changed_members(&self, change: &Change, epoch: u64) {
        let key = self.key.as_deref().map(Key::name);
        audit::members_changed(&change.to_string(), epoch, key, &self.request_id);
    }

    /// It took all leases of `name` away from their holders, or the one with this token. `released` says whether there was
    /// any; `None`: no quorum told.
    pub fn took_away(
        &self,
        primitive: impl Into<Primitive>,
        name: &Name,
        token: Option<Token>,
        reason: Option<&Reason>,
        released: Option<bool>,
    ) {
        let (key, reason) = (self.key.as_deref().map(Key::name), reason.map(Reason::as_str));
        let (of, name, token) = (primitive.into(), name.as_str(), token.map(Token::get));
        audit::forced_release(of, name, token, key, reason, &self.request_id, released);
    }
}
