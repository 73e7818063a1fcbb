//! Who asks: the key that let the request in, and the id of the request.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tower_http::request_id::RequestId;

use crate::access::Key;
use crate::domain::{Name, Primitive, Reason};
use crate::telemetry::audit;

/// The caller's key, where keys are asked for, and the id of the request.
pub struct Caller {
    pub(super) key: Option<Arc<Key>>,
    request_id: String,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self { key: parts.extensions.get().cloned(), request_id: request_id(parts) })
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

    /// It took what was held of `name` away from its holder, if there was one; `None`: no quorum told.
    pub fn took_away(
        &self,
        primitive: impl Into<Primitive>,
        name: &Name,
        reason: Option<&Reason>,
        released: Option<bool>,
    ) {
        let (key, reason) = (self.key.as_deref().map(Key::name), reason.map(Reason::as_str));
        audit::forced_release(primitive.into(), name.as_str(), key, reason, &self.request_id, released);
    }
}
