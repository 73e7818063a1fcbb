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
use crate::node::calls::Tag;
use crate::node::member::Member;
use crate::node::{HintSink, NodeError};

/// Rings when nodes publish on a channel that its owner listens to.
#[derive(Debug, Default)]
pub struct Bell {
    /// One bit a node that has rung since [`Bell::reset`].
    rung: AtomicU64,
    notify: Notify,
    /// Whether its owner tries for what is released, and may do so ahead of the news.
    contends: bool,
    /// The release that it was rung ahead of last.
    ahead_of: AtomicU64,
    /// The release that is no news any more.
    stale: AtomicU64,
}

impl Bell {
    /// The nodes in the bit set published.
    fn ring(&self, mask: u64, tag: Tag) {
        if tag != Tag::UNKNOWN && self.stale.load(Ordering::Acquire) == tag.bits() {
            return;
        }
        self.rung.fetch_or(mask, Ordering::AcqRel);
        self.notify.notify_one();
    }

    /// Forgets what has rung: from here on, news is news.
    pub fn reset(&self) {
        self.rung.store(0, Ordering::Release);
    }

    /// The owner got what it waited for. What has rung until now was the release before, and so is
    /// what is still to come of the one that it was rung ahead of.
    pub fn answered(&self) {
        self.stale.store(self.ahead_of.load(Ordering::Acquire), Ordering::Release);
        self.reset();
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
    /// No other server listened when the nodes were asked to the last time: by the last release from here, or
    /// when this server began to listen. None before it was heard to: whoever is counted then is another one.
    alone: Option<bool>,
}

impl Channel {
    fn ring(&self, tag: Tag) {
        self.bells.iter().for_each(|bell| bell.ring(u64::MAX, tag));
    }
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
    fn hint(&self, channel: &str, tag: Tag) {
        if let Some(hub) = self.hub.upgrade()
            && let Some(listened) = hub.channels.lock().get(channel)
        {
            listened.bells.iter().for_each(|bell| bell.ring(1 << self.node, tag));
        }
    }

    fn missed(&self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.channels.lock().values().for_each(|channel| channel.ring(Tag::UNKNOWN));
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
    /// This server itself knows that these channels changed at a quorum: no need to hear it.
    pub fn ring(&self, channels: &[Arc<str>]) {
        self.each(channels, |channel| channel.ring(Tag::UNKNOWN));
    }

    /// The same of a release, which it may have rung ahead of with `tag`; and whether a quorum of
    /// nodes says that no other server listens.
    pub fn released(&self, channels: &[Arc<str>], tag: Tag, alone: bool) {
        self.each(channels, |channel| {
            if let Some(known) = &mut channel.alone {
                *known = alone;
            }
            channel.ring(tag);
        });
    }

    /// Whether somebody here listens to each of these, and nobody elsewhere, as far as known.
    pub fn is_alone(&self, channels: &[Arc<str>]) -> bool {
        let listened = self.channels.lock();
        // Mostly nobody waits for anything.
        !listened.is_empty()
            && channels.iter().all(|channel| listened.get(channel).is_some_and(|it| it.alone == Some(true)))
    }

    /// Whether somebody here listens to any of these.
    pub fn is_listened(&self, channels: &[Arc<str>]) -> bool {
        let listened = self.channels.lock();
        !listened.is_empty() && channels.iter().any(|channel| listened.contains_key(channel))
    }

    /// A release on these channels has been queued at every node, and what is asked next comes right
    /// behind it: one round trip before the news. Only for whoever is alone: else those who wait at
    /// another server would always come too late.
    pub fn ring_ahead(&self, channels: &[Arc<str>], tag: Tag) {
        self.each(channels, |channel| {
            for bell in channel.bells.iter().filter(|bell| bell.contends) {
                bell.ahead_of.store(tag.bits(), Ordering::Release);
                bell.ring(u64::MAX, tag);
            }
        });
    }

    fn each(&self, channels: &[Arc<str>], mut act: impl FnMut(&mut Channel)) {
        let mut listened = self.channels.lock();
        if !listened.is_empty() {
            channels.iter().for_each(|channel| listened.get_mut(channel).into_iter().for_each(&mut act));
        }
    }

    /// Listens to `channels`. Resolves when a quorum of nodes has confirmed, or none can any
    /// more: then the owner lives on its timers. Whoever `contends` may be rung ahead of the news.
    pub async fn listen(self: &Arc<Self>, channels: &[Arc<str>], contends: bool) -> Subscription {
        let bell = Arc::new(Bell { contends, ..Bell::default() });
        {
            let mut listened = self.channels.lock();
            for channel in channels {
                listened.entry(Arc::clone(channel)).or_default().bells.push(Arc::clone(&bell));
            }
        }
        let subscription =
            Subscription { hub: Arc::clone(self), channels: channels.iter().cloned().collect(), bell };
        // Somebody may listen already and not be confirmed yet, so each one asks for itself:
        // a node confirms a second subscription like the first.
        if let Some(alone) = self.confirm(channels).await {
            self.each(channels, |channel| {
                channel.alone.get_or_insert(alone);
            });
        }
        subscription
    }

    fn unsubscribe(&self, channel: &str) {
        for member in &self.members {
            member.node().unsubscribe(channel);
        }
    }

    /// Waits for a quorum of confirmations; whether these say that no other server listens. None where there
    /// is no quorum of them.
    async fn confirm(&self, channels: &[Arc<str>]) -> Option<bool> {
        let mut pending: Vec<_> = self
            .members
            .iter()
            .map(|member| {
                let subscribe = |channel: &Arc<str>| member.node().subscribe(Arc::clone(channel));
                let (waiting, confirmations) =
                    (subscribe(&self.waiting), channels.iter().map(subscribe).collect::<Vec<_>>());
                Box::pin(async move {
                    waiting.await?;
                    let mut alone = true;
                    for confirmation in confirmations {
                        alone &= confirmation.await? == Some(1);
                    }
                    Ok::<_, NodeError>(alone)
                })
            })
            .collect();
        let (mut count, mut alone) = (Count::new(self.members.len()), true);
        while count.verdict() == Verdict::Open {
            let (result, _, rest) = futures_util::future::select_all(pending).await;
            *if result.is_ok() { &mut count.yes } else { &mut count.failed } += 1;
            alone &= result.unwrap_or(true);
            pending = rest;
        }
        (count.verdict() == Verdict::Carried).then_some(alone)
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::node::Script;
    use crate::quorum::fixture::Api;

    const ALL: u64 = u64::MAX;
    const SECOND: Duration = Duration::from_secs(1);

    fn has_rung(bell: &Bell) -> bool {
        bell.rung(3, SECOND).now_or_never().is_some()
    }

    #[tokio::test]
    async fn late_news_of_the_release_that_led_to_a_grant_wake_nobody() {
        let (released, next) = (Tag::from_bits(1), Tag::from_bits(2));
        let bell = Bell::default();
        bell.ahead_of.store(released.bits(), Ordering::Release);
        bell.ring(ALL, released);
        assert!(has_rung(&bell));

        // Refused: what comes now is news.
        bell.reset();
        bell.ring(0b011, released);
        assert!(has_rung(&bell));

        bell.answered();
        bell.ring(0b100, released);
        bell.ring(ALL, released);
        assert!(!has_rung(&bell));
        bell.ring(0b011, next);
        assert!(has_rung(&bell));
        bell.reset();
        bell.ring(ALL, Tag::UNKNOWN);
        assert!(has_rung(&bell));
    }

    async fn is_told(subscription: &Subscription) -> bool {
        let rung = subscription.bell().rung(3, Duration::from_millis(1));
        tokio::time::timeout(SECOND, rung).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn observers_hear_of_a_release_whose_caller_has_left() {
        let [api, _] = Api::pair().await;
        let channels = api.scope.channels();
        let observer = api.engine.hub().listen(channels, false).await;
        let lease = api.acquire().await;
        assert!(api.release(&lease).await);
        assert!(api.engine.hub().is_alone(channels));

        let lease = api.acquire().await;
        observer.bell().reset();
        api.nodes.iter().for_each(|node| node.hang_with(Script::Release));
        assert!(api.release(&lease).now_or_never().is_none());
        api.nodes.iter().for_each(|node| node.go_on());
        assert_eq!(api.holders(&lease), [false; 3]);
        assert!(is_told(&observer).await);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_begins_to_listen_hears_whether_others_do() {
        let [api, other] = Api::pair().await;
        let channels = api.scope.channels();
        let is_alone = |api: &Api| api.engine.hub().is_alone(channels);
        let _here = api.engine.hub().listen(channels, true).await;
        assert!(is_alone(&api));
        let there = other.engine.hub().listen(channels, true).await;
        assert!(!is_alone(&other));
        // That somebody has come since, the next release tells.
        let lease = api.acquire().await;
        assert!(api.release(&lease).await && is_told(&there).await);
        assert!(!is_alone(&api));
    }

    #[tokio::test(start_paused = true)]
    async fn those_at_another_server_are_told_also_where_this_one_was_refused_for_good_or_for_a_moment() {
        for for_good in [true, false] {
            let [api, other] = Api::pair().await;
            let mute = |mute| api.nodes.iter().for_each(|node| node.mute(mute));
            mute(true);
            let _here = api.engine.hub().listen(api.scope.channels(), true).await;
            mute(for_good);
            let there = other.engine.hub().listen(api.scope.channels(), true).await;
            for release in 1..=3 {
                let lease = api.acquire().await;
                there.bell().reset();
                assert!(api.release(&lease).await);
                assert!(is_told(&there).await, "release {release}, for good: {for_good}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn observers_look_again_at_what_no_quorum_confirmed_to_have_released() {
        let [api, _] = Api::pair().await;
        let channels = api.scope.channels();
        let observer = api.engine.hub().listen(channels, false).await;
        assert!(api.engine.hub().is_alone(channels));

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
    async fn only_who_contends_alone_is_rung_ahead_of_the_news() {
        let [api, _] = Api::pair().await;
        let hub = api.engine.hub();
        let channels: [Arc<str>; 2] = ["a".into(), "b".into()];
        let contender = hub.listen(&channels, true).await;
        let observer = hub.listen(&channels[..1], false).await;
        let rung = || (has_rung(contender.bell()), has_rung(observer.bell()));

        assert!(hub.is_alone(&channels));
        hub.ring_ahead(&channels, Tag::from_bits(1));
        assert_eq!(rung(), (true, false));

        hub.released(&channels[1..], Tag::UNKNOWN, false);
        assert!(!hub.is_alone(&channels) && hub.is_alone(&channels[..1]));
        assert!(!hub.is_alone(&["c".into()]));
        drop(contender);
        // Whoever listens next is told anew.
        let _next = hub.listen(&channels[1..], true).await;
        assert!(hub.is_alone(&channels[1..]));
    }
}
