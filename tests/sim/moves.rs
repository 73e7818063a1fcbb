//! Changes of the members at random moments, by several proposers; nodes that come back with an old copy of their data;
//! markers of a later version.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate::quorum::membership::Change;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::time::{sleep, timeout};

use crate::clients::{Process, Town};

/// Longer than any change takes where nothing is in its way.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes changes until `until_ms`.
pub async fn run(town: Arc<Town>, mut rng: SmallRng, until_ms: u64) {
    while town.world.ms() < until_ms {
        sleep(Duration::from_millis(rng.random_range(50..700))).await;
        // Two at once are at different servers, or wait for each other at one.
        for _ in 0..rng.random_range(1..=2) {
            tokio::spawn(one(Arc::clone(&town), SmallRng::seed_from_u64(rng.random())));
        }
    }
}

/// Whoever closed a member restarts it, also where nobody was told that it is.
pub async fn restart_closed(town: Arc<Town>) {
    loop {
        for node in town.world.closed_nodes() {
            town.world.crash_node(node, true, 1);
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Of each epoch a majority chose one value. (What all chose after a majority lost its memory goes past that.)
pub async fn watch(town: Arc<Town>) {
    let mut chosen: BTreeMap<(String, String), String> = BTreeMap::new();
    while !town.world.is_calm() {
        sleep(Duration::from_millis(10)).await;
        for register in town.world.registers() {
            let value = register.split('|').next().unwrap_or_default();
            let fields: Vec<&str> = value.split(' ').collect();
            let [epoch, _, deployment, "most", ..] = fields.as_slice() else { continue };
            let key = ((*deployment).to_owned(), (*epoch).to_owned());
            let first = chosen.entry(key).or_insert_with(|| value.to_owned());
            if first != value {
                town.checkers.violate(format!("two memberships of epoch {epoch}: {first}; {value}"));
                return;
            }
        }
    }
}

async fn one(town: Arc<Town>, mut rng: SmallRng) {
    let world = &town.world;
    let process = town.process(rng.random_range(0..town.servers()));
    let node = rng.random_range(0..world.nodes());
    if rng.random_range(0..12) == 0 {
        if !world.mark_newer(node, rng.random_range(100..1500)).await {
            town.checkers.violate(format!("the marker of a later version at n{} was written over", node + 1));
        }
        return;
    }
    let members = process.service.engine.members_view().members;
    let Some(member) = members.choose(&mut rng).map(|member| member.id.clone()) else { return };
    let address = format!("n{}", node + 1);
    let change = match rng.random_range(0..10) {
        0..4 => Change::Replace(member.clone(), address),
        4..6 => Change::Add(address),
        6..7 if members.len() > 3 => Change::Remove(member.clone()),
        _ => Change::Close(member.clone()),
    };
    if !made(&town, &process, &change).await {
        return;
    }
    if matches!(change, Change::Close(_))
        && let Some(node) = world.node_of(&member)
    {
        let copy = world.copy_of(node);
        // What has begun ends: a closed member is restarted.
        let keeps_data = world.is_calm() || rng.random_range(0..4) > 0;
        world.crash_node(node, keeps_data, rng.random_range(1..800));
        // Long after it was used.
        sleep(Duration::from_millis(rng.random_range(1000..4000))).await;
        if rng.random_range(0..2) == 0
            && !world.is_calm()
            && let Some(copy) = copy
        {
            world.roll_back(node, &copy, rng.random_range(1..300));
        }
    }
}

/// Has a server make a change; whether it did.
pub async fn made(town: &Town, process: &Process, change: &Change) -> bool {
    let world = &town.world;
    let takes_leases = matches!(change, Change::Replace(..) | Change::Remove(_));
    if takes_leases {
        world.left();
    }
    let made = town.at(process, process.service.engine.change_members(change));
    let made = matches!(timeout(PATIENCE, made).await, Ok(Some(Ok(_))));
    world.note(("MOVE", [process.server as u64, u64::from(takes_leases), u64::from(made)]), || {
        format!("s{} {change}: {}", process.server + 1, if made { "made" } else { "not made" })
    });
    if made && takes_leases {
        world.left();
    }
    made
}
