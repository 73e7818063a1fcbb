//! The process: the only place where everything is wired together, started and ended.
//!
//! [`assemble`] builds the layers from the inside out; [`run`] gives them a socket, a log
//! and signals. Ending goes the other way round: on SIGTERM or SIGINT the service says "not
//! ready" and ends all waiting, connections end with the request they serve, what is still
//! owed to the nodes is paid, and the process exits 0; a second signal ends it at once.

pub mod connection;
pub mod listener;
pub mod logging;
mod socket;
pub mod tls;
mod upkeep;
pub mod watch;

use std::future::Future;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::access::KeyRing;
use crate::api::{self, App, Limits};
use crate::clock::{Clock, SystemClock};
use crate::config::{Config, LogFormat, Role, is_loopback};
use crate::node::Node;
use crate::node::embedded::EmbeddedNode;
use crate::node::redis::{RedisNode, RedisOptions};
use crate::quorum::{Engine, EngineOptions};
pub use crate::service::members::Change;
use crate::service::{Service, WaitLimits};
use crate::telemetry::{Reloaded, metrics, trace};

use connection::Connections;
use tls::Tls;

/// Kept back from `shutdown_timeout` for the last steps.
const LAST_STEPS: Duration = Duration::from_millis(500);

/// What went wrong, as a sentence for people.
fn failed(what: &str, cause: impl std::fmt::Display) -> String {
    format!("{what}: {cause}")
}

/// The layers, wired.
struct Layers {
    engine: Arc<Engine>,
    service: Service,
    keys: Option<Arc<KeyRing>>,
    router: axum::Router,
}

/// Nodes → engine → service → routes, from settings.
fn assemble(config: &Config) -> Result<Layers, String> {
    let engine = engine(config)?;
    let limits =
        WaitLimits { waiters_max: config.max_waiters, waiters_per_name_max: config.max_waiters_per_name };
    let service = Service::new(Arc::clone(&engine), limits);
    let keys = config.api_keys.as_deref().map(read_keys).transpose()?.map(Arc::new);
    let gauges = service.clone();
    let app = App {
        service: service.clone(),
        limits: Limits {
            max_ttl_ms: config.max_ttl.0.as_millis() as u64,
            max_wait_ms: config.max_wait.0.as_millis() as u64,
            body_bytes_max: config.max_body_bytes,
            body_timeout: config.body_timeout.0,
            streams_max: config.max_streams,
        },
        keys: keys.clone(),
        render_metrics: Arc::new(move || {
            gauges.refresh_gauges();
            metrics().render()
        }),
    };
    Ok(Layers { engine, service, keys, router: api::router(app) })
}

/// Nodes → engine.
fn engine(config: &Config) -> Result<Arc<Engine>, String> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut nodes: Vec<Arc<dyn Node>> = Vec::new();
    for i in 0..config.embedded_nodes {
        let run_id = format!("embedded-{}-{:032x}", i + 1, clock.random_bits());
        let node = EmbeddedNode::new(&run_id, Arc::clone(&clock));
        nodes.push(Arc::new(node.with_address(&format!("embedded-{}", i + 1))));
    }
    for url in &config.redis {
        let options = RedisOptions {
            node_timeout: config.node_timeout.0,
            connect_timeout: config.connect_timeout.0,
            password_file: config.redis_password_file.clone(),
            ca_file: config.redis_ca.clone(),
            identity_files: config.redis_identity.clone(),
            ..RedisOptions::default()
        };
        let node =
            RedisNode::new(url.expose(), options).map_err(|cause| failed(&format!("node {url}"), cause))?;
        nodes.push(node);
    }
    let options = EngineOptions {
        max_ttl_ms: config.max_ttl.0.as_millis() as u64,
        fence_retention_ms: config.fence_retention.0.as_millis() as u64,
        clock_bound_ms: config.clock_bound.0.as_millis() as u64,
        key_prefix: config.key_prefix.clone(),
    };
    Ok(Engine::new(nodes, clock, options))
}

/// Serves until told to end. The exit code is 0 when all went as it should.
pub async fn run(config: Config, role: Role) -> Result<ExitCode, String> {
    // Before anything that takes time, so that a taken port is told at once.
    let listener = listener::bind(config.listen.0).map_err(|cause| {
        format!("cannot listen on {}: {cause}; --listen takes another address", config.listen.0)
    })?;
    let address = listener.local_addr().map_err(|cause| failed("cannot listen", cause))?;
    let tls = config.tls.clone().map(Tls::new).transpose();
    let tls = tls.map_err(|cause| failed("tls", cause))?.map(Arc::new);
    let mut signals = Signals::new().map_err(|cause| failed("cannot receive signals", cause))?;
    trace::send_by(tokio::runtime::Handle::current());
    let layers = assemble(&config)?;

    match role {
        // Embedded nodes are new at each start, which nobody but us can know.
        Role::Dev { .. } => drop(layers.engine.initialize().await.map_err(|cause| cause.to_string())?),
        Role::Serve | Role::Init => {
            layers.engine.ready_at_start().await.map_err(|cause| cause.to_string())?
        }
    }
    layers.engine.start();

    let (configured, allowed) = (config.max_connections, config.max_connections.min(open_files_max()));
    if allowed < configured {
        tracing::warn!(
            configured,
            allowed,
            "the limit of open files allows fewer connections than configured"
        );
    }
    let config = Arc::new(config);
    let connections = Connections::new(layers.router.clone(), allowed, Arc::clone(&config));
    // Aborted when this returns, whichever way.
    let mut tasks = JoinSet::new();
    watch_files(&mut tasks, &config, &layers, tls.as_ref())
        .map_err(|cause| failed("cannot receive signals", cause))?;
    tasks.spawn(upkeep::run(layers.service.clone()));
    let accepting = tasks.spawn(listener::accept(listener, Arc::clone(&connections), tls));
    announce(&config, role, address);

    let (signal, _) = signals.end().await;
    let (open, in_flight) = (connections.count(), connections.in_flight());
    tracing::info!(signal, connections = open, in_flight, "draining");
    let started = Instant::now();
    layers.service.drain();
    connections.drain();
    let budget = config.shutdown_timeout.0.saturating_sub(LAST_STEPS);
    let ending = async {
        // The socket stays open for a while, so that probes read "not ready" instead of nothing.
        if timeout(budget / 2, connections.emptied()).await.is_err() {
            accepting.abort();
            // What is left then is cut off by the end of the process, and counted in the log.
            let _ = timeout(budget / 2, connections.emptied()).await;
        }
        accepting.abort();
        // A vote that comes late may be a grant that nobody got. What stays ends with its ttl.
        let settled = async {
            while !layers.engine.is_settled() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let time_left = || config.shutdown_timeout.0.saturating_sub(started.elapsed() + LAST_STEPS / 5);
        // A node has so long for its vote, and so long for taking it back.
        let _ = timeout((2 * config.node_timeout.0).min(time_left() / 2), settled).await;
        trace::finish(time_left()).await;
    };
    tokio::select! {
        () = ending => {}
        (signal, number) = signals.end() => {
            tracing::warn!(signal, "ended at once");
            return Ok(ExitCode::from(128 + number));
        }
    }
    let left = connections.count();
    tracing::info!(took_ms = started.elapsed().as_millis() as u64, cut_off = left, "ended");
    Ok(ExitCode::SUCCESS)
}

/// Marks the nodes of a new deployment and says what was done.
pub async fn initialize(config: Config) -> Result<String, String> {
    let engine = engine(&config)?;
    let report = engine.initialize().await.map_err(|cause| cause.to_string())?;
    let marked = report.marked.iter().map(|address| format!("marked {address}\n"));
    let left = report.left_to_quarantine.iter().map(|address| {
        format!("left {address} to its quarantine: the deployment is not new, the node is blank\n")
    });
    let mut text: String = marked.chain(left).collect();
    let known = report.total - report.marked.len() - report.left_to_quarantine.len();
    text += &format!("{} nodes, {known} of them known before\n", report.total);
    Ok(text)
}

/// The members, after `change` if there is one, by asking the nodes themselves.
pub async fn members(config: Config, change: Option<&Change>) -> Result<serde_json::Value, String> {
    let service = Service::new(engine(&config)?, WaitLimits { waiters_max: 0, waiters_per_name_max: 0 });
    service.engine.ready_at_start().await.map_err(|cause| cause.to_string())?;
    let view = match change {
        Some(change) => service.change_members(change).await.map_err(|cause| cause.to_string())?,
        None => service.members(),
    };
    Ok(api::member_list(view))
}

fn read_keys(path: &std::path::Path) -> Result<KeyRing, String> {
    let what = format!("api_keys: {}", path.display());
    let text = std::fs::read_to_string(path).map_err(|cause| failed(&what, cause))?;
    KeyRing::parse(&text).map_err(|cause| failed(&what, cause))
}

/// Key file and certificates are read again when they change, and on SIGHUP.
fn watch_files(
    tasks: &mut JoinSet<()>,
    config: &Config,
    layers: &Layers,
    tls: Option<&Arc<Tls>>,
) -> std::io::Result<()> {
    // Also where there is nothing to read: by default the signal ends the process.
    let hangup = || signal(SignalKind::hangup());
    drop(hangup()?);
    if let (Some(path), Some(keys)) = (config.api_keys.clone(), layers.keys.clone()) {
        let paths = vec![path.clone()];
        let reload = move || read_keys(&path).map(|ring| keys.replace(ring));
        tasks.spawn(watch::watch(Reloaded::Keys, paths, hangup()?, reload));
    }
    if let Some(tls) = tls.cloned() {
        tasks.spawn(watch::watch(Reloaded::Certificates, tls.paths(), hangup()?, move || tls.reload()));
    }
    Ok(())
}

/// Says where it listens: in the log, and for `dev`, or wherever people read along, on stdout.
fn announce(config: &Config, role: Role, address: SocketAddr) {
    let url = format!("{}://{}", config.scheme(), reachable(address));
    tracing::info!(%address, url, nodes = config.redis.len() + config.embedded_nodes, "listening");
    let text = match role {
        Role::Dev { nodes } => banner(&url, nodes, address, config.api_keys.is_some()),
        _ if config.log_format == LogFormat::Text => format!("listening on {url}\n"),
        _ => return,
    };
    // Whoever started us with a closed stdout does not want to know.
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

fn banner(url: &str, nodes: usize, address: SocketAddr, keyed: bool) -> String {
    let open = match keyed || is_loopback(address) {
        true => "",
        false => "Everyone who reaches this port can hold and release locks: there are no API keys.\n",
    };
    let key = if keyed { " -H 'authorization: Bearer SECRET'" } else { "" };
    format!(
        "listening on {url}\n\n\
         Quorate {version}: locks, semaphores, leader election and fencing tokens over HTTP,\n\
         here on {nodes} node{s} embedded in this process, to try things out. No Redis, no\n\
         configuration, and all data ends with the process. {open}\n\n\
         Take a lock, and look at it:\n\n  \
           curl -s {url}/v1/locks/demo/acquire{key} -H 'content-type: application/json' -d '{{\"ttl_ms\": 10000}}'\n  \
           curl -s {url}/v1/locks/demo{key}\n\n\
         Console: {url}/console      All calls: {url}/docs\n\
         The real thing: quorate serve --help      End: Ctrl-C\n\n",
        version = env!("CARGO_PKG_VERSION"),
        s = if nodes == 1 { "" } else { "s" },
    )
}

/// The address for a URL: loopback in place of "all addresses".
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Raises the limit of open files, of which each connection is one, as far as the system lets
/// us; how many connections fit. More would fail at being accepted, without a word to the client.
fn open_files_max() -> usize {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    /// For nodes, logs, files that are read again.
    const OTHERS: u64 = 256;
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map(|()| hard));
    match raised {
        Ok(files) => {
            let connections = files.saturating_sub(OTHERS).max(16);
            tracing::debug!(files, connections, "open files");
            usize::try_from(connections).unwrap_or(usize::MAX)
        }
        Err(cause) => {
            tracing::warn!(%cause, "cannot raise the limit of open files");
            usize::MAX
        }
    }
}

/// The signals that end a server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The name and the number of the next one.
    async fn end(&mut self) -> (&'static str, u8) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 15),
            _ = self.interrupt.recv() => ("SIGINT", 2),
        }
    }
}

/// Sockets that are looked after, per node, before others are asked for. Calls are gathered for two
/// such turns, so that while the nodes run some, the server works at others; the more nodes there
/// are, the more calls it takes for a run at each of them to be worth it.
const EVENTS_PER_NODE: usize = 8;

/// Runs `task` on a runtime of `threads` threads for a server of so many `nodes`, or for none. One
/// thread is a runtime without any work stealing or waking of each other, which on few cores is
/// faster than two.
pub fn block_on<T>(threads: usize, nodes: usize, task: impl Future<Output = T>) -> std::io::Result<T> {
    let mut builder = match threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    if nodes > 0 {
        builder.max_io_events_per_tick(EVENTS_PER_NODE * nodes);
    }
    let runtime = builder.enable_all().build()?;
    let value = runtime.block_on(task);
    // Whatever still runs belongs to nobody now.
    runtime.shutdown_background();
    Ok(value)
}
