//! What a node publishes: a connection of its own, there only while somebody listens.
//!
//! Callers say what they want; one task makes the node's subscriptions follow.
//! It holds the wanted and the confirmed state of each channel side by side and
//! sends the difference, so that many subscriptions become one command, quick
//! changes of mind cost nothing, and a new connection is nothing special: there
//! the difference is everything.
//!
//! The library's `PubSub` buffers without bound, never subscribes again and never
//! notices a half-open connection; its RESP3 push runs [`HintSink::hint`] as a
//! message is read, and that is used here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bb8_redis::redis::aio::MultiplexedConnection;
use bb8_redis::redis::{
    self, AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo,
    RedisError,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, MissedTickBehavior};

use super::target::{Backoff, ConnectError, Target, in_time};
use crate::node::{HintSink, NodeError};

/// Channels in one `SUBSCRIBE`.
const BATCH_MAX: usize = 512;

type Confirmation = oneshot::Sender<Result<(), NodeError>>;

pub(super) struct Hints {
    shared: Arc<Shared>,
    work: AbortHandle,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
    connected: AtomicBool,
    sink: OnceLock<Arc<dyn HintSink>>,
}

#[derive(Default)]
struct State {
    channels: HashMap<Arc<str>, Channel>,
    /// Channels to look at, in the order of their changes.
    changed: Vec<Arc<str>>,
    /// Why no connection can be made, while none can.
    down: Option<NodeError>,
}

#[derive(Default)]
struct Channel {
    wanted: bool,
    /// As the node has it. Taken back *before* `UNSUBSCRIBE` is sent: whoever subscribes meanwhile must not
    /// take the old confirmation for its own.
    confirmed: bool,
    /// The node let nobody subscribe, and is asked again with every ping.
    refused: bool,
    waiting: Vec<Confirmation>,
}

impl Shared {
    /// Forgets what nobody wants, and says whether anything is left: all of it is to be
    /// subscribed, since there is no connection.
    fn start_over(&self) -> bool {
        let mut state = self.state.lock();
        state.channels.retain(|_, channel| channel.wanted);
        state.changed = state.channels.keys().cloned().collect();
        if state.channels.is_empty() {
            // Nobody tries to connect from here on: whoever wants something next is told of that attempt, not
            // of one long ago, since nothing would tell it afterwards that there are hints.
            state.down = None;
        }
        !state.channels.is_empty()
    }

    /// There is no connection any more: answers whoever waits for a confirmation. What is
    /// wanted stays wanted.
    fn unconfirm_all(&self, error: &NodeError) {
        let mut state = self.state.lock();
        let mut waiting = Vec::new();
        for channel in state.channels.values_mut() {
            channel.confirmed = false;
            waiting.append(&mut channel.waiting);
        }
        drop(state);
        for confirmation in waiting {
            let _ = confirmation.send(Err(error.clone()));
        }
    }

    fn any_wanted(&self) -> bool {
        self.state.lock().channels.values().any(|channel| channel.wanted)
    }

    /// The node may allow by now what it refused.
    fn ask_again(&self) {
        let state = &mut *self.state.lock();
        let refused = state.channels.iter().filter(|(_, channel)| channel.refused);
        state.changed.extend(refused.map(|(name, _)| name.clone()));
    }
}

impl Hints {
    pub(super) fn new(address: String, target: Arc<Target>, ping_every: Duration, idle: Duration) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Notify::new(),
            connected: AtomicBool::new(false),
            sink: OnceLock::new(),
        });
        let work = Work { address, target, ping_every, idle, shared: shared.clone(), told: None };
        let work = tokio::spawn(work.run()).abort_handle();
        Self { shared, work }
    }

    /// The first sink stays.
    pub(super) fn listen(&self, sink: Arc<dyn HintSink>) {
        let _ = self.shared.sink.set(sink);
    }

    /// Wants `channel` from now on, also where the answer is an error: then it is subscribed
    /// as soon as the node is back, and [`HintSink::missed`] tells.
    pub(super) fn subscribe(&self, channel: Arc<str>) -> oneshot::Receiver<Result<(), NodeError>> {
        let (confirmation, confirmed) = oneshot::channel();
        let mut state = self.shared.state.lock();
        let down = state.down.clone();
        let entry = state.channels.entry(channel.clone()).or_default();
        entry.wanted = true;
        if entry.confirmed {
            let _ = confirmation.send(Ok(()));
            return confirmed;
        }
        match down {
            Some(error) => drop(confirmation.send(Err(error))),
            None => entry.waiting.push(confirmation),
        }
        state.changed.push(channel);
        drop(state);
        self.shared.changed.notify_one();
        confirmed
    }

    pub(super) fn unsubscribe(&self, channel: &str) {
        let mut state = self.shared.state.lock();
        let Some((name, _)) = state.channels.get_key_value(channel) else { return };
        let name = name.clone();
        if let Some(entry) = state.channels.get_mut(channel) {
            entry.wanted = false;
        }
        state.changed.push(name);
        drop(state);
        self.shared.changed.notify_one();
    }

    pub(super) fn is_connected(&self) -> bool {
        self.shared.connected.load(Ordering::Relaxed)
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        self.work.abort();
    }
}

struct Work {
    address: String,
    target: Arc<Target>,
    ping_every: Duration,
    idle: Duration,
    shared: Arc<Shared>,
    /// What the log has been told already of why there are no hints; none since there were.
    told: Option<Arc<str>>,
}

/// Why a connection ended.
enum End {
    /// Nobody listens any more.
    Idle,
    Lost(Arc<str>),
}

impl Work {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        // Messages may have been published while nobody was subscribed who wanted to be.
        let mut missed = false;
        loop {
            while !self.shared.start_over() {
                missed = false;
                self.shared.changed.notified().await;
            }
            let connection = match self.connect().await {
                Ok(connection) => connection,
                Err(error) => {
                    self.tell_once(&error.0);
                    let error = NodeError::Connection(error.0);
                    self.shared.state.lock().down = Some(error.clone());
                    self.shared.unconfirm_all(&error);
                    missed = true;
                    backoff.failed().await;
                    continue;
                }
            };
            self.shared.state.lock().down = None;
            self.shared.connected.store(true, Ordering::Relaxed);
            let since = Instant::now();
            let end = self.serve(connection, &mut missed).await;
            self.shared.connected.store(false, Ordering::Relaxed);
            match end {
                End::Idle => {
                    self.shared.unconfirm_all(&NodeError::Dropped);
                    // Who began to listen just then was not heard, and is subscribed with the next connection.
                    missed = true;
                }
                End::Lost(reason) => {
                    tracing::info!(node = self.address, %reason, "connection for hints lost");
                    self.shared.unconfirm_all(&NodeError::Connection(reason));
                    missed = true;
                    backoff.lost(since.elapsed()).await;
                }
            }
        }
    }

    async fn connect(&self) -> Result<HintConnection, ConnectError> {
        let deadline = Instant::now() + self.target.connect_timeout;
        let connecting = async {
            let (stream, _) = self.target.open(deadline).await?;
            let mut info = RedisConnectionInfo::default()
                .set_protocol(ProtocolVersion::RESP3)
                .set_lib_name("quorate", env!("CARGO_PKG_VERSION"));
            if let Some(username) = &self.target.username {
                info = info.set_username(username);
            }
            if let Some(password) = self.target.password().await? {
                info = info.set_password(password);
            }
            let gone = Arc::new(Notify::new());
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.target.connect_timeout))
                .set_response_timeout(Some(self.target.connect_timeout))
                .set_push_sender(push_to(self.shared.clone(), gone.clone()));
            let (connection, reader) = MultiplexedConnection::new_with_config(&info, stream, config)
                .await
                .map_err(|error| ConnectError(error.to_string().into()))?;
            Ok(HintConnection { connection, gone, reader: tokio::spawn(reader) })
        };
        in_time(deadline, connecting).await
    }

    /// Locks go on without hints, but waiters learn of a release late, and nothing else says so.
    fn tell_once(&mut self, why: &Arc<str>) {
        if self.told.as_ref() != Some(why) {
            tracing::warn!(node = self.address, error = %why, "no hints: waiters may learn of releases late");
            self.told = Some(Arc::clone(why));
        }
    }

    async fn serve(&mut self, mut hints: HintConnection, missed: &mut bool) -> End {
        let mut ping = tokio::time::interval(self.ping_every);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_wanted = Instant::now();
        loop {
            if let Err(error) = self.follow(&mut hints.connection, missed).await {
                return End::Lost(error.to_string().into());
            }
            if std::mem::take(missed)
                && let Some(sink) = self.shared.sink.get()
            {
                sink.missed();
            }
            tokio::select! {
                () = self.shared.changed.notified() => {}
                () = hints.gone.notified() => return End::Lost("closed by the node".into()),
                _ = ping.tick() => {
                    if self.shared.any_wanted() {
                        last_wanted = Instant::now();
                    } else if last_wanted.elapsed() >= self.idle {
                        return End::Idle;
                    }
                    self.shared.ask_again();
                    // A half-open connection delivers nothing and says nothing: it is asked.
                    if let Err(error) = hints.connection.send_packed_command(&redis::cmd("PING")).await {
                        return End::Lost(error.to_string().into());
                    }
                }
            }
        }
    }

    /// Brings the node's subscriptions to what is wanted.
    async fn follow(
        &mut self,
        connection: &mut MultiplexedConnection,
        missed: &mut bool,
    ) -> Result<(), RedisError> {
        loop {
            let (subscribe, unsubscribe) = self.difference();
            if subscribe.is_empty() && unsubscribe.is_empty() {
                return Ok(());
            }
            for batch in subscribe.chunks(BATCH_MAX) {
                let names: Vec<&str> = batch.iter().map(|name| &**name).collect();
                let outcome = match connection.subscribe(&names[..]).await {
                    Ok(()) => {
                        self.told = None;
                        Ok(())
                    }
                    Err(error) if is_refusal(&error) => {
                        // Not its text, in which a channel may be named.
                        let code = error.code().unwrap_or("ERR");
                        self.tell_once(&format!("SUBSCRIBE is refused: {code}").into());
                        Err(NodeError::Redis(error.to_string().into()))
                    }
                    Err(error) => return Err(error),
                };
                *missed |= self.settle(batch, &outcome);
            }
            for batch in unsubscribe.chunks(BATCH_MAX) {
                let names: Vec<&str> = batch.iter().map(|name| &**name).collect();
                match connection.unsubscribe(&names[..]).await {
                    Err(error) if !is_refusal(&error) => return Err(error),
                    _ => {}
                }
            }
        }
    }

    /// What has to be subscribed and unsubscribed, by the channels that changed.
    fn difference(&self) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let mut state = self.shared.state.lock();
        let (mut subscribe, mut unsubscribe) = (Vec::new(), Vec::new());
        for name in std::mem::take(&mut state.changed) {
            let Some(channel) = state.channels.get_mut(&name) else { continue };
            match (channel.wanted, channel.confirmed) {
                (true, false) => subscribe.push(name),
                (true, true) => {
                    for confirmation in channel.waiting.drain(..) {
                        let _ = confirmation.send(Ok(()));
                    }
                }
                (false, confirmed) => {
                    state.channels.remove(&name);
                    if confirmed {
                        unsubscribe.push(name);
                    }
                }
            }
        }
        (subscribe, unsubscribe)
    }

    /// Says whether any of these had been refused before.
    fn settle(&self, batch: &[Arc<str>], outcome: &Result<(), NodeError>) -> bool {
        let (mut state, mut late) = (self.shared.state.lock(), false);
        for name in batch {
            let Some(channel) = state.channels.get_mut(name) else { continue };
            channel.confirmed = outcome.is_ok();
            late |= std::mem::replace(&mut channel.refused, outcome.is_err()) && outcome.is_ok();
            for confirmation in channel.waiting.drain(..) {
                let _ = confirmation.send(outcome.clone());
            }
        }
        late
    }
}

/// The node refused the command; the connection is well.
fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

struct HintConnection {
    connection: MultiplexedConnection,
    /// Told by the reader when the connection has ended.
    gone: Arc<Notify>,
    reader: JoinHandle<()>,
}

impl Drop for HintConnection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// What is done with each push, on the task that reads it.
fn push_to(
    shared: Arc<Shared>,
    gone: Arc<Notify>,
) -> impl Fn(PushInfo) -> Result<(), std::convert::Infallible> + Send + Sync + 'static {
    move |push| {
        match push.kind {
            PushKind::Message => {
                if let [redis::Value::BulkString(channel), redis::Value::BulkString(message)] = &*push.data
                    && let (Ok(channel), Ok(message)) =
                        (std::str::from_utf8(channel), std::str::from_utf8(message))
                    && let Some(sink) = shared.sink.get()
                {
                    sink.hint(channel, message);
                }
            }
            PushKind::Disconnection => gone.notify_one(),
            _ => {}
        }
        Ok(())
    }
}
