//! Leases that were released through this server a short while ago.
//!
//! A release and a later acquire with the same `request_id` may overlap here: the acquire still finds the lease
//! at the nodes, and must not be told of one that is being given back.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;

use crate::domain::LeaseId;

/// How many are remembered: far more than are released in the time that a round takes.
const KEPT: usize = 4096;

/// The last leases whose release began at this server.
#[derive(Default)]
pub(crate) struct Released {
    leases: Mutex<Leases>,
}

#[derive(Default)]
struct Leases {
    known: HashSet<LeaseId>,
    in_order: VecDeque<LeaseId>,
}

impl Released {
    /// The release of this lease begins now.
    pub(crate) fn add(&self, lease: LeaseId) {
        let mut leases = self.leases.lock();
        if !leases.known.insert(lease) {
            return;
        }
        leases.in_order.push_back(lease);
        if leases.in_order.len() > KEPT
            && let Some(oldest) = leases.in_order.pop_front()
        {
            leases.known.remove(&oldest);
        }
    }

    /// Whether this lease was released here.
    pub(crate) fn contains(&self, lease: &LeaseId) -> bool {
        self.leases.lock().known.contains(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_and_no_more_than_so_many_are_kept() {
        let released = Released::default();
        let lease = |i: usize| LeaseId::from_bits(i as u128);
        for i in (0..=KEPT).flat_map(|i| [i, i]) {
            released.add(lease(i));
        }
        assert!(!released.contains(&lease(0)));
        assert!((1..=KEPT).all(|i| released.contains(&lease(i))));
        let leases = released.leases.lock();
        assert_eq!((leases.known.len(), leases.in_order.len()), (KEPT, KEPT));
    }
}
