//! One seed: a deployment, its clients, its faults, its end, and the verdict.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use quorate::clock::{Clock, SeededClock};
use quorate::quorum::{Engine, EngineOptions};
use quorate::service::{AcquireOptions, Note, Service, ServiceError, Target, WaitLimits};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;

use crate::checkers::{Checkers, Counts};
use crate::clients::{self, Client, Names, Process, Town};
use crate::faults::{self, Bounds};
use crate::machines::{self, Machines};
use crate::members;
use crate::moves;
use crate::queues;
use crate::world::{Plan, START_US, World};

/// How long after its time a request is answered at most: the nodes have so many time-outs for its last rounds, and
/// these are repeated for two seconds while the membership changes.
const LATE_TIMEOUTS: u64 = 4;
const LATE_MS: u64 = 2200;
/// Longer than all that is waited for after the faults.
const END_MAX: Duration = Duration::from_secs(600);

/// What came of a seed.
pub struct Outcome {
    pub faults: u32,
    pub counts: Counts,
    pub hash: u64,
    pub events: u64,
    pub scripts: u64,
    pub virtual_ms: u64,
    pub violations: Vec<String>,
}

/// What a seed is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Anything that may be.
    Any,
    /// Shared, exclusive and several locks at once, at two servers over five nodes whose clocks keep to the assumptions.
    Locks,
    /// Members that change all the time, and locks beside it; nodes and the ways to them fail only as that asks for.
    Members,
}

/// What is decided about a seed besides its [`Plan`].
pub struct Scene {
    pub plan: Plan,
    pub bounds: Bounds,
    /// Clocks keep to the assumptions of docs/guarantees.md.
    pub exclusive: bool,
    pub max_ttl_ms: u64,
    clock_bound_ms: u64,
    clients: usize,
    faults: u32,
    faults_ms: u64,
    locks: usize,
    limit: u32,
    rough: bool,
    pub init: bool,
    forces: bool,
    /// Nodes that are no members at first, in a deployment whose members change; none where they do not.
    others: usize,
}

impl Scene {
    fn new(kind: Kind, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        if kind == Kind::Members {
            return Self::of_members(seed, &mut rng);
        }
        let only_locks = kind == Kind::Locks;
        // Of ten seeds, two break the assumptions: then fencing alone must hold.
        let exclusive = rng.random_range(0..10) < 8 || only_locks;
        let max_ttl_ms = rng.random_range(500..=3000);
        let nodes = match rng.random_range(0..20) {
            0..2 => 1,
            2..11 => 3,
            11..17 => 5,
            17..18 => 2,
            _ => 4,
        };
        // Of the others one in four has servers' clocks that are as wrong as can be, and nodes' that are right.
        let lost_in_time = exclusive && rng.random_range(0..4) == 0;
        let servers = rng.random_range(1..=3);
        let (nodes, servers) = if only_locks { (5, 2) } else { (nodes, servers) };
        let plan = Plan {
            seed,
            nodes,
            servers,
            node_timeout_ms: rng.random_range(30..=300),
            rate_ppm_max: if exclusive { 4000 } else { 100_000 },
            node_offset_ms_max: if lost_in_time { 0 } else { 10_000 },
        };
        let bounds = Bounds {
            outage_ms_max: rng.random_range(300..=2500),
            step_ahead_ms: (0, if exclusive { 0 } else { 20_000 }),
            step_back_ms_max: match exclusive {
                true if lost_in_time => 0,
                true => 1500,
                false => 20_000,
            },
            // However long a node waits that forgot the tokens of a server whose clock is ahead, it may meet one whose
            // clock is far behind.
            skew_ms: match (max_ttl_ms / 2) as i64 {
                half if lost_in_time => (3_600_000, half),
                _ if exclusive => (3_600_000, 20_000),
                half => (half, half),
            },
            untold: false,
            certain: false,
        };
        let mut scene = Self {
            plan,
            bounds,
            exclusive,
            max_ttl_ms,
            clock_bound_ms: if lost_in_time { max_ttl_ms * 2 / 5 } else { 60_000 },
            clients: rng.random_range(3..=6),
            faults: rng.random_range(12..=20),
            faults_ms: rng.random_range(2500..=5000),
            locks: rng.random_range(1..=2) + usize::from(only_locks),
            limit: rng.random_range(1..=3),
            rough: rng.random_range(0..2) == 0,
            init: rng.random_range(0..10) < 9,
            forces: rng.random_range(0..4) == 0,
            others: 0,
        };
        if exclusive && !lost_in_time && rng.random_range(0..3) == 0 {
            scene.bounds.untold = true;
            // Also where the answer took as long as it may.
            scene.bounds.step_ahead_ms = (2 * scene.plan.node_timeout_ms as i64 + 200, 10_000);
            // One who has not looked in between does not see that a clock stepped there and back.
            scene.bounds.step_back_ms_max = 0;
        } else if exclusive
            && !only_locks
            && !lost_in_time
            && scene.plan.nodes >= 3
            && rng.random_range(0..2) == 0
        {
            scene.others = rng.random_range(1..=2);
        }
        // Where nodes forget tokens, those that follow begin ahead of a quorum of the nodes' clocks, and one that is behind by
        // more than the quarantine takes none of them for as long.
        let may_be_certain = exclusive && !lost_in_time && !scene.bounds.untold && scene.others == 0;
        scene.bounds.certain = may_be_certain && scene.init && seed.is_multiple_of(2);
        if scene.bounds.certain {
            scene.bounds.step_back_ms_max = 0;
        } else if exclusive {
            scene.plan.node_offset_ms_max = scene.plan.node_offset_ms_max.min(200);
        }
        scene
    }

    /// Steps follow each other as soon as leases of such short lives are over.
    fn of_members(seed: u64, rng: &mut SmallRng) -> Self {
        let plan = Plan {
            seed,
            nodes: rng.random_range(3..=4),
            servers: 2,
            node_timeout_ms: rng.random_range(25..=60),
            rate_ppm_max: 4000,
            node_offset_ms_max: 20,
        };
        let bounds = Bounds {
            outage_ms_max: 0,
            step_ahead_ms: (0, 0),
            step_back_ms_max: 0,
            skew_ms: (20, 20),
            untold: false,
            certain: true,
        };
        Self {
            plan,
            bounds,
            exclusive: true,
            max_ttl_ms: rng.random_range(200..=600),
            clock_bound_ms: 60_000,
            clients: 4,
            faults: 0,
            faults_ms: 5_000,
            locks: 3,
            limit: 1,
            rough: false,
            init: true,
            forces: false,
            others: 2,
        }
    }

    /// The nodes that a server lists, one bit each: all, or all but one.
    fn list(&self, rng: &mut SmallRng) -> u64 {
        let total = self.plan.nodes;
        let all = (1 << total) - 1;
        if self.others > 0 && !self.bounds.certain && rng.random_range(0..4) == 0 {
            all & !(1 << rng.random_range(0..total))
        } else {
            all
        }
    }
}

/// Starts an API server, and again where it refuses to start, as whoever watches over it would: it may
/// have looked at the nodes just while they were marked anew. Not before what other servers know is written to the nodes.
pub async fn boot(town: &Arc<Town>, server: usize, seed: u64, skew_ms: i64) {
    while town.world.is_untold() {
        sleep(Duration::from_millis(20)).await;
    }
    if town.world.is_alive(server) {
        return;
    }
    town.booting.fetch_add(1, Ordering::Relaxed);
    start(town, server, seed, skew_ms).await;
    town.booting.fetch_sub(1, Ordering::Relaxed);
}

/// Ends an API server, which starts again some time later.
pub fn end_server(town: &Arc<Town>, server: usize, seed: u64, down_ms: u64) {
    town.world.crash_server(server);
    let town = Arc::clone(town);
    tokio::spawn(async move {
        sleep(Duration::from_millis(down_ms)).await;
        boot(&town, server, seed, 0).await;
    });
}

async fn start(town: &Arc<Town>, server: usize, mut seed: u64, skew_ms: i64) {
    while !has_started(town, server, seed, skew_ms).await {
        town.world.crash_server(server);
        sleep(Duration::from_millis(100)).await;
        if town.world.is_alive(server) {
            return;
        }
        seed = seed.wrapping_add(1);
    }
}

/// Starts a process of an API server; whether it has not ended at once.
async fn has_started(town: &Arc<Town>, server: usize, seed: u64, skew_ms: i64) -> bool {
    let clock = Arc::new(SeededClock::new(seed, START_US + town.world.ms() * 1000));
    clock.set_skew_us(skew_ms * 1000);
    let options = EngineOptions {
        max_ttl_ms: town.max_ttls_ms[server],
        clock_bound_ms: town.clock_bound_ms,
        ..EngineOptions::default()
    };
    let (life, nodes) = town.world.boot(server, town.lists[server].load(Ordering::Relaxed));
    let engine = Engine::new(nodes, Arc::clone(&clock) as Arc<dyn Clock>, options);
    let limits = WaitLimits { waiters_max: 1000, waiters_per_name_max: 100 };
    let service = Service::new(engine, limits);
    town.arrive(Process { service: service.clone(), server, life }, clock);
    let started = service.engine.ready_at_start().await.is_ok();
    if started {
        service.engine.start();
    }
    started || town.world.is_dead(server, life)
}

thread_local! {
    /// The first panic of any task of the seed that this thread runs.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A task that panics dies alone. What breaks because of it is not to be taken for the cause.
fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANIC.with_borrow_mut(|first| {
                first.get_or_insert_with(|| info.to_string());
            });
            before(info);
        }));
    });
}

/// Runs one seed.
pub fn run(kind: Kind, seed: u64, printed: bool) -> Outcome {
    remember_panics();
    PANIC.take();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let mut outcome = runtime.block_on(play(kind, seed, printed));
    drop(runtime);
    if let Some(panic) = PANIC.take() {
        outcome.violations.insert(0, panic);
    }
    outcome
}

async fn play(kind: Kind, seed: u64, printed: bool) -> Outcome {
    let mut scene = Scene::new(kind, seed);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x706c_6179);
    let members: u64 = (1 << scene.plan.nodes) - 1;
    let machines = Machines::new(&scene);
    if machines.back {
        scene.faults_ms += 3000;
    }
    scene.plan.nodes += scene.others;
    // The first one lists all, so that somebody can bring back any member.
    let lists = (0..scene.plan.servers).map(|server| match server {
        0 => members,
        _ => scene.list(&mut rng),
    });
    let lists = lists.collect::<Vec<_>>().into_iter().map(AtomicU64::new).collect();
    let world = World::new(&scene.plan, printed);
    let names = Names::new(scene.locks, scene.limit);
    let checkers = Checkers::new(Arc::clone(&world), names.resources(), scene.exclusive);
    let town = Arc::new(Town {
        world: Arc::clone(&world),
        checkers: Arc::clone(&checkers),
        names,
        processes: Mutex::default(),
        clocks: Mutex::default(),
        max_ttl_ms: scene.max_ttl_ms,
        max_ttls_ms: machines.max_ttls_ms.clone(),
        node_timeout_ms: scene.plan.node_timeout_ms,
        clock_bound_ms: scene.clock_bound_ms,
        lists,
        rough: scene.rough,
        forces: scene.forces,
        kind,
        late_ms_max: LATE_TIMEOUTS * scene.plan.node_timeout_ms + LATE_MS,
        until_ms: AtomicU64::new(u64::MAX),
        booting: AtomicUsize::new(0),
    });
    tokio::spawn(Arc::clone(&world).run());

    if machines.old {
        world.mark_old(members.count_ones() as usize, scene.max_ttl_ms);
    }
    let longest_ms = machines.max_ttls_ms.iter().copied().max().unwrap_or(scene.max_ttl_ms);
    let quarantine_ms = longest_ms + longest_ms / 100 + 2;
    for server in 0..scene.plan.servers {
        let skew = scene.bounds.skew(&mut rng);
        boot(&town, server, rng.random(), skew).await;
        if server == 0 && scene.init {
            let engine = town.process(0).service.engine;
            let mut marked = engine.initialize().await;
            for _ in 0..5 {
                // As an operator would, where a node was too slow.
                if marked.is_err() {
                    marked = engine.initialize().await;
                }
            }
            marked.expect("new nodes can be marked");
        }
        if server == 0 && scene.others > 0 {
            town.process(0).service.engine.until_available().await;
            world.crash_server(0);
            town.lists[0].store((1 << scene.plan.nodes) - 1, Ordering::Relaxed);
            boot(&town, 0, rng.random(), 0).await;
        }
    }
    let ready = async {
        for server in 0..scene.plan.servers {
            town.process(server).service.engine.until_available().await;
        }
    };
    if tokio::time::timeout(Duration::from_millis(quarantine_ms + 2000), ready).await.is_err() {
        checkers.violate("a new deployment does not become available".to_owned());
    }

    let until_ms = world.ms() + scene.faults_ms;
    town.until_ms.store(until_ms, Ordering::Relaxed);
    let clients: Vec<_> = (0..scene.clients)
        .map(|id| {
            let rng = SmallRng::seed_from_u64(rng.random());
            tokio::spawn(Client { town: Arc::clone(&town), id, home: id, rng, requests: 0 }.live())
        })
        .collect();
    if scene.others > 0 {
        let rng = SmallRng::seed_from_u64(rng.random());
        if kind == Kind::Members {
            tokio::spawn(members::run(Arc::clone(&town), rng, until_ms));
        } else {
            tokio::spawn(moves::run(Arc::clone(&town), rng, until_ms));
        }
        tokio::spawn(moves::watch(Arc::clone(&town)));
    }
    tokio::spawn(machines::run(Arc::clone(&town), machines, until_ms));
    let bad = SmallRng::seed_from_u64(rng.random());
    let made = faults::run(Arc::clone(&town), bad, scene.bounds, scene.faults, until_ms).await;
    let left = until_ms.saturating_sub(world.ms());
    sleep(Duration::from_millis(left)).await;
    world.note(("CALM", [0; 3]), || "no more faults".to_owned());
    world.calm();
    town.set_clocks_right();
    if scene.others > 0 {
        tokio::spawn(moves::restart_closed(Arc::clone(&town)));
    }
    let calm_at_ms = world.ms();
    for server in 0..scene.plan.servers {
        if !world.is_alive(server) {
            boot(&town, server, rng.random(), 0).await;
        }
    }
    for client in clients {
        match tokio::time::timeout(Duration::from_secs(60), client).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => checkers.violate(format!("a client died: {why}")),
            Err(_) => checkers.violate("a call never returns".to_owned()),
        }
    }
    let last = end(&town, &scene, &mut rng, quarantine_ms, calm_at_ms);
    if tokio::time::timeout(END_MAX, last).await.is_err() {
        checkers.violate("a call after the faults never returns".to_owned());
    }

    let (faults, virtual_ms, scripts) = (made, world.ms(), world.runs());
    let (hash, events) = {
        let inner = world.lock();
        (inner.history.hash(), inner.history.count)
    };
    world.close();
    let state = checkers.lock();
    let counts = state.counts;
    let violations = state.violations.clone();
    Outcome {
        faults: faults + counts.cancelled as u32,
        counts,
        hash,
        events,
        scripts,
        virtual_ms,
        violations,
    }
}

/// After the faults: debts are paid, nothing released is held, every name can be taken again.
async fn end(town: &Arc<Town>, scene: &Scene, rng: &mut SmallRng, quarantine_ms: u64, calm_at_ms: u64) {
    let (world, checkers) = (&town.world, &town.checkers);
    let servers = scene.plan.servers;
    let debts = || (0..servers).map(|server| town.process(server).service.engine.debts()).sum::<usize>();
    // The rest is for noticing: a look at a node that is not well every 200 ms, connections made
    // within 250 ms, a timeout or two.
    let waits = if scene.others > 0 { 3 } else { 1 };
    let patience_ms =
        waits * quarantine_ms.max(scene.max_ttl_ms) + waits * 1500 + world.lock().stepped_back_ms;
    // A client may have waited beyond the faults and have left just now, unnoticed for a while:
    // what it is granted still lives for its ttl.
    let left_at_ms = world.ms() + clients::UNNOTICED_MS_MAX;
    // Clocks that are behind have to come to what the others have granted.
    let are_clocks_right = scene.exclusive && world.lock().stepped_back_ms == 0;
    let deadline =
        calm_at_ms.max(left_at_ms) + patience_ms + if scene.exclusive { 0 } else { clients::BEHIND_MS_MAX };
    // Until what is on its way now has an answer or has timed out, and has been sent again.
    sleep(Duration::from_millis(3 * scene.plan.node_timeout_ms + 500)).await;
    while debts() > 0 && world.ms() < deadline {
        sleep(Duration::from_millis(100)).await;
    }
    if debts() > 0 {
        let nodes: Vec<_> = (0..servers)
            .flat_map(|server| town.process(server).service.engine.nodes())
            .map(|node| (node.state, node.reason))
            .collect();
        checkers.violate(format!(
            "{} debts are not paid {patience_ms} ms after the last fault: {nodes:?}",
            debts()
        ));
    }
    let rest = |more_ms: u64| Duration::from_millis((deadline + more_ms).saturating_sub(world.ms()));
    for server in 0..servers {
        let engine = town.process(server).service.engine;
        if tokio::time::timeout(rest(0), engine.until_available()).await.is_err() {
            let nodes = engine.nodes();
            let nodes: Vec<_> =
                nodes.iter().map(|node| (node.state, &node.reason, node.voting_in_ms)).collect();
            checkers.violate(format!("s{} has no quorum although all nodes are well: {nodes:?}", server + 1));
            return;
        }
    }
    let names = &town.names;
    let mut targets: Vec<Target> = names.locks.iter().cloned().map(Target::Lock).collect();
    targets.push(Target::Election(names.election.clone()));
    targets.push(Target::Semaphore {
        name: names.semaphore.clone(),
        limit: names.limit,
        permits: names.limit,
    });
    for target in targets {
        let process = town.process(rng.random_range(0..servers));
        // What clients left to expire by itself is gone by then.
        let wait_ms = rest(500).as_millis() as u64;
        // What is released is free at once.
        let note = Note { lock_delay_ms: Some(60_000), ..Note::default() };
        let options = AcquireOptions { ttl_ms: 500, wait_ms, note, request: None };
        let began = checkers.begin();
        let mut answer = process.service.acquire(&target, &options).await;
        while matches!(answer, Err(ServiceError::QuorumUnavailable { .. }))
            && !are_clocks_right
            && world.ms() < deadline
        {
            sleep(Duration::from_millis(100)).await;
            answer = process.service.acquire(&target, &options).await;
        }
        match answer {
            Ok(granted) => {
                let lease = granted.deliver();
                let resources = names.of(&target, &lease.slots);
                let index = checkers.granted(&began, 99, lease.handle, &resources, lease.note.mode);
                checkers.told(index, lease.valid_until);
                checkers.give_up(index);
                match process.service.release(&target.held(), lease.handle).await {
                    Ok(true) => {
                        checkers.released(index);
                        let again = AcquireOptions { wait_ms: 5_000, note: Note::default(), ..options };
                        match process.service.acquire(&target, &again).await {
                            // Undone as it is dropped.
                            Ok(again) => drop(again),
                            Err(why) => checkers
                                .violate(format!("{target:?} was released, and cannot be taken: {why:?}")),
                        }
                    }
                    other => checkers.violate(format!("a release of {target:?} in calm said {other:?}")),
                }
            }
            Err(why) => {
                checkers.violate(format!("{target:?} cannot be taken again after the faults: {why:?}"))
            }
        }
    }
    // Where members still change, a round may have to be repeated.
    if servers > 1 && scene.others == 0 && are_clocks_right {
        queues::check(town).await;
    }
    // Also in fair weather an answer may take longer than the shortest timeout.
    sleep(Duration::from_millis(3 * scene.plan.node_timeout_ms + 500)).await;
    if debts() > 0 {
        checkers.violate(format!("{} debts in calm", debts()));
    }
    for server in 0..servers {
        let engine = town.process(server).service.engine;
        // Between two probes, if not at once.
        let mut looks = 0;
        while !engine.is_settled() && looks < 1000 {
            sleep(Duration::from_millis(1)).await;
            looks += 1;
        }
        if !engine.is_settled() {
            checkers.violate(format!("s{} waits for answers that never come", server + 1));
        }
    }
    // A node that left the members, for good or for a while, is told nothing more.
    let left_behind = if scene.others > 0 { Vec::new() } else { world.unsettled() };
    for (node, lease, at_ms) in left_behind {
        let known = {
            let state = checkers.lock();
            state.lease(&lease).map(|lease| (lease.released.is_some(), lease.handle.token.get()))
        };
        let what = match known {
            Some((true, token)) => format!("of token {token} that was released"),
            None => "that nobody was told of".to_owned(),
            _ => continue,
        };
        let (lease, node) = (&lease[..6], node + 1);
        checkers.violate(format!("a lease {what} ({lease}) was left behind on n{node} at {at_ms} ms"));
    }
}
