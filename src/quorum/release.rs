//! Giving a lease back, and taking back what nobody was told of (PROTOCOL §1.4 and §1.8).

use std::sync::Arc;

use tokio::time::Instant;

use super::Engine;
use super::tally::{Count, Verdict, quorum_of};
use crate::domain::{LeaseId, Nodes};
use crate::node::Settle;
use crate::node::calls::{self, Claim, Scope, Tag, Tell};

impl Engine {
    /// Takes a lease away on every node. `Ok(true)` where a quorum may have held it.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered; the release goes on at the others.
    pub async fn release(self: &Arc<Self>, scope: &Scope, lease: &LeaseId) -> Result<bool, Nodes> {
        self.release_claimed(scope, lease, None).await
    }

    pub(super) async fn release_claimed(
        self: &Arc<Self>,
        scope: &Scope,
        lease: &LeaseId,
        claim: Option<Claim>,
    ) -> Result<bool, Nodes> {
        let until = self.settle_until(self.options.max_ttl_ms);
        let settle = Settle { until, undo: false };
        let channels = scope.channels();
        // Of a semaphore, others may have released other slots: all news are news there. And what a
        // node confirms late, those who wait here must hear from it.
        let ahead = matches!(scope, Scope::Records(_))
            && self.hub.is_alone(channels)
            && self.members.iter().all(|member| member.is_voting());
        let tag = if ahead { Tag::from_bits(self.clock.random_bits()) } else { Tag::UNKNOWN };
        let tell = if ahead { Tell::Others(tag) } else { Tell::Everybody };
        let command = Arc::new(calls::release(&self.keys, scope, lease, settle, tell, claim));
        let mut ballot = self.tell(&command);
        if ahead {
            self.hub.ring_ahead(channels, tag);
        }
        let mut count = Count::new(self.total());
        let quorum = quorum_of(self.total());
        let mut others = false;
        while count.yes + count.no < quorum {
            match ballot.next().await {
                Some((_, Ok(answer))) if answer.done => {
                    count.yes += 1;
                    others |= !answer.rest.is_empty();
                }
                Some((_, Ok(_))) => count.no += 1,
                Some((_, Err(_))) => count.failed += 1,
                None => return Err(count.nodes()),
            }
        }
        if count.yes > 0 {
            self.hub.released(channels, tag, count.yes >= quorum && !others);
        }
        Ok(count.yes > 0 && count.yes + count.pending() + count.failed >= quorum)
    }

    /// Takes away what a minority of the nodes was seen to hold of a lease, unless it has a quorum by
    /// now: its acquire may have been on its way to the others, and whoever sent it be told that it was
    /// granted. So they are told to refuse it first, and it goes once it can have no quorum any more.
    ///
    /// # Errors
    /// The votes, where too few answered to tell.
    pub async fn take_back(self: &Arc<Self>, scope: &Scope, lease: &LeaseId) -> Result<(), Nodes> {
        let settle = Settle { until: self.settle_until(self.options.max_ttl_ms), undo: false };
        // Nobody has this claim, so nodes that hold the lease keep it, and all others refuse it from now on.
        let claim = Claim::from_bits(self.clock.random_bits());
        let command = calls::release(&self.keys, scope, lease, settle, Tell::Nobody, Some(claim));
        let mut ballot = self.tell(&Arc::new(command));
        let mut count = Count::new(self.total());
        while count.extension_verdict() == Verdict::Open {
            match ballot.next().await {
                Some((_, Ok(answer))) if answer.rest.is_empty() => count.no += 1,
                Some((_, Ok(_))) => count.yes += 1,
                Some((_, Err(_))) => count.failed += 1,
                None => break,
            }
        }
        match count.extension_verdict() {
            Verdict::Carried => Ok(()),
            Verdict::Rejected => self.release(scope, lease).await.map(drop),
            Verdict::NoQuorum | Verdict::Open => Err(count.nodes()),
        }
    }

    /// Releases without waiting, on the nodes in the bit set; what a node does not confirm is
    /// tried again.
    /// `tell` wakes those who wait: not for a lost round, whose own undo would wake its contender.
    pub(super) fn undo(
        self: &Arc<Self>,
        scope: &Scope,
        lease: &LeaseId,
        nodes: u64,
        until: Instant,
        tell: Tell,
        claim: Option<Claim>,
    ) {
        let settle = Settle { until, undo: true };
        let command = calls::release(&self.keys, scope, lease, settle, tell, claim);
        let command = Arc::new(command);
        let now = self.clock.now();
        for (i, member) in self.members.iter().enumerate() {
            if nodes & (1 << i) != 0 {
                member.tell(&command, now, None);
            }
        }
    }

    /// Takes a lease away that may be stored at any node, whoever it was granted to.
    pub(super) fn undo_everywhere(self: &Arc<Self>, scope: &Scope, lease: &LeaseId, tell: Tell) {
        let until = self.settle_until(self.options.max_ttl_ms);
        self.undo(scope, lease, u64::MAX, until, tell, None);
    }
}
