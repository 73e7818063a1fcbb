//! The connection that a stream is bound to.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tower_http::request_id::RequestId;

/// Losses on the way are made up for within so long, however short the lease is.
const USER_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// How long a client may leave unacknowledged what was sent to it. The server shares it with the connection.
#[derive(Debug, Clone)]
pub struct UserTimeout(Arc<AtomicU64>);

impl UserTimeout {
    /// As it is for all connections.
    pub fn new(timeout: Duration) -> Self {
        Self(Arc::new(AtomicU64::new(timeout.as_millis() as u64)))
    }

    /// As it is now.
    pub fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    fn lower_to(&self, timeout: Duration) {
        self.0.fetch_min(timeout.max(USER_TIMEOUT_MIN).as_millis() as u64, Ordering::Relaxed);
    }
}

/// Who reads a stream: its request, and its connection where there is one.
pub struct Peer {
    pub(super) request_id: RequestId,
    user_timeout: Option<UserTimeout>,
}

impl<S: Sync> FromRequestParts<S> for Peer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let request_id = parts.extensions.get().cloned();
        let request_id =
            request_id.unwrap_or_else(|| RequestId::new(super::request_id::NewRequestId::make()));
        Ok(Self { request_id, user_timeout: parts.extensions.get().cloned() })
    }
}

impl Peer {
    /// A lease of this ttl is bound to the connection: who vanishes shall not hold it for much longer.
    pub(super) fn holds_for(&self, ttl: Duration) {
        if let Some(user_timeout) = &self.user_timeout {
            user_timeout.lower_to(ttl);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_out_follows_the_shortest_lease_of_a_connection_but_for_a_second() {
        let timeout = UserTimeout::new(Duration::from_secs(30));
        for (ttl_ms, expected_ms) in [(60_000, 30_000), (3000, 3000), (5000, 3000), (100, 1000)] {
            timeout.lower_to(Duration::from_millis(ttl_ms));
            assert_eq!(timeout.get(), Duration::from_millis(expected_ms), "{ttl_ms}");
        }
    }
}
