//! How many event streams may be open at a time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::{Kind, Problem};
use crate::service::Primitive;
use crate::telemetry::{self, Acquisition};

/// Room for streams.
pub(super) struct Streams(Arc<Semaphore>);

impl Streams {
    pub(super) fn new(max: usize) -> Self {
        Self(Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))))
    }

    /// Room for one more stream. `acquires`: what it would acquire.
    pub(super) fn open(&self, acquires: Option<Primitive>) -> Result<Slot, Problem> {
        let Ok(permit) = Arc::clone(&self.0).try_acquire_owned() else {
            if let Some(primitive) = acquires {
                telemetry::metrics().acquisition(primitive, Acquisition::Rejected);
            }
            let detail = "The server has as many event streams open as it may.";
            return Err(Problem::new(Kind::TooManyWaiters, detail));
        };
        telemetry::metrics().streams.increment(1.0);
        Ok(Slot { _permit: permit })
    }
}

/// One open stream; dropping it makes room.
pub(super) struct Slot {
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        telemetry::metrics().streams.decrement(1.0);
    }
}
