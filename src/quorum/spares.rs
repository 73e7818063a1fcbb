//! The nodes beyond a quorum, which a lease asks last (docs/architecture.md).
//!
//! A lease rests on a quorum. The nodes beyond it add nothing to one that is given back at once, which most are. So a
//! round asks these *spares* only where the others may not suffice; of what is held for [`COPY_AFTER`] they are sent a
//! copy. They are the same for all names, so that calls have company at the others, and they are the furthest by time
//! to an answer, so that no node far away holds up what near ones can grant. Safety needs none of this: it rests on
//! quorums that intersect, whoever is asked when.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::domain::LeaseId;
use crate::node::Command;
use crate::node::member::Member;

/// Nodes whose answers take alike within this, µs, count as equally near: load makes no difference.
const NEAR_US: u128 = 5_000;
/// For how long a lease rests on a bare quorum.
const COPY_AFTER: Duration = Duration::from_millis(20);
/// What should have been copied that long ago is not any more: the server was stopped, and the release of the lease
/// may have gone through another one meanwhile. Less than a tombstone waits.
const STALE: Duration = Duration::from_secs(10);
/// Copies are sent together that are due within this.
const TOGETHER: Duration = Duration::from_millis(2);
/// Copies that wait; beyond that they are sent at once.
const WAITING_MAX: usize = 65_536;

/// An acquire that some nodes were not sent, one bit each.
struct Copy {
    command: Arc<Command>,
    nodes: u64,
}

#[derive(Default)]
struct Waiting {
    by_lease: HashMap<LeaseId, Copy>,
    /// When each is due, in order, also of those that were withdrawn.
    due: VecDeque<(Instant, LeaseId)>,
}

pub(super) struct Spares {
    members: Vec<Arc<Member>>,
    clock: Arc<dyn Clock>,
    /// One bit a node.
    bits: AtomicU64,
    waiting: Mutex<Waiting>,
    some: Notify,
}

impl Spares {
    pub(super) fn new(members: Vec<Arc<Member>>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (bits, waiting, some) = (AtomicU64::new(0), Mutex::default(), Notify::new());
        Arc::new(Self { members, clock, bits, waiting, some })
    }

    /// One bit a node.
    pub(super) fn bits(&self) -> u64 {
        self.bits.load(Ordering::Relaxed)
    }

    /// Chooses anew, by how the nodes are now.
    pub(super) fn choose(&self, quorum: usize) {
        let voting = self.members.iter().enumerate().filter(|(_, member)| member.is_able());
        let mut by_distance: SmallVec<[(u128, usize); 5]> = voting
            .map(|(i, member)| (member.latency().map_or(0, |took| took.as_micros() / NEAR_US), i))
            .collect();
        by_distance.sort_unstable();
        let spares = by_distance.iter().skip(quorum);
        self.bits.store(spares.fold(0, |bits, (_, i)| bits | 1 << i), Ordering::Relaxed);
    }

    /// Sends the acquire of a lease that was granted to these nodes, too, once it has been held for long enough.
    pub(super) fn copy_later(&self, lease: LeaseId, command: &Arc<Command>, nodes: u64, granted: Instant) {
        let copy = Copy { command: Arc::clone(command), nodes };
        let mut waiting = self.waiting.lock();
        if waiting.due.len() >= WAITING_MAX {
            drop(waiting);
            return self.send(&copy);
        }
        waiting.by_lease.insert(lease, copy);
        waiting.due.push_back((granted + COPY_AFTER, lease));
        drop(waiting);
        self.some.notify_one();
    }

    /// No copy of this lease is of use any more: the nodes that were not sent one, one bit each.
    pub(super) fn withdraw(&self, lease: &LeaseId) -> u64 {
        self.waiting.lock().by_lease.remove(lease).map_or(0, |copy| copy.nodes)
    }

    fn send(&self, copy: &Copy) {
        let now = self.clock.now();
        for (_, member) in self.members.iter().enumerate().filter(|(i, _)| copy.nodes & (1 << i) != 0) {
            member.vote_or_copy(&copy.command, now, None);
        }
    }

    /// Sends the copies that are due, a few at a time.
    pub(super) async fn send_copies(self: Arc<Self>) {
        loop {
            let first = self.waiting.lock().due.front().map(|(due, _)| *due);
            let Some(due) = first else {
                self.some.notified().await;
                continue;
            };
            tokio::time::sleep_until(due.max(self.clock.now() + TOGETHER)).await;
            let now = self.clock.now();
            let mut waiting = self.waiting.lock();
            while let Some((due, lease)) = waiting.due.front().copied().filter(|(due, _)| *due <= now) {
                waiting.due.pop_front();
                // Under the lock: a release that finds none here goes behind its acquire.
                if let Some(copy) = waiting.by_lease.remove(&lease).filter(|_| now < due + STALE) {
                    self.send(&copy);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Script;
    use crate::quorum::Round;
    use crate::quorum::fixture::Api;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn what_is_given_back_at_once_never_reaches_the_spare_and_what_is_held_does() {
        let [api, _] = Api::pair().await;
        let lease = api.acquire().await;
        assert_eq!(api.holders(&lease), [true, true, false]);
        assert!(api.release(&lease).await);
        tokio::time::sleep(SECOND).await;
        assert_eq!((api.acquires(), api.holders(&lease)), ([1, 1, 0], [false; 3]));

        let lease = api.acquire().await;
        tokio::time::sleep(SECOND).await;
        assert_eq!((api.acquires(), api.holders(&lease)), ([2, 2, 1], [true; 3]));
        assert!(api.release(&lease).await);
        assert_eq!(api.holders(&lease), [false; 3]);
        assert!(api.engine.is_settled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_spare_votes_at_once_where_another_node_refuses() {
        let [api, _] = Api::pair().await;
        api.nodes[0].node.command(&["SET", &api.scope.channels()[0], "of somebody else"]).unwrap();
        let began = Instant::now();
        let lease = api.acquire().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(api.holders(&lease), [false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_wins_at_the_spare_what_is_held_where_it_was_not_asked() {
        for refuses in [true, false] {
            let [api, _] = Api::pair().await;
            let lease = api.acquire().await;
            if refuses {
                api.nodes[0].refuse(Some(Script::Acquire));
            } else {
                api.nodes[0].hang();
            }
            let round = tokio::time::timeout(SECOND, api.round()).await;
            assert!(!matches!(round, Ok(Round::Granted(_))));
            tokio::time::sleep(SECOND).await;
            assert_eq!(api.holders(&lease), [true; 3], "{refuses}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_hangs_costs_a_round_no_more_than_a_moment() {
        let [api, _] = Api::pair().await;
        api.nodes[0].hang();
        for _ in 0..8 {
            let began = Instant::now();
            let lease = api.acquire().await;
            assert!(began.elapsed() <= Duration::from_millis(4), "{:?}", began.elapsed());
            assert!(api.release(&lease).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_reaches_the_copy_that_another_server_gave_to_the_spare() {
        let [api, other] = Api::pair().await;
        let lease = api.acquire().await;
        other.extend(lease).await;
        assert_eq!((api.acquires(), api.holders(&lease)), ([1, 1, 0], [true; 3]), "it was healed");
        assert!(api.release(&lease).await);
        assert_eq!(api.holders(&lease), [false; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_server_extended_is_released_once_a_quorum_says_so() {
        let [api, other] = Api::pair().await;
        let lease = api.acquire().await;
        other.extend(lease).await;
        api.nodes[1].hang();
        api.nodes[2].hang();
        let mut release = std::pin::pin!(api.release(&lease));
        assert!(tokio::time::timeout(SECOND, &mut release).await.is_err());
        assert_eq!(api.holders(&lease), [false, true, true]);
        api.nodes[2].go_on();
        assert!(release.await);
        assert_eq!(api.holders(&lease), [false, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_release_of_what_another_server_released_waits_for_no_node_that_hangs() {
        let [api, other] = Api::pair().await;
        let lease = api.acquire().await;
        assert!(other.release(&lease).await);
        api.nodes[1].hang();
        assert_eq!(tokio::time::timeout(SECOND, api.release(&lease)).await, Ok(false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_ends_whose_lease_is_released_before_the_spare_is_asked() {
        let [api, _] = Api::pair().await;
        let key = &api.scope.channels()[0];
        api.nodes[1].node.command(&["SET", key, "of somebody else"]).unwrap();
        api.nodes[1].hang();
        let released = async {
            tokio::task::yield_now().await;
            let seen = api.nodes[0].node.get_raw(key).unwrap();
            let lease = LeaseId::parse(&seen[94..126]).unwrap();
            assert!(api.engine.release(&api.scope, &lease).await.unwrap());
            api.nodes[1].go_on();
        };
        let both = async { tokio::join!(api.round(), released).0 };
        let round = tokio::time::timeout(SECOND, both).await;
        assert!(!matches!(round.expect("the round ends"), Round::Granted(_)));
        assert_eq!(api.acquires(), [1, 1, 1]);
        assert!(!api.is_held_at(2), "the release came first");
    }

    #[tokio::test(start_paused = true)]
    async fn a_spare_is_not_asked_for_what_the_others_refuse() {
        let [api, other] = Api::pair().await;
        let lease = api.acquire().await;
        for asks in [&api, &other] {
            assert!(matches!(asks.round().await, Round::Refused(refusal) if refusal.held));
        }
        assert_eq!((api.acquires(), other.acquires()), ([2, 2, 0], [1, 1, 0]));
        tokio::time::sleep(SECOND).await;
        assert_eq!(api.holders(&lease), [true; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_stopped_sends_no_copy_afterwards() {
        let [api, other] = Api::pair().await;
        let lease = api.acquire().await;
        assert!(other.release(&lease).await);
        // Tombstones do not wait that long.
        tokio::time::advance(100 * SECOND).await;
        tokio::time::sleep(SECOND).await;
        assert_eq!((api.acquires(), api.holders(&lease)), ([1, 1, 0], [false; 3]));
        assert!(api.engine.is_settled());
    }
}
