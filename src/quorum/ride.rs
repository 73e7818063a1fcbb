//! Requests that live through a change of the membership.

use std::time::Duration;

use tokio::time::Instant;

use super::Engine;
use crate::node::electorate::Electors;

/// How long, and how often, a request is repeated while the membership changes.
const RIDE_MAX: Duration = Duration::from_secs(2);
const REPEATS_MAX: u32 = 8;

/// A request during which the membership may change. That costs it another round, not its answer.
pub(super) struct Ride<'a> {
    engine: &'a Engine,
    electors: Electors,
    /// Of the gates, when the round began.
    moves: u64,
    until: Instant,
    repeats_left: u32,
}

impl Ride<'_> {
    /// Whether a round that failed is to be repeated, once it may be.
    pub(super) async fn again(&mut self) -> bool {
        let engine = self.engine;
        let is_moving = || engine.members.iter().any(|member| member.is_moving());
        // Who abstained in between may vote again by now.
        let is_still = engine.electorate.is_still(&self.electors) && engine.electorate.moves() == self.moves;
        if is_still && !is_moving() || engine.clock.now() >= self.until {
            return false;
        }
        let Some(left) = self.repeats_left.checked_sub(1) else { return false };
        self.repeats_left = left;
        while is_moving() && engine.clock.now() < self.until {
            let _ = tokio::time::timeout(Duration::from_millis(5), engine.changed.notified()).await;
        }
        (self.moves, self.electors) = (engine.electorate.moves(), engine.electorate.now());
        true
    }

    /// Whether the votes since this began are of one membership.
    pub(super) fn is_still(&self) -> bool {
        self.engine.electorate.is_still(&self.electors)
    }
}

impl Engine {
    /// Begins what may have to be repeated since the membership changed meanwhile.
    pub(super) fn ride(&self) -> Ride<'_> {
        let (electors, until) = (self.electorate.now(), self.clock.now() + RIDE_MAX);
        let moves = self.electorate.moves();
        Ride { engine: self, electors, moves, until, repeats_left: REPEATS_MAX }
    }
}
