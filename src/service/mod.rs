//! What a lock, a semaphore, an election *means*: waiting, holding, idempotency.
//!
//! One mechanism, [`leases`], carries all four primitives; what differs between
//! them (which keys, how refusals read) stands in a small file each. Errors here
//! know the domain and nothing of HTTP.

mod contender;
mod elections;
pub mod fencing;
mod force;
pub mod hold;
pub mod leases;
pub(crate) mod ledger;
mod looks;
pub mod members;
mod notices;
mod released;
mod requests;
pub mod semaphores;
pub mod waiting;
mod watches;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::domain::{
    Candidate, Holding, LeaseHandle, Metadata, Mode, Name, Owner, RequestId, Token, Value, Version,
};
pub use crate::domain::{Nodes, Primitive, Resource};

pub use self::fencing::TokenCheck;
pub use self::hold::HoldEvent;
pub use self::looks::{Page, View};
pub use self::waiting::{Visitor, Waiter};
use crate::quorum::tally::{self, Named};
use crate::quorum::{Engine, Grant};

/// How many names a multilock has.
pub const NAMES: RangeInclusive<usize> = 2..=64;

/// What a lease is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// One lock.
    Lock(Name),
    /// 2–64 distinct locks. Each node grants all of them or none in one script, so that nobody holds one while waiting
    /// for another, and no order of names can deadlock.
    Multilock(Vec<Name>),
    /// `permits` of `limit` slots of a semaphore.
    Semaphore {
        /// Its name.
        name: Name,
        /// How many permits there are, 1–10 000: slots 0 … limit − 1.
        limit: u32,
        /// How many are asked for, 1–limit.
        permits: u32,
    },
    /// An election.
    Election(Name),
}

impl Target {
    /// Which primitive this is.
    pub fn primitive(&self) -> Primitive {
        match self {
            Self::Lock(_) => Primitive::Lock,
            Self::Multilock(_) => Primitive::Multilock,
            Self::Semaphore { .. } => Primitive::Semaphore,
            Self::Election(_) => Primitive::Election,
        }
    }
}

/// Which lease an extension or a release speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// A lock's.
    Lock(Name),
    /// A multilock's, with all its names.
    Multilock(Vec<Name>),
    /// A semaphore's; the nodes know the slots.
    Semaphore(Name),
    /// An election's.
    Election(Name),
}

impl Held {
    /// Which primitive this is.
    pub fn primitive(&self) -> Primitive {
        match self {
            Self::Lock(_) => Primitive::Lock,
            Self::Multilock(_) => Primitive::Multilock,
            Self::Semaphore(_) => Primitive::Semaphore,
            Self::Election(_) => Primitive::Election,
        }
    }

    /// Its name, or those of a multilock in the order of the request.
    pub fn names(&self) -> &[Name] {
        match self {
            Self::Lock(name) | Self::Semaphore(name) | Self::Election(name) => std::slice::from_ref(name),
            Self::Multilock(names) => names,
        }
    }
}

/// How a lease is asked for. Durations are checked against the limits by the API.
#[derive(Debug, Clone)]
pub struct AcquireOptions {
    /// Life of the lease without extension, ms.
    pub ttl_ms: u64,
    /// How long to wait for it, ms; 0 = not at all.
    pub wait_ms: u64,
    /// What is stored with it.
    pub note: Note,
    /// Makes a retry safe.
    pub request: Option<RequestId>,
}

/// What is stored with a lease and shown to those who inspect it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When it was acquired, ms since the epoch; for display.
    #[serde(rename = "a", default)]
    pub acquired_at_ms: u64,
    /// Free label of the holder.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Free map of the holder.
    #[serde(rename = "m", default, skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// Elections: who campaigns.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Candidate>,
    /// Elections: what the leader proclaims.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// What it excludes. The nodes see to it; here it is for display.
    #[serde(rename = "s", default, skip_serializing_if = "Mode::is_exclusive")]
    pub mode: Mode,
    /// How long it may be held at most, ms. The nodes see to it; here it is for display.
    #[serde(rename = "h", default, skip_serializing_if = "Option::is_none")]
    pub max_hold_ms: Option<u64>,
    /// How long its name stays taken after it has expired, ms; likewise.
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    pub lock_delay_ms: Option<u64>,
    /// Semaphores: the limit that was asked for.
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Elections: changes with each proclaim, so that A → B → A is seen. Stored beside the rest.
    #[serde(skip)]
    pub version: Version,
}

impl Note {
    /// What its holder is called: the candidate, or the owner.
    pub(crate) fn label(&self) -> Option<&str> {
        self.candidate.as_ref().map(Candidate::as_str).or(self.owner.as_ref().map(Owner::as_str))
    }
}

/// A lease as its holder gets it.
#[derive(Debug, Clone)]
pub struct Lease {
    /// Secret and token.
    pub handle: LeaseHandle,
    /// Life without extension, ms.
    pub ttl_ms: u64,
    /// Until when the holder may rely on it (drift taken off), monotonic.
    pub valid_until: Instant,
    /// What is stored with it.
    pub note: Note,
    /// Semaphores: the slots held. Empty for the others.
    pub slots: Vec<u32>,
    /// How long the caller waited, ms.
    pub waited_ms: u64,
    /// Granting rounds that were needed.
    pub attempts: u32,
    /// The votes.
    pub nodes: Nodes,
}

impl Lease {
    /// Until when it may be held, however often it is extended, ms since the epoch; for display.
    pub fn hold_until_ms(&self) -> Option<u64> {
        let max_hold_ms = self.note.max_hold_ms?;
        Some(self.note.acquired_at_ms.saturating_add(max_hold_ms))
    }

    /// What is left of the validity at `now`, ms.
    pub fn validity_ms(&self, now: Instant) -> u64 {
        self.valid_until.saturating_duration_since(now).as_millis() as u64
    }
}

/// A lease on its way to the caller. Dropped before [`Granted::deliver`], it is undone on
/// every node: a caller that went away leaves nothing behind (docs/protocol.md §1.5).
#[must_use]
pub struct Granted {
    /// The lease.
    pub lease: Lease,
    /// Undoes the grant unless delivered.
    pub grant: Grant,
    /// Its line in the ledger, from when it has one.
    pub(crate) booking: Option<ledger::Booking>,
}

impl Granted {
    /// The caller has it.
    pub fn deliver(self) -> Lease {
        self.grant.keep();
        self.booking.into_iter().for_each(ledger::Booking::keep);
        self.lease
    }
}

/// Somebody's lease, as everyone may see it.
#[derive(Debug, Clone)]
pub struct Holder {
    /// Its fencing token (an election's term).
    pub token: Token,
    /// Until it expires unless extended, ms.
    pub remaining_ms: u64,
    /// What is stored with it.
    pub note: Note,
    /// Semaphores: its slots. Empty for the others.
    pub slots: Vec<u32>,
}

/// Who hold a lock together.
#[derive(Debug, Clone)]
pub struct Sharers {
    /// Those whose leases last longest.
    pub holders: Vec<Holder>,
    /// How many there are in all.
    pub total: u32,
    /// Until all of their leases expire unless one is extended, ms.
    pub remaining_ms: u64,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Held by someone else (lock, multilock, election), or full (semaphore).
    #[error("held by someone else")]
    Contended {
        /// Which primitive.
        primitive: Primitive,
        /// The holders; empty while no single lease has a quorum.
        holders: Vec<Holder>,
        /// Of a lock: who hold it together, in place of one.
        sharers: Option<Sharers>,
        /// When asking again makes sense, ms.
        retry_after_ms: u64,
        /// The votes.
        nodes: Nodes,
        /// Whether the caller waited for it (metrics tell `timeout` from `held`).
        waited: bool,
    },
    /// A release with its request id ended the request.
    #[error("a release ended the request")]
    Ended {
        /// What it asked for.
        primitive: Primitive,
        /// When asking again makes sense, ms.
        retry_after_ms: u64,
        /// No votes: nothing was asked of them any more.
        nodes: Nodes,
    },
    /// The request id stands for an earlier request that holds a lease, and was another one.
    #[error("the request id stands for another request")]
    RequestIdReused {
        /// The parameters that differ, by the names that callers know.
        parameters: Vec<&'static str>,
    },
    /// The lease is not held any more.
    #[error("the lease is not held any more")]
    LeaseLost {
        /// The votes.
        nodes: Nodes,
    },
    /// The lease has been held for as long as it may be, or reaches as far already.
    #[error("the lease has been held for as long as it may be")]
    HoldLimitReached {
        /// The votes.
        nodes: Nodes,
    },
    /// Fewer than a quorum of nodes answered; not granted, nothing left behind.
    #[error("fewer than a quorum of nodes answered")]
    QuorumUnavailable {
        /// The votes.
        nodes: Nodes,
        /// When asking again makes sense, ms.
        retry_after_ms: u64,
    },
    /// A later token has been issued.
    #[error("a later token has been issued")]
    StaleToken {
        /// The highest known.
        highest: Token,
    },
    /// The waiting room is full.
    #[error("too many waiters")]
    TooManyWaiters {
        /// When asking again makes sense, ms.
        retry_after_ms: u64,
    },
    /// The server drains.
    #[error("shutting down")]
    ShuttingDown,
}

/// A lease as everyone may see it.
pub(crate) fn holder(named: &Named<'_>, slots: Vec<u32>) -> Holder {
    Holder {
        token: named.token,
        remaining_ms: named.remaining_ms,
        note: read_note(named.data, named.version),
        slots,
    }
}

/// How many of those who hold a lock together are shown.
const SHARERS_SHOWN: usize = 16;

/// Who hold a lock together, as far as a quorum of nodes tells; `None` where nobody does.
pub(crate) fn sharers<'a>(
    holdings: impl Iterator<Item = &'a Holding> + Clone,
    answered: usize,
    total: usize,
) -> Option<Sharers> {
    let (mut named, count) = tally::sharers(holdings, answered, total)?;
    let remaining_ms = named.first()?.remaining_ms;
    named.truncate(SHARERS_SHOWN);
    let holders = named.iter().map(|named| holder(named, Vec::new())).collect();
    Some(Sharers { holders, total: count, remaining_ms })
}

pub(crate) fn unavailable(nodes: Nodes) -> ServiceError {
    ServiceError::QuorumUnavailable { nodes, retry_after_ms: 1000 }
}

/// What is stored with a lease, as the nodes keep it.
pub(crate) fn write_note(note: &Note) -> String {
    // A map of strings always serializes.
    serde_json::to_string(note).unwrap_or_default()
}

/// Back from the nodes; what cannot be read is shown as nothing.
pub(crate) fn read_note(data: &str, version: Version) -> Note {
    Note { version, ..serde_json::from_str(data).unwrap_or_default() }
}

/// Bounds of waiting.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimits {
    /// Waiters in all.
    pub waiters_max: usize,
    /// Waiters per name.
    pub waiters_per_name_max: usize,
}

/// The service over one engine. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    /// The engine.
    pub engine: Arc<Engine>,
    pub(crate) rooms: Arc<waiting::Rooms>,
    pub(crate) requests: Arc<requests::Requests>,
    pub(crate) watches: Arc<watches::Watches>,
    pub(crate) released: Arc<released::Released>,
    pub(crate) ledger: Arc<ledger::Ledger>,
}

impl Service {
    /// A service over `engine`.
    pub fn new(engine: Arc<Engine>, limits: WaitLimits) -> Self {
        let requests = requests::Requests::new(Arc::clone(engine.clock()), limits.waiters_max);
        let rooms = waiting::Rooms::new(Arc::clone(&engine), limits);
        Self {
            engine,
            rooms,
            requests,
            watches: Arc::default(),
            released: Arc::default(),
            ledger: Arc::default(),
        }
    }

    /// Ends all waiting with [`ServiceError::ShuttingDown`]; grants in flight finish.
    pub fn drain(&self) {
        self.rooms.close();
        self.requests.close();
    }

    /// Who wait at this server and are asked for, in the order of arrival: the first `limit` of those numbered above
    /// `after`.
    pub fn waiters(&self, after: u64, limit: usize, is_asked_for: impl Fn(&Visitor) -> bool) -> Vec<Waiter> {
        self.rooms.waiters(after, limit, is_asked_for)
    }

    /// Wall clock, ms since the epoch; for display.
    pub fn wall_ms(&self) -> u64 {
        self.engine.clock().wall_us() / 1000
    }

    /// Sets the gauges that only a look can tell.
    pub fn refresh_gauges(&self) {
        crate::telemetry::metrics().longest_wait_seconds.set(self.rooms.longest_wait().as_secs_f64());
        crate::telemetry::metrics().quorum_available.set(if self.engine.available() { 1.0 } else { 0.0 });
        crate::telemetry::metrics().membership_epoch.set(self.engine.epoch() as f64);
        crate::telemetry::metrics().member_list_mismatch.set(self.engine.list_mismatch() as f64);
    }

    /// Forgets the leases and the places that are over. To be called every second.
    pub fn sweep(&self) {
        self.ledger.sweep(self.engine.clock().now());
        self.requests.sweep();
    }

    /// Whether [`Service::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.rooms.is_closed()
    }
}

/// Suggested pause before another try, from how long the holder has left.
pub(crate) fn retry_after(remaining_ms: Option<u64>) -> u64 {
    const AGAIN: Duration = Duration::from_millis(1000);
    remaining_ms.unwrap_or(100).clamp(50, AGAIN.as_millis() as u64)
}
