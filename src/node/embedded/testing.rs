//! What tests, the simulator and the parity suite do to an embedded node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::keyspace::{Entry, Keyspace, Reply};
use super::{EmbeddedNode, deliver};
use crate::node::{Command, HintSink, Marker, NodeError, Value};

/// What was stored at a moment.
pub struct Snapshot(BTreeMap<u64, Vec<Entry>>);

impl EmbeddedNode {
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

impl Keyspace {
    /// All that is stored.
    fn snapshot(&self) -> Snapshot {
        Snapshot(self.buckets.clone())
    }

    /// Stores what was stored then, and nothing else.
    fn restore(&mut self, snapshot: &Snapshot) {
        self.buckets.clone_from(&snapshot.0);
    }

    /// Forgets every key.
    fn clear(&mut self) {
        self.buckets.clear();
    }

    pub(super) fn set_memory_full(&mut self, full: bool) {
        self.memory_full = full;
    }

    /// The keys that live, sorted.
    pub(super) fn keys(&self) -> Vec<String> {
        let now_ms = self.now_ms();
        let mut keys: Vec<_> = (self.buckets.values().flatten())
            .filter(|entry| !entry.expired(now_ms))
            .map(|entry| String::from_utf8_lossy(&entry.key).into_owned())
            .collect();
        keys.sort_unstable();
        keys
    }

    fn sinks(&self) -> Vec<Arc<dyn HintSink>> {
        self.listeners.iter().filter_map(|listener| listener.sink.clone()).collect()
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
