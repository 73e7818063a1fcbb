//! A node as a voter: its gate, its breaker, its clock, its debts.
//!
//! The hot path reads one atomic pointer: the [`Gate`], which either lends the
//! marker to a call or says at once why the node abstains, so that a dead node
//! costs nothing. A keeper task per node probes it, moves the gate, and pays
//! the node's debts: releases that it has not confirmed yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::ballot::{Ballot, Seat, Vote};
use super::board::{Board, MARKING, STEPPED, Standing, Write};
use super::calls::{self, Bounds};
use super::complaints::Complaints;
use super::electorate::Electorate;
use super::metrics::{NODE_OUTCOMES, NodeMetrics, NodeState, node_outcome};
use super::reserve::{Kept, Look, Reserve};
use super::{Call, Command, Marker, Node, NodeError, ReplyTo, ReplyWatcher, Script};
use crate::clock::Clock;
use crate::domain::{Keys, LeaseId, drift_ms};
use crate::telemetry::trace::VoteSpan;
use crate::telemetry::{Undo, metrics};

/// Between probes of a node that votes.
const PROBE: Duration = Duration::from_secs(1);
/// Between probes of one that does not, at most: a recovered node is used again within a second.
const PROBE_AGAIN: Duration = Duration::from_millis(200);
/// Before the second probe of one that does not, and from there on twice as long each time: where only its
/// connections broke, there are others by now.
const PROBE_SOON: Duration = Duration::from_millis(10);
/// Debts kept per node; the oldest go first, since their leases expire first.
const DEBTS_MAX: usize = 65_536;
/// Debts paid at once.
const DEBTS_BATCH: usize = 256;
/// Why a node abstains whose marker another server changed, until it is looked at.
const MOVED: &str = "its marker changed";
/// A clock step up to this much, ms, is inside the drift that a lease of the default ttl allows for.
const STEP_BUDGET_TTL_MS: u64 = 30_000;

/// Whether a call may go to the node.
#[derive(Debug)]
enum Gate {
    /// In which membership its vote counts.
    Open(Arc<Marker>, u64),
    /// Why, and of a node in quarantine under what it is given copies.
    Shut(NodeError, Option<Arc<Marker>>),
}

/// A node of the deployment, as the API shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView {
    /// `n1`, `n2`, … in the order of the configuration.
    pub id: String,
    /// Without password.
    pub address: String,
    /// `voting`, `quarantined`, `down` (it does not answer, or could grant nothing) or `refused`.
    pub state: &'static str,
    /// Why it does not vote.
    pub reason: Option<String>,
    /// When it may vote, ms.
    pub voting_in_ms: Option<u64>,
    /// Once known.
    pub redis_version: Option<String>,
    /// Recent time to an answer.
    pub latency_ms: Option<f64>,
}

/// A release that the node has not confirmed.
struct Debt {
    command: Arc<Command>,
    /// It was reached, and refused. Otherwise it may have the acquire before it still.
    refused: bool,
}

/// One configured node.
pub struct Member {
    index: usize,
    node: Arc<dyn Node>,
    clock: Arc<dyn Clock>,
    keys: Keys,
    bounds: Bounds,
    board: Arc<Mutex<Board>>,
    electorate: Arc<Electorate>,
    gate: ArcSwap<Gate>,
    standing: Mutex<Standing>,
    /// What the node failed of, a probe, a call or being marked; none since a probe that succeeded.
    trouble: ArcSwapOption<NodeError>,
    /// Why the node could grant nothing at the last probe, though its marker lets it vote. It is asked all the
    /// same: it may still release, and knows who holds what.
    hindrance: ArcSwapOption<String>,
    /// It refused a token of this server's for being too far ahead, and has not been seen to agree since.
    refused_token: AtomicBool,
    /// The node failed a call since the last probe.
    failed: AtomicBool,
    wake: Notify,
    /// Calls not answered yet, and debts.
    unsettled: AtomicUsize,
    debts: Mutex<VecDeque<Debt>>,
    /// Acquires that it is not sent yet.
    reserve: Reserve,
    /// It was told of a release before the acquire came.
    overtaken: AtomicBool,
    baseline: Mutex<Option<ClockBaseline>>,
    /// Its clock stepped, and it has not voted since. What it answered before it was told apart counts
    /// no more than what told of the step.
    stepped: AtomicBool,
    /// What the times of the baseline are counted from.
    first_seen: Instant,
    /// What the node's clock said then, µs, by the last look at it; 0 before the first.
    first_us: AtomicU64,
    /// Smoothed time to an answer, µs; 0 = none yet.
    latency_us: AtomicU64,
    metrics: NodeMetrics,
    complaints: Complaints,
}

impl Member {
    /// Node number `index` of the deployment on `board`.
    pub fn new(
        index: usize,
        node: Arc<dyn Node>,
        clock: Arc<dyn Clock>,
        keys: Keys,
        bounds: Bounds,
        board: Arc<Mutex<Board>>,
    ) -> Arc<Self> {
        let metrics = NodeMetrics::new(&format!("n{}", index + 1));
        metrics.state(NodeState::Down);
        let first_seen = clock.now();
        let complaints = Complaints::new(first_seen);
        let electorate = Arc::clone(board.lock().electorate());
        Arc::new(Self {
            index,
            node,
            clock,
            keys,
            bounds,
            board,
            electorate,
            gate: ArcSwap::from_pointee(Gate::Shut(NodeError::Down, None)),
            standing: Mutex::new(Standing::Down),
            trouble: ArcSwapOption::empty(),
            hindrance: ArcSwapOption::empty(),
            refused_token: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            wake: Notify::new(),
            unsettled: AtomicUsize::new(0),
            debts: Mutex::default(),
            reserve: Reserve::default(),
            overtaken: AtomicBool::new(false),
            baseline: Mutex::default(),
            stepped: AtomicBool::new(false),
            first_seen,
            first_us: AtomicU64::new(0),
            latency_us: AtomicU64::new(0),
            metrics,
            complaints,
        })
    }

    /// The driver below.
    pub fn node(&self) -> &Arc<dyn Node> {
        &self.node
    }

    /// Whether it votes.
    pub fn is_voting(&self) -> bool {
        matches!(**self.gate.load(), Gate::Open(_, generation) if generation == self.electorate.generation())
    }

    /// Its place in this server's list.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether it abstains only until it is marked with another epoch, or that is seen.
    pub fn is_moving(&self) -> bool {
        let standing = self.standing.lock();
        !matches!(*standing, Standing::Voting(_) if self.is_voting())
            && (matches!(*standing, Standing::Voting(_))
                || standing.is_quarantined_for(MARKING)
                || standing.is_quarantined_for(MOVED))
    }

    /// Whether it votes, and could grant something.
    pub fn is_able(&self) -> bool {
        self.is_voting() && self.hindrance.load().is_none()
    }

    /// Where it stands.
    pub fn standing(&self) -> Standing {
        self.standing.lock().clone()
    }

    /// Recent time to an answer.
    pub fn latency(&self) -> Option<Duration> {
        match self.latency_us.load(Ordering::Relaxed) {
            0 => None,
            us => Some(Duration::from_micros(us)),
        }
    }

    /// Asks for a vote, now. Sent before this returns, or not at all.
    pub fn vote(self: &Arc<Self>, command: &Arc<Command>, now: Instant, to: Option<Seat>) {
        // In quarantine it is sent nothing of this that would have to go behind what is kept back.
        if !self.reserve.is_empty() && self.is_voting() {
            self.send_kept(now);
        }
        self.cast(command, now, to, self.trace(command), false);
    }

    /// The same, but has a node in quarantine do what those do that vote, so that it has what they have once
    /// it votes again. Then this is false, and nobody may count its answer.
    pub fn vote_or_copy(self: &Arc<Self>, command: &Arc<Command>, now: Instant, to: Option<Seat>) -> bool {
        self.send_kept(now);
        self.cast(command, now, to, self.trace(command), true)
    }

    fn trace(&self, command: &Command) -> Option<Box<VoteSpan>> {
        VoteSpan::begin(self.metrics.node(), command.script.name())
    }

    /// False where it was sent as a copy.
    fn cast(
        self: &Arc<Self>,
        command: &Arc<Command>,
        now: Instant,
        to: Option<Seat>,
        span: Option<Box<VoteSpan>>,
        or_copy: bool,
    ) -> bool {
        match &**self.gate.load() {
            Gate::Open(marker, generation) if *generation == self.electorate.generation() => {
                self.forward(command, Some(Arc::clone(marker)), now, to, span);
            }
            // The membership changed since the node was looked at.
            Gate::Open(..) => {
                self.wake.notify_one();
                if let Some(span) = span {
                    span.end(NODE_OUTCOMES[node_outcome(Err(&NodeError::Unmarked))], false);
                }
                abstain(to, &NodeError::Unmarked);
            }
            Gate::Shut(_, Some(marker)) if or_copy => {
                self.forward(command, Some(Arc::clone(marker)), now, to, span);
                return false;
            }
            Gate::Shut(why, _) => {
                self.complain(command, why, now);
                if let Some(span) = span {
                    span.end(NODE_OUTCOMES[node_outcome(Err(why))], false);
                }
                abstain(to, why);
            }
        }
        true
    }

    /// Asks for a vote on the acquire of `lease` once that is of use, and never where it is
    /// [withdrawn](Member::withdraw) before; ahead of all that is asked afterwards but releases. Without a
    /// seat it may be [a copy](Member::vote_or_copy). True where somebody has to
    /// [look](Member::look_after_kept) again now.
    pub fn vote_if_of_use(
        self: &Arc<Self>,
        lease: LeaseId,
        command: &Arc<Command>,
        now: Instant,
        to: Option<Seat>,
    ) -> bool {
        self.unsettled.fetch_add(1, Ordering::Relaxed);
        self.reserve.keep(lease, command, now, to, || self.trace(command)).unwrap_or_else(|to| {
            self.send_kept(now);
            let or_copy = to.is_none();
            self.cast(command, now, to, self.trace(command), or_copy);
            self.unsettled.fetch_sub(1, Ordering::Release);
            false
        })
    }

    /// The acquire of this lease is of no use any more. True where the node was not sent it, and votes.
    pub fn withdraw(&self, lease: &LeaseId) -> bool {
        let Some(kept) = self.reserve.withdraw(lease) else { return false };
        let votes = kept.seat.is_some();
        kept.withdraw();
        self.unsettled.fetch_sub(1, Ordering::Release);
        votes
    }

    /// The acquire of this lease is of use now.
    pub fn hurry(self: &Arc<Self>, lease: &LeaseId, now: Instant) {
        self.reserve.send_to(lease, |kept| self.cast_kept(kept, now));
    }

    /// Sends the acquires that are of use by now, of those that are kept back.
    pub fn look_after_kept(self: &Arc<Self>, now: Instant) -> Look {
        self.reserve.look(now, |kept| self.cast_kept(kept, now))
    }

    /// Whether some acquire came later than the release of its lease, since this was asked the last time.
    pub fn was_overtaken(&self) -> bool {
        self.overtaken.swap(false, Ordering::Relaxed)
    }

    fn send_kept(self: &Arc<Self>, now: Instant) {
        self.reserve.send_all(|kept| self.cast_kept(kept, now));
    }

    fn cast_kept(self: &Arc<Self>, kept: Kept, now: Instant) {
        if kept.is_stale(now) {
            kept.withdraw();
        } else {
            let or_copy = kept.seat.is_none();
            self.cast(&kept.command, now, kept.seat, kept.span, or_copy);
        }
        self.unsettled.fetch_sub(1, Ordering::Release);
    }

    /// Asks for a vote, and waits for it.
    ///
    /// # Errors
    /// Where the node abstains.
    pub async fn ask_to_vote(self: &Arc<Self>, command: &Arc<Command>) -> Vote {
        Ballot::of_one(|seat| self.vote(command, self.clock.now(), Some(seat))).await
    }

    fn complain(&self, command: &Command, why: &NodeError, now: Instant) {
        self.complaints.failed(self.metrics.node(), command.script, why, now);
    }

    /// Sends what needs no marker, now. A release that fails becomes a debt.
    pub fn tell(self: &Arc<Self>, command: &Arc<Command>, now: Instant, to: Option<Seat>) {
        if command.settle.is_some() {
            // Nothing is changed at a node that is refused. But another server may see it
            // otherwise, and may have been granted there what is released here.
            if let Gate::Shut(why @ (NodeError::Down | NodeError::Refused(_)), _) = &**self.gate.load() {
                self.owe(Arc::clone(command), false);
                // A node that is only slow may have the acquire before it, on the same connection: there
                // an undo goes behind that at once. It stays owed all the same, since what this says
                // comes too early to be the last word.
                if command.settle.is_some_and(|settle| settle.undo) && matches!(why, NodeError::Down) {
                    let reply = ReplyTo::new(Arc::clone(command), None, now, None);
                    self.node.submit(Call { command: Arc::clone(command), marker: None, reply });
                }
                return abstain(to, why);
            }
        }
        if command.script != Script::Release {
            self.send_kept(now);
        }
        self.forward(command, None, now, to, self.trace(command));
    }

    /// Sends what needs no marker, and waits for the answer.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn ask(self: &Arc<Self>, command: &Arc<Command>) -> Vote {
        Ballot::of_one(|seat| self.tell(command, self.clock.now(), Some(seat))).await
    }

    fn is_reachable(&self) -> bool {
        !matches!(**self.gate.load(), Gate::Shut(NodeError::Down | NodeError::Refused(_), _))
    }

    fn forward(
        self: &Arc<Self>,
        command: &Arc<Command>,
        marker: Option<Arc<Marker>>,
        now: Instant,
        to: Option<Seat>,
        span: Option<Box<VoteSpan>>,
    ) {
        self.unsettled.fetch_add(1, Ordering::Relaxed);
        let watcher: Arc<dyn ReplyWatcher> = Arc::clone(self) as _;
        let reply = ReplyTo::new(Arc::clone(command), Some(watcher), now, to).traced(span);
        self.node.submit(Call { command: Arc::clone(command), marker, reply });
    }

    fn owe(&self, command: Arc<Command>, refused: bool) {
        let mut debts = self.debts.lock();
        if debts.len() < DEBTS_MAX {
            self.unsettled.fetch_add(1, Ordering::Relaxed);
        } else {
            count_undo(debts.pop_front().as_ref().map(|debt| &*debt.command), Undo::Abandoned);
        }
        debts.push_back(Debt { command, refused });
    }

    /// Releases not confirmed yet.
    pub fn debts(&self) -> usize {
        self.debts.lock().len()
    }

    /// Calls not answered yet, and releases not confirmed yet.
    pub fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::Acquire)
    }

    /// Sends what is owed by now, each debt once and batch after batch as long as they go through; also those
    /// whose lease has expired: the acquire may still sit in the node that was stopped all the time, and would
    /// live its whole ttl from now on.
    async fn pay_debts(self: &Arc<Self>) {
        let mut left = self.debts();
        while left > 0 && self.is_reachable() {
            let mut batch: Vec<_> = {
                let mut debts = self.debts.lock();
                let count = debts.len().min(left).min(DEBTS_BATCH);
                debts.drain(..count).collect()
            };
            left -= batch.len();
            let Some(last) = batch.pop() else { return };
            batch.into_iter().for_each(|debt| self.pay(debt, None));
            // It answers in order: the others were answered before.
            if Ballot::of_one(|seat| self.pay(last, Some(seat))).await.is_err() {
                return;
            }
        }
    }

    /// Its answer comes to `answered`, which keeps it as a debt where it fails again.
    fn pay(self: &Arc<Self>, Debt { command, refused }: Debt, to: Option<Seat>) {
        let now = self.clock.now();
        // What it is asked to forget it may have been granted just before this, however long ago that was sent.
        let settle = command.settle.filter(|_| !refused).map(|settle| settle.from(now));
        let renewed = settle.map(|settle| Arc::new(Command { settle: Some(settle), ..(*command).clone() }));
        self.forward(renewed.as_ref().unwrap_or(&command), None, now, to, None);
        self.unsettled.fetch_sub(1, Ordering::Release);
    }

    /// Probes the node for ever, moves the gate and pays the debts. Calls `probed` after each probe.
    pub async fn keep(self: Arc<Self>, probed: impl Fn()) {
        let mut again = PROBE_SOON;
        loop {
            self.probe(true).await;
            probed();
            self.metrics.connections(self.node.connections());
            self.complaints.catch_up(self.metrics.node(), self.clock.now());
            let _ = tokio::time::timeout(PROBE_AGAIN, self.pay_debts()).await;
            let is_well = self.is_able() && self.debts() == 0;
            let pause = if is_well { PROBE } else { again };
            again = if is_well { PROBE_SOON } else { PROBE_AGAIN.min(again * 2) };
            let _ = tokio::time::timeout(pause, self.wake.notified()).await;
        }
    }

    /// One look at the node: who it is, what marker it carries, whether it may vote. Before the
    /// engine runs nothing is written: what is refused at the start has changed nothing.
    pub async fn probe(self: &Arc<Self>, running: bool) {
        /// A text is written, another one follows it, and then the node is seen to have it.
        const WRITES_MAX: usize = 2;
        for _ in 0..=WRITES_MAX {
            // What fails from here on speaks against this probe's result.
            self.failed.store(false, Ordering::Release);
            let seen = self.look().await;
            let now = self.clock.now();
            let (verdict, generation) = {
                let mut board = self.board.lock();
                let trouble = match seen {
                    Ok((identity, status)) => {
                        board.saw(self.index, identity, status, now);
                        None
                    }
                    Err(why) => {
                        board.lost(self.index);
                        Some(Arc::new(why))
                    }
                };
                let verdict = board.judge(self.index, self.clock.random_bits());
                // Where it is to be marked, what spoke against that the last time holds until it succeeds.
                if trouble.is_some() || verdict.write.is_none() {
                    self.trouble.store(trouble);
                }
                (verdict, board.generation())
            };
            if !self.stand(verdict.standing, generation) {
                return;
            }
            let Some(write) = verdict.write.filter(|_| running) else { return };
            let written = self.write(&write).await;
            let is_written = matches!(written, Ok(true));
            self.trouble.store(written.err().map(Arc::new));
            if !is_written {
                return;
            }
        }
    }

    /// Writes a text in the place of the node's marker, unless another one is there by now.
    ///
    /// # Errors
    /// The node's.
    pub async fn write(self: &Arc<Self>, write: &Write) -> Result<bool, NodeError> {
        let Write { seen, new, run_id, chosen } = write;
        let answer = self.ask(&Arc::new(calls::mark(&self.keys, seen, new, run_id, chosen))).await?;
        if answer.done {
            let (node, address) = (self.metrics.node(), self.node.address());
            tracing::debug!(node, address, marker = %new, "node marked");
        }
        Ok(answer.done)
    }

    /// Records that leases of a class may be granted for so long. False where the node does not vote.
    ///
    /// # Errors
    /// The node's.
    pub async fn record_class(self: &Arc<Self>, class_ms: u64, for_ms: u64) -> Result<bool, NodeError> {
        let answer = self.ask(&Arc::new(calls::status(&self.keys, class_ms, for_ms, ""))).await?;
        let status = calls::Status::read(&answer)?;
        let is_expected = match &**self.gate.load() {
            Gate::Open(marker, _) => *marker.expected == *status.marker,
            Gate::Shut(..) => false,
        };
        Ok(status.error.is_none() && is_expected)
    }

    /// Who the node is, and all it says of itself. Notes what keeps it from granting anything.
    async fn look(self: &Arc<Self>) -> Result<(super::Identity, calls::Status), NodeError> {
        let identity = self.node.identify().await?;
        let addresses = self.board.lock().addresses_for(self.index);
        let answer = self.ask(&Arc::new(calls::status(&self.keys, 0, 0, &addresses))).await?;
        // It answered before now: rather too little than too much.
        let since = self.clock.now().saturating_duration_since(self.first_seen).as_micros() as u64;
        let node_us = answer.node_ms.saturating_mul(1000);
        self.first_us.store(node_us.saturating_sub(since), Ordering::Relaxed);
        if !self.bounds.is_ahead(self.clock.wall_us(), node_us) {
            self.refused_token.store(false, Ordering::Relaxed);
        }
        let status = calls::Status::read(&answer)?;
        self.hinder(match &status.error {
            Some(error) => Some(format!("takes no writes: {error}")),
            None if self.refused_token.load(Ordering::Relaxed) => Some(format!(
                "this server's clock is more than {} s ahead of the node's",
                self.bounds.clock_bound_ms / 1000
            )),
            None => None,
        });
        Ok((identity, status))
    }

    fn hinder(&self, why: Option<String>) {
        let (node, address) = (self.metrics.node(), self.node.address());
        let before = self.hindrance.load();
        match (&*before, &why) {
            (None, Some(why)) => tracing::warn!(node, address, %why, "node cannot grant"),
            (Some(_), None) => tracing::info!(node, address, "node can grant again"),
            // The same in other words, perhaps.
            _ => {}
        }
        self.hindrance.store(why.map(Arc::new));
        self.metrics.state(self.state(&self.standing.lock()));
    }

    /// As people are told.
    fn state(&self, standing: &Standing) -> NodeState {
        match standing {
            Standing::Voting(_) if self.hindrance.load().is_none() => NodeState::Voting,
            Standing::Quarantined { .. } => NodeState::Quarantined,
            Standing::Voting(_) | Standing::Down => NodeState::Down,
            Standing::Refused(_) => NodeState::Refused,
        }
    }

    /// False where it is said to vote, and has failed since that was looked at.
    fn stand(&self, standing: Standing, generation: u64) -> bool {
        let mut current = self.standing.lock();
        if matches!(standing, Standing::Voting(_)) && self.failed.load(Ordering::Acquire) {
            return false;
        }
        let is_open = matches!(**self.gate.load(), Gate::Open(_, of) if of != generation);
        if *current == standing && !is_open {
            return true;
        }
        let marker = |expected: &Arc<str>, votes| {
            let (keys, expected) = (self.keys.clone(), Arc::clone(expected));
            Arc::new(Marker { keys, expected, votes, bounds: self.bounds })
        };
        let gate = match &standing {
            Standing::Voting(expected) => {
                self.stepped.store(false, Ordering::Release);
                Gate::Open(marker(expected, true), generation)
            }
            Standing::Quarantined { marker: seen, .. } => {
                Gate::Shut(NodeError::Quarantined, seen.as_ref().map(|seen| marker(seen, false)))
            }
            Standing::Down => Gate::Shut(NodeError::Down, None),
            Standing::Refused(why) => Gate::Shut(NodeError::Refused(Arc::clone(why)), None),
        };
        let (node, address) = (self.metrics.node(), self.node.address());
        match &standing {
            // Only its end has moved, as with every look at a clock that runs at a wrong rate.
            Standing::Quarantined { reason, .. } if current.is_quarantined_for(reason) => {}
            Standing::Voting(_) if matches!(*current, Standing::Voting(_)) => {}
            Standing::Voting(_) => tracing::info!(node, address, "node votes"),
            // Nothing is wrong, and that it is marked is told beside.
            Standing::Quarantined { reason, .. } if **reason == *MARKING || **reason == *MOVED => {
                tracing::debug!(node, address, %reason, "node unmarked");
            }
            Standing::Quarantined { reason, .. } => {
                tracing::warn!(node, address, %reason, "node quarantined")
            }
            Standing::Down => tracing::warn!(node, address, "node down"),
            Standing::Refused(reason) => tracing::error!(node, address, %reason, "node refused"),
        }
        self.gate.store(Arc::new(gate));
        self.metrics.state(self.state(&standing));
        *current = standing;
        true
    }

    /// Why the node cannot be reached, or cannot be marked, if it cannot.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.load().as_ref().map(ToString::to_string)
    }

    /// The node as the API shows it.
    pub fn view(&self) -> NodeView {
        let standing = self.standing();
        let (reason, until) = match &standing {
            Standing::Voting(_) => (self.hindrance.load().as_deref().cloned(), None),
            Standing::Quarantined { until, reason, .. } => {
                let reason = match self.trouble() {
                    Some(why) => format!("cannot be marked: {why}"),
                    None => reason.to_string(),
                };
                (Some(reason), *until)
            }
            Standing::Down => (self.trouble(), None),
            Standing::Refused(why) => (Some(why.to_string()), None),
        };
        let now = self.clock.now();
        NodeView {
            id: self.metrics.node().to_owned(),
            address: self.node.address().to_owned(),
            state: self.state(&standing).name(),
            reason,
            voting_in_ms: until.map(|until| until.saturating_duration_since(now).as_millis() as u64),
            redis_version: self.board.lock().version(self.index).map(str::to_owned),
            latency_ms: self.latency().map(|latency| latency.as_micros() as f64 / 1000.0),
        }
    }

    /// Shuts the gate until the next probe says otherwise.
    fn fail(&self, standing: Standing) {
        {
            // A probe that ends now either sees this, or has opened before what is shut here.
            let _standing = self.standing.lock();
            self.failed.store(true, Ordering::Release);
        }
        if self.is_voting() {
            self.stand(standing, self.electorate.generation());
        }
        self.wake.notify_one();
    }

    fn doubt(&self, reason: &'static str) {
        self.fail(Standing::Quarantined { until: None, reason: reason.into(), marker: None });
    }

    /// What its clock says, µs since the epoch, as far as the last look tells. None before that.
    pub fn clock_us(&self, now: Instant) -> Option<u64> {
        match self.first_us.load(Ordering::Relaxed) {
            0 => None,
            first => {
                let since = now.saturating_duration_since(self.first_seen).as_micros() as u64;
                Some(first.saturating_add(since))
            }
        }
    }

    /// Whether it has stepped since what was seen of it before.
    fn watch_clock(&self, sent_at: Instant, took: Duration, node_ms: u64) -> bool {
        let from_us = sent_at.saturating_duration_since(self.first_seen).as_micros() as i64;
        let seen = ClockBaseline { from_us, to_us: from_us + took.as_micros() as i64, node_ms };
        let stepped = {
            let mut baseline = self.baseline.lock();
            match &mut *baseline {
                None => {
                    *baseline = Some(seen);
                    false
                }
                Some(known) => known.observe(seen),
            }
        };
        if stepped {
            self.stepped.store(true, Ordering::Release);
            // Once: one that runs at a wrong rate steps at every look.
            if self.board.lock().doubt(self.index, STEPPED) {
                tracing::error!(
                    node = self.metrics.node(),
                    address = self.node.address(),
                    "the node's clock stepped"
                );
            }
            self.doubt(STEPPED);
        }
        stepped
    }
}

impl ReplyWatcher for Member {
    fn answered(&self, command: &Arc<Command>, sent_at: Instant, now: Instant, mut answer: Vote) -> Vote {
        let took = now.saturating_duration_since(sent_at);
        let node_ms = answer.as_ref().ok().map(|answer| answer.node_ms);
        if let Some(node_ms) = node_ms {
            // Already the vote that tells of the step was cast by the wrong clock.
            let stepped = self.watch_clock(sent_at, took, node_ms);
            if command.script.is_vote() && (stepped || self.stepped.load(Ordering::Acquire)) {
                answer = Err(NodeError::ClockStepped);
            }
        }
        self.metrics.request(command.script, answer.as_ref().map(|a| a.done), took);
        match &answer {
            Ok(_) => {
                let before = self.latency_us.load(Ordering::Relaxed);
                let us = (took.as_micros() as u64).max(1);
                let smoothed = if before == 0 { us } else { (before * 7 + us) / 8 };
                self.latency_us.store(smoothed.max(1), Ordering::Relaxed);
                count_undo(Some(command), Undo::Done);
            }
            Err(why) => {
                match why {
                    NodeError::Timeout | NodeError::Connection(_) => {
                        self.trouble.store(Some(Arc::new(why.clone())));
                        self.fail(Standing::Down);
                    }
                    NodeError::Unmarked => {
                        self.doubt(MOVED);
                    }
                    NodeError::ClockAhead => self.refused_token.store(true, Ordering::Relaxed),
                    NodeError::Undone => self.overtaken.store(true, Ordering::Relaxed),
                    _ => {}
                }
                self.complain(command, why, now);
                if command.script == Script::Release {
                    // What a node refuses is not repeated for ever. But one that was not reached
                    // may have the acquire before it still, however long ago that was sent, and one
                    // that was slow may have had it just before this.
                    let refused = matches!(why, NodeError::Redis(_) | NodeError::Nonsense);
                    if !refused || command.settle.is_some_and(|settle| settle.until > sent_at) {
                        self.owe(Arc::clone(command), refused);
                        if !refused {
                            // What is refused now is refused in a moment, too.
                            self.wake.notify_one();
                        }
                    } else {
                        count_undo(Some(command), Undo::Expired);
                    }
                }
            }
        }
        // Only now: it may have become a debt.
        self.unsettled.fetch_sub(1, Ordering::Release);
        answer
    }
}

fn abstain(to: Option<Seat>, why: &NodeError) {
    if let Some(to) = to {
        to.take(Err(why.clone()));
    }
}

fn count_undo(command: Option<&Command>, outcome: Undo) {
    if command.and_then(|command| command.settle).is_some_and(|settle| settle.undo) {
        metrics().undo(outcome);
    }
}

/// What a node's clock was against ours: when its clock said `node_ms`, ours was in between.
#[derive(Debug, Clone, Copy)]
struct ClockBaseline {
    /// µs since [`Member::first_seen`], like the next.
    from_us: i64,
    to_us: i64,
    node_ms: u64,
}

impl ClockBaseline {
    /// Takes a later sight in; true where the clock stepped between the two. Rates may
    /// differ by the drift allowance, and an answer may have been made at any moment
    /// between its request and its arrival.
    fn observe(&mut self, seen: Self) -> bool {
        let node_elapsed = (seen.node_ms as i64).saturating_sub(self.node_ms as i64);
        let longest = (seen.to_us - self.from_us).max(0) / 1000 + 1;
        let shortest = (seen.from_us - self.to_us).max(0) / 1000 - 1;
        let budget = drift_ms(STEP_BUDGET_TTL_MS) as i64 + longest / 100;
        let stepped = node_elapsed > longest + budget || node_elapsed < shortest - budget;
        // The tightest recent sight is the best base; an old one lets slow drift add up.
        let width = |sight: &Self| sight.to_us - sight.from_us;
        if stepped || width(&seen) <= width(self) || seen.from_us - self.to_us > 5_000_000 {
            *self = seen;
        }
        stepped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::node::embedded::EmbeddedNode;

    fn sight(sent_ms: i64, took_ms: i64, node_ms: u64) -> ClockBaseline {
        ClockBaseline { from_us: sent_ms * 1000, to_us: (sent_ms + took_ms) * 1000, node_ms }
    }

    #[test]
    fn what_fails_while_a_probe_ends_does_not_vote() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let node = Arc::new(EmbeddedNode::new("run-0", Arc::clone(&clock)));
        let bounds = Bounds { clock_bound_ms: 60_000, fence_retention_ms: 600_000 };
        let board = Arc::new(Mutex::new(Board::new(vec!["a".into()], 100)));
        let member = Member::new(0, node, clock, Keys::new("q"), bounds, board);
        // The probe has seen that it votes, and another thread now sees that its clock stepped.
        member.doubt(STEPPED);
        member.stand(Standing::Voting("marker".into()), 0);
        assert!(!member.is_voting());
    }

    #[test]
    fn a_clock_that_runs_alike_has_not_stepped() {
        let mut baseline = sight(0, 1, 1_000_000);
        for second in 1..100 {
            let node_ms = (1_000_000 + second * 1000 + second / 2) as u64;
            assert!(!baseline.observe(sight(second * 1000, 2, node_ms)));
        }
    }

    #[test]
    fn a_slow_answer_is_no_clock_step() {
        let mut baseline = sight(0, 1, 1_000_000);
        assert!(!baseline.observe(sight(10, 60_000, 1_030_000)));
    }

    #[test]
    fn a_step_in_either_direction_is_seen() {
        for step in [-60_000_i64, -500, 500, 60_000] {
            let mut baseline = sight(0, 1, 1_000_000);
            let node_ms = (1_001_000 + step) as u64;
            assert!(baseline.observe(sight(1000, 1, node_ms)), "{step}");
        }
    }
}
