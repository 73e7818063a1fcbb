//! The waiting room: one contender per name at the nodes, the others in order behind it. Those who
//! want permits of a semaphore by another limit stand in another queue: what is full for the one may
//! have room for the other. A multilock has its seat in the queue of each of its names, and asks once it
//! heads them all, so that no stream of single locks passes it.
//!
//! A waiter is the request's own future, so that a client that leaves drops its
//! seat and the next one moves up at once, whatever the moment. A room lives
//! while somebody waits in it, and so does its subscription (docs/protocol.md §5).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ServiceError, WaitLimits};
use crate::domain::{Mode, Want};
use crate::quorum::hub::Subscription;
use crate::quorum::{Engine, Refusal};
use crate::telemetry::metrics;

/// All waiting rooms of this API server.
pub(crate) struct Rooms {
    engine: Arc<Engine>,
    limits: WaitLimits,
    closed: AtomicBool,
    closing: Notify,
    waiters: AtomicUsize,
    /// By record, or index of a semaphore. Behind one lock: a multilock sits down in all of its rooms at once,
    /// or two of them could each stand before the other.
    rooms: Mutex<HashMap<Arc<str>, Room>>,
}

/// What is waited for in a room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// Of a semaphore, which all others are with one permit: its permits, as far as this caller knows.
    pub(crate) limit: u32,
    /// How many of them.
    pub(crate) permits: u32,
    /// Of a lock: what the lease shall exclude.
    pub(crate) mode: Mode,
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
    /// By the clocks of the nodes, µs.
    arrived_us: u64,
    want: Want,
    /// In how many queues it sits.
    queues: usize,
    /// In how many queues somebody sits before it.
    behind: AtomicUsize,
    wake: Notify,
}

/// A place in the room of each key. Dropped, the next ones move up.
pub(crate) struct Ticket {
    rooms: Arc<Rooms>,
    keys: SmallVec<[Arc<str>; 1]>,
    wish: Wish,
    seat: Arc<Seat>,
    /// Of its queue; of several, its own.
    board: Arc<NoticeBoard>,
    /// Of its queues, where they are several.
    others: Vec<Arc<NoticeBoard>>,
}

impl Rooms {
    pub(crate) fn new(engine: Arc<Engine>, limits: WaitLimits) -> Arc<Self> {
        Arc::new(Self {
            engine,
            limits,
            closed: AtomicBool::new(false),
            closing: Notify::new(),
            waiters: AtomicUsize::new(0),
            rooms: Mutex::default(),
        })
    }

    /// Takes a seat at the end of the queue of each key.
    pub(crate) fn enter(self: &Arc<Self>, keys: &[Arc<str>], wish: Wish) -> Result<Ticket, ServiceError> {
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
            arrived_us: self.engine.nodes_us(),
            want: match wish.mode {
                Mode::Shared => Want::Shared,
                Mode::Exclusive if keys.len() > 1 || wish.permits > 1 => Want::Several,
                Mode::Exclusive => Want::One,
            },
            queues: keys.len(),
            behind: AtomicUsize::new(0),
            wake: Notify::new(),
        });
        let mut others: Vec<_> = {
            let mut rooms = self.rooms.lock();
            let is_full = |key| rooms.get(key).map_or(0, Room::waiters) >= self.limits.waiters_per_name_max;
            if keys.iter().any(is_full) {
                self.waiters.fetch_sub(1, Ordering::AcqRel);
                return Err(full);
            }
            let sit_down = |key: &Arc<str>| {
                let queue = rooms.entry(Arc::clone(key)).or_default().queues.entry(wish.limit).or_default();
                seat.behind.fetch_add(usize::from(!queue.seats.is_empty()), Ordering::AcqRel);
                queue.seats.push_back(Arc::clone(&seat));
                queue.permits += wish.permits as usize;
                Arc::clone(&queue.board)
            };
            keys.iter().map(sit_down).collect()
        };
        let one = if others.len() == 1 { others.pop() } else { None };
        metrics().waiters.increment(1.0);
        let keys = keys.iter().cloned().collect();
        Ok(Ticket { rooms: Arc::clone(self), keys, wish, seat, board: one.unwrap_or_default(), others })
    }

    /// How many wait under `key`, for it alone or for others with it.
    pub(crate) fn waiting(&self, key: &str) -> usize {
        if self.is_empty() {
            return 0;
        }
        self.rooms.lock().get(key).map_or(0, Room::waiters)
    }

    /// Who wait under any of the keys by the same limit.
    pub(crate) fn queued(&self, keys: &[Arc<str>], limit: u32) -> Queued {
        if self.is_empty() {
            return Queued::default();
        }
        let rooms = self.rooms.lock();
        let queues = keys.iter().filter_map(|key| rooms.get(key)?.queues.get(&limit));
        queues.fold(Queued::default(), |queued, queue| Queued {
            waiters: queued.waiters + queue.seats.len(),
            permits: queued.permits + queue.permits,
            contends: queued.contends || !queue.board.is_paused(),
        })
    }

    fn is_empty(&self) -> bool {
        // Mostly nobody waits for anything. A seat is counted before it is taken.
        self.waiters.load(Ordering::Acquire) == 0
    }

    /// How long the longest waiter has waited.
    pub(crate) fn longest_wait(&self) -> Duration {
        let now = self.engine.clock().now();
        let rooms = self.rooms.lock();
        let queues = rooms.values().flat_map(|room| room.queues.values());
        let since = queues.filter_map(|queue| queue.seats.front()).map(|seat| seat.since).min();
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Ends all waiting, and lets nobody in any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closing.notify_waiters();
        let rooms = self.rooms.lock();
        let queues = rooms.values().flat_map(|room| room.queues.values());
        queues.flat_map(|queue| &queue.seats).for_each(|seat| seat.wake.notify_one());
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
            if self.seat.behind.load(Ordering::Acquire) == 0 {
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

    /// When it arrived, µs by the clocks of the nodes.
    pub(crate) fn arrived_us(&self) -> u64 {
        self.seat.arrived_us
    }

    /// What it wants, as the nodes are told.
    pub(crate) fn want(&self) -> Want {
        self.seat.want
    }

    /// The next one of its queue, as it is told to the nodes. A multilock that sits in other queues, too, asks for
    /// itself once it heads them all.
    pub(crate) fn next(&self) -> Option<(u64, Want)> {
        let [key] = self.keys.as_slice() else { return None };
        let rooms = self.rooms.rooms.lock();
        let next = rooms.get(key)?.queues.get(&self.wish.limit)?.seats.get(1)?;
        (next.queues == 1).then_some((next.arrived_us, next.want))
    }

    pub(crate) fn board(&self) -> &NoticeBoard {
        &self.board
    }

    /// What single waiters behind it know is over.
    pub(crate) fn changed_for_others(&self) {
        self.others.iter().for_each(|board| board.unknown());
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut empty = Vec::new();
        {
            let mut rooms = self.rooms.rooms.lock();
            for key in &self.keys {
                let Some(room) = rooms.get_mut(key) else { continue };
                let Some(queue) = room.queues.get_mut(&self.wish.limit) else { continue };
                queue.permits -= self.wish.permits as usize;
                if queue.seats.front().is_some_and(|seat| Arc::ptr_eq(seat, &self.seat)) {
                    queue.seats.pop_front();
                    if let Some(next) = queue.seats.front()
                        && next.behind.fetch_sub(1, Ordering::AcqRel) == 1
                    {
                        next.wake.notify_one();
                    }
                } else {
                    queue.seats.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
                }
                if queue.seats.is_empty() {
                    empty.extend(room.queues.remove(&self.wish.limit));
                }
                if room.queues.is_empty() {
                    rooms.remove(key);
                }
            }
        }
        // Their subscriptions, perhaps the last ones, end outside of the lock.
        drop(empty);
        self.rooms.waiters.fetch_sub(1, Ordering::AcqRel);
        metrics().waiters.decrement(1.0);
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

    async fn rooms(waiters_per_name_max: usize) -> Arc<Rooms> {
        let [api, _] = Api::pair().await;
        Rooms::new(Arc::clone(&api.engine), WaitLimits { waiters_max: 10, waiters_per_name_max })
    }

    const ONE: Wish = Wish { limit: 1, permits: 1, mode: Mode::Exclusive };

    #[tokio::test(start_paused = true)]
    async fn where_nobody_may_wait_no_room_is_left_behind() {
        let rooms = rooms(0).await;
        assert!(rooms.enter(&["a".into()], ONE).is_err());
        assert!(rooms.rooms.lock().is_empty());
        assert!(rooms.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_multilock_asks_once_it_heads_all_queues_and_nobody_passes_it() {
        let rooms = rooms(10).await;
        let [a, b]: [Arc<str>; 2] = ["a".into(), "b".into()];
        let enter = |keys: &[Arc<str>]| rooms.enter(keys, ONE).ok().unwrap();
        let is_first = |ticket: &Ticket| ticket.seat.behind.load(Ordering::Acquire) == 0;
        let [first_a, first_b] = [&a, &b].map(|key| enter(std::slice::from_ref(key)));
        let both = enter(&[a.clone(), b.clone()]);
        let leaves = enter(&[a.clone(), b.clone()]);
        let [next_a, next_b] = [&a, &b].map(|key| enter(std::slice::from_ref(key)));
        assert!(is_first(&first_a) && is_first(&first_b));
        assert_eq!((rooms.waiting("a"), rooms.waiting("b")), (4, 4));
        drop(first_b);
        drop(leaves);
        assert!(!is_first(&both) && !is_first(&next_b));
        drop(first_a);
        assert!(is_first(&both) && !is_first(&next_a) && !is_first(&next_b));
        drop(both);
        assert!(is_first(&next_a) && is_first(&next_b));
        drop((next_a, next_b));
        assert!(rooms.rooms.lock().is_empty());
    }
}
