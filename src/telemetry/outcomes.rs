//! How things end: the values of the labels `outcome`, `reason` and `what`.

use crate::domain::named;

named! {
    /// How an acquisition ended: docs/monitoring.md says what each means.
    pub enum Acquisition {
        Granted = "granted",
        Held = "held",
        Timeout = "timeout",
        NoQuorum = "no_quorum",
        Cancelled = "cancelled",
        Rejected = "rejected",
    }
}

named! {
    /// How an extension ended.
    pub enum Extension {
        Extended = "extended",
        Lost = "lost",
        NoQuorum = "no_quorum",
    }
}

named! {
    /// How a release ended.
    pub enum Release {
        Released = "released",
        NotHeld = "not_held",
        NoQuorum = "no_quorum",
    }
}

named! {
    /// How an undo at one node ended.
    pub enum Undo {
        /// The node confirmed it.
        Done = "done",
        /// Refused by the node until the lease had expired by itself.
        Expired = "expired",
        /// Dropped because too many were waiting.
        Abandoned = "abandoned",
    }
}

named! {
    /// Why a client was turned away before its request reached a handler.
    pub enum Refusal {
        /// As many connections as allowed are open.
        Connections = "connections",
        /// As many requests as allowed are in flight.
        InFlight = "in_flight",
        /// The head, or the TLS handshake, took too long.
        HeaderTimeout = "header_timeout",
        /// The body took too long.
        BodyTimeout = "body_timeout",
        /// The head was larger than it may be.
        HeaderBytes = "header_bytes",
        /// The bytes were not HTTP.
        Malformed = "malformed",
    }
}

named! {
    /// What is read again when it changes.
    pub enum Reloaded {
        /// The API keys.
        Keys = "keys",
        /// Certificate, key and client authorities.
        Certificates = "certificates",
    }
}
