//! Extending what is still held, and mending the nodes that lost it or have earlier data
//! (docs/protocol.md §1.6 and §1.7).

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::rounds::{Copy, ExtendRound, StateMachine as _};
use super::tally::{Count, Verdict, quorum_of};
use super::{Engine, Ride};
use crate::domain::{LeaseHandle, LeaseId, Nodes, Renewal, Scope, Version, drift_ms};
use crate::node::Command;
use crate::node::ballot::Ballot;
use crate::node::calls::{self, Extended};

/// How long a reader waits at most for what it has read to reach a quorum.
const SETTLE_PATIENCE: Duration = Duration::from_millis(50);

/// How an extension ended.
#[derive(Debug)]
pub enum Extension {
    /// A quorum still held the lease.
    Extended {
        /// What is stored with it; of its data the latest version that was seen.
        stored: Extended,
        /// Until when the holder may rely on it.
        valid_until: Instant,
        /// The votes.
        nodes: Nodes,
    },
    /// It is not held any more, and will not be again.
    Lost(Nodes),
    /// It reaches as far as it may already, or has ended there.
    AtLimit(Nodes),
    /// Fewer than a quorum answered: it may still be valid.
    NoQuorum(Nodes),
}

impl Engine {
    /// Sets the remaining time of a lease that a quorum still holds (§1.6), heals nodes that lost
    /// it (§1.7), and gives the latest data to those that missed it.
    pub async fn extend(
        self: &Arc<Self>,
        scope: &Scope,
        handle: LeaseHandle,
        renewal: Renewal,
        data: Option<(Version, &str)>,
        joins: bool,
    ) -> Extension {
        let mut ride = self.ride();
        loop {
            let extension = self.extend_once(scope, handle, renewal, data, joins, &ride).await;
            if !matches!(extension, Extension::NoQuorum(_)) || !Box::pin(ride.again()).await {
                return extension;
            }
        }
    }

    async fn extend_once(
        self: &Arc<Self>,
        scope: &Scope,
        handle: LeaseHandle,
        renewal: Renewal,
        data: Option<(Version, &str)>,
        joins: bool,
        ride: &Ride<'_>,
    ) -> Extension {
        if let Renewal::Ttl(ms) = renewal
            && !self.has_right(ms)
            && !Box::pin(self.gain_right(ms)).await
        {
            return Extension::NoQuorum(Count { failed: self.total(), ..Count::new(self.total()) }.nodes());
        }
        let LeaseHandle { id, token } = &handle;
        let command = calls::extend(scope, id, Some(*token), renewal, data, joins);
        let started = self.clock.now();
        let (mut votes, ballot) = self.poll(&Arc::new(command)).await;
        // Whether a retry has it, too, is not to be had from a copy.
        if !joins && votes.is_restorable() {
            Box::pin(self.restore(scope, &handle, &mut votes)).await;
        }
        // Who says no says that it does not hold this lease, and not that it holds another.
        let nodes = Nodes { held: 0, ..votes.count.nodes() };
        // How long it lives is known only now. Nobody is told before that is recorded.
        if let (Renewal::Own, Some(stored)) = (renewal, &votes.stored)
            && !self.has_right(stored.ttl_ms)
            && !Box::pin(self.gain_right(stored.ttl_ms)).await
        {
            return Extension::NoQuorum(nodes);
        }
        match (votes.verdict(), votes.stored.take()) {
            // Votes of two memberships are not counted together.
            _ if !ride.is_still() => Extension::NoQuorum(nodes),
            (Verdict::Carried, Some(stored)) if stored.at_limit && !joins => Extension::AtLimit(nodes),
            (Verdict::Carried, Some(stored)) => {
                if stored.shortened {
                    // Whoever sleeps until it ends would sleep too long.
                    self.publish(scope.channels());
                }
                let left = stored.remaining_ms.saturating_sub(drift_ms(stored.remaining_ms));
                let valid_until = started + Duration::from_millis(left);
                if valid_until > self.clock.now() {
                    self.heal(scope, handle, &stored, valid_until, votes, ballot);
                    return Extension::Extended { stored, valid_until, nodes };
                }
                if renewal == Renewal::Keep {
                    // It lives as long as before, and its holder was told of more than is certain here.
                    return Extension::NoQuorum(nodes);
                }
                if stored.hold_left_ms > 0 && stored.remaining_ms >= stored.hold_left_ms {
                    // The extension reached the longest hold, and the lease lives until then.
                    return Extension::AtLimit(nodes);
                }
                // Nobody may work under it (§1.2), and it ends by itself before long. It is not undone: another
                // extension may have come after it at the nodes, and have been answered.
                Extension::Lost(nodes)
            }
            (Verdict::Rejected, _) => {
                // A minority may still hold it, where it would only be in the way. A retry that joins leaves it: it may
                // be refused because its attempt was granted the lease with another token.
                if !joins {
                    self.undo_everywhere(scope, &handle.id);
                }
                if votes.ended_at_limit { Extension::AtLimit(nodes) } else { Extension::Lost(nodes) }
            }
            _ => Extension::NoQuorum(nodes),
        }
    }

    /// Sends an extension to all nodes, also to those in quarantine, and counts until the verdict.
    pub(super) async fn poll(self: &Arc<Self>, command: &Arc<Command>) -> (ExtendRound, Ballot) {
        let (mut round, mut ballot, now) = (ExtendRound::new(self.total()), self.ballot(), self.clock.now());
        // A member that this server does not know where to find says nothing.
        round.count.failed = self.total().saturating_sub(self.seats().count());
        for (i, member) in self.seats() {
            round.asked(i, member.vote_or_copy(command, now, Some(ballot.seat(i))));
        }
        self.drive_all(&mut round, &mut ballot).await;
        (round, ballot)
    }

    /// Gives a lease that is held to the members that do not have it, or not for as long as a quorum does.
    pub(super) async fn copy(self: &Arc<Self>, scope: &Scope, handle: LeaseHandle) {
        let (started, ride) = (self.clock.now(), self.ride());
        let command = calls::update(scope, &handle.id, None, Version::default(), "");
        let (mut votes, mut ballot) = self.poll(&Arc::new(command)).await;
        if votes.is_restorable() {
            self.restore(scope, &handle, &mut votes).await;
        }
        // Which of them has it for too short a time is known from all of them.
        while let Some((i, vote)) = ballot.next().await {
            votes.on_vote(i, vote);
        }
        votes.even_out();
        if let (Verdict::Carried, Some(stored), true) =
            (votes.verdict(), votes.stored.take(), ride.is_still())
        {
            let left = stored.remaining_ms.saturating_sub(drift_ms(stored.remaining_ms));
            self.heal(scope, handle, &stored, started + Duration::from_millis(left), votes, ballot);
        }
    }

    /// Gives copies to members that vote and do not hold it, until a quorum does (§1.7). Each lasts as long as what the
    /// others hold: it is counted from an answer to this extension.
    async fn restore(self: &Arc<Self>, scope: &Scope, handle: &LeaseHandle, votes: &mut ExtendRound) {
        /// A contender that takes the nodes which are free is refused by the others, and gone in a moment.
        const TRIES: usize = 4;
        let Some(stored) = votes.stored.clone() else { return };
        for tries_left in (0..TRIES).rev() {
            let (mut ballot, now) = (Ballot::new(1), self.clock.now());
            for (i, node_ms) in votes.without() {
                let heal = calls::heal(scope, handle, &stored, node_ms + stored.remaining_ms);
                self.members[i].vote(&Arc::new(heal), now, Some(ballot.seat(i)));
            }
            while let Some((node, answer)) = ballot.next().await {
                if answer.is_ok_and(|answer| answer.done) {
                    votes.restored(node);
                    if votes.count.yes >= quorum_of(votes.count.total) {
                        return;
                    }
                }
            }
            if tries_left == 0 {
                return;
            }
            tokio::time::sleep(self.stall_patience()).await;
        }
    }

    /// Gives the lease back to nodes that said they lost it, the latest data to those that have
    /// earlier, and either to stragglers that say so later. No answer is waited for, let alone counted.
    fn heal(
        self: &Arc<Self>,
        scope: &Scope,
        handle: LeaseHandle,
        stored: &Extended,
        valid_until: Instant,
        votes: ExtendRound,
        ballot: Ballot,
    ) {
        let ExtendRound { lost, copies, .. } = votes;
        let is_behind = {
            let (version, joined) = (stored.version, stored.joined);
            move |copy: Copy| copy.version < version || joined && !copy.joined
        };
        let behind: SmallVec<[usize; 5]> =
            copies.into_iter().filter(|(_, copy)| is_behind(*copy)).map(|(i, _)| i).collect();
        if lost.is_empty() && ballot.is_empty() && behind.is_empty() {
            return;
        }
        let mend = {
            let (engine, scope, stored) = (Arc::clone(self), scope.clone(), stored.clone());
            move |i: usize, lost_at_ms: Option<u64>| {
                let command = match lost_at_ms {
                    Some(node_ms) => {
                        // From the node's answer on, less than what was left when it arrived here.
                        let left =
                            valid_until.saturating_duration_since(engine.clock.now()).as_millis() as u64;
                        if left == 0 {
                            return;
                        }
                        calls::heal(&scope, &handle, &stored, node_ms + left)
                    }
                    None => {
                        let joins = stored.joined.then_some(handle.token);
                        calls::update(&scope, &handle.id, joins, stored.version, &stored.data)
                    }
                };
                engine.members[i].vote_or_copy(&Arc::new(command), engine.clock.now(), None);
            }
        };
        lost.into_iter().for_each(|(i, node_ms)| mend(i, Some(node_ms)));
        behind.into_iter().for_each(|i| mend(i, None));
        self.take_late(ballot, move |i, answer| {
            if let Ok(answer) = answer {
                let node_ms = answer.node_ms;
                match Extended::read(answer) {
                    Ok(None) => mend(i, Some(node_ms)),
                    Ok(Some(copy)) if is_behind(Copy::of(&copy, node_ms)) => mend(i, None),
                    _ => {}
                }
            }
        });
    }

    /// Brings what was read to a quorum, where that was not known to have it: whoever reads after
    /// this sees the same or later. A lease that is over is left alone.
    pub async fn settle_data(self: &Arc<Self>, scope: &Scope, lease: &LeaseId, version: Version, data: &str) {
        let command = Arc::new(calls::update(scope, lease, None, version, data));
        // Where one node is full and another hangs, nobody waits for long.
        let _ = tokio::time::timeout(SETTLE_PATIENCE, self.poll(&command)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::domain::{Ask, LeaseHandle, Renewal};
    use crate::node::Script;
    use crate::quorum::fixture::Api;
    use crate::quorum::{Extension, Order, Round};

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    /// The middle one of three nodes is in quarantine, for 30.3 s.
    async fn quarantined() -> [Api; 2] {
        let pair = Api::pair().await;
        pair[0].nodes[1].node.restart("again", false);
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!(pair[0].engine.tally().granted, 2);
        pair
    }

    async fn extend_as(api: &Api, lease: LeaseHandle, renewal: Renewal, joins: bool) {
        let extension = api.engine.extend(&api.scope, lease, renewal, None, joins).await;
        assert!(matches!(extension, Extension::Extended { .. }), "{extension:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_to_an_extension_that_reached_the_longest_hold_does_not_say_that_the_lease_is_lost()
    {
        let [api, _] = Api::pair().await;
        let ask = Ask { max_hold_ms: 600, ..api.ask(&api.scope, &[], None, 500) };
        let Round::Granted(won) = api.engine.grant(&ask, Order::Parallel).await else {
            panic!("not granted")
        };
        won.grant.keep();
        tokio::time::sleep(300 * MS).await;
        api.nodes.iter().for_each(|node| node.hang_with(Script::Extend));
        let go_on = async {
            tokio::time::sleep(170 * MS).await;
            api.nodes.iter().for_each(|node| node.go_on());
        };
        let extension = api.engine.extend(&api.scope, won.handle, Renewal::Own, None, false);
        let (extension, ()) = tokio::join!(extension, go_on);
        assert!(matches!(extension, Extension::AtLimit(_)), "{extension:?}");
        assert_eq!(api.holders(&won.handle), [true; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_shortened_or_joined_is_so_at_a_node_in_quarantine() {
        // While its acquire is kept back from there, and afterwards.
        for waits in [Duration::ZERO, SECOND] {
            let [api, other] = quarantined().await;
            let Round::Granted(won) = api.round_of(Some("request"), 200_000).await else {
                panic!("not granted")
            };
            tokio::time::sleep(waits).await;
            extend_as(&api, won.handle, Renewal::Ttl(2_000), false).await;
            extend_as(&other, won.handle, Renewal::Own, true).await;
            tokio::time::sleep(SECOND).await;
            let [one, copy, another] =
                [0, 1, 2].map(|i| api.nodes[i].node.get_raw(&api.scope.channels()[0]).unwrap());
            assert_eq!((&one, &copy), (&another, &another));
            // What the client of the first attempt leaves to be undone is somebody else's by now.
            drop(won);
            tokio::time::sleep(SECOND / 2).await;
            assert!(api.is_held_at(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_when_a_node_begins_to_vote_is_there_too() {
        for script in [Script::Acquire, Script::Extend] {
            let [api, _] = quarantined().await;
            let left_ms = || api.engine.nodes()[1].voting_in_ms.unwrap_or(u64::MAX);
            let votes = || api.engine.tally().granted == 3;
            while left_ms() > 2_000 && !votes() {
                tokio::time::sleep(SECOND / 10).await;
            }
            let held = if script == Script::Extend { Some(api.acquire().await) } else { None };
            while left_ms() > 200 && !votes() {
                tokio::time::sleep(SECOND / 10).await;
            }
            api.nodes[0].hang_with(script);
            let go_on = async {
                while !votes() {
                    tokio::time::sleep(SECOND / 100).await;
                }
                api.nodes[0].go_on();
            };
            let asked = async {
                match held {
                    Some(lease) => api.extend(lease).await,
                    None => {
                        api.acquire().await;
                    }
                }
            };
            tokio::join!(asked, go_on);
            tokio::time::sleep(SECOND).await;
            assert_eq!([0, 1, 2].map(|i| api.is_held_at(i)), [true; 3], "{script:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_and_a_vote_make_no_quorum() {
        let [api, _] = quarantined().await;
        let lease = api.acquire().await;
        api.extend(lease).await;
        assert_eq!(api.holders(&lease), [true; 3]);
        api.nodes[0].refuse(Some(Script::Extend));
        let extension = api.engine.extend(&api.scope, lease, Renewal::Own, None, false).await;
        assert!(matches!(extension, Extension::NoQuorum(_)), "{extension:?}");
    }

    /// With its memory it loses what would stop the copy.
    #[tokio::test(start_paused = true)]
    async fn a_node_that_loses_its_memory_once_more_is_not_given_what_was_released() {
        let [api, other] = quarantined().await;
        let lease = api.acquire().await;
        assert!(other.release(&lease).await);
        api.nodes[1].node.flush();
        tokio::time::sleep(SECOND / 20).await;
        assert_eq!(api.holders(&lease), [false; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn copies_of_one_name_leave_one_key() {
        let [api, _] = quarantined().await;
        for _ in 0..10 {
            let lease = api.acquire().await;
            tokio::time::sleep(SECOND / 40).await;
            assert!(api.release(&lease).await);
        }
        let of_name = |key: &String| key.contains(":lock:") || key.contains(":undone");
        let keys = |i: usize| api.nodes[i].node.keys().iter().filter(|key| of_name(key)).count();
        assert_eq!([0, 1, 2].map(keys), [1; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_in_quarantine_has_all_leases_when_it_votes_again() {
        for keeps_data in [false, true] {
            let [api, other] = Api::pair().await;
            let lease = api.acquire().await;
            api.nodes[1].node.restart("again", keeps_data);
            tokio::time::sleep(2 * SECOND).await;
            assert_eq!(api.engine.tally().granted, 2);
            assert_eq!(api.holders(&lease), [true, keeps_data, true]);

            // Nothing is said there of what stays, and for others it is free.
            tokio::time::sleep(10 * SECOND).await;
            api.extend(lease).await;
            tokio::time::sleep(10 * SECOND).await;
            assert_eq!((api.holders(&lease), api.engine.tally().granted), ([true; 3], 2));
            assert!(other.release(&lease).await);
            assert_eq!(api.holders(&lease), [false; 3]);

            // Taken meanwhile: given back at once, or not.
            let lease = api.acquire().await;
            assert!(api.release(&lease).await);
            tokio::time::sleep(SECOND).await;
            assert_eq!(api.holders(&lease), [false; 3]);
            let lease = api.acquire().await;
            assert_eq!(api.holders(&lease), [true, false, true]);
            tokio::time::sleep(SECOND).await;
            assert_eq!((api.holders(&lease), api.engine.tally().granted), ([true; 3], 2));
            assert!(matches!(other.round().await, Round::Refused(_)));
            drop(other);
            assert!(api.engine.is_settled());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_undone_is_undone_at_a_node_in_quarantine() {
        let [api, _] = quarantined().await;
        for waits in [Duration::ZERO, SECOND] {
            let Round::Granted(won) = api.round().await else { panic!("not granted") };
            tokio::time::sleep(waits).await;
            assert_eq!(api.holders(&won.handle)[1], waits > Duration::ZERO);
            let lease = won.handle;
            drop(won.grant);
            tokio::time::sleep(SECOND).await;
            assert_eq!(api.holders(&lease), [false; 3]);
        }
    }

    /// The node had the lease with a lower token than the others, which had seen an earlier one.
    #[tokio::test(start_paused = true)]
    async fn what_was_released_at_a_node_is_not_given_back_by_an_extension_that_came_late() {
        for names in [1, 2] {
            let [api, other] = Api::pair().await;
            for _ in 1..names {
                // Another way of storing: the name comes again.
                let lease = api.acquire().await;
                tokio::time::sleep(SECOND).await;
                assert!(api.release(&lease).await);
            }
            // Both propose the time, of which the second is not the later one.
            let earlier = api.acquire().await;
            assert!(api.release(&earlier).await);
            let lease = other.acquire().await;
            assert!(lease.token > earlier.token);
            tokio::time::sleep(SECOND).await;
            assert_eq!(api.holders(&lease), [true; 3]);

            other.nodes[2].hang_with(Script::Extend);
            other.extend(lease).await;
            assert!(api.release(&lease).await);
            other.nodes[2].go_on();
            tokio::time::sleep(SECOND).await;
            assert_eq!(api.holders(&lease), [false; 3], "of a name used {names} times");
        }
    }
}
