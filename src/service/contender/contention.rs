//! What a contender does after each of its tries: a state machine without I/O.
//!
//! The driver in `mod.rs` tells it how a try ended, and does what it says.

use std::time::Duration;

use crate::domain::{KEEP_MS_MAX, LeaseId};
use crate::quorum::{Order, Refusal};

/// Split votes that even a caller who does not wait sits out: of several who ask at the same
/// moment, one must get it.
const SPLITS_MAX: u32 = 12;
/// Doubtful refusals that are taken for split votes before they are taken for a lease that is held. Of two
/// contenders who took all nodes between them, both are gone by the next round.
const DOUBTS_MAX: u32 = 6;
/// After a round that found no quorum, a waiting contender asks again after so long, and ever more seldom.
const OUTAGE_POLL_MS: u64 = 100;
const OUTAGE_POLL_MAX_MS: u64 = 1000;
/// How long, and how often, even a caller who does not wait sits out that a free name is kept for somebody else, who
/// may be gone.
const KEPT_MS_MAX: u64 = 2 * KEEP_MS_MAX;
const KEPT_MAX: u32 = 3;

/// What a refused contender does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Tell the caller of the refusal.
    GiveUp,
    /// Ask again after a random part of this.
    BackOff(Duration),
    /// Subscribe to what is waited for, and ask again: it may have been released before.
    Listen,
    /// Sleep until a node tells of a release, or for this long where a lease ends then.
    Sleep(Option<Duration>),
    /// Ask again when the moment is over for which it is kept for somebody else.
    SitOut(Duration),
    /// Sleep for a random time between half of this and one and a half times this: no quorum answered.
    Outage(Duration),
}

/// Whether a contender may go on after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// It does not wait.
    None,
    /// It waits, and its time is over.
    Over,
    /// It waits, and listens already to what nodes publish.
    Listens,
    /// It waits.
    Waits,
}

/// What a contender remembers of its tries.
#[derive(Debug)]
pub(super) struct Contention {
    /// The same number for all who contend for the same, by which they choose the node to ask first.
    primary: u64,
    order: Order,
    /// How many primaries were given up for what is left there of a lease that nobody has.
    passed_over: u64,
    /// For which lease the primary refused the last time, though nobody holds it.
    left_over: Option<LeaseId>,
    splits: u32,
    outages: u32,
    /// How often it was kept for somebody else.
    kept: u32,
    /// Doubtful refusals in a row.
    doubts: u32,
}

impl Contention {
    pub(super) fn new(primary: u64) -> Self {
        let order = Order::Parallel;
        Self { primary, order, passed_over: 0, left_over: None, splits: 0, outages: 0, kept: 0, doubts: 0 }
    }

    /// In which order the next round asks the nodes.
    pub(super) fn order(&self) -> Order {
        self.order
    }

    /// From now on one node is asked first, the same by all.
    pub(super) fn ask_primary_first(&mut self) {
        self.order = Order::PrimaryFirst(self.primary.wrapping_add(self.passed_over));
    }

    /// Whether a refusal means that a lease is held; otherwise others contend.
    pub(super) fn is_held(&mut self, refusal: &Refusal) -> bool {
        self.doubts = if refusal.is_doubtful() { self.doubts + 1 } else { 0 };
        refusal.held && !(1..=DOUBTS_MAX).contains(&self.doubts)
    }

    /// The caller's own earlier attempt may be in the way, and too few nodes answered to tell. Whether that
    /// counts as a split vote: of two attempts that took the nodes between them, one is gone soon.
    pub(super) fn doubt_own_attempt(&mut self) -> bool {
        let is_split = self.doubts < DOUBTS_MAX;
        self.doubts += u32::from(is_split);
        is_split
    }

    /// Nobody won the round.
    pub(super) fn on_split(&mut self, refusal: &Refusal, round_trip: Duration, patience: Patience) -> Step {
        if matches!(self.order, Order::PrimaryFirst(_)) && refusal.nodes.granted == 0 {
            // It was the first to answer. Where it refuses again for what is left there of a lease that nobody
            // has, it would refuse everybody until that expires: the next node takes its place.
            let left_over = refusal.holdings.first().map(|holding| holding.lease);
            if left_over.is_some() && left_over == self.left_over {
                self.passed_over += 1;
            }
            self.left_over = left_over;
        }
        self.ask_primary_first();
        self.splits += 1;
        let is_over = match patience {
            Patience::None => self.splits >= SPLITS_MAX,
            Patience::Over => true,
            Patience::Listens | Patience::Waits => false,
        };
        if is_over { Step::GiveUp } else { Step::BackOff(back_off(self.splits, round_trip)) }
    }

    /// It is held.
    pub(super) fn on_held(&mut self, refusal: &Refusal, patience: Patience) -> Step {
        match patience {
            Patience::None | Patience::Over => Step::GiveUp,
            Patience::Waits => Step::Listen,
            Patience::Listens => {
                self.doubts = 0;
                Step::Sleep(refusal.free_in_ms.map(Duration::from_millis))
            }
        }
    }

    /// It is free, and kept for somebody else.
    pub(super) fn on_kept(&mut self, refusal: &Refusal, patience: Patience) -> Step {
        let kept_ms = refusal.kept_ms.unwrap_or_default();
        let kept = Duration::from_millis(kept_ms);
        match patience {
            Patience::None if kept_ms <= KEPT_MS_MAX && self.kept < KEPT_MAX => {
                self.kept += 1;
                Step::SitOut(kept)
            }
            Patience::None | Patience::Over => Step::GiveUp,
            Patience::Waits => Step::Listen,
            Patience::Listens => Step::Sleep(Some(kept)),
        }
    }

    /// Fewer than a quorum answered.
    pub(super) fn on_no_quorum(&mut self, patience: Patience) -> Step {
        if matches!(patience, Patience::None | Patience::Over) {
            return Step::GiveUp;
        }
        let longest = (OUTAGE_POLL_MS << self.outages).min(OUTAGE_POLL_MAX_MS);
        self.outages = (self.outages + 1).min(4);
        Step::Outage(Duration::from_millis(longest))
    }
}

/// The longest pause after so many lost rounds.
pub(super) fn back_off(rounds: u32, round_trip: Duration) -> Duration {
    let longest_us = round_trip.as_micros() as u64 * 2 + 500;
    Duration::from_micros((longest_us << rounds.min(5)).min(50_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Holding, Nodes, Token, Version};

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn refusal(leases: &[u128], held: bool) -> Refusal {
        let holding = |&lease: &u128| Holding {
            lease: LeaseId::from_bits(lease),
            token: Token::new(1).unwrap(),
            remaining_ms: 300,
            ttl_ms: 300,
            version: Version::default(),
            data: String::new(),
            same_request: false,
            sharing: None,
            params: String::new(),
            slots: Vec::new(),
        };
        Refusal {
            holdings: leases.iter().map(holding).collect(),
            nodes: Nodes { total: 3, quorum: 2, ..Nodes::default() },
            free_in_ms: Some(300),
            held,
            kept_ms: None,
            undone: false,
        }
    }

    #[test]
    fn who_does_not_wait_sits_out_split_votes_and_nothing_else() {
        let mut contention = Contention::new(7);
        let split = refusal(&[1], false);
        for _ in 1..SPLITS_MAX {
            assert!(matches!(contention.on_split(&split, MILLISECOND, Patience::None), Step::BackOff(_)));
        }
        assert_eq!(contention.on_split(&split, MILLISECOND, Patience::None), Step::GiveUp);
        assert_eq!(Contention::new(7).on_held(&refusal(&[1, 1], true), Patience::None), Step::GiveUp);
        assert_eq!(Contention::new(7).on_no_quorum(Patience::None), Step::GiveUp);
    }

    #[test]
    fn what_is_kept_for_somebody_else_is_sat_out_for_a_moment() {
        let kept = |kept_ms| Refusal { kept_ms: Some(kept_ms), ..refusal(&[], false) };
        let mut contention = Contention::new(7);
        assert_eq!(contention.on_kept(&kept(1000), Patience::None), Step::GiveUp);
        for _ in 0..KEPT_MAX {
            assert_eq!(contention.on_kept(&kept(20), Patience::None), Step::SitOut(20 * MILLISECOND));
        }
        assert_eq!(contention.on_kept(&kept(20), Patience::None), Step::GiveUp);
        assert_eq!(contention.on_kept(&kept(20), Patience::Over), Step::GiveUp);
        assert_eq!(contention.on_kept(&kept(20), Patience::Waits), Step::Listen);
        assert_eq!(contention.on_kept(&kept(1000), Patience::Listens), Step::Sleep(Some(1000 * MILLISECOND)));
    }

    #[test]
    fn who_waits_listens_looks_again_and_only_then_sleeps() {
        let (mut contention, held) = (Contention::new(7), refusal(&[1, 1], true));
        assert_eq!(contention.on_held(&held, Patience::Waits), Step::Listen);
        assert_eq!(contention.on_held(&held, Patience::Listens), Step::Sleep(Some(300 * MILLISECOND)));
        assert_eq!(contention.on_held(&held, Patience::Over), Step::GiveUp);
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        let pauses: Vec<_> = (1..=12).map(|splits| back_off(splits, MILLISECOND)).collect();
        assert!(pauses.is_sorted() && pauses[0] == 5 * MILLISECOND && pauses[11] == 50 * MILLISECOND);
        let mut contention = Contention::new(7);
        let outages: Vec<_> = (0..6).map(|_| contention.on_no_quorum(Patience::Listens)).collect();
        let expected = [100, 200, 400, 800, 1000, 1000].map(|ms| Step::Outage(ms * MILLISECOND));
        assert_eq!(outages, expected);
    }

    #[test]
    fn a_primary_that_refuses_twice_for_the_same_remnant_is_passed_over() {
        let mut contention = Contention::new(7);
        let mut split = |lease| {
            contention.on_split(&refusal(&[lease], false), MILLISECOND, Patience::Waits);
            contention.order()
        };
        assert_eq!(split(1), Order::PrimaryFirst(7));
        assert_eq!(split(1), Order::PrimaryFirst(7), "only now that was the primary's answer");
        assert_eq!(split(2), Order::PrimaryFirst(7), "another one: others contend");
        assert_eq!(split(2), Order::PrimaryFirst(8));
    }

    #[test]
    fn doubt_counts_as_a_split_vote_for_a_while() {
        let (mut contention, doubtful) = (Contention::new(7), refusal(&[1], true));
        assert!(doubtful.is_doubtful());
        for _ in 0..DOUBTS_MAX {
            assert!(!contention.is_held(&doubtful));
        }
        assert!(contention.is_held(&doubtful));
        assert!(contention.is_held(&refusal(&[1, 1], true)));
        assert!(!contention.is_held(&doubtful), "the count began anew");
    }
}
