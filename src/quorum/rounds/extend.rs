//! Extending what is still held (docs/protocol.md §1.6).

use smallvec::SmallVec;

use super::{Action, Patience, StateMachine};
use crate::domain::Version;
use crate::node::ballot::Vote;
use crate::node::calls::Extended;
use crate::quorum::tally::{Count, Verdict};

/// What may be missing at a node that holds the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::quorum) struct Copy {
    pub(in crate::quorum) version: Version,
    pub(in crate::quorum) joined: bool,
}

impl Copy {
    pub(in crate::quorum) fn of(extended: &Extended) -> Self {
        Self { version: extended.version, joined: extended.joined }
    }
}

/// Votes of an extension so far.
#[derive(Debug, Clone)]
pub(in crate::quorum) struct ExtendRound {
    pub(in crate::quorum) count: Count,
    /// What the node with the least remaining time stores, with the latest data of all.
    pub(in crate::quorum) stored: Option<Extended>,
    /// Of each node that holds it.
    pub(in crate::quorum) copies: SmallVec<[(usize, Copy); 5]>,
    /// Nodes that do not hold it, and their clocks when they said so.
    pub(in crate::quorum) lost: SmallVec<[(usize, u64); 5]>,
    /// One bit a node that is in quarantine: it counts as one that failed, whatever it says.
    quarantined: u64,
}

impl ExtendRound {
    pub(in crate::quorum) fn new(total: usize) -> Self {
        Self {
            count: Count::new(total),
            stored: None,
            copies: SmallVec::new(),
            lost: SmallVec::new(),
            quarantined: 0,
        }
    }

    /// This node is in quarantine.
    pub(in crate::quorum) fn does_not_count(&mut self, node: usize) {
        self.quarantined |= 1 << node;
        self.count.failed += 1;
    }
}

impl StateMachine for ExtendRound {
    fn action(&self) -> Action {
        if self.count.extension_verdict() == Verdict::Open { Action::Wait } else { Action::Done }
    }

    fn on_vote(&mut self, node: usize, vote: Vote) -> Action {
        let node_ms = vote.as_ref().map_or(0, |answer| answer.node_ms);
        let counts = self.quarantined & (1 << node) == 0;
        match vote.and_then(Extended::read) {
            Ok(Some(_)) if !counts => {}
            Ok(Some(mut extended)) => {
                self.count.yes += 1;
                self.copies.push((node, Copy::of(&extended)));
                if let Some(stored) = self.stored.take() {
                    let (version, joined) =
                        (stored.version.max(extended.version), stored.joined || extended.joined);
                    let data = if stored.version == version { &stored } else { &extended }.data.clone();
                    let terms = if stored.remaining_ms < extended.remaining_ms { stored } else { extended };
                    extended = Extended { version, joined, data, ..terms };
                }
                self.stored = Some(extended);
            }
            Ok(None) => {
                self.count.no += usize::from(counts);
                self.lost.push((node, node_ms));
            }
            Err(_) => self.count.failed += usize::from(counts),
        }
        self.action()
    }

    fn on_timeout(&mut self, _: Patience) -> Action {
        Action::Done
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::arrivals;
    use super::*;
    use crate::node::{Answer, NodeError, Value};
    use crate::quorum::tally::quorum_of;

    /// A node holds it with one of three versions, the later the shorter, the last one joined; lost it; or abstains.
    const WAYS: usize = 5;

    fn vote(way: usize) -> Vote {
        let text = |text: &str| Value::Text(text.into());
        match way {
            0..3 => {
                let mark = text(if way == 2 { "j" } else { "e" });
                let numbers = [Value::Int(100 - way as i64), Value::Int(100), mark, Value::Int(way as i64)];
                let rest = [text("-"), text("-"), text(&way.to_string()), text(""), Value::Int(0)];
                Ok(Answer { done: true, node_ms: 1, rest: [&numbers[..], &rest].concat() })
            }
            3 => Ok(Answer { done: false, node_ms: 9, rest: Vec::new() }),
            _ => Err(NodeError::Down),
        }
    }

    #[test]
    fn what_a_quorum_holds_is_told_with_the_least_time_and_the_latest_of_the_rest() {
        for total in 1..=5 {
            let quorum = quorum_of(total);
            for votes in arrivals(total, WAYS) {
                let mut round = ExtendRound::new(total);
                let mut at = 0;
                while at < total && round.action() != Action::Done {
                    round.on_vote(at, vote(votes[at]));
                    at += 1;
                }
                let (seen, all) = (&votes[..at], votes.iter().filter(|&&way| way < 3).count());
                let failed = votes.iter().filter(|&&way| way == 4).count();
                let expected = match (all >= quorum, all + failed < quorum) {
                    (true, _) => Verdict::Carried,
                    (_, true) => Verdict::Rejected,
                    _ => Verdict::NoQuorum,
                };
                assert_eq!(round.count.extension_verdict(), expected, "{votes:?}");
                let held = seen.iter().copied().filter(|&way| way < 3);
                let told = round.stored.as_ref().map(|s| (s.version.get(), s.data.clone(), s.remaining_ms));
                let latest = held.clone().max().map(|way| (way as u64, way.to_string(), 100 - way as u64));
                assert_eq!(told, latest, "{votes:?}");
                assert_eq!(round.stored.is_some_and(|s| s.joined), held.clone().any(|way| way == 2));
                assert_eq!(round.copies.len(), held.count());
                assert_eq!(round.lost.len(), seen.iter().filter(|&&way| way == 3).count());
            }
        }
    }

    #[test]
    fn a_node_in_quarantine_counts_as_one_that_failed_whatever_it_says() {
        for votes in arrivals(3, WAYS) {
            let mut round = ExtendRound::new(3);
            round.does_not_count(0);
            for (i, &way) in votes.iter().enumerate() {
                round.on_vote(i, vote(way));
            }
            let held = votes[1..].iter().filter(|&&way| way < 3).count();
            assert_eq!((round.count.yes, round.count.pending()), (held, 0), "{votes:?}");
        }
    }
}
