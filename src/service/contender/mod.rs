//! One who asks for a lease: its rounds at the nodes, and how it waits between them.
//!
//! It is the same for all primitives, but that of a semaphore slots are chosen anew for each round. What follows
//! on a refusal is decided in [`contention`], what one try is made of is in [`attempt`].

mod attempt;
mod contention;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use self::attempt::Try;
use self::contention::{Contention, Patience, Step, back_off};
use super::requests::{Attempt, request_of};
use super::waiting::{Queued, Ticket, Visitor, Wish};
use super::{
    AcquireOptions, Granted, Holder, Primitive, Service, ServiceError, Target, holder, retry_after, sharers,
    unavailable,
};
use crate::domain::{KEEP_MS_MAX, LeaseId, Mode, QueueId, STANDING_LIFE_MS, Scope, Standing};
use crate::quorum::Refusal;
use crate::quorum::hub::Subscription;
use crate::telemetry::metrics;

/// With hints cut, a contender looks this often.
const SAFETY_POLL: Duration = Duration::from_secs(2);
/// When a quorum is back, those who wait for different names ask one after the other within so long.
const RETURN_SPREAD_MS: u64 = 200;

/// FNV-1a, the same on every API server: all of them ask the same primary first. A multilock's is that of its
/// first name, which single locks of that name ask first, too.
fn primary_of(scope: &Scope) -> u64 {
    let bytes = scope.channels().first().into_iter().flat_map(|key| key.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Counts how long was waited, also by whoever leaves.
struct Waited {
    primitive: Primitive,
    since: Instant,
}

impl Drop for Waited {
    fn drop(&mut self) {
        metrics().waited(self.primitive, self.since.elapsed());
    }
}

pub(super) struct Contender<'a> {
    service: &'a Service,
    target: &'a Target,
    options: &'a AcquireOptions,
    scope: Scope,
    wish: Wish,
    /// Whether it has a seat in the room.
    seated: bool,
    /// As the nodes know it.
    request: Option<Cow<'a, str>>,
    started: Instant,
    deadline: Instant,
    attempts: u32,
    /// When the last round began.
    round_at: Instant,
    contention: Contention,
    /// Where it stands among the servers that contend, while it has a seat.
    standing: Option<Standing>,
    slots: Vec<u32>,
    /// A lease of the same request that no node will grant any more which has not.
    settled: Option<LeaseId>,
    /// Who was found to hold the semaphore, where the last try found it full.
    holders: Option<Vec<Holder>>,
}

impl<'a> Contender<'a> {
    pub(super) fn new(
        service: &'a Service,
        target: &'a Target,
        options: &'a AcquireOptions,
        started: Instant,
    ) -> Self {
        let scope = target.scope(service.engine.keys());
        let request = options.request.as_ref().map(|request| request_of(request, &scope));
        Self {
            service,
            target,
            options,
            wish: match *target {
                Target::Semaphore { limit, permits, .. } => Wish { limit, permits, mode: Mode::Exclusive },
                _ => Wish { limit: 1, permits: 1, mode: options.note.mode },
            },
            seated: false,
            request,
            started,
            deadline: started + Duration::from_millis(options.wait_ms),
            attempts: 0,
            round_at: started,
            contention: Contention::new(primary_of(&scope)),
            standing: None,
            slots: Vec::new(),
            settled: None,
            holders: None,
            scope,
        }
    }

    /// Where news of what it asks for are told.
    pub(super) fn channels(&self) -> &[Arc<str>] {
        self.scope.channels()
    }

    /// Asks until it is granted or refused, or until its time is over. `None` where a release ended it.
    pub(super) async fn run(&mut self) -> Option<Result<Granted, ServiceError>> {
        let Some(request) = &self.request else { return Some(self.ask(None).await) };
        let attempt = self.service.requests.begin(&self.scope, request);
        let result = tokio::select! {
            biased;
            () = attempt.ended() => None,
            result = self.ask(Some(&attempt)) => Some(result),
        };
        // The release counts on nothing coming from here once the attempt is dropped.
        result.filter(|result| result.is_err() || attempt.granted())
    }

    async fn ask(&mut self, attempt: Option<&Attempt>) -> Result<Granted, ServiceError> {
        let rooms = &self.service.rooms;
        if rooms.is_closed() {
            return Err(ServiceError::ShuttingDown);
        }
        let queued = self.queued().waiters > 0;
        if self.options.wait_ms == 0 {
            // Those who wait come first; but the caller's own earlier request is no rival. Of a semaphore,
            // what they do not want is there for others.
            if queued && matches!(self.scope, Scope::Records(_)) {
                let last = self.attempt(true, None).await;
                return self.end_with(last).await;
            }
            return self.contend(None).await;
        }
        let retries = queued && attempt.is_some();
        let (place, visitor) = (attempt.and_then(Attempt::place), Visitor::new(self.target, self.options));
        let ticket = match rooms.enter(self.scope.channels(), self.wish, place, visitor) {
            Ok(ticket) => ticket,
            // Full of those who wait for other names: what is free needs no room, nor what the request has already.
            Err(full @ ServiceError::TooManyWaiters { .. }) if !queued || retries => {
                return match self.attempt(queued, None).await {
                    Try::Granted(granted) => Ok(*granted),
                    _ => Err(full),
                };
            }
            Err(why) => return Err(why),
        };
        self.seated = true;
        if let Some(attempt) = attempt {
            attempt.seated(ticket.place());
        }
        if retries {
            match self.attempt(true, None).await {
                Try::Granted(granted) => return Ok(*granted),
                last @ Try::Differs(_) => return self.end_with(last).await,
                _ => {}
            }
        }
        let _waited = Waited { primitive: self.target.primitive(), since: self.started };
        Box::pin(self.contend(Some(ticket))).await
    }

    /// Its time is over before its turn.
    async fn give_up(&mut self, ticket: Ticket) -> Result<Granted, ServiceError> {
        if !self.service.engine.available() {
            return Err(unavailable(self.service.engine.tally()));
        }
        // Those in front are being served, one after the other. Who waits no more is due what
        // they leave of a semaphore, like anybody who does not wait.
        let served = matches!(self.scope, Scope::Slots(_)) && !ticket.board().is_paused();
        let is_known = !served && self.request.is_none();
        let last = ticket.board().last().filter(|_| is_known);
        if let Some(refusal) = last {
            return Err(self.contended(&refusal).await);
        }
        // Whoever may come back keeps its seat until it leaves.
        let _ticket = if served {
            self.seated = false;
            None
        } else {
            Some(ticket)
        };
        // Else nobody has been refused since there was a quorum, or it may be held by another attempt of
        // the caller's own request: only the nodes can tell.
        let last = self.attempt(!served, None).await;
        self.end_with(last).await
    }

    /// What the caller is told of the last try.
    async fn end_with(&mut self, last: Try) -> Result<Granted, ServiceError> {
        match last {
            Try::Granted(granted) => Ok(*granted),
            Try::Held(refusal) | Try::Kept(refusal) | Try::Split(refusal) => {
                Err(self.contended(&refusal).await)
            }
            Try::NoQuorum(nodes) => Err(unavailable(nodes)),
            Try::Differs(parameters) => Err(ServiceError::RequestIdReused { parameters }),
        }
    }

    /// Tries until granted, refused for good, or out of time. Who has a ticket does so when it is its turn.
    async fn contend(&mut self, seated: Option<Ticket>) -> Result<Granted, ServiceError> {
        loop {
            if self.service.rooms.is_closed() {
                return Err(ServiceError::ShuttingDown);
            }
            let missed = match &seated {
                Some(ticket) => !ticket.turn(self.deadline).await?,
                None => false,
            };
            if missed && let Some(ticket) = seated {
                return Box::pin(self.give_up(ticket)).await;
            }
            let ticket = seated.as_ref();
            if let Some(ticket) = ticket {
                if let Some(until) = ticket.board().take_taken_until(self.request.as_deref())
                    && let Some(subscription) = ticket.board().subscription()
                {
                    Box::pin(self.pause(ticket, Some(&subscription), Some(until))).await?;
                    continue;
                }
                if !self.service.engine.available() {
                    Box::pin(self.sit_out(ticket)).await?;
                    continue;
                }
            }
            let subscription = ticket.and_then(|ticket| self.begin_try(ticket));
            self.standing = self.standing_of(ticket);
            let last = match self.attempt(false, ticket).await {
                Try::Granted(granted) => {
                    if let Some(ticket) = ticket {
                        self.tell_next(ticket, subscription.as_deref(), &granted);
                    }
                    return Ok(*granted);
                }
                last => last,
            };
            let patience = match ticket {
                None => Patience::None,
                Some(_) if self.is_over() => Patience::Over,
                Some(_) if subscription.is_some() => Patience::Listens,
                Some(_) => Patience::Waits,
            };
            let round_trip = self.service.engine.round_trip();
            let step = match &last {
                Try::Split(refusal) => {
                    metrics().split_votes.increment(1);
                    if let Some(ticket) = ticket {
                        ticket.board().split();
                        ticket.board().refused(refusal);
                    }
                    self.contention.on_split(refusal, round_trip, patience)
                }
                Try::Kept(refusal) => {
                    if let Some(ticket) = ticket {
                        ticket.board().refused(refusal);
                    }
                    self.contention.on_kept(refusal, patience)
                }
                Try::Held(refusal) => {
                    let step = self.contention.on_held(refusal, patience);
                    if let Some(ticket) = ticket.filter(|_| step != Step::GiveUp) {
                        ticket.board().refused(refusal);
                    }
                    step
                }
                Try::NoQuorum(_) => {
                    let step = self.contention.on_no_quorum(patience);
                    if let Some(ticket) = ticket.filter(|_| step != Step::GiveUp) {
                        ticket.board().unknown();
                    }
                    step
                }
                Try::Granted(_) | Try::Differs(_) => Step::GiveUp,
            };
            // Who does not wait only backs off.
            let now = self.service.engine.clock().now();
            match (step, ticket) {
                (Step::BackOff(longest), _) => Box::pin(self.sleep_below(longest)).await,
                (Step::SitOut(kept), _) => tokio::time::sleep(kept + self.jitter()).await,
                (Step::Listen, Some(ticket)) => {
                    // Subscribe, be confirmed, look again, and only then wait.
                    let listen =
                        self.service.engine.hub().listen(self.scope.channels(), Some(self.queue_id()));
                    let listen = Box::pin(tokio::time::timeout_at(self.deadline, listen)).await;
                    if let Ok(subscription) = listen {
                        ticket.board().subscribed(Arc::new(subscription));
                    }
                }
                (Step::Sleep(free_in), Some(ticket)) => {
                    let free_at = free_in.map(|free_in| now + free_in);
                    Box::pin(self.pause(ticket, subscription.as_ref(), free_at)).await?;
                }
                (Step::Outage(pause), Some(ticket)) => {
                    let pause = pause / 2 + Duration::from_millis(self.random(pause.as_millis() as u64));
                    Box::pin(self.pause(ticket, None, Some(now + pause))).await?;
                }
                _ => return self.end_with(last).await,
            }
        }
    }

    /// What this queue knows before the first in it asks.
    fn begin_try(&mut self, ticket: &Ticket) -> Option<Arc<Subscription>> {
        let board = ticket.board();
        // Whoever stood here before may have left in its sleep.
        board.paused(false);
        if board.is_split() {
            self.contention.ask_primary_first();
        }
        let subscription = board.subscription()?;
        // News from here on speak against what this round will find.
        subscription.bell().reset();
        Some(subscription)
    }

    /// What the next one of the queue knows by a grant to this one.
    fn tell_next(&self, ticket: &Ticket, subscription: Option<&Subscription>, granted: &Granted) {
        if matches!(self.scope, Scope::Records(_)) {
            if let Some(subscription) = subscription {
                subscription.bell().reset();
            }
            match self.wish.mode {
                Mode::Exclusive => {
                    ticket.board().taken_until(granted.lease.valid_until, self.request.as_deref())
                }
                // The next one may be let in beside it.
                Mode::Shared => ticket.board().unknown(),
            }
            ticket.changed_for_others();
        }
    }

    /// Sleeps while no quorum of nodes could grant anything, and sends nothing.
    async fn sit_out(&self, ticket: &Ticket) -> Result<(), ServiceError> {
        let engine = &self.service.engine;
        ticket.board().unknown();
        ticket.board().paused(true);
        let back = async {
            engine.until_available().await;
            tokio::time::sleep(Duration::from_millis(self.random(RETURN_SPREAD_MS))).await;
        };
        let result = tokio::select! {
            biased;
            disturbed = ticket.disturbed() => disturbed,
            () = back => Ok(()),
            () = tokio::time::sleep_until(self.deadline) => Err(unavailable(engine.tally())),
        };
        ticket.board().paused(false);
        result
    }

    /// Waits for a hint, for `until` plus a little, or for the deadline.
    async fn pause(
        &self,
        ticket: &Ticket,
        subscription: Option<&Arc<Subscription>>,
        until: Option<Instant>,
    ) -> Result<(), ServiceError> {
        let engine = &self.service.engine;
        let safety = engine.clock().now() + SAFETY_POLL;
        // Several servers wait for the same moment: not all at once.
        let until = until.map_or(safety, |until| safety.min(until + self.jitter())).min(self.deadline);
        let grace = engine.round_trip().clamp(Duration::from_micros(500), Duration::from_millis(20));
        let defer = Duration::from_millis(KEEP_MS_MAX) + self.jitter();
        let hint = async {
            match subscription {
                Some(subscription) => subscription.bell().rung(engine.total(), grace, defer).await,
                None => std::future::pending().await,
            }
        };
        ticket.board().paused(true);
        let over = tokio::select! {
            biased;
            disturbed = ticket.disturbed() => disturbed,
            () = hint => Ok(()),
            () = tokio::time::sleep_until(until) => Ok(()),
        };
        ticket.board().paused(false);
        over
    }

    async fn back_off(&self, rounds: u32) {
        self.sleep_below(back_off(rounds, self.service.engine.round_trip())).await;
    }

    async fn sleep_below(&self, longest: Duration) {
        tokio::time::sleep(Duration::from_micros(self.random(longest.as_micros() as u64))).await;
    }

    fn jitter(&self) -> Duration {
        Duration::from_micros(1000 + self.random(4000))
    }

    fn queue_id(&self) -> QueueId {
        QueueId::new(self.service.engine.server(), self.wish.limit)
    }

    /// What the nodes are told of it: while it waits its place, and of a semaphore always its queue, since those who
    /// wait here for permits are not in the way of who asks for what they leave.
    fn standing_of(&self, ticket: Option<&Ticket>) -> Option<Standing> {
        let engine = &self.service.engine;
        let (queue, limit) = (self.queue_id(), self.wish.limit);
        let Some(ticket) = ticket else {
            return self.scope.is_slots().then(|| Standing::passing(queue, limit));
        };
        let left = self.deadline.saturating_duration_since(engine.clock().now());
        Some(Standing {
            arrived_us: ticket.arrived_us(),
            queue,
            // No longer than it waits.
            life_ms: (left.as_millis() as u64 + 1).min(STANDING_LIFE_MS),
            // From the release at a node to the acquire of who hears of it there, with something to spare.
            keep_ms: (4 * engine.round_trip().as_millis() as u64 + 5).min(KEEP_MS_MAX),
            want: ticket.want(),
            limit,
            next: ticket.next(),
        })
    }

    fn random(&self, below: u64) -> u64 {
        self.service.engine.clock().random_below(below)
    }

    fn is_over(&self) -> bool {
        self.service.engine.clock().now() >= self.deadline
    }

    /// Who waits for the same.
    fn queued(&self) -> Queued {
        self.service.rooms.queued(self.scope.channels(), self.wish.limit)
    }

    async fn contended(&mut self, refusal: &Refusal) -> ServiceError {
        if refusal.holdings.iter().any(|holding| holding.same_request) {
            // It is the caller's own earlier attempt that is in the way, and that may have been granted.
            return unavailable(refusal.nodes);
        }
        let holders = match self.target {
            Target::Semaphore { name, .. } => match self.holders.take() {
                Some(holders) => holders,
                None => self.service.semaphore_holders(name).await,
            },
            _ => refusal.holder().map(|named| holder(&named, Vec::new())).into_iter().collect(),
        };
        ServiceError::Contended {
            primitive: self.target.primitive(),
            holders,
            sharers: sharers(refusal.holdings.iter(), refusal.holdings.len(), refusal.nodes.total as usize),
            retry_after_ms: retry_after(refusal.free_in_ms),
            nodes: refusal.nodes,
            waited: self.options.wait_ms > 0,
        }
    }
}
