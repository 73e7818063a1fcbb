//! What the API serves, and what its handlers work with.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;

use super::slots::Streams;
use crate::access::KeyRing;
use crate::service::Service;

/// What [`super::router()`] serves.
pub struct App {
    /// What a request means.
    pub service: Service,
    /// What a request may ask for.
    pub limits: Limits,
    /// The keys that are asked for; `None`: none, everyone may do everything.
    pub keys: Option<Arc<KeyRing>>,
    /// Writes the metrics in Prometheus' text format.
    pub render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// What a request may ask for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest ttl, in milliseconds.
    pub max_ttl_ms: u64,
    /// The longest wait, in milliseconds.
    pub max_wait_ms: u64,
    /// The longest body, in bytes.
    pub body_bytes_max: usize,
    /// How long a client may take to send a body.
    pub body_timeout: Duration,
    /// The most event streams at a time.
    pub streams_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_ttl_ms: 300_000,
            max_wait_ms: 60_000,
            body_bytes_max: 64 * 1024,
            body_timeout: Duration::from_secs(10),
            streams_max: 20_000,
        }
    }
}

/// What a name looks like.
pub(super) const NAME_PATTERN: &str =
    r"^(\.{0,2}[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*|\.{3}[A-Za-z0-9._~:@-]*)$";

/// What handlers work with.
pub type AppState = Arc<Shared>;

/// The same, as they take it.
pub(super) type Context = State<AppState>;

/// See [`AppState`].
pub struct Shared {
    pub(super) app: App,
    pub(super) streams: Streams,
    /// The OpenAPI document, in 3.1 and in 3.0, with this server's bounds.
    pub(super) document: Bytes,
    pub(super) document_3_0: Bytes,
}

impl Deref for Shared {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}

/// Whether a request is answered under any load: a server that is busy must not be taken for a dead one.
pub fn is_probe(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/metrics")
}
