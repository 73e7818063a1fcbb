//! Log lines about votes that failed, a few of them: one per cause in a while, with a
//! count of those that were not written.
//!
//! A node that is down fails every request of a busy server, and the log must neither fill nor
//! stay silent. Votes that succeed do not come here.

use tokio::time::Instant;

use super::metrics::{NODE_OUTCOMES, node_outcome};
use super::{NodeError, Script};
use crate::telemetry::seldom::Seldom;

/// What one node failed with.
pub(super) struct Complaints {
    causes: [Seldom; NODE_OUTCOMES.len()],
}

impl Complaints {
    pub(super) fn new(now: Instant) -> Self {
        Self { causes: std::array::from_fn(|_| Seldom::new(now)) }
    }

    /// A vote failed: writes a line unless there was one about this cause just now.
    pub(super) fn failed(&self, node: &str, op: Script, why: &NodeError, now: Instant) {
        let cause = node_outcome(Err(why));
        let Some(suppressed) = self.causes[cause].line(now) else { return };
        let (op, cause) = (op.name(), NODE_OUTCOMES[cause]);
        // Not the node's doing: a client left before it arrived, or the server ends.
        if matches!(why, NodeError::Undone | NodeError::Dropped) {
            tracing::debug!(node, op, cause, suppressed, error = %why, "vote failed");
        } else {
            tracing::warn!(node, op, cause, suppressed, error = %why, "vote failed");
        }
    }

    /// Writes what was held back and has no later line to be counted in. Called now and then.
    pub(super) fn catch_up(&self, node: &str, now: Instant) {
        for (cause, name) in self.causes.iter().zip(NODE_OUTCOMES) {
            if let Some(suppressed) = cause.overdue(now) {
                tracing::warn!(node, cause = name, suppressed, "votes failed");
            }
        }
    }
}
