//! The membership of the deployment: proposing its next epoch at the nodes (docs/protocol.md §4).
//!
//! [`proposer`] is the state machine of one proposal and [`steps`] says which step comes next, both without I/O. Here
//! they meet the nodes: each server makes the steps that are due, and those that its operator asks for.

mod carry;
pub mod proposer;
mod rights;
pub mod steps;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;

use self::proposer::{Promise, Proposer};
pub(super) use self::rights::Rights;
use self::steps::Step;
pub use self::steps::{Change, ChangeError};
use super::Engine;
use crate::domain::{Membership, Role};
use crate::node::Value;
use crate::node::calls;

/// Before a step that is due, at least; servers that see the same begin at different moments, further apart after each
/// step that another one got ahead of.
const PAUSE_MS: u64 = 20;
/// Doublings of that at most: a second or so.
const DOUBLINGS_MAX: u32 = 5;

/// A member, as the API shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberView {
    /// Its process.
    pub id: String,
    /// By which address this server, or any other one, reached it.
    pub address: Option<String>,
    /// As [`NodeView::state`](crate::node::member::NodeView::state).
    pub state: &'static str,
    /// When it may vote, ms.
    pub votes_in_ms: Option<u64>,
}

/// The membership, as the API shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct MembersView {
    /// The epoch in force; 0 where there is none yet.
    pub epoch: u64,
    /// Its members.
    pub members: Vec<MemberView>,
    /// What is under way.
    pub changing: Option<String>,
}

impl Engine {
    /// Makes the steps that are due, for ever.
    pub(super) async fn keep_membership(self: Arc<Self>) {
        let mut lost = 0;
        loop {
            self.changed.notified().await;
            loop {
                let wait = PAUSE_MS + self.clock.random_below((2 * PAUSE_MS) << lost);
                tokio::time::sleep(Duration::from_millis(wait)).await;
                let step = steps::due(&self.board.lock(), self.clock.random_bits(), self.clock.now());
                let Some(step) = step else { break };
                if !self.propose_step(&step).await {
                    lost = DOUBLINGS_MAX.min(lost + 1);
                    break;
                }
                lost = 0;
            }
        }
    }

    /// Has a step chosen and marks the nodes. False where it, or what it was obliged to finish, was not chosen.
    pub(super) async fn propose_step(&self, step: &Step) -> bool {
        let acceptors = step.acceptors.iter().map(|(i, one, _)| (*i, one.clone()));
        let mut proposer = Proposer::new(step.before.clone(), acceptors, step.value.clone());
        // Ballots are compared as text: later ones are greater, and no two are the same.
        let least = self.ballot_seen.load(Ordering::Relaxed) + 1;
        let ballot =
            format!("{:016}-{:016x}", self.clock.wall_us().max(least), self.clock.random_bits() as u64);
        for (i, answer) in self.ask_acceptors(step, &ballot, "").await {
            if let Some(promise) = answer {
                proposer.promised(i, promise);
            }
        }
        let Some(value) = proposer.choose() else { return false };
        let mut is_chosen = false;
        for (i, answer) in self.ask_acceptors(step, &ballot, &value.to_string()).await {
            if answer.is_some() {
                is_chosen = proposer.accepted(i);
            }
        }
        if is_chosen {
            tracing::info!(
                epoch = value.epoch,
                members = value.total(),
                why = if value == step.value { step.what } else { "another server's step" },
                "membership chosen"
            );
            self.mark_nodes(&value).await;
        }
        is_chosen
    }

    async fn ask_acceptors(&self, step: &Step, ballot: &str, value: &str) -> Vec<(usize, Option<Promise>)> {
        let asked = step.acceptors.iter().map(|(i, _, seen)| async move {
            let command = calls::register(&self.keys, seen, ballot, value);
            let answer = self.members[*i].ask(&Arc::new(command)).await;
            let greater = answer
                .as_ref()
                .ok()
                .filter(|answer| !answer.done)
                .and_then(|answer| answer.rest.first()?.as_text()?.get(..16)?.parse::<u64>().ok());
            self.ballot_seen.fetch_max(greater.unwrap_or(0), Ordering::Relaxed);
            let promise = answer.ok().filter(|answer| answer.done).map(|answer| {
                let text = |i: usize| answer.rest.get(i).and_then(Value::as_text).unwrap_or_default();
                Promise { at: text(0).to_owned(), value: text(1).parse().ok() }
            });
            (*i, promise)
        });
        join_all(asked).await
    }

    /// Tells the nodes of an epoch that was chosen, and looks at all of them again.
    async fn mark_nodes(&self, value: &Membership) {
        let writes: Vec<_> = {
            let board = self.board.lock();
            let nodes = (0..board.listed()).filter_map(|i| Some((i, board.fit(i)?)));
            nodes.filter_map(|(i, seen)| Some((i, board.marking(seen, value)?))).collect()
        };
        join_all(writes.iter().map(|(i, write)| async move {
            let _ = self.members[*i].write(write).await;
        }))
        .await;
        join_all(self.members.iter().map(|member| member.probe(true))).await;
        self.changed.notify_waiters();
    }

    /// Makes the change that an operator asks for.
    ///
    /// # Errors
    /// Why it is not made.
    pub async fn change_members(self: &Arc<Self>, change: &Change) -> Result<Membership, ChangeError> {
        let _one_at_a_time = self.changing.lock().await;
        // What another server has done meanwhile counts.
        join_all(self.members.iter().map(|member| member.probe(true))).await;
        if let Change::Replace(id, address) = change {
            self.prepare(address).await;
            steps::asked(&self.board.lock(), change, self.clock.random_bits())?;
            // It votes no more before the other one takes its place: by then the others have its leases.
            self.make_change(&Change::Close(id.clone())).await?;
        }
        self.make_change(change).await
    }

    async fn make_change(self: &Arc<Self>, change: &Change) -> Result<Membership, ChangeError> {
        /// Proposals that others got ahead of.
        const TRIES: u32 = 8;
        if let Change::Close(_) = change {
            // What is refused copies nothing.
            steps::asked(&self.board.lock(), change, self.clock.random_bits())?;
            // A lease may rest on this member and on one that has just come back. Leases granted from here on are
            // copied below.
            self.carry_leases(carry::PATIENCE_BEFORE).await;
        }
        for _ in 0..TRIES {
            if let Change::Add(address) | Change::Replace(_, address) = change {
                self.prepare(address).await;
            }
            let step = steps::asked(&self.board.lock(), change, self.clock.random_bits())?;
            if self.propose_step(&step).await && self.is_learnt(&step.value) {
                self.carry_leases(carry::PATIENCE).await;
                return Ok(step.value);
            }
            tokio::time::sleep(Duration::from_millis(PAUSE_MS + self.clock.random_below(4 * PAUSE_MS))).await;
            join_all(self.members.iter().map(|member| member.probe(true))).await;
        }
        Err(ChangeError::NoQuorum(self.tally()))
    }

    fn is_learnt(&self, value: &Membership) -> bool {
        self.board.lock().in_force().is_some_and(|membership| **membership == *value)
    }

    /// Has a node that is no member say so, and not what it was before.
    async fn prepare(&self, url: &str) {
        let address = steps::address_of(url);
        let found = {
            let board = self.board.lock();
            (0..board.listed()).find(|&i| board.address(i) == address)
        };
        let Some(member) = found.map(|i| &self.members[i]) else { return };
        member.probe(true).await;
        let write = self.board.lock().newcomer_note(member.index(), self.clock.random_bits());
        if let Some(write) = write {
            let _ = member.write(&write).await;
            member.probe(true).await;
        }
    }

    /// The membership, for people.
    pub fn members_view(&self) -> MembersView {
        let nodes: Vec<_> = self.members.iter().map(|member| member.view()).collect();
        let board = self.board.lock();
        let now = self.clock.now();
        let Some(membership) = board.in_force() else {
            return MembersView { epoch: 0, members: Vec::new(), changing: None };
        };
        let members = membership.members.iter().map(|member| {
            let place = (0..board.listed())
                .find(|&i| board.seen(i).is_some_and(|seen| seen.identity.run_id == member.run_id));
            let address = place.map(|i| board.address(i).to_owned());
            MemberView {
                id: member.run_id.clone(),
                address: address
                    .or_else(|| board.addresses_of(&member.run_id).first().map(|a| (*a).to_owned())),
                state: place.map_or("down", |i| nodes[i].state),
                votes_in_ms: (member.role == Role::Joining)
                    .then(|| board.wait_for(member))
                    .flatten()
                    .map(|wait| wait.until.saturating_duration_since(now).as_millis() as u64),
            }
        });
        let waiting = membership.members.iter().filter(|member| member.role == Role::Joining).count();
        let changing = membership.is_changing().then(|| match waiting {
            0 => "leases of the epoch before have to expire before the next change".to_owned(),
            _ => format!("{waiting} of {} members do not vote yet", membership.total()),
        });
        MembersView { epoch: membership.epoch, members: members.collect(), changing }
    }

    /// The epoch in force; 0 where there is none yet.
    pub fn epoch(&self) -> u64 {
        self.board.lock().in_force().map_or(0, |membership| membership.epoch)
    }

    /// How many members no node of this server's list is, and nodes of the list that are no members.
    pub fn list_mismatch(&self) -> usize {
        let board = self.board.lock();
        let Some(membership) = board.in_force() else { return 0 };
        let here = |run_id: &str| {
            (0..board.listed()).any(|i| board.seen(i).is_some_and(|seen| seen.identity.run_id == run_id))
        };
        let strangers = (0..board.listed()).filter(|&i| {
            board.seen(i).is_some_and(|seen| membership.of_process(&seen.identity.run_id).is_none())
        });
        let unlisted = membership.members.iter().filter(|member| {
            !here(&member.run_id)
                && !board
                    .addresses_of(&member.run_id)
                    .iter()
                    .any(|address| (0..board.listed()).any(|i| board.address(i) == *address))
        });
        strangers.count() + unlisted.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SeededClock};
    use crate::node::Script;
    use crate::node::embedded::EmbeddedNode;
    use crate::quorum::fixture::Api;
    use crate::quorum::{EngineOptions, Round};

    fn clock(seed: u64, skew_us: i64) -> Arc<dyn Clock> {
        let clock = SeededClock::new(seed, 1_790_000_000_000_000);
        clock.set_skew_us(skew_us);
        Arc::new(clock)
    }

    fn nodes() -> Vec<EmbeddedNode> {
        let node = |i| EmbeddedNode::new(&format!("run-{i}"), clock(i, 0)).with_address(&format!("n{i}"));
        (0..3).map(node).collect()
    }

    async fn server(nodes: &[EmbeddedNode], clock: Arc<dyn Clock>, max_ttl_ms: u64) -> Api {
        let nodes: Vec<_> = nodes.iter().map(EmbeddedNode::connect).collect();
        Api::with(nodes.into_iter(), &clock, EngineOptions { max_ttl_ms, ..EngineOptions::default() }).await
    }

    /// A server whose clock is ahead, and one whose clock is behind. The only node in both of their quorums has
    /// forgotten meanwhile, and was waited for as long as the longest lease, a second.
    #[tokio::test(start_paused = true)]
    async fn tokens_rise_over_a_quarantine_that_is_shorter_than_clocks_differ_by() {
        let nodes = nodes();
        let ahead = server(&nodes, clock(3, 4_000_000), 1000).await;
        let behind = server(&nodes, clock(4, -4_000_000), 1000).await;
        ahead.nodes[2].refuse(Some(Script::Acquire));
        let Round::Granted(before) = ahead.round_of(None, 1000).await else { panic!("not granted") };
        nodes[1].restart("again", false);
        let votes = || behind.engine.nodes().iter().all(|node| node.state == "voting");
        while behind.engine.epoch() == 1 || !votes() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        behind.nodes[0].refuse(Some(Script::Acquire));
        let Round::Granted(after) = behind.round_of(None, 1000).await else { panic!("not granted") };
        assert!(after.handle.token > before.handle.token, "{:?} {:?}", before.handle, after.handle);
    }

    /// The third member missed an extension, so its copy ends sooner than the holder was told. Then the first is closed.
    #[tokio::test(start_paused = true)]
    async fn a_member_that_has_an_earlier_end_of_a_lease_is_told_the_later_one_before_another_is_closed() {
        let nodes = nodes();
        let api = server(&nodes, clock(3, 0), 30_000).await;
        let lease = api.acquire().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        api.nodes[2].refuse(Some(Script::Extend));
        api.extend(lease).await;
        api.nodes[2].refuse(None);
        api.engine.change_members(&Change::Close("run-0".to_owned())).await.unwrap();
        tokio::time::sleep(Duration::from_secs(25)).await;
        api.nodes[0].hang();
        api.extend(lease).await;
    }

    /// Leases of another server, which grants longer ones than this one does.
    #[tokio::test(start_paused = true)]
    async fn nodes_that_all_lost_their_memory_are_waited_for_as_long_as_leases_were_seen_to_last() {
        let nodes = nodes();
        let (short, long) =
            (server(&nodes, clock(3, 0), 1000).await, server(&nodes, clock(4, 0), 20_000).await);
        let Round::Granted(granted) = long.round_of(None, 20_000).await else { panic!("not granted") };
        granted.grant.keep();
        // Between two looks.
        tokio::time::sleep(Duration::from_secs(1)).await;
        long.nodes.iter().for_each(|node| node.hang());
        for (i, node) in nodes.iter().enumerate() {
            node.restart(&format!("again-{i}"), false);
        }
        let (lost_at, epoch) = (tokio::time::Instant::now(), short.engine.epoch());
        while short.engine.epoch() == epoch || !short.engine.available() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(lost_at.elapsed() > Duration::from_secs(18), "{:?}", lost_at.elapsed());
    }
}
