//! One [`Config`], where it comes from, and what every setting means.
//!
//! A setting comes from a flag, from the environment (`QUORATE_…`) or from a TOML
//! file, the first of these that names it; else it has the default that stands here
//! and in `quorate.toml`, the commented file that `quorate config` prints. All three
//! sources go through the same parser, so `"3s"` means the same everywhere.
//!
//! [`Settings`] is what was said, every field optional; [`Config`] is what holds,
//! checked. Nothing after [`Config::new`] has to ask whether a value makes sense.

mod settings;
mod values;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::settings::Settings;
pub use self::values::{Listen, LogFormat, RedisUrl, Secret, Span, Switch};
use crate::domain::{Name, TTL_MS_MAX};

/// The commented file with every setting and its default.
pub const DEFAULT_FILE: &str = include_str!("quorate.toml");

/// What the environment variables of all settings begin with.
pub const ENV_PREFIX: &str = "QUORATE_";

/// More nodes than this make every round slower and nothing safer.
pub const NODES_MAX: usize = 31;

/// The shortest life of a lease, which is what a `ttl_ms` may be at least.
pub const TTL_MIN: Duration = Duration::from_millis(100);

/// What `--max-ttl` may be at most.
const TTL_MAX_MAX: Duration = Duration::from_millis(TTL_MS_MAX);

/// Where a server listens unless told otherwise: nobody else's business before there are keys.
pub const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);

/// What the process is for, as far as checking the settings is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Embedded nodes for trying things out.
    Dev {
        /// How many.
        nodes: usize,
    },
    /// Real nodes.
    Serve,
    /// Marks the nodes of a new deployment.
    Init,
}

/// What holds. Made by [`Config::new`] only, so that it is always valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Real nodes; none for `dev`.
    pub redis: Vec<RedisUrl>,
    /// Embedded nodes; 0 but for `dev`.
    pub embedded_nodes: usize,
    /// Authorities for `rediss://`.
    pub redis_ca: Option<PathBuf>,
    /// Time for a node's answer.
    pub node_timeout: Duration,
    /// Time for connecting to a node.
    pub connect_timeout: Duration,
    /// Beginning of every key.
    pub key_prefix: String,
    /// Longest life of a lease.
    pub max_ttl: Duration,
    /// Longest wait.
    pub max_wait: Duration,
    /// How long unused fences are remembered.
    pub fence_retention: Duration,
    /// How far ahead of a node a proposed token may be.
    pub clock_bound: Duration,
    /// Key file.
    pub api_keys: Option<PathBuf>,
    /// HTTPS, where wanted.
    pub tls: Option<TlsFiles>,
    /// Waiters in all.
    pub waiters_max: usize,
    /// Waiters per name.
    pub waiters_per_name_max: usize,
    /// Event streams.
    pub streams_max: usize,
    /// Connections.
    pub connections_max: usize,
    /// Requests and streams in flight.
    pub in_flight_max: usize,
    /// Size of a head, bytes.
    pub header_bytes_max: usize,
    /// Size of a body, bytes.
    pub body_bytes_max: usize,
    /// Time for a head.
    pub header_timeout: Duration,
    /// Time for a body.
    pub body_timeout: Duration,
    /// Time between requests.
    pub idle_timeout: Duration,
    /// URL to send traces to.
    pub otlp_endpoint: Option<url::Url>,
    /// How many requests are traced.
    pub otlp_sample_ratio: f64,
    /// Time for ending.
    pub shutdown_timeout: Duration,
    /// Threads of the runtime.
    pub threads: usize,
    /// Form of the log.
    pub log_format: LogFormat,
    /// What is logged.
    pub log_level: String,
    /// Whether each answered request is.
    pub log_requests: bool,
}

/// The files of HTTPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Its key.
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
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// A value cannot be read, or a name is unknown.
    #[error("{0}")]
    Value(String),
    /// Values that cannot be, all of them.
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
}

impl Config {
    /// Fills in the defaults, reads the files that hold nodes and passwords, and checks it all.
    ///
    /// # Errors
    /// Names every value that cannot be, not just the first.
    pub fn new(settings: Settings, role: Role) -> Result<Self, ConfigError> {
        let span =
            |set: Option<Span>, default_ms| set.map_or(Duration::from_millis(default_ms), |span| span.0);
        let (redis, embedded_nodes) = match role {
            Role::Dev { nodes } => (Vec::new(), nodes),
            Role::Serve | Role::Init => (nodes_of(&settings)?, 0),
        };
        let mut wrong = Vec::new();
        let tls = match (settings.tls_cert, settings.tls_key) {
            (Some(cert), Some(key)) => Some(TlsFiles { cert, key, client_ca: settings.tls_client_ca }),
            (None, None) => {
                if settings.tls_client_ca.is_some() {
                    wrong.push("tls_client_ca: needs tls_cert and tls_key too".to_owned());
                }
                None
            }
            _ => {
                wrong.push("tls_cert and tls_key: each needs the other".to_owned());
                None
            }
        };
        let otlp_endpoint = settings.otlp_endpoint.and_then(|text| match traces_url(&text) {
            Ok(url) => Some(url),
            Err(why) => {
                wrong.push(format!("otlp_endpoint: {why}"));
                None
            }
        });
        // The banner, or the report of `init`, says all that there is to say until something is
        // wrong.
        let default_log_level = if role == Role::Serve { "info" } else { "error" };
        let config = Self {
            listen: settings.listen.map_or(DEFAULT_LISTEN, |listen| listen.0),
            redis,
            embedded_nodes,
            redis_ca: settings.redis_ca,
            node_timeout: span(settings.node_timeout, 500),
            connect_timeout: span(settings.connect_timeout, 1_000),
            key_prefix: settings.key_prefix.unwrap_or_else(|| "quorate".to_owned()),
            // To mark nodes grants nothing: the servers note what they may grant before they do.
            max_ttl: span(
                settings.max_ttl,
                if role == Role::Init { TTL_MIN.as_millis() as u64 } else { 300_000 },
            ),
            max_wait: span(settings.max_wait, 60_000),
            fence_retention: span(settings.fence_retention, 600_000),
            clock_bound: span(settings.clock_bound, 60_000),
            api_keys: settings.api_keys,
            tls,
            waiters_max: settings.max_waiters.unwrap_or(20_000),
            waiters_per_name_max: settings.max_waiters_per_name.unwrap_or(10_000),
            streams_max: settings.max_streams.unwrap_or(20_000),
            connections_max: settings.max_connections.unwrap_or(30_000),
            in_flight_max: settings.max_in_flight.unwrap_or(50_000),
            header_bytes_max: settings.max_header_bytes.unwrap_or(16_384),
            body_bytes_max: settings.max_body_bytes.unwrap_or(65_536),
            header_timeout: span(settings.header_timeout, 10_000),
            body_timeout: span(settings.body_timeout, 10_000),
            idle_timeout: span(settings.idle_timeout, 75_000),
            otlp_endpoint,
            otlp_sample_ratio: settings.otlp_sample_ratio.unwrap_or(1.0),
            shutdown_timeout: span(settings.shutdown_timeout, 25_000),
            threads: settings.threads.unwrap_or(1),
            log_format: settings.log_format.unwrap_or(LogFormat::Text),
            log_level: settings.log_level.unwrap_or_else(|| default_log_level.to_owned()),
            log_requests: settings.log_requests.is_some_and(|switch| switch.0),
        };
        config.check(role, settings.insecure_no_auth.is_some_and(|switch| switch.0), &mut wrong);
        if wrong.is_empty() { Ok(config) } else { Err(ConfigError::Invalid(wrong)) }
    }

    /// Adds a sentence to `wrong` for each value that cannot be.
    fn check(&self, role: Role, insecure_no_auth: bool, wrong: &mut Vec<String>) {
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
        let mut range = |name: &str, value: Duration, min: Duration, max: Duration| {
            if !(min..=max).contains(&value) {
                wrong.push(format!("{name}: {} is not from {} to {}", Span(value), Span(min), Span(max)));
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
        count("max_waiters", self.waiters_max, 0, 10_000_000);
        count("max_waiters_per_name", self.waiters_per_name_max, 0, 10_000_000);
        count("max_streams", self.streams_max, 0, 10_000_000);
        count("max_connections", self.connections_max, 1, 10_000_000);
        count("max_in_flight", self.in_flight_max, 1, 10_000_000);
        // hyper's smallest buffer is 8 KiB.
        count("max_header_bytes", self.header_bytes_max, 8_192, 1 << 20);
        count("max_body_bytes", self.body_bytes_max, 1_024, 1 << 20);
        count("threads", self.threads, 1, 1_024);
        if !(0.0..=1.0).contains(&self.otlp_sample_ratio) {
            wrong.push(format!("otlp_sample_ratio: {} is not from 0 to 1", self.otlp_sample_ratio));
        }

        if self.key_prefix.is_empty() || self.key_prefix.len() > 64 || !Name::is_prefix(&self.key_prefix) {
            wrong.push("key_prefix: must be 1 to 64 characters of A-Z a-z 0-9 . _ ~ : @ and -".to_owned());
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
                        wrong.push(format!("redis: {url} stands there twice"));
                    }
                }
            }
        }
        if role == Role::Serve && self.api_keys.is_none() && !insecure_no_auth && !is_loopback(self.listen) {
            wrong.push(format!(
                "listen: {} can be reached from outside, but there are no API keys; \
                 give --api-keys FILE, or --insecure-no-auth if everyone may hold and release locks",
                self.listen
            ));
        }
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
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

/// The nodes from the list or from the file of nodes, passwords filled in. Not from both: one may be left over
/// in the environment, and the nodes of two deployments would become one.
fn nodes_of(settings: &Settings) -> Result<Vec<RedisUrl>, ConfigError> {
    let mut nodes: Vec<RedisUrl> = Vec::new();
    if settings.redis_file.is_some() && settings.redis.iter().flatten().next().is_some() {
        return Err(ConfigError::Value(
            "redis and redis_file: both name nodes (--redis or QUORATE_REDIS, and --redis-file or \
             QUORATE_REDIS_FILE); leave one of them out"
                .to_owned(),
        ));
    }
    for (i, Secret(text)) in settings.redis.iter().flatten().enumerate() {
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
        let text = read(path)?;
        // Editors end files with a newline; no password does.
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() {
            return Err(ConfigError::Value(format!("redis_password_file: {} is empty", path.display())));
        }
        nodes = nodes.into_iter().map(|node| node.with_default_password(password)).collect();
    }
    Ok(nodes)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|cause| ConfigError::File { path: path.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn gather(flags: &Settings, env: &[(&str, &str)], toml: &str) -> Result<Settings, ConfigError> {
        let file = file(toml);
        Settings::gather(flags, environment(env), Some(file.path()))
    }

    fn serve(settings: Settings) -> Result<Config, ConfigError> {
        Config::new(settings, Role::Serve)
    }

    fn three_nodes() -> Settings {
        let nodes = ["redis://a:6379", "redis://b:6379", "redis://c:6379"];
        Settings { redis: Some(nodes.map(Secret::from).to_vec()), ..Settings::default() }
    }

    #[test]
    fn flags_come_before_the_environment_and_that_before_the_file() {
        let flags = Settings { max_ttl: Some("1s".parse().unwrap()), ..Settings::default() };
        let env = [("QUORATE_MAX_TTL", "2s"), ("QUORATE_MAX_WAIT", "2s")];
        let toml = "max_ttl = \"3s\"\nmax_wait = 3000\nnode_timeout = \"300ms\"\n";
        let settings = gather(&flags, &env, toml).unwrap();
        let seconds = |span: Option<Span>| span.unwrap().0.as_secs_f64();
        assert_eq!(seconds(settings.max_ttl), 1.0);
        assert_eq!(seconds(settings.max_wait), 2.0);
        assert_eq!(seconds(settings.node_timeout), 0.3);
        assert_eq!(settings.body_timeout, None);
    }

    #[test]
    fn nodes_are_a_list_in_the_file_and_commas_in_the_environment() {
        let env = [("QUORATE_REDIS", "redis://a:1, redis://b:2,")];
        let from_env = gather(&Settings::default(), &env, "redis = [\"redis://z\"]").unwrap();
        let config = serve(from_env).unwrap();
        assert_eq!(
            config.redis.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["redis://a:1", "redis://b:2"]
        );
        let from_file = gather(&Settings::default(), &[], "redis = [\"redis://a\", \"redis://b\"]").unwrap();
        assert_eq!(serve(from_file).unwrap().redis.len(), 2);
    }

    #[test]
    fn words_that_look_like_numbers_are_words_in_the_environment() {
        let env = [("QUORATE_KEY_PREFIX", "123"), ("QUORATE_LOG_REQUESTS", "true"), ("QUORATE_THREADS", "4")];
        let settings = gather(&Settings::default(), &env, "").unwrap();
        assert_eq!(settings.key_prefix.as_deref(), Some("123"));
        assert_eq!(settings.log_requests, Some(Switch(true)));
        assert_eq!(settings.threads, Some(4));
    }

    #[test]
    fn variables_that_are_empty_or_not_ours_change_nothing() {
        let env = [
            ("QUORATE_API_KEYS", ""),
            ("QUORATE_PORT", "tcp://10.0.0.1:8080"),
            ("QUORATE_LEASE_ID", "x"),
            ("QUORATE_listen", "x"),
            ("LISTEN", "x"),
        ];
        assert_eq!(gather(&Settings::default(), &env, "").unwrap(), Settings::default());
    }

    #[test]
    fn a_wrong_value_is_named_with_its_place() {
        let none: &[(&str, &str)] = &[];
        let wrong = [("QUORATE_MAX_TTL", "soon")];
        let cases = [
            (&wrong[..], "", ["max_ttl", "environment", "soon"]),
            (none, "max_tll = 3", ["max_tll", "file", "no such setting"]),
            (none, "log_format = \"xml\"", ["log_format", "file", "xml"]),
            (none, "listen = [1]", ["listen", "file", "sequence"]),
            (none, "redis = [7101, 7102]", ["redis", "file", "a list of URLs"]),
        ];
        for (env, toml, words) in cases {
            let message = gather(&Settings::default(), env, toml).unwrap_err().to_string();
            for word in words {
                assert!(message.contains(word), "{message:?} lacks {word:?}");
            }
        }
    }

    #[test]
    fn a_file_that_is_missing_is_an_error() {
        let missing = Path::new("/nonexistent/quorate.toml");
        let error = Settings::gather(&Settings::default(), [], Some(missing)).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/quorate.toml"), "{error}");
    }

    #[test]
    fn durations_are_read_as_documented() {
        for (text, ms) in
            [("3s", 3_000), ("250ms", 250), ("1500", 1_500), ("1m", 60_000), ("1m 30s", 90_000), ("0", 0)]
        {
            assert_eq!(text.parse::<Span>().unwrap().0, Duration::from_millis(ms), "{text}");
        }
        for bad in ["", "s", "3 parsecs", "-1", "1.5", "100us", "99999999999999999999s", "101years"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_file_that_is_shipped_parses_to_the_defaults() {
        let shipped = gather(&Settings::default(), &[], DEFAULT_FILE).unwrap();
        let with_nodes =
            |settings: Settings| serve(Settings { redis: three_nodes().redis, ..settings }).unwrap();
        assert_eq!(with_nodes(shipped), with_nodes(Settings::default()));
    }

    #[test]
    fn the_file_that_is_shipped_shows_every_setting() {
        let all: String = DEFAULT_FILE
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| rest.contains(" = ")).unwrap_or(line))
            .fold(String::new(), |text, line| text + line + "\n");
        let shown: toml::Table = all.parse().unwrap();
        let mut shown: Vec<String> = shown.keys().cloned().collect();
        let mut names = Settings::names();
        shown.sort();
        names.sort();
        assert_eq!(shown, names);
        gather(&Settings::default(), &[], &all).unwrap();
    }

    #[test]
    fn passwords_are_shown_by_nothing() {
        let url = "rediss://user:s3cret@node-1:6380/2";
        let parsed: RedisUrl = url.parse().unwrap();
        assert_eq!(parsed.expose(), url);
        assert_eq!(parsed.to_string(), "rediss://node-1:6380/2");
        let socket: RedisUrl = "unix:///run/redis.sock?db=1&pass=s3cret".parse().unwrap();
        assert_eq!(socket.to_string(), "unix:///run/redis.sock");
        let settings = Settings { redis: Some(vec![Secret::from(url)]), ..Settings::default() };
        let mut shown = format!("{parsed:?} {socket:?} {settings:?}");
        shown += &format!("{:?}", serve(settings).unwrap());
        for bad in ["http://user:s3cret@a", "redis://u:s3cret@[", "s3cret", "redis://quorate:7/s3cret@a"] {
            let settings = Settings { redis: Some(vec![Secret::from(bad)]), ..Settings::default() };
            shown += &serve(settings).unwrap_err().to_string();
        }
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn a_file_that_is_no_toml_is_named_and_not_shown() {
        for text in ["\n\nredis = [\"redis://:s3cret@a\"", "redis = \"redis://:s3cret@a\nmax_ttl = 1"] {
            let error = gather(&Settings::default(), &[], text).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
            assert!(error.starts_with("the file /") && error.contains("line "), "{error}");
        }
    }

    #[test]
    fn nodes_and_their_password_may_stand_in_files() {
        let nodes = file("# ours\nredis://a:6379\n\nredis://u:own@b:6379/1\nunix:///run/c.sock\n");
        let password = file("p@ss wo%72d\n");
        let settings = Settings {
            redis_file: Some(nodes.path().to_owned()),
            redis_password_file: Some(password.path().to_owned()),
            ..Settings::default()
        };
        let config = serve(settings).unwrap();
        let urls: Vec<&str> = config.redis.iter().map(RedisUrl::expose).collect();
        assert_eq!(
            urls,
            [
                "redis://:p%40ss%20wo%2572d@a:6379",
                "redis://u:own@b:6379/1",
                "unix:///run/c.sock?pass=p%40ss+wo%2572d"
            ]
        );
    }

    #[test]
    fn nodes_are_named_in_one_place_or_the_server_asks_which() {
        let nodes = file("redis://a:6379\nredis://b:6379\nredis://d:6379\n");
        let with_file = |settings| Settings { redis_file: Some(nodes.path().to_owned()), ..settings };
        for role in [Role::Serve, Role::Init] {
            let error = Config::new(with_file(three_nodes()), role).unwrap_err().to_string();
            assert!(error.contains("redis and redis_file"), "{error}");
            assert!(!error.contains("twice"), "{error}");
        }
        let none = Settings { redis: Some(Vec::new()), ..Settings::default() };
        assert_eq!(serve(with_file(none)).unwrap().redis.len(), 3);
        assert!(Config::new(with_file(three_nodes()), Role::Dev { nodes: 3 }).is_ok());
    }

    #[test]
    fn authorities_for_nodes_without_tls_are_refused() {
        let with_ca = |settings| Settings { redis_ca: Some("ca.pem".into()), ..settings };
        let error = serve(with_ca(three_nodes())).unwrap_err().to_string();
        assert!(error.contains("redis_ca") && error.contains("rediss://"), "{error}");
        let one = ["redis://a", "rediss://b", "unix:///c"].map(Secret::from).to_vec();
        assert!(serve(with_ca(Settings { redis: Some(one), ..Settings::default() })).is_ok());
        assert!(Config::new(with_ca(Settings::default()), Role::Dev { nodes: 3 }).is_ok());
    }

    #[test]
    fn a_log_level_is_a_level_or_names_one_for_each_target() {
        let level = |text: &str| serve(Settings { log_level: Some(text.to_owned()), ..three_nodes() });
        for good in ["info", "WARN", "off", "info,quorate::node=debug", "warn, hyper=off", "[request]=trace"]
        {
            assert!(level(good).is_ok(), "{good}");
        }
        for bad in ["bogus!!", "verbose", "info,quorate", "inf"] {
            assert!(level(bad).unwrap_err().to_string().contains("log_level"), "{bad}");
        }
    }

    #[test]
    fn to_mark_nodes_says_nothing_of_how_long_leases_live_unless_told() {
        let max_ttl_ms = |settings, role| Config::new(settings, role).unwrap().max_ttl.as_millis();
        assert_eq!(max_ttl_ms(three_nodes(), Role::Init), 100);
        assert_eq!(max_ttl_ms(three_nodes(), Role::Serve), 300_000);
        let told = Settings { max_ttl: Some("7s".parse().unwrap()), ..three_nodes() };
        assert_eq!(max_ttl_ms(told, Role::Init), 7_000);
    }

    #[test]
    fn every_wrong_value_is_told_at_once() {
        let settings = Settings {
            max_ttl: Some(Span(Duration::ZERO)),
            threads: Some(0),
            tls_cert: Some("x".into()),
            key_prefix: Some("a b".to_owned()),
            ..Settings::default()
        };
        let message = serve(settings).unwrap_err().to_string();
        for name in ["max_ttl", "threads", "tls_cert", "key_prefix", "redis"] {
            assert!(message.contains(name), "{message:?} lacks {name}");
        }
    }

    #[test]
    fn without_keys_only_loopback_is_served() {
        let on = |listen: &str| Settings { listen: Some(listen.parse().unwrap()), ..three_nodes() };
        for loopback in ["127.0.0.1:0", "[::1]:8080", "localhost:80", "127.3.2.1:1", "[::ffff:127.0.0.1]:1"] {
            assert!(serve(on(loopback)).is_ok(), "{loopback}");
        }
        for open in ["0.0.0.0:8080", "[::]:8080", "10.0.0.1:80"] {
            assert!(serve(on(open)).unwrap_err().to_string().contains("--insecure-no-auth"), "{open}");
            assert!(serve(Settings { insecure_no_auth: Some(Switch(true)), ..on(open) }).is_ok(), "{open}");
            assert!(serve(Settings { api_keys: Some("keys".into()), ..on(open) }).is_ok(), "{open}");
            assert!(Config::new(on(open), Role::Dev { nodes: 3 }).is_ok(), "{open}");
        }
    }

    #[test]
    fn a_node_that_stands_there_twice_is_refused() {
        let twice = ["redis://a:1", "redis://b:1", "redis://a:1"].map(Secret::from).to_vec();
        let error = serve(Settings { redis: Some(twice), ..Settings::default() }).unwrap_err();
        assert!(error.to_string().contains("redis://a:1 stands there twice"), "{error}");
    }
}
