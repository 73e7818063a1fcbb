//! Leader election: a lease whose fencing token is the term, and eyes on it.
//!
//! All observers of one election share one watch per API server: it looks when a node
//! hints at a change, when the leader's lease should have expired, and every few
//! seconds in any case.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::Stream;
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast};

use super::leases::{count_extension, unavailable};
use super::{Held, Holder, Inspection, Lease, Nodes, Note, Primitive, Service, ServiceError};
use crate::domain::{LeaseHandle, Name, Renewal, Scope, Value};

/// Changes kept for an observer that reads slowly; one that is slower still skips to the latest.
const CHANGES_KEPT: usize = 64;
/// With hints cut, a watch looks this often.
const SAFETY_POLL: Duration = Duration::from_secs(2);
/// Without a quorum, a watch looks this often.
const OUTAGE_POLL: Duration = Duration::from_millis(200);

/// An election as everyone may see it.
#[derive(Debug, Clone)]
pub struct LeaderView {
    /// The leader, or `None` while vacant.
    pub holder: Option<Holder>,
    /// Opaque; changes with leader, term, value and vacancy.
    pub revision: String,
    /// Candidates that wait on this API server.
    pub waiters: usize,
    /// How the nodes stood.
    pub nodes: Nodes,
}

impl LeaderView {
    fn new(seen: Inspection) -> Self {
        let revision = match &seen.holder {
            Some(leader) => format!("{:x}-{}", leader.token.get(), leader.note.version),
            None => "vacant".to_owned(),
        };
        Self { holder: seen.holder, revision, waiters: seen.waiters, nodes: seen.nodes }
    }
}

/// A value is being stored: tells so however that ends. Whoever proclaims it may leave before it hears.
struct Told<'a> {
    service: &'a Service,
    scope: Scope,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.service.engine.publish(self.scope.channels());
    }
}

/// The watches of this API server, by election.
#[derive(Default)]
pub(crate) struct Watches {
    by_name: Mutex<HashMap<Name, Weak<Watch>>>,
}

struct Watch {
    seen: Mutex<Seen>,
    /// A look was done.
    looked: Notify,
    /// Somebody wants a look that begins now.
    wanted: Arc<Notify>,
    changes: broadcast::Sender<LeaderView>,
}

#[derive(Default)]
struct Seen {
    view: Option<LeaderView>,
    /// Looks begun, and the numbers of the last one that ended and of the last one that succeeded.
    begun: u64,
    ended: u64,
    done: u64,
}

impl Watch {
    /// The present state, by a look that begins after this call, with all changes after it,
    /// none missing in between: who comes now must not be shown the past. Where the first such look
    /// fails, `None`, or to the `patient` the next that does not.
    async fn follow(&self, patient: bool) -> Option<(LeaderView, broadcast::Receiver<LeaderView>)> {
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

    fn saw(&self, look: u64, view: LeaderView) {
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

impl Service {
    fn watch(&self, name: &Name) -> Arc<Watch> {
        let mut watches = self.watches.by_name.lock();
        if let Some(watch) = watches.get(name).and_then(Weak::upgrade) {
            return watch;
        }
        let watch = Arc::new(Watch {
            seen: Mutex::default(),
            looked: Notify::new(),
            wanted: Arc::default(),
            changes: broadcast::channel(CHANGES_KEPT).0,
        });
        watches.insert(name.clone(), Arc::downgrade(&watch));
        tokio::spawn(self.clone().keep_watch(name.clone(), Arc::downgrade(&watch)));
        watch
    }

    async fn keep_watch(self, name: Name, watch: Weak<Watch>) {
        let channel: Arc<str> = self.engine.keys().election(&name).into();
        let subscription = self.engine.hub().listen(std::slice::from_ref(&channel), None).await;
        while !self.is_draining() {
            subscription.bell().reset();
            let Some(watch) = watch.upgrade() else { break };
            let look = watch.begin();
            let mut pause = SAFETY_POLL;
            match self.inspect(&channel).await {
                Ok(seen) => {
                    if let Some(leader) = &seen.holder {
                        pause = pause.min(Duration::from_millis(leader.remaining_ms + 1));
                    }
                    watch.saw(look, LeaderView::new(seen));
                }
                Err(_) => {
                    watch.failed(look);
                    pause = OUTAGE_POLL;
                }
            }
            // Not kept alive while it waits: without observers the watch ends.
            let wanted = Arc::clone(&watch.wanted);
            drop(watch);
            let rung =
                subscription.bell().rung(self.engine.total(), self.engine.round_trip(), Duration::ZERO);
            tokio::select! {
                biased;
                () = wanted.notified() => {}
                () = rung => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        // Unless there is a new one by now.
        let mut watches = self.watches.by_name.lock();
        if watches.get(&name).is_some_and(|watch| watch.strong_count() == 0) {
            watches.remove(&name);
        }
    }

    /// The leader. With `after`, answers as soon as the revision differs from it, or else
    /// after `wait_ms`.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`], [`ServiceError::ShuttingDown`].
    pub async fn get_leader(
        &self,
        name: &Name,
        after: Option<&str>,
        wait_ms: u64,
    ) -> Result<LeaderView, ServiceError> {
        let deadline = self.engine.clock().now() + Duration::from_millis(wait_ms);
        let key = self.engine.keys().election(name);
        let now = self.inspect(&key).await.map(LeaderView::new);
        let (Some(after), true) = (after, wait_ms > 0) else { return now };
        match now {
            Ok(view) if view.revision != after => return Ok(view),
            _ => {}
        }
        let watch = self.watch(name);
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
                Err(_) => self.inspect(&key).await.map(LeaderView::new),
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
        name: &Name,
    ) -> Result<impl Stream<Item = LeaderView> + Send + 'static + use<>, ServiceError> {
        let service = self.clone();
        let watch = service.watch(name);
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

    /// Changes what the leader proclaims; the lease's remaining time stays as it is. Of several at
    /// the same time, each comes just before one of a later version, and the latest stays.
    ///
    /// # Errors
    /// [`ServiceError::LeaseLost`], [`ServiceError::QuorumUnavailable`].
    pub async fn proclaim(
        &self,
        name: &Name,
        handle: LeaseHandle,
        value: Value,
    ) -> Result<Lease, ServiceError> {
        let held = Held::Election(name.clone());
        let round = async |note: Option<&Note>| self.renew(&held, handle, Renewal::Keep, note).await;
        let proclaimed = async {
            let mut note = round(None).await?.note;
            note.value = Some(value);
            // At least the latest that a quorum stores is among what was read.
            note.version = self.engine.version_after(note.version);
            let _told = Told { service: self, scope: held.scope(self.engine.keys()) };
            let lease = round(Some(&note)).await?;
            // Stored by a quorum, or replaced there by a later version already.
            Ok(Lease { note, ..lease })
        }
        .await;
        count_extension(Primitive::Election, &proclaimed);
        proclaimed
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::domain::Candidate;
    use crate::node::Script;
    use crate::quorum::fixture::Api;
    use crate::service::{AcquireOptions, Target, WaitLimits};

    #[tokio::test(start_paused = true)]
    async fn observers_hear_of_a_value_whose_leader_has_left_while_it_was_stored() {
        let [api, _] = Api::pair().await;
        let limits = WaitLimits { waiters_max: 10, waiters_per_name_max: 10 };
        let service = Service::new(Arc::clone(&api.engine), limits);
        let name = Name::new("a").unwrap();
        let note = Note { candidate: Candidate::new("c").ok(), ..Note::default() };
        let options = AcquireOptions { ttl_ms: 30_000, wait_ms: 0, note, request: None };
        let lease = service.acquire(&Target::Election(name.clone()), &options).await.unwrap().deliver();
        let key: Arc<str> = api.engine.keys().election(&name).into();
        let observer = api.engine.hub().listen(&[key], None).await;
        observer.bell().reset();

        api.nodes.iter().for_each(|node| node.hang_with(Script::Extend));
        let mut proclaim = Box::pin(service.proclaim(&name, lease.handle, Value::new("new").unwrap()));
        assert!(proclaim.as_mut().now_or_never().is_none(), "it reads");
        api.nodes.iter().for_each(|node| node.go_on());
        api.nodes.iter().for_each(|node| node.hang_with(Script::Extend));
        assert!(proclaim.as_mut().now_or_never().is_none(), "it stores");
        drop(proclaim);
        api.nodes.iter().for_each(|node| node.go_on());
        let rung = observer.bell().rung(3, Duration::from_millis(1), Duration::ZERO);
        assert!(tokio::time::timeout(Duration::from_secs(1), rung).await.is_ok());
    }
}
