//! Where the log goes: stderr, as text or as one JSON object a line.

use std::io::IsTerminal;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};

/// What logs each answered request, at the level debug unless something was wrong with it.
const REQUESTS: &str = "quorate::api::observe=debug";

/// Lines that wait for whoever reads the log. More are lost: leases do not wait for a log.
const LINES_MAX: usize = 8_192;

/// Starts logging, by a thread of its own: neither a reader that stops reading nor one that has gone, or a
/// disk that is full, is any business of those who wait for a lock. What waits is written when the guard
/// is dropped.
///
/// # Errors
/// When `log_level` cannot be read; says why.
pub fn start(config: &Config) -> Result<WorkerGuard, String> {
    let mut directives = config.log_level.clone();
    if config.log_requests {
        directives = format!("{directives},{REQUESTS}");
    }
    let filter = EnvFilter::builder().parse(&directives).map_err(|cause| format!("log_level: {cause}"))?;
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES_MAX)
        .thread_name("log")
        .finish(std::io::stderr());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    let started = match config.log_format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    };
    started.map(|()| guard).map_err(|cause| format!("cannot log: {cause}"))
}
