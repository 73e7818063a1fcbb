//! What the contenders of one queue leave for those behind them: a subscription, the last refusal, who took it.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::quorum::Refusal;
use crate::quorum::hub::Subscription;

/// What contenders of one queue leave for those behind them.
#[derive(Default)]
pub(crate) struct NoticeBoard {
    notices: Mutex<Notices>,
}

#[derive(Default)]
struct Notices {
    subscription: Option<Arc<Subscription>>,
    last: Option<Arc<Refusal>>,
    taken: Option<Taken>,
    split: bool,
    paused: bool,
}

/// Until when, and by which request.
struct Taken {
    until: Instant,
    request: Option<Box<str>>,
}

impl NoticeBoard {
    /// The queue's subscription, once made.
    pub(crate) fn subscription(&self) -> Option<Arc<Subscription>> {
        self.notices.lock().subscription.clone()
    }

    /// Leaves a subscription for all who come after.
    pub(crate) fn subscribed(&self, subscription: Arc<Subscription>) {
        self.notices.lock().subscription = Some(subscription);
    }

    /// The last refusal, for waiters whose time is up before their turn.
    pub(crate) fn last(&self) -> Option<Arc<Refusal>> {
        self.notices.lock().last.clone()
    }

    /// A contender was refused. Whether by an earlier attempt of its own request is nobody else's concern.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        let mut refusal = refusal.clone();
        refusal.holdings.iter_mut().for_each(|holding| holding.same_request = false);
        self.notices.lock().last = Some(Arc::new(refusal));
    }

    /// Nobody knows any more who holds it.
    pub(crate) fn unknown(&self) {
        self.notices.lock().last = None;
    }

    /// A contender of this queue got it: who comes next need not ask before then, or a hint. Whoever was
    /// named as the holder before is none any more.
    pub(crate) fn taken_until(&self, until: Instant, request: Option<&str>) {
        let mut notices = self.notices.lock();
        notices.taken = Some(Taken { until, request: request.map(Into::into) });
        notices.last = None;
    }

    /// Until when it was taken from `request`, as far as known; told once. Nothing was taken from the
    /// same request come twice: its lease is there for it.
    pub(crate) fn take_taken_until(&self, request: Option<&str>) -> Option<Instant> {
        let taken = self.notices.lock().taken.take()?;
        (request.is_none() || taken.request.as_deref() != request).then_some(taken.until)
    }

    /// A vote was split: others contend too.
    pub(crate) fn split(&self) {
        self.notices.lock().split = true;
    }

    /// Whether votes were split here.
    pub(crate) fn is_split(&self) -> bool {
        self.notices.lock().split
    }

    /// The contender has its refusal and sleeps on it, or goes on.
    pub(crate) fn paused(&self, paused: bool) {
        self.notices.lock().paused = paused;
    }

    /// Whether the contender asks for nothing now.
    pub(crate) fn is_paused(&self) -> bool {
        self.notices.lock().paused
    }
}
