//! The waiting room: one contender per name at the nodes, the others in order behind it.
//!
//! A waiter is the request's own future, so that a client that leaves drops its
//! seat and the next one moves up at once, whatever the moment. A room lives
//! while somebody waits in it, and so does its subscription (PROTOCOL §5).

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ServiceError, WaitLimits};
use crate::quorum::hub::Subscription;
use crate::quorum::{Engine, Refusal};
use crate::telemetry::metrics;

const SHARDS: usize = 16;

/// All waiting rooms of this API server.
pub(crate) struct Rooms {
    engine: Arc<Engine>,
    limits: WaitLimits,
    closed: AtomicBool,
    closing: Notify,
    waiters: AtomicUsize,
    hasher: RandomState,
    shards: [Mutex<HashMap<Arc<str>, Room>>; SHARDS],
}

struct Room {
    queue: VecDeque<Arc<Seat>>,
    board: Arc<NoticeBoard>,
}

/// What contenders of one room leave for those behind them.
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
}

/// Until when, and by which request.
struct Taken {
    until: Instant,
    request: Option<Box<str>>,
}

struct Seat {
    since: Instant,
    first: AtomicBool,
    wake: Notify,
}

/// A place in a room. Dropped, the next one moves up.
pub(crate) struct Ticket {
    rooms: Arc<Rooms>,
    key: Arc<str>,
    seat: Arc<Seat>,
    board: Arc<NoticeBoard>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these; if it did, the data is still whole.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Rooms {
    pub(crate) fn new(engine: Arc<Engine>, limits: WaitLimits) -> Arc<Self> {
        Arc::new(Self {
            engine,
            limits,
            closed: AtomicBool::new(false),
            closing: Notify::new(),
            waiters: AtomicUsize::new(0),
            hasher: RandomState::new(),
            shards: Default::default(),
        })
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, HashMap<Arc<str>, Room>> {
        lock(&self.shards[self.hasher.hash_one(key) as usize % SHARDS])
    }

    /// Takes a seat at the end of the queue.
    pub(crate) fn enter(self: &Arc<Self>, key: &Arc<str>) -> Result<Ticket, ServiceError> {
        if self.is_closed() {
            return Err(ServiceError::ShuttingDown);
        }
        let full = ServiceError::TooManyWaiters { retry_after_ms: 1000 };
        if self.waiters.fetch_add(1, Ordering::AcqRel) >= self.limits.waiters_max {
            self.waiters.fetch_sub(1, Ordering::AcqRel);
            return Err(full);
        }
        let seat = Arc::new(Seat {
            since: self.engine.clock().now(),
            first: AtomicBool::new(false),
            wake: Notify::new(),
        });
        let board = {
            let mut shard = self.shard(key);
            let room = shard
                .entry(Arc::clone(key))
                .or_insert_with(|| Room { queue: VecDeque::new(), board: Arc::default() });
            if room.queue.len() >= self.limits.waiters_per_name_max {
                self.waiters.fetch_sub(1, Ordering::AcqRel);
                return Err(full);
            }
            seat.first.store(room.queue.is_empty(), Ordering::Release);
            room.queue.push_back(Arc::clone(&seat));
            Arc::clone(&room.board)
        };
        metrics().waiters.increment(1.0);
        Ok(Ticket { rooms: Arc::clone(self), key: Arc::clone(key), seat, board })
    }

    /// How many wait under `key`.
    pub(crate) fn waiting(&self, key: &str) -> usize {
        // Mostly nobody waits for anything. A seat is counted before it is taken.
        if self.waiters.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.shard(key).get(key).map_or(0, |room| room.queue.len())
    }

    /// How long the longest waiter has waited.
    pub(crate) fn longest_wait(&self) -> Duration {
        let now = self.engine.clock().now();
        let longest = |shard: &Mutex<HashMap<Arc<str>, Room>>| {
            lock(shard).values().filter_map(|room| room.queue.front()).map(|seat| seat.since).min()
        };
        let since = self.shards.iter().filter_map(longest).min();
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Ends all waiting, and lets nobody in any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closing.notify_waiters();
        for shard in &self.shards {
            lock(shard).values().flat_map(|room| &room.queue).for_each(|seat| seat.wake.notify_one());
        }
    }

    /// Resolves once the rooms close.
    pub(crate) async fn closing(&self) {
        let mut closing = std::pin::pin!(self.closing.notified());
        // Registered before the look, so that no close falls in between.
        closing.as_mut().enable();
        if !self.is_closed() {
            closing.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Ticket {
    /// Resolves true when it is this waiter's turn, false at `deadline`.
    pub(crate) async fn turn(&self, deadline: Instant) -> Result<bool, ServiceError> {
        loop {
            if self.rooms.is_closed() {
                return Err(ServiceError::ShuttingDown);
            }
            if self.seat.first.load(Ordering::Acquire) {
                return Ok(true);
            }
            if tokio::time::timeout_at(deadline, self.seat.wake.notified()).await.is_err() {
                return Ok(false);
            }
        }
    }

    /// Resolves when the server closes its rooms.
    pub(crate) async fn closed(&self) {
        while !self.rooms.is_closed() {
            self.seat.wake.notified().await;
        }
    }

    pub(crate) fn board(&self) -> &NoticeBoard {
        &self.board
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let next = {
            let mut shard = self.rooms.shard(&self.key);
            let Some(room) = shard.get_mut(&self.key) else { return };
            if room.queue.front().is_some_and(|seat| Arc::ptr_eq(seat, &self.seat)) {
                room.queue.pop_front();
            } else {
                room.queue.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
            }
            let next = room.queue.front().filter(|seat| !seat.first.load(Ordering::Acquire)).cloned();
            let empty = room.queue.is_empty().then(|| shard.remove(&self.key)).flatten();
            drop(shard);
            // Its subscription, perhaps the last, ends outside of the lock.
            drop(empty);
            next
        };
        if let Some(seat) = next {
            seat.first.store(true, Ordering::Release);
            seat.wake.notify_one();
        }
        self.rooms.waiters.fetch_sub(1, Ordering::AcqRel);
        metrics().waiters.decrement(1.0);
    }
}

impl NoticeBoard {
    /// The room's subscription, once made.
    pub(crate) fn subscription(&self) -> Option<Arc<Subscription>> {
        lock(&self.notices).subscription.clone()
    }

    /// Leaves a subscription for all who come after.
    pub(crate) fn subscribed(&self, subscription: Arc<Subscription>) {
        lock(&self.notices).subscription = Some(subscription);
    }

    /// The last refusal, for waiters whose time is up before their turn.
    pub(crate) fn last(&self) -> Option<Arc<Refusal>> {
        lock(&self.notices).last.clone()
    }

    /// A contender was refused.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        lock(&self.notices).last = Some(Arc::new(refusal.clone()));
    }

    /// A contender of this room got it: who comes next need not ask before then, or a hint.
    pub(crate) fn taken_until(&self, until: Instant, request: Option<&str>) {
        lock(&self.notices).taken = Some(Taken { until, request: request.map(Into::into) });
    }

    /// Until when it was taken from `request`, as far as known; told once. Nothing was taken from the
    /// same request come twice: its lease is there for it.
    pub(crate) fn take_taken_until(&self, request: Option<&str>) -> Option<Instant> {
        let taken = lock(&self.notices).taken.take()?;
        (request.is_none() || taken.request.as_deref() != request).then_some(taken.until)
    }

    /// A vote was split: others contend too.
    pub(crate) fn split(&self) {
        lock(&self.notices).split = true;
    }

    /// Whether votes were split here.
    pub(crate) fn is_split(&self) -> bool {
        lock(&self.notices).split
    }
}
