//! The terms by which a lease is asked for and extended.

use super::{Scope, Standing};

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
    /// What that request asks for, as `limit=5,permits=2`.
    pub params: &'a str,
    /// Stored with the lease.
    pub data: &'a str,
    /// Only see who holds it.
    pub look_only: bool,
    /// Of a semaphore: how many permits there are.
    pub limit: u32,
    /// Who waits stands in the queue of servers.
    pub standing: Option<Standing>,
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
