//! Answers on their way back to whoever asked: those of one round together.
//!
//! One allocation and one waker a round instead of a channel a node, and nobody is woken before the
//! answers can decide something: to poll a request again costs more than all of its answers.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{Answer, NodeError};

/// What a node said, or why it did not.
pub type Vote = Result<Answer, NodeError>;

/// The answers of one round, as they come.
pub struct Ballot {
    shared: Arc<Mutex<State>>,
    /// One bit a node whose answer has not been taken.
    pending: u64,
}

struct State {
    /// In the order of their arrival, each with the number of its node.
    arrived: SmallVec<[(u8, Vote); 3]>,
    /// How many answers more must come until the waker is told.
    missing: usize,
    waker: Option<Waker>,
}

impl Ballot {
    /// A round of which the first `enough` answers decide nothing until all of them are there.
    pub fn new(enough: usize) -> Self {
        let state = State { arrived: SmallVec::new(), missing: enough, waker: None };
        Self { shared: Arc::new(Mutex::new(state)), pending: 0 }
    }

    /// What `ask`, which is given a seat, is answered.
    ///
    /// # Errors
    /// The node's.
    pub async fn of_one(ask: impl FnOnce(Seat)) -> Vote {
        let mut ballot = Self::new(1);
        ask(ballot.seat(0));
        ballot.next().await.map_or(Err(NodeError::Dropped), |(_, vote)| vote)
    }

    /// Where the answer of node `i` shall go.
    pub fn seat(&mut self, i: usize) -> Seat {
        self.pending |= 1 << i;
        // There are fewer than 64 nodes.
        Seat { shared: Arc::clone(&self.shared), place: i as u8 }
    }

    /// Whether every answer was taken.
    pub fn is_empty(&self) -> bool {
        self.pending == 0
    }

    /// One bit a node whose answer was not taken yet.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// The next answer, whichever node gives it; `None` when all were taken.
    pub async fn next(&mut self) -> Option<(usize, Vote)> {
        if self.pending == 0 {
            return None;
        }
        let outstanding = self.pending.count_ones() as usize;
        let (place, vote) = poll_fn(|context| {
            let mut state = self.shared.lock();
            if !state.arrived.is_empty() {
                return Poll::Ready(state.arrived.remove(0));
            }
            // Fewer were asked than that: members that this server cannot reach have no seat.
            state.missing = state.missing.min(outstanding);
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            Poll::Pending
        })
        .await;
        self.pending &= !(1 << place);
        Some((place.into(), vote))
    }
}

/// Where one node's answer goes.
pub struct Seat {
    shared: Arc<Mutex<State>>,
    place: u8,
}

impl Seat {
    /// Answers.
    pub fn take(self, vote: Vote) {
        let mut state = self.shared.lock();
        state.arrived.push((self.place, vote));
        state.missing = state.missing.saturating_sub(1);
        if state.missing == 0
            && let Some(waker) = state.waker.take()
        {
            drop(state);
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn vote(node_ms: u64) -> Vote {
        Ok(Answer { done: true, node_ms, rest: Vec::new() })
    }

    #[test]
    fn whoever_waits_is_woken_by_the_last_answer_where_fewer_were_asked_than_decide() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut ballot = Ballot::new(2);
        let seat = ballot.seat(0);
        let mut next = pin!(ballot.next());
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        seat.take(vote(1));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn answers_come_in_their_order_and_wake_once_there_are_enough() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut ballot = Ballot::new(2);
        let seats: Vec<_> = (0..3).map(|i| ballot.seat(i)).collect();
        let mut next = |ballot: &mut Ballot| match pin!(ballot.next()).as_mut().poll(&mut context) {
            Poll::Ready(Some((i, vote))) => Some((i, vote.unwrap().node_ms)),
            Poll::Ready(None) => None,
            Poll::Pending => Some((usize::MAX, 0)),
        };
        const NOT_YET: Option<(usize, u64)> = Some((usize::MAX, 0));
        let mut seats = seats.into_iter().rev();
        let mut answer = |node_ms| seats.next().unwrap().take(vote(node_ms));

        assert_eq!(next(&mut ballot), NOT_YET);
        answer(10);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        answer(20);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!((next(&mut ballot), next(&mut ballot)), (Some((2, 10)), Some((1, 20))));
        assert_eq!((next(&mut ballot), ballot.pending()), (NOT_YET, 1));
        answer(30);
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        assert_eq!((next(&mut ballot), next(&mut ballot)), (Some((0, 30)), None));
        assert!(ballot.is_empty());
    }
}
