//! Releases that the node has not confirmed yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Member;
use crate::node::Command;
use crate::node::ballot::{Ballot, Seat};
use crate::telemetry::{Undo, metrics};

/// Debts kept per node; the oldest go first, since their leases expire first.
const DEBTS_MAX: usize = 65_536;
/// Debts paid at once.
const DEBTS_BATCH: usize = 256;

/// A release that the node has not confirmed.
pub(super) struct Debt {
    command: Arc<Command>,
    /// It was reached, and refused. Otherwise it may have the acquire before it still.
    refused: bool,
}

/// What one node is owed, the oldest first.
pub(super) type Debts = VecDeque<Debt>;

impl Member {
    pub(super) fn owe(&self, command: Arc<Command>, refused: bool) {
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
    pub(super) async fn pay_debts(self: &Arc<Self>) {
        if self.board.lock().is_out(self.index) {
            // What it holds counts nowhere, and ends by itself.
            let debts = std::mem::take(&mut *self.debts.lock());
            debts.iter().for_each(|debt| count_undo(Some(&debt.command), Undo::Abandoned));
            self.unsettled.fetch_sub(debts.len(), Ordering::Release);
        }
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
        let marker = self.marker_for(&command);
        self.forward(renewed.as_ref().unwrap_or(&command), marker, now, to, None);
        self.unsettled.fetch_sub(1, Ordering::Release);
    }
}

pub(super) fn count_undo(command: Option<&Command>, outcome: Undo) {
    if command.and_then(|command| command.settle).is_some_and(|settle| settle.undo) {
        metrics().undo(outcome);
    }
}
