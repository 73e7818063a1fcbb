//! What a lease is asked for, how, and what comes of it: URLs and bodies of the API.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Failure;
use crate::domain::Name;

/// What a lease is asked for, as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Lock(String),
    /// Several locks, all or nothing.
    Multilock(Vec<String>),
    Semaphore {
        name: String,
        limit: u32,
        permits: u32,
    },
    Election {
        name: String,
        candidate: String,
        value: Option<String>,
    },
}

impl Target {
    /// Checks the names, so that each is a path segment as it stands.
    pub fn check(&self) -> Result<(), Failure> {
        let names = match self {
            Self::Lock(name) | Self::Semaphore { name, .. } | Self::Election { name, .. } => {
                std::slice::from_ref(name)
            }
            Self::Multilock(names) => names,
        };
        names.iter().try_for_each(|name| check_name(name))
    }

    fn path(&self) -> String {
        match self {
            Self::Lock(name) => format!("v1/locks/{name}"),
            Self::Multilock(_) => "v1/multilocks".to_owned(),
            Self::Semaphore { name, .. } => format!("v1/semaphores/{name}"),
            Self::Election { name, .. } => format!("v1/elections/{name}"),
        }
    }

    pub(super) fn acquire_path(&self) -> String {
        let verb = if matches!(self, Self::Election { .. }) { "campaign" } else { "acquire" };
        format!("{}/{verb}", self.path())
    }

    pub fn extend_path(&self) -> String {
        format!("{}/extend", self.path())
    }

    pub fn release_path(&self) -> String {
        let verb = if matches!(self, Self::Election { .. }) { "resign" } else { "release" };
        format!("{}/{verb}", self.path())
    }

    /// What every body for this target has.
    pub fn body(&self) -> Map<String, Value> {
        match self {
            Self::Multilock(names) => Map::from_iter([("names".to_owned(), json!(names))]),
            _ => Map::new(),
        }
    }

    pub(super) fn acquire_body(&self) -> Map<String, Value> {
        let mut body = self.body();
        match self {
            Self::Lock(_) | Self::Multilock(_) => {}
            Self::Semaphore { limit, permits, .. } => {
                body.insert("limit".to_owned(), json!(limit));
                body.insert("permits".to_owned(), json!(permits));
            }
            Self::Election { candidate, value, .. } => {
                body.insert("candidate".to_owned(), json!(candidate));
                if let Some(value) = value {
                    body.insert("value".to_owned(), json!(value));
                }
            }
        }
        body
    }
}

/// Checks that `name` may stand in a path.
pub fn check_name(name: &str) -> Result<(), Failure> {
    Name::new(name).map(drop).map_err(|why| Failure::Usage(format!("the name {name:?} {why}")))
}

/// How a lease is asked for.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// Its life without extension; the server's default without.
    pub ttl: Option<Duration>,
    /// How long to wait; as long as it takes without.
    pub wait: Option<Duration>,
    /// Of a lock: beside other shared leases.
    pub shared: bool,
    /// However often it is extended, it ends so long after it was acquired.
    pub max_hold: Option<Duration>,
    pub owner: Option<String>,
    pub metadata: Vec<(String, String)>,
    /// Makes a retry safe; one is made up without.
    pub request_id: Option<String>,
}

/// A lease, as far as a client acts on it.
#[derive(Debug, Clone, Deserialize)]
pub struct Lease {
    pub lease_id: String,
    /// The fencing token; several locks have one each.
    pub fencing_token: Option<u64>,
    /// One for each of several locks.
    pub fencing_tokens: Option<Map<String, Value>>,
    pub ttl_ms: u64,
    /// What was left of it when the answer was written.
    pub validity_ms: u64,
    /// How long the server let the request wait.
    pub waited_ms: u64,
}

/// A lease that was granted.
#[derive(Debug, Clone)]
pub struct Grant {
    pub lease: Lease,
    /// As the server said it.
    pub answer: Value,
    /// Until when it may be relied on, by this machine's monotonic clock.
    pub valid_until: Instant,
    /// Whether the answer belongs to an attempt before the last one, so that
    /// `valid_until` deserves to be made sure of.
    pub retried: bool,
}

pub(super) fn read_lease(answer: &Value) -> Result<Lease, Failure> {
    Lease::deserialize(answer).map_err(|_| Failure::Nonsense)
}
