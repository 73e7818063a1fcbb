//! Acquires that a node is sent only if they turn out to be of use there.
//!
//! A lease rests on a quorum. The nodes beyond it add nothing to one that is given back at once, which
//! most are; so its acquire is kept back for them until the others may not suffice, or it has been held
//! for [`KEPT_MAX`]. What is given back before that, such a node never hears of. Nor does one in quarantine,
//! which is given a copy of what is held for longer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::ballot::{Seat, Stage};
use super::{Command, NodeError};
use crate::domain::LeaseId;
use crate::telemetry::trace::VoteSpan;

/// Between looks at what is kept back, or a round trip where that is longer. So a node that hangs, and is
/// asked all the same since nobody knows it yet, costs one to two of these.
pub const LOOK: Duration = Duration::from_millis(2);
/// So long a lease rests on a bare quorum.
const KEPT_MAX: Duration = Duration::from_millis(20);
/// What was kept back for longer is not sent any more: the server was stopped, and the release of the lease
/// may have gone through another one meanwhile. Less than its tombstone waits.
const STALE: Duration = Duration::from_secs(10);
/// Acquires kept back for one node; beyond that they are sent at once.
const LENGTH_MAX: usize = 4096;

/// An acquire that its node has not been sent.
pub(super) struct Kept {
    pub(super) command: Arc<Command>,
    /// None of a copy that is no vote.
    pub(super) seat: Option<Seat>,
    /// Where the request that asks is traced.
    pub(super) span: Option<Box<VoteSpan>>,
    lease: LeaseId,
    since: Instant,
    /// Another node had answered at the last look, and that was not enough.
    awaited: bool,
}

impl Kept {
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) > STALE
    }

    /// It is not sent after all.
    pub(super) fn withdraw(self) {
        if let Some(span) = self.span {
            span.end("withdrawn", true);
        }
        // Whoever saw the lease at another node may release it while its round still waits.
        if let Some(seat) = self.seat {
            seat.take(Err(NodeError::Undone));
        }
    }
}

/// What a look at the acquires kept back found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Some are kept back still.
    pub some: bool,
    /// Some were sent since their round still waits.
    pub awaited: bool,
}

/// The acquires that are kept back for one node, in their order.
#[derive(Default)]
pub(super) struct Reserve {
    /// Whether there are any. Most nodes have none, and then nobody locks.
    some: AtomicBool,
    kept: Mutex<VecDeque<Kept>>,
}

impl Reserve {
    fn unlock(&self, kept: MutexGuard<'_, VecDeque<Kept>>) {
        self.some.store(!kept.is_empty(), Ordering::Release);
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.some.load(Ordering::Acquire)
    }

    /// Keeps an acquire back: `Ok` says whether it is the only one. It comes back where there are too many.
    pub(super) fn keep(
        &self,
        lease: LeaseId,
        command: &Arc<Command>,
        since: Instant,
        seat: Option<Seat>,
        trace: impl FnOnce() -> Option<Box<VoteSpan>>,
    ) -> Result<bool, Option<Seat>> {
        let mut kept = self.kept.lock();
        if kept.len() >= LENGTH_MAX {
            return Err(seat);
        }
        let only = kept.is_empty();
        let (command, span) = (Arc::clone(command), trace());
        kept.push_back(Kept { command, seat, span, lease, since, awaited: false });
        self.unlock(kept);
        Ok(only)
    }

    /// The acquire of this lease is of no use any more. `None` where it is not kept back: it was sent, or
    /// never was any.
    pub(super) fn withdraw(&self, lease: &LeaseId) -> Option<Kept> {
        if self.is_empty() {
            return None;
        }
        let mut kept = self.kept.lock();
        let place = kept.iter().position(|one| one.lease == *lease);
        let found = place.and_then(|place| kept.remove(place));
        self.unlock(kept);
        found
    }

    /// Sends that of this lease now, behind those that came before it.
    pub(super) fn send_to(&self, lease: &LeaseId, send: impl FnMut(Kept)) {
        if !self.is_empty() {
            let mut kept = self.kept.lock();
            // Under the lock, here and below: a release that finds none here goes behind its acquire.
            if let Some(place) = kept.iter().position(|one| one.lease == *lease) {
                kept.drain(..=place).for_each(send);
            }
            self.unlock(kept);
        }
    }

    /// Sends all of them, before something else is.
    pub(super) fn send_all(&self, send: impl FnMut(Kept)) {
        if !self.is_empty() {
            let mut kept = self.kept.lock();
            kept.drain(..).for_each(send);
            self.unlock(kept);
        }
    }

    /// Sends those whose lease has been held for long, and those whose round has waited for more answers
    /// since the last look; and what came before them, since it may be a lease that one of them wants.
    pub(super) fn look(&self, now: Instant, send: impl FnMut(Kept)) -> Look {
        let mut found = Look::default();
        if self.is_empty() {
            return found;
        }
        let (mut kept, mut due) = (self.kept.lock(), 0);
        for (i, one) in kept.iter_mut().enumerate() {
            let answered = one.seat.as_ref().is_some_and(|seat| seat.stage() == Stage::Answered);
            if (one.awaited && answered) || now.saturating_duration_since(one.since) >= KEPT_MAX {
                found.awaited |= answered;
                due = i + 1;
            }
            one.awaited = answered;
        }
        kept.drain(..due).for_each(send);
        found.some = !kept.is_empty();
        self.unlock(kept);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::ballot::Ballot;
    use crate::node::{Answer, Script};

    fn lease(bits: u128) -> LeaseId {
        LeaseId::from_bits(bits)
    }

    /// A round over three nodes, of which the last is kept back.
    fn begin(reserve: &Reserve, bits: u128, now: Instant) -> (Ballot, Seat) {
        let mut ballot = Ballot::new(2);
        let command = Arc::new(Command::new(Script::Acquire));
        assert!(reserve.keep(lease(bits), &command, now, Some(ballot.seat(2)), || None).is_ok());
        let asked = ballot.seat(0);
        (ballot, asked)
    }

    fn sent(reserve: &Reserve, now: Instant) -> (Vec<LeaseId>, Look) {
        let mut sent = Vec::new();
        let look = reserve.look(now, |kept| sent.push(kept.lease));
        (sent, look)
    }

    #[test]
    fn what_is_given_back_in_time_is_never_sent() {
        let (reserve, now) = (Reserve::default(), Instant::now());
        let _rounds = [begin(&reserve, 1, now), begin(&reserve, 2, now)];
        assert!(reserve.withdraw(&lease(1)).is_some());
        assert!(reserve.withdraw(&lease(1)).is_none());
        assert_eq!(sent(&reserve, now), (vec![], Look { some: true, awaited: false }));
        assert_eq!(sent(&reserve, now + KEPT_MAX), (vec![lease(2)], Look::default()));
        assert!(reserve.withdraw(&lease(2)).is_none());
    }

    #[test]
    fn a_round_that_waits_for_more_than_one_look_gets_its_node_and_a_decided_one_does_not() {
        let (reserve, now) = (Reserve::default(), Instant::now());
        let vote = || Ok(Answer { done: true, node_ms: 1, rest: Vec::new() });
        let ((_ballot, one), (decided, other), _silent) =
            (begin(&reserve, 1, now), begin(&reserve, 2, now), begin(&reserve, 3, now));
        one.take(vote());
        other.take(vote());
        drop(decided);
        assert_eq!(sent(&reserve, now), (vec![], Look { some: true, awaited: false }));
        assert_eq!(sent(&reserve, now), (vec![lease(1)], Look { some: true, awaited: true }));
        assert_eq!(sent(&reserve, now), (vec![], Look { some: true, awaited: false }));
    }

    #[test]
    fn what_is_sent_goes_behind_what_came_before_it_and_leaves_the_rest() {
        let (reserve, now) = (Reserve::default(), Instant::now());
        let rounds: [_; 5] = std::array::from_fn(|i| begin(&reserve, i as u128, now));
        let mut hurried = Vec::new();
        reserve.send_to(&lease(1), |kept| hurried.push(kept.lease));
        assert_eq!(hurried, [lease(0), lease(1)]);
        // Of the others, the middle one waits for more answers.
        let [.., (_waits, asked), _last] = rounds;
        asked.take(Ok(Answer { done: true, node_ms: 1, rest: Vec::new() }));
        assert_eq!(sent(&reserve, now), (vec![], Look { some: true, awaited: false }));
        assert_eq!(sent(&reserve, now), (vec![lease(2), lease(3)], Look { some: true, awaited: true }));
        reserve.send_to(&lease(1), |_| panic!("it was sent"));
        assert!(reserve.withdraw(&lease(4)).is_some());
    }

    #[test]
    fn no_more_than_so_many_are_kept_back() {
        let (reserve, now) = (Reserve::default(), Instant::now());
        let _rounds: Vec<_> = (0..LENGTH_MAX as u128).map(|i| begin(&reserve, i, now)).collect();
        let command = Arc::new(Command::new(Script::Acquire));
        assert!(
            reserve.keep(lease(u128::MAX), &command, now, Some(Ballot::new(1).seat(0)), || None).is_err()
        );
        let mut count = 0;
        reserve.send_all(|_| count += 1);
        assert_eq!((count, reserve.is_empty()), (LENGTH_MAX, true));
    }
}
