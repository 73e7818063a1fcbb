//! One [`Config`], where it comes from, and what every setting means.
//!
//! A setting comes from a flag, from the environment (`QUORATE_…`) or from a TOML
//! file, the first of these that names it; else it has its default. All three
//! sources go through the same parser, so `"3s"` means the same everywhere.
//!
//! [`Settings`] states each name, help text and default once, for clap, for figment and for
//! the file that `quorate config` prints. [`Config`] holds the checked values: nothing after
//! [`Config::new`] has to ask whether one makes sense.

mod file;
mod settings;
mod values;

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::file::commented_file;
pub use self::settings::Settings;
pub use self::values::{Listen, LogFormat, RedisUrl, Secret, Span, Switch};
use crate::domain::{Name, TTL_MS_MAX, password_of};

/// What the environment variables of all settings begin with.
pub const ENV_PREFIX: &str = "QUORATE_";

/// More nodes than this make every round slower and nothing safer.
pub const NODES_MAX: usize = 31;

/// The shortest life of a lease, which is what a `ttl_ms` may be at least.
pub const TTL_MIN: Duration = Duration::from_millis(100);

/// What `--max-ttl` may be at most.
const TTL_MAX_MAX: Duration = Duration::from_millis(TTL_MS_MAX);

/// What the process is for, as far as checking the settings is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Embedded nodes for trying things out.
    Dev {
        nodes: usize,
    },
    Serve,
    /// Marks the nodes of a new deployment.
    Init,
}

/// What holds: the settings, and what some of them stand for. Made by [`Config::new`] only, so that it is always valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    settings: Settings,
    /// Real nodes; none for `dev`.
    pub redis: Vec<RedisUrl>,
    /// Embedded nodes; 0 but for `dev`.
    pub embedded_nodes: usize,
    /// Certificate and key to show to `rediss://`.
    pub redis_identity: Option<(PathBuf, PathBuf)>,
    /// HTTPS, where wanted.
    pub tls: Option<TlsFiles>,
    /// URL to send traces to.
    pub otlp_endpoint: Option<url::Url>,
}

impl Deref for Config {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

/// The files of HTTPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Authorities for clients.
    pub client_ca: Option<PathBuf>,
}

/// Why there is no [`Config`].
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that a setting names cannot be read.
    #[error("cannot read {}: {cause}", .path.display())]
    File {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    /// A value cannot be, or cannot be read, or a name is unknown: all that are wrong.
    #[error("{0}")]
    Value(String),
}

impl Config {
    /// Fills in the defaults, reads the files that hold nodes and passwords, and checks it all.
    ///
    /// # Errors
    /// Names every value that cannot be, not just the first.
    pub fn new(settings: Settings, role: Role) -> Result<Self, ConfigError> {
        let (redis, embedded_nodes) = match role {
            Role::Dev { nodes } => (Vec::new(), nodes),
            Role::Serve | Role::Init => (nodes_of(&settings)?, 0),
        };
        let mut wrong = Vec::new();
        if settings.tls_client_ca.is_some() && settings.tls_cert.is_none() && settings.tls_key.is_none() {
            wrong.push("tls_client_ca: needs tls_cert and tls_key too".to_owned());
        }
        let tls = identity("tls", &settings.tls_cert, &settings.tls_key, &mut wrong)
            .map(|(cert, key)| TlsFiles { cert, key, client_ca: settings.tls_client_ca.clone() });
        let redis_identity = identity("redis", &settings.redis_cert, &settings.redis_key, &mut wrong);
        let otlp_endpoint = settings.otlp_endpoint.as_deref().map(traces_url).transpose();
        let otlp_endpoint = otlp_endpoint.unwrap_or_else(|why| {
            wrong.push(format!("otlp_endpoint: {why}"));
            None
        });
        let config = Self { settings, redis, embedded_nodes, redis_identity, tls, otlp_endpoint };
        config.check(role, &mut wrong);
        if wrong.is_empty() { Ok(config) } else { Err(ConfigError::Value(wrong.join("; "))) }
    }

    /// Adds a sentence to `wrong` for each value that cannot be.
    fn check(&self, role: Role, wrong: &mut Vec<String>) {
        let second = Duration::from_secs(1);
        let hour = second * 3600;
        let ms = Duration::from_millis(1);
        let directives = self.log_level.split(',').map(str::trim).filter(|part| !part.is_empty());
        for part in directives {
            // Without a level it would be a target, and all others would say nothing any more.
            if !part.contains(['=', '[']) && part.parse::<tracing::level_filters::LevelFilter>().is_err() {
                wrong.push(format!("log_level: {part} is neither a level nor TARGET=LEVEL"));
            }
        }
        let mut range = |name: &str, value: Span, min: Duration, max: Duration| {
            if !(min..=max).contains(&value.0) {
                wrong.push(format!("{name}: {value} is not from {} to {}", Span(min), Span(max)));
            }
        };
        range("node_timeout", self.node_timeout, 10 * ms, 30 * second);
        range("connect_timeout", self.connect_timeout, 10 * ms, 60 * second);
        range("max_ttl", self.max_ttl, TTL_MIN, TTL_MAX_MAX);
        range("max_wait", self.max_wait, Duration::ZERO, TTL_MAX_MAX);
        range("fence_retention", self.fence_retention, second, 24 * 365 * hour);
        range("clock_bound", self.clock_bound, ms, 24 * hour);
        range("header_timeout", self.header_timeout, 100 * ms, hour);
        range("body_timeout", self.body_timeout, 100 * ms, hour);
        range("idle_timeout", self.idle_timeout, second, 24 * hour);
        range("shutdown_timeout", self.shutdown_timeout, 100 * ms, hour);

        let mut count = |name: &str, value: usize, min: usize, max: usize| {
            if !(min..=max).contains(&value) {
                wrong.push(format!("{name}: {value} is not from {min} to {max}"));
            }
        };
        count("max_waiters", self.max_waiters, 0, 10_000_000);
        count("max_waiters_per_name", self.max_waiters_per_name, 0, 10_000_000);
        count("max_streams", self.max_streams, 0, 10_000_000);
        count("max_connections", self.max_connections, 1, 10_000_000);
        count("max_in_flight", self.max_in_flight, 1, 10_000_000);
        // hyper's smallest buffer is 8 KiB.
        count("max_header_bytes", self.max_header_bytes, 8_192, 1 << 20);
        count("max_body_bytes", self.max_body_bytes, 1_024, 1 << 20);
        count("threads", self.threads, 1, 1_024);
        if !(0.0..=1.0).contains(&self.otlp_sample_ratio) {
            wrong.push(format!("otlp_sample_ratio: {} is not from 0 to 1", self.otlp_sample_ratio));
        }

        if self.key_prefix.is_empty() || self.key_prefix.len() > 64 || !Name::is_prefix(&self.key_prefix) {
            wrong.push("key_prefix: must be 1 to 64 characters of A-Z a-z 0-9 . _ ~ : @ and -".to_owned());
        }
        if self.audit_leases.0 && self.audit_log.is_none() {
            wrong.push("audit_leases: needs audit_log".to_owned());
        }
        // A fence that is forgotten before a slow server's clock has passed it could be issued
        // again (docs/protocol.md §2.3).
        if self.fence_retention < self.clock_bound {
            wrong.push("fence_retention: must not be shorter than clock_bound".to_owned());
        }
        match role {
            Role::Dev { nodes } => {
                if !(1..=NODES_MAX).contains(&nodes) {
                    wrong.push(format!("nodes: {nodes} is not from 1 to {NODES_MAX}"));
                }
            }
            Role::Serve | Role::Init => {
                if self.redis.is_empty() {
                    wrong.push(
                        "redis: name at least one node (--redis, QUORATE_REDIS or --redis-file)".to_owned(),
                    );
                }
                if self.redis.len() > NODES_MAX {
                    wrong.push(format!("redis: more than {NODES_MAX} nodes"));
                }
                // Whoever names authorities believes that the passwords are encrypted on their way.
                if self.redis_ca.is_some()
                    && !self.redis.is_empty()
                    && !self.redis.iter().any(RedisUrl::is_encrypted)
                {
                    wrong.push("redis_ca: is for rediss:// nodes, and none is one".to_owned());
                }
                for (i, url) in self.redis.iter().enumerate() {
                    if self.redis[..i].contains(url) {
                        wrong.push(format!("redis: {url} is listed twice"));
                    }
                }
            }
        }
        let is_open = self.api_keys.is_none() && !self.insecure_no_auth.0;
        if role == Role::Serve && is_open && !is_loopback(self.listen.0) {
            wrong.push(format!(
                "listen: {} can be reached from outside, but there are no API keys; \
                 give --api-keys FILE, or --insecure-no-auth if everyone may hold and release locks",
                self.listen.0
            ));
        }
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// A certificate and its key, of the settings that begin with `prefix`: both or neither.
fn identity(
    prefix: &str,
    cert: &Option<PathBuf>,
    key: &Option<PathBuf>,
    wrong: &mut Vec<String>,
) -> Option<(PathBuf, PathBuf)> {
    if cert.is_some() != key.is_some() {
        wrong.push(format!("{prefix}_cert and {prefix}_key: each needs the other"));
    }
    cert.clone().zip(key.clone())
}

/// Whether only this machine can reach the address.
pub fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Where a collector takes traces. What the URL says of a user or token is not repeated.
fn traces_url(text: &str) -> Result<url::Url, String> {
    let mut url = url::Url::parse(text.trim()).map_err(|cause| format!("not a URL: {cause}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("{}:// is neither http:// nor https://", url.scheme()));
    }
    if url.path() == "/" {
        url.set_path("/v1/traces");
    }
    Ok(url)
}

/// The nodes from the list or from the file of nodes. Not from both: one may be left over
/// in the environment, and the nodes of two deployments would become one.
fn nodes_of(settings: &Settings) -> Result<Vec<RedisUrl>, ConfigError> {
    let mut nodes: Vec<RedisUrl> = Vec::new();
    if settings.redis_file.is_some() && !settings.redis.is_empty() {
        return Err(ConfigError::Value(
            "redis and redis_file: both name nodes (--redis or QUORATE_REDIS, and --redis-file or \
             QUORATE_REDIS_FILE); leave one of them out"
                .to_owned(),
        ));
    }
    for (i, Secret(text)) in settings.redis.iter().enumerate() {
        nodes.push(text.parse().map_err(|why| ConfigError::Value(format!("redis: node {}: {why}", i + 1)))?);
    }
    if let Some(path) = &settings.redis_file {
        for (i, line) in read(path)?.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let node = line.parse().map_err(|why| {
                ConfigError::Value(format!("redis_file: {}, line {}: {why}", path.display(), i + 1))
            })?;
            nodes.push(node);
        }
    }
    if let Some(path) = &settings.redis_password_file {
        // It is read again with every connection; here only to say at once that it cannot be.
        if password_of(&read(path)?).is_none() {
            return Err(ConfigError::Value(format!("redis_password_file: {} is empty", path.display())));
        }
    }
    Ok(nodes)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|cause| ConfigError::File { path: path.to_owned(), cause })
}

#[cfg(test)]
mod tests;
