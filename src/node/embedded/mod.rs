//! A node inside this process: the same scripts over a small keyspace of its own.
//!
//! `quorate dev` needs no Redis because of it, and the simulator runs the scripts
//! that production runs. To the layers above it is a Redis server like any other:
//! it has a `run_id`, it can lose its data, restart, run out of memory, and its
//! clock can be wrong. It adds no delay and loses no message; whoever wants those
//! wraps it.
//!
//! An [`EmbeddedNode`] is one server's connection to it. Several API servers
//! that share a node take a [`connect`](EmbeddedNode::connect)ion each.

mod keyspace;
mod lua;
#[cfg(test)]
mod tests;

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

pub use self::keyspace::Snapshot;
use self::keyspace::{Hint, Keyspace, Reply};
use self::lua::Engine;
use super::scripts::reply_of_one;
use super::{BoxFuture, Call, Command, HintSink, Identity, Marker, Node, NodeError, Value};
use crate::clock::Clock;

/// A connection to a node inside this process.
pub struct EmbeddedNode {
    server: Arc<Server>,
    id: u64,
    /// Which start of the server this connection was made to; a later one breaks it.
    start: AtomicU64,
    address: String,
}

/// The node itself, as a Redis process would be.
struct Server {
    clock: Arc<dyn Clock>,
    /// How wrong the node's wall clock is.
    offset_us: AtomicI64,
    connections: AtomicU64,
    machine: Mutex<Machine>,
}

struct Machine {
    engine: Engine,
    /// Shared with the engine's `redis.call`. Always locked after the machine.
    keyspace: Arc<Mutex<Keyspace>>,
    identity: Identity,
    starts: u64,
}

impl EmbeddedNode {
    /// A node without data. Its wall clock is that of `clock` until a test turns it.
    ///
    /// # Panics
    /// When a script does not compile, which the tests rule out.
    pub fn new(run_id: &str, clock: Arc<dyn Clock>) -> Self {
        let keyspace = Arc::new(Mutex::new(Keyspace::new()));
        let engine = Engine::new(keyspace.clone()).expect("the scripts compile");
        let identity = Identity {
            run_id: run_id.to_owned(),
            role: "master".to_owned(),
            eviction: "noeviction".to_owned(),
            version: "7.0.0".to_owned(),
        };
        let machine = Mutex::new(Machine { engine, keyspace, identity, starts: 0 });
        let server = Server { clock, offset_us: 0.into(), connections: 1.into(), machine };
        Self { server: Arc::new(server), id: 0, start: 0.into(), address: "embedded".to_owned() }
    }

    /// Gives it another address than `embedded`.
    #[must_use]
    pub fn with_address(mut self, address: &str) -> Self {
        address.clone_into(&mut self.address);
        self
    }

    /// Another connection to the same node, with subscriptions of its own.
    #[must_use]
    pub fn connect(&self) -> Self {
        Self {
            server: self.server.clone(),
            id: self.server.connections.fetch_add(1, Ordering::Relaxed),
            start: self.machine().starts.into(),
            address: self.address.clone(),
        }
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.server.machine.lock()
    }

    /// The keyspace at this moment.
    fn at_now<T>(&self, look: impl FnOnce(&mut Keyspace) -> T) -> T {
        let machine = self.machine();
        let mut keyspace = machine.keyspace.lock();
        keyspace.begin(self.now_us());
        look(&mut keyspace)
    }

    fn now_us(&self) -> u64 {
        let offset_us = self.server.offset_us.load(Ordering::Relaxed);
        self.server.clock.wall_us().saturating_add_signed(offset_us)
    }

    fn run(&self, command: &Command, marker: Option<&Marker>) -> (Result<Value, NodeError>, Vec<Hint>) {
        let machine = self.machine();
        // The call that finds the connection broken fails; it is made anew for the next.
        if self.start.swap(machine.starts, Ordering::Relaxed) != machine.starts {
            return (Err(NodeError::Connection("the node has restarted".into())), Vec::new());
        }
        machine.keyspace.lock().begin(self.now_us());
        let (keys, args) = command.invocation(marker);
        let result = machine.engine.run(command.script, keys, args);
        let hints = machine.keyspace.lock().take_hints();
        (result.and_then(|reply| reply_of_one(command.script, reply)), hints)
    }
}

/// Delivers what a script published. No lock is held: a sink may call the node.
fn deliver(hints: Vec<Hint>) {
    for (sink, channel, message) in hints {
        sink.hint(&channel, &message);
    }
}

/// What tests, the simulator and the parity suite do to a node.
impl EmbeddedNode {
    /// Runs a command as a submitted one runs, and returns what its script replies, in the form
    /// {code, clock, …}.
    ///
    /// # Errors
    /// [`NodeError::Redis`] with the message; [`NodeError::Connection`] after a restart.
    pub fn eval(&self, command: &Command, marker: Option<&Marker>) -> Result<Value, NodeError> {
        let (result, hints) = self.run(command, marker);
        deliver(hints);
        result
    }

    /// Runs one command, as redis-cli would. Only those that the scripts use are known.
    ///
    /// # Errors
    /// [`NodeError::Redis`] with the message.
    pub fn command(&self, words: &[&str]) -> Result<Value, NodeError> {
        let words: Vec<_> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let (reply, hints) = self.at_now(|keyspace| (keyspace.execute(&words), keyspace.take_hints()));
        deliver(hints);
        value(reply)
    }

    /// Loses all data, as FLUSHALL does; `run_id` stays.
    pub fn flush(&self) {
        self.at_now(Keyspace::clear);
    }

    /// Restarts as `run_id`, with its data (a persistent node) or without. Connections
    /// break: on each, one call fails (or [`Node::identify`] comes first), then it is made anew.
    pub fn restart(&self, run_id: &str, keep_data: bool) {
        let mut machine = self.machine();
        machine.starts += 1;
        run_id.clone_into(&mut machine.identity.run_id);
        let sinks = {
            let mut keyspace = machine.keyspace.lock();
            if !keep_data {
                keyspace.clear();
            }
            keyspace.sinks()
        };
        drop(machine);
        for sink in sinks {
            sink.missed();
        }
    }

    /// All that is stored now.
    pub fn snapshot(&self) -> Snapshot {
        self.at_now(|keyspace| keyspace.snapshot())
    }

    /// Stores what it stored then, and nothing else.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.at_now(|keyspace| keyspace.restore(snapshot));
    }

    /// Sets how wrong the node's wall clock is from now on, µs.
    pub fn set_clock_offset_us(&self, offset_us: i64) {
        self.server.offset_us.store(offset_us, Ordering::Relaxed);
    }

    /// Whether `maxmemory` is reached.
    pub fn set_memory_full(&self, full: bool) {
        self.at_now(|keyspace| keyspace.set_memory_full(full));
    }

    /// Sets the `maxmemory-policy` that [`Node::identify`] reports.
    pub fn set_eviction(&self, policy: &str) {
        policy.clone_into(&mut self.machine().identity.eviction);
    }

    /// Sets the role that [`Node::identify`] reports, `master` or `slave`.
    pub fn set_role(&self, role: &str) {
        role.clone_into(&mut self.machine().identity.role);
    }

    /// The text stored at `key`.
    pub fn get_raw(&self, key: &str) -> Option<String> {
        match self.command(&["GET", key]) {
            Ok(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<String> {
        self.at_now(|keyspace| keyspace.keys())
    }
}

fn value(reply: Reply) -> Result<Value, NodeError> {
    Ok(match reply {
        Reply::Nil => Value::Nil,
        Reply::Int(number) => Value::Int(number),
        Reply::Status(text) => Value::Text(text.to_owned()),
        Reply::Bulk(text) => Value::Text(String::from_utf8_lossy(&text).into_owned()),
        Reply::List(list) => Value::List(list.into_iter().map(value).collect::<Result<_, _>>()?),
        Reply::Error(text) => return Err(NodeError::Redis((&*text).into())),
    })
}

impl Node for EmbeddedNode {
    fn submit(&self, call: Call) {
        let (result, hints) = self.run(&call.command, call.marker.as_deref());
        call.reply.send(result);
        deliver(hints);
    }

    fn identify(&self) -> BoxFuture<Result<Identity, NodeError>> {
        let machine = self.machine();
        self.start.store(machine.starts, Ordering::Relaxed);
        Box::pin(ready(Ok(machine.identity.clone())))
    }

    fn subscribe(&self, channel: Arc<str>) -> BoxFuture<Result<(), NodeError>> {
        self.at_now(|keyspace| keyspace.subscribe(self.id, channel));
        Box::pin(ready(Ok(())))
    }

    fn unsubscribe(&self, channel: &str) {
        self.at_now(|keyspace| keyspace.unsubscribe(self.id, channel));
    }

    fn listen(&self, sink: Arc<dyn HintSink>) {
        drop(self.at_now(|keyspace| keyspace.listen(self.id, sink)));
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn connections(&self) -> (usize, usize) {
        (1, usize::from(self.at_now(|keyspace| keyspace.is_subscribed(self.id))))
    }
}

impl Drop for EmbeddedNode {
    fn drop(&mut self) {
        drop(self.at_now(|keyspace| keyspace.leave(self.id)));
    }
}
