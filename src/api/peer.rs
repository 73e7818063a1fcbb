//! The time-out of the connection that a stream is bound to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

    /// A lease of this ttl is bound to the connection: who vanishes shall not hold it for much longer.
    pub(super) fn lower_to(&self, timeout: Duration) {
        self.0.fetch_min(timeout.max(USER_TIMEOUT_MIN).as_millis() as u64, Ordering::Relaxed);
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
