//! Carrying leases over a change of the members (docs/protocol.md §4.10).
//!
//! A change may leave a lease with fewer nodes than a quorum: a member is added, so that a quorum is one more, or one is
//! closed. Its next extension restores it. But before the closed member ends, the others must have all leases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream;
use smallvec::SmallVec;

use super::super::Engine;
use super::super::list::each_held;
use crate::domain::{Holding, LeaseHandle, LeaseId, Token};
use crate::node::member::Member;

/// Leases that are copied at once.
const AT_ONCE: usize = 64;
/// How long the operator's command waits for the copies.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How long a close waits for copies before it is proposed: a node that is about to end does not wait for long.
pub(super) const PATIENCE_BEFORE: Duration = Duration::from_secs(5);

/// What copies of one lease may differ by: between two looks, some time passes.
const UNEVEN_MS: u64 = 50;

/// How long each lease lasts at the members that have it, and its token: the least, as a node may have granted it late
/// with a greater one.
type Leases = BTreeMap<(String, LeaseId), (SmallVec<[u64; 5]>, Token)>;

impl Engine {
    /// Has every lease that is held reach all members that vote.
    pub(super) async fn carry_leases(self: &Arc<Self>, patience: Duration) {
        if tokio::time::timeout(patience, self.carry_all()).await.is_err() {
            tracing::warn!("not all leases were copied to the other members: extensions copy the others");
        }
    }

    async fn carry_all(self: &Arc<Self>) {
        // Each lease is at one of the voting members at least.
        let voting: Vec<_> =
            self.seats().filter(|(_, one)| one.is_voting()).map(|(_, one)| self.leases_at(one)).collect();
        let (total, mut leases) = (voting.len(), Leases::new());
        for (key, holding) in join_all(voting).await.into_iter().flatten() {
            let lease = leases.entry((key, holding.lease));
            let (copies, token) = lease.or_insert((SmallVec::new(), holding.token));
            copies.push(holding.remaining_ms);
            *token = holding.token.min(*token);
        }
        let is_even = |copies: &[u64]| {
            let ends = copies.iter().min().zip(copies.iter().max());
            copies.len() == total && ends.is_some_and(|(first, last)| last - first <= UNEVEN_MS)
        };
        let missing = leases.into_iter().filter(|(_, (copies, _))| !is_even(copies));
        let copied = missing.filter_map(|((key, id), (_, token))| {
            let scope = self.keys.scope_of(&key)?;
            Some(async move { self.copy(&scope, LeaseHandle { id, token }).await })
        });
        stream::iter(copied).for_each_concurrent(AT_ONCE, |one| one).await;
    }

    /// What is held at a node: of a name that is shared, the leases that it shows.
    async fn leases_at(&self, member: &Arc<Member>) -> Vec<(String, Holding)> {
        let mut held = Vec::new();
        let walk = each_held(member, self.keys.root(), |key, mut one| {
            let shown = one.sharing.take().map_or_else(Vec::new, |sharing| sharing.longest);
            let others = shown.into_iter().filter(|other| other.lease != one.lease).collect::<Vec<_>>();
            // What is stored with it is not needed.
            let all = std::iter::once(one).chain(others);
            held.extend(all.map(|one| (key.clone(), Holding { data: String::new(), ..one })));
        });
        // Of a node that leaves in the middle, what it told counts.
        let _ = walk.await;
        held
    }
}
