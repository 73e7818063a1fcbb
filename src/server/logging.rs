//! Where the log goes: stderr, as text or as one JSON object a line.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts logging.
///
/// # Errors
/// When `level` cannot be read; says why.
pub fn start(format: LogFormat, level: &str) -> Result<(), String> {
    let filter = EnvFilter::builder().parse(level).map_err(|cause| format!("log_level: {cause}"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    };
    started.map_err(|cause| format!("cannot log: {cause}"))
}
