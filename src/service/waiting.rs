//! The waiting room: one contender per name at the nodes, the others in order behind it. Those who
//! want permits of a semaphore by another limit stand in another queue: what is full for the one may
//! have room for the other.
//!
//! A waiter is the request's own future, so that a client that leaves drops its
//! seat and the next one moves up at once, whatever the moment. A room lives
//! while somebody waits in it, and so does its subscription (docs/protocol.md §5).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
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
    /// By record, how many wait for it together with others: their rooms are those of the whole set.
    together: Mutex<HashMap<Box<str>, usize>>,
}

/// What is waited for in a room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// Of a semaphore, which all others are with one permit: its permits, as far as this caller knows.
    pub(crate) limit: u32,
    /// How many of them.
    pub(crate) permits: u32,
}

/// Who waits in a queue now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Queued {
    /// How many do.
    pub(crate) waiters: usize,
    /// The permits that they want, all together.
    pub(crate) permits: usize,
    /// Whether the first of them asks the nodes just now: it may have what it is counted as wanting.
    pub(crate) contends: bool,
}

#[derive(Default)]
struct Room {
    /// By limit.
    queues: BTreeMap<u32, Queue>,
}

#[derive(Default)]
struct Queue {
    seats: VecDeque<Arc<Seat>>,
    /// What all of them want.
    permits: usize,
    board: Arc<NoticeBoard>,
}

impl Room {
    fn waiters(&self) -> usize {
        self.queues.values().map(|queue| queue.seats.len()).sum()
    }
}

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

struct Seat {
    since: Instant,
    first: AtomicBool,
    wake: Notify,
}

/// A place in a room. Dropped, the next one moves up.
pub(crate) struct Ticket {
    rooms: Arc<Rooms>,
    key: Arc<str>,
    wish: Wish,
    seat: Arc<Seat>,
    board: Arc<NoticeBoard>,
}

/// The records of a room where several are waited for together. No record has a space in it.
fn records_of_several(key: &str) -> Option<std::str::Split<'_, char>> {
    key.contains(' ').then(|| key.split(' '))
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
            together: Mutex::default(),
        })
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, HashMap<Arc<str>, Room>> {
        self.shards[self.hasher.hash_one(key) as usize % SHARDS].lock()
    }

    /// Takes a seat at the end of the queue.
    pub(crate) fn enter(self: &Arc<Self>, key: &Arc<str>, wish: Wish) -> Result<Ticket, ServiceError> {
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
            if shard.get(key).map_or(0, Room::waiters) >= self.limits.waiters_per_name_max {
                self.waiters.fetch_sub(1, Ordering::AcqRel);
                return Err(full);
            }
            let room = shard.entry(Arc::clone(key)).or_default();
            let queue = room.queues.entry(wish.limit).or_default();
            seat.first.store(queue.seats.is_empty(), Ordering::Release);
            queue.seats.push_back(Arc::clone(&seat));
            queue.permits += wish.permits as usize;
            Arc::clone(&queue.board)
        };
        if let Some(records) = records_of_several(key) {
            let mut together = self.together.lock();
            records.for_each(|record| *together.entry(record.into()).or_default() += 1);
        }
        metrics().waiters.inc();
        Ok(Ticket { rooms: Arc::clone(self), key: Arc::clone(key), wish, seat, board })
    }

    /// How many wait under `key`.
    pub(crate) fn waiting(&self, key: &str) -> usize {
        if self.is_empty() {
            return 0;
        }
        self.shard(key).get(key).map_or(0, Room::waiters)
    }

    /// How many wait for a record, alone or together with others.
    pub(crate) fn waiting_for(&self, record: &str) -> usize {
        if self.is_empty() {
            return 0;
        }
        self.waiting(record) + self.together.lock().get(record).copied().unwrap_or_default()
    }

    /// Who wait under `key` by the same limit.
    pub(crate) fn queued(&self, key: &str, limit: u32) -> Queued {
        if self.is_empty() {
            return Queued::default();
        }
        let shard = self.shard(key);
        let queue = shard.get(key).and_then(|room| room.queues.get(&limit));
        queue.map_or_else(Queued::default, |queue| Queued {
            waiters: queue.seats.len(),
            permits: queue.permits,
            contends: !queue.board.is_paused(),
        })
    }

    fn is_empty(&self) -> bool {
        // Mostly nobody waits for anything. A seat is counted before it is taken.
        self.waiters.load(Ordering::Acquire) == 0
    }

    /// How long the longest waiter has waited.
    pub(crate) fn longest_wait(&self) -> Duration {
        let now = self.engine.clock().now();
        let longest = |shard: &Mutex<HashMap<Arc<str>, Room>>| {
            let shard = shard.lock();
            let queues = shard.values().flat_map(|room| room.queues.values());
            queues.filter_map(|queue| queue.seats.front()).map(|seat| seat.since).min()
        };
        let since = self.shards.iter().filter_map(longest).min();
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Ends all waiting, and lets nobody in any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closing.notify_waiters();
        for shard in &self.shards {
            let shard = shard.lock();
            let queues = shard.values().flat_map(|room| room.queues.values());
            queues.flat_map(|queue| &queue.seats).for_each(|seat| seat.wake.notify_one());
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
            let Some(queue) = room.queues.get_mut(&self.wish.limit) else { return };
            if queue.seats.front().is_some_and(|seat| Arc::ptr_eq(seat, &self.seat)) {
                queue.seats.pop_front();
            } else {
                queue.seats.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
            }
            queue.permits -= self.wish.permits as usize;
            let next = queue.seats.front().filter(|seat| !seat.first.load(Ordering::Acquire)).cloned();
            let empty = queue.seats.is_empty().then(|| room.queues.remove(&self.wish.limit)).flatten();
            if room.queues.is_empty() {
                shard.remove(&self.key);
            }
            drop(shard);
            // Its subscription, perhaps the last, ends outside of the lock.
            drop(empty);
            next
        };
        if let Some(records) = records_of_several(&self.key) {
            let mut together = self.rooms.together.lock();
            for record in records {
                if let Some(waiters) = together.get_mut(record).filter(|waiters| **waiters > 1) {
                    *waiters -= 1;
                } else {
                    together.remove(record);
                }
            }
        }
        if let Some(seat) = next {
            seat.first.store(true, Ordering::Release);
            seat.wake.notify_one();
        }
        self.rooms.waiters.fetch_sub(1, Ordering::AcqRel);
        metrics().waiters.dec();
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::fixture::Api;

    #[tokio::test(start_paused = true)]
    async fn where_nobody_may_wait_no_room_is_left_behind() {
        let [api, _] = Api::pair().await;
        let limits = WaitLimits { waiters_max: 10, waiters_per_name_max: 0 };
        let rooms = Rooms::new(Arc::clone(&api.engine), limits);
        assert!(rooms.enter(&"a".into(), Wish { limit: 1, permits: 1 }).is_err());
        assert!(rooms.shards.iter().all(|shard| shard.lock().is_empty()));
        assert!(rooms.is_empty());
    }
}
