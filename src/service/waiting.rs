//! The waiting room: one contender per name at the nodes, the others in order behind it. Those who
//! want permits of a semaphore by another limit stand in another queue: what is full for the one may
//! have room for the other. A multilock has its seat in the queue of each of its names, and asks once it
//! heads them all, so that no stream of single locks passes it.
//!
//! A waiter is the request's own future, so that a client that leaves drops its
//! seat and the next one moves up at once, whatever the moment. One that comes back with its place sits down
//! where it sat, and whoever moved up yields. A room lives while somebody waits in it, and so does its
//! subscription (docs/protocol.md §5).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::notices::NoticeBoard;
use super::{AcquireOptions, ServiceError, Target, WaitLimits};
use crate::domain::{Metadata, Mode, Name, Primitive, Want};
use crate::quorum::Engine;
use crate::telemetry::metrics;

/// All waiting rooms of this API server.
pub(crate) struct Rooms {
    engine: Arc<Engine>,
    limits: WaitLimits,
    closed: AtomicBool,
    closing: Notify,
    waiters: AtomicUsize,
    /// Who has ever waited here, counted.
    arrivals: AtomicU64,
    /// By record, or index of a semaphore. Behind one lock: a multilock sits down in all of its rooms at once,
    /// or two of them could each stand before the other.
    rooms: Mutex<HashMap<Arc<str>, Room>>,
}

/// What is waited for in a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Of a semaphore, which all others are with one permit: its permits, as far as this caller knows.
    pub(crate) limit: u32,
    /// How many of them.
    pub(crate) permits: u32,
    /// Of a lock: what the lease shall exclude.
    pub(crate) mode: Mode,
}

/// Where a request sits in its queues, and has sat before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    wish: Wish,
    number: u64,
    arrived_us: u64,
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

/// Who waits, as everyone may see it.
#[derive(Debug, Clone)]
pub struct Visitor {
    /// For which primitive.
    pub primitive: Primitive,
    /// Its name, or those of a multilock in the order of the request.
    pub names: Vec<Name>,
    /// The label of the request; in an election, the candidate.
    pub owner: Option<Box<str>>,
    /// What the request attached.
    pub metadata: Metadata,
    /// How long it waits at most, ms.
    pub wait_ms: u64,
}

impl Visitor {
    pub(crate) fn new(target: &Target, options: &AcquireOptions) -> Self {
        let (held, note) = (target.held(), &options.note);
        Self {
            primitive: held.primitive(),
            names: held.names().to_vec(),
            owner: note.label().map(Into::into),
            metadata: note.metadata.clone(),
            wait_ms: options.wait_ms,
        }
    }
}

/// One who waits, and where.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// Who arrives later has a greater one.
    pub number: u64,
    /// Who it is.
    pub visitor: Visitor,
    /// The place in the queue, of several queues the one farthest behind; 1 is next.
    pub position: usize,
    /// How long it has waited, ms.
    pub waited_ms: u64,
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

struct Seat {
    /// Seats are numbered, and sit, in the order of arrival.
    number: u64,
    visitor: Visitor,
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
            arrivals: AtomicU64::new(0),
            rooms: Mutex::default(),
        })
    }

    /// Takes a seat at the end of the queue of each key, or where the same wish had its `place`.
    pub(crate) fn enter(
        self: &Arc<Self>,
        keys: &[Arc<str>],
        wish: Wish,
        place: Option<Place>,
        visitor: Visitor,
    ) -> Result<Ticket, ServiceError> {
        if self.is_closed() {
            return Err(ServiceError::ShuttingDown);
        }
        let full = ServiceError::TooManyWaiters { retry_after_ms: 1000 };
        if self.waiters.fetch_add(1, Ordering::AcqRel) >= self.limits.waiters_max {
            self.waiters.fetch_sub(1, Ordering::AcqRel);
            return Err(full);
        }
        let place = place.filter(|place| place.wish == wish).unwrap_or_else(|| Place {
            wish,
            number: self.arrivals.fetch_add(1, Ordering::AcqRel) + 1,
            arrived_us: self.engine.nodes_us(),
        });
        let seat = Arc::new(Seat {
            number: place.number,
            visitor,
            since: self.engine.clock().now(),
            arrived_us: place.arrived_us,
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
                let before = queue.seats.partition_point(|other| other.number <= seat.number);
                if before > 0 {
                    seat.behind.fetch_add(1, Ordering::AcqRel);
                } else if let Some(overtaken) = queue.seats.front() {
                    overtaken.behind.fetch_add(1, Ordering::AcqRel);
                    overtaken.wake.notify_one();
                }
                queue.seats.insert(before, Arc::clone(&seat));
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

    /// Who wait here and are asked for, in the order of arrival: the first `limit` of those numbered above `after`.
    pub(crate) fn waiters(
        &self,
        after: u64,
        limit: usize,
        is_asked_for: impl Fn(&Visitor) -> bool,
    ) -> Vec<Waiter> {
        let mut found = BTreeMap::new();
        {
            let rooms = self.rooms.lock();
            for queue in rooms.values().flat_map(|room| room.queues.values()) {
                let seats = queue.seats.iter().zip(1..);
                for (seat, place) in
                    seats.filter(|(seat, _)| seat.number > after && is_asked_for(&seat.visitor))
                {
                    let (_, position) = found.entry(seat.number).or_insert_with(|| (Arc::clone(seat), place));
                    *position = place.max(*position);
                    if found.len() > limit {
                        found.pop_last();
                    }
                }
            }
        }
        let now = self.engine.clock().now();
        let waiter = |(number, (seat, position)): (u64, (Arc<Seat>, usize))| Waiter {
            number,
            visitor: seat.visitor.clone(),
            position,
            waited_ms: now.saturating_duration_since(seat.since).as_millis() as u64,
        };
        found.into_iter().map(waiter).collect()
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
            if self.is_first() {
                return Ok(true);
            }
            if tokio::time::timeout_at(deadline, self.seat.wake.notified()).await.is_err() {
                return Ok(false);
            }
        }
    }

    /// Whether nobody sits before it.
    pub(crate) fn is_first(&self) -> bool {
        self.seat.behind.load(Ordering::Acquire) == 0
    }

    /// Resolves when the server closes its rooms, which is an error, or somebody who came earlier is back.
    pub(crate) async fn disturbed(&self) -> Result<(), ServiceError> {
        loop {
            if self.rooms.is_closed() {
                return Err(ServiceError::ShuttingDown);
            }
            if !self.is_first() {
                return Ok(());
            }
            self.seat.wake.notified().await;
        }
    }

    /// Where it sits.
    pub(crate) fn place(&self) -> Place {
        Place { wish: self.wish, number: self.seat.number, arrived_us: self.seat.arrived_us }
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::quorum::fixture::Api;

    async fn rooms(waiters_per_name_max: usize) -> Arc<Rooms> {
        let [api, _] = Api::pair().await;
        Rooms::new(Arc::clone(&api.engine), WaitLimits { waiters_max: 10, waiters_per_name_max })
    }

    const ONE: Wish = Wish { limit: 1, permits: 1, mode: Mode::Exclusive };

    fn visitor(name: &str) -> Visitor {
        let (names, metadata) = (vec![Name::new(name).unwrap()], Metadata::default());
        Visitor { primitive: Primitive::Lock, names, owner: None, metadata, wait_ms: 1000 }
    }

    #[tokio::test(start_paused = true)]
    async fn where_nobody_may_wait_no_room_is_left_behind() {
        let rooms = rooms(0).await;
        assert!(rooms.enter(&["a".into()], ONE, None, visitor("a")).is_err());
        assert!(rooms.rooms.lock().is_empty());
        assert!(rooms.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_multilock_asks_once_it_heads_all_queues_and_nobody_passes_it() {
        let rooms = rooms(10).await;
        let [a, b]: [Arc<str>; 2] = ["a".into(), "b".into()];
        let enter = |keys: &[Arc<str>]| rooms.enter(keys, ONE, None, visitor("x")).ok().unwrap();
        let is_first = Ticket::is_first;
        let [first_a, first_b] = [&a, &b].map(|key| enter(std::slice::from_ref(key)));
        let both = enter(&[a.clone(), b.clone()]);
        let leaves = enter(&[a.clone(), b.clone()]);
        let [next_a, next_b] = [&a, &b].map(|key| enter(std::slice::from_ref(key)));
        assert!(is_first(&first_a) && is_first(&first_b));
        assert_eq!((rooms.waiting("a"), rooms.waiting("b")), (4, 4));
        let positions = |limit| {
            let waiters = rooms.waiters(0, limit, |_| true);
            waiters.iter().map(|waiter| (waiter.number, waiter.position)).collect::<Vec<_>>()
        };
        assert_eq!(positions(9), [(1, 1), (2, 1), (3, 2), (4, 3), (5, 4), (6, 4)]);
        assert_eq!(positions(2), [(1, 1), (2, 1)]);
        assert_eq!(rooms.waiters(4, 9, |visitor| visitor.names.is_empty()).len(), 0);
        assert_eq!(rooms.waiters(4, 9, |_| true).len(), 2);
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

    #[tokio::test(start_paused = true)]
    async fn who_comes_back_sits_where_it_sat_and_whoever_moved_up_yields() {
        let rooms = rooms(10).await;
        let [a, b]: [Arc<str>; 2] = ["a".into(), "b".into()];
        let enter = |keys: &[Arc<str>], place| rooms.enter(keys, ONE, place, visitor("x")).ok().unwrap();
        let one = std::slice::from_ref(&a);
        let (first, both, third) = (enter(one, None), enter(&[a.clone(), b.clone()], None), enter(one, None));
        let [first_place, both_place] = [first.place(), both.place()];
        drop(first);
        drop(both);
        assert!(third.is_first());
        let both = enter(&[a.clone(), b.clone()], Some(both_place));
        assert!(both.is_first() && !third.is_first());
        assert!(third.disturbed().now_or_never().is_some_and(|disturbed| disturbed.is_ok()));
        let first = enter(one, Some(first_place));
        assert!(first.is_first() && !both.is_first() && !third.is_first());
        // Another attempt of the same request sits beside it, and another wish of its id at the end.
        let again = enter(one, Some(first_place));
        let other = rooms.enter(one, Wish { limit: 2, ..ONE }, Some(first_place), visitor("x")).ok().unwrap();
        assert!(other.is_first() && other.place().number > third.place().number);
        drop(first);
        assert!(again.is_first() && !both.is_first());
        drop(again);
        assert!(both.is_first() && !third.is_first());
        drop((both, other));
        assert!(third.is_first());
    }
}
