//! How the keys of a deployment are called at its nodes.

use std::sync::Arc;

use smallvec::smallvec;

use super::{Name, Scope};

/// How keys are called, below one prefix.
#[derive(Debug, Clone)]
pub struct Keys {
    root: Box<str>,
    marker: Box<str>,
    lock: Box<str>,
    election: Box<str>,
    semaphore: Box<str>,
    trial: Box<str>,
    register: Arc<[Box<str>; 5]>,
}

impl Keys {
    /// Keys that begin with `prefix` and a colon.
    pub fn new(prefix: &str) -> Self {
        let below = |kind: &str| -> Box<str> { format!("{prefix}:{kind}").into() };
        Self {
            root: below(""),
            marker: below("member"),
            lock: below("lock:"),
            election: below("election:"),
            semaphore: below("semaphore:"),
            // No semaphore can be called so. One for each server: nothing but its own trials is in the way.
            trial: format!("{prefix}:semaphore:./{:016x}", rand::random::<u64>()).into(),
            register: Arc::new(["node", "membership", "classes", "addresses", "looks"].map(below)),
        }
    }

    /// The marker of the node.
    pub fn marker(&self) -> &str {
        &self.marker
    }

    /// The semaphore on which a node is tried.
    pub fn trial(&self) -> &str {
        &self.trial
    }

    /// What else is stored of the membership: the marker of the version before, the register, the classes of leases,
    /// the addresses of members, and how often the node was looked at.
    pub fn register(&self) -> &[Box<str>; 5] {
        &self.register
    }

    /// What all keys begin with.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// What a lease covers, as far as the record under this key tells.
    pub fn scope_of(&self, key: &str) -> Option<Scope> {
        if key.starts_with(&*self.semaphore) {
            let (index, _slot) = key.rsplit_once('/')?;
            return Some(Scope::Slots(index.into()));
        }
        let is_record = key.starts_with(&*self.lock) || key.starts_with(&*self.election);
        is_record.then(|| Scope::Records(smallvec![key.into()]))
    }

    /// A lock's record; its fence too. Also the channel of its releases.
    pub fn lock(&self, name: &Name) -> String {
        [&*self.lock, name.as_str()].concat()
    }

    /// What every lock's key begins with.
    pub fn lock_prefix(&self) -> &str {
        &self.lock
    }

    /// An election's record and channel.
    pub fn election(&self, name: &Name) -> String {
        [&*self.election, name.as_str()].concat()
    }

    /// A semaphore's index and channel; its slots' records are this, `/` and the number.
    pub fn semaphore(&self, name: &Name) -> String {
        [&*self.semaphore, name.as_str()].concat()
    }
}
