//! Why a command did not do what it was asked to, and the exit status that says so.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use super::printable::Printable;

/// Exit statuses, part of the command line's contract.
pub mod exit {
    /// Not acquired in time.
    pub const NOT_ACQUIRED: u8 = 11;
    /// The lease is not held any more; a fencing token is stale.
    pub const LOST: u8 = 20;
    /// Wrong arguments (EX_USAGE).
    pub const USAGE: u8 = 64;
    /// No quorum of nodes, or no server (EX_SOFTWARE, as `etcdctl lock` and others have it).
    pub const UNAVAILABLE: u8 = 70;
    /// The API key is missing, unknown, or not enough (EX_NOPERM).
    pub const DENIED: u8 = 77;
    /// The command cannot be executed, as in a shell.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// The command cannot be found, as in a shell.
    pub const NOT_FOUND: u8 = 127;
}

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub enum Failure {
    /// Held by someone else all the time.
    NotAcquired(Box<Problem>),
    /// The lease is gone, or the token stale.
    Lost(Box<Problem>),
    /// The lease may not be held for longer, and ends by itself.
    AtLimit(Box<Problem>),
    /// The command line makes no sense.
    Usage(String),
    /// The server says that the request makes no sense.
    Invalid(Box<Problem>),
    /// The key does not allow it.
    Denied(Box<Problem>),
    /// The server answered that it cannot.
    Unavailable(Box<Problem>),
    /// No server answered.
    Unreachable {
        url: String,
        why: String,
        /// One had been reached, and the connection broke.
        cut: bool,
    },
    /// Something answered that is not Quorate.
    Nonsense,
}

impl Failure {
    pub fn status(&self) -> u8 {
        match self {
            Self::NotAcquired(_) => exit::NOT_ACQUIRED,
            Self::Lost(_) | Self::AtLimit(_) => exit::LOST,
            Self::Usage(_) | Self::Invalid(_) => exit::USAGE,
            Self::Denied(_) => exit::DENIED,
            Self::Unavailable(_) | Self::Unreachable { .. } | Self::Nonsense => exit::UNAVAILABLE,
        }
    }

    /// Whether the same may succeed a moment later.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Unavailable(problem) => problem.status >= 400,
            Self::Unreachable { .. } => true,
            _ => false,
        }
    }

    /// Whether to wait is to wait for the end of this. A wait with an end is one for a quorum, too, however
    /// short the longest one of the server is.
    pub(super) fn is_waited_for(&self, wait_ends: bool) -> bool {
        match self {
            Self::NotAcquired(_) => true,
            Self::Unavailable(problem) => wait_ends && problem.code == "quorum_unavailable",
            _ => false,
        }
    }

    pub(super) fn of(problem: Problem) -> Self {
        let problem = Box::new(problem);
        match (problem.status, problem.code.as_str()) {
            (_, "lock_held" | "semaphore_full" | "election_lost" | "too_many_waiters") => {
                Self::NotAcquired(problem)
            }
            (_, "lease_lost" | "stale_token") => Self::Lost(problem),
            (_, "hold_limit_reached") => Self::AtLimit(problem),
            (401 | 403, _) => Self::Denied(problem),
            // Of a proxy: Quorate has a code of its own for each.
            (408 | 425 | 429, code) if code.starts_with("http_") => Self::Unavailable(problem),
            (400..=499, _) => Self::Invalid(problem),
            _ => Self::Unavailable(problem),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAcquired(problem) => write!(f, "not acquired: {problem}"),
            Self::Lost(problem)
            | Self::AtLimit(problem)
            | Self::Invalid(problem)
            | Self::Denied(problem)
            | Self::Unavailable(problem) => problem.fmt(f),
            Self::Usage(why) => f.write_str(why),
            Self::Unreachable { url, why, .. } => write!(f, "no server at {url}: {why}"),
            Self::Nonsense => f.write_str("what answers there is not Quorate"),
        }
    }
}

/// What a server answers when it refuses (RFC 9457).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Problem {
    pub status: u16,
    pub code: String,
    pub title: String,
    pub detail: String,
    pub retry_after_ms: Option<u64>,
    pub errors: Vec<FieldError>,
    pub holder: Option<Value>,
}

/// A field that is wrong.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct FieldError {
    pub field: String,
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The detail of a request that is not valid is the first of its errors.
        if self.errors.is_empty() {
            f.write_str(if self.detail.is_empty() { &self.title } else { &self.detail })?;
        }
        for (i, error) in self.errors.iter().enumerate() {
            write!(f, "{}{} {}", if i == 0 { "" } else { "; " }, flag(&error.field), error.message)?;
        }
        let of_holder = |key: &str| self.holder.as_ref()?.get(key)?.as_str();
        if let Some(owner) = of_holder("owner").or_else(|| of_holder("candidate")) {
            write!(f, " (held by {})", Printable(owner))?;
        }
        write!(f, " [{}]", self.code)
    }
}

/// The flag that a field of a body comes from.
fn flag(field: &str) -> String {
    match field.strip_suffix("_ms") {
        // What is told of it counts in this unit.
        Some(duration) => format!("--{} (in ms)", duration.replace('_', "-")),
        None if field.starts_with("name") || field.is_empty() => field.to_owned(),
        None => format!("--{}", field.replace('_', "-")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrong_value_is_told_by_its_flag() {
        let wrong = json!({"code": "invalid_request", "errors": [
            {"field": "ttl_ms", "message": "must be from 100 to 300000"},
            {"field": "name", "message": "is too long"},
        ]});
        let problem: Problem = serde_json::from_value(wrong).unwrap();
        let told = "--ttl (in ms) must be from 100 to 300000; name is too long [invalid_request]";
        assert_eq!(problem.to_string(), told);
    }

    #[test]
    fn a_quorum_is_waited_for_to_the_end_of_a_wait_and_is_trouble_to_one_without() {
        let answered =
            |status, code: &str| Failure::of(Problem { status, code: code.to_owned(), ..Problem::default() });
        for (failure, with_end, without) in [
            (answered(409, "lock_held"), true, true),
            (answered(503, "quorum_unavailable"), true, false),
            (answered(503, "shutting_down"), false, false),
            (answered(502, "http_502"), false, false),
            (Failure::Unreachable { url: String::new(), why: String::new(), cut: true }, false, false),
        ] {
            assert_eq!(failure.is_waited_for(true), with_end, "{failure:?}");
            assert_eq!(failure.is_waited_for(false), without, "{failure:?}");
        }
    }
}
