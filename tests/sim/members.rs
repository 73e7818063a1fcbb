//! Members that change all the time: several proposers at once, of whom some die half-way, leases that rest on a bare
//! quorum, and members that were closed and come back with all, an old copy, or none of their data.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::embedded::Snapshot;
use quorate::quorum::membership::Change;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use tokio::time::sleep;

use crate::clients::{Process, Town};
use crate::deployment;
use crate::moves;

/// After so long changes are asked for although the step before is not done.
const SETTLING_MS_MAX: u64 = 2500;

/// Makes changes until `until_ms`.
pub async fn run(town: Arc<Town>, mut rng: SmallRng, until_ms: u64) {
    // What each member that was closed stored then.
    let (world, mut copies) = (&town.world, BTreeMap::new());
    while world.ms() < until_ms {
        sleep(Duration::from_millis(rng.random_range(1..100))).await;
        restart_closed(&town, &mut rng, &mut copies);
        let process = town.process(rng.random_range(0..town.servers()));
        settled(&town, &process, until_ms).await;
        match rng.random_range(0..3) {
            0 => race(&town, &mut rng).await,
            1 => {
                leave_out(&town, &mut rng, &process, None).await;
                for _ in 0..2 {
                    any_change(&town, &mut rng, &process, |_| true).await;
                }
            }
            _ => {
                let voting = voting(&town, &process);
                let back = voting.iter().find_map(|node| Some((*node, copies.remove(node)?)));
                let Some((node, copy)) = back else {
                    any_change(&town, &mut rng, &process, |change| matches!(change, Change::Close(_))).await;
                    continue;
                };
                leave_out(&town, &mut rng, &process, Some(node)).await;
                if !world.is_calm() {
                    world.roll_back(node, &copy, rng.random_range(1..10));
                }
            }
        }
    }
}

/// Closed members are restarted, most of them with their data.
fn restart_closed(town: &Town, rng: &mut SmallRng, copies: &mut BTreeMap<usize, Arc<Snapshot>>) {
    for node in town.world.closed_nodes() {
        copies.extend(town.world.copy_of(node).map(|copy| (node, copy)));
        town.world.crash_node(node, rng.random_range(0..4) > 0, rng.random_range(1..50));
    }
}

/// Members that vote, as this server knows.
fn voting(town: &Town, process: &Process) -> Vec<usize> {
    let members = process.service.engine.members_view().members;
    let voting = members.iter().filter(|member| member.state == "voting");
    voting.filter_map(|member| town.world.node_of(&member.id)).collect()
}

/// Resolves once this server would begin another change.
async fn settled(town: &Town, process: &Process, until_ms: u64) {
    let until_ms = until_ms.min(town.world.ms() + SETTLING_MS_MAX);
    let is_changing = || process.service.engine.members_view().changing.is_some();
    while town.world.ms() < until_ms && !town.world.is_dead(process.server, process.life) && is_changing() {
        sleep(Duration::from_millis(10)).await;
    }
}

/// For a moment no server reaches fewer than half of the members, but always this one: leases that are granted then rest on
/// the others.
async fn leave_out(town: &Town, rng: &mut SmallRng, process: &Process, but: Option<usize>) {
    let (world, for_ms) = (&town.world, rng.random_range(10..100));
    let mut members = voting(town, process);
    let fewer = members.len().saturating_sub(1) / 2;
    members.shuffle(rng);
    let left_out: Vec<_> = members.into_iter().filter(|node| Some(*node) != but).take(fewer).collect();
    for way in world.ways().into_iter().filter(|way| left_out.contains(&way.node)) {
        world.block(way, true, true, for_ms);
    }
    sleep(Duration::from_millis(for_ms + rng.random_range(0..50))).await;
}

/// Two servers ask for a change each, one moments after the other; one of them may die meanwhile, when some of its messages
/// have come to their nodes.
async fn race(town: &Arc<Town>, rng: &mut SmallRng) {
    let world = &town.world;
    let first = rng.random_range(0..town.servers());
    let second = (first + rng.random_range(1..town.servers())) % town.servers();
    let [one, other] = [first, second].map(|server| town.process(server));
    let [mut its_own, mut others] = [(); 2].map(|()| SmallRng::seed_from_u64(rng.random()));
    let (later_ms, dies, in_ms) =
        (rng.random_range(0..15), rng.random_range(0..2) == 0, rng.random_range(5..40));
    let asks_later = async {
        sleep(Duration::from_millis(later_ms)).await;
        any_change(town, &mut others, &other, |_| true).await;
    };
    let dying = async {
        sleep(Duration::from_millis(in_ms)).await;
        if dies && !world.is_dead(first, one.life) {
            for way in world.ways().into_iter().filter(|way| way.server == first) {
                if rng.random_range(0..2) == 0 {
                    world.block(way, true, true, 100);
                }
            }
            sleep(Duration::from_millis(10)).await;
            if !world.is_calm() {
                deployment::end_server(town, first, rng.random(), rng.random_range(50..400));
            }
        }
    };
    tokio::join!(any_change(town, &mut its_own, &one, |_| true), asks_later, dying);
}

/// Makes one of the changes of this kind that may be made now.
async fn any_change(town: &Town, rng: &mut SmallRng, process: &Process, is_wanted: fn(&Change) -> bool) {
    let world = &town.world;
    let members = process.service.engine.members_view().members;
    let nodes: Vec<_> = members.iter().map(|member| world.node_of(&member.id)).collect();
    let out = (0..world.nodes()).filter(|node| !nodes.contains(&Some(*node)));
    let addresses: Vec<_> = out.map(|node| format!("n{}", node + 1)).collect();
    let total = members.len();
    let voting = members.iter().filter(|member| member.state == "voting").count();
    let mut changes = Vec::new();
    for member in &members {
        let left = voting - usize::from(member.state == "voting");
        if left > total / 2 {
            changes.push(Change::Close(member.id.clone()));
            changes.extend(addresses.choose(rng).map(|to| Change::Replace(member.id.clone(), to.clone())));
        }
        if left > (total - 1) / 2 {
            changes.push(Change::Remove(member.id.clone()));
        }
        // As often as one is removed.
        changes.extend(addresses.choose(rng).map(|to| Change::Add(to.clone())));
    }
    changes.retain(is_wanted);
    changes.shuffle(rng);
    for change in changes.iter().take(2) {
        if moves::made(town, process, change).await {
            return;
        }
    }
}
