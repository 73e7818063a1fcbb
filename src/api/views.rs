//! What answers are made of: leases, holders, tallies, times. Written once, for all primitives.
//!
//! Fields that are shared stand in one struct and are flattened into each answer; the OpenAPI
//! document shows them flat as well. Absent means absent: no answer carries a null.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::json;
use time::OffsetDateTime;
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::domain::{Candidate, Metadata, Owner, Value};
use crate::service::{Holder, Lease, Nodes, Primitive};

/// The answers of the nodes, counted.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = Nodes, example = json!({"total": 3, "quorum": 2, "granted": 3, "held": 0, "failed": 0}))]
pub struct NodesView {
    /// Nodes that are configured.
    total: u32,
    /// How many make a quorum.
    quorum: u32,
    /// Nodes that granted, extended or released the lease.
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
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
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
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
    term: Option<u64>,
    /// Time until the lease expires unless extended, in milliseconds.
    #[schema(minimum = 0)]
    remaining_ms: u64,
}

impl HolderView {
    /// The view of a `holder` of a `primitive`.
    pub fn new(primitive: Primitive, holder: Holder) -> Self {
        let Holder { token, remaining_ms, note, slots } = holder;
        let token = Some(token.get());
        if primitive == Primitive::Election {
            Self {
                slots: Vec::new(),
                owner: None,
                metadata: Metadata::default(),
                fencing_token: None,
                candidate: note.candidate,
                value: note.value,
                term: token,
                remaining_ms,
            }
        } else {
            Self {
                slots,
                owner: note.owner,
                metadata: note.metadata,
                fencing_token: token,
                candidate: None,
                value: None,
                term: None,
                remaining_ms,
            }
        }
    }
}

/// Milliseconds since the epoch, written as RFC 3339 in UTC. For display only.
#[derive(Debug, Clone, Copy)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Two of these are in every lease, so they are written digit by digit.
    fn write(self) -> [u8; 24] {
        let nanos = i128::from(self.0) * 1_000_000;
        // A time beyond the year 9999 can only come from a broken clock; it is shown as the epoch.
        let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let (year, month, day) = at.to_calendar_date();
        let (hour, minute, second, ms) = at.to_hms_milli();
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |end: usize, mut number: u32| {
            for digit in text[..end].iter_mut().rev() {
                if number == 0 {
                    break;
                }
                *digit += (number % 10) as u8;
                number /= 10;
            }
        };
        put(4, year.unsigned_abs());
        let parts: [(usize, u8); 5] = [(7, month.into()), (10, day), (13, hour), (16, minute), (19, second)];
        for (end, number) in parts {
            put(end, number.into());
        }
        put(23, ms.into());
        text
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.write()).unwrap_or_default())
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.write()).unwrap_or_default())
    }
}

/// What every lease has.
#[derive(Serialize, ToSchema)]
pub struct LeaseTerms<'a> {
    /// The secret that extends and releases the lease. Whoever has it is the holder; it is never shown again.
    #[schema(min_length = 46, max_length = 46)]
    lease_id: String,
    /// The holder's label.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    /// Life of the lease without extension, in milliseconds.
    #[schema(minimum = 100)]
    ttl_ms: u64,
    /// How long the holder may rely on the lease, in milliseconds from when the answer was written: the remaining time less an allowance for clock drift.
    #[schema(minimum = 0)]
    validity_ms: u64,
    /// When it was acquired. For display only.
    #[schema(value_type = String, format = DateTime)]
    acquired_at: Timestamp,
    /// When its validity ends. For display only.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
    /// How long the caller waited for it, in milliseconds.
    #[schema(minimum = 0)]
    waited_ms: u64,
    /// How many granting rounds were needed.
    #[schema(minimum = 0)]
    attempts: u32,
    /// The votes.
    nodes: NodesView,
}

impl<'a> LeaseTerms<'a> {
    /// The terms of `lease` as they are now; `wall_ms` is what the wall clock shows.
    pub fn new(lease: &'a Lease, wall_ms: u64) -> Self {
        let validity_ms = lease.validity_ms(Instant::now());
        Self {
            lease_id: lease.handle.expose(),
            owner: lease.note.owner.as_ref().map(Owner::as_str),
            ttl_ms: lease.ttl_ms,
            validity_ms,
            acquired_at: Timestamp(lease.note.acquired_at_ms),
            expires_at: Timestamp(wall_ms.saturating_add(validity_ms)),
            waited_ms: lease.waited_ms,
            attempts: lease.attempts,
            nodes: lease.nodes.into(),
        }
    }
}

/// Whether something was released by this call.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"released": true}))]
pub struct Released {
    /// `false` if the lease was not held (any more): releasing twice is no error.
    pub released: bool,
}

/// The fields that the example of every lease has.
pub(super) fn lease_example(own: serde_json::Value) -> serde_json::Value {
    let mut lease = json!({
        "lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000",
        "ttl_ms": 30_000, "validity_ms": 29_696,
        "acquired_at": "2026-09-21T14:13:20.000Z", "expires_at": "2026-09-21T14:13:49.696Z",
        "waited_ms": 0, "attempts": 1,
        "nodes": {"total": 3, "quorum": 2, "granted": 3, "held": 0, "failed": 0},
    });
    if let (Some(lease), serde_json::Value::Object(own)) = (lease.as_object_mut(), own) {
        lease.extend(own);
    }
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_in_utc() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(1_790_000_000_042).to_string(), "2026-09-21T14:13:20.042Z");
        assert_eq!(Timestamp(951_782_400_000).to_string(), "2000-02-29T00:00:00.000Z");
        assert_eq!(Timestamp(u64::MAX).to_string(), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn the_lease_id_of_the_examples_has_a_possible_shape() {
        let lease = lease_example(json!({}));
        assert!(crate::domain::LeaseHandle::parse(lease["lease_id"].as_str().unwrap()).is_ok());
    }
}
