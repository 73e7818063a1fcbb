//! Extending what is still held (docs/protocol.md §1.6).

use smallvec::SmallVec;

use super::{Action, Patience, StateMachine};
use crate::domain::Version;
use crate::node::ballot::Vote;
use crate::node::calls::{Extended, ended_at_limit};
use crate::node::member::Asked;
use crate::quorum::tally::{Count, Verdict, bar_of, quorum_of};

/// What may be missing at a node that holds the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::quorum) struct Copy {
    pub(in crate::quorum) version: Version,
    pub(in crate::quorum) joined: bool,
    pub(in crate::quorum) remaining_ms: u64,
    /// The node's clock then.
    pub(in crate::quorum) node_ms: u64,
}

impl Copy {
    pub(in crate::quorum) fn of(extended: &Extended, node_ms: u64) -> Self {
        let Extended { version, joined, remaining_ms, .. } = *extended;
        Self { version, joined, remaining_ms, node_ms }
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
    /// A node says that it was held for as long as it may be.
    pub(in crate::quorum) ended_at_limit: bool,
    /// One bit a node in quarantine: it counts as one that failed, whatever it says.
    quarantined: u64,
    /// One bit a member that is closed: the same, but what it held when it was closed it still holds.
    closed: u64,
    /// How many of these hold the lease, and how many have not answered.
    witnesses: usize,
    witnesses_out: usize,
}

impl ExtendRound {
    pub(in crate::quorum) fn new(total: usize) -> Self {
        Self {
            count: Count::new(total),
            stored: None,
            copies: SmallVec::new(),
            lost: SmallVec::new(),
            ended_at_limit: false,
            quarantined: 0,
            closed: 0,
            witnesses: 0,
            witnesses_out: 0,
        }
    }

    /// This node was asked in this way.
    pub(in crate::quorum) fn asked(&mut self, node: usize, how: Asked) {
        match how {
            Asked::ToVote => return,
            Asked::AsWitness => {
                self.closed |= 1 << node;
                self.witnesses_out += 1;
            }
            Asked::ToCopy => self.quarantined |= 1 << node,
        }
        self.count.failed += 1;
    }

    /// Those that vote and do not hold it, and their clocks when they said so.
    pub(in crate::quorum) fn without(&self) -> impl Iterator<Item = (usize, u64)> {
        self.lost.iter().copied().filter(|(node, _)| (self.quarantined | self.closed) & (1 << node) == 0)
    }

    /// This node holds a copy now, which counts.
    pub(in crate::quorum) fn restored(&mut self, node: usize) {
        self.lost.retain(|(i, _)| *i != node);
        self.count.no -= 1;
        self.count.yes += 1;
    }

    /// Every copy is to last as long as a quorum's copies do: one that ends sooner counts as lost.
    pub(in crate::quorum) fn even_out(&mut self) {
        let mut left: SmallVec<[u64; 5]> = self.copies.iter().map(|(_, copy)| copy.remaining_ms).collect();
        left.sort_unstable_by(|one, other| other.cmp(one));
        let (Some(stored), Some(&left)) = (&mut self.stored, left.get(quorum_of(self.count.total) - 1))
        else {
            return;
        };
        stored.remaining_ms = left;
        let short = self.copies.iter().filter(|(_, copy)| copy.remaining_ms < left);
        self.lost.extend(short.map(|(node, copy)| (*node, copy.node_ms)));
    }

    /// Whether no other lease can have been granted since this one was, while no quorum holds it: a member was added,
    /// or closed. Copies that then make a quorum count (§1.7). So it is if `out` more answers are as good as can be.
    fn is_restorable_with(&self, out: usize, witnesses_out: usize) -> bool {
        let (total, held) = (self.count.total, self.count.yes + self.witnesses + witnesses_out);
        self.count.yes + self.without().count() + out >= quorum_of(total) && held + out >= bar_of(total)
    }

    /// Whether copies may make the quorum that it lacks.
    pub(in crate::quorum) fn is_restorable(&self) -> bool {
        self.verdict() == Verdict::NoQuorum && self.is_restorable_with(0, 0)
    }

    pub(in crate::quorum) fn verdict(&self) -> Verdict {
        let is_open = || {
            !self.is_restorable_with(0, 0)
                && self.is_restorable_with(self.count.pending(), self.witnesses_out)
        };
        match self.count.extension_verdict() {
            Verdict::NoQuorum if is_open() => Verdict::Open,
            verdict => verdict,
        }
    }

    /// Of all copies the least time, and the latest of the rest.
    fn store(&mut self, mut extended: Extended) {
        if let Some(stored) = self.stored.take() {
            let (version, joined) = (stored.version.max(extended.version), stored.joined || extended.joined);
            let data = if stored.version == version { &stored } else { &extended }.data.clone();
            // Where one node had room the extension has reached as far as it may only now.
            let at_limit = stored.at_limit && extended.at_limit;
            let terms = if stored.remaining_ms < extended.remaining_ms { stored } else { extended };
            extended = Extended { version, joined, data, at_limit, ..terms };
        }
        self.stored = Some(extended);
    }
}

impl StateMachine for ExtendRound {
    fn action(&self) -> Action {
        if self.verdict() == Verdict::Open { Action::Wait } else { Action::Done }
    }

    fn on_vote(&mut self, node: usize, vote: Vote) -> Action {
        let node_ms = vote.as_ref().map_or(0, |answer| answer.node_ms);
        let [is_copy, is_witness] = [self.quarantined, self.closed].map(|nodes| nodes & (1 << node) != 0);
        self.witnesses_out -= usize::from(is_witness);
        self.ended_at_limit |= !is_copy && vote.as_ref().is_ok_and(ended_at_limit);
        match vote.and_then(Extended::read) {
            Ok(Some(_)) if is_copy => {}
            Ok(Some(extended)) => {
                *(if is_witness { &mut self.witnesses } else { &mut self.count.yes }) += 1;
                self.copies.push((node, Copy::of(&extended, node_ms)));
                self.store(extended);
            }
            Ok(None) => {
                self.count.no += usize::from(!is_copy);
                self.count.failed -= usize::from(is_witness);
                self.lost.push((node, node_ms));
            }
            Err(_) => self.count.failed += usize::from(!is_copy && !is_witness),
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

    /// A node holds it with one of three versions, the later the shorter, the last one joined; lost it; or abstains.
    const WAYS: usize = 5;

    fn vote(way: usize) -> Vote {
        let text = |text: &str| Value::Text(text.into());
        match way {
            0..3 => {
                let mark = text(if way == 2 { "j" } else { "e" });
                let numbers = [Value::Int(100 - way as i64), Value::Int(100), mark, Value::Int(way as i64)];
                let rest = [text("-"), text("-"), text(&way.to_string()), text("")];
                let limits = [0; 4].map(Value::Int);
                let rest = [&numbers[..], &rest, &limits, &[text("x")]].concat();
                Ok(Answer { done: true, node_ms: 1, rest })
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
                let no = votes.iter().filter(|&&way| way == 3).count();
                let expected = match (all >= quorum, no >= quorum) {
                    (true, _) => Verdict::Carried,
                    (_, true) => Verdict::Rejected,
                    _ => Verdict::NoQuorum,
                };
                assert_eq!(round.verdict(), expected, "{votes:?}");
                // Of an even number half of the nodes leave no quorum to anybody else.
                let is_restorable = expected == Verdict::NoQuorum && 2 * all >= total && all + no >= quorum;
                assert_eq!(round.is_restorable(), is_restorable, "{votes:?}");
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
            round.asked(0, Asked::ToCopy);
            for (i, &way) in votes.iter().enumerate() {
                round.on_vote(i, vote(way));
            }
            let held = votes[1..].iter().filter(|&&way| way < 3).count();
            assert_eq!((round.count.yes, round.count.pending()), (held, 0), "{votes:?}");
            assert!(!round.is_restorable(), "{votes:?}");
        }
    }

    #[test]
    fn what_a_closed_member_holds_is_no_vote_but_lets_the_others_have_copies() {
        for total in [3, 5] {
            for votes in arrivals(total, WAYS) {
                let mut round = ExtendRound::new(total);
                round.asked(0, Asked::AsWitness);
                // It is the last that answers.
                for at in 1..=total {
                    round.on_vote(at % total, vote(votes[at % total]));
                }
                let others =
                    |ways: std::ops::Range<usize>| votes[1..].iter().filter(|way| ways.contains(way)).count();
                let (held, without) = (others(0..3), others(3..4));
                let is_witness = votes[0] < 3;
                let no = without + usize::from(votes[0] == 3);
                let expected = match (held >= quorum_of(total), no >= quorum_of(total)) {
                    (true, _) => Verdict::Carried,
                    (_, true) => Verdict::Rejected,
                    _ => Verdict::NoQuorum,
                };
                assert_eq!(round.verdict(), expected, "{votes:?}");
                let is_enough = held + usize::from(is_witness) >= bar_of(total);
                let is_restorable =
                    expected == Verdict::NoQuorum && is_enough && held + without >= quorum_of(total);
                assert_eq!(round.is_restorable(), is_restorable, "{votes:?}");
            }
        }
    }
}
