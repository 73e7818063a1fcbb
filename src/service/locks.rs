//! Locks: looking at one, listing them, releasing one by force.

use smallvec::smallvec;

use super::leases::{count_release, holder as holder_of, sharers, unavailable};
use super::{Held, Inspection, Nodes, Primitive, Service, ServiceError};
use crate::domain::{Entry, Holding, Name, Scope, Token};
use crate::quorum::tally;
use crate::telemetry::metrics;

/// One page of locks.
#[derive(Debug, Clone)]
pub struct LockPage {
    /// Held locks, by name in order.
    pub locks: Vec<(Name, Inspection)>,
    /// Go on after this; `None` at the end.
    pub next_after: Option<String>,
}

/// What each node holds under one key.
pub(crate) fn holdings(answers: &[Vec<Option<Entry>>]) -> Vec<Holding> {
    held(answers).cloned().collect()
}

/// The same, not copied.
fn held(answers: &[Vec<Option<Entry>>]) -> impl Iterator<Item = &Holding> + Clone {
    answers.iter().flatten().flatten().filter_map(|entry| entry.holding.as_ref())
}

/// The fence of each node under one key.
pub(crate) fn fences(answers: &[Vec<Option<Entry>>]) -> Vec<u64> {
    answers
        .iter()
        .map(|entries| entries.first().and_then(Option::as_ref).map_or(0, |entry| entry.fence))
        .collect()
}

impl Service {
    /// Who holds a lock.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`].
    pub async fn get_lock(&self, name: &Name) -> Result<Inspection, ServiceError> {
        self.inspect(&self.engine.keys().lock(name)).await
    }

    /// Who holds the record under `key`.
    pub(crate) async fn inspect(&self, key: &str) -> Result<Inspection, ServiceError> {
        /// Looks at what no quorum agrees on: contenders who took the nodes between them are gone soon.
        const LOOKS_MAX: u32 = 4;
        let total = self.engine.total();
        let mut looks = 1;
        let (answers, nodes) = loop {
            let settled =
                |answers: &[Vec<Option<Entry>>]| tally::is_settled(held(answers), answers.len(), total);
            let (answers, nodes) = self.engine.read(&[key], settled).await.map_err(unavailable)?;
            if !tally::is_doubtful(held(&answers), answers.len(), total) {
                break (answers, nodes);
            }
            if looks == LOOKS_MAX {
                return Err(unavailable(nodes));
            }
            looks += 1;
            tokio::time::sleep(self.engine.round_trip() * looks).await;
        };
        let holdings = holdings(&answers);
        if let Some(named) = tally::holder(holdings.iter(), total)
            && named.is_behind
        {
            // What is shown now must not be taken back to whoever looks next and asks other nodes.
            let scope = Scope::Records(smallvec![key.into()]);
            Box::pin(self.engine.settle_data(&scope, &named.lease, named.version, named.data)).await;
        }
        Ok(self.inspection(key, &holdings, &fences(&answers), nodes))
    }

    fn inspection(&self, key: &str, holdings: &[Holding], fences: &[u64], nodes: Nodes) -> Inspection {
        let total = self.engine.total();
        let sharers = sharers(holdings, total);
        let holder = tally::holder(holdings.iter(), total).filter(|_| sharers.is_none());
        Inspection {
            holder: holder.map(|named| holder_of(&named, Vec::new())),
            sharers,
            highest_token: tally::highest_fence(fences, total).and_then(|fence| Token::new(fence).ok()),
            waiters: self.rooms.waiting(key),
            nodes,
        }
    }

    /// Held locks whose name begins with `prefix`, by name in order, after `after`.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`].
    pub async fn list_locks(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<LockPage, ServiceError> {
        let base = self.engine.keys().lock_prefix();
        let key = |name: &str| format!("{base}{name}");
        let page = self
            .engine
            .list(&key(prefix), &after.map(key).unwrap_or_default(), limit)
            .await
            .map_err(unavailable)?;
        let locks = page
            .held
            .iter()
            .filter_map(|(key, holdings)| {
                let name = Name::new(key.strip_prefix(base)?).ok()?;
                let nodes = Nodes {
                    granted: 0,
                    held: holdings.len() as u32,
                    failed: page.nodes.failed,
                    ..page.nodes
                };
                Some((name, self.inspection(key, holdings, &[], nodes)))
            })
            .collect();
        let next_after = page.next_after.and_then(|key| key.strip_prefix(base).map(str::to_owned));
        Ok(LockPage { locks, next_after })
    }

    /// Takes a lock away from whoever holds it.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`].
    pub async fn force_release_lock(&self, name: &Name) -> Result<bool, ServiceError> {
        let freed = count_release(Primitive::Lock, self.free_lock(name).await).map_err(unavailable)?;
        if freed {
            metrics().forced_release(Primitive::Lock);
        }
        Ok(freed)
    }

    /// Releases all that nodes hold of a lock: one lease or all shared ones, and remains of others. Whether a lease was
    /// held.
    async fn free_lock(&self, name: &Name) -> Result<bool, Nodes> {
        /// Each time some of the shared leases are named, and others may come meanwhile.
        const LOOKS_MAX: u32 = 100;
        let mut was_held = false;
        for _ in 0..LOOKS_MAX {
            let (is_held, is_shared) = self.free_named(name).await?;
            was_held |= is_held;
            if !is_shared {
                break;
            }
        }
        Ok(was_held)
    }

    /// Releases what nodes name of a lock. Whether a lease was held, and whether one was shared.
    async fn free_named(&self, name: &Name) -> Result<(bool, bool), Nodes> {
        let key = self.engine.keys().lock(name);
        let total = self.engine.total();
        let settled = |answers: &[Vec<Option<Entry>>]| tally::is_settled(held(answers), answers.len(), total);
        // What a minority holds goes too: of nodes that are about to answer, all are heard. One that is slow
        // is waited for where only it can tell whether anybody holds the lock.
        let (mut answers, _) = self.engine.read_soon(&[&key], |_| false).await?;
        if !settled(&answers) {
            (answers, _) = self.engine.read(&[&key], settled).await?;
        }
        let holdings = holdings(&answers);
        // What was taken away was held, also where only a node that did not answer could tell.
        let is_held = tally::may_be_held(holdings.iter(), answers.len(), total);
        let shared = || holdings.iter().filter_map(|holding| holding.sharing.as_ref());
        let all = holdings.iter().chain(shared().flat_map(|sharing| &sharing.longest));
        let mut leases: Vec<_> = all.map(|holding| holding.lease).collect();
        leases.sort_unstable();
        leases.dedup();
        let scope = Held::Lock(name.clone()).scope(self.engine.keys());
        for lease in &leases {
            self.engine.release(&scope, lease).await?;
            self.ledger.ended(lease);
        }
        Ok((is_held, shared().next().is_some()))
    }
}
