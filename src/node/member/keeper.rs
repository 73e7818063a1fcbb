//! The task that looks after a node: probes it, moves its gate, marks it, and pays its debts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Member;
use super::gate::{Gate, MOVED, SUSPECTED};
use crate::node::board::{Standing, Write};
use crate::node::calls::{self, Status};
use crate::node::clock_watch::Outcome;
use crate::node::{Identity, NodeError};

/// Between probes of a node that votes.
const PROBE: Duration = Duration::from_secs(1);
/// Between probes of one that does not, at most: a recovered node is used again within a second.
const PROBE_AGAIN: Duration = Duration::from_millis(200);
/// Before the second probe of one that does not, and from there on twice as long each time: where only its
/// connections broke, there are others by now.
const PROBE_SOON: Duration = Duration::from_millis(10);

impl Member {
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
            let _ = tokio::time::timeout(pause, self.clocks.wake(self.index).notified()).await;
        }
    }

    /// One look at the node: who it is, what marker it carries, whether it may vote. Before the
    /// engine runs nothing is written: what is refused at the start has changed nothing.
    pub async fn probe(self: &Arc<Self>, running: bool) {
        /// A text is written, another one follows it, and then the node is seen to have it.
        const WRITES_MAX: usize = 2;
        let _one_at_a_time = self.looking.lock().await;
        for _ in 0..=WRITES_MAX {
            // What fails from here on speaks against this probe's result.
            self.failed.store(false, Ordering::Release);
            let seen = self.look().await;
            let now = self.clock.now();
            let (mut verdict, generation) = {
                let mut board = self.board.lock();
                let trouble = match seen {
                    Ok((identity, status)) => {
                        board.saw(self.index, identity, status, now);
                        None
                    }
                    Err(why) => {
                        board.lost(self.index);
                        self.clocks.silent(self.index);
                        Some(Arc::new(why))
                    }
                };
                drop(board);
                self.decide_whose_clock_stepped();
                let board = self.board.lock();
                let mut verdict = board.judge(self.index, self.clock.random_bits());
                if self.clocks.is_suspected(self.index) && matches!(verdict.standing, Standing::Voting(_)) {
                    let (until, marker) = (None, None);
                    verdict.standing = Standing::Quarantined { until, reason: SUSPECTED.into(), marker };
                }
                // Where it is to be marked, what spoke against that the last time holds until it succeeds.
                if trouble.is_some() || verdict.write.is_none() {
                    self.trouble.store(trouble);
                }
                (verdict, board.generation())
            };
            if let Standing::Voting(expected) = &verdict.standing
                && self.node.is_to_be_tried()
                && let Err(why) = self.try_out(self.marker(expected, true)).await
            {
                match why {
                    NodeError::Redis(why) => verdict.standing = Standing::Refused(why),
                    // It says nothing of what the node can do.
                    _ => return,
                }
            }
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

    fn decide_whose_clock_stepped(&self) {
        match self.clocks.decide(self.electorate.now().quorum(), self.clock.now()) {
            None => {}
            Some(Outcome::StoodStill(by)) => {
                tracing::warn!(
                    ms = by.as_millis() as u64,
                    "this server stood still: all nodes' clocks are ahead by that"
                );
            }
            Some(Outcome::Stepped(nodes)) => nodes.into_iter().for_each(|i| self.hold_step_against(i)),
        }
    }

    /// Writes a text in the place of the node's marker, unless another one is there by now.
    pub async fn write(self: &Arc<Self>, write: &Write) -> Result<bool, NodeError> {
        let Write { seen, new, run_id, chosen } = write;
        let answer = self.ask(&Arc::new(calls::mark(&self.keys, seen, new, run_id, chosen))).await?;
        if answer.done {
            let (node, address) = (self.metrics.node(), self.node.address());
            tracing::debug!(node, address, marker = %new, "node marked");
        }
        Ok(answer.done)
    }

    /// Records that leases of a class may be granted for so long. False where the node does not vote. If another server
    /// has marked it anew, it does not vote until it was looked at, as after a vote that meets another marker.
    pub async fn record_class(self: &Arc<Self>, class_ms: u64, for_ms: u64) -> Result<bool, NodeError> {
        let answer = self.ask(&Arc::new(calls::status(&self.keys, class_ms, for_ms, ""))).await?;
        let status = Status::read(&answer)?;
        let gate = self.gate.load();
        let Gate::Open(marker, _) = &**gate else { return Ok(false) };
        let is_expected = *marker.expected == *status.marker;
        if !is_expected {
            self.doubt(MOVED);
        }
        Ok(status.error.is_none() && is_expected)
    }

    /// Who the node is, and all it says of itself. Notes what keeps it from granting anything.
    async fn look(self: &Arc<Self>) -> Result<(Identity, Status), NodeError> {
        let identity = self.node.identify().await?;
        // Votes over a later connection have to wait for the next look.
        self.connection.store(self.node.connection(), Ordering::Release);
        let addresses = self.board.lock().addresses_for(self.index);
        let answer = self.ask(&Arc::new(calls::status(&self.keys, 0, 0, &addresses))).await?;
        // It answered before now: rather too little than too much.
        let since = self.clock.now().saturating_duration_since(self.first_seen).as_micros() as u64;
        let node_us = answer.node_ms.saturating_mul(1000);
        self.first_us.store(node_us.saturating_sub(since), Ordering::Relaxed);
        if !self.bounds.is_ahead(self.clock.wall_us(), node_us) {
            self.refused_token.store(false, Ordering::Relaxed);
        }
        let status = Status::read(&answer)?;
        self.hinder(match &status.error {
            Some(error) => Some(format!("takes no writes: {error}")),
            None if self.refused_token.load(Ordering::Relaxed) => Some(format!(
                "its clock is more than {} s behind this server's",
                self.bounds.clock_bound_ms / 1000
            )),
            None => None,
        });
        Ok((identity, status))
    }
}
