//! The queue in front of a node: callers push and never wait, the driver drains.
//!
//! A mutex around a `VecDeque` rather than a channel, since the driver then
//! takes all that waits in one exchange, wakes at most once for it, and "is
//! there a connection" is decided under the same lock: no call can slip in
//! behind the one that was answered as the last of a broken connection.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::node::{Call, Identity, NodeError};

/// What the driver can be asked for.
pub(super) enum Job {
    Call(Call),
    Identify(oneshot::Sender<Result<Identity, NodeError>>),
}

impl Job {
    pub(super) fn refuse(self, error: NodeError) {
        match self {
            Self::Call(call) => call.reply.send(Err(error)),
            // Whoever asked may have left.
            Self::Identify(to) => drop(to.send(Err(error))),
        }
    }
}

pub(super) struct Queue {
    state: Mutex<State>,
    /// Calls without an answer, whether they wait here or were sent.
    limit: usize,
}

struct State {
    jobs: VecDeque<Job>,
    /// How many were sent and have no answer, as of the driver's last visit.
    sent: usize,
    /// Why nothing is accepted, where nothing is.
    shut: Option<NodeError>,
    driver: Option<Waker>,
}

impl Queue {
    /// Shut for now, with the reason.
    pub(super) fn new(limit: usize, reason: NodeError) -> Self {
        let state = State { jobs: VecDeque::new(), sent: 0, shut: Some(reason), driver: None };
        Self { state: Mutex::new(state), limit }
    }
    /// Queues a job, or answers it at once where that cannot be.
    pub(super) fn push(&self, job: Job) {
        let mut state = self.state.lock();
        let refusal = match &state.shut {
            Some(reason) => reason.clone(),
            // A full queue is no reason to take the node for dead: whoever looks after it gets in.
            None if state.jobs.len() + state.sent >= self.limit
                && matches!(&job, Job::Call(call) if !call.command.script.is_look()) =>
            {
                NodeError::Overloaded
            }
            None => {
                state.jobs.push_back(job);
                let driver = state.driver.take();
                drop(state);
                if let Some(driver) = driver {
                    driver.wake();
                }
                return;
            }
        };
        // Answered without the lock: whoever watches answers may submit again.
        drop(state);
        job.refuse(refusal);
    }

    /// Whether something waits. If not, the driver is woken by the next push.
    pub(super) fn poll_some(&self, sent: usize, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        state.sent = sent;
        if !state.jobs.is_empty() {
            return Poll::Ready(());
        }
        match &mut state.driver {
            Some(driver) => driver.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Exchanges `taken`, which is empty, for all that waits.
    pub(super) fn take(&self, taken: &mut VecDeque<Job>) {
        let mut state = self.state.lock();
        state.sent += state.jobs.len();
        std::mem::swap(&mut state.jobs, taken);
    }

    /// A connection is there.
    pub(super) fn open(&self) {
        let mut state = self.state.lock();
        state.shut = None;
        state.sent = 0;
    }

    /// There is none; what still waited comes back.
    pub(super) fn shut(&self, reason: NodeError) -> VecDeque<Job> {
        let mut state = self.state.lock();
        state.shut = Some(reason);
        state.driver = None;
        std::mem::take(&mut state.jobs)
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.lock().shut.is_none()
    }
}
