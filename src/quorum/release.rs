//! Giving a lease back, and taking back what nobody was told of (docs/protocol.md §1.4 and §1.8).

use std::sync::Arc;

use super::Engine;
use super::rounds::{BarRound, ReleaseRound};
use super::tally::{Verdict, quorum_of};
use crate::domain::{LeaseId, Nodes, Scope};
use crate::node::ballot::{Ballot, Seat};
use crate::node::calls::{self, Cause};
use crate::node::{Command, Settle};

/// Nodes that were not sent an acquire, in a bit set. They are told of its release all the same unless it is
/// certain that no other server has extended the lease and given them copies.
struct Unsent<'a> {
    engine: &'a Engine,
    command: &'a Arc<Command>,
    nodes: u64,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        self.engine.tell_these(self.command, self.nodes, |_| None);
    }
}

impl Engine {
    /// Takes a lease away on every node. `Ok(true)` where a quorum may have held it, `Ok(false)` where none can.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered, or it is at no node that did and so many may have forgotten it
    /// that a quorum may have held it; the release goes on at the others.
    pub async fn release(self: &Arc<Self>, scope: &Scope, lease: &LeaseId) -> Result<bool, Nodes> {
        self.release_for(scope, lease, Cause::Release).await
    }

    pub(super) async fn release_for(
        self: &Arc<Self>,
        scope: &Scope,
        lease: &LeaseId,
        cause: Cause,
    ) -> Result<bool, Nodes> {
        let settle = Settle::new(self.options.max_ttl_ms, false, self.clock.now());
        let channels = scope.channels();
        let command = Arc::new(calls::release(scope, lease, cause, settle));
        // Where its acquire was not sent it never was.
        let mut unsent = Unsent { engine: self, command: &command, nodes: self.spares.withdraw(lease) };
        let free = unsent.nodes.count_ones() as usize;
        let mut round = ReleaseRound::new(self.total(), free, self.hub.is_listened(channels));
        let mut ballot = self.tell(&command, unsent.nodes);
        self.drive(&mut round, &mut ballot, |ballot| {
            let nodes = std::mem::take(&mut unsent.nodes);
            self.tell_these(&command, nodes, |i| Some(ballot.seat(i)));
        })
        .await;
        if round.is_free() {
            // An extension that was carried is known to one at least of so many that held it.
            unsent.nodes = 0;
        }
        if round.count.yes > 0 {
            self.hub.ring(channels);
        }
        round.was_held().ok_or_else(|| round.count.nodes())
    }

    /// Takes away what the nodes were seen to hold of a lease, unless it has a quorum by now: its acquire
    /// may have been on its way to the others, and whoever sent it be told that it was granted. So they are
    /// told to refuse it first, and it goes once it can have no quorum any more.
    ///
    /// # Errors
    /// The votes, where too few answered to tell.
    pub async fn take_back(self: &Arc<Self>, scope: &Scope, lease: &LeaseId) -> Result<(), Nodes> {
        let settle = Settle::new(self.options.max_ttl_ms, false, self.clock.now());
        let command = calls::release(scope, lease, Cause::Bar, settle);
        let mut ballot = self.tell(&Arc::new(command), 0);
        let mut bar = BarRound::new(self.total());
        self.drive_all(&mut bar, &mut ballot).await;
        match bar.count.extension_verdict() {
            Verdict::Carried => Ok(()),
            Verdict::Rejected => self.release(scope, lease).await.map(drop),
            Verdict::NoQuorum | Verdict::Open => Err(bar.count.nodes()),
        }
    }

    /// Releases without waiting, on the nodes in the bit set; what a node does not confirm is
    /// tried again.
    pub(super) fn undo(
        self: &Arc<Self>,
        scope: &Scope,
        lease: &LeaseId,
        nodes: u64,
        ttl_ms: u64,
        cause: Cause,
    ) {
        let settle = Settle::new(ttl_ms, true, self.clock.now());
        let command = Arc::new(calls::release(scope, lease, cause, settle));
        self.spares.withdraw(lease);
        if cause == Cause::Lost || !self.hub.is_listened(scope.channels()) {
            return self.tell_these(&command, nodes, |_| None);
        }
        // Those who wait here need no hint of what this server knows.
        let mut ballot = Ballot::new(1);
        self.tell_these(&command, nodes, |i| Some(ballot.seat(i)));
        let (engine, scope, mut freed) = (Arc::clone(self), scope.clone(), 0);
        self.take_late(ballot, move |_, answer| {
            if answer.is_ok_and(|answer| answer.done) {
                freed += 1;
                if freed == quorum_of(engine.total()) {
                    engine.hub.ring(scope.channels());
                }
            }
        });
    }

    /// Tells the nodes in the bit set, without waiting: each answers `to` its seat, if it has one.
    fn tell_these(&self, command: &Arc<Command>, nodes: u64, mut to: impl FnMut(usize) -> Option<Seat>) {
        let now = self.clock.now();
        for (i, member) in self.members.iter().enumerate() {
            if nodes & (1 << i) != 0 {
                member.tell(command, now, to(i));
            }
        }
    }

    /// Takes away what is left of a lease, at whatever node, whoever it was granted to.
    pub(super) fn undo_everywhere(self: &Arc<Self>, scope: &Scope, lease: &LeaseId) {
        self.undo(scope, lease, u64::MAX, self.options.max_ttl_ms, Cause::Over);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::domain::{LeaseHandle, LeaseId};
    use crate::node::Script;
    use crate::node::calls::Cause;
    use crate::quorum::Round;
    use crate::quorum::fixture::Api;

    const SECOND: Duration = Duration::from_secs(1);

    /// A lease of 30 s that is undone, while a node is out of reach for longer than that, and has its acquire
    /// before it still. Then that node cannot write for a while.
    #[tokio::test(start_paused = true)]
    async fn a_release_is_repeated_for_as_long_as_an_acquire_that_came_late_may_last() {
        let [api, _] = Api::pair().await;
        let node = &api.nodes[0];
        node.hang();
        let Round::Granted(won) = api.round().await else { panic!("not granted") };
        drop(won);
        let late = node.cut();
        tokio::time::sleep(60 * SECOND).await;
        node.run(&late, Script::Acquire);
        assert!(api.is_held_at(0));
        node.refuse(Some(Script::Release));
        node.go_on();
        tokio::time::sleep(20 * SECOND).await;
        assert!(api.is_held_at(0));
        node.refuse(None);
        tokio::time::sleep(SECOND).await;
        assert!(!api.is_held_at(0));
        assert_eq!(api.engine.debts(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_only_a_copy_outlives_is_not_told_to_have_been_released() {
        let [api, _] = Api::pair().await;
        let Round::Granted(won) = api.round_of(None, 100).await else { panic!("not granted") };
        won.grant.keep();
        tokio::time::sleep(110 * SECOND / 1000).await;
        assert_eq!(api.holders(&won.handle).map(usize::from).iter().sum::<usize>(), 3, "as stored");
        // The last node, which got it last, and one of the others answer first.
        api.nodes[0].hang_with(Script::Release);
        let go_on = async {
            tokio::task::yield_now().await;
            api.nodes[0].go_on();
        };
        assert!(!tokio::join!(api.release(&won.handle), go_on).0);
    }

    /// A lease at the first two nodes of three.
    async fn at_two(api: &Api) -> LeaseHandle {
        api.nodes[2].hang_with(Script::Acquire);
        let lease = api.acquire().await;
        tokio::time::sleep(SECOND).await;
        assert_eq!(api.holders(&lease), [true, true, false]);
        lease
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_of_which_a_node_forgot_its_copy_is_told_to_have_been_released() {
        let [api, _] = Api::pair().await;
        let lease = at_two(&api).await;
        api.nodes[0].node.flush();
        assert!(api.release(&lease).await);
        assert!(!api.release(&lease).await, "the others vote, and know of none");
    }

    #[tokio::test(start_paused = true)]
    async fn whether_a_lease_was_held_that_one_node_forgot_and_one_keeps_to_itself_is_not_told() {
        let [api, _] = Api::pair().await;
        let lease = at_two(&api).await;
        api.nodes[0].node.flush();
        api.nodes[1].refuse(Some(Script::Release));
        let nodes = api.engine.release(&api.scope, &lease.id).await.unwrap_err();
        assert_eq!((nodes.held, nodes.failed), (1, 2));
        api.nodes[1].refuse(None);
        assert!(api.release(&lease).await);
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_releases_a_node_missed_it_is_told_them_within_a_second_of_answering() {
        let [api, _] = Api::pair().await;
        api.nodes[0].refuse(Some(Script::Release));
        for lease in (1..=5_000).map(LeaseId::from_bits) {
            api.engine.undo(&api.scope, &lease, 1, 30_000, Cause::Lost);
        }
        tokio::time::sleep(SECOND).await;
        assert_eq!(api.engine.debts(), 5_000);
        api.nodes[0].refuse(None);
        tokio::time::sleep(SECOND).await;
        assert_eq!(api.engine.debts(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_that_a_node_refuses_is_not_repeated_for_ever() {
        let [api, _] = Api::pair().await;
        api.nodes[0].refuse(Some(Script::Release));
        let lease = api.acquire().await;
        assert!(api.release(&lease).await);
        tokio::time::sleep(60 * SECOND).await;
        assert_eq!(api.engine.debts(), 1);
        // The longest lease that there is.
        tokio::time::sleep(300 * SECOND).await;
        assert_eq!(api.engine.debts(), 0);
    }
}
