//! Which listed nodes are members, and how many members there are: what a round counts by.
//!
//! A round reads it once and asks at its end whether it [is still](Electorate::is_still) so; a node's gate compares
//! the generation too. So no votes of two memberships are ever counted together.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The members by the membership in force, as this server knows it.
#[derive(Debug)]
pub struct Electorate {
    generation: AtomicU64,
    members: AtomicU64,
    total: AtomicUsize,
    token_floor: AtomicU64,
    /// Counts the gates that opened or were shut.
    moves: AtomicU64,
}

/// What a round counts by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Electors {
    /// Which membership.
    pub generation: u64,
    /// One bit a listed node that is a member.
    pub members: u64,
    /// N.
    pub total: usize,
    /// As in the membership, µs.
    pub token_floor: u64,
}

impl Electors {
    /// How many make a quorum.
    pub fn quorum(&self) -> usize {
        self.total / 2 + 1
    }
}

/// While it changes.
const CHANGING: u64 = u64::MAX;

impl Electorate {
    /// Of `total` nodes of which nothing is known.
    pub fn new(total: usize) -> Self {
        Self {
            generation: 0.into(),
            members: u64::MAX.into(),
            total: total.into(),
            token_floor: 0.into(),
            moves: 0.into(),
        }
    }

    /// What counts now.
    pub fn now(&self) -> Electors {
        // The generation first: whoever changes the others takes it away before and gives it back behind.
        let generation = self.generation.load(Ordering::SeqCst);
        let members = self.members.load(Ordering::SeqCst);
        let token_floor = self.token_floor.load(Ordering::SeqCst);
        Electors { generation, members, total: self.total.load(Ordering::SeqCst), token_floor }
    }

    /// The membership that counts now.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Whether it has been the same all the time since then.
    pub fn is_still(&self, then: &Electors) -> bool {
        then.generation != CHANGING && self.generation() == then.generation
    }

    /// How often the gate of a node opened or was shut.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    /// A node's gate opened, or was shut.
    pub(super) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::SeqCst);
    }

    /// From now on these count.
    pub(super) fn set(&self, new: Electors) {
        if self.now() != new {
            self.generation.store(CHANGING, Ordering::SeqCst);
            self.members.store(new.members, Ordering::SeqCst);
            self.total.store(new.total, Ordering::SeqCst);
            self.token_floor.store(new.token_floor, Ordering::SeqCst);
            self.generation.store(new.generation, Ordering::SeqCst);
        }
    }
}
