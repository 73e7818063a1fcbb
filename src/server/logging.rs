//! Where the log goes: stderr, as text or as one JSON object a line.

use std::io::IsTerminal;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt, registry};

use crate::config::{Config, LogFormat};
use crate::telemetry::audit;
use crate::telemetry::trace;

/// What logs each answered request, at the level debug unless something was wrong with it.
const REQUESTS: &str = "quorate::api::observe=debug";

/// Lines that wait for whoever reads the log. More are lost: leases do not wait for a log.
const LINES_MAX: usize = 8_192;

/// Starts logging, by a thread of its own: neither a reader that stops reading nor one that has gone, or a
/// disk that is full, is any business of those who wait for a lock. What waits is written when the guard
/// is dropped.
pub fn start(config: &Config) -> Result<WorkerGuard, String> {
    let mut directives = config.log_level.clone();
    if config.log_requests.0 {
        directives = format!("{directives},{REQUESTS}");
    }
    let filter = EnvFilter::builder().parse(&directives).map_err(|cause| format!("log_level: {cause}"))?;
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES_MAX)
        .thread_name("log")
        .finish(std::io::stderr());
    let traces = config.otlp_endpoint.as_ref();
    let traces = traces.map(|endpoint| trace::layer(endpoint.as_str(), config.otlp_sample_ratio)).transpose();
    let traces = traces.map_err(|cause| format!("otlp_endpoint: {cause}"))?;
    let lines = fmt::layer().with_writer(writer);
    let lines = match config.log_format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
    };
    let started = registry().with(traces).with(lines.with_filter(filter)).try_init();
    started.map(|()| guard).map_err(|cause| format!("cannot log: {cause}"))
}

/// Starts the audit log, where one is wanted. What waits is written when the guard is dropped.
pub fn start_audit(config: &Config) -> Result<Option<WorkerGuard>, String> {
    let Some(path) = &config.audit_log else { return Ok(None) };
    let started = audit::start(path, config.audit_leases.0);
    started.map(Some).map_err(|cause| format!("audit_log: {}: {cause}", path.display()))
}
