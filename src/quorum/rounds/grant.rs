//! A granting round (docs/protocol.md §1.1 to §1.5, §2).

use smallvec::SmallVec;

use super::{Action, Patience, StateMachine};
use crate::domain::{Holding, Nodes, Token};
use crate::node::NodeError;
use crate::node::ballot::Vote;
use crate::node::calls::GrantVote;
use crate::quorum::grant::Refusal;
use crate::quorum::tally::{self, Count, Verdict, quorum_of};

/// Votes of a granting round so far.
#[derive(Debug, Clone)]
pub(in crate::quorum) struct GrantRound {
    pub(in crate::quorum) count: Count,
    tokens: SmallVec<[u64; 5]>,
    pub(in crate::quorum) holdings: Vec<Holding>,
    /// Nodes that refused without naming anybody: only looking found them free.
    free: usize,
    /// How long it is kept for another server, ms, at most.
    kept_ms: Option<u64>,
    /// A node has been told already to forget this lease.
    pub(in crate::quorum) undone: bool,
    /// One bit a node in quarantine.
    pub(in crate::quorum) quarantined: u64,
    /// One bit a node that refused.
    pub(in crate::quorum) refused: u64,
    /// One bit a node that was asked, and granted it or has not said that it did not.
    pub(in crate::quorum) may_hold: u64,
    /// How many nodes are asked only once that is of use.
    unasked: usize,
    /// The caller's own earlier attempt may be in the way: all votes count.
    is_retry: bool,
    /// It counts as split, since who could decide it takes too long.
    split: bool,
    /// The last votes have had their time.
    over: bool,
}

/// Why a round is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::quorum) enum Lost {
    /// No quorum grants it.
    Refused,
    /// Nodes have been told already to forget it.
    Undone,
    /// Fewer than a quorum answered.
    NoQuorum(Nodes),
}

impl GrantRound {
    /// A round over so many nodes.
    pub(in crate::quorum) fn new(total: usize, is_retry: bool) -> Self {
        Self {
            count: Count::new(total),
            tokens: SmallVec::new(),
            holdings: Vec::new(),
            free: 0,
            kept_ms: None,
            undone: false,
            quarantined: 0,
            refused: 0,
            may_hold: 0,
            unasked: 0,
            is_retry,
            split: false,
            over: false,
        }
    }

    /// These nodes, one bit each, are asked; so many others only if that is of use.
    pub(in crate::quorum) fn asked(&mut self, nodes: u64, unasked: usize) {
        self.may_hold |= nodes;
        self.unasked = unasked;
    }

    /// Whether a node has named a lease of the same request.
    pub(in crate::quorum) fn names_own_request(&self) -> bool {
        self.holdings.iter().any(|holding| holding.same_request)
    }

    /// Whether to stop. A refusal that concerns the caller's own earlier request is worth all
    /// votes until a quorum agrees on its token: the same lease must come back with the same one.
    fn is_decided(&self) -> bool {
        let verdict = self.count.verdict();
        if verdict == Verdict::Rejected && self.names_own_request() {
            let quorum = quorum_of(self.count.total);
            let agreed = |one: &Holding| {
                self.holdings.iter().filter(|h| h.lease == one.lease && h.token == one.token).count()
            };
            return self.count.pending() == 0
                || self.holdings.iter().any(|h| h.same_request && agreed(h) >= quorum);
        }
        verdict != Verdict::Open
    }

    /// Whether a quorum has answered, some one way and some another. The caller's own earlier request is worth
    /// all votes.
    fn is_torn(&self) -> bool {
        let Count { yes, no, .. } = self.count;
        yes > 0 && no > 0 && yes + no >= quorum_of(self.count.total) && !self.names_own_request()
    }

    /// Whether the nodes that were asked do not make a quorum of answers, or have all answered. A lock that is held
    /// is refused by all: the first refusal alone is no reason to ask more.
    fn needs_rest(&self) -> bool {
        let Count { yes, no, total, .. } = self.count;
        let pending = self.count.pending().saturating_sub(self.unasked);
        pending == 0 || yes + no + pending < quorum_of(total)
    }

    /// A tie looks like a lease that is held until the last votes are in. And a retry takes the token
    /// that a quorum stores for the one that was reported, whoever answered first.
    fn is_open(&self) -> bool {
        self.is_in_doubt() || (self.is_retry && self.is_uneven())
    }

    /// Whether a lease may have a quorum, as far as the votes tell.
    fn may_be_held(&self) -> bool {
        let answered = self.count.yes + self.count.no;
        tally::may_be_held(self.holdings.iter(), answered, self.count.total)
    }

    /// Whether the round is lost, and the votes that are out decide to whom, or to nobody.
    fn is_in_doubt(&self) -> bool {
        self.count.verdict() == Verdict::Rejected
            && self.count.pending() > 0
            && self.may_be_held()
            && tally::most(self.holdings.iter()) < quorum_of(self.count.total)
    }

    /// Whether the round is won, and the votes that are out decide with which token.
    fn is_uneven(&self) -> bool {
        self.count.verdict() == Verdict::Carried
            && self.count.pending() > 0
            && !tally::token_of(&self.tokens, self.count.total).1
    }

    /// The token, and whether a quorum stores it.
    pub(in crate::quorum) fn verdict(&self) -> Result<(Token, bool), Lost> {
        let no_quorum = || Lost::NoQuorum(self.count.nodes());
        match self.count.verdict() {
            Verdict::Carried => {
                let (token, is_stored) = tally::token_of(&self.tokens, self.count.total);
                Token::new(token).map(|token| (token, is_stored)).map_err(|_| no_quorum())
            }
            Verdict::Rejected => Err(Lost::Refused),
            Verdict::Open if self.split => Err(Lost::Refused),
            // Those that undid it have answered.
            _ if self.undone => Err(Lost::Undone),
            Verdict::NoQuorum | Verdict::Open => Err(no_quorum()),
        }
    }

    /// What those who asked are told of a round that was refused.
    pub(in crate::quorum) fn refusal(&self) -> Refusal {
        let total = self.count.total;
        let free = self.free + self.count.yes;
        let remaining = self.holdings.iter().map(|h| h.remaining_ms).chain(std::iter::repeat_n(0, free));
        Refusal {
            free_in_ms: tally::free_in(remaining, total),
            held: !self.split && self.may_be_held(),
            nodes: self.count.nodes(),
            holdings: self.holdings.clone(),
            undone: self.undone,
            kept_ms: self.kept_ms,
        }
    }
}

impl StateMachine for GrantRound {
    fn action(&self) -> Action {
        let is_decided = self.is_decided();
        match (is_decided, self.unasked > 0) {
            (true, _) if self.over || !self.is_open() => Action::Done,
            (false, _) if self.split => Action::Done,
            // Whoever is still out decides.
            (true, true) => Action::AskRest,
            (false, true) if self.is_torn() || self.needs_rest() => Action::AskRest,
            (true, false) => Action::WaitFor(Patience::Tie),
            (false, true) => Action::WaitFor(Patience::Hedge),
            // Unless that takes long: then the next round shall decide, which all contenders begin at one node.
            (false, false) if self.is_torn() => Action::WaitFor(Patience::Stall),
            (false, false) => Action::Wait,
        }
    }

    fn on_vote(&mut self, node: usize, vote: Vote) -> Action {
        match vote.and_then(GrantVote::read) {
            Ok(GrantVote::Granted(token)) => {
                self.count.yes += 1;
                self.tokens.push(token);
            }
            Ok(GrantVote::Kept(kept_ms)) => {
                self.count.no += 1;
                self.refused |= 1 << node;
                self.may_hold &= !(1 << node);
                self.free += 1;
                self.kept_ms = self.kept_ms.max(Some(kept_ms));
            }
            Ok(GrantVote::Held(holding)) => {
                self.count.no += 1;
                self.refused |= 1 << node;
                self.may_hold &= !(1 << node);
                match holding {
                    Some(holding) => self.holdings.push(holding),
                    None => self.free += 1,
                }
            }
            Err(why) => {
                self.count.failed += 1;
                self.undone |= matches!(why, NodeError::Undone);
                self.quarantined |= u64::from(matches!(why, NodeError::Quarantined)) << node;
                if !why.may_have_run() {
                    self.may_hold &= !(1 << node);
                }
            }
        }
        self.action()
    }

    fn on_timeout(&mut self, patience: Patience) -> Action {
        match patience {
            Patience::Hedge => Action::AskRest,
            Patience::Stall => {
                self.split = true;
                Action::Done
            }
            Patience::Tie => {
                self.over = true;
                Action::Done
            }
        }
    }

    fn on_rest_asked(&mut self) -> Action {
        self.unasked = 0;
        self.action()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::arrivals;
    use super::*;
    use crate::node::{Answer, Value};

    const TOKEN: u64 = 7;

    fn held_by(lease: u128, same_request: bool) -> Vote {
        let lease = format!("{lease:032x}");
        let holding = [
            Value::Int(100),
            Value::Int(100),
            Value::Int(TOKEN as i64),
            Value::Text(lease),
            Value::Int(0),
            Value::Text("{}".into()),
            Value::Int(0),
            Value::Int(i64::from(same_request)),
            Value::Text("-".into()),
        ];
        Ok(Answer { done: false, node_ms: 1, rest: vec![Value::List(holding.to_vec())] })
    }

    /// A node grants, with the token proposed or a greater one, is held by one of two others or by the same request,
    /// or abstains.
    const WAYS: usize = 6;

    fn vote(way: usize) -> Vote {
        match way {
            0 | 1 => {
                Ok(Answer { done: true, node_ms: 1, rest: vec![Value::Int((TOKEN as i64) + way as i64)] })
            }
            2 | 3 => held_by(way as u128, false),
            4 => held_by(4, true),
            _ => Err(NodeError::Down),
        }
    }

    /// Feeds votes until the round is done or all are in; times out wherever it may where `hurried`.
    fn fed(total: usize, unasked: usize, votes: &[usize], hurried: bool) -> (GrantRound, usize, bool) {
        let mut round = GrantRound::new(total, false);
        let asked = total - unasked;
        round.asked((1 << asked) - 1, unasked);
        let (mut at, mut rest_asked, mut action) = (0, unasked == 0, round.action());
        loop {
            action = match action {
                Action::Done => return (round, at, rest_asked),
                Action::AskRest => {
                    assert!(!rest_asked, "{votes:?}");
                    rest_asked = true;
                    round.on_rest_asked()
                }
                Action::WaitFor(patience) if hurried => round.on_timeout(patience),
                Action::Wait | Action::WaitFor(_) => {
                    let last = if rest_asked { total } else { asked };
                    if at == last {
                        assert!(rest_asked, "the others could decide it: {votes:?}");
                        return (round, at, rest_asked);
                    }
                    at += 1;
                    round.on_vote(at - 1, vote(votes[at - 1]))
                }
            };
        }
    }

    #[test]
    fn a_round_is_won_with_a_quorum_of_grants_and_only_then_whoever_is_asked_when() {
        for total in 1..=5 {
            let quorum = quorum_of(total);
            for votes in arrivals(total, WAYS) {
                for unasked in [0, total - quorum] {
                    for hurried in [false, true] {
                        let (round, seen, _) = fed(total, unasked, &votes, hurried);
                        let granted = votes[..seen].iter().filter(|&&way| way < 2).count();
                        assert_eq!(round.verdict().is_ok(), granted >= quorum, "{votes:?} {unasked}");
                        // In its time nobody is refused what a quorum would have granted.
                        let all = votes.iter().filter(|&&way| way < 2).count();
                        if !hurried && all >= quorum {
                            assert!(round.verdict().is_ok(), "{votes:?} {unasked}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_token_is_the_greatest_of_a_quorum_and_stored_only_where_that_says_so() {
        for total in 1..=5 {
            for votes in arrivals(total, 2) {
                let (round, seen, _) = fed(total, 0, &votes, false);
                let (token, is_stored) = round.verdict().unwrap();
                let with =
                    |token: u64| votes[..seen].iter().filter(|&&way| TOKEN + way as u64 == token).count();
                assert_eq!(is_stored, with(token.get()) >= quorum_of(total), "{votes:?}");
                assert!(is_stored || votes[..seen].iter().all(|&way| TOKEN + way as u64 <= token.get()));
            }
        }
    }

    #[test]
    fn every_node_that_may_hold_the_lease_is_known_at_every_moment() {
        for total in 1..=5 {
            for votes in arrivals(total, WAYS) {
                let mut round = GrantRound::new(total, true);
                round.asked((1 << total) - 1, 0);
                for (i, &way) in votes.iter().enumerate() {
                    round.on_vote(i, vote(way));
                    let clean = (0..=i).filter(|&i| votes[i] >= 2).fold(0, |bits, i| bits | 1 << i);
                    assert_eq!(round.may_hold, ((1 << total) - 1) & !clean, "{votes:?} after {i}");
                }
            }
        }
        // One that did not answer in time may have run it.
        let mut round = GrantRound::new(1, false);
        round.asked(1, 0);
        round.on_vote(0, Err(NodeError::Timeout));
        assert_eq!(round.may_hold, 1);
    }

    #[test]
    fn a_lease_counts_as_held_only_where_a_quorum_may_name_it() {
        for total in 1..=5 {
            let quorum = quorum_of(total);
            for votes in arrivals(total, WAYS) {
                let (round, seen, _) = fed(total, 0, &votes, false);
                if round.verdict() != Err(Lost::Refused) {
                    continue;
                }
                let named = (2..5).map(|way| votes[..seen].iter().filter(|&&vote| vote == way).count());
                let failed = votes[..seen].iter().filter(|&&way| way == 5).count();
                let most = named.max().unwrap_or(0);
                let held = most > 0 && most + failed + (total - seen) >= quorum;
                assert_eq!(round.refusal().held, held, "{votes:?} of {total} after {seen}");
            }
        }
    }

    #[test]
    fn spares_are_asked_as_soon_as_the_others_cannot_suffice_and_not_where_they_do() {
        for total in [3, 5] {
            let quorum = quorum_of(total);
            for votes in arrivals(total, WAYS) {
                let (_, _, rest_asked) = fed(total, total - quorum, &votes, false);
                let sufficed = votes[..quorum].iter().all(|&way| way < 2);
                let refused = (2..4).any(|way| votes[..quorum].iter().all(|&vote| vote == way));
                if sufficed || refused {
                    assert!(!rest_asked, "{votes:?}");
                }
                if votes[..quorum].contains(&5) {
                    assert!(rest_asked, "{votes:?}");
                }
            }
        }
    }
}
