//! What one look at a node told.

use crate::domain::Membership;
use crate::node::Identity;
use crate::node::calls::Status;
use crate::node::marker::Mark;

/// What was last seen of a node.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Who it is.
    pub identity: Identity,
    /// Its whole status.
    pub status: Status,
    /// Its marker.
    pub mark: Mark,
    /// The epoch that it knows.
    pub chosen: Option<Membership>,
    /// The next one, where it accepted one.
    pub accepted: Option<Membership>,
}

impl Seen {
    pub(super) fn new(identity: Identity, status: Status) -> Self {
        let mark = Mark::read((!status.marker.is_empty()).then_some(status.marker.as_str()));
        let (chosen, accepted) = (status.chosen.parse().ok(), status.accepted.parse().ok());
        Self { identity, status, mark, chosen, accepted }
    }

    /// Whether it is a member of this epoch, or of one before, and remembers all since it was taken in.
    pub fn is_intact_in(&self, membership: &Membership) -> bool {
        match &self.mark {
            Mark::Member { run_id, nonce, .. } => {
                *run_id == self.identity.run_id && membership.find(run_id, nonce).is_some()
            }
            Mark::Closed { run_id, nonce } => {
                *run_id == self.identity.run_id && membership.find(run_id, nonce).is_some()
            }
            _ => false,
        }
    }

    /// The incarnation that waits to be taken in.
    pub fn newcomer(&self) -> Option<(&str, &str)> {
        match &self.mark {
            Mark::Doubted { run_id, nonce, .. } | Mark::Old { run_id, deployment: nonce, .. }
                if *run_id == self.identity.run_id =>
            {
                Some((run_id, nonce))
            }
            _ => None,
        }
    }

    pub(super) fn is_fit(&self) -> bool {
        self.identity.is_master() && !self.identity.evicts()
    }
}
