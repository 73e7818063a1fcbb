//! One who asks for a lease: its rounds at the nodes, and how it waits between them.
//!
//! It is the same for all primitives, but that of a semaphore slots are chosen anew for each round.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::leases::{holder, read_note, unavailable, write_note};
use super::semaphores::{Doubt, NoSlots, Picked};
use super::waiting::{Queued, Ticket, Wish};
use super::{
    AcquireOptions, Granted, Holder, Lease, Nodes, Note, Primitive, Service, ServiceError, Target,
    retry_after,
};
use crate::domain::{
    Ask, Claim, Holding, LeaseHandle, LeaseId, Renewal, RequestId, Scope, Share, Token, digest_of_set,
};
use crate::quorum::hub::Subscription;
use crate::quorum::tally::quorum_of;
use crate::quorum::{Extension, Order, Refusal, Round, Won};
use crate::telemetry::metrics;

/// Split votes that even a caller who does not wait sits out: of several who ask at the same
/// moment, one must get it.
const SPLITS_MAX: u32 = 12;
/// Doubtful refusals that are taken for split votes before they are taken for a lease that is held. Of two
/// contenders who took all nodes between them, both are gone by the next round.
const DOUBTS_MAX: u32 = 6;
/// With hints cut, a contender looks this often.
const SAFETY_POLL: Duration = Duration::from_secs(2);
/// After a round that found no quorum, a waiting contender asks again after so long, and ever more seldom.
const OUTAGE_POLL_MS: u64 = 100;
const OUTAGE_POLL_MAX_MS: u64 = 1000;
/// When a quorum is back, those who wait for different names ask one after the other within so long.
const RETURN_SPREAD_MS: u64 = 200;

/// The request id as it is stored. Of several records it says of which: the same id for another set of
/// names, or for one of them, is another request, whose lease is not this one's to take over or undo.
fn request_of<'a>(request: &'a RequestId, scope: &Scope) -> Cow<'a, str> {
    match scope.channels() {
        [_] => request.as_str().into(),
        many => {
            let set = digest_of_set(many.iter().map(|key| &**key));
            // A slash is in no request id.
            format!("{}/{}", request.as_str(), hex::encode(&set[..16])).into()
        }
    }
}

/// FNV-1a, the same on every API server: all of them ask the same primary first. A multilock's is that of its
/// first name, which single locks of that name ask first, too.
fn primary_of(scope: &Scope) -> u64 {
    let bytes = scope.channels().first().into_iter().flat_map(|key| key.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// How one try ended.
enum Try {
    Granted(Box<Granted>),
    /// Held by somebody.
    Held(Box<Refusal>),
    /// Nobody won the round.
    Split(Box<Refusal>),
    NoQuorum(Nodes),
}

/// What to ask for next.
enum Choice {
    /// Slots, some of them perhaps in doubt.
    Slots(Option<Doubt>),
    /// None is free, but the caller's own earlier request may be what fills it: look for that one first.
    Full(Try),
    /// None is free.
    None(Try),
    /// One of those who wait is being granted something just now: see what it leaves.
    Unclear,
}

/// Slots that were asked for in doubt.
struct Doubted {
    doubt: Doubt,
    /// The leases for which they were refused.
    rivals: Vec<LeaseId>,
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
    order: Order,
    /// How many primaries were given up for what is left there of a lease that nobody has.
    passed_over: u64,
    /// For which lease the primary refused the last time, though nobody holds it.
    left_over: Option<LeaseId>,
    slots: Vec<u32>,
    /// A lease of the same request that no node will grant any more which has not.
    settled: Option<LeaseId>,
    /// Doubtful refusals in a row.
    doubts: u32,
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
        Self {
            service,
            target,
            options,
            wish: match *target {
                Target::Semaphore { limit, permits, .. } => Wish { limit, permits },
                _ => Wish { limit: 1, permits: 1 },
            },
            seated: false,
            request: options.request.as_ref().map(|request| request_of(request, &scope)),
            scope,
            started,
            deadline: started + Duration::from_millis(options.wait_ms),
            attempts: 0,
            round_at: started,
            order: Order::Parallel,
            passed_over: 0,
            left_over: None,
            slots: Vec::new(),
            settled: None,
            doubts: 0,
            holders: None,
        }
    }

    /// Where news of what it asks for are told.
    pub(super) fn channels(&self) -> &[Arc<str>] {
        self.scope.channels()
    }

    /// Asks until it is granted or refused, or until its time is over.
    pub(super) async fn run(&mut self) -> Result<Granted, ServiceError> {
        let rooms = &self.service.rooms;
        if rooms.is_closed() {
            return Err(ServiceError::ShuttingDown);
        }
        let queued = self.queued().waiters > 0;
        // Those who wait come first; but the caller's own earlier request is no rival. Of a semaphore,
        // what they do not want is there for others.
        let yields = self.options.wait_ms == 0 && matches!(self.scope, Scope::Records(_));
        let retries = self.options.wait_ms > 0 && self.options.request.is_some();
        if queued && (yields || retries) {
            match self.attempt(true).await {
                Try::Granted(granted) => return Ok(*granted),
                last if yields => return self.end_with(last).await,
                _ => {}
            }
        }
        if self.options.wait_ms == 0 {
            return self.contend(None).await;
        }
        let ticket = match rooms.enter(self.scope.channels(), self.wish) {
            Ok(ticket) => ticket,
            // Full of those who wait for other names: what is free needs no room.
            Err(full @ ServiceError::TooManyWaiters { .. }) if !queued => {
                return match self.attempt(false).await {
                    Try::Granted(granted) => Ok(*granted),
                    _ => Err(full),
                };
            }
            Err(why) => return Err(why),
        };
        self.seated = true;
        let _waited = Waited { primitive: self.target.primitive(), since: self.started };
        Box::pin(self.wait_and_contend(ticket)).await
    }

    async fn wait_and_contend(&mut self, ticket: Ticket) -> Result<Granted, ServiceError> {
        if !ticket.turn(self.deadline).await? {
            if !self.service.engine.available() {
                return Err(unavailable(self.service.engine.tally()));
            }
            // Those in front are being served, one after the other. Who waits no more is due what
            // they leave of a semaphore, like anybody who does not wait.
            let served = matches!(self.scope, Scope::Slots(_)) && !ticket.board().is_paused();
            let is_known = !served && self.request.is_none() && self.service.engine.available();
            let last = ticket.board().last().filter(|_| is_known);
            if let Some(refusal) = last {
                return Err(self.contended(&refusal).await);
            }
            drop(ticket);
            self.seated = false;
            // Else nobody has been refused since there was a quorum, or it may be held by another attempt of
            // the caller's own request: only the nodes can tell.
            let last = self.attempt(!served).await;
            return self.end_with(last).await;
        }
        if let Some(until) = ticket.board().take_taken_until(self.request.as_deref())
            && let Some(subscription) = ticket.board().subscription()
        {
            self.pause(&ticket, Some(&subscription), Some(until)).await?;
        }
        self.contend(Some(&ticket)).await
    }

    /// What the caller is told of the last try.
    async fn end_with(&mut self, last: Try) -> Result<Granted, ServiceError> {
        match last {
            Try::Granted(granted) => Ok(*granted),
            Try::Held(refusal) | Try::Split(refusal) => Err(self.contended(&refusal).await),
            Try::NoQuorum(nodes) => Err(unavailable(nodes)),
        }
    }

    /// Tries until granted, refused for good, or out of time.
    async fn contend(&mut self, ticket: Option<&Ticket>) -> Result<Granted, ServiceError> {
        let (mut splits, mut outages) = (0, 0);
        loop {
            if self.service.rooms.is_closed() {
                return Err(ServiceError::ShuttingDown);
            }
            if let Some(ticket) = ticket.filter(|_| !self.service.engine.available()) {
                Box::pin(self.sit_out(ticket)).await?;
            }
            if let Some(ticket) = ticket {
                // Whoever stood here before may have left in its sleep.
                ticket.board().paused(false);
            }
            let subscription = ticket.and_then(|ticket| ticket.board().subscription());
            if let Some(subscription) = &subscription {
                // News from here on speak against what this round will find.
                subscription.bell().reset();
            }
            if ticket.is_some_and(|ticket| ticket.board().is_split()) {
                self.order = self.primary_first();
            }
            match self.attempt(false).await {
                Try::Granted(granted) => {
                    if let Some(ticket) = ticket
                        && matches!(self.scope, Scope::Records(_))
                    {
                        if let Some(subscription) = &subscription {
                            subscription.bell().reset();
                        }
                        ticket.board().taken_until(granted.lease.valid_until, self.request.as_deref());
                        ticket.changed_for_others();
                    }
                    return Ok(*granted);
                }
                Try::Split(refusal) => {
                    metrics().split_votes.increment(1);
                    self.choose_primary(&refusal);
                    splits += 1;
                    if let Some(ticket) = ticket {
                        ticket.board().split();
                        ticket.board().refused(&refusal);
                    }
                    let over = match ticket {
                        Some(_) => self.is_over(),
                        None => splits >= SPLITS_MAX,
                    };
                    if over {
                        return Err(self.contended(&refusal).await);
                    }
                    Box::pin(self.back_off(splits)).await;
                }
                Try::Held(refusal) => {
                    let Some(ticket) = ticket.filter(|_| !self.is_over()) else {
                        return Err(self.contended(&refusal).await);
                    };
                    ticket.board().refused(&refusal);
                    let Some(subscription) = subscription else {
                        // Subscribe, be confirmed, look again, and only then wait.
                        let listen = self.service.engine.hub().listen(self.scope.channels());
                        let subscription = Box::pin(tokio::time::timeout_at(self.deadline, listen)).await;
                        if let Ok(subscription) = subscription {
                            ticket.board().subscribed(Arc::new(subscription));
                        }
                        continue;
                    };
                    let now = self.service.engine.clock().now();
                    let free_at = refusal.free_in_ms.map(|ms| now + Duration::from_millis(ms));
                    Box::pin(self.pause(ticket, Some(&subscription), free_at)).await?;
                    self.doubts = 0;
                }
                Try::NoQuorum(nodes) => {
                    let Some(ticket) = ticket.filter(|_| !self.is_over()) else {
                        return Err(unavailable(nodes));
                    };
                    ticket.board().unknown();
                    let longest = (OUTAGE_POLL_MS << outages).min(OUTAGE_POLL_MAX_MS);
                    outages = (outages + 1).min(4);
                    let again = longest / 2 + self.random(longest);
                    let until = self.service.engine.clock().now() + Duration::from_millis(again);
                    Box::pin(self.pause(ticket, None, Some(until))).await?;
                }
            }
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
            () = ticket.closed() => Err(ServiceError::ShuttingDown),
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
        let jitter = Duration::from_millis(1 + self.random(4));
        let until = until.map_or(safety, |until| safety.min(until + jitter)).min(self.deadline);
        let grace = engine.round_trip().clamp(Duration::from_micros(500), Duration::from_millis(20));
        let hint = async {
            match subscription {
                Some(subscription) => subscription.bell().rung(engine.total(), grace).await,
                None => std::future::pending().await,
            }
        };
        ticket.board().paused(true);
        let over = tokio::select! {
            biased;
            () = ticket.closed() => Err(ServiceError::ShuttingDown),
            () = hint => Ok(()),
            () = tokio::time::sleep_until(until) => Ok(()),
        };
        ticket.board().paused(false);
        over
    }

    /// Asks one node first from now on: the same for all, but the next one where that refuses again for
    /// what is left there of a lease that nobody has. It would refuse everybody until that expires.
    fn choose_primary(&mut self, refusal: &Refusal) {
        if matches!(self.order, Order::PrimaryFirst(_)) && refusal.nodes.granted == 0 {
            // It was the first to answer.
            let left_over = refusal.holdings.first().map(|holding| holding.lease);
            if left_over.is_some() && left_over == self.left_over {
                self.passed_over += 1;
            }
            self.left_over = left_over;
        }
        self.order = self.primary_first();
    }

    fn primary_first(&self) -> Order {
        Order::PrimaryFirst(primary_of(&self.scope).wrapping_add(self.passed_over))
    }

    async fn back_off(&self, splits: u32) {
        let longest_us = self.service.engine.round_trip().as_micros() as u64 * 2 + 500;
        let longest_us = (longest_us << splits.min(5)).min(50_000);
        tokio::time::sleep(Duration::from_micros(self.random(longest_us))).await;
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

    /// Slots to ask for, beyond those that others wait for already.
    async fn pick(&self, look_only: bool) -> Result<Picked, NoSlots> {
        // Whoever has a seat is the first of its queue, and who only looks takes nothing away.
        let queued = || if self.seated || look_only { Queued::default() } else { self.queued() };
        if self.attempts == 0 && self.wish.permits == 1 && queued().waiters == 0 {
            return Ok(self.service.guess_slot(self.wish.limit));
        }
        Box::pin(self.service.pick_slots(&self.scope, self.wish, queued)).await
    }

    /// One round, or as many as a semaphore needs to find that it is full.
    async fn attempt(&mut self, look_only: bool) -> Try {
        /// Slots that somebody else took first, before the semaphore counts as contended.
        const SLOTS_LOST_MAX: u32 = 8;
        // Every slot that looked free was gone: others are faster just now.
        let mut lost_all = self.all_taken();
        let mut doubted: Option<Doubted> = None;
        self.holders = None;
        for lost in 1..=SLOTS_LOST_MAX {
            let (mut full, mut doubt) = (None, None);
            if matches!(self.scope, Scope::Slots(_)) {
                let again = doubted.as_ref().map(|doubted| doubted.doubt);
                match self.choose(again, look_only, lost < SLOTS_LOST_MAX).await {
                    Choice::Slots(chosen) => doubt = chosen,
                    Choice::Full(last) => full = Some(last),
                    Choice::None(last) => return last,
                    Choice::Unclear => {
                        Box::pin(self.back_off(lost)).await;
                        continue;
                    }
                }
            }
            let refusal = match self.round(look_only || full.is_some()).await {
                Ok(last) => return last,
                Err(refusal) => refusal,
            };
            if refusal.undone {
                // Nothing that this round has found still stands.
                match self.scope {
                    Scope::Records(_) => return Try::Split(refusal),
                    Scope::Slots(_) => continue,
                }
            }
            if let Some(same) = refusal.holdings.iter().find(|holding| holding.same_request) {
                match Box::pin(self.resume(same, &refusal)).await {
                    // A node that does not answer may hold it, or two attempts of the request have taken
                    // the others between them; of these, one is gone soon.
                    Some(Try::NoQuorum(_)) if !look_only && self.doubts < DOUBTS_MAX => {
                        self.doubts += 1;
                        return Try::Split(refusal);
                    }
                    Some(resumed) => return resumed,
                    // The remains of a lost request are gone: start anew.
                    None => continue,
                }
            }
            if let Some(full) = full {
                return full;
            }
            if matches!(self.scope, Scope::Records(_)) || look_only {
                return match self.lost(refusal) {
                    Try::Split(refusal) if look_only => Try::Held(refusal),
                    last => last,
                };
            }
            doubted = match doubt.filter(|_| refusal.held) {
                Some(doubt) => {
                    let rivals: Vec<LeaseId> = refusal.holdings.iter().map(|h| h.lease).collect();
                    if doubted.is_some_and(|before| before.rivals.iter().any(|one| rivals.contains(one))) {
                        // Still there: a lease, and not what is left of a round that was lost too.
                        return Try::Held(Box::new(Refusal { free_in_ms: doubt.free_in_ms, ..*refusal }));
                    }
                    Box::pin(self.back_off(lost)).await;
                    Some(Doubted { doubt, rivals })
                }
                None => None,
            };
            (lost_all.nodes, lost_all.holdings) = (refusal.nodes, refusal.holdings);
        }
        Try::Split(Box::new(lost_all))
    }

    fn all_taken(&self) -> Refusal {
        let engine = &self.service.engine;
        Refusal {
            holdings: Vec::new(),
            nodes: Nodes { total: engine.total() as u32, quorum: engine.quorum(), ..Nodes::default() },
            free_in_ms: Some(0),
            held: false,
            undone: false,
        }
    }

    /// Chooses the slots to ask for: those of the last round again where they are in doubt.
    async fn choose(&mut self, again: Option<Doubt>, look_only: bool, may_look_again: bool) -> Choice {
        if again.is_some() {
            return Choice::Slots(again);
        }
        let last = match self.pick(look_only).await {
            Ok(picked) => {
                self.slots = picked.slots;
                return Choice::Slots(picked.doubt);
            }
            Err(NoSlots::NoQuorum(nodes)) => return Choice::None(Try::NoQuorum(nodes)),
            Err(NoSlots::Unclear(_)) if may_look_again => return Choice::Unclear,
            Err(NoSlots::Unclear(refusal)) => Try::Held(refusal),
            Err(NoSlots::Contested(refusal)) => self.lost(refusal),
            Err(NoSlots::Full(refusal, holders)) => {
                self.holders = Some(holders);
                Try::Held(refusal)
            }
        };
        if self.options.request.is_none() {
            return Choice::None(last);
        }
        // At any slot, since the nodes find it by its id.
        self.slots = vec![0];
        Choice::Full(last)
    }

    /// One round; `Err` where it was refused.
    async fn round(&mut self, look_only: bool) -> Result<Try, Box<Refusal>> {
        let note = Note {
            acquired_at_ms: self.service.engine.clock().wall_us() / 1000,
            limit: matches!(self.scope, Scope::Slots(_)).then_some(self.wish.limit),
            ..self.options.note.clone()
        };
        let data = write_note(&note);
        let ask = Ask {
            scope: &self.scope,
            slots: &self.slots,
            ttl_ms: self.options.ttl_ms,
            request: self.request.as_deref(),
            data: &data,
            look_only,
        };
        self.attempts += 1;
        self.round_at = self.service.engine.clock().now();
        match self.service.engine.grant(&ask, self.order).await {
            Round::Granted(won) => Ok(Try::Granted(Box::new(self.granted(*won, note)))),
            Round::NoQuorum(nodes) => Ok(Try::NoQuorum(nodes)),
            Round::Refused(refusal) => Err(refusal),
        }
    }

    /// What a refusal means: that it is held, or that others contend.
    fn lost(&mut self, refusal: Box<Refusal>) -> Try {
        self.doubts = if refusal.is_doubtful() { self.doubts + 1 } else { 0 };
        let held = refusal.held && !(1..=DOUBTS_MAX).contains(&self.doubts);
        if held { Try::Held(refusal) } else { Try::Split(refusal) }
    }

    fn granted(&self, won: Won, note: Note) -> Granted {
        let Won { handle, valid_until, nodes, grant } = won;
        let lease = Lease {
            handle,
            ttl_ms: self.options.ttl_ms,
            valid_until,
            note,
            slots: self.slots.clone(),
            waited_ms: (self.round_at - self.started).as_millis() as u64,
            attempts: self.attempts,
            nodes,
        };
        Granted { lease, grant }
    }

    /// The caller's own earlier request holds it: the same lease and token come back, with its
    /// time set anew. `None` where only a minority held its remains, which are gone now (§1.9).
    async fn resume(&mut self, same: &Holding, refusal: &Refusal) -> Option<Try> {
        let quorum = quorum_of(self.service.engine.total());
        let held = || refusal.holdings.iter().filter(|holding| holding.lease == same.lease);
        let agreed = |token: Token| held().filter(|holding| holding.token == token).count();
        let unknown = refusal.nodes.total - refusal.nodes.granted - refusal.nodes.held;
        let token = match held().map(|holding| holding.token).find(|&token| agreed(token) >= quorum) {
            Some(token) => token,
            // Nodes that did not answer may hold it too, or know which token was reported:
            // whoever got it may be at work, so nothing is touched.
            None if held().count() + unknown as usize >= quorum && unknown > 0 => {
                return Some(Try::NoQuorum(refusal.nodes));
            }
            // A quorum holds it with different tokens, and no node will with any of them that does not
            // by now: the greatest is greater than all before it too, and is raised to a quorum now.
            None if held().count() >= quorum && self.settled == Some(same.lease) => {
                held().map(|holding| holding.token).max()?
            }
            // Nodes that do not hold it may yet, and so decide which token is reported. They are told to
            // refuse it, and then looked at again.
            None => {
                return match self.service.engine.take_back(&self.scope, &same.lease).await {
                    Ok(()) => {
                        self.settled = Some(same.lease);
                        None
                    }
                    Err(nodes) => Some(Try::NoQuorum(nodes)),
                };
            }
        };
        let handle = LeaseHandle { id: same.lease, token };
        let renewal = Renewal::Ttl(self.options.ttl_ms);
        // The earlier attempt may not know yet that its caller has left; when it does, its undo
        // must not take away what is returned here. Nor is this one's to take away what the earlier one has.
        let engine = &self.service.engine;
        let claim = Claim::from_bits(engine.clock().random_bits());
        let grant = engine.granted_before(&self.scope, handle.id, claim);
        match engine.extend(&self.scope, handle, renewal, None, Some(Share::Joins(claim))).await {
            Extension::Extended { stored, valid_until, nodes } => {
                let lease = Lease {
                    handle,
                    ttl_ms: stored.ttl_ms,
                    valid_until,
                    note: read_note(&stored.data),
                    slots: stored.slots,
                    waited_ms: (self.round_at - self.started).as_millis() as u64,
                    attempts: self.attempts,
                    nodes,
                };
                Some(Try::Granted(Box::new(Granted { lease, grant })))
            }
            Extension::Lost(_) => None,
            Extension::NoQuorum(nodes) => Some(Try::NoQuorum(nodes)),
        }
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
            retry_after_ms: retry_after(refusal.free_in_ms),
            nodes: refusal.nodes,
            waited: self.options.wait_ms > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::domain::{Name, RequestId};
    use crate::node::Script;
    use crate::quorum::fixture::Api;
    use crate::service::WaitLimits;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// All permits of a semaphore are asked for while each node has granted them to another contender; a
    /// moment later these hear that they have lost.
    async fn among_contenders(wait_ms: u64) -> (Result<Granted, ServiceError>, Duration) {
        let [api, other] = Api::pair().await;
        let service = service(&api);
        let name = Name::new("a").unwrap();
        let target = Target::Semaphore { name: name.clone(), limit: 2, permits: 2 };
        let scope = target.scope(api.engine.keys());
        let rounds = ["first", "second", "third"]
            .map(|request| other.round_for(&scope, &[0, 1], Some(request), 30_000));
        let mut rounds = rounds.map(Box::pin);
        for (i, round) in rounds.iter_mut().enumerate() {
            other.nodes.iter().for_each(|node| node.hang());
            other.nodes[i].go_on_from_now();
            assert!(tokio::time::timeout(MILLISECOND, round).await.is_err());
        }
        let began = Instant::now();
        let options = options(wait_ms, None);
        let mut acquire = pin!(service.acquire(&target, &options));
        let early = tokio::time::timeout(MILLISECOND, &mut acquire).await;
        other.nodes.iter().for_each(|node| node.go_on());
        for round in rounds {
            assert!(matches!(round.await, Round::Refused(_)));
        }
        let result = match early {
            Ok(result) => result,
            Err(_) => acquire.await,
        };
        (result, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn what_only_contenders_take_of_a_semaphore_is_not_refused_as_held() {
        let (result, _) = among_contenders(0).await;
        assert!(result.is_ok(), "{:?}", result.err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_two_contenders_have_taken_is_not_refused_as_held_while_the_last_node_hangs() {
        let [api, other] = Api::pair().await;
        other.nodes[2].refuse(Some(Script::Acquire));
        let mut rounds = ["first", "second"].map(|request| Box::pin(other.round_of(Some(request), 30_000)));
        for (i, round) in rounds.iter_mut().enumerate() {
            other.nodes.iter().for_each(|node| node.hang());
            other.nodes[i].go_on_from_now();
            assert!(tokio::time::timeout(MILLISECOND, round).await.is_err());
        }
        api.nodes[2].hang();
        let (service, target) = (service(&api), Target::Lock(Name::new("a").unwrap()));
        let once = options(0, None);
        let mut acquire = pin!(service.acquire(&target, &once));
        let early = tokio::time::timeout(5 * MILLISECOND, &mut acquire).await;
        assert!(early.is_err(), "{:?}", early.map(|early| early.err()));
        other.nodes.iter().for_each(|node| node.go_on());
        for round in rounds {
            assert!(matches!(round.await, Round::Refused(_)));
        }
        let granted = acquire.await;
        assert!(granted.is_ok(), "{:?}", granted.err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_in_the_way_of_its_own_retry_is_held_to_all_others_who_wait() {
        let [api, other] = Api::pair().await;
        let Round::Granted(won) = other.round_of(Some("retried"), 30_000).await else {
            panic!("not granted")
        };
        won.grant.keep();
        let Round::Refused(refusal) = other.round_of(Some("retried"), 30_000).await else {
            panic!("granted")
        };
        assert!(refusal.holdings.iter().any(|holding| holding.same_request));
        let service = service(&api);
        let target = Target::Lock(Name::new("a").unwrap());
        let scope = target.scope(api.engine.keys());
        let retry = service.rooms.enter(scope.channels(), Wish { limit: 1, permits: 1 }).unwrap();
        retry.board().refused(&refusal);
        let options = options(10, None);
        let result = service.acquire(&target, &options).await;
        assert!(matches!(result, Err(ServiceError::Contended { .. })), "{:?}", result.err());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_among_contenders_does_not_sleep_on_what_they_give_up() {
        let (result, took) = among_contenders(10_000).await;
        assert!(result.is_ok() && took < 200 * MILLISECOND, "{took:?} {:?}", result.err());
    }

    fn options(wait_ms: u64, request: Option<&str>) -> AcquireOptions {
        let request = request.map(|id| RequestId::new(id).unwrap());
        AcquireOptions { ttl_ms: 30_000, wait_ms, note: Note::default(), request }
    }

    fn service(api: &Api) -> Service {
        Service::new(Arc::clone(&api.engine), WaitLimits { waiters_max: 10, waiters_per_name_max: 10 })
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_behind_others_is_told_of_a_quorum_that_is_not_there_and_not_of_a_holder() {
        let [api, other] = Api::pair().await;
        other.acquire().await;
        let (service, target) = (service(&api), Target::Lock(Name::new("a").unwrap()));
        let (longer, shorter) = (options(20_000, None), options(10_000, None));
        let (first, second, ()) = tokio::join!(
            service.acquire(&target, &longer),
            async {
                tokio::time::sleep(MILLISECOND).await;
                service.acquire(&target, &shorter).await
            },
            async {
                tokio::time::sleep(100 * MILLISECOND).await;
                api.nodes[..2].iter().for_each(|node| node.refuse(Some(Script::Acquire)));
            }
        );
        for result in [first, second] {
            assert!(matches!(result, Err(ServiceError::QuorumUnavailable { .. })), "{:?}", result.err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gives_up_behind_others_after_a_hand_over_is_told_of_the_new_holder() {
        let [api, other] = Api::pair().await;
        let before = other.acquire().await;
        let (service, target) = (service(&api), Target::Lock(Name::new("a").unwrap()));
        let (next, waits, gives_up) = (options(20_000, None), options(10_000, None), options(500, None));
        let behind = |millis, options| {
            let (service, target) = (&service, &target);
            async move {
                tokio::time::sleep(millis * MILLISECOND).await;
                service.acquire(target, options).await
            }
        };
        let (first, second, third, released) =
            tokio::join!(service.acquire(&target, &next), behind(1, &waits), behind(2, &gives_up), async {
                tokio::time::sleep(100 * MILLISECOND).await;
                other.release(&before).await
            });
        let token = first.unwrap_or_else(|why| panic!("{why:?}")).lease.handle.token;
        let named = |result: Result<Granted, ServiceError>| match result {
            Err(ServiceError::Contended { holders, .. }) => holders.into_iter().map(|h| h.token).collect(),
            _ => Vec::new(),
        };
        assert!(released && named(third) == [token] && named(second) == [token]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_that_leaves_gives_back_goes_to_who_waits_here_also_without_hints() {
        let [api, _] = Api::pair().await;
        api.nodes.iter().for_each(|node| node.mute(true));
        let (service, target) = (service(&api), Target::Lock(Name::new("a").unwrap()));
        let (once, waits) = (options(0, None), options(10_000, None));
        let held = service.acquire(&target, &once).await.unwrap_or_else(|why| panic!("{why:?}"));
        let began = Instant::now();
        let (next, ()) = tokio::join!(service.acquire(&target, &waits), async {
            tokio::time::sleep(100 * MILLISECOND).await;
            drop(held);
        });
        assert!(next.is_ok(), "{:?}", next.err());
        assert!(began.elapsed() < 200 * MILLISECOND, "{:?}", began.elapsed());
        drop(next);
        assert!(api.engine.is_settled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_that_waits_behind_others_gets_what_its_earlier_attempt_was_granted_elsewhere() {
        let [api, other] = Api::pair().await;
        let before = other.acquire().await;
        let (here, there) = (service(&api), service(&other));
        let target = Target::Lock(Name::new("a").unwrap());
        let (waits, retry, once) =
            (options(10_000, None), options(5_000, Some("retried:1")), options(0, Some("retried:1")));
        let (first, retried, lease) = tokio::join!(
            here.acquire(&target, &waits),
            async {
                tokio::time::sleep(MILLISECOND).await;
                here.acquire(&target, &retry).await
            },
            async {
                tokio::time::sleep(100 * MILLISECOND).await;
                api.nodes.iter().for_each(|node| node.hang_with(Script::Acquire));
                assert!(other.release(&before).await);
                let granted = there.acquire(&target, &once).await.unwrap_or_else(|why| panic!("{why:?}"));
                api.nodes.iter().for_each(|node| node.go_on());
                let lease = granted.lease.handle;
                granted.deliver();
                lease
            }
        );
        assert_eq!(retried.map(|granted| granted.lease.handle.token).ok(), Some(lease.token));
        assert!(matches!(first, Err(ServiceError::Contended { .. })), "{:?}", first.err());
    }
}
