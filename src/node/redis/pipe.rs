//! The task that owns the one connection of a node on which calls run in order.
//!
//! It takes what is queued, sends it as runs of a script, and gives each reply to its calls. It
//! owns the future of every run and of the socket, and drops none before the connection is lost:
//! the redis crate does not send what nobody waits for any more, so a dropped future could cancel
//! an acquire between two others. All of them are polled in this one task: each task more between
//! a caller and the socket costs a wake-up.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bb8_redis::redis::{self, Pipeline, RedisError, RedisResult, ServerErrorKind};
use tokio::sync::oneshot;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep};

use super::queue::{Job, Queue};
use super::target::{RawConnection, reason};
use super::{greet, run};
use crate::node::{Call, Identity, NodeError};

/// Runs without an answer. The connection has room for all of them, so that none waits for a
/// place when it is polled for the first time: that is when it gets its place in the order.
pub(super) const RUNS_MAX: usize = 1024;

/// When to look again at a socket with replies that the event loop has not come to.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

type Reply = Pin<Box<dyn Future<Output = RedisResult<Vec<redis::Value>>> + Send>>;

/// What a run is for. `None` and empty where it has timed out and was answered so.
enum Owed {
    /// Calls, and whether they are sent for the second time, after a `NOSCRIPT`.
    Calls(Vec<Call>, bool),
    Identity(Option<oneshot::Sender<Result<Identity, NodeError>>>),
    /// The scripts are loaded again.
    Load,
}

struct Run {
    owed: Owed,
    reply: Reply,
    since: Instant,
}

pub(super) struct Pipe<'a> {
    connection: RawConnection,
    queue: &'a Queue,
    /// `run_id`s that this node had on earlier connections.
    former: &'a [String],
    node_timeout: Duration,

    taken: VecDeque<Job>,
    runs: VecDeque<Run>,
    /// How many at the front of `runs` have timed out.
    late: usize,
    /// Calls whose script the node has forgotten. While there are any nothing else is sent.
    forgotten: Vec<Vec<Call>>,
    /// Something waits in the queue and is left to gather company.
    gathering: bool,
    last_read: Instant,
    timer: Pin<Box<Sleep>>,
    timer_set: bool,
}

impl<'a> Pipe<'a> {
    pub(super) fn new(
        connection: RawConnection,
        queue: &'a Queue,
        former: &'a [String],
        node_timeout: Duration,
    ) -> Self {
        Self {
            connection,
            queue,
            former,
            node_timeout,
            taken: VecDeque::new(),
            runs: VecDeque::new(),
            late: 0,
            forgotten: Vec::new(),
            gathering: false,
            last_read: Instant::now(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            timer_set: false,
        }
    }

    /// Works until the connection is of no use any more, answers all that it owes, and says why.
    pub(super) async fn run(mut self) -> Arc<str> {
        let reason = poll_fn(|cx| self.poll(cx)).await;
        let error = NodeError::Connection(reason.clone());
        // First shut, then answer: what comes in between finds the door closed.
        let queued = self.queue.shut(error.clone());
        for calls in self.forgotten.drain(..) {
            run::refuse(calls, &error);
        }
        for run in self.runs.drain(..) {
            refuse(run.owed, &error);
        }
        for job in self.taken.drain(..).chain(queued) {
            job.refuse(error.clone());
        }
        reason
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Arc<str>> {
        loop {
            let ended = self.connection.io.as_mut().poll(cx).is_ready();
            if let Err(error) = self.answer(cx) {
                return Poll::Ready(reason(&error).into());
            }
            if ended {
                return Poll::Ready("closed by the node".into());
            }
            if self.fetch(cx) {
                continue;
            }
            return match self.look_at_the_time(cx) {
                Err(reason) => Poll::Ready(reason),
                Ok(()) => Poll::Pending,
            };
        }
    }

    /// Answers with the replies that are there, first in, first out.
    fn answer(&mut self, cx: &mut Context<'_>) -> Result<(), RedisError> {
        while let Some(front) = self.runs.front_mut() {
            let Poll::Ready(reply) = front.reply.as_mut().poll(cx) else { break };
            let replies = reply?;
            self.last_read = Instant::now();
            self.late = self.late.saturating_sub(1);
            let Some(run) = self.runs.pop_front() else { break };
            self.deliver(run.owed, replies);
        }
        if self.runs.is_empty() && !self.forgotten.is_empty() {
            // In their order, and before all that was submitted after them.
            self.send_pipeline(Owed::Load, greet::load_all(), cx);
            for calls in std::mem::take(&mut self.forgotten) {
                self.send_calls(calls, true, cx);
            }
        }
        Ok(())
    }

    fn deliver(&mut self, owed: Owed, mut replies: Vec<redis::Value>) {
        match owed {
            Owed::Load => {}
            Owed::Identity(None) => {}
            Owed::Identity(Some(to)) => drop(to.send(greet::identity(replies))),
            Owed::Calls(calls, _) if calls.is_empty() => {}
            Owed::Calls(calls, again) => match replies.pop() {
                Some(redis::Value::ServerError(error))
                    if !again && error.kind() == Some(ServerErrorKind::NoScript) =>
                {
                    self.forgotten.push(calls);
                }
                Some(reply) => run::answer(calls, reply, self.last_read),
                None => run::refuse(calls, &NodeError::Nonsense),
            },
        }
    }

    /// Sends what is queued; says whether it sent anything.
    fn fetch(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.forgotten.is_empty() || self.runs.len() >= RUNS_MAX / 2 {
            return false;
        }
        if self.taken.is_empty() {
            let sent = self.runs.iter().map(Run::calls).sum();
            if self.queue.poll_some(sent, cx).is_pending() {
                return false;
            }
            if !self.gathering {
                // The callers whose answers have just been read run after this and before the
                // next poll, and submit: one run for all of them instead of one each.
                self.gathering = true;
                let _ = pin!(tokio::task::yield_now()).poll(cx);
                return false;
            }
            self.queue.take(&mut self.taken);
        }
        self.gathering = false;
        let mut calls: Vec<Call> = Vec::new();
        let mut keys = 0;
        while self.runs.len() < RUNS_MAX / 2 {
            match self.taken.pop_front() {
                None => break,
                Some(Job::Call(mut call)) => {
                    if call.is_stale(self.former) {
                        call.reply.send(Err(NodeError::Unmarked));
                        continue;
                    }
                    if !run::joins(&call, &calls, keys) {
                        self.send_calls(std::mem::take(&mut calls), false, cx);
                        keys = 0;
                    }
                    keys += call.command.keys().len();
                    calls.push(call);
                }
                Some(Job::Identify(to)) => {
                    self.send_calls(std::mem::take(&mut calls), false, cx);
                    self.send_pipeline(Owed::Identity(Some(to)), greet::info(), cx);
                }
            }
        }
        self.send_calls(calls, false, cx);
        true
    }

    fn send_calls(&mut self, calls: Vec<Call>, again: bool, cx: &mut Context<'_>) {
        if calls.is_empty() {
            return;
        }
        let (mut commands, command) = (self.connection.commands.clone(), run::command(&calls));
        let reply = async move { commands.send_packed_command(&command).await.map(|reply| vec![reply]) };
        self.send(Owed::Calls(calls, again), Box::pin(unconstrained(reply)), cx);
    }

    fn send_pipeline(&mut self, owed: Owed, pipeline: Pipeline, cx: &mut Context<'_>) {
        let mut commands = self.connection.commands.clone();
        let count = pipeline.len();
        let reply = async move { commands.send_packed_commands(&pipeline, 0, count).await };
        self.send(owed, Box::pin(unconstrained(reply)), cx);
    }

    /// The first poll puts the run into the connection's own queue, where there is room for it.
    fn send(&mut self, owed: Owed, mut reply: Reply, cx: &mut Context<'_>) {
        let reply = match reply.as_mut().poll(cx) {
            Poll::Pending => reply,
            // The connection has ended; it is told in its turn.
            Poll::Ready(outcome) => Box::pin(std::future::ready(outcome)),
        };
        self.runs.push_back(Run { owed, reply, since: Instant::now() });
    }

    /// One timer for everything in flight. It is left alone while answers come in, and finds out
    /// when it fires what has become of what it was set for.
    fn look_at_the_time(&mut self, cx: &mut Context<'_>) -> Result<(), Arc<str>> {
        loop {
            if !self.timer_set {
                let Some(next) = self.next_deadline() else { return Ok(()) };
                self.timer.as_mut().reset(next);
                self.timer_set = true;
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            if self.connection.unread.any() {
                // It is this server that is late: the event loop looks after few sockets a turn, and
                // has not come to this one. The bytes were sent in time, as far as anybody knows.
                self.timer.as_mut().reset(Instant::now() + LOOK_AGAIN);
                continue;
            }
            self.timer_set = false;
            self.give_up_on_the_late(Instant::now())?;
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let timeout = self.runs.get(self.late).map(|run| run.since + self.node_timeout);
        let half_open = (self.late > 0).then(|| self.half_open_at()).flatten();
        timeout.into_iter().chain(half_open).min()
    }

    /// When the silence will have lasted too long for the connection to be believed in.
    fn half_open_at(&self) -> Option<Instant> {
        let first = self.runs.front()?;
        Some(first.since.max(self.last_read) + 2 * self.node_timeout)
    }

    fn give_up_on_the_late(&mut self, now: Instant) -> Result<(), Arc<str>> {
        while let Some(run) = self.runs.get_mut(self.late) {
            if run.since + self.node_timeout > now {
                break;
            }
            self.late += 1;
            // The run keeps its place: its reply may come yet, and goes nowhere.
            refuse(run.owed.take(), &NodeError::Timeout);
        }
        match self.half_open_at() {
            Some(at) if self.late > 0 && at <= now => Err("no reply for too long".into()),
            _ => Ok(()),
        }
    }
}

impl Run {
    fn calls(&self) -> usize {
        match &self.owed {
            Owed::Calls(calls, _) => calls.len(),
            Owed::Identity(_) | Owed::Load => 1,
        }
    }
}

impl Owed {
    /// Leaves nothing to be answered.
    fn take(&mut self) -> Self {
        match self {
            Self::Calls(calls, again) => Self::Calls(std::mem::take(calls), *again),
            Self::Identity(to) => Self::Identity(to.take()),
            Self::Load => Self::Load,
        }
    }
}

fn refuse(owed: Owed, error: &NodeError) {
    match owed {
        Owed::Calls(calls, _) => run::refuse(calls, error),
        Owed::Identity(Some(to)) => drop(to.send(Err(error.clone()))),
        Owed::Identity(None) | Owed::Load => {}
    }
}
