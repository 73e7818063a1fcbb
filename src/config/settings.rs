//! What was said of each setting, and the three sources that it may come from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::{ConfigError, ENV_PREFIX, Listen, LogFormat, Secret, Span, Switch};
use crate::domain::wrong_toml;

/// What flags, environment or file said. A field that nobody named is `None`.
///
/// The doc comments are the text of `--help`.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Address and port to listen on; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(deserialize_with = "scalar")]
    pub listen: Option<Listen>,

    /// A node: redis://, rediss:// or unix://, with user, password and database. Once per
    /// node, or separated by commas
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = "Nodes")]
    #[serde(deserialize_with = "list")]
    pub redis: Option<Vec<Secret>>,

    /// File with the URLs of the nodes, one per line, instead of --redis: keeps passwords out of `ps`
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    #[serde(deserialize_with = "scalar")]
    pub redis_file: Option<PathBuf>,

    /// File with the password for all node URLs that have none
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    #[serde(deserialize_with = "scalar")]
    pub redis_password_file: Option<PathBuf>,

    /// CA certificates (PEM) to trust for rediss:// nodes, instead of the system's
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    #[serde(deserialize_with = "scalar")]
    pub redis_ca: Option<PathBuf>,

    /// How long a node may take to answer before it counts as abstaining [default: 500ms]
    #[arg(long, value_name = "DURATION", help_heading = "Nodes")]
    #[serde(deserialize_with = "scalar")]
    pub node_timeout: Option<Span>,

    /// How long connecting to a node may take [default: 1s]
    #[arg(long, value_name = "DURATION", help_heading = "Nodes")]
    #[serde(deserialize_with = "scalar")]
    pub connect_timeout: Option<Span>,

    /// Beginning of every key at the nodes; deployments that share nodes need different ones
    /// [default: quorate]
    #[arg(long, value_name = "TEXT", help_heading = "Nodes")]
    #[serde(deserialize_with = "scalar")]
    pub key_prefix: Option<String>,

    /// Longest life of a lease without extension, and so how long a node that restarted
    /// abstains [default: 5m]
    #[arg(long, value_name = "DURATION", help_heading = "Leases")]
    #[serde(deserialize_with = "scalar")]
    pub max_ttl: Option<Span>,

    /// Longest wait that a request may ask for [default: 1m]
    #[arg(long, value_name = "DURATION", help_heading = "Leases")]
    #[serde(deserialize_with = "scalar")]
    pub max_wait: Option<Span>,

    /// How long nodes remember the last fencing token of a name that is not used any more
    /// [default: 10m]
    #[arg(long, value_name = "DURATION", help_heading = "Leases")]
    #[serde(deserialize_with = "scalar")]
    pub fence_retention: Option<Span>,

    /// How far a server's clock may be ahead of a node's before the node refuses its tokens
    /// [default: 1m]
    #[arg(long, value_name = "DURATION", help_heading = "Leases")]
    #[serde(deserialize_with = "scalar")]
    pub clock_bound: Option<Span>,

    /// Key file (TOML; `quorate keys new` makes entries), re-read when it changes
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    #[serde(deserialize_with = "scalar")]
    pub api_keys: Option<PathBuf>,

    /// Serve without API keys beyond loopback: to everyone who reaches the port
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "BOOL", help_heading = "Access")]
    #[serde(deserialize_with = "scalar")]
    pub insecure_no_auth: Option<Switch>,

    /// Certificate chain (PEM) for HTTPS, re-read when it changes
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    #[serde(deserialize_with = "scalar")]
    pub tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the certificate
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    #[serde(deserialize_with = "scalar")]
    pub tls_key: Option<PathBuf>,

    /// CA certificates (PEM): only clients with a certificate signed by one of them may connect
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    #[serde(deserialize_with = "scalar")]
    pub tls_client_ca: Option<PathBuf>,

    /// Requests that may wait for a lease at once [default: 20000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_waiters: Option<usize>,

    /// Requests that may wait for the same name at once [default: 10000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_waiters_per_name: Option<usize>,

    /// Event streams open at once [default: 20000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_streams: Option<usize>,

    /// Connections open at once; one more gets 503 and is closed [default: 30000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_connections: Option<usize>,

    /// Requests and streams in flight at once; one more gets 503 [default: 50000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_in_flight: Option<usize>,

    /// Largest head of a request, bytes [default: 16384]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_header_bytes: Option<usize>,

    /// Largest body of a request, bytes [default: 65536]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub max_body_bytes: Option<usize>,

    /// How long a client may take to send a request's head, or a TLS handshake [default: 10s]
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub header_timeout: Option<Span>,

    /// How long a client may take to send a request's body [default: 10s]
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub body_timeout: Option<Span>,

    /// How long a connection may stay open between requests [default: 75s]
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    #[serde(deserialize_with = "scalar")]
    pub idle_timeout: Option<Span>,

    /// Where to send traces: http:// or https:// URL of an OpenTelemetry collector that takes OTLP
    /// over HTTP; the path is `/v1/traces` if it has none. Off unless given
    #[arg(long, value_name = "URL", help_heading = "Process")]
    #[serde(deserialize_with = "scalar")]
    pub otlp_endpoint: Option<String>,

    /// Share of the requests to trace, 0 to 1, if the caller has not decided [default: 1]
    #[arg(long, value_name = "RATIO", help_heading = "Process")]
    #[serde(deserialize_with = "scalar")]
    pub otlp_sample_ratio: Option<f64>,

    /// How long shutting down may take after the first SIGTERM [default: 25s]
    #[arg(long, value_name = "DURATION", help_heading = "Process")]
    #[serde(deserialize_with = "scalar")]
    pub shutdown_timeout: Option<Span>,

    /// Threads that serve requests; one is the fastest on few cores [default: 1]
    #[arg(long, value_name = "N", help_heading = "Process")]
    #[serde(deserialize_with = "scalar")]
    pub threads: Option<usize>,

    /// Format of the log, which goes to stderr [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Process", value_enum)]
    #[serde(deserialize_with = "scalar")]
    pub log_format: Option<LogFormat>,

    /// What to log: error, warn, info, debug, trace, or directives such as
    /// info,quorate::quorum=debug [default: info; error for dev and init]
    #[arg(long, value_name = "LEVEL", help_heading = "Process")]
    #[serde(deserialize_with = "scalar")]
    pub log_level: Option<String>,

    /// Log every answered request
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "BOOL", help_heading = "Process")]
    #[serde(deserialize_with = "scalar")]
    pub log_requests: Option<Switch>,
}

impl Settings {
    /// `flags` over `environment` over `file`, each by the names of the fields.
    ///
    /// # Errors
    /// A value that cannot be read, or a name in the file that is no setting; says where.
    pub fn gather(
        flags: &Self,
        environment: impl IntoIterator<Item = (String, String)>,
        file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        let mut figment = Figment::new();
        if let Some(path) = file {
            // Read here, because figment takes a missing file for an empty one.
            let text = std::fs::read_to_string(path)
                .map_err(|cause| ConfigError::File { path: path.to_owned(), cause })?;
            if let Err(cause) = toml::from_str::<toml::Table>(&text) {
                let why = wrong_toml(&text, &cause);
                return Err(ConfigError::Value(format!("the file {}: {why}", path.display())));
            }
            figment =
                figment.merge(Named(format!("the file {}", path.display()), Toml::string(&text).data()));
        }
        figment = figment.merge(Named("the environment".to_owned(), Ok(from_environment(environment))));
        let flags = Serialized::defaults(flags).data().map(without_absent);
        figment = figment.merge(Named("the command line".to_owned(), flags));
        figment.extract().map_err(|cause| ConfigError::Value(explain(&cause)))
    }

    /// Whether something is said of Redis nodes.
    pub fn names_nodes(&self) -> bool {
        let Self { redis, redis_file, redis_password_file, redis_ca, .. } = self;
        redis.is_some() || [redis_file, redis_password_file, redis_ca].into_iter().any(Option::is_some)
    }

    /// The names of all settings, as in the file.
    pub fn names() -> Vec<String> {
        let fields = serde_json::to_value(Self::default());
        match fields {
            Ok(serde_json::Value::Object(fields)) => fields.into_iter().map(|(name, _)| name).collect(),
            _ => Vec::new(),
        }
    }

    /// The environment variable of the setting `name`.
    pub fn variable(name: &str) -> String {
        format!("{ENV_PREFIX}{}", name.to_ascii_uppercase())
    }
}

/// One source of settings with a name for error messages.
struct Named(String, Result<Map<Profile, Dict>, figment::Error>);

impl Provider for Named {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.0.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        self.1.clone()
    }
}

/// The settings among the variables. Others with the prefix are not ours to judge: client
/// commands have their own, and Kubernetes sets `QUORATE_PORT` and the like for a Service of
/// that name. An empty variable is an unset one, as in compose files and charts.
fn from_environment(environment: impl IntoIterator<Item = (String, String)>) -> Map<Profile, Dict> {
    let names = Settings::names();
    let dict: Dict = environment
        .into_iter()
        .filter_map(|(variable, value)| {
            let name = variable.strip_prefix(ENV_PREFIX)?.to_ascii_lowercase();
            let known = names.contains(&name) && variable == Settings::variable(&name);
            (known && !value.trim().is_empty()).then(|| (name, Value::from(value)))
        })
        .collect();
    Profile::Default.collect(dict)
}

fn without_absent(profiles: Map<Profile, Dict>) -> Map<Profile, Dict> {
    profiles
        .into_iter()
        .map(|(profile, dict)| {
            (profile, dict.into_iter().filter(|(_, value)| !matches!(value, Value::Empty(..))).collect())
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

/// Anything that is one word in the three sources, parsed by [`FromStr`].
fn scalar<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    text(deserializer).and_then(|text| text.parse().map(Some).map_err(de::Error::custom))
}

/// A list, or its elements in one string with commas between them.
fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Secret>>, D::Error> {
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
    Ok(Some(texts.map(Secret::from).collect()))
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
