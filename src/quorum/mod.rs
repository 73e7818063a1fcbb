//! The quorum engine: fan out, count votes, validity, undo (docs/protocol.md §1 and §2).
//!
//! One [`Engine`] serves all primitives. It knows leases, tokens and keys, and
//! nothing of waiting or of what a lock means. The algorithm is Redlock
//! (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>)
//! with fencing tokens raised to a quorum, ordered undo, healing and quarantine.
//!
//! Here is what its rounds share; each kind of round has a file: `grant`, `extend`, `release`, `read`,
//! `list`, `issue`. What a round makes of its votes is a state machine without I/O in `rounds`, fed by the one
//! loop in `drive`. How votes are counted is in [`tally`], who waits for news of a key in [`hub`].

mod drive;
mod extend;
#[cfg(test)]
pub(crate) mod fixture;
mod grant;
mod guard;
pub mod hub;
mod issue;
pub mod list;
pub mod membership;
mod read;
mod release;
mod ride;
mod rounds;
mod spares;
mod start;
pub mod tally;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use self::extend::Extension;
pub use self::grant::{Order, Refusal, Round, Won};
pub use self::guard::Grant;
use self::hub::Hub;
use self::membership::Rights;
use self::ride::Ride;
use self::spares::Spares;
pub use self::start::{InitError, InitReport, StartError};
use self::tally::{Count, quorum_of};
use crate::clock::Clock;
use crate::domain::{Keys, Nodes, Version};
use crate::node::ballot::{Ballot, Vote};
use crate::node::board::Board;
use crate::node::calls::{self, Bounds};
use crate::node::clock_watch::ClockWatch;
use crate::node::electorate::Electorate;
use crate::node::member::Member;
pub use crate::node::member::NodeView;
use crate::node::{Command, Node};

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The longest lease, ms; how long a node that lost its memory abstains.
    pub max_ttl_ms: u64,
    /// How long a fence outlives its lease, ms.
    pub fence_retention_ms: u64,
    /// How far a token may be ahead of a node's clock, ms.
    pub clock_bound_ms: u64,
    /// What all keys begin with.
    pub key_prefix: String,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_ttl_ms: 300_000,
            fence_retention_ms: 600_000,
            clock_bound_ms: 5_000,
            key_prefix: "quorate".to_owned(),
        }
    }
}

/// Something that may have to be taken back is under way, until this is dropped.
pub struct Underway(Arc<Engine>);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.settling.fetch_sub(1, Ordering::Release);
    }
}

/// The engine. One per API server.
pub struct Engine {
    members: Vec<Arc<Member>>,
    clock: Arc<dyn Clock>,
    keys: Keys,
    bounds: Bounds,
    options: EngineOptions,
    board: Arc<Mutex<Board>>,
    electorate: Arc<Electorate>,
    clocks: Arc<ClockWatch>,
    rights: Rights,
    /// The greatest ballot that a node named, without its random part.
    ballot_seen: AtomicU64,
    /// Held while an operator's change is made.
    changing: tokio::sync::Mutex<()>,
    hub: Arc<Hub>,
    spares: Arc<Spares>,
    walks: list::Walks,
    server: u64,
    last_proposed: AtomicU64,
    /// Rounds whose last answers are not there yet and may leave something to do, and held leases.
    settling: AtomicUsize,
    changed: Arc<Notify>,
}

fn round_trip_of(members: &[Arc<Member>]) -> Duration {
    let mut known: SmallVec<[Duration; 5]> = members.iter().filter_map(|member| member.latency()).collect();
    known.sort_unstable();
    known.get(known.len() / 2).copied().unwrap_or(Duration::from_millis(1))
}

impl Engine {
    /// An engine over `nodes`; [`Engine::start`] makes it live.
    pub fn new(nodes: Vec<Arc<dyn Node>>, clock: Arc<dyn Clock>, options: EngineOptions) -> Arc<Self> {
        let addresses = nodes.iter().map(|node| node.address().to_owned()).collect();
        let board = Arc::new(Mutex::new(Board::new(addresses, options.max_ttl_ms, options.clock_bound_ms)));
        let electorate = Arc::clone(board.lock().electorate());
        let clocks = Arc::new(ClockWatch::new(nodes.len(), clock.now()));
        let keys = Keys::new(&options.key_prefix);
        let bounds =
            Bounds { clock_bound_ms: options.clock_bound_ms, fence_retention_ms: options.fence_retention_ms };
        let members: Vec<_> = nodes
            .into_iter()
            .enumerate()
            .map(|(i, node)| {
                let (board, clocks) = (Arc::clone(&board), Arc::clone(&clocks));
                Member::new(i, node, Arc::clone(&clock), keys.clone(), bounds, board, clocks)
            })
            .collect();
        let hub = Hub::new(members.clone());
        let spares = Spares::new(members.clone(), Arc::clone(&clock));
        Arc::new(Self {
            members,
            server: clock.random_bits() as u64 >> 16,
            clock,
            keys,
            bounds,
            options,
            board,
            electorate,
            clocks,
            rights: Rights::default(),
            ballot_seen: AtomicU64::new(0),
            changing: tokio::sync::Mutex::default(),
            hub,
            spares,
            walks: list::Walks::default(),
            last_proposed: AtomicU64::new(0),
            settling: AtomicUsize::new(0),
            changed: Arc::default(),
        })
    }

    /// Spawns the keepers, one a node, and the task that sends copies. They run until the runtime ends.
    pub fn start(self: &Arc<Self>) {
        for member in &self.members {
            let (spares, changed) = (Arc::clone(&self.spares), Arc::clone(&self.changed));
            let electorate = Arc::clone(&self.electorate);
            tokio::spawn(Arc::clone(member).keep(move || {
                spares.choose(electorate.now().quorum());
                changed.notify_waiters();
            }));
        }
        tokio::spawn(Arc::clone(&self.spares).send_copies());
        tokio::spawn(Arc::clone(self).keep_membership());
    }

    /// The clock that everything above reads too.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// How long this server stood still since it began: what was believed before is over that much sooner.
    pub fn stood_still(&self) -> Duration {
        self.clocks.stood_still()
    }

    /// The names of keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Hints from the nodes.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// The settings.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// N: the members of the deployment, whatever nodes this server's list names.
    pub fn total(&self) -> usize {
        self.electorate.now().total
    }

    /// The listed nodes that are members.
    fn seats(&self) -> impl Iterator<Item = (usize, &Arc<Member>)> {
        let members = self.electorate.now().members;
        self.members.iter().enumerate().filter(move |(i, _)| members & (1 << i) != 0)
    }

    /// How many make a quorum.
    pub fn quorum(&self) -> u32 {
        self.electorate.now().quorum() as u32
    }

    /// The nodes, for people.
    pub fn nodes(&self) -> Vec<NodeView> {
        self.members.iter().map(|member| member.view()).collect()
    }

    /// How many nodes vote (`granted`), and how many do not, or could grant nothing (`failed`).
    pub fn tally(&self) -> Nodes {
        let (voting, total) = (self.members.iter().filter(|member| member.is_able()).count(), self.total());
        Count { total, yes: voting, no: 0, failed: total.saturating_sub(voting) }.nodes()
    }

    /// Whether a quorum of nodes votes and could grant something.
    pub fn available(&self) -> bool {
        self.tally().granted >= self.quorum()
    }

    /// Resolves when a quorum of nodes votes.
    pub async fn until_available(&self) {
        loop {
            let changed = self.changed.notified();
            if self.available() {
                return;
            }
            changed.await;
        }
    }

    /// This server in the queues at the nodes, until it restarts: random bits.
    pub fn server(&self) -> u64 {
        self.server
    }

    /// About what the nodes' clocks say, µs: what a quorum of them has reached, or else this server's.
    pub fn nodes_us(&self) -> u64 {
        self.nodes_clock_us(self.clock.now()).unwrap_or_else(|| self.clock.wall_us())
    }

    /// About a round trip to the nodes: the median of their recent answers.
    pub fn round_trip(&self) -> Duration {
        round_trip_of(&self.members)
    }

    /// Releases that some node has not confirmed yet.
    pub fn debts(&self) -> usize {
        self.members.iter().map(|member| member.debts()).sum()
    }

    /// Whether every call was answered and everything that had to be taken back was: whoever ends
    /// the engine now leaves nothing behind.
    pub fn is_settled(&self) -> bool {
        // In this order: what a lost round takes back is a call before the round is over.
        self.settling.load(Ordering::Acquire) == 0
            && self.members.iter().all(|member| member.unsettled() == 0)
    }

    /// The engine is not settled before the result is dropped.
    pub fn underway(self: &Arc<Self>) -> Underway {
        self.settling.fetch_add(1, Ordering::Relaxed);
        Underway(Arc::clone(self))
    }

    /// `p = max(last proposed + 1, wall clock in µs)` (§2.1), where the wall clock is taken for at most the
    /// clock bound behind the nodes'. As none is granted that is further ahead of any node of its quorum,
    /// whatever was granted twice the bound ago is smaller, wherever it may be forgotten.
    ///
    /// What was proposed by a clock that was ahead and has been set right, the server's or those of a
    /// quorum, is forgotten: it would be refused until the clocks have come to it.
    fn propose(&self, now: Instant) -> u64 {
        let (nodes, ahead_us) = (self.nodes_clock_us(now), self.bounds.ahead_us());
        let most = nodes.map_or(u64::MAX, |nodes| nodes.saturating_add(ahead_us));
        // A floor of clocks that have been set right since would be refused, too.
        let floor =
            Some(self.electorate.now().token_floor).filter(|floor| *floor <= most.saturating_add(ahead_us));
        let wall = self.clock.wall_us().max(nodes.unwrap_or(0).saturating_sub(ahead_us));
        let wall = wall.max(floor.map_or(0, |floor| floor + 1));
        let mut last = self.last_proposed.load(Ordering::Relaxed);
        loop {
            let next = if last > most { wall } else { wall.max(last + 1) };
            match self.last_proposed.compare_exchange_weak(last, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return next,
                Err(now) => last = now,
            }
        }
    }

    /// A version of stored data that replaces `before`.
    pub fn version_after(&self, before: Version) -> Version {
        before.next(self.propose(self.clock.now()), self.clock.random_bits())
    }

    /// What the clocks of a quorum have reached, µs: no minority that is ahead moves it, and of any other
    /// quorum one node at least is not beyond it. None before a quorum was seen.
    fn nodes_clock_us(&self, now: Instant) -> Option<u64> {
        let mut clocks: SmallVec<[u64; 5]> =
            self.members.iter().filter_map(|member| member.clock_us(now)).collect();
        clocks.sort_unstable_by(|a, b| b.cmp(a));
        clocks.get(quorum_of(self.total()) - 1).copied()
    }

    /// With fewer answers there is neither a quorum that says the same nor one that does not answer.
    fn enough(&self) -> usize {
        let (total, quorum) = (self.total(), quorum_of(self.total()));
        quorum.min(total + 1 - quorum)
    }

    /// A ballot of all nodes.
    fn ballot(&self) -> Ballot {
        Ballot::new(self.enough())
    }

    /// Asks every node for a vote, at once.
    fn vote(&self, command: &Arc<Command>) -> Ballot {
        let (mut ballot, now) = (self.ballot(), self.clock.now());
        for (i, member) in self.seats() {
            member.vote(command, now, Some(ballot.seat(i)));
        }
        ballot
    }

    /// Tells every node something that needs no marker, at once; but not these, which have their answer.
    fn tell(&self, command: &Arc<Command>, except: u64) -> Ballot {
        let answered = except.count_ones() as usize;
        let (mut ballot, now) =
            (Ballot::new(self.enough().saturating_sub(answered).max(1)), self.clock.now());
        // One that is no member now may hold a lease all the same. It has no say.
        let members = self.electorate.now().members;
        for (i, member) in self.members.iter().enumerate().filter(|(i, _)| except & (1 << i) == 0) {
            let seat = (members & (1 << i) != 0).then(|| ballot.seat(i));
            member.tell(command, now, seat);
        }
        ballot
    }

    /// Takes the answers that are still out as they come. Nobody waits for them but a server that ends.
    fn take_late(self: &Arc<Self>, mut ballot: Ballot, mut take: impl FnMut(usize, Vote) + Send + 'static) {
        if ballot.is_empty() {
            return;
        }
        let underway = self.underway();
        tokio::spawn(async move {
            while let Some((i, answer)) = ballot.next().await {
                take(i, answer);
            }
            // What it still takes back is a call before this is over.
            drop(take);
            drop(underway);
        });
    }

    /// Tells listeners that something about these channels changed.
    pub fn publish(self: &Arc<Self>, channels: &[Arc<str>]) {
        let command = Arc::new(calls::publish(channels));
        let now = self.clock.now();
        for member in self.members.iter().filter(|member| member.is_voting()) {
            member.tell(&command, now, None);
        }
        self.hub.ring(channels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SeededClock;
    use crate::domain::Resource;
    use crate::node::Script;
    use crate::node::embedded::EmbeddedNode;
    use crate::quorum::fixture::Api;

    const DAY_US: i64 = 86_400_000_000;

    /// So many nodes with one clock, and servers with another.
    fn clocks(nodes: usize) -> (Vec<EmbeddedNode>, [Arc<SeededClock>; 2]) {
        let clocks = [1, 2].map(|seed| Arc::new(SeededClock::new(seed, 1_790_000_000_000_000)));
        let clock = |i| EmbeddedNode::new(&format!("run-{i}"), Arc::clone(&clocks[0]) as Arc<dyn Clock>);
        ((0..nodes).map(clock).collect(), clocks)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_whose_clock_was_ahead_is_granted_leases_once_that_is_set_right() {
        let (nodes, [_, server]) = clocks(3);
        let api = Api::over(nodes.into_iter(), &(Arc::clone(&server) as Arc<dyn Clock>)).await;
        server.set_skew_us(DAY_US);
        assert!(matches!(api.round().await, Round::NoQuorum(_)));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!api.engine.available());
        let reason = api.engine.nodes().swap_remove(0).reason;
        assert_eq!(reason.as_deref(), Some("its clock is more than 5 s behind this server's"));
        server.set_skew_us(0);
        assert!(matches!(api.round().await, Round::Granted(_)));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(api.engine.available());
    }

    #[tokio::test(start_paused = true)]
    async fn servers_are_granted_leases_once_clocks_of_nodes_that_were_ahead_are_set_right() {
        let (nodes, [ahead, server]) = clocks(3);
        ahead.set_skew_us(DAY_US);
        let api = Api::over(nodes.into_iter(), &(server as Arc<dyn Clock>)).await;
        let lease = api.acquire().await;
        assert!(api.release(&lease).await);
        ahead.set_skew_us(0);
        // They are in quarantine first.
        assert!(matches!(api.round().await, Round::NoQuorum(_)));
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(matches!(api.round().await, Round::Granted(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_straggler_of_a_lost_round_does_not_keep_the_lease_while_another_one_hangs() {
        let (nodes, [_, server]) = clocks(5);
        let clock = server as Arc<dyn Clock>;
        let other = Api::over(nodes.iter().map(EmbeddedNode::connect), &clock).await;
        let api = Api::over(nodes.into_iter(), &clock).await;
        let held = other.acquire().await;
        assert!(!api.is_held_at(3), "not before 20 ms");
        api.nodes[3..].iter().for_each(|node| node.hang());
        assert!(matches!(api.round_of(Some("lost"), 30_000).await, Round::Refused(_)));
        api.nodes[3].go_on();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!api.is_held_at(3));
        assert!(other.release(&held).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_failed_for_a_moment_votes_again_at_once() {
        let [api, _] = Api::pair().await;
        let votes = || api.engine.nodes()[0].state == "voting";
        api.nodes[0].refuse(Some(Script::Status));
        while votes() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        api.nodes[0].refuse(None);
        tokio::time::sleep(Duration::from_millis(15)).await;
        assert!(votes());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_node_that_hangs_where_no_quorum_can_answer() {
        let [api, _] = Api::pair().await;
        let lease = api.acquire().await;
        api.nodes[2].hang();
        let key = api.scope.channels()[0].to_string();
        for script in [Script::Read, Script::List, Script::Issue, Script::Release] {
            api.nodes[..2].iter().for_each(|node| node.refuse(Some(script)));
            let failed = async {
                match script {
                    Script::Read => api.engine.read(&[&key], |_| true).await.err(),
                    Script::List => api.engine.list(Resource::Lock, "", "", 10).await.err(),
                    Script::Issue => api.engine.issue(&key).await.err(),
                    _ => api.engine.release(&api.scope, &lease.id).await.err(),
                }
            };
            let failed = tokio::time::timeout(Duration::from_secs(1), failed).await;
            assert_eq!(failed.map(|failed| failed.map(|nodes| nodes.failed)), Ok(Some(2)), "{script:?}");
        }
    }

    /// It has been marked anew by another server, too.
    #[tokio::test(start_paused = true)]
    async fn a_clock_step_is_seen_at_a_node_that_has_restarted_since_it_was_looked_at() {
        const SECOND: Duration = Duration::from_secs(1);
        let [api, other] = Api::pair().await;
        let node = &api.nodes[1];
        let state = |api: &Api| api.engine.nodes()[1].state;
        node.refuse(Some(Script::Status));
        tokio::time::sleep(SECOND).await;
        node.node.restart("again", false);
        tokio::time::sleep(310 * SECOND).await;
        assert_eq!((state(&api), state(&other)), ("down", "voting"));
        other.acquire().await;
        node.node.set_clock_offset_us(60_000_000);
        tokio::time::sleep(SECOND).await;
        node.refuse(None);
        tokio::time::sleep(SECOND).await;
        assert_eq!((state(&api), state(&other)), ("quarantined", "quarantined"));
    }
}
