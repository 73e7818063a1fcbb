//! Looking at locks, semaphores and elections: at one, or at all that are held.

use sha2::{Digest as _, Sha256};
use smallvec::smallvec;

use super::semaphores::Leases;
use super::{Holder, Nodes, Service, ServiceError, Sharers, holder, sharers, unavailable};
use crate::domain::{Entry, Holding, Name, Resource, Scope};
use crate::quorum::list::Records;
use crate::quorum::tally;

/// A lock, a semaphore or an election as everyone may see it.
#[derive(Debug, Clone)]
pub struct View {
    /// Whose leases a quorum agrees on: of a semaphore by their lowest slot, of the others one at most.
    pub holders: Vec<Holder>,
    /// Of a lock: who hold it together, in place of one.
    pub sharers: Option<Sharers>,
    /// Opaque; changes with the holders and with the value of an election.
    pub revision: String,
    /// Waiters on this API server.
    pub waiters: usize,
    /// How the nodes stood: `held` counts those that hold a lease.
    pub nodes: Nodes,
}

impl View {
    fn new(resource: Resource, (holders, sharers): HeldBy, waiters: usize, nodes: Nodes) -> Self {
        let revision = match &sharers {
            Some(sharers) => shared_revision(sharers),
            None => revision(resource, &holders),
        };
        Self { holders, sharers, revision, waiters, nodes }
    }

    /// Whether anybody holds it.
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty() || self.sharers.is_some()
    }

    /// Until one of the leases that are named expires unless it is extended, ms.
    pub(super) fn first_expiry_ms(&self) -> Option<u64> {
        let sharers = self.sharers.iter().flat_map(|sharers| &sharers.holders);
        self.holders.iter().chain(sharers).map(|holder| holder.remaining_ms).min()
    }

    /// The one holder of a lock or an election.
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }

    /// Slots of a semaphore that are held.
    pub fn in_use(&self) -> u32 {
        self.holders.iter().map(|holder| holder.slots.len() as u32).sum()
    }
}

/// A digest of who shares a lock, whatever the order in which they expire. Where not all are shown it tells only how many
/// there are, since an extension changes who is shown.
fn shared_revision(sharers: &Sharers) -> String {
    let mut tokens: Vec<u64> = sharers.holders.iter().map(|holder| holder.token.get()).collect();
    if sharers.total as usize > tokens.len() {
        tokens.clear();
    }
    tokens.sort_unstable();
    let mut hash = Sha256::new();
    hash.update(sharers.total.to_be_bytes());
    tokens.iter().for_each(|token| hash.update(token.to_be_bytes()));
    hex::encode(&hash.finalize()[..12])
}

/// The same at every server, and different after each change.
fn revision(resource: Resource, holders: &[Holder]) -> String {
    match (resource, holders) {
        (Resource::Election, []) => "vacant".to_owned(),
        (_, []) => "free".to_owned(),
        (Resource::Semaphore, _) => {
            let mut hash = Sha256::new();
            for holder in holders {
                hash.update(holder.token.get().to_be_bytes());
                hash.update((holder.slots.len() as u64).to_be_bytes());
                holder.slots.iter().for_each(|slot| hash.update(slot.to_be_bytes()));
            }
            hex::encode(&hash.finalize()[..12])
        }
        (_, [holder, ..]) => format!("{:x}-{}", holder.token.get(), holder.note.version),
    }
}

/// One page of what is held.
#[derive(Debug, Clone)]
pub struct Page {
    /// By name, in order.
    pub held: Vec<(Name, View)>,
    /// Go on after this name; `None` at the end.
    pub next_after: Option<String>,
}

/// Who hold it: each by itself, or together.
type HeldBy = (Vec<Holder>, Option<Sharers>);

/// Who hold one record.
fn held_by<'a>(holdings: impl Iterator<Item = &'a Holding> + Clone, answered: usize, total: usize) -> HeldBy {
    match sharers(holdings.clone(), answered, total) {
        Some(sharers) => (Vec::new(), Some(sharers)),
        None => {
            let named = tally::holder(holdings, total);
            (named.iter().map(|named| holder(named, Vec::new())).collect(), None)
        }
    }
}

/// What each node holds under one key.
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
    /// Who holds it.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`].
    pub async fn look(&self, resource: Resource, name: &Name) -> Result<View, ServiceError> {
        let key = self.engine.keys().of(resource, name);
        let (holders, nodes) = match resource {
            Resource::Semaphore => {
                let (holders, nodes) = self.read_holders(&key, usize::MAX).await.map_err(unavailable)?;
                ((holders, None), nodes)
            }
            Resource::Lock | Resource::Election => self.read_holder(&key).await?,
        };
        Ok(View::new(resource, holders, self.rooms.waiting(&key), nodes))
    }

    /// Who holds the record under `key`.
    async fn read_holder(&self, key: &str) -> Result<(HeldBy, Nodes), ServiceError> {
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
        let named = tally::holder(held(&answers), total);
        if let Some(named) = named.filter(|named| named.is_behind) {
            // What is shown now must not be taken back to whoever looks next and asks other nodes.
            let scope = Scope::Records(smallvec![key.into()]);
            Box::pin(self.engine.settle_data(&scope, &named.lease, named.version, named.data)).await;
        }
        Ok((held_by(held(&answers), answers.len(), total), nodes))
    }

    /// Those that are held and whose name begins with `prefix`, by name in order, after `after`.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`].
    pub async fn list(
        &self,
        resource: Resource,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, ServiceError> {
        let page = self.engine.list(resource, prefix, after.unwrap_or_default(), limit);
        let page = page.await.map_err(unavailable)?;
        let total = self.engine.total();
        let view = |name: &Name, records: &Records| {
            let held = records.values().map(|holdings| holdings.len() as u32).max().unwrap_or_default();
            let nodes = Nodes { granted: 0, held, failed: page.nodes.failed, ..page.nodes };
            let held_by = match resource {
                Resource::Semaphore => {
                    let mut leases = Leases::default();
                    for (slot, holdings) in records {
                        if let Some(named) = tally::holder(holdings.iter(), total) {
                            leases.add(&named, *slot);
                        }
                    }
                    (leases.in_order(), None)
                }
                Resource::Lock | Resource::Election => {
                    held_by(records.values().flatten(), page.nodes.granted as usize, total)
                }
            };
            let waiters = self.rooms.waiting(&self.engine.keys().of(resource, name));
            View::new(resource, held_by, waiters, nodes)
        };
        let named = page.held.into_iter().filter_map(|(name, records)| {
            let name = Name::new(&name).ok()?;
            let view = view(&name, &records);
            Some((name, view))
        });
        Ok(Page { held: named.collect(), next_after: page.next_after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Token;
    use crate::service::Note;

    fn sharers_of(tokens: impl Iterator<Item = u64>, total: u32) -> Sharers {
        let holder = |token| Holder {
            token: Token::new(token).unwrap(),
            remaining_ms: 1000,
            note: Note::default(),
            slots: Vec::new(),
        };
        Sharers { holders: tokens.map(holder).collect(), total, remaining_ms: 1000 }
    }

    #[test]
    fn the_revision_of_a_shared_lock_tells_who_share_it_where_all_are_shown_and_else_how_many() {
        let revision = |from, total| shared_revision(&sharers_of(from..from + 16, total));
        assert_ne!(revision(1, 16), revision(2, 16));
        assert_eq!(shared_revision(&sharers_of((1..17).rev(), 16)), revision(1, 16), "in whatever order");
        // An extension puts another one among those that last longest.
        assert_eq!(revision(1, 17), revision(2, 17));
        assert_ne!(revision(1, 17), revision(1, 18));
    }
}
