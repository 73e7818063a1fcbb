//! Which records of a node a lease covers.

use std::sync::Arc;

use smallvec::SmallVec;

/// The keys that one lease covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// These records, all or none: a lock, an election, a multilock.
    Records(SmallVec<[Arc<str>; 1]>),
    /// Slots of the semaphore with this index.
    Slots(Arc<str>),
}

impl Scope {
    /// Where changes are published: each record, or the index.
    pub fn channels(&self) -> &[Arc<str>] {
        match self {
            Self::Records(keys) => keys,
            Self::Slots(index) => std::slice::from_ref(index),
        }
    }

    /// Whether it covers slots, which are named beside it.
    pub fn is_slots(&self) -> bool {
        matches!(self, Self::Slots(_))
    }
}
