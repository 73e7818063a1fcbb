//! The primitives, and how nodes stood towards one of them: plain data of every layer.

use super::{Invalid, named};

named! {
    /// The primitives, as metrics label them.
    pub enum Primitive {
        /// An exclusive lock.
        Lock = "lock",
        /// Several locks under one lease.
        Multilock = "multilock",
        /// A counting semaphore.
        Semaphore = "semaphore",
        /// Leader election.
        Election = "election",
    }
}

impl Primitive {
    /// The one of a label.
    ///
    /// # Errors
    /// When there is none.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        Self::from_name(name).ok_or(Invalid::new("must be lock, multilock, semaphore or election"))
    }
}

/// What one name may be. A lock, a semaphore and an election of the same name are three different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// A lock; a multilock has several.
    Lock,
    /// A semaphore.
    Semaphore,
    /// An election.
    Election,
}

impl From<Resource> for Primitive {
    fn from(resource: Resource) -> Self {
        match resource {
            Resource::Lock => Self::Lock,
            Resource::Semaphore => Self::Semaphore,
            Resource::Election => Self::Election,
        }
    }
}

/// How the nodes stood, for people: `{total, quorum, granted, held, failed}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Configured nodes.
    pub total: u32,
    /// How many make a quorum.
    pub quorum: u32,
    /// Granted, matched or released here.
    pub granted: u32,
    /// Held by another lease.
    pub held: u32,
    /// Abstained, or did not answer.
    pub failed: u32,
}
