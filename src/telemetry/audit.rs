//! The audit: who took what away, who changed the members, and which keys and certificates were read again.
//!
//! Each event is a line of the log, and a line of JSON in the file of `--audit-log`. With `--audit-leases` the file has
//! each lease too: granted, released, lost, expired. A thread of its own writes; leases never wait for it, so that what
//! a full disk leaves no room for is dropped, and counted in the log.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::domain::Primitive;

/// Lines that wait to be written. More are dropped.
const LINES_MAX: usize = 8_192;

/// Set once, before the first request; empty without `--audit-log`.
static AUDIT: OnceLock<Audit> = OnceLock::new();

struct Audit {
    writer: NonBlocking,
    dropped: ErrorCounter,
    told: AtomicUsize,
    leases: bool,
}

/// One line. What is not known is left out.
#[derive(Serialize, Default)]
struct Record<'a> {
    time: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    primitive: Option<&'static str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    names: &'a [&'a str],
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    owner: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    released: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// Begins to write to the file at `path`, behind what it has; with each lease if `leases`. What waits is written when
/// the guard is dropped. To be called once.
pub fn start(path: &Path, leases: bool) -> io::Result<WorkerGuard> {
    let file = File::options().create(true).append(true).open(path)?;
    let file = Complaining { file, is_failing: AtomicBool::new(false) };
    let builder =
        NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_MAX).thread_name("audit");
    let (writer, guard) = builder.finish(file);
    let dropped = writer.error_counter();
    let audit = Audit { writer, dropped, told: AtomicUsize::new(0), leases };
    AUDIT.set(audit).map_err(|_| io::Error::other("the audit was started before"))?;
    Ok(guard)
}

/// Somebody took all leases of a name away from their holders, or the one with a token. `released` says whether there was
/// any; `None`: no quorum told.
pub fn forced_release(
    primitive: Primitive,
    name: &str,
    fencing_token: Option<u64>,
    key: Option<&str>,
    reason: Option<&str>,
    request_id: &str,
    released: Option<bool>,
) {
    let of = primitive.name();
    tracing::warn!(primitive = of, name, fencing_token, key, reason, request_id, released, "forced release");
    write(Record {
        event: "forced_release",
        primitive: Some(of),
        names: &[name],
        fencing_token,
        key,
        reason,
        request_id,
        released,
        error: released.is_none().then_some("no quorum of nodes answered; some may have released it"),
        ..Record::default()
    });
}

/// The members were changed by a command: `close n3`. The epoch is that of the new membership.
pub fn members_changed(change: &str, epoch: u64, key: Option<&str>, request_id: &str) {
    tracing::info!(change, epoch, key, request_id, "membership changed by command");
    write(Record {
        event: "members_changed",
        change: Some(change),
        epoch: Some(epoch),
        key,
        request_id,
        ..Record::default()
    });
}

/// Keys or certificates were read again, or could not be.
pub fn reloaded(what: &str, error: Option<&str>) {
    write(Record { event: "reloaded", what: Some(what), error, ..Record::default() });
}

/// Whether leases are written.
pub(crate) fn of_leases() -> bool {
    AUDIT.get().is_some_and(|audit| audit.leases)
}

/// A lease was granted, was released, or is over.
pub(crate) fn lease(event: &'static str, primitive: Primitive, names: &[&str], token: u64, owner: &str) {
    if of_leases() {
        let (primitive, fencing_token) = (Some(primitive.name()), Some(token));
        write(Record { event, primitive, names, fencing_token, owner, ..Record::default() });
    }
}

/// Tells of lines that were dropped since it was last called.
pub fn tell_of_dropped() {
    let Some(audit) = AUDIT.get() else { return };
    let dropped = audit.dropped.dropped_lines();
    let before = audit.told.swap(dropped, Ordering::Relaxed);
    if dropped > before {
        tracing::error!(lines = dropped - before, "the audit log is written too slowly: lines were dropped");
    }
}

fn write(record: Record<'_>) {
    let Some(audit) = AUDIT.get() else { return };
    let time = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
    // Strings and numbers always serialize.
    let mut line = serde_json::to_vec(&Record { time, ..record }).unwrap_or_default();
    line.push(b'\n');
    // It counts what it drops itself.
    let _ = audit.writer.clone().write_all(&line);
}

/// Says when writing begins to fail and when it works again.
struct Complaining {
    file: File,
    is_failing: AtomicBool,
}

impl Write for Complaining {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        let before = self.is_failing.swap(written.is_err(), Ordering::Relaxed);
        match &written {
            Err(cause) if !before => tracing::error!(%cause, "the audit log cannot be written"),
            Ok(_) if before => tracing::info!("the audit log is written again"),
            _ => {}
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
