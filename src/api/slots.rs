//! How many event streams may be open at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::problem::{Kind, Problem};
use crate::service::Primitive;
use crate::telemetry::{self, Acquisition};

/// How many streams are open, and how many may be.
pub(super) struct Streams {
    open: AtomicUsize,
    max: usize,
}

impl Streams {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { open: AtomicUsize::new(0), max })
    }

    /// Room for one more stream. `acquires`: what it would acquire.
    pub(super) fn open(self: &Arc<Self>, acquires: Option<Primitive>) -> Result<Slot, Problem> {
        let one_more = |open: usize| (open < self.max).then_some(open + 1);
        if self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            if let Some(primitive) = acquires {
                telemetry::metrics().acquisition(primitive, Acquisition::Rejected);
            }
            let detail = "The server has as many event streams open as it may.";
            return Err(Problem::new(Kind::TooManyWaiters, detail));
        }
        telemetry::metrics().streams.increment(1.0);
        Ok(Slot(Arc::clone(self)))
    }
}

/// One open stream; dropping it makes room.
pub(super) struct Slot(Arc<Streams>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        telemetry::metrics().streams.decrement(1.0);
    }
}
