//! One node: one script on one Redis, one answer.
//!
//! [`Node`] is the port above every driver, with two implementations that run
//! the same scripts: [`redis`] and [`embedded`]. [`member`] wraps a node with
//! what makes it a voter: its marker, its quarantine, its breaker, its debts.

pub mod ballot;
pub(crate) mod board;
pub mod calls;
pub(crate) mod clock_watch;
mod complaints;
pub(crate) mod electorate;
pub mod embedded;
mod line;
pub(crate) mod marker;
pub(crate) mod member;
mod metrics;
pub mod redis;
pub mod scripts;
mod words;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use ballot::{Seat, Vote};
use metrics::{NODE_OUTCOMES, node_outcome};
pub use scripts::Script;
use words::Words;

use crate::domain::{Keys, drift_ms};
use crate::telemetry::trace::VoteSpan;

/// A boxed future, for the calls that are not hot.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// A driver of one node.
pub trait Node: Send + Sync + 'static {
    /// Submits a call. It is queued **before this returns**, in order with all earlier
    /// calls, and dropping the receiver of the reply does not take it back: undoing
    /// relies on both.
    fn submit(&self, call: Call);

    /// Reads who this node is, over the connection that calls will use from now on.
    fn identify(&self) -> BoxFuture<Result<Identity, NodeError>>;

    /// Asks for hints on `channel`; resolves once the node has confirmed.
    fn subscribe(&self, channel: Arc<str>) -> BoxFuture<Result<(), NodeError>>;

    /// No more hints on `channel`.
    fn unsubscribe(&self, channel: &str);

    /// Where hints go. Set once, before the first subscription.
    fn listen(&self, sink: Arc<dyn HintSink>);

    /// Address without password, for people.
    fn address(&self) -> &str;

    /// Whether it may lack what scripts need: rights, or keys of several slots.
    fn is_to_be_tried(&self) -> bool {
        false
    }

    /// The number of the connection that calls use now; each new one has a higher number.
    fn connection(&self) -> u64 {
        0
    }

    /// Connections open now: (in use by calls, in use by hints).
    fn connections(&self) -> (usize, usize) {
        (1, 0)
    }
}

/// Receives what nodes publish.
pub trait HintSink: Send + Sync + 'static {
    /// Something about `channel` changed at this node; `message` names the queues whose turn it is, if any.
    fn hint(&self, channel: &str, message: &str);

    /// Hints may have been missed: whoever waits should look for itself.
    fn missed(&self);
}

/// A script with its keys and arguments, the same for every node.
#[derive(Debug, Clone)]
pub struct Command {
    /// Which script.
    pub script: Script,
    /// For a release: how long it is worth being repeated at a node that does not answer.
    pub settle: Option<Settle>,
    words: Words,
    keys: usize,
}

impl Command {
    /// A command with its keys; arguments follow by [`Command::arg`].
    pub fn new(script: Script) -> Self {
        Self { script, settle: None, words: Words::default(), keys: 0 }
    }

    /// Adds a key. All keys come before the first argument.
    pub fn key(mut self, key: &str) -> Self {
        debug_assert_eq!(self.keys, self.words.len());
        self.words.push(key);
        self.keys += 1;
        self
    }

    /// Adds an argument.
    pub fn arg(mut self, text: &str) -> Self {
        self.words.push(text);
        self
    }

    /// Adds a number as an argument.
    pub fn number(mut self, number: u64) -> Self {
        self.words.push_number(number);
        self
    }

    /// Adds a token as an argument, with the 16 digits that a record has.
    pub fn token(self, token: u64) -> Self {
        self.arg(&format!("{token:016}"))
    }

    /// The two words of a call of lease.lua, behind its keys: `how` goes on with these words, and `what`.
    pub fn call(mut self, how: &str, what: &str) -> Self {
        let (name, mut keys) = (self.script.name(), itoa::Buffer::new());
        self.words.push_parts([name, " ", keys.format(self.keys), " ", how].into_iter());
        self.arg(what)
    }

    /// The keys (without the marker's).
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.keys).map(|i| self.words.get(i))
    }

    /// The arguments (without the marker).
    pub fn args(&self) -> impl ExactSizeIterator<Item = &str> {
        (self.keys..self.words.len()).map(|i| self.words.get(i))
    }

    /// KEYS and ARGV of a run for this command alone.
    pub fn invocation(&self, marker: Option<&Marker>) -> (Vec<String>, Vec<String>) {
        let marked = marker.map(|marker| marker.keys.marker()).into_iter();
        let keys = marked.chain(self.keys()).map(str::to_owned).collect();
        let mut args: Vec<String> = marker.iter().map(|marker| marker.expected.to_string()).collect();
        if self.script.is_batched() {
            args.resize_with(1, String::new);
            let bounds = marker.map_or([0, 0], |marker| marker.bounds.batch_args());
            args.extend(bounds.map(|bound| bound.to_string()));
        }
        args.extend(self.args().map(str::to_owned));
        (keys, args)
    }
}

/// A debt: a release that a node must confirm.
#[derive(Debug, Clone, Copy)]
pub struct Settle {
    /// From then on the lease has expired by itself.
    pub until: Instant,
    /// Whether it undoes a grant that nobody got (metrics tell the two apart).
    pub undo: bool,
    /// For how long the lease may live from its acquire on.
    life: Duration,
}

impl Settle {
    /// Of a lease that may be acquired until `now`.
    pub fn new(ttl_ms: u64, undo: bool, now: Instant) -> Self {
        // Its call may still be on its way.
        let life = Duration::from_millis(ttl_ms + drift_ms(ttl_ms) + 1000);
        Self { until: now + life, undo, life }
    }

    /// The same of a lease that may be acquired until `now`.
    fn from(self, now: Instant) -> Self {
        Self { until: now + self.life, ..self }
    }
}

/// The marker that a voting script compares (docs/protocol.md §4).
#[derive(Debug, Clone)]
pub struct Marker {
    /// Among them the one that it is stored under.
    pub keys: Keys,
    /// What must be stored there.
    pub expected: Arc<str>,
    /// Whether the answer is a vote, of the process that the marker names. A copy goes to whatever process
    /// the marker was seen at.
    pub votes: bool,
    /// Goes with it in a batch.
    pub bounds: calls::Bounds,
}

/// One submitted command with the way back for its answer.
pub struct Call {
    /// What to run.
    pub command: Arc<Command>,
    /// For voting scripts: KEYS\[1\] and ARGV\[1\].
    pub marker: Option<Arc<Marker>>,
    /// Where the answer goes.
    pub reply: ReplyTo,
}

impl Call {
    /// Whether it asks for the vote of a process that the node was before, by these `run_id`s
    /// (docs/protocol.md §4): it restarted, who asks has not noticed yet, and a marker restored from disk
    /// would match. A release is none, since it takes place all the same: it goes without its marker then.
    pub fn is_stale(&mut self, former: &[String]) -> bool {
        let marker = self.marker.as_ref().filter(|marker| marker.votes);
        let is_stale =
            marker.is_some_and(|marker| former.iter().any(|id| marker.expected.contains(id.as_str())));
        if is_stale && self.command.script == Script::Release {
            self.marker = None;
            return false;
        }
        is_stale
    }
}

/// The way back of one call. Answers exactly once: dropping it unanswered says
/// [`NodeError::Dropped`].
pub struct ReplyTo {
    inner: Option<ReplyInner>,
}

struct ReplyInner {
    to: Option<Seat>,
    watcher: Option<Arc<dyn ReplyWatcher>>,
    command: Arc<Command>,
    sent_at: Instant,
    /// Where the request that asks is traced.
    span: Option<Box<VoteSpan>>,
}

/// Sees every answer of a node, whoever waits for it: metrics, breaker, clock, debts.
pub trait ReplyWatcher: Send + Sync + 'static {
    /// `command`, submitted at `sent_at`, was answered at `now`. Returns what counts: an answer
    /// that speaks against itself is an abstention.
    fn answered(&self, command: &Arc<Command>, sent_at: Instant, now: Instant, answer: Vote) -> Vote;
}

impl ReplyTo {
    /// The way back of `command`, which is submitted at `sent_at`.
    pub fn new(
        command: Arc<Command>,
        watcher: Option<Arc<dyn ReplyWatcher>>,
        sent_at: Instant,
        to: Option<Seat>,
    ) -> Self {
        Self { inner: Some(ReplyInner { to, watcher, command, sent_at, span: None }) }
    }

    /// Ends this span with the answer.
    pub fn traced(mut self, span: Option<Box<VoteSpan>>) -> Self {
        if let Some(inner) = &mut self.inner {
            inner.span = span;
        }
        self
    }

    /// Answers with what the script returned, or why it did not.
    pub fn send(mut self, result: Result<Value, NodeError>) {
        self.deliver(Instant::now(), result.and_then(Answer::read));
    }

    /// Answers with this call's part of what a batch returned at `node_ms` on the node's clock, and
    /// what arrived at `now`.
    pub(crate) fn send_part(mut self, now: Instant, node_ms: u64, part: Result<Value, NodeError>) {
        self.deliver(now, part.and_then(|part| Answer::of_part(node_ms, part)));
    }

    fn deliver(&mut self, now: Instant, mut answer: Vote) {
        let Some(mut inner) = self.inner.take() else { return };
        if let Some(watcher) = &inner.watcher {
            answer = watcher.answered(&inner.command, inner.sent_at, now, answer);
        }
        if let Some(span) = inner.span.take() {
            let outcome = node_outcome(answer.as_ref().map(|answer| answer.done));
            span.end(NODE_OUTCOMES[outcome], answer.is_ok());
        }
        if let Some(to) = inner.to.take() {
            // A caller that has left does not miss it: its guard undoes what was granted.
            to.take(answer);
        }
    }
}

impl Drop for ReplyTo {
    fn drop(&mut self) {
        if self.inner.is_some() {
            self.deliver(Instant::now(), Err(NodeError::Dropped));
        }
    }
}

/// What scripts return: the part of RESP that they use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing there.
    Nil,
    /// An integer.
    Int(i64),
    /// A string; bytes that are not UTF-8 were replaced.
    Text(String),
    /// A list.
    List(Vec<Value>),
}

impl Value {
    /// As a non-negative integer. What stands in a record comes as its digits.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(*number).ok(),
            Self::Text(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    /// As text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The fields of one call's reply: a list, or where all of them are integers their text, which is cheaper.
    pub fn into_fields(self) -> Option<Vec<Self>> {
        match self {
            Self::List(fields) => Some(fields),
            Self::Text(text) => text.split(' ').map(|word| word.parse().map(Self::Int).ok()).collect(),
            _ => None,
        }
    }

    /// As a list.
    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }
}

/// A script's reply, its head checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Done, or refused.
    pub done: bool,
    /// The node's clock, ms since the epoch.
    pub node_ms: u64,
    /// What follows.
    pub rest: Vec<Value>,
}

impl Answer {
    fn read(value: Value) -> Result<Self, NodeError> {
        let Value::List(mut list) = value else { return Err(NodeError::Nonsense) };
        if list.len() < 2 {
            return Err(NodeError::Nonsense);
        }
        let (Value::Int(code), Some(node_ms)) = (&list[0], list[1].as_u64()) else {
            return Err(NodeError::Nonsense);
        };
        let code = *code;
        // Moves what follows to the front, which is cheaper than another allocation for it.
        list.drain(..2);
        Self::new(code, node_ms, list)
    }

    fn of_part(node_ms: u64, part: Value) -> Result<Self, NodeError> {
        let mut fields = part.into_fields().ok_or(NodeError::Nonsense)?.into_iter();
        match fields.next() {
            Some(Value::Int(code)) => Self::new(code, node_ms, fields.collect()),
            _ => Err(NodeError::Nonsense),
        }
    }

    fn new(code: i64, node_ms: u64, rest: Vec<Value>) -> Result<Self, NodeError> {
        match code {
            1 => Ok(Self { done: true, node_ms, rest }),
            0 => Ok(Self { done: false, node_ms, rest }),
            -1 => Err(NodeError::Unmarked),
            -2 => Err(NodeError::ClockAhead),
            -3 => Err(NodeError::Undone),
            _ => Err(NodeError::Nonsense),
        }
    }
}

/// Who a node says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Redis `run_id`: changes with every start.
    pub run_id: String,
    /// `master` or `slave`.
    pub role: String,
    /// `maxmemory-policy`.
    pub eviction: String,
    /// Redis version.
    pub version: String,
}

impl Identity {
    /// Whether it is no replica.
    pub fn is_master(&self) -> bool {
        self.role == "master"
    }

    /// Whether it may give up leases for memory.
    pub fn evicts(&self) -> bool {
        self.eviction != "noeviction"
    }
}

/// Why a node did not vote. Always an abstention, never "held by someone else" (docs/protocol.md §1.10).
#[derive(Debug, Clone, thiserror::Error)]
pub enum NodeError {
    /// No answer in time; the script may run, or have run.
    #[error("no answer in time")]
    Timeout,
    /// The connection cannot be made or broke; the script may have run.
    #[error("connection failed: {0}")]
    Connection(Arc<str>),
    /// The node is known to be down; nothing was sent.
    #[error("down")]
    Down,
    /// The node abstains until leases it may have forgotten have expired; nothing was sent.
    #[error("quarantined")]
    Quarantined,
    /// The node is refused (docs/protocol.md §4); nothing was sent.
    #[error("refused: {0}")]
    Refused(Arc<str>),
    /// The queue to the node is full; nothing was sent.
    #[error("queue full")]
    Overloaded,
    /// The marker is not the expected one: the node restarted or lost its data.
    #[error("marker does not match")]
    Unmarked,
    /// The proposed token is too far ahead of the node's clock.
    #[error("token too far ahead of the node's clock")]
    ClockAhead,
    /// The node's clock stepped: it may have taken a lease for expired that is held.
    #[error("the node's clock stepped")]
    ClockStepped,
    /// The lease was released before its acquire arrived.
    #[error("released before it arrived")]
    Undone,
    /// Redis answered with an error: `BUSY`, `LOADING`, `READONLY`, `OOM`, a wrong type …
    #[error("redis: {0}")]
    Redis(Arc<str>),
    /// The answer is none that the script could have given.
    #[error("the answer makes no sense")]
    Nonsense,
    /// The call was dropped without an answer (shutdown).
    #[error("dropped")]
    Dropped,
}

impl NodeError {
    /// Whether the script may have run, or may run yet, so that it must be undone.
    pub fn may_have_run(&self) -> bool {
        matches!(
            self,
            Self::Timeout
                | Self::Connection(_)
                | Self::ClockStepped
                | Self::Redis(_)
                | Self::Nonsense
                | Self::Dropped
        )
    }
}
