//! The settings: names, help and defaults, and the three sources that they may come from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use figment::providers::Serialized;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::{ConfigError, ENV_PREFIX, Listen, LogFormat, Secret, Span, Switch};
use crate::domain::wrong_toml;

/// Every setting with its default. What the command line, the environment or a file says comes first.
///
/// The doc comments are the text of `--help`, of `quorate config` and of docs/settings.md.
#[derive(Debug, Clone, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS:PORT")]
    #[serde(deserialize_with = "scalar")]
    pub listen: Listen,

    /// A node: redis://, rediss:// or unix://, with user, password and database. Once per
    /// node, or separated by commas
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = "Nodes")]
    #[serde(default, deserialize_with = "list")]
    pub redis: Vec<Secret>,

    /// File with the URLs of the nodes, one per line, instead of --redis: keeps passwords out of `ps`
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    #[serde(default, deserialize_with = "optional")]
    pub redis_file: Option<PathBuf>,

    /// File with the password for all node URLs that have none; read again with every connection
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    #[serde(default, deserialize_with = "optional")]
    pub redis_password_file: Option<PathBuf>,

    /// CA certificates (PEM) to trust for rediss:// nodes, instead of the system's
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    #[serde(default, deserialize_with = "optional")]
    pub redis_ca: Option<PathBuf>,

    /// Certificate (PEM) to show to rediss:// nodes that ask for one
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    #[serde(default, deserialize_with = "optional")]
    pub redis_cert: Option<PathBuf>,

    /// Private key (PEM) of --redis-cert
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    #[serde(default, deserialize_with = "optional")]
    pub redis_key: Option<PathBuf>,

    /// How long a node may take to answer before it counts as abstaining
    #[arg(long, default_value = "500ms", value_name = "DURATION", help_heading = "Nodes")]
    #[serde(deserialize_with = "scalar")]
    pub node_timeout: Span,

    /// How long connecting to a node may take
    #[arg(long, default_value = "1s", value_name = "DURATION", help_heading = "Nodes")]
    #[serde(deserialize_with = "scalar")]
    pub connect_timeout: Span,

    /// Beginning of every key at the nodes; deployments that share nodes need different ones
    #[arg(long, default_value = "quorate", value_name = "TEXT", help_heading = "Nodes")]
    #[serde(deserialize_with = "scalar")]
    pub key_prefix: String,

    /// Longest life of a lease without extension, and how long nodes abstain after a majority of
    /// them restarted at once
    #[arg(long, default_value = "5m", value_name = "DURATION", help_heading = "Leases")]
    #[serde(deserialize_with = "scalar")]
    pub max_ttl: Span,

    /// Longest wait that a request may ask for
    #[arg(long, default_value = "1m", value_name = "DURATION", help_heading = "Leases")]
    #[serde(deserialize_with = "scalar")]
    pub max_wait: Span,

    /// How long nodes remember the last fencing token of a name that is not used any more
    #[arg(long, default_value = "10m", value_name = "DURATION", help_heading = "Leases")]
    #[serde(deserialize_with = "scalar")]
    pub fence_retention: Span,

    /// How far a server's clock may be ahead of a node's before the node refuses its tokens
    #[arg(long, default_value = "5s", value_name = "DURATION", help_heading = "Leases")]
    #[serde(deserialize_with = "scalar")]
    pub clock_bound: Span,

    /// Key file (TOML; `quorate keys new` makes entries), re-read when it changes
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    #[serde(default, deserialize_with = "optional")]
    pub api_keys: Option<PathBuf>,

    /// Serve without API keys beyond loopback: to everyone who reaches the port
    #[arg(long, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "BOOL", help_heading = "Access")]
    #[serde(deserialize_with = "scalar")]
    pub insecure_no_auth: Switch,

    /// Certificate chain (PEM) for HTTPS, re-read when it changes
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    #[serde(default, deserialize_with = "optional")]
    pub tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the certificate
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    #[serde(default, deserialize_with = "optional")]
    pub tls_key: Option<PathBuf>,

    /// CA certificates (PEM): only clients with a certificate signed by one of them may connect
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    #[serde(default, deserialize_with = "optional")]
    pub tls_client_ca: Option<PathBuf>,

    /// File to append the audit to, a line of JSON for each forced release and change of members, and each time
    /// that keys or certificates are read again
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    #[serde(default, deserialize_with = "optional")]
    pub audit_log: Option<PathBuf>,

    /// Write each lease to the audit log, too: granted, released, lost, expired
    #[arg(long, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "BOOL", help_heading = "Access")]
    #[serde(deserialize_with = "scalar")]
    pub audit_leases: Switch,

    /// Requests that may wait for a lease at once
    #[arg(long, default_value = "20000", value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_waiters: usize,

    /// Requests that may wait for the same name at once
    #[arg(long, default_value = "10000", value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_waiters_per_name: usize,

    /// Event streams open at once
    #[arg(long, default_value = "20000", value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_streams: usize,

    /// Connections open at once; one more gets 503 and is closed
    #[arg(long, default_value = "30000", value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_connections: usize,

    /// Requests and streams in flight at once; one more gets 503
    #[arg(long, default_value = "50000", value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_in_flight: usize,

    /// Largest head of a request, bytes
    #[arg(long, default_value = "16384", value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_header_bytes: usize,

    /// Largest body of a request, bytes
    #[arg(long, default_value = "65536", value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_body_bytes: usize,

    /// How long a client may take to send the first head of a connection, or a TLS handshake
    #[arg(long, default_value = "10s", value_name = "DURATION", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub header_timeout: Span,

    /// How long a client may take to send a request's body
    #[arg(long, default_value = "10s", value_name = "DURATION", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub body_timeout: Span,

    /// How long a connection may stay open between requests, the next head included
    #[arg(long, default_value = "75s", value_name = "DURATION", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub idle_timeout: Span,

    /// Where to send traces: http:// or https:// URL of an OpenTelemetry collector that takes OTLP
    /// over HTTP; the path is `/v1/traces` if it has none. Off unless given
    #[arg(long, value_name = "URL", help_heading = "Process")]
    #[serde(default, deserialize_with = "optional")]
    pub otlp_endpoint: Option<String>,

    /// Share of the requests to trace, 0 to 1, if the caller has not decided
    #[arg(long, default_value = "1", value_name = "RATIO", help_heading = "Process")]
    #[serde(deserialize_with = "scalar")]
    pub otlp_sample_ratio: f64,

    /// How long shutting down may take after the first SIGTERM
    #[arg(long, default_value = "25s", value_name = "DURATION", help_heading = "Process")]
    #[serde(deserialize_with = "scalar")]
    pub shutdown_timeout: Span,

    /// Threads that serve requests; one is the fastest on few cores
    #[arg(long, default_value = "1", value_name = "N", help_heading = "Process")]
    #[serde(deserialize_with = "scalar")]
    pub threads: usize,

    /// Format of the log, which goes to stderr
    #[arg(long, default_value = "text", value_name = "FORMAT", help_heading = "Process", value_enum)]
    #[serde(deserialize_with = "scalar")]
    pub log_format: LogFormat,

    /// What to log: error, warn, info, debug, trace, or directives such as
    /// info,quorate::quorum=debug
    #[arg(long, default_value = "info", value_name = "LEVEL", help_heading = "Process")]
    #[serde(deserialize_with = "scalar")]
    pub log_level: String,

    /// Log every answered request
    #[arg(long, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "BOOL", help_heading = "Process")]
    #[serde(deserialize_with = "scalar")]
    pub log_requests: Switch,
}

impl Settings {
    /// The command line over `environment` over `file` over the defaults, each by the names of the fields.
    /// `flags` are what clap read, and `is_given` tells which of them are no defaults.
    ///
    /// # Errors
    /// A value that cannot be read, or a name in the file that is no setting; says where.
    pub fn gather(
        flags: &Self,
        is_given: impl Fn(&str) -> bool,
        environment: impl IntoIterator<Item = (String, String)>,
        file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        let all = Serialized::defaults(flags).data().map_err(|cause| ConfigError::Value(explain(&cause)))?;
        let all = all.into_values().flatten().filter(|(_, value)| !matches!(value, Value::Empty(..)));
        let (given, defaults): (Dict, Dict) = all.partition(|(name, _)| is_given(name));
        let mut figment = Figment::from(Source::new("the defaults", defaults));
        if let Some(path) = file {
            // Read here, because figment takes a missing file for an empty one.
            let text = super::read(path)?;
            let place = format!("the file {}", path.display());
            // Not figment's own words for wrong TOML: they show the line, which may hold a password.
            let values = toml::from_str(&text)
                .map_err(|cause| ConfigError::Value(format!("{place}: {}", wrong_toml(&text, &cause))))?;
            figment = figment.merge(Source::new(&place, values));
        }
        figment
            .merge(Source::new("the environment", from_environment(environment)))
            .merge(Source::new("the command line", given))
            .extract()
            .map_err(|cause| ConfigError::Value(explain(&cause)))
    }

    /// Whether something is said of Redis nodes.
    pub fn names_nodes(&self) -> bool {
        let Self { redis, redis_file, redis_password_file, redis_ca, redis_cert, redis_key, .. } = self;
        let files = [redis_file, redis_password_file, redis_ca, redis_cert, redis_key];
        !redis.is_empty() || files.into_iter().any(Option::is_some)
    }

    /// The names of all settings, as in the file.
    pub fn names() -> Vec<String> {
        arguments().get_arguments().map(|argument| argument.get_id().to_string()).collect()
    }

    /// The environment variable of the setting `name`.
    pub fn variable(name: &str) -> String {
        format!("{ENV_PREFIX}{}", name.to_ascii_uppercase())
    }
}

/// All settings as clap sees them.
pub(super) fn arguments() -> clap::Command {
    <Settings as clap::Args>::augment_args(clap::Command::new("settings"))
}

/// One source of settings with a name for error messages.
struct Source(Metadata, Dict);

impl Source {
    fn new(name: &str, values: Dict) -> Self {
        Self(Metadata::named(name.to_owned()), values)
    }
}

impl Provider for Source {
    fn metadata(&self) -> Metadata {
        self.0.clone()
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.1.clone()))
    }
}

/// The settings among the variables. Others with the prefix are not ours to judge: client
/// commands have their own, and Kubernetes sets `QUORATE_PORT` and the like for a Service of
/// that name. An empty variable is an unset one, as in compose files and charts.
fn from_environment(environment: impl IntoIterator<Item = (String, String)>) -> Dict {
    let names = Settings::names();
    environment
        .into_iter()
        .filter_map(|(variable, value)| {
            let name = variable.strip_prefix(ENV_PREFIX)?.to_ascii_lowercase();
            let known = names.contains(&name) && variable == Settings::variable(&name);
            (known && !value.trim().is_empty()).then(|| (name, Value::from(value)))
        })
        .collect()
}

/// figment's error in a sentence: which setting, where, why.
fn explain(error: &figment::Error) -> String {
    let mut sentences = Vec::new();
    for error in error.clone() {
        let place = error.metadata.as_ref().map(|source| format!(" in {}", source.name)).unwrap_or_default();
        let setting =
            if error.path.is_empty() { String::new() } else { format!("{}{place}: ", error.path.join(".")) };
        let why = match &error.kind {
            figment::error::Kind::UnknownField(name, _) => {
                sentences.push(format!("{name}{place}: no such setting"));
                continue;
            }
            kind => kind.to_string(),
        };
        sentences.push(format!("{setting}{why}"));
    }
    sentences.join("; ")
}

/// Anything that is one word in all sources, parsed by [`FromStr`].
fn scalar<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    text(deserializer).and_then(|text| text.parse().map_err(de::Error::custom))
}

/// The same for a setting without a default.
fn optional<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    scalar(deserializer).map(Some)
}

/// A list, or its elements in one string with commas between them.
fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Secret>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "must be URLs with commas between them, or a list of URLs")]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    let texts = match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(text) => text.split(',').map(str::to_owned).collect(),
        OneOrMany::Many(texts) => texts,
    };
    let texts = texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
    Ok(texts.map(Secret::from).collect())
}

/// A string, number or truth value as text, so that `3000`, `"3000"` and `"3s"` all do.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string, a number or a truth value")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
            Ok(text.trim().to_owned())
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
            Ok(number.to_string())
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<String, E> {
            Ok(number.to_string())
        }

        fn visit_bool<E: de::Error>(self, truth: bool) -> Result<String, E> {
            Ok(truth.to_string())
        }
    }
    deserializer.deserialize_any(Text)
}
