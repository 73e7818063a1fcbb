//! Which step of the membership comes next, by what one server has seen (docs/protocol.md §4), without I/O.

use std::fmt;

use tokio::time::Instant;

use super::proposer::{Acceptor, Place};
use crate::domain::{ChosenBy, MemberEntry, Membership, Nodes, Role, Stage};
use crate::node::board::{Board, Seen, Wait};
use crate::node::marker::Mark;

/// A step that is wanted, and who is asked.
#[derive(Debug, Clone)]
pub struct Step {
    /// The epoch before.
    pub before: Option<Membership>,
    /// The next one.
    pub value: Membership,
    /// The nodes that take part, each with what stands in the place of its marker.
    pub acceptors: Vec<(Place, Acceptor, String)>,
    /// For the log.
    pub what: &'static str,
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Another one is under way.
    #[error("another change of the membership is under way: {0}")]
    InProgress(String),
    /// It would leave no quorum, or nothing is known of the node.
    #[error("{0}")]
    Unsafe(String),
    /// No majority of the members took part.
    #[error("no majority of the members agreed; what was begun may still be finished by a server")]
    NoQuorum(Nodes),
}

/// A change that somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// One more member, at this address.
    Add(String),
    /// The node at this address in place of a member.
    Replace(String, String),
    /// One member less.
    Remove(String),
    /// A member stops voting, to be restarted.
    Close(String),
    /// The nodes refuse for good.
    Retire,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(url) => write!(f, "add {}", address_of(url)),
            Self::Replace(id, url) => write!(f, "replace {} {}", address_of(id), address_of(url)),
            Self::Remove(id) => write!(f, "remove {}", address_of(id)),
            Self::Close(id) => write!(f, "close {}", address_of(id)),
            Self::Retire => write!(f, "retire"),
        }
    }
}

fn acceptor(seen: &Seen, membership: Option<&Membership>) -> Option<(Acceptor, String)> {
    let marker = seen.status.marker.clone();
    let run_id = seen.identity.run_id.clone();
    if let Some(membership) = membership
        && seen.is_intact_in(membership)
    {
        let nonce = membership.of_process(&run_id)?.nonce.clone();
        return Some((Acceptor { run_id, nonce, is_intact: true }, marker));
    }
    let (_, nonce) = seen.newcomer()?;
    Some((Acceptor { run_id, nonce: nonce.to_owned(), is_intact: false }, marker))
}

fn acceptors(board: &Board, before: Option<&Membership>) -> Vec<(Place, Acceptor, String)> {
    let nodes = (0..board.listed()).filter_map(|i| Some((i, board.fit(i)?)));
    nodes.filter_map(|(i, seen)| acceptor(seen, before).map(|(one, marker)| (i, one, marker))).collect()
}

/// The next epoch of `before`, with these members. Who joins waits at least for what is known of leases now: a node
/// that is lost before it was asked again would take that with it.
fn next(
    board: &Board,
    before: &Membership,
    random: u128,
    change: impl FnOnce(&mut Membership),
) -> Membership {
    let is_joining = |one: &Membership| one.members.iter().any(|member| member.role == Role::Joining);
    let (epoch, by) = (before.epoch + 1, ChosenBy::Majority);
    let mut value = Membership { epoch, id: id(random), by, ..before.clone() };
    change(&mut value);
    let known_ms = if is_joining(before) { before.wait_ms } else { 0 };
    value.wait_ms = if is_joining(&value) { known_ms.max(board.class_ms()) } else { 0 };
    value
}

fn id(random: u128) -> String {
    format!("{:016x}", (random >> 64) as u64)
}

fn newcomer(board: &Board, i: Place, epoch: u64, role: Role) -> Option<MemberEntry> {
    let (run_id, nonce) = board.fit(i)?.newcomer()?;
    let (run_id, nonce, address) = (run_id.to_owned(), nonce.to_owned(), board.address(i).to_owned());
    Some(MemberEntry { run_id, nonce, joined: epoch, role, address })
}

/// The step that servers make by themselves, if any.
pub fn due(board: &Board, random: u128, now: Instant) -> Option<Step> {
    let Some(before) = board.in_force() else { return found(board, random, Role::Joining) };
    if before.stage == Stage::Retired {
        return None;
    }
    let acceptors = acceptors(board, Some(before));
    let intact = acceptors.iter().filter(|(_, one, _)| one.is_intact).count();
    let step = |value, what| {
        Some(Step { before: Some((**before).clone()), value, acceptors: acceptors.clone(), what })
    };
    if intact < before.quorum() {
        return recover(board, before, random).and_then(|value| step(value, "a majority lost its memory"));
    }
    for i in 0..board.listed() {
        let Some(seen) = board.fit(i) else { continue };
        if let Mark::Closed { nonce, run_id } = &seen.mark
            && *run_id != seen.identity.run_id
            && let Some(place) =
                before.members.iter().position(|m| m.role == Role::Closed && m.nonce == *nonce)
        {
            let value = next(board, before, random, |value| {
                let (run_id, joined) = (seen.identity.run_id.clone(), value.epoch);
                let (nonce, address) = (nonce.clone(), board.address(i).to_owned());
                value.members[place] = MemberEntry { run_id, nonce, joined, role: Role::Voting, address };
            });
            return step(value, "a closed member is back");
        }
        let Some((run_id, nonce)) = seen.newcomer() else { continue };
        if before.find(run_id, nonce).is_none()
            && let Some(lost) = board.replaces(i, before)
        {
            let place = before.members.iter().position(|member| member == lost)?;
            let entry = newcomer(board, i, before.epoch + 1, Role::Joining)?;
            return step(
                next(board, before, random, |value| value.members[place] = entry),
                "a member lost its memory",
            );
        }
    }
    if let Some(value) = settle(board, before, random, now) {
        return step(value, "leases of before have expired");
    }
    // What somebody began and did not finish. Nodes that are no members may have it from epochs that are forgotten.
    let members = (0..board.listed()).filter_map(|i| board.fit(i).filter(|seen| seen.is_intact_in(before)));
    let begun = members.filter_map(|seen| seen.accepted.clone());
    let begun = begun.into_iter().find(|value| {
        value.by == ChosenBy::Majority
            && value.deployment == before.deployment
            && value.epoch == before.epoch + 1
    });
    begun.and_then(|value| step(value, "a step was left half-way"))
}

/// Those vote who were waited for.
fn settle(board: &Board, before: &Membership, random: u128, now: Instant) -> Option<Membership> {
    // Nobody could be granted anything before the nodes' clocks allow for such tokens.
    let over = |wait: &Wait| wait.until <= now && board.is_granted(before, wait.token_floor);
    let joined = |member: &MemberEntry| match member.role {
        Role::Joining => board.wait_for(member).filter(over),
        _ => None,
    };
    let resized = board.wait_after_resize(before).filter(|wait| before.stage == Stage::Resized && over(wait));
    let waits = before.members.iter().filter_map(joined).chain(resized);
    let token_floor = waits.map(|wait| wait.token_floor).max()?;
    Some(next(board, before, random, |value| {
        value.token_floor = value.token_floor.max(token_floor);
        let joining = value.members.iter_mut().filter(|member| joined(member).is_some());
        joining.for_each(|member| member.role = Role::Voting);
        if resized.is_some() {
            value.stage = Stage::Settled;
        }
    }))
}

/// A new deployment of all listed nodes. Nodes of the version before keep what they remember.
pub fn found(board: &Board, random: u128, role: Role) -> Option<Step> {
    let (mut members, mut wait_ms) = (Vec::new(), board.max_ttl_ms().max(board.class_ms()));
    let mut deployments: Vec<&str> = Vec::new();
    for i in 0..board.listed() {
        let seen = board.fit(i)?;
        let mut entry = newcomer(board, i, 1, role)?;
        if let Mark::Old { deployment, max_ttl_ms, .. } = &seen.mark {
            entry.role = Role::Voting;
            wait_ms = wait_ms.max(*max_ttl_ms);
            deployments.push(deployment);
        }
        members.push(entry);
    }
    if deployments.windows(2).any(|pair| pair[0] != pair[1]) || deployments.len() * 2 <= members.len() {
        // Fewer than a majority remember: nobody does.
        members.iter_mut().for_each(|member| member.role = role);
    } else {
        members.iter_mut().filter(|member| !deployments.contains(&member.nonce.as_str())).for_each(|m| {
            m.role = Role::Joining;
        });
    }
    let value = Membership {
        epoch: 1,
        id: id(random),
        deployment: format!("{:016x}", random as u64),
        by: ChosenBy::All,
        wait_ms,
        token_floor: 0,
        stage: Stage::Settled,
        members,
    };
    Some(Step { before: None, value, acceptors: acceptors(board, None), what: "a new deployment" })
}

/// All vote at once: the operator's word that a deployment that has not voted yet has forgotten nothing.
pub fn trust(board: &Board, before: &Membership, random: u128) -> Step {
    let value = next(board, before, random, |value| {
        value.members.iter_mut().for_each(|member| member.role = Role::Voting);
    });
    let (before, acceptors) = (Some(before.clone()), acceptors(board, Some(before)));
    Step { before, value, acceptors, what: "the operator's word" }
}

/// Where a majority lost its memory, all members there are begin anew; each must be accounted for. They may have chosen
/// epochs that nobody knows to be chosen any more: those that a node accepted are not counted again.
fn recover(board: &Board, before: &Membership, random: u128) -> Option<Membership> {
    let accepted = (0..board.listed()).filter_map(|i| board.fit(i)?.accepted.as_ref());
    let accepted = accepted.filter(|value| value.deployment == before.deployment).map(|value| value.epoch);
    let epoch = accepted.chain([before.epoch]).max()? + 1;
    let mut members = Vec::new();
    for member in &before.members {
        let found = (0..board.listed()).find_map(|i| {
            let seen = board.fit(i)?;
            if seen.is_intact_in(before) {
                return (seen.identity.run_id == member.run_id).then(|| member.clone());
            }
            let is_it = board.replaces(i, before) == Some(member);
            newcomer(board, i, epoch, Role::Joining).filter(|_| is_it)
        });
        members.push(found?);
    }
    let mut value = next(board, before, random, |value| (value.epoch, value.members) = (epoch, members));
    (value.by, value.wait_ms) = (ChosenBy::All, board.max_ttl_ms().max(board.class_ms()));
    Some(value)
}

/// The step that a command asks for.
///
/// # Errors
/// Why it must not be made now.
pub fn asked(board: &Board, change: &Change, random: u128) -> Result<Step, ChangeError> {
    let unsafe_ = |why: String| ChangeError::Unsafe(why);
    let before =
        board.in_force().ok_or_else(|| unsafe_("the nodes belong to no deployment yet".to_owned()))?;
    if before.is_changing() {
        let waits = before.members.iter().filter(|member| member.role == Role::Joining).count();
        return Err(ChangeError::InProgress(format!(
            "epoch {}, {waits} members do not vote yet",
            before.epoch
        )));
    }
    let place = |id: &str| {
        let address = address_of(id);
        let listed =
            (0..board.listed()).find(|i| id == format!("n{}", i + 1) || board.address(*i) == address);
        let process = listed.and_then(|i| board.seen(i)).map(|seen| seen.identity.run_id.as_str());
        let known = listed.map_or(address.as_str(), |i| board.address(i));
        let is_it =
            |member: &MemberEntry| member.run_id == id || board.addresses_of(&member.run_id).contains(&known);
        let members = || before.members.iter();
        let by_process = members().position(|member| process == Some(member.run_id.as_str()));
        let place = by_process.or_else(|| members().position(is_it));
        place.ok_or_else(|| unsafe_(format!("{id} is no member")))
    };
    let new = |url: &str, of: Option<usize>| {
        let address = &address_of(url);
        let i = (0..board.listed()).find(|&i| board.address(i) == *address).ok_or_else(|| {
            unsafe_(format!("{address} is not in this server's list of nodes: add it to --redis first"))
        })?;
        board.fit(i).ok_or_else(|| unsafe_(format!("{address} does not answer, or is refused")))?;
        // It would be a member twice, once as a process that is gone.
        let lost = board.replaces(i, before);
        if lost.is_some() && lost != of.map(|place| &before.members[place]) {
            return Err(unsafe_(format!("{address} is a member, or takes the place of one by itself")));
        }
        newcomer(board, i, before.epoch + 1, Role::Voting)
            .filter(|entry| before.of_process(&entry.run_id).is_none())
            .ok_or_else(|| unsafe_(format!("{address} is a member, or was not looked at yet")))
    };
    let acceptors = acceptors(board, Some(before));
    // One that does not answer is of no use to a quorum.
    let votes = |member: &MemberEntry| {
        let answers = acceptors.iter().any(|(_, one, _)| one.is_intact && one.run_id == member.run_id);
        member.role == Role::Voting && answers
    };
    let voting = before.members.iter().filter(|member| votes(member)).count();
    let keeps = |left: usize, total: usize| match left > total / 2 {
        true => Ok(()),
        false => Err(unsafe_(format!("{left} of {total} members would vote and answer, which is no quorum"))),
    };
    let is_voting = |place: usize| usize::from(votes(&before.members[place]));
    let value = match change {
        Change::Add(address) => {
            let entry = new(address, None)?;
            keeps(voting + 1, before.total() + 1)?;
            next(board, before, random, |value| {
                value.members.push(entry);
                value.stage = Stage::Resized;
            })
        }
        Change::Remove(id) => {
            let place = place(id)?;
            keeps(voting - is_voting(place), before.total() - 1)?;
            next(board, before, random, |value| {
                value.members.remove(place);
                value.stage = Stage::Resized;
            })
        }
        Change::Replace(id, address) => {
            let place = place(id)?;
            let entry = new(address, Some(place))?;
            keeps(voting - is_voting(place), before.total())?;
            next(board, before, random, |value| {
                value.members[place] = MemberEntry { role: Role::Joining, ..entry }
            })
        }
        Change::Close(id) => {
            let place = place(id)?;
            keeps(voting - is_voting(place), before.total())?;
            next(board, before, random, |value| {
                let member = &mut value.members[place];
                (member.role, member.nonce) = (Role::Closed, id_of(random));
            })
        }
        Change::Retire => next(board, before, random, |value| value.stage = Stage::Retired),
    };
    Ok(Step { before: Some((**before).clone()), value, acceptors, what: "a command" })
}

/// The address of the node that a URL leads to: without user, password, and what goes without saying.
pub fn address_of(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    if scheme == "unix" {
        return format!("{scheme}://{}", rest.split('?').next().unwrap_or(rest));
    }
    let has_port = host.rsplit(']').next().unwrap_or(host).contains(':');
    let port = if has_port { "" } else { ":6379" };
    let database = if matches!(database, "" | "0") { String::new() } else { format!("/{database}") };
    format!("{scheme}://{host}{port}{database}")
}

fn id_of(random: u128) -> String {
    format!("{:016x}", random as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Identity;
    use crate::node::calls::Status;

    fn epoch(number: u64, by: ChosenBy, members: &[(&str, Role)]) -> Membership {
        let member = |(run_id, role): &(&str, Role)| MemberEntry {
            run_id: (*run_id).to_owned(),
            nonce: format!("nonce-of-{run_id}"),
            joined: 1,
            role: *role,
            address: format!("at-{run_id}"),
        };
        Membership {
            epoch: number,
            id: format!("{number:016x}"),
            deployment: "deployment".to_owned(),
            by,
            wait_ms: 0,
            token_floor: 0,
            stage: Stage::Settled,
            members: members.iter().map(member).collect(),
        }
    }

    /// A board of nodes `n1`, …: their process, marker, and the epochs that they know to be chosen and have accepted.
    fn board(nodes: &[(&str, String, Option<&Membership>, Option<&Membership>)]) -> Board {
        let addresses = (1..=nodes.len()).map(|i| format!("n{i}")).collect();
        let mut board = Board::new(addresses, 1000, 5000);
        for (i, (run_id, marker, chosen, accepted)) in nodes.iter().enumerate() {
            let [run_id, role, eviction] = [run_id, "master", "noeviction"].map(str::to_owned);
            let text = |epoch: &Option<&Membership>| epoch.map(ToString::to_string).unwrap_or_default();
            let (marker, chosen, accepted) = (marker.clone(), text(chosen), text(accepted));
            let (error, addresses) = (None, String::new());
            let status =
                Status { node_ms: 0, marker, chosen, accepted, error, looks: 1, class_ms: 0, addresses };
            board.saw(i, Identity { run_id, role, eviction, version: String::new() }, status, Instant::now());
        }
        board
    }

    #[tokio::test(start_paused = true)]
    async fn epochs_that_their_members_forgot_are_neither_counted_again_nor_finished() {
        let newcomer = |run_id: &str| format!("2 doubt {run_id} nonce-of-{run_id} - new");
        // The first one was removed, so that the other was the only member: that was chosen, and forgotten.
        let before = epoch(18, ChosenBy::Majority, &[("one", Role::Voting), ("two", Role::Voting)]);
        let forgotten = epoch(20, ChosenBy::Majority, &[("two", Role::Voting)]);
        let marker = Mark::of(&before, &before.members[0]);
        let lost = board(&[
            ("one", marker, Some(&before), None),
            ("again", "2 doubt again nonce-of-again two lost".to_owned(), None, None),
            ("three", newcomer("three"), None, Some(&forgotten)),
        ]);
        let anew = due(&lost, 1, Instant::now()).expect("they begin anew").value;
        assert_eq!((anew.epoch, anew.by), (21, ChosenBy::All));
        assert_eq!(anew.of_process("again").map(|member| member.joined), Some(21));

        // Where nobody knew of it then.
        let anew = epoch(19, ChosenBy::All, &[("one", Role::Voting), ("again", Role::Voting)]);
        let marker = |i: usize| Mark::of(&anew, &anew.members[i]);
        let known = |accepted| {
            board(&[
                ("one", marker(0), Some(&anew), accepted),
                ("again", marker(1), Some(&anew), None),
                ("three", newcomer("three"), None, Some(&forgotten)),
            ])
        };
        assert!(due(&known(None), 1, Instant::now()).is_none());
        let begun = epoch(20, ChosenBy::Majority, &[("again", Role::Voting)]);
        let step = due(&known(Some(&begun)), 1, Instant::now()).expect("a member began it");
        assert_eq!(step.value, begun);
    }

    #[test]
    fn the_address_of_a_url_has_no_password_and_nothing_that_goes_without_saying() {
        for (url, address) in [
            ("redis://user:secret@10.0.0.1/0", "redis://10.0.0.1:6379"),
            ("redis://10.0.0.1:7000/", "redis://10.0.0.1:7000"),
            ("rediss://:p%40ss@redis-1.example:6380/2", "rediss://redis-1.example:6380/2"),
            ("redis://[::1]", "redis://[::1]:6379"),
            ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock"),
            ("n3", "n3"),
        ] {
            assert_eq!(address_of(url), address);
        }
    }
}
