//! Granting a lease: whom a round asks, and what is done with its outcome (docs/protocol.md §1.1 to §1.5, §2).

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::guard::Grant;
use super::rounds::{Action, GrantRound, Lost, Patience, StateMachine};
use super::tally::{self, Count, Named, Verdict};
use super::{Engine, Ride};
use crate::domain::{Ask, Holding, LeaseHandle, LeaseId, Nodes, Renewal, Scope, Token, validity_ms};
use crate::node::ballot::{Ballot, Vote};
use crate::node::calls::{self, GrantVote};
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
        let ballot = granting.count_votes(order).await;
        let (token, is_stored) = match granting.votes.verdict() {
            Ok(won) => won,
            Err(lost) => return granting.lose(lost, ballot),
        };
        if !is_stored && let Err(lost) = Box::pin(granting.raise(token)).await {
            return granting.lose(lost, ballot);
        }
        if !ride.is_still() {
            return granting.lose(Lost::NoQuorum(Count::new(self.total()).nodes()), ballot);
        }
        granting.win(token, ballot)
    }

    /// Without the right to grant such leases: who holds it, if a quorum tells.
    async fn only_look(self: &Arc<Self>, ask: &Ask<'_>) -> Round {
        let ask = Ask { look_only: true, ..*ask };
        let mut looking = Granting::new(self, &ask);
        let ballot = looking.count_votes(Order::Parallel).await;
        let nodes = looking.votes.count.nodes();
        match looking.lose(Lost::Refused, ballot) {
            Round::Refused(refusal) if refusal.holder().is_some() => Round::Refused(refusal),
            _ => Round::NoQuorum(nodes),
        }
    }

    /// Takes back what other attempts of the same request left at a minority of the nodes, also where that
    /// answers late (§1.9). A quorum has just granted another lease, but that says nothing of what they may
    /// get once it is over: they may be on their way still, and be granted, and be told so, before what is
    /// sent here arrives. So each goes in two steps.
    fn undo_remains(self: &Arc<Self>, scope: &Scope, votes: GrantRound, mut ballot: Ballot) {
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
}

/// A granting round under way: its votes, and the guard of what they may have granted.
struct Granting<'a> {
    engine: &'a Arc<Engine>,
    ask: &'a Ask<'a>,
    /// From before the first byte is sent (§1.2).
    started: Instant,
    proposed: u64,
    command: Arc<Command>,
    votes: GrantRound,
    /// Nodes that are asked once that is of use, one bit each.
    spares: u64,
    /// Dropped behind what it was granted by.
    grant: Grant,
}

impl StateMachine for Granting<'_> {
    fn action(&self) -> Action {
        self.votes.action()
    }

    fn on_vote(&mut self, node: usize, vote: Vote) -> Action {
        let action = self.votes.on_vote(node, vote);
        self.grant.nodes = self.votes.may_hold;
        action
    }

    fn on_timeout(&mut self, patience: Patience) -> Action {
        self.votes.on_timeout(patience)
    }

    fn on_rest_asked(&mut self) -> Action {
        let spares = std::mem::take(&mut self.spares);
        self.asked(spares, 0);
        self.votes.on_rest_asked()
    }
}

impl<'a> Granting<'a> {
    fn new(engine: &'a Arc<Engine>, ask: &'a Ask<'a>) -> Self {
        let started = engine.clock.now();
        let proposed = engine.propose(started);
        let lease = LeaseId::drawn(engine.clock.random_bits(), proposed);
        let is_retry = ask.request.is_some();
        Self {
            engine,
            ask,
            started,
            proposed,
            command: Arc::new(calls::acquire(ask, &lease, proposed)),
            votes: GrantRound::new(engine.total(), is_retry),
            spares: 0,
            grant: engine.guard(ask.scope, lease, ask.ttl_ms),
        }
    }

    fn asked(&mut self, nodes: u64, unasked: usize) {
        self.votes.asked(nodes, unasked);
        self.grant.nodes = self.votes.may_hold;
    }

    /// Asks the nodes and counts their votes; the ballot has those that are still out.
    async fn count_votes(&mut self, order: Order) -> Ballot {
        let (mut asked, mut asked_at, mut ballot) = (0, self.started, self.engine.ballot());
        if let Order::PrimaryFirst(primary) = order {
            let refused;
            (asked, refused) = Box::pin(self.ask_primary(primary)).await;
            // It has had time of its own.
            asked_at = self.engine.clock.now();
            ballot = Ballot::new(1);
            if refused {
                // Only all can tell whether what it holds is held, and by an earlier attempt of the
                // request or by somebody else: they are asked for that, and nothing is taken from
                // whoever got past the primary.
                let ask = Ask { look_only: true, ..*self.ask };
                self.command = Arc::new(calls::acquire(&ask, &self.grant.lease, self.proposed));
            }
        } else if self.ask.request.is_none() && !self.ask.look_only {
            // Else all nodes tell what an earlier attempt of the request left.
            self.spares =
                self.engine.seats().fold(0, |bits, (i, _)| bits | 1 << i) & self.engine.spares.bits();
        }
        let (engine, command, spares) = (self.engine, Arc::clone(&self.command), self.spares);
        let later = asked | spares;
        let ask = |ballot: &mut Ballot, except: u64, now| {
            let mut bits = 0;
            for (i, member) in engine.seats().filter(|(i, _)| except & (1 << i) == 0) {
                member.vote(&command, now, Some(ballot.seat(i)));
                bits |= 1 << i;
            }
            bits
        };
        let now = ask(&mut ballot, later, asked_at);
        self.asked(now, spares.count_ones() as usize);
        engine
            .drive(self, &mut ballot, |ballot| {
                ask(ballot, !spares, engine.clock.now());
            })
            .await;
        ballot
    }

    /// Asks one node after the other, from the primary on, until one votes: the bits of those asked, and
    /// whether it refused.
    async fn ask_primary(&mut self, primary: u64) -> (u64, bool) {
        let seats: SmallVec<[usize; 5]> = self.engine.seats().map(|(i, _)| i).collect();
        let mut asked = 0;
        for step in 0..seats.len() {
            let i = seats[((primary % seats.len() as u64) as usize + step) % seats.len()];
            asked |= 1 << i;
            self.asked(1 << i, 0);
            // A node that hangs holds nobody up. What it grants late goes with the lease, or the lost round.
            let answer = self.engine.members[i].ask_to_vote(&self.command);
            let answer = tokio::time::timeout(self.engine.stall_patience(), answer).await;
            self.on_vote(i, answer.unwrap_or(Err(NodeError::Timeout)));
            if self.votes.count.yes > 0 || self.votes.names_own_request() {
                // Granted, or the caller's own earlier request: that concerns all nodes.
                return (asked, false);
            }
            if self.votes.count.no > 0 {
                return (asked, true);
            }
        }
        (asked, false)
    }

    /// Has a quorum store the token (§2.2).
    async fn raise(&mut self, token: Token) -> Result<(), Lost> {
        metrics().fencing_raises.increment(1);
        let raise =
            calls::extend(self.ask.scope, &self.grant.lease, Some(token), Renewal::Raise, None, false);
        let (raised, _) = self.engine.poll(&Arc::new(raise)).await;
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

    fn lose(self, why: Lost, ballot: Ballot) -> Round {
        match why {
            Lost::NoQuorum(nodes) => Round::NoQuorum(nodes),
            Lost::Undone => Round::Refused(Box::new(self.votes.refusal())),
            Lost::Refused => {
                let refusal = Box::new(self.votes.refusal());
                self.grant.undo_lost(ballot, self.votes);
                Round::Refused(refusal)
            }
        }
    }

    fn win(self, token: Token, ballot: Ballot) -> Round {
        let Self { engine, ask, started, command, mut grant, votes, spares, .. } = self;
        let nodes = votes.count.nodes();
        let elapsed_ms = engine.clock.now().saturating_duration_since(started).as_millis() as u64;
        let Some(left_ms) = validity_ms(ask.ttl_ms, elapsed_ms) else { return Round::NoQuorum(nodes) };
        // Where another contender was in the way it is about to go, with a fence behind it that would keep an
        // extension from giving the node its copy. What is held for long enough is asked for there once more.
        let copies = spares | votes.quarantined | votes.refused;
        if copies != 0 {
            grant.nodes |= copies;
            engine.spares.copy_later(grant.lease, &command, copies, started);
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
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
            mode: crate::domain::Mode::Exclusive,
            max_hold_ms: 0,
            lock_delay_ms: 0,
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
}
