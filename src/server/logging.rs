//! Where the log goes: stderr, as text or as one JSON object a line.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};

/// What logs each answered request, at the level debug unless something was wrong with it.
const REQUESTS: &str = "quorate::api::front=debug";

/// Starts logging.
///
/// # Errors
/// When `log_level` cannot be read; says why.
pub fn start(config: &Config) -> Result<(), String> {
    let mut directives = config.log_level.clone();
    if config.log_requests {
        directives = format!("{directives},{REQUESTS}");
    }
    let filter = EnvFilter::builder().parse(&directives).map_err(|cause| format!("log_level: {cause}"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match config.log_format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    };
    started.map_err(|cause| format!("cannot log: {cause}"))
}
