//! Who asks, for the audit.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tower_http::request_id::RequestId;

use crate::access::Key;
use crate::domain::{Name, Primitive};
use crate::telemetry::audit;

/// The caller's key, where keys are asked for, and the id of the request.
pub struct Caller {
    key: Option<Arc<Key>>,
    request_id: String,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let id = parts.extensions.get().and_then(|id: &RequestId| id.header_value().to_str().ok());
        let request_id = id.unwrap_or_default().to_owned();
        Ok(Self { key: parts.extensions.get().cloned(), request_id })
    }
}

impl Caller {
    /// It took a lease away from its holder, if there was one.
    pub fn took_away(&self, primitive: Primitive, name: &Name, reason: Option<&str>, released: bool) {
        let key = self.key.as_deref().map(Key::name);
        audit::forced_release(primitive, name.as_str(), key, reason, &self.request_id, released);
    }
}
