//! What happens to whole machines: all servers stand still, a node goes back to a snapshot, a server starts after nodes
//! have forgotten leases in a way that only others can tell.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;

use crate::clients::Town;
use crate::deployment::{self, Scene};

/// What a seed decides about machines, and about what differs between servers. It has random numbers of its own.
pub struct Machines {
    rng: SmallRng,
    /// All servers stand still now and then.
    still: bool,
    /// Nodes go back to snapshots.
    pub back: bool,
    /// Servers end and start where nodes forget leases in ways that are not told.
    starts: bool,
    /// The nodes were marked by the version before.
    pub old: bool,
    /// The longest lease by the settings of each server, ms.
    pub max_ttls_ms: Vec<u64>,
}

impl Machines {
    pub fn new(scene: &Scene) -> Self {
        let mut rng = SmallRng::seed_from_u64(scene.plan.seed ^ 0x6d61_6368_696e_6573);
        let (still, back) = (rng.random_range(0..4) == 0, rng.random_range(0..4) == 0);
        let (old, differ) = (rng.random_range(0..16) == 0, rng.random_range(0..4) == 0);
        let untold = scene.bounds.untold;
        let longer = |_| match differ {
            true => scene.max_ttl_ms * rng.random_range(10..=15) / 10,
            false => scene.max_ttl_ms,
        };
        let max_ttls_ms = (0..scene.plan.servers).map(longer).collect();
        Self {
            still: still && scene.exclusive && !untold && !scene.bounds.certain,
            back: back && scene.exclusive && !scene.bounds.certain,
            starts: untold && scene.plan.servers > 1,
            old: old && scene.init,
            max_ttls_ms,
            rng,
        }
    }
}

/// Until `until_ms`.
pub async fn run(town: Arc<Town>, mut machines: Machines, until_ms: u64) {
    let (world, rng) = (&town.world, &mut machines.rng);
    if !(machines.still || machines.back || machines.starts) {
        return;
    }
    loop {
        sleep(Duration::from_millis(rng.random_range(50..900))).await;
        // After the last fault there is none.
        if world.ms() >= until_ms {
            return;
        }
        if machines.still && rng.random_range(0..3) == 0 {
            let for_ms = rng.random_range(50..2500);
            world.note(("still", [for_ms, 0, 0]), || format!("all servers stand still for {for_ms} ms"));
            world.stand_still(for_ms);
            town.checkers.stand_still(Duration::from_millis(for_ms));
        }
        if machines.back {
            world.take_snapshot(rng.random_range(0..world.nodes()));
            if rng.random_range(0..3) > 0 {
                world.go_back(rng.random_range(0..world.nodes()), rng.random_range(0..3) == 0);
            }
        }
        let server = rng.random_range(0..town.servers());
        if machines.starts && rng.random_range(0..2) == 0 && is_dispensable(&town, server) {
            deployment::end_server(&town, server, rng.random(), rng.random_range(1..800));
        }
    }
}

/// Whether another server runs that can tell what nodes forget from now on.
fn is_dispensable(town: &Town, server: usize) -> bool {
    let runs = |server| town.world.is_alive(server) && !town.world.is_paused(server);
    let another = (0..town.servers()).any(|other| other != server && runs(other));
    runs(server) && another && !town.is_booting() && !town.world.is_untold()
}
