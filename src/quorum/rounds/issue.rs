//! Issuing a fencing token without a lease (docs/protocol.md §2).

use smallvec::SmallVec;

use super::{Action, Patience, StateMachine};
use crate::node::ballot::Vote;
use crate::node::calls;
use crate::quorum::tally::{self, Count, Verdict, quorum_of};

/// Tokens that nodes have issued. It counts only where a quorum stored exactly the same new value: two issuers can
/// then never get the same one.
#[derive(Debug, Clone)]
pub(in crate::quorum) struct IssueRound {
    pub(in crate::quorum) count: Count,
    issued: SmallVec<[u64; 5]>,
    over: bool,
}

impl IssueRound {
    pub(in crate::quorum) fn new(total: usize) -> Self {
        Self { count: Count::new(total), issued: SmallVec::new(), over: false }
    }

    /// The token that a quorum stores.
    pub(in crate::quorum) fn token(&self) -> Option<u64> {
        let (token, is_stored) = tally::token_of(&self.issued, self.count.total);
        is_stored.then_some(token)
    }

    /// The greatest that any node stores, where a quorum answered.
    pub(in crate::quorum) fn greatest(&self) -> Option<u64> {
        self.issued.iter().copied().max().filter(|_| self.issued.len() >= quorum_of(self.count.total))
    }
}

impl StateMachine for IssueRound {
    fn action(&self) -> Action {
        if self.over || self.token().is_some() || self.count.verdict() == Verdict::NoQuorum {
            Action::Done
        } else if self.issued.len() >= quorum_of(self.count.total) {
            // Where those of a quorum disagree, another answer may still settle it, unless that takes long.
            Action::WaitFor(Patience::Tie)
        } else {
            Action::Wait
        }
    }

    fn on_vote(&mut self, _: usize, vote: Vote) -> Action {
        match vote.and_then(|answer| calls::read_issued(&answer)) {
            Ok(token) => {
                self.count.yes += 1;
                self.issued.push(token);
            }
            Err(_) => self.count.failed += 1,
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
    use crate::node::{Answer, NodeError, Value};

    #[test]
    fn a_token_is_issued_only_where_a_quorum_stores_it_and_always_where_it_does() {
        for total in 1..=5 {
            let quorum = quorum_of(total);
            for votes in arrivals(total, 3) {
                let mut round = IssueRound::new(total);
                let mut at = 0;
                while at < total && round.action() != Action::Done {
                    let answer = |token| Ok(Answer { done: true, node_ms: 1, rest: vec![Value::Int(token)] });
                    round.on_vote(
                        at,
                        if votes[at] == 2 { Err(NodeError::Down) } else { answer(7 + votes[at] as i64) },
                    );
                    at += 1;
                }
                let stored = (0..2).find(|way| votes.iter().filter(|vote| *vote == way).count() >= quorum);
                assert_eq!(round.token(), stored.map(|way| 7 + way as u64), "{votes:?}");
            }
        }
    }
}
