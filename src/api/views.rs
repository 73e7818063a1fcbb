//! What answers are made of: holders, tallies, times. Written once, for all primitives.
//!
//! Absent means absent: no answer carries a null.

use std::num::NonZero;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Iso8601;
use time::format_description::well_known::iso8601::{Config, EncodedConfig, TimePrecision};
use utoipa::ToSchema;

use crate::domain::{Candidate, Metadata, Owner, Value};
use crate::service::{Holder, Lease, Nodes, Primitive};

/// The answers of the nodes, counted.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = Nodes, example = json!({"total": 3, "quorum": 2, "granted": 2, "held": 0, "failed": 0}))]
pub struct NodesView {
    /// Nodes that are configured.
    total: u32,
    /// How many make a quorum.
    quorum: u32,
    /// Nodes that granted, extended or released the lease. A lease is asked of a quorum first, and the answer does not wait for more: so 2 of 3 is the usual sight, and as good as 3.
    granted: u32,
    /// Nodes that hold another lease; in the answer to a read, nodes that hold a lease.
    held: u32,
    /// Nodes that abstained or did not answer.
    failed: u32,
}

impl From<Nodes> for NodesView {
    fn from(Nodes { total, quorum, granted, held, failed }: Nodes) -> Self {
        Self { total, quorum, granted, held, failed }
    }
}

/// A holder's lease, as everyone may see it. Which members it has depends on what is held.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Holder, example = json!({"owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64, "remaining_ms": 12_345}))]
pub struct HolderView {
    /// Semaphores: the permits held, by number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    slots: Vec<u32>,
    /// Locks and semaphores: the holder's label.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    owner: Option<Owner>,
    /// Locks and semaphores: what the holder attached.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    metadata: Metadata,
    /// Locks and semaphores: the fencing token.
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    /// Elections: who leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    candidate: Option<Candidate>,
    /// Elections: what the leader proclaims.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    value: Option<Value>,
    /// Elections: the fencing token.
    #[serde(skip_serializing_if = "Option::is_none")]
    term: Option<u64>,
    /// Time until the lease expires unless extended, in milliseconds.
    remaining_ms: u64,
}

impl HolderView {
    /// The views of the `holders` of a `primitive`.
    pub fn all(primitive: Primitive, holders: Vec<Holder>) -> Vec<Self> {
        let elected = primitive == Primitive::Election;
        let view = |Holder { token, remaining_ms, note, slots }| Self {
            slots,
            owner: note.owner.filter(|_| !elected),
            metadata: note.metadata,
            fencing_token: (!elected).then_some(token.get()),
            candidate: note.candidate.filter(|_| elected),
            value: note.value.filter(|_| elected),
            term: elected.then_some(token.get()),
            remaining_ms,
        };
        holders.into_iter().map(view).collect()
    }
}

/// Milliseconds since the epoch, written as RFC 3339 in UTC. For display only.
#[derive(Debug, Clone, Copy)]
pub struct Timestamp(pub u64);

/// Three decimals, whatever the time.
const MILLISECONDS: EncodedConfig =
    Config::DEFAULT.set_time_precision(TimePrecision::Second { decimal_digits: NonZero::new(3) }).encode();

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000);
        let text = at.ok().and_then(|at| at.format(&Iso8601::<MILLISECONDS>).ok());
        // A time beyond the year 9999 can only come from a broken clock; it is shown as the epoch.
        serializer.serialize_str(text.as_deref().unwrap_or("1970-01-01T00:00:00.000Z"))
    }
}

/// How a lease is shown to its holder: as it is now, with what the wall clock shows.
pub trait Show<V>: Fn(&Lease, u64) -> V + Send + 'static {}

impl<V, F: Fn(&Lease, u64) -> V + Send + 'static> Show<V> for F {}

/// Whether something was released by this call.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"released": true}))]
pub struct Released {
    /// `false` if the lease was not held (any more): releasing twice is no error.
    pub released: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_in_utc() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_790_000_000_042, "2026-09-21T14:13:20.042Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (u64::MAX, "1970-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(serde_json::to_value(Timestamp(ms)).unwrap(), text);
        }
    }
}
