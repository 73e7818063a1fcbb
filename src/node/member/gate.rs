//! Whether a node is asked for votes, and what people are told of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Member;
use crate::node::board::{CLOSED, MARKING, Standing};
use crate::node::metrics::NodeState;
use crate::node::{Marker, NodeError};

/// Why a node abstains whose marker another server changed, until it is looked at.
pub(super) const MOVED: &str = "its marker changed";
/// Why a node abstains whose clock went ahead, until the others are looked at, too.
pub(super) const SUSPECTED: &str = "its clock stepped, or this server stood still";

/// Whether a call may go to the node.
#[derive(Debug)]
pub(super) enum Gate {
    /// In which membership its vote counts.
    Open(Arc<Marker>, u64),
    /// It stopped voting on purpose, under this marker: by which membership it still knows what it held.
    Closed(Arc<Marker>, u64),
    /// Why, and of a node in quarantine under what it is given copies.
    Shut(NodeError, Option<Arc<Marker>>),
}

/// A node of the deployment, as the API shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView {
    /// `n1`, `n2`, … in the order of the configuration.
    pub id: String,
    /// Without password.
    pub address: String,
    /// `voting`, `quarantined`, `down` (it does not answer, or could grant nothing) or `refused`.
    pub state: &'static str,
    /// Why it does not vote.
    pub reason: Option<String>,
    /// When it may vote, ms.
    pub voting_in_ms: Option<u64>,
    /// Once known.
    pub redis_version: Option<String>,
    /// Recent time to an answer.
    pub latency_ms: Option<f64>,
}

impl Member {
    pub(super) fn hinder(&self, why: Option<String>) {
        let (node, address) = (self.metrics.node(), self.node.address());
        let before = self.hindrance.load();
        match (&*before, &why) {
            (None, Some(why)) => tracing::warn!(node, address, %why, "node cannot grant"),
            (Some(_), None) => tracing::info!(node, address, "node can grant again"),
            // The same in other words, perhaps.
            _ => {}
        }
        self.hindrance.store(why.map(Arc::new));
        self.metrics.state(self.state(&self.standing.lock()));
    }

    /// As people are told.
    fn state(&self, standing: &Standing) -> NodeState {
        match standing {
            Standing::Voting(_) if self.hindrance.load().is_none() => NodeState::Voting,
            Standing::Quarantined { .. } => NodeState::Quarantined,
            Standing::Voting(_) | Standing::Down => NodeState::Down,
            Standing::Refused(_) => NodeState::Refused,
        }
    }

    pub(super) fn marker(&self, expected: &Arc<str>, votes: bool) -> Arc<Marker> {
        let (keys, expected) = (self.keys.clone(), Arc::clone(expected));
        Arc::new(Marker { keys, expected, votes, bounds: self.bounds })
    }

    /// False where it is said to vote, and has failed since that was looked at.
    pub(super) fn stand(&self, standing: Standing, generation: u64) -> bool {
        let mut current = self.standing.lock();
        if matches!(standing, Standing::Voting(_)) && self.failed.load(Ordering::Acquire) {
            return false;
        }
        let is_of_another =
            matches!(**self.gate.load(), Gate::Open(_, of) | Gate::Closed(_, of) if of != generation);
        if *current == standing && !is_of_another {
            return true;
        }
        let gate = match &standing {
            Standing::Voting(expected) => {
                self.stepped.store(false, Ordering::Release);
                Gate::Open(self.marker(expected, true), generation)
            }
            Standing::Quarantined { marker: Some(seen), .. } if standing.is_quarantined_for(CLOSED) => {
                Gate::Closed(self.marker(seen, false), generation)
            }
            Standing::Quarantined { marker: seen, .. } => {
                Gate::Shut(NodeError::Quarantined, seen.as_ref().map(|seen| self.marker(seen, false)))
            }
            Standing::Down => Gate::Shut(NodeError::Down, None),
            Standing::Refused(why) => Gate::Shut(NodeError::Refused(Arc::clone(why)), None),
        };
        let (node, address) = (self.metrics.node(), self.node.address());
        match &standing {
            // Only its end has moved, as with every look at a clock that runs at a wrong rate.
            Standing::Quarantined { reason, .. } if current.is_quarantined_for(reason) => {}
            Standing::Voting(_) if matches!(*current, Standing::Voting(_)) => {}
            Standing::Voting(_) => tracing::info!(node, address, "node votes"),
            // Nothing is wrong, and that it is marked is told beside.
            Standing::Quarantined { reason, .. } if **reason == *MARKING || **reason == *MOVED => {
                tracing::debug!(node, address, %reason, "node unmarked");
            }
            Standing::Quarantined { reason, .. } => {
                tracing::warn!(node, address, %reason, "node quarantined")
            }
            Standing::Down => tracing::warn!(node, address, "node down"),
            Standing::Refused(reason) => tracing::error!(node, address, %reason, "node refused"),
        }
        self.gate.store(Arc::new(gate));
        self.electorate.moved();
        self.metrics.state(self.state(&standing));
        *current = standing;
        true
    }

    /// Why the node cannot be reached, or cannot be marked, if it cannot.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.load().as_ref().map(ToString::to_string)
    }

    /// The node as the API shows it.
    pub fn view(&self) -> NodeView {
        let standing = self.standing();
        let (reason, until) = match &standing {
            Standing::Voting(_) => (self.hindrance.load().as_deref().cloned(), None),
            Standing::Quarantined { until, reason, .. } => {
                let reason = match self.trouble() {
                    Some(why) => format!("cannot be marked: {why}"),
                    None => reason.to_string(),
                };
                (Some(reason), *until)
            }
            Standing::Down => (self.trouble(), None),
            Standing::Refused(why) => (Some(why.to_string()), None),
        };
        let now = self.clock.now();
        NodeView {
            id: self.metrics.node().to_owned(),
            address: self.node.address().to_owned(),
            state: self.state(&standing).name(),
            reason,
            voting_in_ms: until.map(|until| until.saturating_duration_since(now).as_millis() as u64),
            redis_version: self.board.lock().version(self.index).map(str::to_owned),
            latency_ms: self.latency().map(|latency| latency.as_micros() as f64 / 1000.0),
        }
    }

    /// Shuts the gate until the next probe says otherwise.
    pub(super) fn fail(&self, standing: Standing) {
        {
            // A probe that ends now either sees this, or has opened before what is shut here.
            let _standing = self.standing.lock();
            self.failed.store(true, Ordering::Release);
        }
        if self.is_voting() {
            self.stand(standing, self.electorate.generation());
        }
        self.wake();
    }

    pub(super) fn doubt(&self, reason: &'static str) {
        self.fail(Standing::Quarantined { until: None, reason: reason.into(), marker: None });
    }
}
