//! The quorum engine: fan out, count votes, validity, undo (PROTOCOL §1 and §2).
//!
//! One [`Engine`] serves all primitives. It knows leases, tokens and keys, and
//! nothing of waiting or of what a lock means. The algorithm is Redlock
//! (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>)
//! with fencing tokens raised to a quorum, ordered undo, healing and quarantine.

pub mod hub;
mod list;
pub mod tally;

use std::cmp;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::hub::Hub;
use self::tally::{Count, Named, Verdict, quorum_of};
use crate::clock::Clock;
use crate::domain::{Edition, LeaseHandle, LeaseId, Nodes, Token, drift_ms, validity_ms};
use crate::node::ballot::{Ballot, Vote};
use crate::node::calls::{
    self, Ask, Bounds, Claim, Entry, Extended, GrantVote, Holding, Keys, Renewal, Scope, Survey, Tag, Tell,
};
use crate::node::member::Member;
pub use crate::node::member::NodeView;
use crate::node::quarantine::{Board, Standing};
use crate::node::{Answer, Command, Node, NodeError, Settle};
use crate::telemetry::metrics;

/// How long the last votes are waited for where they tell a tie from a lease that is held.
const TIE_PATIENCE_MIN: Duration = Duration::from_millis(2);
const TIE_PATIENCE_MAX: Duration = Duration::from_millis(50);

/// How long a reader waits at most for what it has read to reach a quorum.
const SETTLE_PATIENCE: Duration = Duration::from_millis(50);

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
            clock_bound_ms: 60_000,
            key_prefix: "quorate".to_owned(),
        }
    }
}

/// A node that must not be used, found at the start.
#[derive(Debug, thiserror::Error)]
#[error("node {address} is refused: {reason}")]
pub struct StartError {
    /// Its address, without password.
    pub address: String,
    /// Why.
    pub reason: String,
}

/// Why the nodes could not be marked.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// Something speaks against it; the text names the node.
    #[error("{0}")]
    Refused(String),
    /// A node did not take its marker.
    #[error("{address} did not take its marker: {source}")]
    Node {
        /// Its address, without password.
        address: String,
        /// Why.
        source: NodeError,
    },
}

/// What `quorate init` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitReport {
    /// Addresses of the nodes that were marked now.
    pub marked: Vec<String>,
    /// Addresses of nodes that are blank in a deployment that is not new: the server marks
    /// them when their quarantine is over.
    pub left_to_quarantine: Vec<String>,
    /// Configured nodes.
    pub total: usize,
}

/// In which order the nodes are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// All at once.
    Parallel,
    /// The node that this number chooses first, alone; then the rest. Of many contenders
    /// one gets past it, so that the vote cannot be split again and again.
    PrimaryFirst(u64),
}

/// How a granting round ended.
pub enum Round {
    /// Granted by a quorum.
    Granted(Box<Won>),
    /// A quorum answered, and no quorum granted.
    Refused(Box<Refusal>),
    /// Fewer than a quorum answered.
    NoQuorum(Nodes),
}

/// A round that was won.
pub struct Won {
    /// Secret and token.
    pub handle: LeaseHandle,
    /// Until when the holder may rely on it.
    pub valid_until: Instant,
    /// The votes.
    pub nodes: Nodes,
    /// Undoes it unless kept.
    pub grant: Grant,
}

/// A round that was lost.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// What the refusing nodes store.
    pub holdings: Vec<Holding>,
    /// The votes.
    pub nodes: Nodes,
    /// When a quorum of nodes is free by expiry, ms; `None` while too few answered.
    pub free_in_ms: Option<u64>,
    /// Whether a lease may have a quorum. Otherwise the vote was split.
    pub held: bool,
    /// Whether the attempt itself was undone before it was over: by another one of the same request.
    pub undone: bool,
}

impl Refusal {
    /// The lease that a quorum names.
    pub fn holder(&self) -> Option<Named<'_>> {
        tally::holder(self.holdings.iter(), self.nodes.total as usize)
    }

    /// Whether only a node that cannot be asked could tell a lease that is held from one that another
    /// contender has begun to take.
    pub fn is_doubtful(&self) -> bool {
        self.held && self.holder().is_none() && self.nodes.failed > 0
    }
}

/// A grant that is undone on every node that may know of it, unless it is kept: whatever
/// drops it (a lost round, a client that went away) leaves nothing behind (§1.4, §1.5).
#[must_use]
pub struct Grant {
    engine: Arc<Engine>,
    scope: Scope,
    lease: LeaseId,
    /// One bit a node that granted it, or whose answer is unknown.
    nodes: u64,
    settle_until: Instant,
    /// Where it has a request id: who it was granted to, so that a retry which takes it over
    /// keeps it (§1.9).
    claim: Option<Claim>,
    /// The round was refused: then its undo is told nobody, or it would wake the contender that lost
    /// it. Otherwise others may have been refused because of it, and wait for it.
    lost: bool,
    armed: bool,
}

impl Grant {
    /// A lease that was granted earlier and that nobody undoes unless [`Grant::arm`]ed.
    fn earlier(engine: Arc<Engine>, scope: Scope, lease: LeaseId, claim: Claim) -> Self {
        let settle_until = engine.settle_until(engine.options.max_ttl_ms);
        let claim = Some(claim);
        Self { engine, scope, lease, nodes: u64::MAX, settle_until, claim, lost: false, armed: false }
    }

    /// From now on, dropping it undoes it.
    pub fn arm(&mut self) {
        self.armed = true;
    }

    /// Whether dropping it undoes it.
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// Gives it back everywhere, unless a retry has taken it over since. `Ok(true)` where a quorum may
    /// have held it.
    ///
    /// # Errors
    /// As [`Engine::release`].
    pub async fn release(&self) -> Result<bool, Nodes> {
        self.engine.release_claimed(&self.scope, &self.lease, self.claim).await
    }

    /// It shall stay.
    pub fn keep(mut self) {
        self.armed = false;
    }

    /// Undoes a lost round: at once where the lease was granted, and at a straggler only once
    /// it turns out to have granted it too; mostly it refuses like the others.
    fn settle(mut self, ballot: Ballot, mut votes: GrantVotes) {
        self.lost = true;
        if ballot.is_empty() {
            return;
        }
        let pending = ballot.pending();
        let known = self.nodes & !pending;
        if known != 0 {
            self.undo(known);
        }
        self.nodes = pending;
        let engine = Arc::clone(&self.engine);
        engine.take_late(ballot, move |i, answer| votes.take(i, answer, &mut self));
    }

    fn undo(&self, nodes: u64) {
        let tell = if self.lost { Tell::Nobody } else { Tell::Everybody };
        self.engine.undo(&self.scope, &self.lease, nodes, self.settle_until, tell, self.claim);
    }

    /// Undone later than first thought: the lease was extended meanwhile.
    pub fn extended(&mut self, ttl_ms: u64) {
        self.settle_until = self.engine.settle_until(ttl_ms);
        // A healed node knows of it too.
        self.nodes = u64::MAX;
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.armed && self.nodes != 0 {
            self.undo(self.nodes);
        }
    }
}

/// How an extension ended.
#[derive(Debug)]
pub enum Extension {
    /// A quorum still held the lease.
    Extended {
        /// What is stored with it; of its data the latest edition that was seen.
        stored: Extended,
        /// Until when the holder may rely on it.
        valid_until: Instant,
        /// The votes.
        nodes: Nodes,
    },
    /// It is not held any more, and will not be again.
    Lost(Nodes),
    /// Fewer than a quorum answered: it may still be valid.
    NoQuorum(Nodes),
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
    hub: Arc<Hub>,
    last_proposed: AtomicU64,
    /// Rounds whose last answers are not there yet and may leave something to do, and held leases.
    settling: AtomicUsize,
    changed: Arc<Notify>,
}

impl Engine {
    /// An engine over `nodes`; [`Engine::start`] makes it live.
    pub fn new(nodes: Vec<Arc<dyn Node>>, clock: Arc<dyn Clock>, options: EngineOptions) -> Arc<Self> {
        let addresses = nodes.iter().map(|node| node.address().to_owned()).collect();
        let board = Arc::new(Mutex::new(Board::new(addresses, options.max_ttl_ms)));
        let keys = Keys::new(&options.key_prefix);
        let bounds =
            Bounds { clock_bound_ms: options.clock_bound_ms, fence_retention_ms: options.fence_retention_ms };
        let members: Vec<_> = nodes
            .into_iter()
            .enumerate()
            .map(|(i, node)| {
                Member::new(i, node, Arc::clone(&clock), keys.clone(), bounds, Arc::clone(&board))
            })
            .collect();
        let hub = Hub::new(members.clone(), Arc::clone(keys.waiting()));
        Arc::new(Self {
            members,
            clock,
            keys,
            bounds,
            options,
            board,
            hub,
            last_proposed: AtomicU64::new(0),
            settling: AtomicUsize::new(0),
            changed: Arc::default(),
        })
    }

    /// Spawns the keepers, one a node. They run until the runtime ends.
    pub fn start(&self) {
        for member in &self.members {
            tokio::spawn(Arc::clone(member).keep(Arc::clone(&self.changed)));
        }
    }

    /// Probes every node once.
    ///
    /// # Errors
    /// Names a node that was reached and must not be used.
    pub async fn ready_at_start(&self) -> Result<(), StartError> {
        self.probe_all().await;
        for member in &self.members {
            if let Standing::Refused(why) = member.standing() {
                let address = member.node().address().to_owned();
                return Err(StartError { address, reason: why.to_string() });
            }
        }
        Ok(())
    }

    /// Looks at every node, giving those that do not answer yet a moment to be connected.
    async fn probe_all(&self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        const AGAIN: Duration = Duration::from_millis(20);
        let deadline = self.clock.now() + PATIENCE;
        let reach = self.members.iter().map(|member| async move {
            member.probe(false).await;
            while member.standing() == Standing::Down && self.clock.now() < deadline {
                tokio::time::sleep(AGAIN).await;
                member.probe(false).await;
            }
        });
        futures_util::future::join_all(reach).await;
        // Once more: the verdict on one node depends on what the others say.
        futures_util::future::join_all(self.members.iter().map(|member| member.probe(false))).await;
    }

    /// Marks the nodes of a new deployment: the operator's word that nothing was forgotten.
    ///
    /// # Errors
    /// Where a node cannot be reached, is refused or belongs to another deployment.
    pub async fn initialize(&self) -> Result<InitReport, InitError> {
        self.probe_all().await;
        if let Some(member) = self.members.iter().find(|member| member.standing() == Standing::Down) {
            let why = member.trouble().unwrap_or_else(|| "no answer".to_owned());
            return Err(InitError::Refused(format!("{} cannot be reached: {why}", member.node().address())));
        }
        let (marks, seen, standing) = {
            let board = self.board.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let now = self.clock.now();
            let seen: Vec<_> = (0..self.total()).map(|i| board.marker(i).map(str::to_owned)).collect();
            (board.initialize(now).map_err(InitError::Refused)?, seen, board.judge(now))
        };
        let mut report =
            InitReport { marked: Vec::new(), left_to_quarantine: Vec::new(), total: self.members.len() };
        for (((member, mark), seen), verdict) in self.members.iter().zip(marks).zip(seen).zip(standing) {
            let address = member.node().address().to_owned();
            match mark {
                Some(mark) => {
                    let command = Arc::new(calls::mark(&self.keys, seen.as_deref(), &mark.to_string()));
                    let answer = member.ask(&command).await;
                    answer.map_err(|source| InitError::Node { address: address.clone(), source })?;
                    report.marked.push(address);
                }
                None if matches!(verdict.standing, Standing::Quarantined { .. }) => {
                    report.left_to_quarantine.push(address);
                }
                None => {}
            }
        }
        Ok(report)
    }

    /// The clock that everything above reads too.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
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

    /// Configured nodes.
    pub fn total(&self) -> usize {
        self.members.len()
    }

    /// How many make a quorum.
    pub fn quorum(&self) -> u32 {
        quorum_of(self.members.len()) as u32
    }

    /// The nodes, for people.
    pub fn nodes(&self) -> Vec<NodeView> {
        self.members.iter().map(|member| member.view()).collect()
    }

    /// How many nodes vote (`granted`), and how many do not (`failed`).
    pub fn tally(&self) -> Nodes {
        let voting = self.members.iter().filter(|member| member.is_voting()).count();
        Count { total: self.total(), yes: voting, no: 0, failed: self.total() - voting }.nodes()
    }

    /// Whether a quorum of nodes votes.
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

    /// About a round trip to the nodes: the median of their recent answers.
    pub fn round_trip(&self) -> Duration {
        let mut known: SmallVec<[Duration; 5]> =
            self.members.iter().filter_map(|member| member.latency()).collect();
        known.sort_unstable();
        known.get(known.len() / 2).copied().unwrap_or(Duration::from_millis(1))
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
    fn propose(&self, now: Instant) -> u64 {
        let nodes = self.nodes_clock_us(now).unwrap_or(0);
        let wall = self.clock.wall_us().max(nodes.saturating_sub(self.bounds.ahead_us()));
        let mut last = self.last_proposed.load(Ordering::Relaxed);
        loop {
            let next = wall.max(last + 1);
            match self.last_proposed.compare_exchange_weak(last, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return next,
                Err(now) => last = now,
            }
        }
    }

    /// What the clocks of a quorum have reached, µs: no minority that is ahead moves it, and of any other
    /// quorum one node at least is not beyond it. None before a quorum was seen.
    fn nodes_clock_us(&self, now: Instant) -> Option<u64> {
        let mut clocks: SmallVec<[u64; 5]> =
            self.members.iter().filter_map(|member| member.clock_us(now)).collect();
        clocks.sort_unstable_by(|a, b| b.cmp(a));
        clocks.get(quorum_of(self.total()) - 1).copied()
    }

    /// A ballot of all nodes.
    fn ballot(&self) -> Ballot {
        let (total, quorum) = (self.total(), quorum_of(self.total()));
        // With fewer answers there is neither a quorum that says the same nor one that does not answer.
        Ballot::new(quorum.min(total + 1 - quorum))
    }

    /// Asks every node for a vote, at once.
    fn vote(&self, command: &Arc<Command>) -> Ballot {
        let (mut ballot, now) = (self.ballot(), self.clock.now());
        for (i, member) in self.members.iter().enumerate() {
            member.vote(command, now, Some(ballot.seat(i)));
        }
        ballot
    }

    /// Tells every node something that needs no marker, at once.
    fn tell(&self, command: &Arc<Command>) -> Ballot {
        let (mut ballot, now) = (self.ballot(), self.clock.now());
        for (i, member) in self.members.iter().enumerate() {
            member.tell(command, now, Some(ballot.seat(i)));
        }
        ballot
    }

    fn settle_until(&self, ttl_ms: u64) -> Instant {
        // A late acquire may still be executed while its call can be answered.
        self.clock.now() + Duration::from_millis(ttl_ms + drift_ms(ttl_ms) + 1000)
    }

    /// One granting round with a fresh lease id. Answers as soon as the outcome is certain;
    /// stragglers find their way without anybody waiting for them.
    ///
    /// What is rare is boxed here and in what calls this: every request in flight keeps a state as
    /// large as the largest way through it, and moves it about at the start.
    pub async fn grant(self: &Arc<Self>, ask: &Ask<'_>, order: Order) -> Round {
        let lease = LeaseId::from_bits(self.clock.random_bits());
        // Counted from before the first byte is sent (§1.2).
        let started = self.clock.now();
        let proposed = self.propose(started);
        let command = calls::acquire(ask, &lease, proposed);
        let command = Arc::new(command);
        let mut grant = Grant {
            engine: Arc::clone(self),
            scope: ask.scope.clone(),
            lease,
            nodes: 0,
            settle_until: self.settle_until(ask.ttl_ms),
            claim: ask.request.is_some().then_some(Claim::FIRST),
            lost: false,
            armed: true,
        };
        let mut votes = GrantVotes::new(self.total(), proposed);
        let (mut ballot, asked) = match order {
            Order::Parallel => (self.ballot(), 0),
            Order::PrimaryFirst(primary) => {
                match Box::pin(self.ask_primary(&command, primary, &mut grant, &mut votes)).await {
                    Ok(asked) => (Ballot::new(1), asked),
                    Err(refusal) => {
                        grant.lost = true;
                        return Round::Refused(refusal);
                    }
                }
            }
        };
        for (i, member) in self.members.iter().enumerate() {
            if asked & (1 << i) == 0 {
                grant.nodes |= 1 << i;
                member.vote(&command, started, Some(ballot.seat(i)));
            }
        }
        while !votes.is_decided() {
            let Some((i, answer)) = ballot.next().await else { break };
            votes.take(i, answer, &mut grant);
        }
        if votes.is_in_doubt() {
            // A tie looks like a lease that is held until the last votes are in.
            let _ = Box::pin(tokio::time::timeout(self.tie_patience(), async {
                while votes.is_in_doubt() {
                    let Some((i, answer)) = ballot.next().await else { break };
                    votes.take(i, answer, &mut grant);
                }
            }))
            .await;
        }
        match votes.count.verdict() {
            Verdict::Carried => {}
            Verdict::Rejected => {
                let refusal = Box::new(votes.refusal());
                grant.settle(ballot, votes);
                return Round::Refused(refusal);
            }
            // Those that undid it have answered.
            _ if votes.undone => return Round::Refused(Box::new(votes.refusal())),
            Verdict::NoQuorum | Verdict::Open => return Round::NoQuorum(votes.count.nodes()),
        }

        let (token, exact) = tally::token_of(&votes.fences, self.total());
        let Ok(token) = Token::new(token) else { return Round::NoQuorum(votes.count.nodes()) };
        if !exact {
            metrics().fencing_raises.increment(1);
            let renewal = Renewal::Ttl(ask.ttl_ms);
            let raise = calls::extend(ask.scope, &lease, Some(token), renewal, None, None);
            let raised = Box::pin(self.poll(&Arc::new(raise))).await;
            match raised.count.extension_verdict() {
                Verdict::Carried => {}
                Verdict::Rejected if ask.request.is_some() => {
                    votes.undone = true;
                    return Round::Refused(Box::new(votes.refusal()));
                }
                _ => return Round::NoQuorum(raised.count.nodes()),
            }
        }
        let elapsed_ms = self.clock.now().saturating_duration_since(started).as_millis() as u64;
        let Some(left_ms) = validity_ms(ask.ttl_ms, elapsed_ms) else {
            return Round::NoQuorum(votes.count.nodes());
        };
        let nodes = votes.count.nodes();
        if ask.request.is_some() {
            self.undo_remains(ask.scope, token, votes, ballot);
        }
        Round::Granted(Box::new(Won {
            handle: LeaseHandle { id: lease, token },
            valid_until: started + Duration::from_millis(elapsed_ms + left_ms),
            nodes,
            grant,
        }))
    }

    /// Takes back what an earlier attempt of the same request left at a minority of the nodes, also
    /// where that answers late (§1.9). Nobody holds it: a quorum has just granted another lease. But by
    /// the time of a late answer that may be gone, and a retry have the next, which has a greater token.
    fn undo_remains(self: &Arc<Self>, scope: &Scope, token: Token, votes: GrantVotes, ballot: Ballot) {
        let undo = {
            let (engine, scope) = (Arc::clone(self), scope.clone());
            move |holding: Holding| {
                if holding.same_request && holding.token < token {
                    engine.undo_everywhere(&scope, &holding.lease, Tell::Nobody);
                }
            }
        };
        votes.holdings.into_iter().for_each(&undo);
        self.take_late(ballot, move |_, answer| {
            if let Ok(GrantVote::Held(Some(holding))) = answer.and_then(GrantVote::read) {
                undo(holding);
            }
        });
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

    /// Asks one node after the other, from the primary on, until one that votes grants:
    /// the bits of those asked, or the refusal.
    async fn ask_primary(
        self: &Arc<Self>,
        command: &Arc<Command>,
        primary: u64,
        grant: &mut Grant,
        votes: &mut GrantVotes,
    ) -> Result<u64, Box<Refusal>> {
        let total = self.total();
        let mut asked = 0;
        for step in 0..total {
            let i = ((primary % total as u64) as usize + step) % total;
            asked |= 1 << i;
            grant.nodes |= 1 << i;
            let answer = self.members[i].ask_to_vote(command).await;
            votes.take(i, answer, grant);
            if votes.count.yes > 0 || votes.holdings.iter().any(|h| h.same_request) {
                // Granted, or the caller's own earlier request: that concerns all nodes.
                break;
            }
            if votes.count.no > 0 {
                return Err(Box::new(votes.refusal()));
            }
        }
        Ok(asked)
    }

    /// A grant that was delivered before, and was taken over now by `claim`.
    pub fn granted_before(self: &Arc<Self>, scope: &Scope, lease: LeaseId, claim: Claim) -> Grant {
        Grant::earlier(Arc::clone(self), scope.clone(), lease, claim)
    }

    /// Sends an extension to all nodes and counts until the verdict.
    async fn poll(self: &Arc<Self>, command: &Arc<Command>) -> ExtendVotes {
        let mut votes = ExtendVotes {
            count: Count::new(self.total()),
            stored: None,
            edition: Edition::default(),
            latest: 0,
            behind: 0,
            lost: SmallVec::new(),
            ballot: self.vote(command),
        };
        while votes.count.extension_verdict() == Verdict::Open {
            let Some((i, answer)) = votes.ballot.next().await else { break };
            votes.take(i, answer);
        }
        votes
    }

    /// Sets the remaining time of a lease that a quorum still holds (§1.6), heals nodes that lost
    /// it (§1.7), and gives the latest data to those that missed it. With `claim`, a retry takes it
    /// over from an earlier attempt.
    pub async fn extend(
        self: &Arc<Self>,
        scope: &Scope,
        handle: LeaseHandle,
        renewal: Renewal,
        data: Option<&str>,
        claim: Option<Claim>,
    ) -> Extension {
        let LeaseHandle { id, token } = &handle;
        let command = calls::extend(scope, id, Some(*token), renewal, data, claim);
        let started = self.clock.now();
        let mut votes = self.poll(&Arc::new(command)).await;
        // Who says no says that it does not hold this lease, and not that it holds another.
        let nodes = Nodes { held: 0, ..votes.count.nodes() };
        match (votes.count.extension_verdict(), votes.stored.take()) {
            (Verdict::Carried, Some(stored)) => {
                let left = stored.remaining_ms.saturating_sub(drift_ms(stored.ttl_ms));
                let valid_until = started + Duration::from_millis(left);
                if valid_until > self.clock.now() {
                    self.heal(scope, handle, &stored, valid_until, votes);
                    return Extension::Extended { stored, valid_until, nodes };
                }
                // Nobody may work under it, and it may be shorter than what it replaced (§1.2).
            }
            // What a minority still holds would only be in the way.
            (Verdict::Rejected, _) => {}
            _ => return Extension::NoQuorum(nodes),
        }
        self.undo_everywhere(scope, &handle.id, Tell::Everybody);
        Extension::Lost(nodes)
    }

    /// Takes a lease away that may be stored at any node, whoever it was granted to.
    fn undo_everywhere(self: &Arc<Self>, scope: &Scope, lease: &LeaseId, tell: Tell) {
        let until = self.settle_until(self.options.max_ttl_ms);
        self.undo(scope, lease, u64::MAX, until, tell, None);
    }

    /// Gives the lease back to nodes that said they lost it, the latest data to those that have
    /// earlier, and either to stragglers that say so later. No answer is waited for, let alone counted.
    fn heal(
        self: &Arc<Self>,
        scope: &Scope,
        handle: LeaseHandle,
        stored: &Extended,
        valid_until: Instant,
        votes: ExtendVotes,
    ) {
        let ExtendVotes { lost, ballot, edition, behind, .. } = votes;
        if lost.is_empty() && ballot.is_empty() && behind == 0 {
            return;
        }
        let mend = {
            let (engine, scope, stored) = (Arc::clone(self), scope.clone(), stored.clone());
            move |i: usize, lost_at_ms: Option<u64>| {
                let LeaseHandle { id, token } = &handle;
                let command = match lost_at_ms {
                    Some(node_ms) => {
                        // From the node's answer on, less than what was left when it arrived here.
                        let left =
                            valid_until.saturating_duration_since(engine.clock.now()).as_millis() as u64;
                        if left == 0 {
                            return;
                        }
                        let (keys, bounds, ends_ms) = (&engine.keys, &engine.bounds, node_ms + left);
                        calls::heal(keys, bounds, &scope, id, *token, &stored, ends_ms)
                    }
                    None => calls::update(&scope, id, &stored.data),
                };
                engine.members[i].vote(&Arc::new(command), engine.clock.now(), None);
            }
        };
        lost.into_iter().for_each(|(i, node_ms)| mend(i, Some(node_ms)));
        (0..self.total()).filter(|i| behind & (1 << i) != 0).for_each(|i| mend(i, None));
        self.take_late(ballot, move |i, answer| {
            if let Ok(answer) = answer {
                let node_ms = answer.node_ms;
                match Extended::read(answer) {
                    Ok(None) => mend(i, Some(node_ms)),
                    Ok(Some(copy)) if Edition::split(&copy.data).0 < edition => mend(i, None),
                    _ => {}
                }
            }
        });
    }

    /// Brings what was read to a quorum, where that was not known to have it: whoever reads after
    /// this sees the same or later. A lease that is over is left alone.
    pub async fn settle_data(self: &Arc<Self>, scope: &Scope, lease: &LeaseId, data: &str) {
        let command = Arc::new(calls::update(scope, lease, data));
        // Where one node is full and another hangs, nobody waits for long.
        let _ = tokio::time::timeout(SETTLE_PATIENCE, self.poll(&command)).await;
    }

    /// Takes a lease away on every node. `Ok(true)` where a quorum may have held it.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered; the release goes on at the others.
    pub async fn release(self: &Arc<Self>, scope: &Scope, lease: &LeaseId) -> Result<bool, Nodes> {
        self.release_claimed(scope, lease, None).await
    }

    async fn release_claimed(
        self: &Arc<Self>,
        scope: &Scope,
        lease: &LeaseId,
        claim: Option<Claim>,
    ) -> Result<bool, Nodes> {
        let until = self.settle_until(self.options.max_ttl_ms);
        let settle = Settle { until, undo: false };
        let channels = scope.channels();
        // Of a semaphore, others may have released other slots: all news are news there. And what a
        // node confirms late, those who wait here must hear from it.
        let ahead = matches!(scope, Scope::Records(_))
            && self.hub.is_alone(channels)
            && self.members.iter().all(|member| member.is_voting());
        let tag = if ahead { Tag::from_bits(self.clock.random_bits()) } else { Tag::UNKNOWN };
        let tell = if ahead { Tell::Others(tag) } else { Tell::Everybody };
        let command = Arc::new(calls::release(&self.keys, scope, lease, settle, tell, claim));
        let mut ballot = self.tell(&command);
        if ahead {
            self.hub.ring_ahead(channels, tag);
        }
        let mut count = Count::new(self.total());
        let quorum = quorum_of(self.total());
        let mut others = false;
        while count.yes + count.no < quorum {
            match ballot.next().await {
                Some((_, Ok(answer))) if answer.done => {
                    count.yes += 1;
                    others |= !answer.rest.is_empty();
                }
                Some((_, Ok(_))) => count.no += 1,
                Some((_, Err(_))) => count.failed += 1,
                None => return Err(count.nodes()),
            }
        }
        if count.yes > 0 {
            self.hub.released(channels, tag, count.yes >= quorum && !others);
        }
        Ok(count.yes > 0 && count.yes + count.pending() + count.failed >= quorum)
    }

    /// Releases without waiting, on the nodes in the bit set; what a node does not confirm is
    /// tried again.
    /// `tell` wakes those who wait: not for a lost round, whose own undo would wake its contender.
    fn undo(
        self: &Arc<Self>,
        scope: &Scope,
        lease: &LeaseId,
        nodes: u64,
        until: Instant,
        tell: Tell,
        claim: Option<Claim>,
    ) {
        let settle = Settle { until, undo: true };
        let command = calls::release(&self.keys, scope, lease, settle, tell, claim);
        let command = Arc::new(command);
        let now = self.clock.now();
        for (i, member) in self.members.iter().enumerate() {
            if nodes & (1 << i) != 0 {
                member.tell(&command, now, None);
            }
        }
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

    /// What every voting node stores under `keys`, by key, one answer a node. Waits for all
    /// nodes that vote unless `enough` says otherwise.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered.
    pub async fn read(
        self: &Arc<Self>,
        keys: &[&str],
        enough: impl Fn(&[Vec<Option<Entry>>]) -> bool,
    ) -> Result<(Vec<Vec<Option<Entry>>>, Nodes), Nodes> {
        self.read_within(None, keys, enough).await
    }

    /// The same of a quorum of nodes, and of more for a moment unless that is `enough`.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered.
    pub async fn read_soon(
        self: &Arc<Self>,
        keys: &[&str],
        enough: impl Fn(&[Vec<Option<Entry>>]) -> bool,
    ) -> Result<(Vec<Vec<Option<Entry>>>, Nodes), Nodes> {
        self.read_within(Some(self.tie_patience()), keys, enough).await
    }

    async fn read_within(
        &self,
        patience: Option<Duration>,
        keys: &[&str],
        enough: impl Fn(&[Vec<Option<Entry>>]) -> bool,
    ) -> Result<(Vec<Vec<Option<Entry>>>, Nodes), Nodes> {
        let ballot = self.vote(&Arc::new(calls::read(keys.iter().copied())));
        let read = |answer| calls::read_entries(answer, keys.len());
        let holds = |entries: &Vec<Option<Entry>>| entries.iter().flatten().any(|e| e.holding.is_some());
        self.collect(ballot, patience, read, enough, holds).await
    }

    /// What a quorum of nodes knows of a semaphore's slots, and more of them for a moment unless that is
    /// `enough`.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered.
    pub async fn survey(
        self: &Arc<Self>,
        index: &str,
        enough: impl Fn(&[Survey]) -> bool,
    ) -> Result<(Vec<Survey>, Nodes), Nodes> {
        let ballot = self.vote(&Arc::new(calls::survey(index)));
        let holds = |survey: &Survey| !survey.taken.is_empty();
        self.collect(ballot, Some(self.tie_patience()), Survey::read, enough, holds).await
    }

    /// The answers of a quorum at least, and more until they are `enough` or, with a quorum, `patience`
    /// is over.
    async fn collect<T>(
        &self,
        mut ballot: Ballot,
        patience: Option<Duration>,
        read: impl Fn(Answer) -> Result<T, NodeError>,
        enough: impl Fn(&[T]) -> bool,
        holds: impl Fn(&T) -> bool,
    ) -> Result<(Vec<T>, Nodes), Nodes> {
        let mut count = Count::new(self.total());
        let mut answers = Vec::with_capacity(self.total());
        let mut until = None;
        while answers.len() < quorum_of(self.total()) || !enough(&answers) {
            if until.is_none() && answers.len() >= quorum_of(self.total()) {
                until = patience.map(|patience| self.clock.now() + patience);
            }
            let next = match until {
                Some(until) => tokio::time::timeout_at(until, ballot.next()).await.ok().flatten(),
                None => ballot.next().await,
            };
            let Some((_, answer)) = next else { break };
            match answer.and_then(&read) {
                Ok(answer) => answers.push(answer),
                Err(_) => count.failed += 1,
            }
        }
        count.yes = answers.iter().filter(|answer| holds(answer)).count();
        count.no = answers.len() - count.yes;
        // People read `held` as: holds a lease.
        let nodes = Nodes { granted: 0, held: count.yes as u32, ..count.nodes() };
        if answers.len() < quorum_of(self.total()) { Err(nodes) } else { Ok((answers, nodes)) }
    }

    /// How long more answers are waited for where those of a quorum disagree: they are about to be in,
    /// and nobody waits longer than that for a node that hangs.
    fn tie_patience(&self) -> Duration {
        (2 * self.round_trip()).clamp(TIE_PATIENCE_MIN, TIE_PATIENCE_MAX)
    }

    /// The next token of the sequence under `key`. A round counts only where a quorum stored
    /// exactly the same new value: two issuers can then never get the same one.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered.
    pub async fn issue(self: &Arc<Self>, key: &str) -> Result<Token, Nodes> {
        /// Rounds lost to concurrent issuers before giving up; each backs off a little longer.
        const ROUNDS: u64 = 16;
        let mut least = 0;
        let mut nodes = Nodes::default();
        for round in 0..ROUNDS {
            let proposed = self.propose(self.clock.now()).max(least);
            let command = Arc::new(calls::issue(&self.bounds, key, proposed));
            let mut ballot = self.vote(&command);
            let mut count = Count::new(self.total());
            let mut issued: SmallVec<[u64; 5]> = SmallVec::new();
            while let Some((_, answer)) = ballot.next().await {
                match answer.and_then(|answer| calls::read_issued(&answer)) {
                    Ok(token) => {
                        count.yes += 1;
                        issued.push(token);
                    }
                    Err(_) => count.failed += 1,
                }
                if let (token, true) = tally::token_of(&issued, self.total()) {
                    return Token::new(token).map_err(|_| count.nodes());
                }
            }
            nodes = count.nodes();
            if issued.len() < quorum_of(self.total()) {
                return Err(nodes);
            }
            least = issued.iter().copied().max().unwrap_or(0) + 1;
            tokio::time::sleep(Duration::from_micros(self.clock.random_below(500 << round.min(6)))).await;
        }
        Err(nodes)
    }
}

/// Votes of a granting round so far.
struct GrantVotes {
    count: Count,
    proposed: u64,
    fences: SmallVec<[u64; 5]>,
    holdings: Vec<Holding>,
    /// Nodes that refused without naming anybody: only looking found them free.
    free: usize,
    /// A node has been told already to forget this lease.
    undone: bool,
}

impl GrantVotes {
    fn new(total: usize, proposed: u64) -> Self {
        let (fences, holdings) = (SmallVec::new(), Vec::new());
        Self { count: Count::new(total), proposed, fences, holdings, free: 0, undone: false }
    }

    fn take(&mut self, i: usize, answer: Vote, grant: &mut Grant) {
        match answer.and_then(GrantVote::read) {
            Ok(GrantVote::Granted(fence)) => {
                self.count.yes += 1;
                self.fences.push(fence.unwrap_or(self.proposed));
            }
            Ok(GrantVote::Held(holding)) => {
                self.count.no += 1;
                match holding {
                    Some(holding) => self.holdings.push(holding),
                    None => self.free += 1,
                }
                grant.nodes &= !(1 << i);
            }
            Err(why) => {
                self.count.failed += 1;
                self.undone |= matches!(why, NodeError::Undone);
                if !why.may_have_run() {
                    grant.nodes &= !(1 << i);
                }
            }
        }
    }

    /// Whether to stop. A refusal that concerns the caller's own earlier request is worth all
    /// votes until a quorum agrees on its token: the same lease must come back with the same one.
    fn is_decided(&self) -> bool {
        let verdict = self.count.verdict();
        if verdict == Verdict::Rejected && self.holdings.iter().any(|h| h.same_request) {
            let quorum = quorum_of(self.count.total);
            let agreed = |one: &Holding| {
                self.holdings.iter().filter(|h| h.lease == one.lease && h.token == one.token).count()
            };
            return self.count.pending() == 0
                || self.holdings.iter().any(|h| h.same_request && agreed(h) >= quorum);
        }
        verdict != Verdict::Open
    }

    /// How many nodes named the same lease, at most.
    fn most(&self) -> usize {
        tally::most(self.holdings.iter())
    }

    /// Whether a lease may have a quorum, as far as the votes tell.
    fn may_be_held(&self) -> bool {
        let most = self.most();
        most > 0 && most + self.count.pending() + self.count.failed >= quorum_of(self.count.total)
    }

    /// Whether the round is lost, and the votes that are out decide to whom, or to nobody.
    fn is_in_doubt(&self) -> bool {
        self.count.verdict() == Verdict::Rejected
            && self.count.pending() > 0
            && self.may_be_held()
            && self.most() < quorum_of(self.count.total)
    }

    fn refusal(&self) -> Refusal {
        let total = self.count.total;
        let free = self.free + self.count.yes;
        let remaining = self.holdings.iter().map(|h| h.remaining_ms).chain(std::iter::repeat_n(0, free));
        Refusal {
            free_in_ms: tally::free_in(remaining, total),
            held: self.may_be_held(),
            nodes: self.count.nodes(),
            holdings: self.holdings.clone(),
            undone: self.undone,
        }
    }
}

/// Votes of an extension so far.
struct ExtendVotes {
    count: Count,
    /// What the node with the least remaining time stores, with the latest data of all.
    stored: Option<Extended>,
    /// The edition of that data.
    edition: Edition,
    /// One bit a node that has this data.
    latest: u64,
    /// One bit a node that has earlier data.
    behind: u64,
    /// Nodes that do not hold it, and their clocks when they said so.
    lost: SmallVec<[(usize, u64); 5]>,
    /// Votes still out.
    ballot: Ballot,
}

impl ExtendVotes {
    fn take(&mut self, i: usize, answer: Vote) {
        let node_ms = answer.as_ref().map_or(0, |answer| answer.node_ms);
        match answer.and_then(Extended::read) {
            Ok(Some(mut extended)) => {
                self.count.yes += 1;
                let (edition, _) = Edition::split(&extended.data);
                let order = edition.cmp(&self.edition);
                match order {
                    cmp::Ordering::Less => self.behind |= 1 << i,
                    cmp::Ordering::Equal => self.latest |= 1 << i,
                    cmp::Ordering::Greater => {
                        self.behind |= std::mem::replace(&mut self.latest, 1 << i);
                        self.edition = edition;
                    }
                }
                match &mut self.stored {
                    None => self.stored = Some(extended),
                    Some(stored) => {
                        if order == cmp::Ordering::Greater {
                            std::mem::swap(&mut stored.data, &mut extended.data);
                        }
                        if extended.remaining_ms < stored.remaining_ms {
                            extended.data = std::mem::take(&mut stored.data);
                            *stored = extended;
                        }
                    }
                }
            }
            Ok(None) => {
                self.count.no += 1;
                self.lost.push((i, node_ms));
            }
            Err(_) => self.count.failed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of four nodes, two have named the lease `holder` and one has granted; the fourth is out.
    fn votes(holders: [u128; 2]) -> GrantVotes {
        let mut votes = GrantVotes::new(4, 1);
        votes.count = Count { total: 4, yes: 1, no: 2, failed: 0 };
        votes.holdings.extend(holders.map(|bits| Holding {
            lease: LeaseId::from_bits(bits),
            token: Token::new(1).unwrap(),
            remaining_ms: 100,
            ttl_ms: 100,
            data: String::new(),
            same_request: false,
            slots: Vec::new(),
        }));
        votes
    }

    #[test]
    fn a_tie_is_told_from_a_lease_that_is_held_by_the_last_vote() {
        let mut tie = votes([7, 7]);
        assert!(tie.is_decided() && tie.is_in_doubt());
        tie.count.yes += 1;
        assert!(!tie.is_in_doubt());
        assert!(!tie.refusal().held);

        let mut held = votes([7, 7]);
        held.holdings.push(held.holdings[0].clone());
        held.count.no += 1;
        assert!(!held.is_in_doubt());
        assert!(held.refusal().held);

        // Whoever has the last one of them has no quorum.
        assert!(!votes([7, 8]).is_in_doubt());
    }
}
