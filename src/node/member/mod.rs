//! A node as a voter: its gate, its breaker, its clock, its debts.
//!
//! The hot path reads one atomic pointer: the [`Gate`], which either lends the
//! marker to a call or says at once why the node abstains, so that a dead node
//! costs nothing. A keeper task per node probes it, moves the gate, and pays
//! the node's debts: releases that it has not confirmed yet.

mod debts;
mod gate;
mod keeper;
mod trial;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::debts::{Debts, count_undo};
pub use self::gate::NodeView;
use self::gate::{Gate, MOVED, SUSPECTED};
use super::ballot::{Ballot, Seat, Vote};
use super::board::{Board, MARKING, STEPPED, Standing};
use super::calls::{Bounds, Released};
use super::clock_watch::{ClockWatch, Sight};
use super::complaints::Complaints;
use super::electorate::Electorate;
use super::metrics::{NODE_OUTCOMES, NodeMetrics, NodeState, node_outcome};
use super::{Call, Command, Marker, Node, NodeError, ReplyTo, ReplyWatcher, Script};
use crate::clock::Clock;
use crate::domain::Keys;
use crate::telemetry::Undo;
use crate::telemetry::trace::VoteSpan;

/// How a node was asked for a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Its answer counts.
    ToVote,
    /// It is closed: what it held then it still holds, but nothing that it is told now counts.
    AsWitness,
    /// It is in quarantine, and does the same so that it has what the others have once it votes.
    ToCopy,
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
    /// One look after the other: of two at once the first may be heard last, as if the node had gone back.
    looking: tokio::sync::Mutex<()>,
    /// The node failed a call since the last probe.
    failed: AtomicBool,
    /// Calls not answered yet, and debts.
    unsettled: AtomicUsize,
    debts: Mutex<Debts>,
    clocks: Arc<ClockWatch>,
    /// Its clock stepped, and it has not voted since. What it answered before it was told apart counts
    /// no more than what told of the step.
    stepped: AtomicBool,
    /// What the next is counted from.
    first_seen: Instant,
    /// What the node's clock said then, µs, by the last look at it; 0 before the first.
    first_us: AtomicU64,
    /// The connection over which it was looked at last.
    connection: AtomicU64,
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
        clocks: Arc<ClockWatch>,
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
            looking: tokio::sync::Mutex::default(),
            failed: AtomicBool::new(false),
            unsettled: AtomicUsize::new(0),
            debts: Mutex::default(),
            clocks,
            stepped: AtomicBool::new(false),
            first_seen,
            first_us: AtomicU64::new(0),
            connection: AtomicU64::new(0),
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
        matches!(**self.gate.load(), Gate::Open(_, generation) if self.is_as_looked_at(generation))
    }

    /// Whether it was looked at in this membership, over the connection that calls use now. A node that was put back to
    /// a snapshot of its memory has the same process and marker, and has forgotten leases all the same; but its
    /// connections broke.
    fn is_as_looked_at(&self, generation: u64) -> bool {
        generation == self.electorate.generation()
            && self.node.connection() == self.connection.load(Ordering::Acquire)
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
                || standing.is_quarantined_for(SUSPECTED)
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
        self.cast(command, now, to, self.trace(command), false);
    }

    /// The same, but has a node in quarantine, or a closed one, do what those do that vote, so that it has what they
    /// have once it votes again.
    pub fn vote_or_copy(self: &Arc<Self>, command: &Arc<Command>, now: Instant, to: Option<Seat>) -> Asked {
        self.cast(command, now, to, self.trace(command), true)
    }

    fn trace(&self, command: &Command) -> Option<Box<VoteSpan>> {
        VoteSpan::begin(self.metrics.node(), command.script.name())
    }

    fn cast(
        self: &Arc<Self>,
        command: &Arc<Command>,
        now: Instant,
        to: Option<Seat>,
        span: Option<Box<VoteSpan>>,
        or_copy: bool,
    ) -> Asked {
        let gate = self.gate.load();
        let gate = &**gate;
        match gate {
            Gate::Open(marker, generation) if self.is_as_looked_at(*generation) => {
                self.forward(command, Some(Arc::clone(marker)), now, to, span);
            }
            // The membership or the connection changed since the node was looked at.
            Gate::Open(..) => {
                self.wake();
                if let Some(span) = span {
                    span.end(NODE_OUTCOMES[node_outcome(Err(&NodeError::Unmarked))], false);
                }
                abstain(to, &NodeError::Unmarked);
            }
            Gate::Shut(_, Some(marker)) | Gate::Closed(marker, _) if or_copy => {
                let is_witness = matches!(gate, Gate::Closed(_, of) if *of == self.electorate.generation());
                self.forward(command, Some(Arc::clone(marker)), now, to, span);
                return if is_witness { Asked::AsWitness } else { Asked::ToCopy };
            }
            Gate::Shut(..) | Gate::Closed(..) => {
                let why = match gate {
                    Gate::Shut(why, _) => why,
                    _ => &NodeError::Quarantined,
                };
                self.complain(command, why, now);
                if let Some(span) = span {
                    span.end(NODE_OUTCOMES[node_outcome(Err(why))], false);
                }
                abstain(to, why);
            }
        }
        Asked::ToVote
    }

    /// Asks for a vote, and waits for it.
    pub async fn ask_to_vote(self: &Arc<Self>, command: &Arc<Command>) -> Vote {
        Ballot::of_one(|seat| self.vote(command, self.clock.now(), Some(seat))).await
    }

    fn complain(&self, command: &Command, why: &NodeError, now: Instant) {
        self.complaints.failed(self.metrics.node(), command.script, why, now);
    }

    /// Sends what any node does, whether it votes or not, now. A release that fails becomes a debt.
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
        self.forward(command, self.marker_for(command), now, to, self.trace(command));
    }

    /// A release does what it does at any node, but what it finds is a vote, where the node has one.
    fn marker_for(&self, command: &Command) -> Option<Arc<Marker>> {
        match &**self.gate.load() {
            Gate::Open(marker, generation) if self.is_as_looked_at(*generation) => {
                (command.script == Script::Release).then(|| Arc::clone(marker))
            }
            _ => None,
        }
    }

    /// Sends what any node does, and waits for the answer.
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

    /// Has the keeper look at the node now.
    fn wake(&self) {
        self.clocks.wake(self.index).notify_one();
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

    /// Whether its clock has stepped since what was seen of it before.
    fn watch_clock(&self, sent_at: Instant, now: Instant, node_ms: u64) -> bool {
        if self.clocks.has_slept(|| self.clock.slept_us(), now) {
            self.board.lock().drop_rounds();
        }
        let sight = self.clocks.saw(self.index, sent_at, now.saturating_duration_since(sent_at), node_ms);
        if sight == Sight::Steady {
            return false;
        }
        self.stepped.store(true, Ordering::Release);
        if sight == Sight::Behind {
            self.hold_step_against(self.index);
            self.doubt(STEPPED);
        } else {
            if self.is_voting() {
                // What is under way may have begun before this server stood still, and the others are looked at now.
                self.board.lock().drop_rounds();
                (0..self.clocks.nodes()).for_each(|i| self.clocks.wake(i).notify_one());
            }
            self.doubt(SUSPECTED);
        }
        true
    }

    /// Once: one that runs at a wrong rate steps at every look.
    fn hold_step_against(&self, i: usize) {
        let mut board = self.board.lock();
        if board.doubt(i, STEPPED) {
            let (node, address) = (format!("n{}", i + 1), board.address(i));
            tracing::error!(node, address, "the node's clock stepped");
        }
    }
}

impl ReplyWatcher for Member {
    fn answered(&self, command: &Arc<Command>, sent_at: Instant, now: Instant, mut answer: Vote) -> Vote {
        let took = now.saturating_duration_since(sent_at);
        let node_ms = answer.as_ref().ok().map(|answer| answer.node_ms);
        if let Some(node_ms) = node_ms {
            // Already the vote that tells of the step was cast by the wrong clock.
            let stepped = self.watch_clock(sent_at, now, node_ms);
            if stepped || self.stepped.load(Ordering::Acquire) {
                if command.script.is_marked() {
                    answer = Err(NodeError::ClockStepped);
                } else if let (Script::Release, Ok(answer)) = (command.script, &mut answer) {
                    Released::doubt(answer);
                }
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
                            self.wake();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::node::embedded::EmbeddedNode;

    fn member() -> Arc<Member> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let node = Arc::new(EmbeddedNode::new("run-0", Arc::clone(&clock)));
        let bounds = Bounds { clock_bound_ms: 60_000, fence_retention_ms: 600_000 };
        let board = Arc::new(Mutex::new(Board::new(vec!["a".into()], 100, 60_000)));
        let clocks = Arc::new(ClockWatch::new(1, clock.now()));
        Member::new(0, node, clock, Keys::new("q"), bounds, board, clocks)
    }

    #[test]
    fn what_fails_while_a_probe_ends_does_not_vote() {
        let member = member();
        // The probe has seen that it votes, and another thread now sees that its clock stepped.
        member.doubt(STEPPED);
        member.stand(Standing::Voting("marker".into()), 0);
        assert!(!member.is_voting());
    }

    /// A request that had to record its class while another server changed the members was told that there is no quorum.
    #[tokio::test]
    async fn a_class_that_meets_another_marker_shuts_the_gate_until_that_is_seen() {
        let member = member();
        member.stand(Standing::Voting("marker of before".into()), 0);
        assert!(member.is_voting() && !member.is_moving());
        assert_eq!(member.record_class(30_000, 61_000).await.ok(), Some(false));
        assert!(!member.is_voting() && member.is_moving());
    }
}
