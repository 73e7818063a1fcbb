//! The HTTP client behind `quorate run` and the client commands.
//!
//! A thin one: a [`Target`] knows its URLs and bodies, [`Client`] makes one call, and
//! [`Client::acquire`] waits by one long poll after the other. All refusals end up as a
//! [`Failure`], which knows its exit status.

mod failure;
mod printable;
pub mod process;
mod progress;
pub mod run;
mod target;
mod terminal;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use rand::Rng as _;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Certificate, Identity, Method, Url};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

pub use self::failure::{Failure, Problem, exit};
pub(crate) use self::printable::{Printable, printable_json};
use self::target::read_lease;
pub use self::target::{Ask, Grant, Lease, Target, check_name};
use crate::domain::of_connecting;

/// The server's default `max_wait`; a server with a lower one says so.
const WAIT_CHUNK: Duration = Duration::from_secs(60);

/// Added to the time that the server was asked to take.
pub(crate) const ANSWER_GRACE: Duration = Duration::from_secs(10);

/// How long a server may be unreachable, restarting or without a quorum, once it has
/// answered, before waiting is given up.
const TROUBLE_MAX: Duration = Duration::from_secs(30);

/// Longest wait asked for while in trouble.
const WAIT_IN_TROUBLE: Duration = Duration::from_secs(2);

/// How long a server without a quorum is given before it is believed.
const QUORUM_PATIENCE: Duration = Duration::from_secs(5);

/// How long tidying up may take.
const TIDY_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a server is unless told otherwise.
const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";

/// A path that may be empty, as a variable that counts as unset is.
pub(crate) fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// How to reach a server.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// URL of the server
    #[arg(
        long,
        value_name = "URL",
        env = "QUORATE_SERVER",
        hide_env_values = true,
        default_value = DEFAULT_SERVER,
        help_heading = "Server"
    )]
    pub server: String,

    /// CA certificates (PEM) to trust for the server, besides the system's
    #[arg(
        long,
        value_name = "FILE",
        env = "QUORATE_CA",
        hide_env_values = true,
        value_parser = path(),
        help_heading = "Server"
    )]
    pub ca: Option<PathBuf>,

    /// Client certificate and its key (PEM, one file), for a server that demands one
    #[arg(
        long,
        value_name = "FILE",
        env = "QUORATE_CLIENT_CERT",
        hide_env_values = true,
        value_parser = path(),
        help_heading = "Server"
    )]
    pub client_cert: Option<PathBuf>,
}

/// A client of one server.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
}

impl Client {
    /// A client by the arguments; the key comes from `QUORATE_API_KEY`.
    pub fn new(args: &ServerArgs) -> Result<Self, Failure> {
        let usage = |why: String| Failure::Usage(why);
        // Empty variables are unset ones, as in compose files and charts.
        let server = if args.server.is_empty() { DEFAULT_SERVER } else { &args.server };
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let mut base = match Url::parse(server) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.host_str().is_some() => url,
            // `localhost:8080` passes for a URL, too, and `127.0.0.1:8080` for a part of one.
            Ok(_) | Err(url::ParseError::RelativeUrlWithoutBase) => {
                return Err(usage("--server: must be an http:// or https:// URL".to_owned()));
            }
            Err(cause) => return Err(usage(format!("--server: {cause}"))),
        };
        // So that paths are appended to a prefix instead of replacing it.
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let mut headers = HeaderMap::new();
        let no_key = || usage("QUORATE_API_KEY: no API key looks like this".to_owned());
        let key = std::env::var_os("QUORATE_API_KEY").unwrap_or_default();
        let key = key.to_str().ok_or_else(no_key)?.trim();
        if !key.is_empty() {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| no_key())?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("quorate/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(5))
            // A server that lost its power must not be waited for until the long poll ends.
            .tcp_keepalive(Duration::from_secs(10))
            .tcp_keepalive_interval(Duration::from_secs(5))
            .tcp_keepalive_retries(3_u32)
            .tcp_nodelay(true);
        if is_local(&base) {
            builder = builder.no_proxy();
        }
        if base.scheme() == "http" {
            // The system's certificates are not needed, and in small containers there are none.
            builder = builder.tls_certs_only([]);
        }
        if let Some(path) = given(&args.ca) {
            let pem = read(&path)?;
            let wrong = |cause: reqwest::Error| usage(format!("--ca: {}: {cause}", path.display()));
            builder = builder.tls_certs_merge(Certificate::from_pem_bundle(&pem).map_err(wrong)?);
        }
        if let Some(path) = given(&args.client_cert) {
            let wrong = |cause: reqwest::Error| usage(format!("--client-cert: {}: {cause}", path.display()));
            builder = builder.identity(Identity::from_pem(&read(&path)?).map_err(wrong)?);
        }
        let http = builder.build().map_err(|cause| usage(format!("--server: {}", causes(&cause))))?;
        Ok(Self { http, base })
    }

    /// One call. `within` is for all of it.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> Result<Value, Failure> {
        let unreachable = |cause: reqwest::Error| Failure::Unreachable {
            url: self.shown(),
            cut: !cause.is_connect() && !cause.is_timeout(),
            why: of_connecting(&causes(&cause.without_url())),
        };
        let url = self.base.join(path).map_err(|cause| Failure::Usage(cause.to_string()))?;
        let mut request = self.http.request(method, url).timeout(within);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let elsewhere = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let elsewhere = elsewhere.filter(|_| status.is_redirection()).map(str::to_owned);
        let bytes = response.bytes().await.map_err(unreachable)?;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|_| Failure::Nonsense);
        }
        let mut problem: Problem = serde_json::from_slice(&bytes).unwrap_or_default();
        problem.status = status.as_u16();
        if problem.code.is_empty() {
            // A proxy in between, mostly.
            problem.code = format!("http_{}", status.as_u16());
            problem.title = match elsewhere {
                Some(url) => format!("redirects to {}", Printable(&url)),
                None => status.canonical_reason().unwrap_or("refused").to_owned(),
            };
        }
        Err(Failure::of(problem))
    }

    /// The server's URL, without what a user or password it has.
    fn shown(&self) -> String {
        let origin = self.base.origin().ascii_serialization();
        format!("{origin}{}", self.base.path().trim_end_matches('/'))
    }

    /// A GET with what time such a call may take by default.
    pub async fn get(&self, path: &str, wait: Duration) -> Result<Value, Failure> {
        self.call(Method::GET, path, None, wait + ANSWER_GRACE).await
    }

    /// Waits for a lease by one long poll after the other. A retry is safe, since all bear
    /// the same request id.
    ///
    /// Dropped before it is done, it may leave a lease behind that the server granted at
    /// that very moment: [`Client::abandon`] sees to it.
    ///
    /// # Errors
    /// Not acquired in time; no server at first contact; trouble for too long later.
    pub async fn acquire(&self, target: &Target, ask: &Ask, request_id: &str) -> Result<Grant, Failure> {
        if ask.wait.is_none() {
            self.has_quorum().await?;
        }
        let deadline = ask.wait.map(|wait| Instant::now() + wait);
        let mut wait_max = WAIT_CHUNK;
        let mut contacted = ask.wait.is_none();
        let mut trouble_since: Option<Instant> = None;
        let mut attempts = 0;
        loop {
            let sent = Instant::now();
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(sent));
            // In trouble, one look after the other tells whether it goes on.
            let wait = left.min(wait_max).min(trouble_since.map_or(wait_max, |_| WAIT_IN_TROUBLE));
            attempts += 1;
            let failure = match self.try_acquire(target, ask, request_id, wait).await {
                Ok((lease, answer)) => {
                    // The validity was told when the answer was written, which was not before
                    // it was asked for plus the wait, and not after now.
                    let validity = Duration::from_millis(lease.validity_ms);
                    let written = (sent + Duration::from_millis(lease.waited_ms)).min(Instant::now());
                    return Ok(Grant {
                        lease,
                        answer,
                        valid_until: written + validity,
                        retried: attempts > 1,
                    });
                }
                Err(failure) => failure,
            };
            if let Some(known) = lower_wait_max(&failure, wait) {
                wait_max = known;
                contacted = true;
                continue;
            }
            let out_of_time = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            match &failure {
                _ if failure.is_waited_for(deadline.is_some()) && !out_of_time => {
                    contacted = true;
                    trouble_since = None;
                    // Refused without having been let wait: not to be asked again at once.
                    if wait.is_zero() || sent.elapsed() < wait / 2 {
                        sleep(Self::pause(&failure).min(left)).await;
                    }
                }
                Failure::Unreachable { cut: false, .. } if !contacted => return Err(failure),
                passing if passing.is_passing() && !out_of_time => {
                    contacted = true;
                    // It may have waited undisturbed until now.
                    if trouble_since.get_or_insert_with(Instant::now).elapsed() > TROUBLE_MAX {
                        return Err(failure);
                    }
                    sleep(Self::pause(&failure).min(left)).await;
                }
                _ => return Err(failure),
            }
        }
    }

    async fn try_acquire(
        &self,
        target: &Target,
        ask: &Ask,
        request_id: &str,
        wait: Duration,
    ) -> Result<(Lease, Value), Failure> {
        let ms = |duration: Duration| json!(duration.as_millis() as u64);
        // Candidates are told by elections themselves.
        let owner = ask.owner.as_ref().filter(|_| !matches!(target, Target::Election { .. }));
        let metadata: Map<_, _> =
            ask.metadata.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let fields = [
            ("ttl_ms", ask.ttl.map(ms)),
            ("mode", ask.shared.then(|| json!("shared"))),
            ("max_hold_ms", ask.max_hold.map(ms)),
            ("wait_ms", Some(ms(wait))),
            ("request_id", Some(json!(request_id))),
            ("owner", owner.map(|owner| json!(owner))),
            ("metadata", (!metadata.is_empty()).then(|| metadata.into())),
        ];
        let mut body = target.acquire_body();
        body.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        let body = Value::Object(body);
        let answer =
            self.call(Method::POST, &target.acquire_path(), Some(&body), wait + ANSWER_GRACE).await?;
        read_lease(&answer).map(|lease| (lease, answer))
    }

    /// Before a wait without end: is there anything to wait for? Rides through a short
    /// moment without a quorum, and through a server that is being replaced.
    async fn has_quorum(&self) -> Result<(), Failure> {
        let started = Instant::now();
        let mut contacted = false;
        loop {
            let failure = match self.call(Method::GET, "readyz", None, ANSWER_GRACE).await {
                Err(Failure::Unavailable(problem)) if problem.status == 503 => {
                    contacted = true;
                    Failure::Unavailable(problem)
                }
                Err(failure @ Failure::Unreachable { cut, .. }) => {
                    contacted |= cut;
                    failure
                }
                // Anything else is for the call itself to judge.
                _ => return Ok(()),
            };
            if !contacted || started.elapsed() > QUORUM_PATIENCE {
                return Err(failure);
            }
            sleep(Duration::from_millis(250)).await;
        }
    }

    /// Extends a lease. Gives up after `within`.
    ///
    /// # Errors
    /// [`Failure::Lost`] when it is gone for good.
    pub async fn extend(&self, target: &Target, lease: &Lease, within: Duration) -> Result<Instant, Failure> {
        let mut body = target.body();
        // By the lease's own ttl: another may be longer than the server grants by now.
        body.insert("lease_id".to_owned(), json!(lease.lease_id));
        let sent = Instant::now();
        let answer =
            self.call(Method::POST, &target.extend_path(), Some(&Value::Object(body)), within).await?;
        // Counted from before the request was sent: too short by the way there, never too long.
        Ok(sent + Duration::from_millis(read_lease(&answer)?.validity_ms))
    }

    /// Gives a lease back; tries for as long as `within`.
    pub async fn release(&self, target: &Target, lease: &Lease, within: Duration) -> Result<bool, Failure> {
        self.give_back(target, "lease_id", &lease.lease_id, within).await
    }

    async fn give_back(
        &self,
        target: &Target,
        field: &str,
        id: &str,
        within: Duration,
    ) -> Result<bool, Failure> {
        let mut body = target.body();
        body.insert(field.to_owned(), json!(id));
        let body = Value::Object(body);
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.call(Method::POST, &target.release_path(), Some(&body), left).await {
                Ok(answer) => return Ok(answer.get("released").and_then(Value::as_bool).unwrap_or(false)),
                Err(failure) if failure.is_passing() && left > Duration::from_millis(300) => {
                    sleep(Duration::from_millis(100)).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Leaves nothing behind after [`Client::acquire`] was dropped or failed half-way: a proxy may not have told
    /// the server that its client has left, and the answer may have been on its way.
    pub async fn abandon(&self, target: &Target, request_id: &str) {
        // What cannot be given back ends with its ttl.
        let _ = timeout(TIDY_TIMEOUT, self.give_back(target, "request_id", request_id, TIDY_TIMEOUT)).await;
    }

    /// Whether a probe answers 2xx; its body is not looked at.
    pub async fn probe(&self, path: &str, within: Duration) -> Result<(), Failure> {
        match self.call(Method::GET, path, None, within).await {
            Ok(_) | Err(Failure::Nonsense) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// How long to wait after `failure`: what the server says, spread a little so that many
    /// clients do not come back together.
    fn pause(failure: &Failure) -> Duration {
        let told = match failure {
            Failure::NotAcquired(problem) | Failure::Unavailable(problem) => problem.retry_after_ms,
            _ => None,
        };
        let ms = told.unwrap_or(500).clamp(50, 5_000);
        Duration::from_millis(rand::rng().random_range(ms..=ms + ms / 2))
    }
}

/// A fresh request id.
pub fn new_request_id() -> String {
    hex::encode(rand::rng().random::<[u8; 16]>())
}

/// The longest wait that the server allows, when it refused `wait` for being longer.
fn lower_wait_max(failure: &Failure, wait: Duration) -> Option<Duration> {
    let Failure::Invalid(problem) = failure else { return None };
    let told = &problem.errors.iter().find(|error| error.field == "wait_ms")?.message;
    let highest = told.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).max()?;
    let known = Duration::from_millis(highest);
    (known < wait).then_some(known)
}

/// Loopback is not reached through a proxy, whatever the environment says.
fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|cause| Failure::Usage(format!("{}: {cause}", path.display())))
}

/// An error with all that led to it: reqwest's own words are few.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
