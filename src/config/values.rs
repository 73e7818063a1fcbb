//! Types of settings: durations, addresses, URLs, which are read the same from all sources.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

/// A duration as settings and flags spell it: `3s`, `250ms`, `1m 30s`, or plain milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// What can be added to any time that there is. Whoever means "for ever" has come far enough.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let duration = match text.parse::<u64>() {
            Ok(ms) => Duration::from_millis(ms),
            Err(_) => humantime::parse_duration(text)
                .map_err(|_| format!("{text:?} is no duration such as 3s or 250ms"))?,
        };
        if duration > LONGEST {
            return Err(format!("{text:?} is longer than a hundred years"));
        }
        if duration.subsec_nanos() % 1_000_000 != 0 {
            return Err(format!("{text:?} is no whole number of milliseconds"));
        }
        Ok(Self(duration))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: u64 = 86_400;
        match self.0.as_secs() {
            // humantime counts years of 365.25 days.
            seconds if seconds >= DAY && self.0 == Duration::from_secs(seconds / DAY * DAY) => {
                write!(f, "{}days", seconds / DAY)
            }
            _ => humantime::format_duration(self.0).fmt(f),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A truth value as settings spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Switch(pub bool);

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(Self(true)),
            "false" | "no" | "off" | "0" => Ok(Self(false)),
            _ => Err(format!("{text:?} is neither true nor false")),
        }
    }
}

/// Where to listen: an IP address and a port, or `localhost` and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen(pub SocketAddr);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // No look-up of other names: which address is bound must not depend on a resolver.
        let numeric = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        numeric.parse().map(Self).map_err(|_| {
            format!("{text:?} is no address and port such as 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080")
        })
    }
}

impl Serialize for Listen {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        clap::ValueEnum::from_str(text, false).map_err(|_| format!("{text:?} is neither text nor json"))
    }
}

/// A node's URL as it was given. Not looked at until [`Config::new`], because the errors of
/// flags and files repeat the text, and it may hold a password.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Secret(pub(super) String);

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The URL of a node. Shown without its password by everything but [`RedisUrl::expose`].
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(url::Url);

impl RedisUrl {
    /// The whole URL, password included: for the driver only.
    pub fn expose(&self) -> &str {
        self.0.as_str()
    }

    /// Whether the node is asked over TLS.
    pub fn is_encrypted(&self) -> bool {
        self.0.scheme() == "rediss"
    }
}

/// Redis counts its databases by such a number, and has sixteen of them unless told otherwise.
fn is_database(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<i32>().is_ok()
}

fn no_such_database() -> String {
    format!("the database is no number from 0 to {}", i32::MAX)
}

impl FromStr for RedisUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The text may hold a password, so that no message repeats it.
        let url = match url::Url::parse(text.trim()) {
            Ok(url) if matches!(url.scheme(), "redis" | "rediss" | "unix") => url,
            // `node-1:6379` passes for a URL whose scheme is `node-1`.
            Ok(_) | Err(url::ParseError::RelativeUrlWithoutBase) => {
                return Err("must begin with redis://, rediss:// or unix://".to_owned());
            }
            Err(cause) => return Err(format!("not a URL: {cause}")),
        };
        // Other clients take the database or the password there, and the driver passes over what it does
        // not know: votes would be asked of database 0, which may be another deployment's.
        let known: &[&str] = if url.scheme() == "unix" { &["db", "user", "pass"] } else { &[] };
        let unheeded = url.query_pairs().any(|(parameter, _)| !known.contains(&&*parameter));
        let path = url.path().trim_matches('/');
        let no_database = match url.scheme() {
            "unix" => url.query_pairs().any(|(parameter, value)| parameter == "db" && !is_database(&value)),
            _ => !path.is_empty() && !is_database(path),
        };
        match url.scheme() {
            "unix" if unheeded => Err("after the ? may stand only db, user and pass".to_owned()),
            _ if unheeded => Err(
                "nothing may follow a ? (in a password it is %3F): the database is the path, redis://HOST/2"
                    .to_owned(),
            ),
            _ if url.fragment().is_some() => {
                Err("nothing may follow a # (in a password it is %23): certificates are always verified"
                    .to_owned())
            }
            "unix" if url.path().len() < 2 => Err("the URL names no socket".to_owned()),
            "unix" if no_database => Err(no_such_database()),
            "unix" => Ok(Self(url)),
            _ if url.host_str().is_none_or(str::is_empty) => Err("the URL names no host".to_owned()),
            _ if !path.bytes().all(|byte| byte == b'/' || byte.is_ascii_digit()) => {
                Err("after the host comes the number of a database, if anything (a / in a password is %2F)"
                    .to_owned())
            }
            _ if no_database => Err(no_such_database()),
            _ => Ok(Self(url)),
        }
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = &self.0;
        write!(f, "{}://", url.scheme())?;
        if let Some(host) = url.host_str() {
            f.write_str(host)?;
        }
        if let Some(port) = url.port() {
            write!(f, ":{port}")?;
        }
        if url.path() != "/" {
            f.write_str(url.path())?;
        }
        Ok(())
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}
