//! How things end: the values of the labels `outcome` and `reason`.

/// How an acquisition ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)] // docs/monitoring.md says what each means.
pub enum Acquisition {
    Granted,
    Held,
    Timeout,
    NoQuorum,
    Cancelled,
    Rejected,
}
pub(super) const ACQUISITIONS: [&str; 6] =
    ["granted", "held", "timeout", "no_quorum", "cancelled", "rejected"];

/// How an extension ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Extension {
    Extended,
    Lost,
    NoQuorum,
}
pub(super) const EXTENSIONS: [&str; 3] = ["extended", "lost", "no_quorum"];

/// How a release ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Release {
    Released,
    NotHeld,
    NoQuorum,
}
pub(super) const RELEASES: [&str; 3] = ["released", "not_held", "no_quorum"];

/// How an undo at one node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Undo {
    /// The node confirmed it.
    Done,
    /// Refused by the node until the lease had expired by itself.
    Expired,
    /// Dropped because too many were waiting.
    Abandoned,
}
pub(super) const UNDOS: [&str; 3] = ["done", "expired", "abandoned"];

/// Why a client was turned away before its request reached a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Refusal {
    /// As many connections as allowed are open.
    Connections,
    /// As many requests as allowed are in flight.
    InFlight,
    /// The head, or the TLS handshake, took too long.
    HeaderTimeout,
    /// The body took too long.
    BodyTimeout,
    /// The head was larger than it may be.
    HeaderBytes,
    /// The bytes were not HTTP.
    Malformed,
}
pub(super) const REFUSALS: [&str; 6] =
    ["connections", "in_flight", "header_timeout", "body_timeout", "header_bytes", "malformed"];

/// What is read again when it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Reloaded {
    /// The API keys.
    Keys,
    /// Certificate, key and client authorities.
    Certificates,
}
pub(super) const RELOADED: [&str; 2] = ["keys", "certificates"];

impl Reloaded {
    /// As `quorate_reload_failures_total` labels it.
    pub const fn name(self) -> &'static str {
        RELOADED[self as usize]
    }
}
