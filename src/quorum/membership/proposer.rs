//! Choosing the next epoch: one proposer as a state machine without I/O (docs/protocol.md §4).
//!
//! Single-decree Paxos for each epoch, as CASPaxos does it: first promises, then acceptance of what the promises
//! oblige to, or of the proposer's own. A step is chosen by a majority of the members of the epoch before. A new
//! deployment, and one of which a majority lost its memory, is chosen by *all* nodes that it names: two of these
//! that share a node cannot both be chosen, and each shares one with any majority of which somebody still knows.

use std::collections::BTreeMap;

use crate::domain::{ChosenBy, MemberEntry, Membership};

/// A node that takes part, by its place in the list of this server.
pub type Place = usize;

/// A node as a proposer knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptor {
    /// Its process.
    pub run_id: String,
    /// Its incarnation.
    pub nonce: String,
    /// Whether it is a member of the epoch before and remembers that.
    pub is_intact: bool,
}

/// What a node promised.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Promise {
    /// The ballot under which it accepted `value`.
    pub at: String,
    /// What it accepted.
    pub value: Option<Membership>,
}

/// A proposal under way.
#[derive(Debug, Clone)]
pub struct Proposer {
    before: Option<Membership>,
    acceptors: BTreeMap<Place, Acceptor>,
    own: Membership,
    promises: BTreeMap<Place, Promise>,
    value: Option<Membership>,
    accepted: Vec<Place>,
}

impl Proposer {
    /// Proposes `own` as the epoch after `before`.
    pub fn new(
        before: Option<Membership>,
        acceptors: impl IntoIterator<Item = (Place, Acceptor)>,
        own: Membership,
    ) -> Self {
        let acceptors = acceptors.into_iter().collect();
        Self { before, acceptors, own, promises: BTreeMap::new(), value: None, accepted: Vec::new() }
    }

    /// A node promised.
    pub fn promised(&mut self, place: Place, promise: Promise) {
        self.promises.insert(place, promise);
    }

    /// What is to be accepted now, once enough have promised; none where they have not, or where they oblige to
    /// what this proposer cannot finish.
    pub fn choose(&mut self) -> Option<Membership> {
        let promised: Vec<Place> = self.promises.keys().copied().collect();
        let value = match self.obliged() {
            Some(begun) if self.is_out_of_reach(&begun) => {
                self.own.epoch = self.own.epoch.max(begun.epoch + 1);
                self.own.clone()
            }
            Some(begun) => begun,
            None => self.own.clone(),
        };
        if !self.is_enough(&value, &promised) {
            return None;
        }
        self.value = Some(value.clone());
        Some(value)
    }

    /// Whether nobody can finish this attempt to begin anew, since a process that it names has lost its memory
    /// meanwhile. A node that accepts a later attempt takes no marker of this one, so no quorum is ever marked with
    /// it. Where a deployment is founded, the later one has to name a node in the place of each that is missing.
    fn is_out_of_reach(&self, begun: &Membership) -> bool {
        let mut missing = begun.members.iter().filter(|member| {
            !self.acceptors.values().any(|one| one.run_id == member.run_id && one.nonce == member.nonce)
        });
        let is_anew = (self.own.by, begun.by) == (ChosenBy::All, ChosenBy::All);
        let is_replaced = |member: &MemberEntry| {
            self.own.members.iter().any(|one| one.run_id == member.run_id || one.address == member.address)
        };
        is_anew && missing.clone().next().is_some() && (self.before.is_some() || missing.all(is_replaced))
    }

    /// The value accepted under the greatest ballot, unless it cannot have been chosen.
    fn obliged(&self) -> Option<Membership> {
        let concerns = |value: &&Membership| match (&self.before, value.by) {
            (Some(before), ChosenBy::Majority) => {
                value.deployment == before.deployment && value.epoch == before.epoch + 1
            }
            (None, ChosenBy::Majority) => false,
            (before, ChosenBy::All) => before.as_ref().is_none_or(|before| value.epoch > before.epoch),
        };
        // Where a majority lost its memory no step of it can be finished. What was chosen by those who forgot it has
        // marked no quorum, and cannot any more: the texts that it would replace are gone.
        let counts = |value: &Membership| self.own.by == ChosenBy::Majority || value.by == ChosenBy::All;
        let accepted = self.promises.iter().filter(|(_, promise)| {
            promise.value.as_ref().is_some_and(|value| concerns(&value) && counts(value))
        });
        let value = accepted.max_by(|a, b| a.1.at.cmp(&b.1.at))?.1.value.clone()?;
        self.may_be_chosen(&value).then_some(value)
    }

    /// Whether all who must have accepted a value for it to be chosen did so, or have not been heard.
    fn may_be_chosen(&self, value: &Membership) -> bool {
        let has_not = |place: &Place| {
            self.promises.get(place).is_some_and(|promise| promise.value.as_ref() != Some(value))
        };
        match (value.by, &self.before) {
            (ChosenBy::All, _) => !self.acceptors.iter().any(|(place, acceptor)| {
                value.find(&acceptor.run_id, &acceptor.nonce).is_some() && has_not(place)
            }),
            (ChosenBy::Majority, Some(before)) => {
                let against = self.acceptors.iter().filter(|(place, one)| one.is_intact && has_not(place));
                before.total() - against.count() >= before.quorum()
            }
            (ChosenBy::Majority, None) => false,
        }
    }

    /// A node accepted; true once the value is chosen.
    pub fn accepted(&mut self, place: Place) -> bool {
        if !self.accepted.contains(&place) {
            self.accepted.push(place);
        }
        self.value.as_ref().is_some_and(|value| self.is_enough(value, &self.accepted))
    }

    fn is_enough(&self, value: &Membership, places: &[Place]) -> bool {
        let there = || places.iter().filter_map(|place| self.acceptors.get(place));
        match (value.by, &self.before) {
            (ChosenBy::All, _) => value
                .members
                .iter()
                .all(|member| there().any(|one| one.run_id == member.run_id && one.nonce == member.nonce)),
            (ChosenBy::Majority, Some(before)) => {
                there().filter(|one| one.is_intact).count() >= before.quorum()
            }
            (ChosenBy::Majority, None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Role, Stage};

    fn value(epoch: u64, id: &str, by: ChosenBy, members: &[usize]) -> Membership {
        Membership {
            epoch,
            id: id.into(),
            deployment: "d".into(),
            by,
            wait_ms: 0,
            token_floor: 0,
            stage: Stage::Settled,
            members: members
                .iter()
                .map(|i| MemberEntry {
                    run_id: format!("r{i}"),
                    nonce: "n".into(),
                    joined: 0,
                    role: Role::Voting,
                    address: format!("a{i}"),
                })
                .collect(),
        }
    }

    /// What one node stores.
    #[derive(Clone, Default)]
    struct Stored {
        promised: String,
        at: String,
        value: Option<Membership>,
    }

    /// Two proposers, whose messages to each of their nodes happen in any order, and each of which may die at any
    /// moment: whatever is chosen, nothing else ever is.
    #[derive(Clone)]
    struct Run {
        stored: Vec<Stored>,
        proposers: Vec<(Proposer, String, Vec<Place>, Option<Membership>)>,
        /// Who accepted what, at any time.
        log: Vec<(Place, Membership)>,
        chosen: Vec<Membership>,
    }

    impl Run {
        /// Every order in which the messages may arrive: at each step one proposer sends to its next node.
        fn explore(mut self, p: usize, i: usize, steps: &mut u64) {
            *steps += 1;
            let (proposer, ballot, todo, value) = &mut self.proposers[p];
            let place = todo.remove(i);
            let node = &mut self.stored[place];
            if node.promised <= *ballot {
                node.promised = ballot.clone();
                match value {
                    None => {
                        let promise = Promise { at: node.at.clone(), value: node.value.clone() };
                        proposer.promised(place, promise);
                        if let Some(chosen) = proposer.choose() {
                            *todo = proposer.promises.keys().copied().collect();
                            *value = Some(chosen);
                        }
                    }
                    Some(value) => {
                        (node.at, node.value) = (ballot.clone(), Some(value.clone()));
                        self.log.push((place, value.clone()));
                        if proposer.accepted(place) {
                            self.chosen.push(value.clone());
                        }
                    }
                }
            }
            assert!(
                self.chosen.windows(2).all(|pair| pair[0] == pair[1]),
                "two are chosen: {:?}",
                self.chosen
            );
            self.go(steps);
        }

        fn go(self, steps: &mut u64) {
            for p in 0..self.proposers.len() {
                for i in 0..self.proposers[p].2.len() {
                    self.clone().explore(p, i, steps);
                }
            }
        }
    }

    fn acceptors(places: &[usize], intact: &[usize]) -> Vec<(Place, Acceptor)> {
        let one = |i: &usize| Acceptor {
            run_id: format!("r{i}"),
            nonce: "n".into(),
            is_intact: intact.contains(i),
        };
        places.iter().map(|i| (*i, one(i))).collect()
    }

    fn run(nodes: usize, proposers: Vec<Proposer>) -> u64 {
        let proposers = proposers
            .into_iter()
            .enumerate()
            .map(|(i, proposer)| {
                let todo = proposer.acceptors.keys().copied().collect();
                (proposer, format!("{}", i + 1), todo, None)
            })
            .collect();
        let run =
            Run { stored: vec![Stored::default(); nodes], proposers, log: Vec::new(), chosen: Vec::new() };
        let mut steps = 0;
        run.go(&mut steps);
        steps
    }

    #[test]
    fn two_proposers_choose_one_epoch_in_whatever_order_their_messages_arrive() {
        let before = value(1, "e", ChosenBy::Majority, &[0, 1, 2]);
        let own = |id: &str| value(2, id, ChosenBy::Majority, &[0, 1, 3]);
        let all = acceptors(&[0, 1, 2], &[0, 1, 2]);
        let steps = run(
            3,
            vec![
                Proposer::new(Some(before.clone()), all[..2].to_vec(), own("a")),
                Proposer::new(Some(before), all[1..].to_vec(), own("b")),
            ],
        );
        assert!(steps > 1000, "{steps}");
    }

    #[test]
    fn two_lists_that_share_a_node_found_one_deployment_at_most() {
        let found = |id: &str, places: &[usize]| {
            Proposer::new(None, acceptors(places, &[]), value(1, id, ChosenBy::All, places))
        };
        let steps = run(3, vec![found("a", &[0, 1]), found("b", &[1, 2])]);
        assert!(steps > 100, "{steps}");
    }

    #[test]
    fn a_step_that_a_minority_remembers_does_not_stop_what_begins_anew() {
        let before = value(1, "e", ChosenBy::Majority, &[0, 1, 2]);
        let own = value(2, "a", ChosenBy::All, &[0, 1, 2]);
        let step = value(2, "b", ChosenBy::Majority, &[0, 1, 2]);
        let mut recovery = Proposer::new(Some(before), acceptors(&[0, 1, 2], &[0]), own.clone());
        recovery.promised(0, Promise { at: "1".into(), value: Some(step) });
        recovery.promised(1, Promise::default());
        assert_eq!(recovery.choose(), None, "it takes all of them");
        recovery.promised(2, Promise::default());
        assert_eq!(recovery.choose(), Some(own));
    }

    #[test]
    fn a_minority_chooses_nothing_and_a_proposer_that_died_half_way_blocks_nobody() {
        let before = value(1, "e", ChosenBy::Majority, &[0, 1, 2]);
        let own = |id: &str| value(2, id, ChosenBy::Majority, &[0, 1]);
        let all = acceptors(&[0, 1, 2], &[0, 1, 2]);
        let mut cut_off = Proposer::new(Some(before.clone()), all.clone(), own("a"));
        cut_off.promised(0, Promise::default());
        assert_eq!(cut_off.choose(), None);
        // Another one was accepted by one node, and its proposer is gone: it is finished where that may be.
        let mut next = Proposer::new(Some(before.clone()), all.clone(), own("b"));
        next.promised(0, Promise { at: "1".into(), value: Some(own("a")) });
        next.promised(1, Promise::default());
        assert_eq!(next.choose(), Some(own("a")));
        assert!(!next.accepted(0));
        assert!(next.accepted(1));
        // A founding that some node did not accept is none, and stands in nobody's way.
        let mut founds = Proposer::new(None, acceptors(&[0, 1], &[]), value(1, "b", ChosenBy::All, &[0, 1]));
        founds.promised(0, Promise { at: "1".into(), value: Some(value(1, "a", ChosenBy::All, &[0, 1, 2])) });
        founds.promised(1, Promise::default());
        assert_eq!(founds.choose().map(|value| value.id), Some("b".to_owned()));
    }
}
