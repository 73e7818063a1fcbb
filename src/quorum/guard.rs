//! The guard of a lease that nobody was told of yet (docs/protocol.md §1.4 and §1.5).

use std::sync::Arc;

use super::Engine;
use super::rounds::{GrantRound, StateMachine as _};
use crate::domain::{LeaseId, Nodes, Scope};
use crate::node::ballot::Ballot;
use crate::node::calls::Cause;

/// A grant that is undone on every node that may know of it, unless it is kept: whatever
/// drops it (a lost round, a client that went away) leaves nothing behind (§1.4, §1.5).
#[must_use]
pub struct Grant {
    engine: Arc<Engine>,
    scope: Scope,
    pub(super) lease: LeaseId,
    /// One bit a node that granted it, or whose answer is unknown.
    pub(super) nodes: u64,
    /// For how long it may live, ms.
    ttl_ms: u64,
    /// Its request was granted it in an earlier attempt: whoever leaves gives nothing back (§1.9).
    joined: bool,
    /// The round was refused: then its undo is told nobody, or it would wake the contender that lost
    /// it. Otherwise others may have been refused because of it, and wait for it.
    lost: bool,
    armed: bool,
}

impl Grant {
    /// Whether an earlier attempt of the same request was granted it.
    pub fn is_joined(&self) -> bool {
        self.joined
    }

    /// Gives it back everywhere, unless a retry has joined it. `Ok(true)` where a quorum may have held it.
    ///
    /// # Errors
    /// As [`Engine::release`].
    pub async fn release(&self) -> Result<bool, Nodes> {
        if self.joined {
            return Ok(false);
        }
        self.engine.release_for(&self.scope, &self.lease, Cause::Undo).await
    }

    /// It shall stay.
    pub fn keep(mut self) {
        self.armed = false;
    }

    /// Undoes a lost round: at once where the lease was granted, and at each straggler only once
    /// it turns out that it may have granted it too; mostly it refuses like the others.
    pub(super) fn undo_lost(mut self, ballot: Ballot, mut round: GrantRound) {
        self.lost = true;
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
            round.on_vote(i, answer);
            let late = self.nodes & (1 << i);
            self.nodes &= !late;
            if late & round.may_hold != 0 {
                self.undo(late);
            }
        });
    }

    fn undo(&self, nodes: u64) {
        let cause = if self.lost { Cause::Lost } else { Cause::Undo };
        self.engine.undo(&self.scope, &self.lease, nodes, self.ttl_ms, cause);
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
    /// What a round that begins now may be granted.
    pub(super) fn guard(self: &Arc<Self>, scope: &Scope, lease: LeaseId, ttl_ms: u64) -> Grant {
        let (engine, scope) = (Arc::clone(self), scope.clone());
        Grant { engine, scope, lease, nodes: 0, ttl_ms, joined: false, lost: false, armed: true }
    }

    /// A grant to an earlier attempt, which a retry has joined.
    pub fn granted_before(self: &Arc<Self>, scope: &Scope, lease: LeaseId) -> Grant {
        let mut guard = self.guard(scope, lease, self.options.max_ttl_ms);
        (guard.joined, guard.armed) = (true, false);
        guard
    }
}
