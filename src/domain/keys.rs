//! How the keys of a deployment are called at its nodes.

use std::sync::Arc;

use smallvec::smallvec;

use super::{Name, Resource, Scope};

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

    /// What the key of every such thing begins with; its name follows.
    pub fn base(&self, resource: Resource) -> &str {
        match resource {
            Resource::Lock => &self.lock,
            Resource::Semaphore => &self.semaphore,
            Resource::Election => &self.election,
        }
    }

    /// The record or index of `name`; also where its changes are published.
    pub fn of(&self, resource: Resource, name: &Name) -> String {
        [self.base(resource), name.as_str()].concat()
    }

    /// A lock's record; its fence too. Also the channel of its releases.
    pub fn lock(&self, name: &Name) -> String {
        self.of(Resource::Lock, name)
    }

    /// An election's record and channel.
    pub fn election(&self, name: &Name) -> String {
        self.of(Resource::Election, name)
    }

    /// A semaphore's index and channel; its slots' records are this, `/` and the number.
    pub fn semaphore(&self, name: &Name) -> String {
        self.of(Resource::Semaphore, name)
    }

    /// The record of a semaphore's slot.
    pub fn slot(index: &str, slot: u32) -> String {
        format!("{index}/{slot}")
    }

    /// The name that a record belongs to, of what stands behind [`Keys::base`] in its key, and of a semaphore the
    /// slot. No name has a slash in it.
    pub fn name_and_slot(record: &str) -> Option<(&str, u32)> {
        match record.split_once('/') {
            Some((name, slot)) => Some((name, slot.parse().ok()?)),
            None => Some((record, 0)),
        }
    }
}
