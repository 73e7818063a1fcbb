//! Files that are read again when they change.
//!
//! By looking at them every few seconds: works for editors that rename, for Kubernetes'
//! swapped symlinks and for network file systems, where notifications do not. What was
//! read before stays in use while the new content is wrong, and the log says so once.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::signal::unix::Signal;
use tokio::time::timeout;

use crate::telemetry::{Reloaded, audit, metrics};

/// How often to look.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Calls `reload` whenever the content of one of `paths` is not what it is now, and on SIGHUP.
/// Runs until dropped.
pub fn watch<E: Display + 'static>(
    what: Reloaded,
    paths: Vec<PathBuf>,
    mut hangup: Signal,
    reload: impl Fn() -> Result<(), E> + Send + Sync + 'static,
) -> impl Future<Output = ()> {
    let reload = Arc::new(reload);
    // Here and not when the future is first polled: a busy server gets to that late.
    let mut seen = digest(&paths);
    async move {
        loop {
            let asked = timeout(LOOK_EVERY, hangup.recv()).await.is_ok();
            let look = paths.clone();
            let found = tokio::task::spawn_blocking(move || digest(&look)).await.unwrap_or(seen);
            if found == seen && !asked {
                continue;
            }
            seen = found;
            let reload = Arc::clone(&reload);
            let reloaded =
                tokio::task::spawn_blocking(move || reload().map_err(|cause| cause.to_string())).await;
            let reloaded = reloaded.unwrap_or_else(|cause| Err(cause.to_string()));
            audit::reloaded(what.name(), reloaded.as_ref().err().map(String::as_str));
            match reloaded {
                Ok(()) => tracing::info!("{} read again", what.name()),
                Err(cause) => {
                    let name = what.name();
                    tracing::error!(%cause, "{name} cannot be used; what was read before stays in use");
                    metrics().reload_failed(what);
                }
            }
        }
    }
}

/// Of all contents, so that no secret is kept; a file that cannot be read counts as empty.
fn digest(paths: &[PathBuf]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for path in paths {
        let content = std::fs::read(path).unwrap_or_default();
        hash.update((content.len() as u64).to_le_bytes());
        hash.update(&content);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::signal::unix::{SignalKind, signal};

    use super::*;

    fn hangup() -> Signal {
        signal(SignalKind::hangup()).unwrap()
    }

    #[tokio::test]
    async fn a_changed_file_is_read_again_and_an_unchanged_one_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reloads = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&reloads);
        let task = tokio::spawn(watch(Reloaded::Keys, vec![file.path().to_owned()], hangup(), move || {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok::<(), String>(())
        }));
        tokio::time::sleep(LOOK_EVERY + LOOK_EVERY / 4).await;
        assert_eq!(reloads.load(Ordering::SeqCst), 0);
        std::fs::write(file.path(), "new").unwrap();
        tokio::time::sleep(LOOK_EVERY * 2 + LOOK_EVERY / 4).await;
        assert_eq!(reloads.load(Ordering::SeqCst), 1);
        task.abort();
    }

    #[tokio::test]
    async fn a_file_that_changes_before_the_first_look_is_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let watching = watch(Reloaded::Keys, vec![file.path().to_owned()], hangup(), move || {
            tell.send(()).map_err(|_| "nobody listens")
        });
        std::fs::write(file.path(), "new").unwrap();
        let task = tokio::spawn(watching);
        tokio::time::timeout(LOOK_EVERY * 10, told.recv()).await.unwrap();
        task.abort();
    }
}
