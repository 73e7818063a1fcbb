//! Giving a lease back, and taking back what nobody was told of (docs/protocol.md §1.4 and §1.8).

use std::sync::Arc;

use super::Engine;
use super::tally::{Count, Verdict, quorum_of};
use crate::domain::{LeaseId, Nodes, Scope};
use crate::node::ballot::{Ballot, Seat};
use crate::node::calls::{self, Reason, Released};
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
    /// Takes a lease away on every node. `Ok(true)` where a quorum may have held it.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered; the release goes on at the others.
    pub async fn release(self: &Arc<Self>, scope: &Scope, lease: &LeaseId) -> Result<bool, Nodes> {
        self.release_for(scope, lease, Reason::Release).await
    }

    pub(super) async fn release_for(
        self: &Arc<Self>,
        scope: &Scope,
        lease: &LeaseId,
        reason: Reason,
    ) -> Result<bool, Nodes> {
        let settle = Settle::new(self.options.max_ttl_ms, false, self.clock.now());
        let channels = scope.channels();
        let command = Arc::new(calls::release(scope, lease, reason, settle));
        // Where its acquire was kept back it never was.
        let mut unsent = Unsent { engine: self, command: &command, nodes: self.withdraw(lease) };
        let mut free = unsent.nodes.count_ones() as usize;
        let mut ballot = self.tell(&command, unsent.nodes);
        let (mut count, quorum) = (Count::new(self.total()), quorum_of(self.total()));
        // Those who wait here shall be told of a quorum, unless that takes long.
        let mut patience =
            (free > 0 && self.hub.is_listened(channels)).then(|| self.clock.now() + self.tie_patience());
        let outcome = loop {
            let is_enough = count.yes + count.no >= quorum;
            if is_enough {
                // A copy that came later than the others, as a spare's does, is over later. So where nodes
                // disagree, the others shall say what a quorum has, unless that takes long, too.
                let is_open = count.yes > 0 && count.no > 0 && count.yes < quorum;
                if !is_open || count.yes + count.pending() < quorum {
                    break Ok(());
                }
                patience.get_or_insert_with(|| self.clock.now() + self.tie_patience());
            }
            let is_free = is_enough || count.yes + free >= quorum;
            let next = match patience {
                _ if !is_free => ballot.next().await,
                None => break Ok(()),
                Some(until) => tokio::time::timeout_at(until, ballot.next()).await.unwrap_or(None),
            };
            match next {
                Some((_, Ok(answer))) => {
                    let released = Released::read(&answer);
                    *(if released.held { &mut count.yes } else { &mut count.no }) += 1;
                    // Another server had to do with it: what the others hold, only they can tell.
                    if released.extended || !released.held {
                        free = 0;
                        let nodes = std::mem::take(&mut unsent.nodes);
                        self.tell_these(&command, nodes, |i| Some(ballot.seat(i)));
                    }
                }
                Some((_, Err(_))) => {
                    count.failed += 1;
                    if count.verdict() == Verdict::NoQuorum {
                        break Err(count.nodes());
                    }
                }
                None if is_free => break Ok(()),
                None => break Err(count.nodes()),
            }
        };
        if outcome.is_ok() {
            // An extension that was carried is known to one at least of so many that held it.
            unsent.nodes = 0;
        }
        if count.yes > 0 {
            self.hub.ring(channels);
        }
        outcome.map(|()| count.yes > 0 && count.yes + count.pending() + count.failed >= quorum)
    }

    /// Takes away what the nodes were seen to hold of a lease, unless it has a quorum by now: its acquire
    /// may have been on its way to the others, and whoever sent it be told that it was granted. So they are
    /// told to refuse it first, and it goes once it can have no quorum any more.
    ///
    /// # Errors
    /// The votes, where too few answered to tell.
    pub async fn take_back(self: &Arc<Self>, scope: &Scope, lease: &LeaseId) -> Result<(), Nodes> {
        let settle = Settle::new(self.options.max_ttl_ms, false, self.clock.now());
        let command = calls::release(scope, lease, Reason::Bar, settle);
        let mut ballot = self.tell(&Arc::new(command), 0);
        let mut count = Count::new(self.total());
        while count.extension_verdict() == Verdict::Open {
            match ballot.next().await {
                Some((_, Ok(answer))) if Released::read(&answer).stays => count.yes += 1,
                Some((_, Ok(_))) => count.no += 1,
                Some((_, Err(_))) => count.failed += 1,
                None => break,
            }
        }
        match count.extension_verdict() {
            Verdict::Carried => Ok(()),
            Verdict::Rejected => self.release(scope, lease).await.map(drop),
            Verdict::NoQuorum | Verdict::Open => Err(count.nodes()),
        }
    }

    /// Has no node asked for this lease any more that was not yet: one bit each.
    fn withdraw(&self, lease: &LeaseId) -> u64 {
        let members = self.members.iter().enumerate();
        members.fold(0, |bits, (i, member)| bits | u64::from(member.withdraw(lease)) << i)
    }

    /// Releases without waiting, on the nodes in the bit set; what a node does not confirm is
    /// tried again.
    pub(super) fn undo(
        self: &Arc<Self>,
        scope: &Scope,
        lease: &LeaseId,
        nodes: u64,
        ttl_ms: u64,
        reason: Reason,
    ) {
        let settle = Settle::new(ttl_ms, true, self.clock.now());
        let command = Arc::new(calls::release(scope, lease, reason, settle));
        self.withdraw(lease);
        if reason == Reason::Lost || !self.hub.is_listened(scope.channels()) {
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

    /// Takes a lease away that may be stored at any node, whoever it was granted to.
    pub(super) fn undo_everywhere(self: &Arc<Self>, scope: &Scope, lease: &LeaseId) {
        self.undo(scope, lease, u64::MAX, self.options.max_ttl_ms, Reason::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::domain::LeaseId;
    use crate::node::Script;
    use crate::node::calls::Reason;
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

    #[tokio::test(start_paused = true)]
    async fn however_many_releases_a_node_missed_it_is_told_them_within_a_second_of_answering() {
        let [api, _] = Api::pair().await;
        api.nodes[0].refuse(Some(Script::Release));
        for lease in (1..=5_000).map(LeaseId::from_bits) {
            api.engine.undo(&api.scope, &lease, 1, 30_000, Reason::Lost);
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
