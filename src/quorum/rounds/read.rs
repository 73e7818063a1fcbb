//! Reading what the nodes store.

use super::{Action, Patience, StateMachine};
use crate::node::ballot::Vote;
use crate::node::{Answer, NodeError};
use crate::quorum::tally::{Count, quorum_of};

/// The answers of a quorum at least, and more until they are enough.
pub(in crate::quorum) struct ReadRound<T, R, E> {
    total: usize,
    failed: usize,
    pub(in crate::quorum) answers: Vec<T>,
    read: R,
    enough: E,
    /// Beyond a quorum, only for a moment.
    is_hurried: bool,
    over: bool,
}

impl<T, R, E> ReadRound<T, R, E>
where
    R: Fn(Answer) -> Result<T, NodeError>,
    E: Fn(&[T]) -> bool,
{
    pub(in crate::quorum) fn new(total: usize, is_hurried: bool, read: R, enough: E) -> Self {
        Self { total, failed: 0, answers: Vec::with_capacity(total), read, enough, is_hurried, over: false }
    }

    /// As people read it: how many nodes hold something, by `holds`.
    pub(in crate::quorum) fn count(&self, holds: impl Fn(&T) -> bool) -> Count {
        let yes = self.answers.iter().filter(|answer| holds(answer)).count();
        Count { total: self.total, yes, no: self.answers.len() - yes, failed: self.failed }
    }

    pub(in crate::quorum) fn has_quorum(&self) -> bool {
        self.answers.len() >= quorum_of(self.total)
    }
}

impl<T, R, E> StateMachine for ReadRound<T, R, E>
where
    R: Fn(Answer) -> Result<T, NodeError>,
    E: Fn(&[T]) -> bool,
{
    fn action(&self) -> Action {
        if self.over || self.total - self.failed < quorum_of(self.total) {
            Action::Done
        } else if !self.has_quorum() {
            Action::Wait
        } else if (self.enough)(&self.answers) {
            Action::Done
        } else if self.is_hurried {
            Action::WaitFor(Patience::Tie)
        } else {
            Action::Wait
        }
    }

    fn on_vote(&mut self, _: usize, vote: Vote) -> Action {
        match vote.and_then(&self.read) {
            Ok(answer) => self.answers.push(answer),
            Err(_) => self.failed += 1,
        }
        self.action()
    }

    fn on_timeout(&mut self, _: Patience) -> Action {
        self.over = true;
        Action::Done
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::arrivals;
    use super::*;

    #[test]
    fn a_read_ends_with_a_quorum_that_is_enough_or_when_there_can_be_none() {
        for total in 1..=5 {
            let quorum = quorum_of(total);
            for votes in arrivals(total, 3) {
                for hurried in [false, true] {
                    let read = |answer: Answer| Ok(answer.done);
                    let enough = |answers: &[bool]| answers.iter().any(|&done| done);
                    let mut round = ReadRound::new(total, hurried, read, enough);
                    let mut at = 0;
                    let mut action = round.action();
                    while at < total && action != Action::Done {
                        if action == Action::WaitFor(Patience::Tie) {
                            action = round.on_timeout(Patience::Tie);
                            break;
                        }
                        let answer = |done| Ok(Answer { done, node_ms: 1, rest: Vec::new() });
                        let vote = if votes[at] == 2 { Err(NodeError::Down) } else { answer(votes[at] == 1) };
                        action = round.on_vote(at, vote);
                        at += 1;
                    }
                    let answered = votes.iter().filter(|&&way| way < 2).count();
                    assert_eq!(round.has_quorum(), answered >= quorum, "{votes:?}");
                    let found = round.answers.contains(&true);
                    let may_find = votes.contains(&1);
                    assert!(!round.has_quorum() || found || hurried || !may_find, "{votes:?}");
                }
            }
        }
    }
}
