//! Counting semaphores: a semaphore of limit L is L exclusive slots, each granted by a
//! majority exactly like a lock (docs/protocol.md §3).
//!
//! That never more than L hold permits follows from mutual exclusion per slot; nothing here
//! is needed for it. This file only helps to find a free slot: the server names it, at
//! random among those that look free, and the slot's own record decides.

use std::collections::BTreeMap;

use super::waiting::{Queued, Wish};
use super::{Holder, Nodes, Service, holder};
use crate::domain::{Entry, Keys, LeaseId, Name, Scope, Survey};
use crate::quorum::Refusal;
use crate::quorum::tally::{self, Named, quorum_of};

/// The largest limit of a semaphore.
pub const LIMIT_MAX: u32 = 10_000;
/// Holders named in a refusal; looking at the semaphore names them all.
const HOLDERS_SHOWN: usize = 16;
/// Slots read in one script.
pub(crate) const READ_CHUNK: usize = 256;

/// Slots to ask for.
pub(crate) struct Picked {
    pub(crate) slots: Vec<u32>,
    /// Set where too few are free on a quorum of the nodes that answered: the others may have more.
    pub(crate) doubt: Option<Doubt>,
}

/// What is known of a semaphore that may be full.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Doubt {
    /// When one of its leases expires, ms.
    pub(crate) free_in_ms: Option<u64>,
}

/// Why there is no slot to ask for.
pub(crate) enum NoSlots {
    /// Too few are free, or too few beyond those that others wait for. Some of those who hold the others.
    Full(Box<Refusal>, Vec<Holder>),
    /// Too few look free, but what takes them are, as far as the nodes tell, contenders who have not got them.
    Contested(Box<Refusal>),
    /// Too few are free beyond those that others wait for, of whom the first may have taken already what is
    /// kept for it.
    Unclear(Box<Refusal>),
    /// Fewer than a quorum answered.
    NoQuorum(Nodes),
}

/// What the records of some slots tell.
struct Seen {
    /// Leases, by their lowest slot.
    holders: Vec<Holder>,
    /// Slots that only nodes which did not answer could name a holder of.
    in_doubt: Vec<u32>,
    nodes: Nodes,
}

/// Leases, each with all of its slots.
#[derive(Default)]
pub(crate) struct Leases(BTreeMap<LeaseId, Holder>);

impl Leases {
    /// A quorum names it, in this slot of a semaphore.
    pub(crate) fn add(&mut self, named: &Named<'_>, slot: u32) {
        let lease = self.0.entry(named.lease).or_insert_with(|| holder(named, Vec::new()));
        lease.slots.push(slot);
    }

    /// By their lowest slot.
    pub(crate) fn in_order(self) -> Vec<Holder> {
        let mut holders: Vec<Holder> = self.0.into_values().collect();
        holders.sort_unstable_by(|a, b| a.slots.cmp(&b.slots));
        holders
    }
}

/// Whether fewer than `wanted` permits are left at this node. Those of a higher limit count, too.
fn is_full(survey: &Survey, limit: u32, wanted: usize) -> bool {
    survey.taken as usize + wanted > limit as usize
}

/// Slots below `limit` that may be granted: those free on a quorum of the nodes that
/// answered, or else, in doubt, those that at least half of all nodes may have free.
fn free_slots(surveys: &[Survey], limit: u32, wanted: usize, total: usize) -> (Vec<u32>, bool) {
    // A node that has too few left for the asker has none for it, whichever slots are taken there.
    let full = surveys.iter().filter(|survey| is_full(survey, limit, wanted)).count();
    if full == surveys.len() {
        return (Vec::new(), true);
    }
    let mut taken = vec![full as u8; limit as usize];
    let others = surveys.iter().filter(|survey| !is_full(survey, limit, wanted));
    for slot in others.flat_map(|survey| &survey.named) {
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
        return (surely, false);
    }
    (slots(&|taken| (free(taken) + missing) * 2 >= total && free(taken) > 0), true)
}

/// Whether more answers cannot tell more: enough is free for sure, or too little for sure.
fn is_clear(surveys: &[Survey], limit: u32, wanted: usize, total: usize) -> bool {
    let (free, doubtful) = free_slots(surveys, limit, wanted, total);
    !doubtful || free.len() < wanted
}

/// Slots that any node names, in order.
pub(crate) fn named_slots(surveys: &[Survey]) -> Vec<u32> {
    let mut slots: Vec<u32> = surveys.iter().flat_map(|survey| survey.named.iter().copied()).collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// Whether these answers settle who holds each of so many slots.
pub(crate) fn are_settled(answers: &[Vec<Option<Entry>>], slots: usize, total: usize) -> bool {
    (0..slots).all(|place| {
        let holdings = answers.iter().filter_map(|entries| entries.get(place)?.as_ref()?.holding.as_ref());
        tally::is_settled(holdings, answers.len(), total)
    })
}

impl Service {
    /// A random slot, without asking who is where: in a semaphore with room, that is one round trip.
    pub(crate) fn guess_slot(&self, limit: u32) -> Picked {
        let slot = self.engine.clock().random_below(u64::from(limit)) as u32;
        Picked { slots: vec![slot], doubt: None }
    }

    /// Which slots to ask for, where `queued` tells who comes first.
    pub(crate) async fn pick_slots(
        &self,
        scope: &Scope,
        wish: Wish,
        queued: impl Fn() -> Queued,
    ) -> Result<Picked, NoSlots> {
        let clock = self.engine.clock();
        let Scope::Slots(index) = scope else { return Ok(Picked { slots: Vec::new(), doubt: None }) };
        let (total, limit, wanted) = (self.engine.total(), wish.limit, wish.permits as usize);
        let needed = |queued: Queued| wanted + queued.permits;
        let asked = needed(queued());
        let enough = |surveys: &[Survey]| is_clear(surveys, limit, asked, total);
        let survey = self.engine.survey(index, (limit, asked), HOLDERS_SHOWN, enough);
        let (surveys, nodes) = survey.await.map_err(NoSlots::NoQuorum)?;
        // As they stand now: whoever was granted something meanwhile is found among the taken slots, and
        // wants it no more.
        let queued = queued();
        let needed = needed(queued);
        let (mut free, doubtful) = free_slots(&surveys, limit, needed, total);
        let expiries = surveys.iter().map(|survey| survey.first_expiry_ms.unwrap_or(0));
        let free_in_ms = tally::free_in(expiries, total);
        if free.len() < needed {
            let full = surveys.iter().filter(|survey| is_full(survey, limit, needed)).count();
            let nodes = Nodes { held: full as u32, ..nodes };
            let holdings = Default::default();
            let mut refusal =
                Box::new(Refusal { holdings, nodes, free_in_ms, held: true, kept_ms: None, undone: false });
            if free.len() >= wanted && queued.contends {
                return Err(NoSlots::Unclear(refusal));
            }
            // What is taken may be a lease, or what a contender has begun to take and will not get: only
            // the slots' records tell.
            let mut shown = named_slots(&surveys);
            shown.truncate(HOLDERS_SHOWN);
            let seen = self.read_slots(index, &shown).await.map_err(NoSlots::NoQuorum)?;
            let taken = surveys.iter().map(|survey| survey.taken as usize).max().unwrap_or_default();
            // What is not read counts as held.
            let held = seen.holders.iter().map(|holder| holder.slots.len()).sum::<usize>()
                + taken.saturating_sub(shown.len());
            if held + needed > limit as usize {
                return Err(NoSlots::Full(refusal, seen.holders));
            }
            refusal.held = held + seen.in_doubt.len() + needed > limit as usize;
            return Err(NoSlots::Contested(refusal));
        }
        for place in 0..wanted {
            let other = place + clock.random_below((free.len() - place) as u64) as usize;
            free.swap(place, other);
        }
        free.truncate(wanted);
        free.sort_unstable();
        Ok(Picked { slots: free, doubt: doubtful.then_some(Doubt { free_in_ms }) })
    }

    /// Some holders, for a refusal; none where the nodes do not tell.
    pub(crate) async fn semaphore_holders(&self, name: &Name) -> Vec<Holder> {
        let index = self.engine.keys().semaphore(name);
        self.read_holders(&index, HOLDERS_SHOWN).await.map(|(holders, _)| holders).unwrap_or_default()
    }

    pub(crate) async fn read_holders(
        &self,
        index: &str,
        slots_max: usize,
    ) -> Result<(Vec<Holder>, Nodes), Nodes> {
        // Whatever has a quorum is known to one of any quorum.
        let limit = if slots_max > HOLDERS_SHOWN { u32::MAX } else { 0 };
        let (surveys, _) = self.engine.survey(index, (limit, 1), slots_max, |_| true).await?;
        let mut slots = named_slots(&surveys);
        slots.truncate(slots_max);
        let seen = self.read_slots(index, &slots).await?;
        Ok((seen.holders, seen.nodes))
    }

    /// Who holds these slots, in order.
    async fn read_slots(&self, index: &str, slots: &[u32]) -> Result<Seen, Nodes> {
        let total = self.engine.total();
        let mut leases = Leases::default();
        let mut nodes = Nodes { total: total as u32, quorum: self.engine.quorum(), ..Nodes::default() };
        let mut in_doubt = Vec::new();
        if slots.is_empty() {
            nodes = Nodes { held: 0, failed: self.engine.tally().failed, ..nodes };
        }
        for chunk in slots.chunks(READ_CHUNK) {
            let keys: Vec<String> = chunk.iter().map(|&slot| Keys::slot(index, slot)).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let settled = |answers: &[Vec<Option<Entry>>]| are_settled(answers, keys.len(), total);
            let (answers, seen) = self.engine.read_soon(&keys, settled).await?;
            nodes = Nodes { held: nodes.held.max(seen.held), failed: nodes.failed.max(seen.failed), ..nodes };
            for (place, &slot) in chunk.iter().enumerate() {
                let holdings =
                    answers.iter().filter_map(|entries| entries.get(place)?.as_ref()?.holding.as_ref());
                if let Some(named) = tally::holder(holdings.clone(), total) {
                    leases.add(&named, slot);
                } else if tally::may_be_held(holdings, answers.len(), total) {
                    in_doubt.push(slot);
                }
            }
        }
        Ok(Seen { holders: leases.in_order(), in_doubt, nodes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(taken: &[u32]) -> Survey {
        Survey { taken: taken.len() as u32, named: taken.to_vec(), first_expiry_ms: None }
    }

    #[test]
    fn slots_free_on_a_quorum_come_first() {
        let surveys = [survey(&[0, 1]), survey(&[0]), survey(&[0, 2])];
        assert_eq!(free_slots(&surveys, 4, 1, 3), (vec![1, 2, 3], false));
    }

    #[test]
    fn a_slot_that_only_a_missing_node_could_free_is_tried_when_nothing_better_is_left() {
        let surveys = [survey(&[0, 1]), survey(&[0])];
        assert_eq!(free_slots(&surveys, 2, 1, 3), (vec![1], true));
        assert_eq!(free_slots(&surveys, 3, 1, 3), (vec![2], false));
    }

    #[test]
    fn slots_beyond_the_limit_of_the_asker_are_in_use_too() {
        let surveys = [survey(&[7, 8]), survey(&[7, 8])];
        assert_eq!(free_slots(&surveys, 2, 1, 3), (vec![], true));
        assert_eq!(free_slots(&surveys, 3, 1, 3), (vec![0, 1, 2], false));
    }

    #[test]
    fn a_node_that_is_full_needs_to_name_no_slots() {
        let full = Survey { taken: 10_000, named: Vec::new(), first_expiry_ms: None };
        assert_eq!(free_slots(&[full.clone(), full], 10_000, 1, 3), (vec![], true));
    }

    #[test]
    fn only_what_nodes_disagree_about_is_worth_another_answer() {
        let free = [survey(&[]), survey(&[0])];
        assert!(is_clear(&free, 2, 1, 3) && !is_clear(&free, 2, 2, 3));
        assert!(is_clear(&[survey(&[0, 1]), survey(&[0, 1])], 2, 1, 3));
        assert!(is_clear(&[survey(&[0, 1]), survey(&[1])], 2, 2, 3));
        assert!(!is_clear(&[survey(&[]), survey(&[]), survey(&[0, 1])], 2, 2, 5));
    }
}
