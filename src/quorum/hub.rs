//! Hints from the nodes to whoever waits: one subscription a channel, however many listen.
//!
//! A hint is never trusted (PROTOCOL §5): it makes a waiter look. With all hints
//! cut, timers still make progress.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::tally::quorum_of;
use crate::node::member::Member;
use crate::node::{HintSink, NodeError};

/// Rings when nodes publish on a channel that its owner listens to.
#[derive(Debug, Default)]
pub struct Bell {
    /// One bit a node that has rung since [`Bell::reset`].
    rung: AtomicU64,
    notify: Notify,
}

impl Bell {
    /// Node `i` published.
    fn ring(&self, mask: u64) {
        self.rung.fetch_or(mask, Ordering::AcqRel);
        self.notify.notify_one();
    }

    /// Forgets what has rung: from here on, news is news.
    pub fn reset(&self) {
        self.rung.store(0, Ordering::Release);
    }

    /// Resolves when a quorum of nodes has rung since the reset, or `grace` after the first:
    /// at the first publish, other nodes are still locked.
    pub async fn rung(&self, total: usize, grace: Duration) {
        let quorum = quorum_of(total) as u32;
        let mut first: Option<Instant> = None;
        loop {
            let count = self.rung.load(Ordering::Acquire).count_ones();
            if count >= quorum {
                return;
            }
            let more = self.notify.notified();
            if count == 0 {
                more.await;
                continue;
            }
            let until = *first.get_or_insert_with(Instant::now) + grace;
            if tokio::time::timeout_at(until, more).await.is_err() {
                return;
            }
        }
    }
}

#[derive(Default)]
struct Channel {
    bells: SmallVec<[Arc<Bell>; 2]>,
}

/// All channels that somebody on this API server listens to.
pub struct Hub {
    members: Vec<Arc<Member>>,
    /// In order, so that a simulation rings them in the same order each time.
    channels: Mutex<BTreeMap<Arc<str>, Channel>>,
    /// Subscribed with each of them, so that a node knows whether anybody listens at all.
    waiting: Arc<str>,
}

struct Sink {
    hub: Weak<Hub>,
    node: usize,
}

impl HintSink for Sink {
    fn hint(&self, channel: &str) {
        if let Some(hub) = self.hub.upgrade()
            && let Some(listened) = hub.lock().get(channel)
        {
            listened.bells.iter().for_each(|bell| bell.ring(1 << self.node));
        }
    }

    fn missed(&self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.lock().values().flat_map(|channel| &channel.bells).for_each(|bell| bell.ring(u64::MAX));
        }
    }
}

impl Hub {
    /// A hub that listens to these members, and then also to the channel `waiting`.
    pub fn new(members: Vec<Arc<Member>>, waiting: Arc<str>) -> Arc<Self> {
        Arc::new_cyclic(|hub: &Weak<Self>| {
            for (node, member) in members.iter().enumerate() {
                member.node().listen(Arc::new(Sink { hub: Weak::clone(hub), node }));
            }
            Self { members, channels: Mutex::default(), waiting }
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Channel>> {
        self.channels.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// This server itself knows that these channels changed at a quorum: no need to hear it.
    pub fn ring(&self, channels: &[Arc<str>]) {
        let listened = self.lock();
        if listened.is_empty() {
            return;
        }
        for channel in channels.iter().filter_map(|channel| listened.get(channel)) {
            channel.bells.iter().for_each(|bell| bell.ring(u64::MAX));
        }
    }

    /// Listens to `channels`. Resolves when a quorum of nodes has confirmed, or none can any
    /// more: then the owner lives on its timers.
    pub async fn listen(self: &Arc<Self>, channels: &[Arc<str>]) -> Subscription {
        let bell = Arc::new(Bell::default());
        {
            let mut listened = self.lock();
            for channel in channels {
                listened.entry(Arc::clone(channel)).or_default().bells.push(Arc::clone(&bell));
            }
        }
        let subscription =
            Subscription { hub: Arc::clone(self), channels: channels.iter().cloned().collect(), bell };
        // Somebody may listen already and not be confirmed yet, so each one asks for itself:
        // a node confirms a second subscription like the first.
        self.confirm(channels).await;
        subscription
    }

    fn unsubscribe(&self, channel: &str) {
        for member in &self.members {
            member.node().unsubscribe(channel);
        }
    }

    async fn confirm(&self, channels: &[Arc<str>]) {
        let mut pending: Vec<_> = self
            .members
            .iter()
            .map(|member| {
                let subscribe = |channel: &Arc<str>| member.node().subscribe(Arc::clone(channel));
                let confirmations: Vec<_> =
                    std::iter::once(&self.waiting).chain(channels).map(subscribe).collect();
                Box::pin(async move {
                    for confirmation in confirmations {
                        confirmation.await?;
                    }
                    Ok::<_, NodeError>(())
                })
            })
            .collect();
        let mut confirmed = 0;
        while !pending.is_empty() && confirmed < quorum_of(self.members.len()) {
            let (result, _, rest) = futures_util::future::select_all(pending).await;
            confirmed += usize::from(result.is_ok());
            pending = rest;
        }
    }
}

/// Listens until it is dropped.
pub struct Subscription {
    hub: Arc<Hub>,
    channels: SmallVec<[Arc<str>; 1]>,
    bell: Arc<Bell>,
}

impl Subscription {
    /// What rings.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut listened = self.hub.lock();
        for channel in &self.channels {
            let Some(entry) = listened.get_mut(channel) else { continue };
            entry.bells.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
            if entry.bells.is_empty() {
                listened.remove(channel);
                self.hub.unsubscribe(channel);
            }
        }
        if listened.is_empty() {
            self.hub.unsubscribe(&self.hub.waiting);
        }
    }
}
