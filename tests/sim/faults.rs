//! What goes wrong, when, and for how long: drawn from the seed.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use tokio::time::sleep;

use crate::clients::Town;
use crate::deployment;
use crate::world::Weather;

/// How bad it may get.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// How long a stop, a partition, a pause lasts at most, ms.
    pub outage_ms_max: u64,
    /// How far a node's clock may step ahead, ms: not at all, or by as much as anybody who looks must see.
    /// Leases expire early by that much.
    pub step_ahead_ms: (i64, i64),
    /// How far it may step back, ms. Leases live longer by that much.
    pub step_back_ms_max: i64,
    /// How far an API server's clock may be behind and ahead, ms.
    pub skew_ms: (i64, i64),
    /// Nodes lose leases in ways that nobody can tell who did not look meanwhile: no server starts before another one has
    /// written that to the node.
    pub untold: bool,
    /// No fault makes a node doubtful: none restarts, loses data or steps its clock.
    pub certain: bool,
}

impl Bounds {
    /// How far a node's clock steps, ms.
    fn step(&self, rng: &mut SmallRng) -> i64 {
        let (least, most) = self.step_ahead_ms;
        match rng.random_range(-self.step_back_ms_max..=most - least) {
            back if back < 0 => back,
            ahead => ahead + least,
        }
    }

    /// How wrong the clock of an API server is from now on, ms.
    pub fn skew(&self, rng: &mut SmallRng) -> i64 {
        let (behind, ahead) = self.skew_ms;
        rng.random_range(-behind..=ahead)
    }
}

/// A node is a replica for a while, or may evict, and loses leases by that. Only those who look at it
/// meanwhile can know, so it loses them once every server has, since the node voted last.
async fn unfit(town: &Town, node: usize, replica: bool, for_ms: u64) {
    let world = &town.world;
    // A server that has no trouble with a node looks at it once a second.
    let (least_ms, until_ms) = (world.ms() + for_ms / 4, world.ms() + for_ms + 2000);
    // One that refuses it looks that often, and then may time out twice.
    let look_ms = 200 + 2 * town.node_timeout_ms;
    world.make_unfit(node, replica);
    let (mut all_know_since, mut all_know) = (None, false);
    while !world.is_calm() && world.ms() < until_ms && !(all_know && world.ms() >= least_ms) {
        sleep(Duration::from_millis(20)).await;
        let since_ms = *all_know_since.get_or_insert_with(|| world.ms());
        if !town.all_refuse(node) || world.voted_ms(node) >= since_ms {
            all_know_since = None;
        }
        all_know = all_know_since.is_some_and(|since| since + look_ms <= world.ms());
    }
    world.make_fit(node, all_know && !world.is_calm());
}

/// Makes `count` faults until `until_ms`; says how many it made.
pub async fn run(town: Arc<Town>, mut rng: SmallRng, bounds: Bounds, count: u32, until_ms: u64) -> u32 {
    let pause = until_ms / u64::from(count + 1);
    let mut made = 0;
    for _ in 0..count {
        sleep(Duration::from_millis(rng.random_range(0..=2 * pause))).await;
        if town.world.ms() >= until_ms {
            break;
        }
        one(&town, &mut rng, bounds).await;
        made += 1;
    }
    made
}

async fn one(town: &Arc<Town>, rng: &mut SmallRng, bounds: Bounds) {
    let world = &town.world;
    let ways = world.ways();
    let Some(&way) = ways.choose(rng) else { return };
    let node = way.node;
    let outage_ms = rng.random_range(1..=bounds.outage_ms_max);
    let kind = rng.random_range(0..100);
    world.note(("FAULT", [kind, node as u64, outage_ms]), || {
        format!("kind {kind} s{}→n{} {outage_ms} ms", way.server + 1, node + 1)
    });
    match kind {
        0..14 => {
            let weather = Weather {
                requests_lost: rng.random_range(0..60),
                replies_lost: rng.random_range(0..60),
                doubled: rng.random_range(0..30),
                resent: rng.random_range(0..30),
                slow_ms: rng.random_range(1..60),
                stragglers: rng.random_range(0..20),
            };
            // One way, one server's, or one node's.
            let scope = rng.random_range(0..3);
            for other in ways {
                let hit = match scope {
                    0 => other == way,
                    1 => other.server == way.server,
                    _ => other.node == way.node,
                };
                if hit {
                    world.set_weather(other, weather, outage_ms);
                }
            }
        }
        14..26 => {
            let (requests, replies) = [(true, true), (true, false), (false, true)][rng.random_range(0..3)];
            let scope = rng.random_range(0..3);
            for other in ways {
                let hit = match scope {
                    0 => other == way,
                    1 => other.server == way.server && rng.random_range(0..2) == 0,
                    _ => other.node == way.node,
                };
                if hit {
                    world.block(other, requests, replies, outage_ms);
                }
            }
        }
        26..44 if bounds.certain => world.stop_node(node, outage_ms),
        26..34 => {
            world.crash_node(node, false, outage_ms);
        }
        34..40 => {
            world.crash_node(node, true, outage_ms);
        }
        40..44 => world.flush_node(node),
        44..56 => {
            world.stop_node(node, outage_ms);
            if rng.random_range(0..3) == 0 {
                world.stop_node(rng.random_range(0..world.nodes()), outage_ms);
            }
        }
        56..66 => world.cut(way, rng.random_range(0..=bounds.outage_ms_max)),
        // Whoever begins to look now could not tell.
        66..72 | 75..79 if bounds.untold && (town.is_booting() || !world.is_known(node)) => {}
        66..72 if bounds.certain => {}
        66..72 | 75..79 if kind < 72 || bounds.untold => {
            if bounds.untold && rng.random_range(0..2) == 0 {
                // Calls that are under way meet another time.
                world.stop_node(node, outage_ms);
            }
            world.step_node_clock(node, bounds.step(rng));
        }
        72..75 => world.fill_memory(node, outage_ms),
        79..83 | 90..100 if bounds.untold => {
            let (town, replica) = (Arc::clone(town), rng.random_range(0..2) == 0);
            tokio::spawn(async move { unfit(&town, node, replica, outage_ms).await });
        }
        75..83 => {
            let everywhere = rng.random_range(0..2) == 0;
            for other in ways {
                if other.server == way.server && (everywhere || other == way) {
                    world.cut_hints(other, outage_ms);
                }
            }
        }
        83..90 => world.pause_server(way.server, outage_ms),
        90..95 if world.is_untold() => {}
        90..95 => {
            world.crash_server(way.server);
            let town = Arc::clone(town);
            let (skew, seed) = (bounds.skew(rng), rng.random());
            tokio::spawn(async move {
                sleep(Duration::from_millis(outage_ms)).await;
                // Unless the end of all faults was first.
                if !town.world.is_alive(way.server) {
                    deployment::boot(&town, way.server, seed, skew).await;
                }
            });
        }
        _ => {
            let skew = bounds.skew(rng);
            town.set_skew_ms(way.server, skew);
        }
    }
}
