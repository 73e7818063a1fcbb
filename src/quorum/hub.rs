//! Hints from the nodes to whoever waits: one subscription a channel, however many listen.
//!
//! A hint is never trusted (docs/protocol.md §5): it makes a waiter look. With all hints
//! cut, timers still make progress.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::tally::{Count, Verdict, quorum_of};
use crate::domain::QueueId;
use crate::node::HintSink;
use crate::node::member::Member;

/// Rings when nodes publish on a channel that its owner listens to.
#[derive(Debug, Default)]
pub struct Bell {
    /// One bit a node that has rung since [`Bell::reset`].
    rung: AtomicU64,
    /// How many messages since then named others, whose turn it is.
    others: AtomicU64,
    notify: Notify,
    /// Of whom waits in the queue of servers.
    queue: Option<QueueId>,
}

impl Bell {
    /// The nodes in the bit set published.
    fn ring(&self, mask: u64) {
        self.rung.fetch_or(mask, Ordering::AcqRel);
        self.notify.notify_one();
    }

    /// A node published whose turn it is; nobody's where nobody waits in its queue.
    fn hear(&self, node: usize, message: &str) {
        if message.is_empty() || self.queue.is_none_or(|queue| queue.is_named(message)) {
            return self.ring(1 << node);
        }
        self.others.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_one();
    }

    /// Forgets what has rung: from here on, news is news.
    pub fn reset(&self) {
        self.rung.store(0, Ordering::Release);
        self.others.store(0, Ordering::Release);
    }

    /// Resolves when a quorum of nodes has rung since the reset, or `grace` after the first: at the first publish,
    /// other nodes are still locked. Or `defer` after the last message that named others: they may be gone.
    pub async fn rung(&self, total: usize, grace: Duration, defer: Duration) {
        let quorum = quorum_of(total) as u32;
        let (mut first, mut heard, mut deferred): (Option<Instant>, u64, Option<Instant>) = (None, 0, None);
        loop {
            let more = self.notify.notified();
            let count = self.rung.load(Ordering::Acquire).count_ones();
            let others = self.others.load(Ordering::Acquire);
            if count >= quorum {
                return;
            }
            if others > heard {
                (heard, deferred) = (others, Some(Instant::now() + defer));
            }
            let until = match count {
                0 => deferred,
                _ => Some(*first.get_or_insert_with(Instant::now) + grace),
            };
            match until {
                None => more.await,
                Some(until) if tokio::time::timeout_at(until, more).await.is_err() => return,
                Some(_) => {}
            }
        }
    }
}

type Bells = SmallVec<[Arc<Bell>; 2]>;

/// All channels that somebody on this API server listens to.
pub struct Hub {
    members: Vec<Arc<Member>>,
    /// In order, so that a simulation rings them in the same order each time.
    channels: Mutex<BTreeMap<Arc<str>, Bells>>,
}

struct Sink {
    hub: Weak<Hub>,
    node: usize,
}

impl HintSink for Sink {
    fn hint(&self, channel: &str, message: &str) {
        if let Some(hub) = self.hub.upgrade()
            && let Some(bells) = hub.channels.lock().get(channel)
        {
            bells.iter().for_each(|bell| bell.hear(self.node, message));
        }
    }

    fn missed(&self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.channels.lock().values().flatten().for_each(|bell| bell.ring(u64::MAX));
        }
    }
}

impl Hub {
    /// A hub that listens to these members.
    pub fn new(members: Vec<Arc<Member>>) -> Arc<Self> {
        Arc::new_cyclic(|hub: &Weak<Self>| {
            for (node, member) in members.iter().enumerate() {
                member.node().listen(Arc::new(Sink { hub: Weak::clone(hub), node }));
            }
            Self { members, channels: Mutex::default() }
        })
    }

    /// This server itself knows that these channels changed at a quorum: no need to hear it.
    pub fn ring(&self, channels: &[Arc<str>]) {
        let listened = self.channels.lock();
        let bells = channels.iter().filter_map(|channel| listened.get(channel)).flatten();
        bells.for_each(|bell| bell.ring(u64::MAX));
    }

    /// Whether somebody here listens to any of these.
    pub fn is_listened(&self, channels: &[Arc<str>]) -> bool {
        let listened = self.channels.lock();
        !listened.is_empty() && channels.iter().any(|channel| listened.contains_key(channel))
    }

    /// Listens to `channels`. Resolves when a quorum of nodes has confirmed, or none can any
    /// more: then the owner lives on its timers. Whoever waits in the queue of servers is called by its name there.
    pub async fn listen(self: &Arc<Self>, channels: &[Arc<str>], queue: Option<QueueId>) -> Subscription {
        let bell = Arc::new(Bell { queue, ..Bell::default() });
        {
            let mut listened = self.channels.lock();
            for channel in channels {
                listened.entry(Arc::clone(channel)).or_default().push(Arc::clone(&bell));
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

    /// Waits for a quorum of confirmations, as long as there may be one.
    async fn confirm(&self, channels: &[Arc<str>]) {
        let subscribe = |member: &Arc<Member>| {
            let confirmations: Vec<_> =
                channels.iter().map(|channel| member.node().subscribe(Arc::clone(channel))).collect();
            Box::pin(futures_util::future::try_join_all(confirmations))
        };
        let mut pending: Vec<_> = self.members.iter().map(subscribe).collect();
        let mut count = Count::new(self.members.len());
        while count.verdict() == Verdict::Open {
            let (result, _, rest) = futures_util::future::select_all(pending).await;
            *if result.is_ok() { &mut count.yes } else { &mut count.failed } += 1;
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
        let mut listened = self.hub.channels.lock();
        for channel in &self.channels {
            let Some(entry) = listened.get_mut(channel) else { continue };
            entry.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
            if entry.is_empty() {
                listened.remove(channel);
                self.hub.unsubscribe(channel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::node::Script;
    use crate::quorum::fixture::Api;

    const SECOND: Duration = Duration::from_secs(1);

    async fn is_told(subscription: &Subscription) -> bool {
        let rung = subscription.bell().rung(3, Duration::from_millis(1), SECOND);
        tokio::time::timeout(SECOND, rung).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn observers_hear_of_a_release_whose_caller_has_left() {
        let [api, _] = Api::pair().await;
        let channels = api.scope.channels();
        let observer = api.engine.hub().listen(channels, None).await;
        let lease = api.acquire().await;
        assert!(api.release(&lease).await);

        let lease = api.acquire().await;
        observer.bell().reset();
        api.nodes.iter().for_each(|node| node.hang_with(Script::Release));
        assert!(api.release(&lease).now_or_never().is_none());
        api.nodes.iter().for_each(|node| node.go_on());
        assert_eq!(api.holders(&lease), [false; 3]);
        assert!(is_told(&observer).await);
    }

    #[tokio::test(start_paused = true)]
    async fn observers_look_again_at_what_no_quorum_confirmed_to_have_released() {
        let [api, _] = Api::pair().await;
        let channels = api.scope.channels();
        let observer = api.engine.hub().listen(channels, None).await;

        let lease = api.acquire().await;
        observer.bell().reset();
        api.nodes.iter().for_each(|node| node.hang_with(Script::Release));
        let mut release = Box::pin(api.engine.release(&api.scope, &lease.id));
        assert!(release.as_mut().now_or_never().is_none());
        // It was done everywhere, and the connections broke before the nodes said so.
        for node in &api.nodes {
            let late = node.cut();
            node.run(&late, Script::Release);
        }
        assert!(release.await.is_err());
        assert_eq!(api.holders(&lease), [false; 3]);
        assert!(is_told(&observer).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_named_wakes_a_moment_after_the_last_message() {
        const MILLISECOND: Duration = Duration::from_millis(1);
        let queue = QueueId::new(7, 1);
        let bell = Bell { queue: Some(queue), ..Bell::default() };
        let after = async |messages: &[&str]| {
            bell.reset();
            let began = Instant::now();
            let rings = async {
                for message in messages {
                    tokio::time::sleep(10 * MILLISECOND).await;
                    (0..3).for_each(|node| bell.hear(node, message));
                }
            };
            tokio::join!(bell.rung(3, MILLISECOND, 50 * MILLISECOND), rings);
            began.elapsed().as_millis()
        };
        let named = queue.to_string();
        assert_eq!(after(&[&named]).await, 10);
        assert_eq!(after(&[""]).await, 10);
        assert_eq!(after(&["1"]).await, 60);
        assert_eq!(after(&["1", "1"]).await, 70);
        assert_eq!(after(&["1", &format!("1 {named}")]).await, 20);
    }
}
