//! A node that is a Redis server.
//!
//! A call goes [`RedisNode::submit`](Node::submit) → `queue` → `pipe` → the redis crate → socket
//! and back; `run` says what several calls look like as one command. Hints have a connection of
//! their own (`hints`). `target` opens sockets, `greet` makes a connection ready.
//!
//! One connection per node carries calls: Redis runs scripts on one core, which a pipelined
//! connection keeps busy, and the calls of a lease are in order by themselves.

mod greet;
mod hints;
mod pipe;
mod queue;
mod run;
mod target;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use self::hints::Hints;
use self::pipe::{Pipe, RUNS_MAX};
use self::queue::{Job, Queue};
use self::target::{Backoff, Target};
use super::{BoxFuture, Call, HintSink, Identity, Node, NodeError};

/// How to treat a node. Every duration is a limit that the caller chose; none is left to a library.
#[derive(Clone)]
pub struct RedisOptions {
    /// A batch of calls without an answer for this long has timed out. Default 250 ms.
    pub node_timeout: Duration,
    /// Limit of connecting, from the name to the last script loaded. Default 500 ms.
    pub connect_timeout: Duration,
    /// Calls without an answer, waiting or sent, beyond which there is no more room. Default 16,384.
    pub queue_len: usize,
    /// Holds the password where the URL has none. Read for every connection, so that a new one takes effect.
    pub password_file: Option<PathBuf>,
    /// How often the connection for hints is asked whether it is alive. Default 1 s.
    pub hints_ping_every: Duration,
    /// How long it stays open without subscriptions. Default 10 s.
    pub hints_idle: Duration,
    /// Certificates (PEM) to trust for `rediss://`, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Certificate and key (PEM) to show to a `rediss://` node that asks for one.
    pub identity_files: Option<(PathBuf, PathBuf)>,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            node_timeout: Duration::from_millis(250),
            connect_timeout: Duration::from_millis(500),
            queue_len: 16_384,
            hints_ping_every: Duration::from_secs(1),
            hints_idle: Duration::from_secs(10),
            password_file: None,
            ca_file: None,
            identity_files: None,
        }
    }
}

impl RedisOptions {
    fn check(&self) -> Result<(), ConfigError> {
        let sane = Duration::from_millis(1)..=Duration::from_secs(3600);
        for (name, duration) in [
            ("node_timeout", self.node_timeout),
            ("connect_timeout", self.connect_timeout),
            ("hints_ping_every", self.hints_ping_every),
            ("hints_idle", self.hints_idle),
        ] {
            if !sane.contains(&duration) {
                return Err(ConfigError(format!("{name} must be between 1 ms and 1 h")));
            }
        }
        if self.queue_len == 0 {
            return Err(ConfigError("queue_len must not be 0".into()));
        }
        Ok(())
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("node_timeout", &self.node_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("queue_len", &self.queue_len)
            .field("hints_ping_every", &self.hints_ping_every)
            .field("hints_idle", &self.hints_idle)
            .field("password_file", &self.password_file)
            .field("ca_file", &self.ca_file)
            .field("identity_files", &self.identity_files)
            .finish()
    }
}

/// What is wrong with a URL or the options beside it. Never says the URL, which may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// A driver of one Redis server.
pub struct RedisNode {
    address: String,
    queue: Arc<Queue>,
    generation: Arc<AtomicU64>,
    work: AbortHandle,
    hints: Hints,
}

impl RedisNode {
    /// Begins to connect in the background, and never ceases to.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(url: &str, options: RedisOptions) -> Result<Arc<Self>, ConfigError> {
        options.check()?;
        let target = Arc::new(Target::read(url, &options)?);
        let address = target.address();
        let queue =
            Arc::new(Queue::new(options.queue_len, NodeError::Connection("not connected yet".into())));
        let generation = Arc::new(AtomicU64::new(0));
        let work = Work {
            address: address.clone(),
            target: target.clone(),
            queue: queue.clone(),
            generation: generation.clone(),
            node_timeout: options.node_timeout,
            former: Vec::new(),
        };
        let work = tokio::spawn(work.run()).abort_handle();
        let hints = Hints::new(address.clone(), target, options.hints_ping_every, options.hints_idle);
        Ok(Arc::new(Self { address, queue, generation, work, hints }))
    }

    /// How many connections for calls were made so far.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

impl Node for RedisNode {
    fn submit(&self, call: Call) {
        self.queue.push(Job::Call(call));
    }

    fn identify(&self) -> BoxFuture<Result<Identity, NodeError>> {
        let (to, identity) = oneshot::channel();
        self.queue.push(Job::Identify(to));
        Box::pin(async move { identity.await.unwrap_or(Err(NodeError::Dropped)) })
    }

    /// Resolves once the node has confirmed. An error means that there will be no hints for
    /// now; the channel stays wanted until [`Node::unsubscribe`], is subscribed as soon as the
    /// node is back, and [`HintSink::missed`] is called then.
    fn subscribe(&self, channel: Arc<str>) -> BoxFuture<Result<(), NodeError>> {
        let confirmed = self.hints.subscribe(channel);
        Box::pin(async move { confirmed.await.unwrap_or(Err(NodeError::Dropped)) })
    }

    fn unsubscribe(&self, channel: &str) {
        self.hints.unsubscribe(channel);
    }

    fn listen(&self, sink: Arc<dyn HintSink>) {
        self.hints.listen(sink);
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn is_to_be_tried(&self) -> bool {
        true
    }

    fn connection(&self) -> u64 {
        self.generation()
    }

    fn connections(&self) -> (usize, usize) {
        (usize::from(self.queue.is_open()), usize::from(self.hints.is_connected()))
    }
}

impl Drop for RedisNode {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The task of a node.
struct Work {
    address: String,
    target: Arc<Target>,
    queue: Arc<Queue>,
    generation: Arc<AtomicU64>,
    node_timeout: Duration,
    former: Vec<String>,
}

/// A node that restarted more often while calls were on their way has other troubles.
const FORMER_MAX: usize = 8;

impl Work {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut run_id = String::new();
        // Told once each, not once an attempt.
        let mut told: Option<Arc<str>> = None;
        loop {
            let (connection, identity) = match greet::connect(&self.target, RUNS_MAX).await {
                Ok(ready) => ready,
                Err(error) => {
                    if told.as_ref() != Some(&error.0) {
                        tracing::warn!(node = self.address, error = %error, "cannot connect");
                        told = Some(error.0.clone());
                    }
                    self.queue.shut(NodeError::Connection(error.0));
                    backoff.failed().await;
                    continue;
                }
            };
            told = None;
            let since = Instant::now();
            if run_id != identity.run_id {
                let former = std::mem::replace(&mut run_id, identity.run_id.clone());
                self.former.retain(|former| *former != run_id);
                if !former.is_empty() {
                    self.former.push(former);
                }
                if self.former.len() > FORMER_MAX {
                    self.former.remove(0);
                }
            }
            tracing::info!(node = self.address, run_id, version = identity.version, "connected");
            self.generation.fetch_add(1, Ordering::AcqRel);
            self.queue.open();
            let reason = Pipe::new(connection, &self.queue, &self.former, self.node_timeout).run().await;
            tracing::warn!(node = self.address, %reason, "connection lost");
            backoff.lost(since.elapsed()).await;
        }
    }
}
