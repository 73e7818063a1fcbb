//! Which nodes a granting round asks last: the voting ones beyond a quorum.
//!
//! They are the same for all names, so that calls have company at the others, and they are the furthest by
//! time to an answer, so that no node far away holds up what near ones can grant.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::round_trip_of;
use crate::clock::Clock;
use crate::domain::LeaseId;
use crate::node::Command;
use crate::node::ballot::Seat;
use crate::node::member::Member;
use crate::node::reserve::LOOK;

/// Nodes whose answers take alike within this, µs, count as equally near: load makes no difference.
const NEAR_US: u128 = 5_000;

/// So many looks may find rounds that wait for a spare, from one choice to the next: the machine was busy.
const AWAITED_MAX: usize = 3;

/// How long there are none once a lease was given back through another server before a spare was asked
/// for it. That then costs the spare more than it saves, and where requests of one client go to several
/// servers it comes again.
const ELSEWHERE: Duration = Duration::from_secs(600);

pub(super) struct Spares {
    members: Vec<Arc<Member>>,
    clock: Arc<dyn Clock>,
    /// One bit a node.
    bits: AtomicU64,
    /// There is something to look after.
    some: Notify,
    /// Looks that found rounds waiting, since they were chosen.
    awaited: AtomicUsize,
    /// There are none until then.
    none_until: Mutex<Option<Instant>>,
}

impl Spares {
    pub(super) fn of(members: Vec<Arc<Member>>, clock: Arc<dyn Clock>) -> Self {
        Self {
            members,
            clock,
            bits: AtomicU64::new(0),
            some: Notify::new(),
            awaited: AtomicUsize::new(0),
            none_until: Mutex::default(),
        }
    }

    /// One bit a node.
    pub(super) fn bits(&self) -> u64 {
        self.bits.load(Ordering::Relaxed)
    }

    /// Chooses anew, by how the nodes are now.
    pub(super) fn choose(&self, quorum: usize) {
        self.awaited.store(0, Ordering::Relaxed);
        let now = self.clock.now();
        let (members, before) = (self.members.iter().enumerate(), self.bits());
        let overtaken = members.fold(0, |bits, (i, member)| bits | u64::from(member.was_overtaken()) << i);
        let mut none_until = self.none_until.lock();
        if overtaken & before != 0 {
            *none_until = Some(now + ELSEWHERE);
        }
        if none_until.is_some_and(|until| now < until) {
            return self.bits.store(0, Ordering::Relaxed);
        }
        let voting = self.members.iter().enumerate().filter(|(_, member)| member.is_able());
        let mut by_distance: SmallVec<[(u128, usize); 5]> = voting
            .map(|(i, member)| (member.latency().map_or(0, |took| took.as_micros() / NEAR_US), i))
            .collect();
        by_distance.sort_unstable();
        let spares = by_distance.iter().skip(quorum);
        self.bits.store(spares.fold(0, |bits, (_, i)| bits | 1 << i), Ordering::Relaxed);
    }

    /// Asks a spare for its vote, should that become of use, or gives a node in quarantine a copy of what
    /// is held for long enough.
    pub(super) fn ask(
        &self,
        i: usize,
        lease: LeaseId,
        command: &Arc<Command>,
        now: Instant,
        to: Option<Seat>,
    ) {
        if self.members[i].vote_if_of_use(lease, command, now, to) {
            self.some.notify_one();
        }
    }

    /// Sends what is kept back from spares for long enough.
    pub(super) async fn look_after(self: Arc<Self>) {
        loop {
            self.some.notified().await;
            let mut some = true;
            while some {
                // Under load one node answers that much later than another.
                tokio::time::sleep(LOOK.max(round_trip_of(&self.members))).await;
                let now = self.clock.now();
                let looks: SmallVec<[_; 5]> =
                    self.members.iter().map(|member| member.look_after_kept(now)).collect();
                some = looks.iter().any(|look| look.some);
                if looks.iter().any(|look| look.awaited)
                    && self.awaited.fetch_add(1, Ordering::Relaxed) >= AWAITED_MAX
                {
                    // One of the others hangs. Until it is known which one, all are asked at once.
                    self.bits.store(0, Ordering::Relaxed);
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

    /// A lease that is taken before one of its nodes goes: whoever then wants it needs the spare sooner than it.
    #[tokio::test(start_paused = true)]
    async fn nobody_overtakes_a_lease_at_the_spare() {
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
            assert_eq!(api.holders(&lease), [true; 3], "{refuses}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_hangs_costs_a_few_rounds_two_looks_and_then_nothing() {
        let [api, _] = Api::pair().await;
        api.nodes[0].hang();
        let mut took = Vec::new();
        for _ in 0..=2 * AWAITED_MAX {
            let began = Instant::now();
            let lease = api.acquire().await;
            took.push(began.elapsed());
            assert!(api.release(&lease).await);
        }
        assert!(took.iter().all(|took| *took <= 3 * LOOK), "{took:?}");
        assert_eq!(took.last(), Some(&Duration::ZERO), "{took:?}");
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
            let lease = LeaseId::parse(&seen[66..98]).unwrap();
            assert!(api.engine.release(&api.scope, &lease).await.unwrap());
            api.nodes[1].go_on();
        };
        let both = async { tokio::join!(api.round(), released).0 };
        let round = tokio::time::timeout(SECOND, both).await;
        assert!(!matches!(round.expect("the round ends"), Round::Granted(_)));
        assert_eq!(api.acquires(), [1, 1, 0]);
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
    async fn what_a_server_that_was_stopped_kept_back_is_not_sent_after_all() {
        let [api, other] = Api::pair().await;
        let lease = api.acquire().await;
        assert!(other.release(&lease).await);
        // Tombstones do not wait that long.
        tokio::time::advance(100 * SECOND).await;
        tokio::time::sleep(SECOND).await;
        assert_eq!((api.acquires(), api.holders(&lease)), ([1, 1, 0], [false; 3]));
        assert!(api.engine.is_settled());
    }

    #[tokio::test(start_paused = true)]
    async fn where_another_server_releases_first_all_nodes_are_asked_from_then_on() {
        let [api, other] = Api::pair().await;
        let lease = api.acquire().await;
        assert!(other.release(&lease).await);
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!((api.acquires(), api.holders(&lease)), ([1, 1, 1], [false; 3]));
        let lease = api.acquire().await;
        assert_eq!(api.holders(&lease), [true; 3]);
        tokio::time::sleep(ELSEWHERE + 2 * SECOND).await;
        let lease = api.acquire().await;
        assert_eq!(api.holders(&lease), [true, true, false]);
    }
}
