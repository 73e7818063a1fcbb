//! A node inside this process: the same scripts over a small keyspace of its own.
//!
//! `quorate dev` needs no Redis because of it, and the simulator runs the scripts
//! that production runs. To the layers above it is a Redis server like any other:
//! it has a `run_id`, it can lose its data, restart, run out of memory, and its
//! clock can be wrong. It adds no delay and loses no message; whoever wants those
//! wraps it.
//!
//! An [`EmbeddedNode`] is one server's connection to it. Several API servers
//! that share a node take a [`connect`](EmbeddedNode::connect)ion each. What tests do to it stands in `testing.rs`.

mod keyspace;
mod lua;
mod testing;
#[cfg(test)]
mod tests;

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use self::keyspace::{Hint, Keyspace};
use self::lua::Engine;
pub use self::testing::Snapshot;
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
