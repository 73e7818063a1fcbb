//! Counting semaphores: a semaphore of limit L is L exclusive slots, each granted by a
//! majority exactly like a lock (PROTOCOL §3).
//!
//! That never more than L hold permits follows from mutual exclusion per slot; nothing here
//! is needed for it. This file only helps to find a free slot: the server names it, at
//! random among those that look free, and the slot's own record decides.

use std::collections::BTreeMap;

use super::leases::{holder, unavailable};
use super::{Holder, Nodes, Service, ServiceError};
use crate::domain::{LeaseId, Name};
use crate::node::calls::{Holding, Scope, Survey};
use crate::quorum::Refusal;
use crate::quorum::tally::{self, quorum_of};

/// The largest limit of a semaphore.
pub const LIMIT_MAX: u32 = 10_000;
/// Holders named in a refusal; looking at the semaphore names them all.
const HOLDERS_SHOWN: usize = 100;
/// Slots read in one script.
const READ_CHUNK: usize = 256;

/// Who holds a semaphore.
#[derive(Debug, Clone)]
pub struct SemaphoreView {
    /// Slots held.
    pub in_use: u32,
    /// Leases, by their lowest slot.
    pub holders: Vec<Holder>,
    /// Waiters on this API server.
    pub waiters: usize,
    /// How the nodes stood.
    pub nodes: Nodes,
}

/// Why there is no slot to ask for.
pub(crate) enum NoSlots {
    /// Too few look free.
    Full(Box<Refusal>),
    /// Fewer than a quorum answered.
    NoQuorum(Nodes),
}

/// Slots below `limit` that may be granted: those free on a quorum of the nodes that
/// answered, or else those that at least half of all nodes may have free.
fn free_slots(surveys: &[Survey], limit: u32, wanted: usize, total: usize) -> Vec<u32> {
    let mut taken = vec![0_u8; limit as usize];
    for slot in surveys.iter().flat_map(|survey| &survey.taken) {
        if let Some(count) = taken.get_mut(*slot as usize) {
            *count = count.saturating_add(1);
        }
    }
    let missing = total - surveys.len();
    let free = |taken: u8| surveys.len().saturating_sub(usize::from(taken));
    let slots = |fits: &dyn Fn(u8) -> bool| -> Vec<u32> {
        (0..limit).filter(|&slot| fits(taken[slot as usize])).collect()
    };
    let surely = slots(&|taken| free(taken) >= quorum_of(total));
    if surely.len() >= wanted {
        return surely;
    }
    slots(&|taken| (free(taken) + missing) * 2 >= total && free(taken) > 0)
}

impl Service {
    /// Which slots to ask for. `guess` names a random one without asking who is where: in a
    /// semaphore with room, that is one round trip.
    pub(crate) async fn pick_slots(
        &self,
        scope: &Scope,
        limit: u32,
        permits: u32,
        guess: bool,
    ) -> Result<Vec<u32>, NoSlots> {
        let clock = self.engine.clock();
        if guess && permits == 1 {
            return Ok(vec![clock.random_below(u64::from(limit)) as u32]);
        }
        let Scope::Slots(index) = scope else { return Ok(Vec::new()) };
        let (surveys, nodes) = self.engine.survey(index).await.map_err(NoSlots::NoQuorum)?;
        let total = self.engine.total();
        let wanted = permits as usize;
        let mut free = free_slots(&surveys, limit, wanted, total);
        if free.len() < wanted {
            let expiries = surveys.iter().map(|survey| survey.first_expiry_ms.unwrap_or(0));
            let free_in_ms = tally::free_in(expiries, total);
            let refusal = Refusal { holdings: Default::default(), nodes, free_in_ms, held: true };
            return Err(NoSlots::Full(Box::new(refusal)));
        }
        for place in 0..wanted {
            let other = place + clock.random_below((free.len() - place) as u64) as usize;
            free.swap(place, other);
        }
        free.truncate(wanted);
        free.sort_unstable();
        Ok(free)
    }

    /// Who holds a semaphore.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`].
    pub async fn get_semaphore(&self, name: &Name) -> Result<SemaphoreView, ServiceError> {
        let index = self.engine.keys().semaphore(name);
        let (holders, nodes) = self.read_holders(&index, usize::MAX).await.map_err(unavailable)?;
        Ok(SemaphoreView {
            in_use: holders.iter().map(|holder| holder.slots.len() as u32).sum(),
            holders,
            waiters: self.rooms.waiting(&index),
            nodes,
        })
    }

    /// Some holders, for a refusal; none where the nodes do not tell.
    pub(crate) async fn semaphore_holders(&self, name: &Name) -> Vec<Holder> {
        let index = self.engine.keys().semaphore(name);
        self.read_holders(&index, HOLDERS_SHOWN).await.map(|(holders, _)| holders).unwrap_or_default()
    }

    async fn read_holders(&self, index: &str, slots_max: usize) -> Result<(Vec<Holder>, Nodes), Nodes> {
        let (surveys, _) = self.engine.survey(index).await?;
        let mut slots: Vec<u32> = surveys.into_iter().flat_map(|survey| survey.taken).collect();
        slots.sort_unstable();
        slots.dedup();
        slots.truncate(slots_max);

        let total = self.engine.total();
        let mut leases: BTreeMap<LeaseId, Holder> = BTreeMap::new();
        let mut nodes = Nodes { total: total as u32, quorum: self.engine.quorum(), ..Nodes::default() };
        if slots.is_empty() {
            nodes = Nodes { held: 0, failed: self.engine.tally().failed, ..nodes };
        }
        for chunk in slots.chunks(READ_CHUNK) {
            let keys: Vec<String> = chunk.iter().map(|slot| format!("{index}/{slot}")).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let (answers, seen) = self.engine.read(&keys, |_| false).await?;
            nodes = Nodes { held: nodes.held.max(seen.held), failed: nodes.failed.max(seen.failed), ..nodes };
            for (place, &slot) in chunk.iter().enumerate() {
                let holdings: Vec<&Holding> = answers
                    .iter()
                    .filter_map(|entries| entries.get(place)?.as_ref()?.holding.as_ref())
                    .collect();
                if let Some(named) = tally::holder(holdings.into_iter(), total) {
                    let lease = leases.entry(named.lease);
                    lease.or_insert_with(|| holder(&named, Vec::new())).slots.push(slot);
                }
            }
        }
        let mut holders: Vec<Holder> = leases.into_values().collect();
        holders.sort_unstable_by(|a, b| a.slots.cmp(&b.slots));
        Ok((holders, nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(taken: &[u32]) -> Survey {
        Survey { taken: taken.to_vec(), first_expiry_ms: None }
    }

    #[test]
    fn slots_free_on_a_quorum_come_first() {
        let surveys = [survey(&[0, 1]), survey(&[0]), survey(&[0, 2])];
        assert_eq!(free_slots(&surveys, 4, 1, 3), vec![1, 2, 3]);
    }

    #[test]
    fn a_slot_that_only_a_missing_node_could_free_is_tried_when_nothing_better_is_left() {
        let surveys = [survey(&[0, 1]), survey(&[0])];
        assert_eq!(free_slots(&surveys, 2, 1, 3), vec![1]);
        assert_eq!(free_slots(&surveys, 3, 1, 3), vec![2]);
    }

    #[test]
    fn slots_beyond_the_limit_of_the_asker_do_not_count() {
        let surveys = [survey(&[7, 8]), survey(&[7, 8])];
        assert_eq!(free_slots(&surveys, 2, 2, 3), vec![0, 1]);
    }
}
