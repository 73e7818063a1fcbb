//! Log lines about votes that failed, a few of them: one per cause and [`EVERY`], with a count
//! of those that were not written.
//!
//! A node that is down fails every request of a busy server, and the log must neither fill nor
//! stay silent. Votes that succeed do not come here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::{NodeError, Script};
use crate::telemetry::{NODE_OUTCOMES, node_outcome};

/// Between two lines about the same cause at the same node.
const EVERY: Duration = Duration::from_secs(10);

/// What one node failed with.
pub(super) struct Complaints {
    since: Instant,
    causes: [Cause; NODE_OUTCOMES.len()],
}

#[derive(Default)]
struct Cause {
    /// When the next line may be written, ms since `since`.
    next_ms: AtomicU64,
    /// Votes since the last line.
    unsaid: AtomicU64,
}

impl Complaints {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, causes: Default::default() }
    }

    /// A vote failed: writes a line unless there was one about this cause just now.
    pub(super) fn failed(&self, node: &str, op: Script, why: &NodeError, now: Instant) {
        let cause = node_outcome(Err(why));
        let (entry, cause) = (&self.causes[cause], NODE_OUTCOMES[cause]);
        if !entry.takes_turn(self.ms(now)) {
            entry.unsaid.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (op, suppressed) = (op.name(), entry.unsaid.swap(0, Ordering::Relaxed));
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
            if cause.unsaid.load(Ordering::Relaxed) > 0 && cause.takes_turn(self.ms(now)) {
                let suppressed = cause.unsaid.swap(0, Ordering::Relaxed);
                tracing::warn!(node, cause = name, suppressed, "votes failed");
            }
        }
    }

    fn ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_millis() as u64
    }
}

impl Cause {
    /// Whether it is time for a line, which the caller then writes.
    fn takes_turn(&self, now_ms: u64) -> bool {
        let due = self.next_ms.load(Ordering::Relaxed);
        let next = now_ms + EVERY.as_millis() as u64;
        now_ms >= due
            && self.next_ms.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_line_per_cause_in_ten_seconds() {
        let cause = Cause::default();
        let told: Vec<u64> =
            [0, 0, 1, 9_999, 10_000, 10_001, 60_000].into_iter().filter(|ms| cause.takes_turn(*ms)).collect();
        assert_eq!(told, [0, 10_000, 60_000]);
    }
}
