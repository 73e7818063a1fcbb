//! The terms by which a lease is asked for and extended.

use std::fmt;

use super::Scope;

/// The terms of an acquire.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// What the lease shall cover.
    pub scope: &'a Scope,
    /// Of a semaphore: which slots.
    pub slots: &'a [u32],
    /// Life, ms.
    pub ttl_ms: u64,
    /// The caller's request id.
    pub request: Option<&'a str>,
    /// Stored with the lease.
    pub data: &'a str,
    /// Only see who holds it.
    pub look_only: bool,
}

/// How an extension sets the remaining time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// To this, ms.
    Ttl(u64),
    /// To the lease's own ttl.
    Own,
    /// The same, in the second fencing round: a node where the token may have been issued to somebody
    /// else since does not count.
    Raise,
    /// Leave it.
    Keep,
}

/// By what an attempt has the lease of a request id. A retry that gets it claims it, too, and from then on an
/// attempt that is undone takes it away only where no other claim is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim(u32);

impl Claim {
    /// The attempt that the nodes granted it to.
    pub const FIRST: Self = Self(0);

    /// A retry's, from random bits. One stands for claims that are not remembered any more.
    pub fn from_bits(bits: u128) -> Self {
        Self((bits as u32).max(2))
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What an extension says of who has the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// This one has it from now on, too.
    Joins(Claim),
    /// This one has it still, and those who had it before are taken to have left.
    Outlasts(Claim),
}
