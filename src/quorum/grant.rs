//! A granting round, its votes, and the guard that takes back what it granted
//! (docs/protocol.md §1.1 to §1.5, §2).

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::tally::{self, Count, Named, Verdict, quorum_of};
use super::{Engine, Ride};
use crate::domain::{Ask, Holding, LeaseHandle, LeaseId, Nodes, Renewal, Scope, Token, validity_ms};
use crate::node::ballot::{Ballot, Vote};
use crate::node::calls::{self, GrantVote, Reason};
use crate::node::{Command, NodeError};
use crate::telemetry::metrics;

/// In which order the nodes are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// All at once.
    Parallel,
    /// The node that this number chooses first, alone; then the rest. Of many contenders
    /// one gets past it, so that the vote cannot be split again and again.
    PrimaryFirst(u64),
}

/// How a granting round ended.
pub enum Round {
    /// Granted by a quorum.
    Granted(Box<Won>),
    /// A quorum answered, and no quorum granted.
    Refused(Box<Refusal>),
    /// Fewer than a quorum answered.
    NoQuorum(Nodes),
}

/// A round that was won.
pub struct Won {
    /// Secret and token.
    pub handle: LeaseHandle,
    /// Until when the holder may rely on it.
    pub valid_until: Instant,
    /// The votes.
    pub nodes: Nodes,
    /// Undoes it unless kept.
    pub grant: Grant,
}

/// A round that was lost.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// What the refusing nodes store.
    pub holdings: Vec<Holding>,
    /// The votes.
    pub nodes: Nodes,
    /// When a quorum of nodes is free by expiry, ms; `None` while too few answered.
    pub free_in_ms: Option<u64>,
    /// Whether a lease may have a quorum. Otherwise the vote was split.
    pub held: bool,
    /// Where it is free, and kept for another server that waits longer: for so many ms.
    pub kept_ms: Option<u64>,
    /// Whether the attempt itself was undone before it was over: by another one of the same request, or
    /// since its token may have been issued.
    pub undone: bool,
}

impl Refusal {
    /// The lease that a quorum names.
    pub fn holder(&self) -> Option<Named<'_>> {
        tally::holder(self.holdings.iter(), self.nodes.total as usize)
    }

    /// Whether only a node that has not answered, be it down or slow, could tell a lease that is held from one
    /// that another contender has begun to take.
    pub fn is_doubtful(&self) -> bool {
        self.held && self.holder().is_none()
    }
}

/// A grant that is undone on every node that may know of it, unless it is kept: whatever
/// drops it (a lost round, a client that went away) leaves nothing behind (§1.4, §1.5).
#[must_use]
pub struct Grant {
    engine: Arc<Engine>,
    scope: Scope,
    lease: LeaseId,
    /// One bit a node that granted it, or whose answer is unknown.
    nodes: u64,
    /// For how long it may live, ms.
    ttl_ms: u64,
    /// Its request was granted it in an earlier attempt: whoever leaves gives nothing back (§1.9).
    shared: bool,
    /// The round was refused: then its undo is told nobody, or it would wake the contender that lost
    /// it. Otherwise others may have been refused because of it, and wait for it.
    lost: bool,
    armed: bool,
}

impl Grant {
    /// Whether an earlier attempt of the same request was granted it.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Gives it back everywhere, unless it is shared. `Ok(true)` where a quorum may have held it.
    ///
    /// # Errors
    /// As [`Engine::release`].
    pub async fn release(&self) -> Result<bool, Nodes> {
        if self.shared {
            return Ok(false);
        }
        self.engine.release_for(&self.scope, &self.lease, Reason::Undo).await
    }

    /// It shall stay.
    pub fn keep(mut self) {
        self.armed = false;
    }

    /// Undoes a lost round: at once where the lease was granted, and at each straggler only once
    /// it turns out that it may have granted it too; mostly it refuses like the others.
    fn settle(mut self, mut ballot: Ballot, mut votes: GrantVotes) {
        self.lost = true;
        for (i, member) in self.engine.members.iter().enumerate() {
            if ballot.pending() & (1 << i) != 0 && member.withdraw(&self.lease) {
                ballot.forget(i);
                self.nodes &= !(1 << i);
            }
        }
        if ballot.is_empty() {
            return;
        }
        let pending = ballot.pending();
        let known = self.nodes & !pending;
        if known != 0 {
            self.undo(known);
        }
        self.nodes = pending;
        let engine = Arc::clone(&self.engine);
        engine.take_late(ballot, move |i, answer| {
            votes.take(i, answer, &mut self);
            let may_hold = self.nodes & (1 << i);
            if may_hold != 0 {
                self.undo(may_hold);
                self.nodes &= !may_hold;
            }
        });
    }

    fn undo(&self, nodes: u64) {
        let reason = if self.lost { Reason::Lost } else { Reason::Undo };
        self.engine.undo(&self.scope, &self.lease, nodes, self.ttl_ms, reason);
    }

    /// Undone later than first thought: the lease was extended meanwhile.
    pub fn extended(&mut self, ttl_ms: u64) {
        self.ttl_ms = ttl_ms;
        // A healed node knows of it too.
        self.nodes = u64::MAX;
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.armed && self.nodes != 0 {
            self.undo(self.nodes);
        }
    }
}

impl Engine {
    /// One granting round with a fresh lease id. Answers as soon as the outcome is certain;
    /// stragglers find their way without anybody waiting for them.
    ///
    /// What is rare is boxed here and in what calls this: every request in flight keeps a state as
    /// large as the largest way through it, and moves it about at the start.
    pub async fn grant(self: &Arc<Self>, ask: &Ask<'_>, order: Order) -> Round {
        let mut ride = self.ride();
        loop {
            let round = self.grant_once(ask, order, &ride).await;
            if !matches!(round, Round::NoQuorum(_)) || !Box::pin(ride.again()).await {
                return round;
            }
        }
    }

    async fn grant_once(self: &Arc<Self>, ask: &Ask<'_>, order: Order, ride: &Ride<'_>) -> Round {
        if !self.has_right(ask.ttl_ms) && !Box::pin(self.gain_right(ask.ttl_ms)).await {
            return Box::pin(self.only_look(ask)).await;
        }
        let mut granting = Granting::new(self, ask);
        granting.ask_nodes(order).await;
        granting.count_votes().await;
        let (token, is_stored) = match granting.verdict() {
            Ok(won) => won,
            Err(lost) => return granting.lose(lost),
        };
        if !is_stored && let Err(lost) = Box::pin(granting.raise(token)).await {
            return granting.lose(lost);
        }
        if !ride.is_still() {
            return granting.lose(Lost::NoQuorum(Count::new(self.total()).nodes()));
        }
        granting.win(token)
    }

    /// Without the right to grant such leases: who holds it, if a quorum tells.
    async fn only_look(self: &Arc<Self>, ask: &Ask<'_>) -> Round {
        let ask = Ask { look_only: true, ..*ask };
        let mut looking = Granting::new(self, &ask);
        looking.ask_nodes(Order::Parallel).await;
        looking.count_votes().await;
        let nodes = looking.votes.count.nodes();
        match looking.lose(Lost::Refused) {
            Round::Refused(refusal) if refusal.holder().is_some() => Round::Refused(refusal),
            _ => Round::NoQuorum(nodes),
        }
    }

    /// Takes back what other attempts of the same request left at a minority of the nodes, also where that
    /// answers late (§1.9). A quorum has just granted another lease, but that says nothing of what they may
    /// get once it is over: they may be on their way still, and be granted, and be told so, before what is
    /// sent here arrives. So each goes in two steps.
    fn undo_remains(self: &Arc<Self>, scope: &Scope, votes: GrantVotes, mut ballot: Ballot) {
        let is_remains = |holding: &Holding| holding.same_request;
        if ballot.is_empty() && !votes.holdings.iter().any(is_remains) {
            return;
        }
        let (engine, scope, underway) = (Arc::clone(self), scope.clone(), self.underway());
        tokio::spawn(async move {
            let mut seen: SmallVec<[LeaseId; 1]> = SmallVec::new();
            let mut named = votes.holdings;
            loop {
                for Holding { lease, .. } in named.drain(..).filter(is_remains) {
                    if !seen.contains(&lease) {
                        seen.push(lease);
                        // Where too few answer to tell, it ends by itself or is found by the next attempt.
                        let _ = engine.take_back(&scope, &lease).await;
                    }
                }
                let Some((_, answer)) = ballot.next().await else { break };
                if let Ok(GrantVote::Held(holding)) = answer.and_then(GrantVote::read) {
                    named.extend(holding);
                }
            }
            drop(underway);
        });
    }

    /// A grant to an earlier attempt, which a retry has joined.
    pub fn granted_before(self: &Arc<Self>, scope: &Scope, lease: LeaseId) -> Grant {
        Grant {
            engine: Arc::clone(self),
            scope: scope.clone(),
            lease,
            nodes: 0,
            ttl_ms: self.options.max_ttl_ms,
            shared: true,
            lost: false,
            armed: false,
        }
    }
}

/// A granting round under way.
struct Granting<'a> {
    engine: &'a Arc<Engine>,
    ask: &'a Ask<'a>,
    /// From before the first byte is sent (§1.2).
    started: Instant,
    command: Arc<Command>,
    ballot: Ballot,
    votes: GrantVotes,
    /// Nodes that are asked once that is of use, one bit each.
    spares: u64,
    /// Dropped behind what it was granted by.
    grant: Grant,
}

/// Why a round is lost.
enum Lost {
    /// No quorum grants it.
    Refused,
    /// Nodes have been told already to forget it.
    Undone,
    /// Fewer than a quorum answered.
    NoQuorum(Nodes),
}

impl<'a> Granting<'a> {
    fn new(engine: &'a Arc<Engine>, ask: &'a Ask<'a>) -> Self {
        let lease = LeaseId::from_bits(engine.clock.random_bits());
        let started = engine.clock.now();
        let proposed = engine.propose(started);
        let grant = Grant {
            engine: Arc::clone(engine),
            scope: ask.scope.clone(),
            lease,
            nodes: 0,
            ttl_ms: ask.ttl_ms,
            shared: false,
            lost: false,
            armed: true,
        };
        Self {
            engine,
            ask,
            started,
            command: Arc::new(calls::acquire(ask, &lease, proposed)),
            ballot: engine.ballot(),
            votes: GrantVotes::new(engine.total(), proposed),
            spares: 0,
            grant,
        }
    }

    async fn ask_nodes(&mut self, order: Order) {
        let (mut asked, mut asked_at) = (0, self.started);
        match order {
            // What an earlier attempt of the request left is told by all nodes.
            Order::Parallel if self.ask.request.is_none() && !self.ask.look_only => {
                self.spares = self.engine.spares.bits();
            }
            Order::Parallel => {}
            Order::PrimaryFirst(primary) => {
                let refused;
                (asked, refused) = Box::pin(self.ask_primary(primary)).await;
                // It has had time of its own.
                asked_at = self.engine.clock.now();
                self.ballot = Ballot::new(1);
                if refused {
                    // Only all can tell whether what it holds is held, and by an earlier attempt of the
                    // request or by somebody else: they are asked for that, and nothing is taken from
                    // whoever got past the primary.
                    let ask = Ask { look_only: true, ..*self.ask };
                    self.command = Arc::new(calls::acquire(&ask, &self.grant.lease, self.votes.proposed));
                }
            }
        }
        for (i, member) in self.engine.seats().filter(|(i, _)| asked & (1 << i) == 0) {
            self.grant.nodes |= 1 << i;
            let seat = Some(self.ballot.seat(i));
            if self.spares & (1 << i) == 0 {
                member.vote(&self.command, asked_at, seat);
            } else {
                self.engine.spares.ask(i, self.grant.lease, &self.command, asked_at, seat);
            }
        }
    }

    /// Asks one node after the other, from the primary on, until one votes: the bits of those asked, and
    /// whether it refused.
    async fn ask_primary(&mut self, primary: u64) -> (u64, bool) {
        let seats: SmallVec<[usize; 5]> = self.engine.seats().map(|(i, _)| i).collect();
        let mut asked = 0;
        for step in 0..seats.len() {
            let i = seats[((primary % seats.len() as u64) as usize + step) % seats.len()];
            asked |= 1 << i;
            self.grant.nodes |= 1 << i;
            // A node that hangs holds nobody up. What it grants late goes with the lease, or the lost round.
            let answer = self.engine.members[i].ask_to_vote(&self.command);
            let answer = tokio::time::timeout(self.engine.stall_patience(), answer).await;
            self.votes.take(i, answer.unwrap_or(Err(NodeError::Timeout)), &mut self.grant);
            if self.votes.count.yes > 0 || self.votes.holdings.iter().any(|h| h.same_request) {
                // Granted, or the caller's own earlier request: that concerns all nodes.
                return (asked, false);
            }
            if self.votes.count.no > 0 {
                return (asked, true);
            }
        }
        (asked, false)
    }

    /// Until the outcome is certain, or the vote counts as split.
    async fn count_votes(&mut self) {
        while !self.votes.is_decided() {
            if self.votes.is_torn() {
                return self.hear_the_rest().await;
            }
            // Not before the answers that are there are known: a lock that is held is refused by all.
            if self.spares != 0
                && self.votes.needs_more_than(self.ballot.pending() & !self.spares)
                && !self.ballot.has_next()
            {
                self.hurry();
            }
            if !self.take_next().await {
                break;
            }
        }
        if self.is_open() {
            self.hurry();
            let patience = self.engine.tie_patience();
            let rest = async { while self.is_open() && self.take_next().await {} };
            let _ = Box::pin(tokio::time::timeout(patience, rest)).await;
        }
    }

    /// A quorum has answered and does not agree: whoever is still out decides, unless that takes long. Then
    /// the next round shall, which all contenders begin at one node.
    async fn hear_the_rest(&mut self) {
        self.hurry();
        let patience = self.engine.stall_patience();
        let rest = async { while !self.votes.is_decided() && self.take_next().await {} };
        self.votes.split = Box::pin(tokio::time::timeout(patience, rest)).await.is_err();
    }

    /// A tie looks like a lease that is held until the last votes are in. And a retry takes the token
    /// that a quorum stores for the one that was reported, whoever answered first.
    fn is_open(&self) -> bool {
        self.votes.is_in_doubt() || (self.ask.request.is_some() && self.votes.is_uneven())
    }

    /// False where all have answered.
    async fn take_next(&mut self) -> bool {
        let next = self.ballot.next().await;
        let more = next.is_some();
        if let Some((i, answer)) = next {
            self.votes.take(i, answer, &mut self.grant);
        }
        more
    }

    /// Asks the spares now, where they were not.
    fn hurry(&mut self) {
        let spares = std::mem::take(&mut self.spares);
        for (i, member) in self.engine.members.iter().enumerate() {
            if spares & (1 << i) != 0 {
                member.hurry(&self.grant.lease, self.engine.clock.now());
            }
        }
    }

    /// The token, and whether a quorum stores it.
    fn verdict(&self) -> Result<(Token, bool), Lost> {
        let no_quorum = || Lost::NoQuorum(self.votes.count.nodes());
        match self.votes.count.verdict() {
            Verdict::Carried => {
                let (token, is_stored) = tally::token_of(&self.votes.fences, self.engine.total());
                Token::new(token).map(|token| (token, is_stored)).map_err(|_| no_quorum())
            }
            Verdict::Rejected => Err(Lost::Refused),
            Verdict::Open if self.votes.split => Err(Lost::Refused),
            // Those that undid it have answered.
            _ if self.votes.undone => Err(Lost::Undone),
            Verdict::NoQuorum | Verdict::Open => Err(no_quorum()),
        }
    }

    /// Has a quorum store the token (§2.2).
    async fn raise(&mut self, token: Token) -> Result<(), Lost> {
        metrics().fencing_raises.increment(1);
        let raise =
            calls::extend(self.ask.scope, &self.grant.lease, Some(token), Renewal::Raise, None, false);
        let raised = self.engine.poll(&Arc::new(raise)).await;
        match raised.count.extension_verdict() {
            Verdict::Carried => Ok(()),
            // Taken away already, or tokens were issued past it meanwhile.
            _ if raised.count.no > 0 => {
                self.votes.undone = true;
                Err(Lost::Undone)
            }
            _ => Err(Lost::NoQuorum(raised.count.nodes())),
        }
    }

    fn lose(self, why: Lost) -> Round {
        match why {
            Lost::NoQuorum(nodes) => Round::NoQuorum(nodes),
            Lost::Undone => Round::Refused(Box::new(self.votes.refusal())),
            Lost::Refused => {
                let refusal = Box::new(self.votes.refusal());
                self.grant.settle(self.ballot, self.votes);
                Round::Refused(refusal)
            }
        }
    }

    fn win(self, token: Token) -> Round {
        let Self { engine, ask, started, command, mut grant, votes, ballot, .. } = self;
        let nodes = votes.count.nodes();
        let elapsed_ms = engine.clock.now().saturating_duration_since(started).as_millis() as u64;
        let Some(left_ms) = validity_ms(ask.ttl_ms, elapsed_ms) else { return Round::NoQuorum(nodes) };
        // Where another contender was in the way it is about to go, with a fence behind it that would keep an
        // extension from giving the node its copy. What is held for long enough is asked for there once more.
        for i in (0..engine.members.len()).filter(|i| (votes.quarantined | votes.refused) & (1 << i) != 0) {
            grant.nodes |= 1 << i;
            engine.spares.ask(i, grant.lease, &command, started, None);
        }
        if ask.request.is_some() {
            // A retry that joins may have it healed wherever it was not granted.
            grant.nodes = u64::MAX;
            engine.undo_remains(ask.scope, votes, ballot);
        }
        Round::Granted(Box::new(Won {
            handle: LeaseHandle { id: grant.lease, token },
            valid_until: started + Duration::from_millis(elapsed_ms + left_ms),
            nodes,
            grant,
        }))
    }
}

/// Votes of a granting round so far.
struct GrantVotes {
    count: Count,
    proposed: u64,
    fences: SmallVec<[u64; 5]>,
    holdings: Vec<Holding>,
    /// Nodes that refused without naming anybody: only looking found them free.
    free: usize,
    /// How long it is kept for another server, ms, at most.
    kept_ms: Option<u64>,
    /// A node has been told already to forget this lease.
    undone: bool,
    /// One bit a node in quarantine.
    quarantined: u64,
    /// One bit a node that refused.
    refused: u64,
    /// It counts as split, since who could decide it takes too long.
    split: bool,
}

impl GrantVotes {
    fn new(total: usize, proposed: u64) -> Self {
        let (fences, holdings) = (SmallVec::new(), Vec::new());
        Self {
            count: Count::new(total),
            proposed,
            fences,
            holdings,
            free: 0,
            kept_ms: None,
            undone: false,
            quarantined: 0,
            refused: 0,
            split: false,
        }
    }

    fn take(&mut self, i: usize, answer: Vote, grant: &mut Grant) {
        match answer.and_then(GrantVote::read) {
            Ok(GrantVote::Granted(fence)) => {
                self.count.yes += 1;
                self.fences.push(fence);
            }
            Ok(GrantVote::Kept(kept_ms)) => {
                self.count.no += 1;
                self.refused |= 1 << i;
                self.free += 1;
                self.kept_ms = self.kept_ms.max(Some(kept_ms));
                grant.nodes &= !(1 << i);
            }
            Ok(GrantVote::Held(holding)) => {
                self.count.no += 1;
                self.refused |= 1 << i;
                match holding {
                    Some(holding) => self.holdings.push(holding),
                    None => self.free += 1,
                }
                grant.nodes &= !(1 << i);
            }
            Err(why) => {
                self.count.failed += 1;
                self.undone |= matches!(why, NodeError::Undone);
                self.quarantined |= u64::from(matches!(why, NodeError::Quarantined)) << i;
                if !why.may_have_run() {
                    grant.nodes &= !(1 << i);
                }
            }
        }
    }

    /// Whether to stop. A refusal that concerns the caller's own earlier request is worth all
    /// votes until a quorum agrees on its token: the same lease must come back with the same one.
    fn is_decided(&self) -> bool {
        let verdict = self.count.verdict();
        if verdict == Verdict::Rejected && self.holdings.iter().any(|h| h.same_request) {
            let quorum = quorum_of(self.count.total);
            let agreed = |one: &Holding| {
                self.holdings.iter().filter(|h| h.lease == one.lease && h.token == one.token).count()
            };
            return self.count.pending() == 0
                || self.holdings.iter().any(|h| h.same_request && agreed(h) >= quorum);
        }
        verdict != Verdict::Open
    }

    /// Whether a quorum has answered, some one way and some another. The caller's own earlier request is worth
    /// all votes.
    fn is_torn(&self) -> bool {
        let Count { yes, no, .. } = self.count;
        let answered = yes + no >= quorum_of(self.count.total);
        yes > 0 && no > 0 && answered && !self.holdings.iter().any(|h| h.same_request)
    }

    /// Whether no quorum grants even if all of these nodes do.
    fn needs_more_than(&self, nodes: u64) -> bool {
        self.count.yes + (nodes.count_ones() as usize) < quorum_of(self.count.total)
    }

    /// How many nodes named the same lease, at most.
    fn most(&self) -> usize {
        tally::most(self.holdings.iter())
    }

    /// Whether a lease may have a quorum, as far as the votes tell.
    fn may_be_held(&self) -> bool {
        let answered = self.count.yes + self.count.no;
        tally::may_be_held(self.holdings.iter(), answered, self.count.total)
    }

    /// Whether the round is lost, and the votes that are out decide to whom, or to nobody.
    fn is_in_doubt(&self) -> bool {
        self.count.verdict() == Verdict::Rejected
            && self.count.pending() > 0
            && self.may_be_held()
            && self.most() < quorum_of(self.count.total)
    }

    /// Whether the round is won, and the votes that are out decide with which token.
    fn is_uneven(&self) -> bool {
        self.count.verdict() == Verdict::Carried
            && self.count.pending() > 0
            && !tally::token_of(&self.fences, self.count.total).1
    }

    fn refusal(&self) -> Refusal {
        let total = self.count.total;
        let free = self.free + self.count.yes;
        let remaining = self.holdings.iter().map(|h| h.remaining_ms).chain(std::iter::repeat_n(0, free));
        Refusal {
            free_in_ms: tally::free_in(remaining, total),
            held: !self.split && self.may_be_held(),
            nodes: self.count.nodes(),
            holdings: self.holdings.clone(),
            undone: self.undone,
            kept_ms: self.kept_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::domain::Version;
    use crate::node::Script;
    use crate::quorum::fixture::Api;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn won(round: Round) -> LeaseHandle {
        let Round::Granted(won) = round else { panic!("not granted") };
        won.grant.keep();
        won.handle
    }

    #[tokio::test(start_paused = true)]
    async fn what_looked_like_remains_is_left_alone_once_it_is_granted() {
        let [api, other] = Api::pair().await;
        other.nodes[0].hang();
        other.nodes[2].hang();
        let mut attempt = pin!(other.round_of(Some("request"), 30_000));
        assert!(tokio::time::timeout(MILLISECOND, &mut attempt).await.is_err());
        // Another attempt of the request gets the other nodes, and what it has seen at the second node is
        // taken back there when its own lease is over and the first attempt granted.
        api.nodes.iter().for_each(|node| node.hang_with(Script::Release));
        won(api.round_of(Some("request"), 100).await);
        tokio::time::sleep(200 * MILLISECOND).await;
        other.nodes.iter().for_each(|node| node.go_on());
        let lease = won(attempt.await);
        api.nodes.iter().for_each(|node| node.go_on());
        tokio::time::sleep(MILLISECOND).await;
        assert_eq!(other.holders(&lease), [true; 3]);
        other.extend(lease).await;
    }

    #[tokio::test(start_paused = true)]
    async fn remains_of_an_attempt_that_began_later_are_taken_back_too() {
        let [api, other] = Api::pair().await;
        api.nodes.iter().for_each(|node| node.hang());
        let mut attempt = pin!(api.round_of(Some("request"), 30_000));
        assert!(tokio::time::timeout(MILLISECOND, &mut attempt).await.is_err());
        other.nodes[0].hang();
        other.nodes[2].hang();
        let mut later = pin!(other.round_of(Some("request"), 30_000));
        assert!(tokio::time::timeout(MILLISECOND, &mut later).await.is_err());
        assert!(other.is_held_at(1));
        // Whoever made that attempt dies.
        other.nodes.iter().for_each(|node| node.hang());
        api.nodes.iter().for_each(|node| node.go_on());
        let lease = won(attempt.await);
        tokio::time::sleep(MILLISECOND).await;
        assert_eq!(api.holders(&lease), [true, false, true]);
        assert!(!api.is_held_at(1));
        tokio::time::sleep(100 * MILLISECOND).await;
        assert_eq!(api.holders(&lease), [true; 3]);
        assert!(api.engine.is_settled());
    }

    /// A round of the other server that gets only the node `i`, with a later token than one that has begun,
    /// and takes it back when its releases go on.
    async fn lose_at(other: &Api, i: usize) {
        for (j, node) in other.nodes.iter().enumerate() {
            node.hang_with(Script::Release);
            node.refuse((i != j).then_some(Script::Acquire));
        }
        assert!(matches!(other.round().await, Round::NoQuorum(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_where_a_loser_was_in_the_way_gets_a_copy_of_what_is_held() {
        let [api, other] = Api::pair().await;
        // Of a name that was used before, a loser leaves its fence.
        for _ in 0..2 {
            let before = api.acquire().await;
            tokio::time::sleep(100 * MILLISECOND).await;
            assert!(api.release(&before).await);
        }
        api.nodes.iter().for_each(|node| node.hang());
        let mut attempt = pin!(api.round());
        assert!(tokio::time::timeout(MILLISECOND, &mut attempt).await.is_err());
        lose_at(&other, 0).await;
        api.nodes.iter().for_each(|node| node.go_on());
        let lease = won(attempt.await);
        other.nodes.iter().for_each(|node| node.go_on());
        assert_eq!(api.holders(&lease), [false, true, true]);
        tokio::time::sleep(100 * MILLISECOND).await;
        assert_eq!(api.holders(&lease), [true; 3]);
        api.extend(lease).await;
        assert!(api.release(&lease).await);
        assert_eq!(api.holders(&lease), [false; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_hangs_holds_up_no_vote_that_is_split_without_it() {
        let [api, other] = Api::pair().await;
        lose_at(&other, 1).await;
        api.nodes[2].hang();
        let began = Instant::now();
        let Round::Refused(refusal) = api.round().await else { panic!("not refused") };
        assert!(!refusal.held);
        assert!(began.elapsed() < 50 * MILLISECOND, "{:?}", began.elapsed());
        api.nodes[2].go_on();
        tokio::time::sleep(MILLISECOND).await;
        assert_eq!([0, 2].map(|i| api.is_held_at(i)), [false; 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_primary_that_hangs_is_passed_over() {
        let [api, _] = Api::pair().await;
        api.nodes[0].hang();
        let ask = Ask {
            scope: &api.scope,
            slots: &[],
            ttl_ms: 30_000,
            request: None,
            params: "-",
            data: "{}",
            look_only: false,
            limit: 0,
            standing: None,
        };
        let began = Instant::now();
        let Round::Granted(granted) = api.engine.grant(&ask, Order::PrimaryFirst(0)).await else {
            panic!("not granted")
        };
        assert!(began.elapsed() < 50 * MILLISECOND, "{:?}", began.elapsed());
        api.nodes[0].go_on();
        tokio::time::sleep(MILLISECOND).await;
        assert_eq!(api.holders(&granted.handle), [true; 3]);
        let lease = granted.handle;
        drop(granted);
        tokio::time::sleep(MILLISECOND).await;
        assert_eq!(api.holders(&lease), [false; 3]);
    }

    /// Of four nodes, two have named the lease `holder` and one has granted; the fourth is out.
    fn votes(holders: [u128; 2]) -> GrantVotes {
        let mut votes = GrantVotes::new(4, 1);
        votes.count = Count { total: 4, yes: 1, no: 2, failed: 0 };
        votes.holdings.extend(holders.map(|bits| Holding {
            lease: LeaseId::from_bits(bits),
            token: Token::new(1).unwrap(),
            remaining_ms: 100,
            ttl_ms: 100,
            version: Version::default(),
            data: String::new(),
            same_request: false,
            params: String::new(),
            slots: Vec::new(),
        }));
        votes
    }

    #[test]
    fn a_tie_is_told_from_a_lease_that_is_held_by_the_last_vote() {
        let mut tie = votes([7, 7]);
        assert!(tie.is_decided() && tie.is_in_doubt());
        tie.count.yes += 1;
        assert!(!tie.is_in_doubt());
        assert!(!tie.refusal().held);

        let mut held = votes([7, 7]);
        held.holdings.push(held.holdings[0].clone());
        held.count.no += 1;
        assert!(!held.is_in_doubt());
        assert!(held.refusal().held);

        // Whoever has the last one of them has no quorum.
        assert!(!votes([7, 8]).is_in_doubt());
    }

    #[test]
    fn a_token_is_uneven_until_a_quorum_has_the_same_or_all_have_answered() {
        let granted = |fences: &[u64]| {
            let mut votes = GrantVotes::new(3, 1);
            votes.count.yes = fences.len();
            votes.fences.extend_from_slice(fences);
            votes.is_uneven()
        };
        assert!(!granted(&[7]), "not won yet");
        assert!(!granted(&[7, 7]));
        assert!(granted(&[7, 9]));
        assert!(!granted(&[7, 9, 7]));
        assert!(!granted(&[7, 8, 9]), "nobody is left to ask");
    }
}
