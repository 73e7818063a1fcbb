//! Eyes on locks, semaphores and elections: a read that waits for a change, and streams of changes.
//!
//! All observers of one name share one watch per API server. It looks when a node hints at a change, when something
//! was acquired here, when a lease should have expired, and every now and then in any case.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::Stream;
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast};

use super::{Service, ServiceError, View, unavailable};
use crate::domain::{Name, Resource};

/// Changes kept for an observer that reads slowly; one that is slower still skips to the latest.
const CHANGES_KEPT: usize = 64;
/// With hints cut, a watch looks this often at an election.
const SAFETY_POLL: Duration = Duration::from_secs(2);
/// Nodes tell of releases, but not that another server granted a lock or a permit: that would cost every grant a
/// message to each node, for the few names that are observed. So a watch looks for it this often.
const GRANT_POLL: Duration = Duration::from_millis(500);
/// A watch takes at most a part of the nodes' time: its pause is so many times as long as its look.
const LOOK_SHARE: u32 = 4;
/// Without a quorum, a watch looks this often.
const OUTAGE_POLL: Duration = Duration::from_millis(200);

/// The watches of this API server, by key.
#[derive(Default)]
pub(crate) struct Watches {
    by_key: Mutex<HashMap<Arc<str>, Weak<Watch>>>,
}

impl Watches {
    /// Something was granted here under these keys: their watches look at once.
    pub(crate) fn look_again(&self, keys: &[Arc<str>]) {
        let watches = self.by_key.lock();
        // Mostly nobody watches anything.
        if !watches.is_empty() {
            let watched = keys.iter().filter_map(|key| watches.get(key)?.upgrade());
            watched.for_each(|watch| watch.wanted.notify_one());
        }
    }
}

struct Watch {
    seen: Mutex<Seen>,
    /// A look was done.
    looked: Notify,
    /// Somebody wants a look that begins now.
    wanted: Arc<Notify>,
    changes: broadcast::Sender<View>,
}

#[derive(Default)]
struct Seen {
    view: Option<View>,
    /// Looks begun, and the numbers of the last one that ended and of the last one that succeeded.
    begun: u64,
    ended: u64,
    done: u64,
}

impl Watch {
    /// The present state, by a look that begins after this call, with all changes after it,
    /// none missing in between: who comes now must not be shown the past. Where the first such look
    /// fails, `None`, or to the `patient` the next that does not.
    async fn follow(&self, patient: bool) -> Option<(View, broadcast::Receiver<View>)> {
        let fresh = self.seen.lock().begun + 1;
        self.wanted.notify_one();
        loop {
            let mut looked = std::pin::pin!(self.looked.notified());
            // Registered before the check, so that no look falls in between.
            looked.as_mut().enable();
            {
                let seen = self.seen.lock();
                match &seen.view {
                    Some(view) if seen.done >= fresh => {
                        return Some((view.clone(), self.changes.subscribe()));
                    }
                    _ if seen.ended >= fresh && !patient => return None,
                    _ => {}
                }
            }
            looked.await;
        }
    }

    fn begin(&self) -> u64 {
        let mut seen = self.seen.lock();
        seen.begun += 1;
        seen.begun
    }

    fn failed(&self, look: u64) {
        self.seen.lock().ended = look;
        self.looked.notify_waiters();
    }

    fn saw(&self, look: u64, view: View) {
        let mut seen = self.seen.lock();
        seen.ended = look;
        let changed = seen.view.as_ref().is_none_or(|before| before.revision != view.revision);
        seen.done = look;
        seen.view = Some(view.clone());
        if changed {
            // Without observers there is nobody to tell. Sent under the lock, so that whoever
            // follows has either seen this view or hears of it.
            let _ = self.changes.send(view);
        }
        drop(seen);
        self.looked.notify_waiters();
    }
}

/// How long a watch pauses after a look that took so long and, if a lease is held, saw the first one end in so many ms.
fn pause_after(took: Duration, poll: Duration, ends_in_ms: Option<u64>) -> Duration {
    let ends_in = ends_in_ms.map(|ms| Duration::from_millis(ms + 1));
    poll.min(ends_in.unwrap_or(poll)).max(took * LOOK_SHARE)
}

impl Service {
    fn watch(&self, resource: Resource, name: &Name) -> Arc<Watch> {
        let key: Arc<str> = self.engine.keys().of(resource, name).into();
        let mut watches = self.watches.by_key.lock();
        if let Some(watch) = watches.get(&key).and_then(Weak::upgrade) {
            return watch;
        }
        let watch = Arc::new(Watch {
            seen: Mutex::default(),
            looked: Notify::new(),
            wanted: Arc::default(),
            changes: broadcast::channel(CHANGES_KEPT).0,
        });
        watches.insert(Arc::clone(&key), Arc::downgrade(&watch));
        tokio::spawn(self.clone().keep_watch(resource, name.clone(), key, Arc::downgrade(&watch)));
        watch
    }

    async fn keep_watch(self, resource: Resource, name: Name, key: Arc<str>, watch: Weak<Watch>) {
        let subscription = self.engine.hub().listen(std::slice::from_ref(&key), None).await;
        let poll = if resource == Resource::Election { SAFETY_POLL } else { GRANT_POLL };
        let mut due = self.engine.clock().now();
        while !self.is_draining() {
            subscription.bell().reset();
            let Some(watch) = watch.upgrade() else { break };
            let look = watch.begin();
            let began = self.engine.clock().now();
            let seen = self.look(resource, &name).await;
            let now = self.engine.clock().now();
            let pause = match seen {
                Ok(view) => {
                    let pause = pause_after(now - began, poll, view.first_expiry_ms());
                    watch.saw(look, view);
                    pause
                }
                Err(_) => {
                    watch.failed(look);
                    OUTAGE_POLL
                }
            };
            // A look after a hint does not put off the next one: a name that is released again and again would never be
            // seen taken.
            let (soonest, latest) = (now + (now - began) * LOOK_SHARE, now + pause);
            due = if due > now { due.max(soonest).min(latest) } else { latest };
            // Not kept alive while it waits: without observers the watch ends.
            let wanted = Arc::clone(&watch.wanted);
            drop(watch);
            let rung =
                subscription.bell().rung(self.engine.total(), self.engine.round_trip(), Duration::ZERO);
            tokio::select! {
                biased;
                () = wanted.notified() => {}
                () = rung => {}
                () = tokio::time::sleep_until(due) => {}
            }
        }
        // Unless there is a new one by now.
        let mut watches = self.watches.by_key.lock();
        if watches.get(&key).is_some_and(|watch| watch.strong_count() == 0) {
            watches.remove(&key);
        }
    }

    /// Who holds it. With `after`, answers as soon as the revision differs from it, or else after `wait_ms`.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`], [`ServiceError::ShuttingDown`].
    pub async fn look_after(
        &self,
        resource: Resource,
        name: &Name,
        after: Option<&str>,
        wait_ms: u64,
    ) -> Result<View, ServiceError> {
        let deadline = self.engine.clock().now() + Duration::from_millis(wait_ms);
        let now = self.look(resource, name).await;
        let (Some(after), true) = (after, wait_ms > 0) else { return now };
        match now {
            Ok(view) if view.revision != after => return Ok(view),
            _ => {}
        }
        let watch = self.watch(resource, name);
        let changed = async {
            let Some((view, mut changes)) = watch.follow(true).await else {
                return Err(unavailable(self.engine.tally()));
            };
            if view.revision != after {
                return Ok(view);
            }
            loop {
                match changes.recv().await {
                    Ok(view) if view.revision != after => return Ok(view),
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return Err(ServiceError::ShuttingDown),
                }
            }
        };
        tokio::select! {
            biased;
            () = self.rooms.closing() => Err(ServiceError::ShuttingDown),
            view = tokio::time::timeout_at(deadline, changed) => match view {
                Ok(view) => view,
                // As it is now, and where no quorum says so, not at all.
                Err(_) => self.look(resource, name).await,
            },
        }
    }

    /// The present state first, then each change. Ends when the server drains.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`], [`ServiceError::ShuttingDown`]. Who observes already is not told
    /// that there is no quorum, and waits for one.
    pub async fn observe(
        &self,
        resource: Resource,
        name: &Name,
    ) -> Result<impl Stream<Item = View> + Send + 'static + use<>, ServiceError> {
        let service = self.clone();
        let watch = service.watch(resource, name);
        let (present, mut changes) = tokio::select! {
            biased;
            () = service.rooms.closing() => return Err(ServiceError::ShuttingDown),
            followed = watch.follow(false) => followed.ok_or_else(|| unavailable(service.engine.tally()))?,
        };
        Ok(async_stream::stream! {
            // Without an observer it ends.
            let _watch = watch;
            yield present;
            loop {
                let change = tokio::select! {
                    biased;
                    () = service.rooms.closing() => return,
                    change = changes.recv() => change,
                };
                match change {
                    Ok(view) => yield view,
                    // The next one tells the latest state.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_pauses_for_four_times_as_long_as_it_looked_also_where_a_lease_ends_sooner() {
        let ms = Duration::from_millis;
        for (took, ends_in_ms, pause) in [
            (1, None, 500),
            (1, Some(20_000), 500),
            (1, Some(99), 100),
            (1, Some(0), 4),
            (50, Some(99), 200),
            (50, Some(0), 200),
            (200, Some(99), 800),
            (200, None, 800),
        ] {
            assert_eq!(pause_after(ms(took), ms(500), ends_in_ms), ms(pause), "{took} {ends_in_ms:?}");
        }
    }
}
