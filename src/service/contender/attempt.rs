//! One try of a contender: a round at the nodes, or as many as a semaphore needs to find that it is full.

use super::Contender;
use crate::domain::{Ask, Holding, LeaseHandle, LeaseId, Nodes, Renewal, Scope, Token};
use crate::quorum::tally::quorum_of;
use crate::quorum::{Extension, Refusal, Round, Won};
use crate::service::semaphores::{Doubt, NoSlots, Picked};
use crate::service::waiting::{Queued, Ticket};
use crate::service::{Granted, Lease, Note, read_note, write_note};

/// How one try ended.
pub(super) enum Try {
    Granted(Box<Granted>),
    /// Held by somebody.
    Held(Box<Refusal>),
    /// Free, and kept for another server that waits longer.
    Kept(Box<Refusal>),
    /// Nobody won the round.
    Split(Box<Refusal>),
    NoQuorum(Nodes),
    /// The request id stands for another request: these parameters differ.
    Differs(Vec<&'static str>),
}

/// What to ask for next.
enum Choice {
    /// Slots, some of them perhaps in doubt.
    Slots(Option<Doubt>),
    /// None is free, but the nodes are asked all the same: for the caller's own earlier request, which may be what
    /// fills it, or for a place in the queue of servers.
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

impl Contender<'_> {
    /// Slots to ask for, beyond those that others wait for already.
    async fn pick(&self, look_only: bool) -> Result<Picked, NoSlots> {
        // Whoever has a seat is the first of its queue, and who only looks takes nothing away.
        let queued = || if self.seated || look_only { Queued::default() } else { self.queued() };
        if self.attempts == 0 && self.wish.permits == 1 && queued().waiters == 0 {
            return Ok(self.service.guess_slot(self.wish.limit));
        }
        Box::pin(self.service.pick_slots(&self.scope, self.wish, queued)).await
    }

    /// One round, or as many as a semaphore needs to find that it is full, or until remains of its own request are gone.
    /// Who has a ticket goes on only while nobody sits before it.
    pub(super) async fn attempt(&mut self, look_only: bool, ticket: Option<&Ticket>) -> Try {
        /// Slots that somebody else took first, before the semaphore counts as contended.
        const SLOTS_LOST_MAX: u32 = 8;
        // Every slot that looked free was gone: others are faster just now.
        let mut lost_all = self.all_taken();
        let mut doubted: Option<Doubted> = None;
        self.holders = None;
        for lost in 1..=SLOTS_LOST_MAX {
            if lost > 1 && ticket.is_some_and(|ticket| !ticket.is_first()) {
                // Somebody who came earlier is back.
                break;
            }
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
                let differs = self.differences(same);
                if !differs.is_empty() {
                    return Try::Differs(differs);
                }
                match Box::pin(self.resume(same, &refusal)).await {
                    // A node that does not answer may hold it, or two attempts of the request have taken
                    // the others between them; of these, one is gone soon.
                    Some(Try::NoQuorum(_)) if !look_only && self.contention.doubt_own_attempt() => {
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
                    Try::Split(refusal) | Try::Kept(refusal) if look_only => Try::Held(refusal),
                    last => last,
                };
            }
            if refusal.kept_ms.is_some() {
                return Try::Kept(refusal);
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
            kept_ms: None,
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
        // An earlier request is found by its id at any slot, and who waits is seen to stand in the queue there.
        if self.options.request.is_none() && !self.seated {
            return Choice::None(last);
        }
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
        let params = match self.scope {
            Scope::Slots(_) => format!("limit={},permits={}", self.wish.limit, self.wish.permits),
            Scope::Records(_) => "-".to_owned(),
        };
        let ask = Ask {
            scope: &self.scope,
            slots: &self.slots,
            mode: self.wish.mode,
            ttl_ms: self.options.ttl_ms,
            max_hold_ms: note.max_hold_ms.unwrap_or(0),
            lock_delay_ms: note.lock_delay_ms.unwrap_or(0),
            request: self.request.as_deref(),
            params: &params,
            data: &data,
            look_only,
            limit: self.wish.limit,
            standing: self.standing,
        };
        self.attempts += 1;
        self.round_at = self.service.engine.clock().now();
        match self.service.engine.grant(&ask, self.contention.order()).await {
            Round::Granted(won) => Ok(Try::Granted(Box::new(self.granted(*won, note)))),
            Round::NoQuorum(nodes) => Ok(Try::NoQuorum(nodes)),
            Round::Refused(refusal) => Err(refusal),
        }
    }

    /// What a refusal means: that it is held, or that others contend.
    fn lost(&mut self, refusal: Box<Refusal>) -> Try {
        if self.contention.is_held(&refusal) {
            Try::Held(refusal)
        } else if refusal.kept_ms.is_some() {
            Try::Kept(refusal)
        } else {
            Try::Split(refusal)
        }
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
        Granted { lease, grant, booking: None }
    }

    /// In which parameters the earlier request of the same id differs from this one.
    fn differences(&self, same: &Holding) -> Vec<&'static str> {
        let note = read_note(&same.data, same.version);
        let mut differs = Vec::new();
        if note.limit.is_some_and(|limit| limit != self.wish.limit) {
            differs.push("limit");
        }
        if !same.slots.is_empty() && same.slots.len() != self.wish.permits as usize {
            differs.push("permits");
        }
        if note.candidate != self.options.note.candidate {
            differs.push("candidate");
        }
        if note.mode != self.options.note.mode {
            differs.push("mode");
        }
        if note.max_hold_ms != self.options.note.max_hold_ms {
            differs.push("max_hold_ms");
        }
        if note.lock_delay_ms != self.options.note.lock_delay_ms {
            differs.push("lock_delay_ms");
        }
        differs
    }

    /// The caller's own earlier request holds it: the same lease and token come back, with its
    /// time set anew. `None` where only a minority held its remains, which are gone now (§1.9).
    async fn resume(&mut self, same: &Holding, refusal: &Refusal) -> Option<Try> {
        if self.service.released.contains(&same.lease) {
            // It goes before the next round: what is sent to a node stays in order.
            return None;
        }
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
        match engine.extend(&self.scope, handle, renewal, None, true).await {
            // Released while it was extended: that release came before this answer.
            Extension::Extended { .. } if self.service.released.contains(&same.lease) => None,
            Extension::Extended { stored, valid_until, nodes } => {
                let lease = Lease {
                    handle,
                    ttl_ms: stored.ttl_ms,
                    valid_until,
                    note: read_note(&stored.data, stored.version),
                    slots: stored.slots,
                    waited_ms: (self.round_at - self.started).as_millis() as u64,
                    attempts: self.attempts,
                    nodes,
                };
                let grant = engine.granted_before(&self.scope, handle.id);
                Some(Try::Granted(Box::new(Granted { lease, grant, booking: None })))
            }
            Extension::Lost(_) | Extension::AtLimit(_) => None,
            Extension::NoQuorum(nodes) => Some(Try::NoQuorum(nodes)),
        }
    }
}
