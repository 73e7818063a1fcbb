//! What stands in the place of a node's marker, and what each of it means (docs/protocol.md §4).
//!
//! Scripts compare the text as a whole. Only servers read what is in it.

use crate::domain::{MemberEntry, Membership, Role, Stage, TTL_MS_MAX};

/// The format that this version writes.
const FORMAT: &str = "2";

/// A text in the place of a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Blank,
    /// A member of an epoch.
    Member { epoch: u64, id: String, run_id: String, nonce: String },
    /// Some server found a reason why this process may have forgotten leases.
    Doubted {
        run_id: String,
        nonce: String,
        /// The process whose data it had, or `-`.
        former: String,
        reason: String,
    },
    /// It was closed on purpose, and has not voted since.
    Closed {
        /// What the other members remember of it.
        nonce: String,
        run_id: String,
    },
    /// The deployment has moved.
    Retired,
    /// Of the version before: process, deployment, N, the longest lease, ms.
    Old { run_id: String, deployment: String, total: usize, max_ttl_ms: u64 },
    /// Of a later version. Such a node is not written to.
    Newer(String),
}

impl Mark {
    /// Reads what a node stores. What makes no sense is as good as nothing.
    pub fn read(text: Option<&str>) -> Self {
        let Some(text) = text else { return Self::Blank };
        let fields: Vec<&str> = text.split(' ').collect();
        let owned = |text: &&str| (*text).to_owned();
        match fields.as_slice() {
            [FORMAT, "member", epoch, id, run_id, nonce] => match epoch.parse() {
                Ok(epoch) => {
                    Self::Member { epoch, id: owned(id), run_id: owned(run_id), nonce: owned(nonce) }
                }
                Err(_) => Self::Blank,
            },
            [FORMAT, "doubt", run_id, nonce, former, reason @ ..] => Self::Doubted {
                run_id: owned(run_id),
                nonce: owned(nonce),
                former: owned(former),
                reason: reason.join(" "),
            },
            [FORMAT, "closed", nonce, run_id] => Self::Closed { nonce: owned(nonce), run_id: owned(run_id) },
            [FORMAT, "retired", ..] => Self::Retired,
            ["1", run_id, deployment, total, max_ttl_ms] => match (total.parse(), max_ttl_ms.parse()) {
                (Ok(total), Ok(max_ttl_ms)) if max_ttl_ms <= TTL_MS_MAX => {
                    Self::Old { run_id: owned(run_id), deployment: owned(deployment), total, max_ttl_ms }
                }
                _ => Self::Blank,
            },
            [format, ..] if format.parse::<u64>().is_ok_and(|format| format > 2) => {
                Self::Newer(owned(format))
            }
            _ => Self::Blank,
        }
    }

    /// What says that a process may have forgotten leases, in the place of this mark.
    pub fn doubt(&self, run_id: &str, nonce: u128, reason: &str) -> String {
        let former = self.process().unwrap_or("-");
        format!("{FORMAT} doubt {run_id} {:016x} {former} {reason}", nonce as u64)
    }

    /// The process whose data this is.
    pub fn process(&self) -> Option<&str> {
        match self {
            Self::Member { run_id, .. } | Self::Closed { run_id, .. } | Self::Old { run_id, .. } => {
                Some(run_id)
            }
            Self::Doubted { former, .. } if former != "-" => Some(former),
            _ => None,
        }
    }

    /// The marker of this member in this epoch.
    pub fn of(membership: &Membership, member: &MemberEntry) -> String {
        let Membership { epoch, id, .. } = membership;
        let MemberEntry { run_id, nonce, .. } = member;
        match (membership.stage, member.role) {
            (Stage::Retired, _) => format!("{FORMAT} retired {}", membership.deployment),
            (_, Role::Closed) => format!("{FORMAT} closed {nonce} {run_id}"),
            _ => format!("{FORMAT} member {epoch} {id} {run_id} {nonce}"),
        }
    }
}
