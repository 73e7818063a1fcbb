//! The terms by which a lease is asked for and extended.

use serde::{Deserialize, Serialize};

use super::{Invalid, Scope, Standing, named};

named! {
    /// What a lease excludes.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Mode {
        /// All others of its name.
        #[default]
        Exclusive = "exclusive",
        /// Exclusive ones.
        Shared = "shared",
    }
}

impl Mode {
    /// Reads its name.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::from_name(text).ok_or(Invalid::new("must be exclusive or shared"))
    }

    /// As a record has it.
    pub fn letter(self) -> &'static str {
        if self == Self::Shared { "s" } else { "x" }
    }

    /// Whether it is what is meant where nothing is said.
    pub fn is_exclusive(&self) -> bool {
        *self == Self::Exclusive
    }
}

/// The terms of an acquire.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// What the lease shall cover.
    pub scope: &'a Scope,
    /// Of a semaphore: which slots.
    pub slots: &'a [u32],
    /// What it excludes.
    pub mode: Mode,
    /// Life, ms.
    pub ttl_ms: u64,
    /// Extensions reach no further than this from the grant on, ms; 0 = there is no such limit.
    pub max_hold_ms: u64,
    /// How long the name stays taken after the lease has expired, ms.
    pub lock_delay_ms: u64,
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
