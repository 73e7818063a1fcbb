//! Taking leases away from their holders.

use std::collections::BTreeSet;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::leases::count_release;
use super::semaphores::{READ_CHUNK, are_settled, named_slots};
use super::{Service, ServiceError, unavailable};
use crate::domain::{Entry, Holding, Keys, LeaseId, Name, Nodes, Resource, Scope, Token};
use crate::quorum::tally;
use crate::telemetry::metrics;

/// Releases under way at a time.
const RELEASES_AT_A_TIME: usize = 64;

impl Service {
    /// Takes it away from whoever holds it; with a token, only from the holder of that one. Whether anybody held it.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`].
    pub async fn force_release(
        &self,
        resource: Resource,
        name: &Name,
        token: Option<Token>,
    ) -> Result<bool, ServiceError> {
        let freed = self.free(resource, name, token).await;
        let freed = count_release(resource.into(), freed).map_err(unavailable)?;
        if freed {
            metrics().forced_release(resource.into());
        }
        Ok(freed)
    }

    /// Releases all that nodes hold: leases, and remains of others. Whether a lease was held.
    async fn free(&self, resource: Resource, name: &Name, token: Option<Token>) -> Result<bool, Nodes> {
        /// Each time some of the shared leases of a lock are named, and others may come meanwhile.
        const LOOKS_MAX: u32 = 100;
        let mut was_held = false;
        for _ in 0..LOOKS_MAX {
            let (is_held, is_shared) = self.free_named(resource, name, token).await?;
            was_held |= is_held;
            if !is_shared {
                break;
            }
        }
        Ok(was_held)
    }

    /// Releases what nodes name. Whether a lease was held, and whether one was shared.
    async fn free_named(
        &self,
        resource: Resource,
        name: &Name,
        token: Option<Token>,
    ) -> Result<(bool, bool), Nodes> {
        let key = self.engine.keys().of(resource, name);
        let (scope, records) = match resource {
            Resource::Semaphore => {
                // What a minority holds goes too: of nodes that are about to answer, all are heard.
                let (surveys, _) = self.engine.survey(&key, (u32::MAX, 1), usize::MAX, |_| false).await?;
                let slots = named_slots(&surveys).into_iter().map(|slot| Keys::slot(&key, slot));
                (Scope::Slots(key.as_str().into()), slots.collect())
            }
            _ => (Scope::Records([key.as_str().into()].into()), vec![key]),
        };
        let (mut leases, mut is_held, mut is_shared) = (BTreeSet::new(), false, false);
        for chunk in records.chunks(READ_CHUNK) {
            let (held, shared) = self.find_leases(chunk, token, &mut leases).await?;
            (is_held, is_shared) = (is_held || held, is_shared || shared);
        }
        let scope = &scope;
        let releases = stream::iter(leases).map(|lease| async move {
            self.engine.release(scope, &lease).await?;
            self.ledger.ended(&lease);
            Ok(())
        });
        releases.buffer_unordered(RELEASES_AT_A_TIME).try_for_each(async |()| Ok(())).await?;
        Ok((is_held, is_shared))
    }

    /// Adds the leases that any node has in one of these records. Whether one of them may be held, and one is shared.
    async fn find_leases(
        &self,
        records: &[String],
        token: Option<Token>,
        leases: &mut BTreeSet<LeaseId>,
    ) -> Result<(bool, bool), Nodes> {
        let total = self.engine.total();
        let keys: Vec<&str> = records.iter().map(String::as_str).collect();
        let settled = |answers: &[Vec<Option<Entry>>]| are_settled(answers, keys.len(), total);
        let (mut answers, _) = self.engine.read_soon(&keys, |_| false).await?;
        // A node that is slow is waited for where only it can tell whether anybody holds it.
        if !settled(&answers) {
            (answers, _) = self.engine.read(&keys, settled).await?;
        }
        let (mut is_held, mut is_shared) = (false, false);
        for place in 0..keys.len() {
            let holdings =
                answers.iter().filter_map(|entries| entries.get(place)?.as_ref()?.holding.as_ref());
            let shared = holdings.clone().filter_map(|holding| holding.sharing.as_ref());
            is_shared |= shared.clone().next().is_some();
            let asked_for: BTreeSet<LeaseId> = holdings
                .clone()
                .chain(shared.flat_map(|sharing| &sharing.longest))
                .filter(|holding| token.is_none_or(|token| token == holding.token))
                .map(|holding| holding.lease)
                .collect();
            let taken = |holding: &&Holding| asked_for.contains(&holding.lease);
            // What was taken away was held, also where only a node that did not answer could tell.
            is_held |= tally::may_be_held(holdings.filter(taken), answers.len(), total);
            leases.extend(asked_for);
        }
        Ok((is_held, is_shared))
    }
}
