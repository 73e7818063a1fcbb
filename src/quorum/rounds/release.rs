//! Releasing a lease, and barring one that must not come (docs/protocol.md §1.4 and §1.8).

use super::{Action, Patience, StateMachine};
use crate::node::ballot::Vote;
use crate::node::calls::Released;
use crate::quorum::tally::{Count, Verdict, bar_of, quorum_of};

/// Votes of a release: yes where the lease was held.
#[derive(Debug, Clone)]
pub(in crate::quorum) struct ReleaseRound {
    pub(in crate::quorum) count: Count,
    /// How many nodes were never sent its acquire. They are told once another server may have given them copies.
    unasked: usize,
    /// Another server had to do with it: what the others hold, only they can tell.
    must_ask_all: bool,
    /// Somebody waits here, who shall be told of a quorum, unless that takes long.
    is_waited_for: bool,
    over: bool,
}

impl ReleaseRound {
    pub(in crate::quorum) fn new(total: usize, unasked: usize, is_waited_for: bool) -> Self {
        let is_waited_for = is_waited_for && unasked > 0;
        Self { count: Count::new(total), unasked, must_ask_all: false, is_waited_for, over: false }
    }

    /// A quorum says what became of it.
    fn is_enough(&self) -> bool {
        self.count.yes + self.count.no >= quorum_of(self.count.total)
    }

    /// It can have no quorum any more.
    pub(in crate::quorum) fn is_free(&self) -> bool {
        self.is_enough() || self.count.yes + self.unasked >= quorum_of(self.count.total)
    }

    /// Whether so many may have held it that nobody else could.
    pub(in crate::quorum) fn was_held(&self) -> bool {
        let Count { yes, failed, total, .. } = self.count;
        yes > 0 && yes + self.count.pending() + failed >= bar_of(total)
    }
}

impl StateMachine for ReleaseRound {
    fn action(&self) -> Action {
        let Count { yes, no, total, .. } = self.count;
        if self.over || self.count.verdict() == Verdict::NoQuorum {
            return Action::Done;
        }
        if self.must_ask_all && self.unasked > 0 {
            return Action::AskRest;
        }
        if self.is_enough() {
            // A copy that came later than the others, as a spare's does, is over later. So where nodes
            // disagree, the others shall say what a quorum has, unless that takes long, too.
            let is_open = yes > 0 && no > 0 && yes < bar_of(total);
            if !is_open || yes + self.count.pending() < bar_of(total) {
                return Action::Done;
            }
            return Action::WaitFor(Patience::Tie);
        }
        match (self.is_free(), self.is_waited_for) {
            (false, _) => Action::Wait,
            (true, true) => Action::WaitFor(Patience::Tie),
            (true, false) => Action::Done,
        }
    }

    fn on_vote(&mut self, _: usize, vote: Vote) -> Action {
        match vote.map(|answer| Released::read(&answer)) {
            Ok(released) => {
                *(if released.held { &mut self.count.yes } else { &mut self.count.no }) += 1;
                self.must_ask_all |= released.extended || !released.held;
            }
            Err(_) => self.count.failed += 1,
        }
        self.action()
    }

    fn on_timeout(&mut self, _: Patience) -> Action {
        self.over = true;
        Action::Done
    }

    fn on_rest_asked(&mut self) -> Action {
        self.unasked = 0;
        self.action()
    }
}

/// Votes of a bar: yes where the lease is held, and stays.
#[derive(Debug, Clone)]
pub(in crate::quorum) struct BarRound {
    pub(in crate::quorum) count: Count,
}

impl BarRound {
    pub(in crate::quorum) fn new(total: usize) -> Self {
        Self { count: Count::new(total) }
    }
}

impl StateMachine for BarRound {
    fn action(&self) -> Action {
        if self.count.extension_verdict() == Verdict::Open { Action::Wait } else { Action::Done }
    }

    fn on_vote(&mut self, _: usize, vote: Vote) -> Action {
        match vote.map(|answer| Released::read(&answer).stays) {
            Ok(true) => self.count.yes += 1,
            Ok(false) => self.count.no += 1,
            Err(_) => self.count.failed += 1,
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

    /// It was held as acquired, held and extended, not held, or the node abstains.
    const WAYS: usize = 4;

    fn vote(way: usize) -> Vote {
        let answer = |done, flag| Ok(Answer { done, node_ms: 1, rest: vec![Value::Int(flag)] });
        match way {
            0 => answer(true, 0),
            1 => answer(true, 1),
            2 => answer(false, 0),
            _ => Err(NodeError::Down),
        }
    }

    #[test]
    fn whoever_released_hears_of_it_once_no_quorum_can_hold_it_and_not_before() {
        for total in 1..=5 {
            let quorum = quorum_of(total);
            for votes in arrivals(total, WAYS) {
                for unasked in [0, total - quorum] {
                    let mut round = ReleaseRound::new(total, unasked, false);
                    let (mut at, mut rest_asked, mut action) = (0, unasked == 0, round.action());
                    while action != Action::Done {
                        if action == Action::AskRest {
                            assert!(!rest_asked);
                            rest_asked = true;
                            action = round.on_rest_asked();
                            continue;
                        }
                        let last = if rest_asked { total } else { total - unasked };
                        if at == last {
                            break;
                        }
                        at += 1;
                        action = round.on_vote(at - 1, vote(votes[at - 1]));
                    }
                    let seen = &votes[..at];
                    let of = |ways: &[usize]| seen.iter().filter(|way| ways.contains(way)).count();
                    // Nodes that answered do not hold it any more, nor do those that never had it.
                    let never = if rest_asked { 0 } else { unasked };
                    let answered = of(&[0, 1, 2]);
                    let is_free = answered >= quorum || of(&[0, 1]) + never >= quorum;
                    assert_eq!(round.is_free(), is_free, "{votes:?} {unasked}");
                    if unasked > 0 && of(&[1, 2]) > 0 && answered < quorum {
                        assert!(rest_asked || round.count.verdict() == Verdict::NoQuorum, "{votes:?}");
                    }
                    // What a quorum held is told to have been released.
                    if unasked == 0 && is_free {
                        let held = votes.iter().filter(|&&way| way < 2).count() >= quorum;
                        assert!(round.was_held() || !held, "{votes:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_bar_is_over_once_a_quorum_holds_the_lease_or_none_can() {
        for total in 1..=5 {
            for votes in arrivals(total, 3) {
                let mut round = BarRound::new(total);
                let mut action = round.action();
                for (i, &way) in votes.iter().enumerate() {
                    if action == Action::Done {
                        break;
                    }
                    let answer = |flag| Ok(Answer { done: false, node_ms: 1, rest: vec![Value::Int(flag)] });
                    let vote = if way == 2 { Err(NodeError::Down) } else { answer(way as i64) };
                    action = round.on_vote(i, vote);
                }
                let stays = votes.iter().filter(|&&way| way == 1).count();
                let failed = votes.iter().filter(|&&way| way == 2).count();
                let expected = if stays >= quorum_of(total) {
                    Verdict::Carried
                } else if stays + failed < bar_of(total) {
                    Verdict::Rejected
                } else {
                    Verdict::NoQuorum
                };
                assert_eq!((action, round.count.extension_verdict()), (Action::Done, expected), "{votes:?}");
            }
        }
    }
}
