//! What one API server has seen of all nodes, and where each stands by that (docs/protocol.md §4), without I/O.
//!
//! The membership in force is the latest that any node knows to be chosen. A node votes where its marker names that
//! membership, this process and its incarnation. What else may be there, and what is to be written in its place,
//! is decided in `judge`; which step of the membership comes next, in `quorum/membership`.

mod judge;
mod seen;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(super) use self::judge::{CLOSED, MARKING};
use self::judge::{ROLLED_BACK, UNFIT};
pub use self::judge::{STEPPED, Standing, Write};
pub use self::seen::Seen;
use super::Identity;
use super::calls::Status;
use super::electorate::{Electorate, Electors};
use super::marker::Mark;
use crate::domain::{MemberEntry, Membership, Role, Stage, drift_ms};

#[derive(Debug, Default)]
struct View {
    seen: Option<Seen>,
    reachable: bool,
    /// Why it may have forgotten leases, until that is written to it.
    doubt: Option<&'static str>,
    /// The largest class of leases that it knew while it remembered, ms.
    class_ms: u64,
    /// The processes that were reached here, the last one first.
    processes: Vec<String>,
}

/// What one API server has seen of all nodes.
#[derive(Debug)]
pub struct Board {
    addresses: Vec<String>,
    max_ttl_ms: u64,
    clock_bound_ms: u64,
    views: Vec<View>,
    in_force: Option<Arc<Membership>>,
    /// Counts the memberships that were in force here.
    generation: u64,
    electorate: Arc<Electorate>,
    /// Two deployments have as many nodes of this list.
    divided: bool,
    /// How members that join are waited for, by their incarnation.
    waits: BTreeMap<String, Wait>,
    /// The same for the epoch that changed their number.
    resized: Option<(u64, Wait)>,
}

/// Waiting for what was granted before a membership.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    /// When all such leases have expired.
    pub until: Instant,
    /// No such token is greater, µs.
    pub token_floor: u64,
}

/// Processes remembered of each address.
const PROCESSES_MAX: usize = 16;
impl Board {
    /// A board of nodes with these addresses; nothing seen yet.
    pub fn new(addresses: Vec<String>, max_ttl_ms: u64, clock_bound_ms: u64) -> Self {
        let views: Vec<View> = addresses.iter().map(|_| View::default()).collect();
        let electorate = Arc::new(Electorate::new(views.len()));
        Self {
            addresses,
            max_ttl_ms,
            clock_bound_ms,
            views,
            in_force: None,
            generation: 0,
            electorate,
            divided: false,
            waits: BTreeMap::new(),
            resized: None,
        }
    }

    /// What rounds count by.
    pub fn electorate(&self) -> &Arc<Electorate> {
        &self.electorate
    }

    /// Nodes in this server's list.
    pub fn listed(&self) -> usize {
        self.views.len()
    }

    /// The address of node `i`.
    pub fn address(&self, i: usize) -> &str {
        &self.addresses[i]
    }

    /// This server's own limit, ms.
    pub fn max_ttl_ms(&self) -> u64 {
        self.max_ttl_ms
    }

    /// The membership in force, as far as is known.
    pub fn in_force(&self) -> Option<&Arc<Membership>> {
        self.in_force.as_ref()
    }

    /// Counts the memberships that were in force here.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What was last seen of node `i`, while it answers.
    pub fn seen(&self, i: usize) -> Option<&Seen> {
        let view = &self.views[i];
        view.seen.as_ref().filter(|_| view.reachable)
    }

    /// What was last seen of node `i`, while it answers and may be a member.
    pub fn fit(&self, i: usize) -> Option<&Seen> {
        self.seen(i)
            .filter(|seen| seen.is_fit() && self.views[i].doubt.is_none() && self.twin(i, seen).is_none())
    }

    /// Redis version of node `i`, once seen.
    pub fn version(&self, i: usize) -> Option<&str> {
        self.views[i].seen.as_ref().map(|seen| seen.identity.version.as_str())
    }

    /// One bit a listed node that is a member.
    pub fn members(&self) -> u64 {
        let Some(membership) = &self.in_force else { return u64::MAX };
        let is_member = |view: &View| {
            view.seen.as_ref().is_some_and(|seen| membership.of_process(&seen.identity.run_id).is_some())
        };
        self.views.iter().enumerate().fold(0, |bits, (i, view)| bits | u64::from(is_member(view)) << i)
    }

    /// Node `i` answered a look.
    pub fn saw(&mut self, i: usize, identity: Identity, status: Status, now: Instant) {
        let view = &mut self.views[i];
        view.reachable = true;
        let before = view.seen.as_ref().filter(|seen| seen.identity.run_id == identity.run_id);
        let went_back = before.is_some_and(|seen| seen.status.looks > status.looks);
        let seen = Seen::new(identity, status);
        if before.is_none() {
            // What was held against another process is over.
            view.doubt = None;
        }
        if went_back {
            view.doubt = Some(ROLLED_BACK);
        }
        // A replica that lags has the marker of its master, who may become its replica and then master again;
        // and an eviction leaves the marker.
        if !seen.is_fit() {
            view.doubt = Some(UNFIT);
        }
        if seen.newcomer().is_some() {
            view.doubt = view.doubt.filter(|_| !seen.is_fit());
        }
        if view.processes.first() != Some(&seen.identity.run_id) {
            view.processes.insert(0, seen.identity.run_id.clone());
            view.processes.truncate(PROCESSES_MAX);
        }
        let class_ms = seen.status.class_ms;
        view.seen = Some(seen);
        self.find_membership();
        let membership = self.in_force.clone();
        let view = &mut self.views[i];
        let is_intact = view.seen.as_ref().zip(membership).is_some_and(|(seen, of)| seen.is_intact_in(&of));
        view.class_ms = if is_intact { class_ms } else { view.class_ms.max(class_ms) };
        self.set_electorate();
        self.begin_waits(now);
    }

    fn set_electorate(&self) {
        let total = self.in_force.as_ref().map_or(self.views.len(), |membership| membership.total());
        let token_floor = self.in_force.as_ref().map_or(0, |membership| membership.token_floor);
        let (generation, members) = (self.generation, self.members());
        self.electorate.set(Electors { generation, members, total, token_floor });
    }

    /// No round that is under way counts, and each node is looked at before the next.
    pub fn drop_rounds(&mut self) {
        self.generation += 1;
        self.set_electorate();
    }

    /// Node `i` did not answer.
    pub fn lost(&mut self, i: usize) {
        self.views[i].reachable = false;
    }

    /// Node `i` may have forgotten leases: to be written to it. False where that was known.
    pub fn doubt(&mut self, i: usize, why: &'static str) -> bool {
        self.views[i].doubt.replace(why).is_none()
    }

    /// The latest epoch of the deployment to which most nodes belong.
    fn find_membership(&mut self) {
        let mut deployments: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for seen in self.views.iter().filter_map(|view| view.seen.as_ref()) {
            let Some(chosen) = &seen.chosen else { continue };
            let (intact, all) = deployments.entry(&chosen.deployment).or_default();
            *intact += usize::from(seen.is_intact_in(chosen));
            *all += 1;
        }
        let best = deployments.iter().max_by_key(|(_, counts)| **counts).map(|(id, counts)| (*id, *counts));
        let Some((deployment, (most, _))) = best else {
            self.divided = false;
            self.generation += u64::from(self.in_force.take().is_some());
            return;
        };
        self.divided = most > 0 && deployments.values().filter(|(intact, _)| *intact == most).count() > 1;
        let chosen = self.views.iter().filter_map(|view| view.seen.as_ref()?.chosen.as_ref());
        let latest =
            chosen.filter(|chosen| chosen.deployment == deployment).max_by_key(|one| (one.epoch, &one.id));
        let latest = latest.filter(|_| !self.divided).cloned().map(Arc::new);
        if latest != self.in_force {
            self.generation += 1;
            self.in_force = latest;
        }
    }

    /// Members whose marker names the membership in force, each once.
    fn marked<'a>(&'a self, membership: &'a Membership) -> impl Iterator<Item = (&'a Seen, &'a MemberEntry)> {
        membership.members.iter().filter_map(|member| {
            let mut nodes = (0..self.listed()).filter_map(|i| self.seen(i));
            let seen = nodes.find(|seen| seen.identity.run_id == member.run_id)?;
            (seen.status.marker == Mark::of(membership, member)).then_some((seen, member))
        })
    }

    /// No lease is granted under an epoch before once a quorum of its members is marked with this one: from then on
    /// those that join are waited for.
    fn begin_waits(&mut self, now: Instant) {
        let Some(membership) = self.in_force.clone() else { return };
        self.waits.retain(|nonce, _| membership.members.iter().any(|member| member.nonce == *nonce));
        let is_old = |member: &MemberEntry| member.joined < membership.epoch;
        let old = membership.members.iter().filter(|member| is_old(member)).count();
        let marked: Vec<_> = self.marked(&membership).collect();
        let is_settled = marked.iter().filter(|(_, member)| is_old(member)).count()
            >= old.min(membership.quorum())
            && marked.len() >= membership.quorum();
        if !is_settled {
            return;
        }
        let class_ms = marked.iter().map(|(seen, _)| seen.status.class_ms).max().unwrap_or(0);
        let wait_ms = class_ms.max(membership.wait_ms);
        let wait_ms = if wait_ms > 0 { wait_ms + drift_ms(wait_ms) } else { 0 };
        let token_floor = self.last_token(&membership, marked.iter().map(|(seen, _)| seen.status.node_ms));
        let wait = Wait { until: now + Duration::from_millis(wait_ms), token_floor };
        // A floor found later is as safe, and lower once more nodes are marked.
        let lower = |known: &mut Wait| known.token_floor = known.token_floor.min(token_floor);
        for member in membership.members.iter().filter(|member| member.role == Role::Joining) {
            self.waits.entry(member.nonce.clone()).and_modify(lower).or_insert(wait);
        }
        if membership.stage == Stage::Resized {
            let known = self.resized.filter(|(epoch, _)| *epoch == membership.epoch);
            let mut known = known.unwrap_or((membership.epoch, wait));
            lower(&mut known.1);
            self.resized = Some(known);
        }
    }

    /// The greatest token that may have been granted before this membership, µs. Each node of the quorum refused what
    /// was further ahead of its clock, and said later than that what its clock shows.
    fn last_token(&self, membership: &Membership, clocks_ms: impl Iterator<Item = u64>) -> u64 {
        let mut clocks_ms: Vec<u64> = clocks_ms.collect();
        clocks_ms.sort_unstable_by(|a, b| b.cmp(a));
        // Of each quorum one node at least is none of the `fewer` whose clocks are ahead of all others: those that were
        // not heard of may be among them. A quorum of one member less may be one less.
        let total = membership.total();
        let fewer = if membership.stage == Stage::Resized { (total - 1) / 2 } else { total / 2 };
        let unheard = total - clocks_ms.len();
        let clock_ms = clocks_ms.get(fewer.saturating_sub(unheard)).copied().unwrap_or(0);
        (clock_ms + self.clock_bound_ms) * 1000 + 999
    }

    /// How this member is waited for.
    pub fn wait_for(&self, member: &MemberEntry) -> Option<Wait> {
        self.waits.get(&member.nonce).copied()
    }

    /// How the next change has to wait.
    pub fn wait_after_resize(&self, membership: &Membership) -> Option<Wait> {
        self.resized.filter(|(epoch, _)| *epoch == membership.epoch).map(|(_, wait)| wait)
    }

    /// Whether enough members grant tokens from this one on: their clocks have come that far.
    pub fn is_granted(&self, membership: &Membership, token_floor: u64) -> bool {
        let grants = |(seen, member): &(&Seen, &MemberEntry)| {
            member.role != Role::Closed && seen.status.node_ms + self.clock_bound_ms >= token_floor / 1000
        };
        self.marked(membership).filter(grants).count() >= membership.quorum()
    }

    /// This server may grant leases of a class, ms, from now on.
    pub fn gained(&mut self, class_ms: u64) {
        self.views.iter_mut().for_each(|view| view.class_ms = view.class_ms.max(class_ms));
    }

    /// The largest class of leases that any member knows of, or knew before it lost its memory, ms.
    pub fn class_ms(&self) -> u64 {
        self.views.iter().map(|view| view.class_ms).max().unwrap_or(0)
    }

    /// `address=process` of the members that are seen here, to be remembered at node `i` if it is one of them.
    pub fn addresses_for(&self, i: usize) -> String {
        let Some(membership) = &self.in_force else { return String::new() };
        let member = |i: usize| self.fit(i).filter(|seen| seen.is_intact_in(membership));
        let mut text = String::new();
        for (j, seen) in (0..self.listed()).filter_map(|j| Some((j, member(j)?))) {
            text.push_str(&format!("{}={} ", self.addresses[j], seen.identity.run_id));
        }
        if member(i).is_some() { text } else { String::new() }
    }

    /// The addresses that led to this process, as any node remembers.
    pub fn addresses_of(&self, run_id: &str) -> Vec<&str> {
        let is_known = |view: &View| view.processes.iter().any(|process| process == run_id);
        let seen_here = self.views.iter().zip(&self.addresses).filter(|(view, _)| is_known(view));
        let member = self.in_force.as_ref().and_then(|membership| membership.of_process(run_id));
        let told = self.views.iter().filter_map(|view| view.seen.as_ref());
        let told =
            told.flat_map(|seen| seen.status.addresses.split(' ').filter_map(|pair| pair.rsplit_once('=')));
        let told = told.filter(|(_, process)| *process == run_id).map(|(address, _)| address);
        let all = seen_here.map(|(_, address)| address.as_str());
        let all = all.chain(member.map(|member| member.address.as_str())).chain(told);
        let mut found: Vec<&str> = Vec::new();
        for address in all {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        found
    }

    /// The member whose place this newcomer takes: the same process with another memory, the one whose data it has, or
    /// the one that was reached by the same address; and is seen nowhere else.
    pub fn replaces<'a>(&self, i: usize, membership: &'a Membership) -> Option<&'a MemberEntry> {
        let seen = self.seen(i)?;
        if let Some(member) = membership.of_process(&seen.identity.run_id) {
            return Some(member);
        }
        let is_elsewhere = |member: &MemberEntry| {
            (0..self.listed()).any(|j| self.seen(j).is_some_and(|seen| seen.identity.run_id == member.run_id))
        };
        let former = seen.mark.process().and_then(|process| membership.of_process(process));
        former.filter(|member| !is_elsewhere(member)).or_else(|| {
            membership.members.iter().find(|member| {
                self.addresses_of(&member.run_id).contains(&self.addresses[i].as_str())
                    && !is_elsewhere(member)
            })
        })
    }

    fn twin(&self, i: usize, seen: &Seen) -> Option<usize> {
        (0..self.listed()).find(|&j| {
            let other = self.views[j].seen.as_ref();
            j != i && other.is_some_and(|other| other.identity.run_id == seen.identity.run_id)
        })
    }
}
