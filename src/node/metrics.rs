//! What is counted of one node, and the words for how a call to it ended.

use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram};

use super::{NodeError, Script};
use crate::domain::named;
use crate::telemetry::{NODE_REQUESTS, NODE_SECONDS, NODE_STATE, POOL_CONNECTIONS};

/// Outcomes of a call to a node, as `quorate_node_requests_total` labels them.
pub(super) const NODE_OUTCOMES: [&str; 14] = [
    "done",
    "refused",
    "timeout",
    "connection",
    "down",
    "quarantined",
    "node_refused",
    "overloaded",
    "unmarked",
    "clock_ahead",
    "clock_stepped",
    "undone",
    "redis_error",
    "nonsense",
];

/// Which of [`NODE_OUTCOMES`] the answer is.
pub(super) fn node_outcome(answer: Result<bool, &NodeError>) -> usize {
    match answer {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(NodeError::Timeout) => 2,
        Err(NodeError::Connection(_) | NodeError::Dropped) => 3,
        Err(NodeError::Down) => 4,
        Err(NodeError::Quarantined) => 5,
        Err(NodeError::Refused(_)) => 6,
        Err(NodeError::Overloaded) => 7,
        Err(NodeError::Unmarked) => 8,
        Err(NodeError::ClockAhead) => 9,
        Err(NodeError::ClockStepped) => 10,
        Err(NodeError::Undone) => 11,
        Err(NodeError::Redis(_)) => 12,
        Err(NodeError::Nonsense) => 13,
    }
}

named! {
    /// What a node is, as the API and `quorate_node_state` call it.
    pub(super) enum NodeState {
        /// It votes.
        Voting = "voting",
        /// It abstains until what it may have forgotten has expired.
        Quarantined = "quarantined",
        /// It does not answer, or can grant nothing.
        Down = "down",
        /// It must not vote as it is.
        Refused = "refused",
    }
}

/// The handles of one node.
pub(super) struct NodeMetrics {
    node: String,
    requests: Vec<[Counter; NODE_OUTCOMES.len()]>,
    seconds: Vec<Histogram>,
    states: [Gauge; 4],
    connections: [Gauge; 2],
}

impl NodeMetrics {
    /// For the node with the label `node` (`n1`, `n2`, …).
    pub(super) fn new(node: &str) -> Self {
        let scripts = || Script::ALL.iter().map(|script| script.name());
        let outcomes = |op| NODE_OUTCOMES.map(|outcome| NODE_REQUESTS.counter(&[node, op, outcome]));
        Self {
            node: node.to_owned(),
            requests: scripts().map(outcomes).collect(),
            seconds: scripts().map(|op| NODE_SECONDS.histogram(&[node, op])).collect(),
            states: NodeState::ALL.map(|state| NODE_STATE.gauge(&[node, state.name()])),
            connections: ["calls", "hints"].map(|of| POOL_CONNECTIONS.gauge(&[node, of])),
        }
    }

    /// The label.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// One call ended after `took`.
    pub(super) fn request(&self, script: Script, answer: Result<bool, &NodeError>, took: Duration) {
        self.requests[script as usize][node_outcome(answer)].increment(1);
        self.seconds[script as usize].record(took);
    }

    /// The node is in this state, and in no other.
    pub(super) fn state(&self, state: NodeState) {
        for (of, gauge) in NodeState::ALL.iter().zip(&self.states) {
            gauge.set(if *of == state { 1.0 } else { 0.0 });
        }
    }

    /// Connections open: (calls, hints).
    pub(super) fn connections(&self, open: (usize, usize)) {
        self.connections[0].set(open.0 as f64);
        self.connections[1].set(open.1 as f64);
    }
}
