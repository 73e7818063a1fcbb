//! Where a node stands, and what is to be written in the place of its marker (docs/protocol.md §4).

use std::sync::Arc;

use tokio::time::Instant;

use super::{Board, Seen};
use crate::domain::{MemberEntry, Membership, Role};
use crate::node::marker::Mark;

/// Where a node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It votes, with this marker.
    Voting(Arc<str>),
    /// It abstains: what it may have forgotten could still be held.
    Quarantined {
        /// When it may vote; `None` while that depends on other nodes.
        until: Option<Instant>,
        /// Why.
        reason: Arc<str>,
        /// The text in the place of its marker. As long as that is there the node remembers what it was told
        /// since, and may be given copies.
        marker: Option<Arc<str>>,
    },
    /// It does not answer.
    Down,
    /// It must never vote as it is; the text says why and names other nodes by address.
    Refused(Arc<str>),
}

impl Standing {
    /// Whether it is quarantined, and that for this reason.
    pub fn is_quarantined_for(&self, why: &str) -> bool {
        matches!(self, Self::Quarantined { reason, .. } if **reason == *why)
    }
}

/// A text to be written in the place of a marker, if the one seen is still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The one seen; empty where there is none.
    pub seen: String,
    /// The new one.
    pub new: String,
    /// The process there.
    pub run_id: String,
    /// The epoch that the node learns with it, or nothing.
    pub chosen: String,
}

/// What to do about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Where it stands.
    pub standing: Standing,
    /// What is to be written.
    pub write: Option<Write>,
}

/// Why a node abstains whose marker is about to be written.
pub(in crate::node) const MARKING: &str = "being marked";
/// Why a clock is not trusted.
pub const STEPPED: &str = "its clock stepped: waiting until leases judged by it have expired";
const RESTARTED: &str = "restarted, lost its data, or is a promoted replica: waiting until leases it may have forgotten \
                         have expired";
pub(super) const UNFIT: &str =
    "was a replica, or might evict: waiting until leases it may have lost by that have expired";
pub(super) const ROLLED_BACK: &str =
    "went back to an earlier state: waiting until leases it may have forgotten have expired";
const BLANK: &str = "blank: waiting as if it had lost its data (quorate init skips this wait for new nodes)";
pub(in crate::node) const CLOSED: &str = "closed by command: it votes again once it was restarted";

impl Board {
    /// Where node `i` stands.
    pub fn judge(&self, i: usize, random: u128) -> Verdict {
        let stands = |standing| Verdict { standing, write: None };
        let Some(seen) = self.seen(i) else { return stands(Standing::Down) };
        if let Some(why) = self.refusal(i, seen) {
            return stands(Standing::Refused(why.into()));
        }
        let marker = (!seen.status.marker.is_empty()).then(|| Arc::from(seen.status.marker.as_str()));
        let quarantined = |until, reason: &str| Standing::Quarantined {
            until,
            reason: reason.into(),
            marker: marker.clone(),
        };
        let run_id = seen.identity.run_id.clone();
        let note = |reason: &str| Verdict {
            standing: quarantined(None, reason),
            write: Some(Write {
                seen: seen.status.marker.clone(),
                new: seen.mark.doubt(&run_id, random, reason),
                run_id: run_id.clone(),
                chosen: String::new(),
            }),
        };
        if let Some(why) = self.views[i].doubt {
            return note(why);
        }
        let member =
            self.in_force.as_ref().and_then(|membership| Some((membership, membership.of_process(&run_id)?)));
        if let Some((membership, member)) = member {
            let expected = Mark::of(membership, member);
            if seen.status.marker == expected {
                return stands(match member.role {
                    Role::Voting => Standing::Voting(expected.into()),
                    Role::Joining => {
                        quarantined(self.wait_for(member).map(|wait| wait.until), self.reason(seen))
                    }
                    Role::Closed => quarantined(None, CLOSED),
                });
            }
            if let Some(write) = self.marking(seen, membership) {
                return Verdict { standing: quarantined(None, MARKING), write: Some(write) };
            }
        }
        match &seen.mark {
            Mark::Closed { nonce, run_id: closed } if *closed != run_id && self.is_closed(nonce) => {
                // Nobody is left to choose that it is back: all begin anew.
                if self.is_majority_lost() { note(RESTARTED) } else { stands(quarantined(None, CLOSED)) }
            }
            Mark::Doubted { run_id: doubted, reason, .. } if *doubted == run_id => {
                stands(quarantined(None, reason))
            }
            Mark::Old { run_id: old, .. } if *old == run_id && self.in_force.is_none() => {
                stands(quarantined(None, MARKING))
            }
            Mark::Blank => note(BLANK),
            _ => note(RESTARTED),
        }
    }

    fn reason<'a>(&self, seen: &Seen) -> &'a str {
        if seen.chosen.as_ref().is_some_and(|chosen| chosen.epoch == 1) { BLANK } else { RESTARTED }
    }

    /// Whether fewer than a quorum remember, and each of the others has come back without its memory.
    fn is_majority_lost(&self) -> bool {
        let Some(membership) = &self.in_force else { return false };
        let is_intact = |i: usize| self.fit(i).is_some_and(|seen| seen.is_intact_in(membership));
        let is_back = |member: &MemberEntry| {
            (0..self.listed()).any(|i| self.fit(i).is_some() && self.replaces(i, membership) == Some(member))
        };
        (0..self.listed()).filter(|&i| is_intact(i)).count() < membership.quorum()
            && membership.members.iter().all(is_back)
    }

    /// Whether the membership remembers that a member was closed with this nonce.
    fn is_closed(&self, nonce: &str) -> bool {
        let members = self.in_force.iter().flat_map(|membership| &membership.members);
        members.into_iter().any(|member| member.role == Role::Closed && member.nonce == nonce)
    }

    fn refusal(&self, i: usize, seen: &Seen) -> Option<String> {
        if let Some(j) = self.twin(i, seen) {
            return Some(format!(
                "{} and {} lead to the same Redis server, which would vote twice",
                self.addresses[i], self.addresses[j]
            ));
        }
        if !seen.identity.is_master() {
            return Some("is a replica: nodes must be independent".to_owned());
        }
        if seen.identity.evicts() {
            return Some(format!(
                "its maxmemory-policy is {}: it must be noeviction, or locks vanish under memory pressure",
                seen.identity.eviction
            ));
        }
        match &seen.mark {
            Mark::Newer(format) => {
                return Some(format!("its marker has format {format}: a later version of Quorate uses it"));
            }
            Mark::Retired => return Some("its deployment was retired: it moved to other nodes".to_owned()),
            Mark::Old { run_id, total, .. } if *run_id == seen.identity.run_id && *total != self.listed() => {
                return Some(format!(
                    "belongs to a deployment of {total} nodes, but {} are configured",
                    self.listed()
                ));
            }
            _ => {}
        }
        if self.divided && seen.chosen.is_some() {
            return Some("the nodes belong to different deployments, none of them the larger".to_owned());
        }
        let membership = self.in_force.as_ref()?;
        if membership.of_process(&seen.identity.run_id).is_some() {
            return None;
        }
        if let (Mark::Member { run_id, .. } | Mark::Closed { run_id, .. }, Some(chosen)) =
            (&seen.mark, &seen.chosen)
            && *run_id == seen.identity.run_id
        {
            return Some(match chosen.deployment == membership.deployment {
                true => format!(
                    "was replaced, and is no member since: stop it, or quorate members add {}",
                    self.addresses[i]
                ),
                false => {
                    format!(
                        "belongs to another deployment ({}, not {})",
                        chosen.deployment, membership.deployment
                    )
                }
            });
        }
        let is_back = matches!(&seen.mark, Mark::Closed { nonce, .. } if self.is_closed(nonce));
        if is_back || self.replaces(i, membership).is_some() {
            return None;
        }
        let address = &self.addresses[i];
        Some(format!(
            "is no member: quorate members add {address}, or quorate members replace NODE {address}"
        ))
    }

    /// Whether node `i` answers, could vote, and is no member, nor takes the place of one by itself.
    pub fn is_out(&self, i: usize) -> bool {
        let Some((seen, membership)) = self.seen(i).zip(self.in_force.as_ref()) else { return false };
        let is_stranger = seen.is_fit() && membership.of_process(&seen.identity.run_id).is_none();
        is_stranger && self.twin(i, seen).is_none() && self.refusal(i, seen).is_some()
    }

    /// Whether no member of the deployment has voted since it was founded.
    pub fn is_new(&self) -> bool {
        self.in_force.as_ref().is_some_and(|membership| {
            membership.epoch == 1 && membership.members.iter().all(|member| member.role == Role::Joining)
        })
    }

    /// Whether two URLs lead to this node.
    pub fn is_twin(&self, i: usize) -> bool {
        self.seen(i).is_some_and(|seen| self.twin(i, seen).is_some())
    }

    /// What brings a node to this epoch, if it is a member of it and is not there yet.
    pub fn marking(&self, seen: &Seen, membership: &Membership) -> Option<Write> {
        let run_id = &seen.identity.run_id;
        let member = membership.of_process(run_id)?;
        let new = Mark::of(membership, member);
        let is_this = match &seen.mark {
            // The same incarnation in an epoch before, or about to be closed.
            Mark::Member { run_id: marked, nonce, .. } => {
                marked == run_id && (*nonce == member.nonce || member.role == Role::Closed)
            }
            Mark::Closed { nonce, .. } => *nonce == member.nonce,
            _ => seen.newcomer() == Some((run_id, &member.nonce)),
        };
        (is_this && new != seen.status.marker).then(|| Write {
            seen: seen.status.marker.clone(),
            new,
            run_id: run_id.clone(),
            chosen: membership.to_string(),
        })
    }

    /// What has a node that is no member wait to be taken in.
    pub fn newcomer_note(&self, i: usize, random: u128) -> Option<Write> {
        let seen = self.fit(i)?;
        let is_member =
            self.in_force.as_ref().is_some_and(|one| one.of_process(&seen.identity.run_id).is_some());
        if is_member || seen.newcomer().is_some() || matches!(seen.mark, Mark::Newer(_) | Mark::Retired) {
            return None;
        }
        let run_id = seen.identity.run_id.clone();
        Some(Write {
            seen: seen.status.marker.clone(),
            new: seen.mark.doubt(&run_id, random, BLANK),
            run_id,
            chosen: String::new(),
        })
    }

    /// Whether this node is an intact member of another deployment: such a list is wrong for good.
    pub fn is_foreign(&self, i: usize) -> bool {
        self.seen(i).is_some_and(|seen| {
            let ours = self.in_force.as_ref().map(|membership| &membership.deployment);
            let theirs = seen.chosen.as_ref().filter(|chosen| seen.is_intact_in(chosen));
            self.divided || theirs.is_some_and(|theirs| ours.is_some_and(|ours| *ours != theirs.deployment))
        })
    }
}
