//! Releasing a lease, and barring one that must not come (docs/protocol.md §1.4 and §1.8).

use super::{Action, Patience, StateMachine};
use crate::node::ballot::Vote;
use crate::node::calls::Released;
use crate::quorum::tally::{Count, Verdict, bar_of, quorum_of};

/// Votes of a release: yes where the lease was held.
#[derive(Debug, Clone)]
pub(in crate::quorum) struct ReleaseRound {
    pub(in crate::quorum) count: Count,
    /// Of those that abstained: it is not there, but they may have forgotten it.
    forgotten: usize,
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
        let count = Count::new(total);
        Self { count, forgotten: 0, unasked, must_ask_all: false, is_waited_for, over: false }
    }

    /// Nodes that do not hold it any more.
    fn without(&self) -> usize {
        self.count.yes + self.count.no + self.forgotten
    }

    /// So many are without it that it has no quorum.
    fn is_enough(&self) -> bool {
        self.without() >= quorum_of(self.count.total)
    }

    /// It can have no quorum any more.
    pub(in crate::quorum) fn is_free(&self) -> bool {
        self.is_enough() || self.count.yes + self.unasked >= quorum_of(self.count.total)
    }

    /// Whether it was held, by one node at least and by so many, as far as the others tell, that nobody else could
    /// hold anything; `None` where that cannot be told, or it may be held still.
    pub(in crate::quorum) fn was_held(&self) -> Option<bool> {
        match self.count.yes {
            _ if !self.is_free() => None,
            _ if !self.may_have_been_held() => Some(false),
            0 => None,
            _ => Some(true),
        }
    }

    fn may_have_been_held(&self) -> bool {
        self.count.yes + self.count.pending() + self.count.failed >= bar_of(self.count.total)
    }
}

impl StateMachine for ReleaseRound {
    fn action(&self) -> Action {
        let Count { yes, total, .. } = self.count;
        let pending = self.count.pending();
        if self.over || self.without() + pending < quorum_of(total) {
            return Action::Done;
        }
        if self.must_ask_all && self.unasked > 0 {
            return Action::AskRest;
        }
        if self.is_enough() {
            // A copy that came later than the others, as a spare's does, is over later. So where nodes
            // disagree, the others shall say what a quorum has, unless that takes long, too. Where only they can have
            // held it, since those that answered may have forgotten it, they are waited for.
            return match yes {
                0 if pending > 0 && self.may_have_been_held() => Action::Wait,
                0 => Action::Done,
                _ if yes == self.without() || yes >= bar_of(total) || yes + pending < bar_of(total) => {
                    Action::Done
                }
                _ => Action::WaitFor(Patience::Tie),
            };
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
                self.forgotten += usize::from(released.forgotten);
                *match released {
                    Released { held: true, .. } => &mut self.count.yes,
                    Released { forgotten: true, .. } => &mut self.count.failed,
                    _ => &mut self.count.no,
                } += 1;
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
        match vote.map(|answer| Released::read(&answer)) {
            Ok(Released { stays: true, .. }) => self.count.yes += 1,
            Ok(Released { forgotten: false, .. }) => self.count.no += 1,
            Ok(_) | Err(_) => self.count.failed += 1,
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

    /// It was held as acquired, held and extended, not held, the node abstains, or it is not there but may have been.
    const WAYS: usize = 5;

    fn vote(way: usize) -> Vote {
        let answer = |done, flag| Ok(Answer { done, node_ms: 1, rest: vec![Value::Int(flag)] });
        match way {
            0 => answer(true, 0),
            1 => answer(true, 1),
            2 => answer(false, 0),
            4 => answer(false, 2),
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
                    let answered = of(&[0, 1, 2, 4]);
                    let is_free = answered >= quorum || of(&[0, 1]) + never >= quorum;
                    assert_eq!(round.is_free(), is_free, "{votes:?} {unasked}");
                    if unasked > 0 && of(&[1, 2, 4]) > 0 && answered < quorum {
                        let can_answer = answered + total - at >= quorum;
                        assert!(rest_asked || !can_answer, "{votes:?}");
                    }
                    // What a quorum may have held is not told to have been none's: only a node that votes says so.
                    if unasked == 0 || rest_asked {
                        let may = votes.iter().filter(|&&way| way != 2).count() >= bar_of(total);
                        assert!(round.was_held() != Some(false) || !may, "{votes:?} {unasked}");
                        // And what nobody held is not told to have been held, nor that this cannot be told where a
                        // quorum of voting nodes does.
                        assert!(round.was_held() != Some(true) || of(&[0, 1]) > 0, "{votes:?} {unasked}");
                        let told = of(&[0, 1]) > 0 || of(&[2]) >= quorum;
                        assert!(round.was_held().is_some() || !is_free || !told, "{votes:?} {unasked}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_bar_is_over_once_a_quorum_holds_the_lease_or_none_can() {
        for total in 1..=5 {
            for votes in arrivals(total, 4) {
                let mut round = BarRound::new(total);
                let mut action = round.action();
                for (i, &way) in votes.iter().enumerate() {
                    if action == Action::Done {
                        break;
                    }
                    let answer = |flag| Ok(Answer { done: false, node_ms: 1, rest: vec![Value::Int(flag)] });
                    let vote = match way {
                        2 => Err(NodeError::Down),
                        // It may have forgotten it.
                        3 => answer(2),
                        _ => answer(way as i64),
                    };
                    action = round.on_vote(i, vote);
                }
                let stays = votes.iter().filter(|&&way| way == 1).count();
                let failed = votes.iter().filter(|&&way| way >= 2).count();
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
