//! Clients: they take, hold, extend, release, wait, die, sleep too long and come back.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use quorate::clock::{Clock as _, SeededClock};
use quorate::domain::{Candidate, LeaseHandle, Mode, Name, RequestId, Value};
use quorate::service;
use quorate::service::hold::HoldEvent;
use quorate::service::{AcquireOptions, Granted, Held, Lease, Note, Service, ServiceError, Target};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use crate::checkers::{Began, Checkers, Resource};
use crate::deployment::Kind;
use crate::world::{START_US, World};

/// How long a server may not see that a client has left, ms.
pub const UNNOTICED_MS_MAX: u64 = 1500;
/// By how much clocks may be behind others where these break the assumptions, ms.
pub const BEHIND_MS_MAX: u64 = 100_000;

/// One life of an API server.
#[derive(Clone)]
pub struct Process {
    pub service: Service,
    pub server: usize,
    pub life: u32,
}

/// What a seed's clients contend for.
pub struct Names {
    pub locks: Vec<Name>,
    pub semaphore: Name,
    pub limit: u32,
    pub election: Name,
}

impl Names {
    pub fn new(locks: usize, limit: u32) -> Self {
        let name = |text: &str| Name::new(text).expect("a name");
        Self {
            locks: (0..locks).map(|i| name(&format!("lock-{i}"))).collect(),
            semaphore: name("permits"),
            limit,
            election: name("leader"),
        }
    }

    pub fn resources(&self) -> usize {
        self.locks.len() + 1 + self.limit as usize
    }

    pub fn election_resource(&self) -> Resource {
        self.locks.len()
    }

    pub fn slot(&self, slot: u32) -> Resource {
        self.locks.len() + 1 + slot as usize
    }

    fn lock(&self, name: &Name) -> Resource {
        self.locks.iter().position(|lock| lock == name).unwrap_or(0)
    }

    /// What a lease covers.
    pub fn of(&self, target: &Target, slots: &[u32]) -> Vec<Resource> {
        match target {
            Target::Lock(name) => vec![self.lock(name)],
            Target::Multilock(names) => names.iter().map(|name| self.lock(name)).collect(),
            Target::Semaphore { .. } => slots.iter().map(|&slot| self.slot(slot)).collect(),
            Target::Election(_) => vec![self.election_resource()],
        }
    }
}

/// All that clients share.
pub struct Town {
    pub world: Arc<World>,
    pub checkers: Arc<Checkers>,
    pub names: Names,
    pub processes: Mutex<Vec<Process>>,
    pub clocks: Mutex<Vec<Arc<SeededClock>>>,
    pub max_ttl_ms: u64,
    /// The longest lease by the settings of each server, ms; clients ask for none beyond `max_ttl_ms`.
    pub max_ttls_ms: Vec<u64>,
    pub node_timeout_ms: u64,
    /// How far a token may be ahead of a node's clock, ms.
    pub clock_bound_ms: u64,
    /// The nodes that each server lists, one bit each.
    pub lists: Vec<AtomicU64>,
    /// Answers and requests of clients may get lost; the server may not notice that they left.
    pub rough: bool,
    /// Somebody takes locks away from their holders.
    pub forces: bool,
    /// What clients ask for.
    pub kind: Kind,
    /// How long after its time a request may be answered, ms.
    pub late_ms_max: u64,
    /// When clients stop to begin anything, ms.
    pub until_ms: AtomicU64,
    /// Servers that are about to start.
    pub booting: AtomicUsize,
}

impl Town {
    pub fn process(&self, server: usize) -> Process {
        self.processes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[server].clone()
    }

    /// A new process is there.
    pub fn arrive(&self, process: Process, clock: Arc<SeededClock>) {
        let mut processes = self.processes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut clocks = self.clocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let server = process.server;
        if server < processes.len() {
            processes[server] = process;
            clocks[server] = clock;
        } else {
            processes.push(process);
            clocks.push(clock);
        }
    }

    /// Sets how wrong the clock of a server is.
    pub fn set_skew_ms(&self, server: usize, skew_ms: i64) {
        let clocks = self.clocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        clocks[server].set_skew_us(skew_ms * 1000);
    }

    /// Sets the servers' clocks right from which nodes might take no token: nothing else ends that.
    pub fn set_clocks_right(&self) {
        let latest_us = START_US + (self.world.ms() + self.clock_bound_ms / 2) * 1000;
        let clocks = self.clocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        clocks.iter().filter(|clock| clock.wall_us() > latest_us).for_each(|clock| clock.set_skew_us(0));
    }

    /// Whether a server is about to start.
    pub fn is_booting(&self) -> bool {
        self.booting.load(Ordering::Relaxed) > 0
    }

    pub fn servers(&self) -> usize {
        self.processes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).len()
    }

    /// Whether every server knows that a node must not vote as it is, and goes on looking.
    pub fn all_refuse(&self, node: usize) -> bool {
        let processes = self.processes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        processes.iter().all(|process| {
            let state = process.service.engine.nodes()[node].state;
            state == "refused" && !self.world.is_paused(process.server)
        })
    }

    /// Runs a call at a server: `None` where the server dies before it has answered.
    pub async fn at<T>(&self, process: &Process, call: impl Future<Output = T>) -> Option<T> {
        let mut call = pin!(call);
        let died = async {
            loop {
                let changed = self.world.servers_changed.notified();
                if self.world.is_dead(process.server, process.life) {
                    return;
                }
                changed.await;
            }
        };
        let answer = tokio::select! {
            biased;
            () = died => return None,
            answer = &mut call => answer,
        };
        loop {
            let changed = self.world.servers_changed.notified();
            if self.world.is_dead(process.server, process.life) {
                return None;
            }
            if !self.world.is_paused(process.server) {
                return Some(answer);
            }
            changed.await;
        }
    }
}

/// One client.
pub struct Client {
    pub town: Arc<Town>,
    pub id: usize,
    /// The server that it mostly asks.
    pub home: usize,
    pub rng: SmallRng,
    pub requests: u32,
}

/// A lease that the client was told of.
struct Holding {
    index: usize,
    target: Target,
    held: Held,
    handle: LeaseHandle,
    /// The shortest life that was asked for so far.
    ttl_ms: u64,
    extended: bool,
    /// When it was first asked for.
    began: Began,
}

impl Client {
    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(from..=to))
    }

    fn is_over(&self) -> bool {
        self.town.world.ms() >= self.town.until_ms.load(Ordering::Relaxed)
    }

    /// A server: mostly the client's own.
    fn any_process(&mut self) -> Process {
        let servers = self.town.servers();
        let server = if self.chance(70) { self.home % servers } else { self.rng.random_range(0..servers) };
        self.town.process(server)
    }

    /// Lives until the faults end.
    pub async fn live(mut self) {
        while !self.is_over() {
            let pause = self.ms(0, 150);
            sleep(pause).await;
            if self.town.kind == Kind::Members {
                self.rely().await;
                continue;
            }
            match self.rng.random_range(0..100) {
                0..78 => self.hold_something().await,
                78..86 => self.hold_stream().await,
                86..92 => self.issue().await,
                92..98 if self.town.forces => self.force().await,
                _ => self.look().await,
            }
        }
    }

    /// Takes a lock where it is free, and relies on it for as long as it may.
    async fn rely(&mut self) {
        let locks = &self.town.names.locks;
        let target = Target::Lock(locks[self.rng.random_range(0..locks.len())].clone());
        let max = self.town.max_ttl_ms;
        let ttl_ms = self.rng.random_range(max / 2..=max);
        let options = AcquireOptions { ttl_ms, wait_ms: 0, note: Note::default(), request: None };
        let began = self.town.checkers.begin();
        let answer = self.ask(&target, &options, Duration::from_secs(4), began).await;
        let Some(Ok(mut holding)) = answer else { return };
        loop {
            let work = self.ms(0, ttl_ms);
            sleep(work).await;
            if !self.town.checkers.is_valid(holding.index) {
                break;
            }
            self.town.checkers.write(holding.index);
            match self.rng.random_range(0..3) {
                0 if !self.extend(&mut holding).await => break,
                1 => {
                    self.release(&holding).await;
                    break;
                }
                _ => {}
            }
        }
        self.town.checkers.give_up(holding.index);
    }

    fn target(&mut self) -> Target {
        let (locks, limit) = (self.town.names.locks.len(), self.town.names.limit);
        let only_locks = self.town.kind == Kind::Locks;
        match self.rng.random_range(0..if only_locks { 75 } else { 100 }) {
            0..50 => Target::Lock(self.town.names.locks[self.rng.random_range(0..locks)].clone()),
            drawn if only_locks || drawn < 58 && locks > 1 => {
                let mut names = self.town.names.locks.clone();
                if names.len() > 2 && self.chance(50) {
                    names.remove(self.rng.random_range(0..names.len()));
                }
                if self.chance(50) {
                    names.reverse();
                }
                Target::Multilock(names)
            }
            58..80 => Target::Semaphore {
                name: self.town.names.semaphore.clone(),
                limit,
                permits: if self.chance(75) { 1 } else { self.rng.random_range(1..=limit) },
            },
            _ => Target::Election(self.town.names.election.clone()),
        }
    }

    fn options(&mut self, target: &Target) -> AcquireOptions {
        let max = self.town.max_ttl_ms;
        let ttl_ms = match self.rng.random_range(0..4) {
            0 => max,
            1 => self.rng.random_range(100..=300.min(max)),
            _ => self.rng.random_range(200..=max),
        };
        let wait_ms = if self.chance(40) { 0 } else { self.rng.random_range(50..2000) };
        let request = self.chance(35).then(|| {
            self.requests += 1;
            RequestId::new(&format!("request-{}-{}", self.id, self.requests)).expect("a request id")
        });
        let note = Note {
            candidate: Candidate::new(&format!("c{}", self.id)).ok(),
            max_hold_ms: self.chance(25).then(|| self.rng.random_range(ttl_ms..=2 * ttl_ms)),
            lock_delay_ms: self.chance(15).then(|| self.rng.random_range(1..=400)),
            mode: if matches!(target, Target::Lock(_)) && self.chance(40) {
                Mode::Shared
            } else {
                Mode::Exclusive
            },
            ..Note::default()
        };
        AcquireOptions { ttl_ms, wait_ms, note, request }
    }

    async fn hold_something(&mut self) {
        let target = self.target();
        let options = self.options(&target);
        let mut issuer = self.another();
        let issued = async {
            if let Target::Lock(name) = &target
                && issuer.chance(20)
            {
                for _ in 0..issuer.rng.random_range(1..=3) {
                    issuer.issue_of(name).await;
                }
            }
        };
        let (holding, ()) = tokio::join!(self.acquire(&target, &options), issued);
        if let Some(holding) = holding {
            self.use_it(holding, &options).await;
        }
    }

    /// The same client at another place: what it does beside what it does.
    fn another(&mut self) -> Self {
        let (home, seed) = (self.rng.random_range(0..self.town.servers()), self.rng.random());
        let rng = SmallRng::seed_from_u64(seed);
        Self { town: Arc::clone(&self.town), id: self.id, home, rng, requests: 0 }
    }

    /// Asks for a lease, with a request id again and again; `None` where none was told.
    async fn acquire(&mut self, target: &Target, options: &AcquireOptions) -> Option<Holding> {
        let tries = if options.request.is_some() { 3 } else { 1 };
        // A retry may get what an earlier attempt was granted, with the token of then.
        let began = self.town.checkers.begin();
        if options.request.is_some()
            && self.chance(40)
            && let Some(holding) = self.acquire_at_once(target, options, &began).await
        {
            return Some(holding);
        }
        for _ in 0..tries {
            let patience = match self.rng.random_range(0..100) {
                0..15 => self.ms(0, 30),
                15..30 => self.ms(0, options.wait_ms + 300),
                _ => Duration::from_millis(options.wait_ms) + Duration::from_secs(4),
            };
            let answer = self.ask(target, options, patience, began.clone()).await;
            match answer {
                Some(Ok(holding)) => return Some(holding),
                Some(Err(_)) if !self.chance(40) => return None,
                _ => {}
            }
            if self.is_over() {
                return None;
            }
            let pause = self.ms(0, 100);
            sleep(pause).await;
        }
        None
    }

    /// Several attempts of one request at a time, as behind a proxy that sends again what takes long.
    async fn acquire_at_once(
        &mut self,
        target: &Target,
        options: &AcquireOptions,
        began: &Began,
    ) -> Option<Holding> {
        let spread_ms = [3, 20, 100][self.rng.random_range(0..3)];
        let attempts: Vec<Self> = (0..self.rng.random_range(2..=5)).map(|_| self.another()).collect();
        let answers = attempts.into_iter().map(|mut attempt| async move {
            let pause = attempt.ms(0, spread_ms);
            sleep(pause).await;
            let patience = match attempt.chance(40) {
                true => attempt.ms(0, 60),
                false => Duration::from_millis(options.wait_ms) + Duration::from_secs(4),
            };
            attempt.ask(target, options, patience, began.clone()).await
        });
        let mut held = futures_util::future::join_all(answers).await.into_iter().flatten().flatten();
        let holding = held.next();
        for other in held.filter(|other| holding.as_ref().is_some_and(|one| one.index != other.index)) {
            self.town.checkers.give_up(other.index);
        }
        holding
    }

    /// One request. `None` where the answer did not come.
    async fn ask(
        &mut self,
        target: &Target,
        options: &AcquireOptions,
        patience: Duration,
        began: Began,
    ) -> Option<Result<Holding, ServiceError>> {
        let process = self.any_process();
        let (id, server) = (self.id, process.server);
        self.town.world.note(("ask", [id as u64, server as u64, options.wait_ms]), || {
            let AcquireOptions { ttl_ms, wait_ms, request, .. } = options;
            let request = request.as_ref().map_or("-", |request| request.as_str());
            format!("c{id} s{} {target:?} ttl {ttl_ms} wait {wait_ms} request {request}", server + 1)
        });
        // How messages travel, and how long the server does not see that the client has left.
        let (there, back) = (self.ms(0, 3), self.ms(0, 3));
        let (asked, paused_ms) = (Instant::now(), self.town.world.paused_ms(server));
        let answer_lost = self.town.rough && self.chance(6);
        let unnoticed = (self.town.rough && self.chance(50)).then(|| self.ms(0, UNNOTICED_MS_MAX));
        let kept = self.chance(30);
        let undelivered = self.ms(0, 200);
        let town = Arc::clone(&self.town);
        let stood_still = town.checkers.stood_still();
        let mut call = Box::pin(serve(Arc::clone(&town), process, target.clone(), options.clone(), there));
        let answer = timeout(patience, &mut call).await;
        if !matches!(answer, Ok(None)) {
            let paused_ms = town.world.paused_ms(server) - paused_ms;
            let took_ms = (asked.elapsed().as_millis() as u64).saturating_sub(paused_ms);
            let late_ms = took_ms.saturating_sub(options.wait_ms);
            if late_ms > town.late_ms_max {
                let waits_ms = options.wait_ms;
                let what =
                    format!("c{id}, who waits for {waits_ms} ms, is not answered {late_ms} ms after that");
                town.checkers.violate(what);
            }
        }
        let Ok(answer) = answer else {
            town.checkers.lock().counts.cancelled += 1;
            town.world.note(("left", [id as u64, 0, 0]), || format!("c{id} leaves"));
            if let Some(unnoticed) = unnoticed {
                let target = target.clone();
                tokio::spawn(async move {
                    // An answer finds nobody: either the server believes to have delivered it, or
                    // it sees that, perhaps a while after the grant and behind a retry.
                    if let Ok(Some(Ok(granted))) = timeout(unnoticed, call).await {
                        if kept {
                            deliver(&town, &began, id, &target, granted);
                        } else {
                            sleep(undelivered).await;
                        }
                    }
                });
            }
            return None;
        };
        match answer? {
            Ok(granted) => {
                let (index, lease) = deliver(&town, &began, id, target, granted);
                if answer_lost {
                    return None;
                }
                sleep(back).await;
                town.checkers.told(index, town.checkers.believed(lease.valid_until, stood_still));
                let (handle, ttl_ms) = (lease.handle, lease.ttl_ms);
                let (held, target) = (target.held(), target.clone());
                Some(Ok(Holding { index, target, held, handle, ttl_ms, extended: false, began }))
            }
            Err(why) => {
                self.failed(&why);
                Some(Err(why))
            }
        }
    }

    fn failed(&self, why: &ServiceError) {
        let mut state = self.town.checkers.lock();
        match why {
            ServiceError::Contended { .. } => state.counts.refused += 1,
            ServiceError::LeaseLost { .. } => state.counts.lost += 1,
            _ => state.counts.unavailable += 1,
        }
        drop(state);
        let id = self.id;
        self.town.world.note(("failed", [id as u64, 0, 0]), || format!("c{id} {why}"));
    }

    /// Works with a lease: writes, extends, dozes off, gives it back or forgets it.
    async fn use_it(&mut self, mut holding: Holding, options: &AcquireOptions) {
        let town = Arc::clone(&self.town);
        let checkers = &town.checkers;
        // Some hold on for as long as they are not told that it is lost, also when they cannot
        // believe in it any more.
        let stubborn = self.chance(20);
        let steps = if stubborn { 12 } else { self.rng.random_range(1..=4) };
        for _ in 0..steps {
            if stubborn {
                let pause = self.ms(0, holding.ttl_ms / 2);
                sleep(pause).await;
                if !self.extend(&mut holding).await {
                    return;
                }
                if self.is_over() {
                    break;
                }
                continue;
            }
            match self.rng.random_range(0..100) {
                0..35 => {
                    let work = self.ms(0, 80);
                    sleep(work).await;
                    if checkers.is_valid(holding.index) {
                        checkers.write(holding.index);
                    }
                }
                35..45 => {
                    // Dozes off between the look at the clock and the write.
                    let believed = checkers.is_valid(holding.index);
                    let nap = self.ms(0, holding.ttl_ms + 500);
                    sleep(nap).await;
                    if believed {
                        checkers.write(holding.index);
                    }
                }
                45..80 => {
                    if !self.extend(&mut holding).await {
                        return;
                    }
                }
                80..88 if options.request.is_some() && !holding.extended => {
                    // Asks again, as if it had not heard.
                    let patience = Duration::from_secs(3);
                    let began = town.checkers.begin_again(&holding.began);
                    drop(self.ask(&holding.target, options, patience, began).await);
                }
                88..94 if matches!(holding.target, Target::Election(_)) => self.proclaim(&holding).await,
                _ => self.look().await,
            }
            if self.is_over() {
                break;
            }
        }
        match self.rng.random_range(0..100) {
            // It dies: nobody knows of the lease any more.
            0..8 => {}
            // It lets it expire.
            8..12 => {}
            _ => self.release(&holding).await,
        }
        checkers.give_up(holding.index);
    }

    /// Whether the lease may still be held.
    async fn extend(&mut self, holding: &mut Holding) -> bool {
        let town = Arc::clone(&self.town);
        let process = self.any_process();
        // Never longer than before: a late extension sets what it was asked for, and a
        // client that asks for different lives at once cannot know which comes last.
        let ttl_ms = match self.rng.random_range(0..4) {
            0 => None,
            1 => Some(self.rng.random_range(100..=holding.ttl_ms)),
            _ => Some(holding.ttl_ms),
        };
        holding.ttl_ms = ttl_ms.unwrap_or(holding.ttl_ms);
        holding.extended = true;
        town.checkers.extending(holding.index, holding.ttl_ms);
        let stood_still = town.checkers.stood_still();
        let there = self.ms(0, 3);
        let patience = if self.chance(10) { self.ms(0, 20) } else { Duration::from_secs(3) };
        let call = async {
            sleep(there).await;
            town.at(&process, process.service.extend(&holding.held, holding.handle, ttl_ms)).await
        };
        match timeout(patience, call).await {
            Ok(Some(Ok(lease))) => {
                if town.rough && self.chance(5) {
                    return true;
                }
                let back = self.ms(0, 3);
                sleep(back).await;
                let believed = town.checkers.believed(lease.valid_until, stood_still);
                town.checkers.extended(holding.index, lease.handle, believed);
                true
            }
            Ok(Some(Err(why))) => {
                self.failed(&why);
                let lost = matches!(why, ServiceError::LeaseLost { .. });
                if lost {
                    town.checkers.lost(holding.index);
                }
                !lost
            }
            Ok(None) | Err(_) => true,
        }
    }

    async fn proclaim(&mut self, holding: &Holding) {
        let Held::Election(name) = &holding.held else { return };
        let town = Arc::clone(&self.town);
        let proclaim = async |process: Process| {
            let value = Value::new(&format!("here {}", town.checkers.next())).expect("a value");
            let stood_still = town.checkers.stood_still();
            let call = town.at(&process, process.service.proclaim(name, holding.handle, value));
            match timeout(Duration::from_secs(3), call).await {
                Ok(Some(Ok(lease))) => {
                    let believed = town.checkers.believed(lease.valid_until, stood_still);
                    town.checkers.extended(holding.index, lease.handle, believed);
                    town.checkers.proclaimed(lease.handle.token.get(), &lease.note);
                }
                Ok(Some(Err(ServiceError::LeaseLost { .. }))) => town.checkers.lost(holding.index),
                _ => {}
            }
        };
        let (one, two) = (self.any_process(), self.any_process());
        if self.chance(50) {
            tokio::join!(proclaim(one), proclaim(two));
        } else {
            proclaim(one).await;
        }
        for _ in 0..3 {
            self.see_leader().await;
        }
    }

    async fn release(&mut self, holding: &Holding) {
        let town = Arc::clone(&self.town);
        // It stops working before it says so.
        town.checkers.give_up(holding.index);
        for attempt in 0..3 {
            let process = self.any_process();
            let there = self.ms(0, 3);
            let patience = if self.chance(10) { self.ms(0, 20) } else { Duration::from_secs(3) };
            let call = async {
                sleep(there).await;
                town.at(&process, process.service.release(&holding.held, holding.handle)).await
            };
            match timeout(patience, call).await {
                Ok(Some(Ok(held))) => {
                    if !held && attempt == 0 {
                        town.checkers.not_held(holding.index);
                    }
                    town.checkers.released(holding.index);
                    return;
                }
                Ok(Some(Err(why))) => self.failed(&why),
                Ok(None) | Err(_) => {}
            }
            if self.chance(50) {
                return;
            }
        }
    }

    async fn hold_stream(&mut self) {
        let town = Arc::clone(&self.town);
        let process = self.any_process();
        let target = self.target();
        let options = self.options(&target);
        let held = target.held();
        let began = town.checkers.begin();
        let patience = self.ms(50, 3000);
        let until = Instant::now() + patience;
        let stream = process.service.hold(target.clone(), options);
        let mut stream = Box::pin(stream);
        let mut index = None;
        loop {
            // What comes may have been on its way.
            let stood_still = town.checkers.stood_still();
            let next = town.at(&process, stream.next());
            let Ok(Some(Some(event))) = tokio::time::timeout_at(until, next).await else { break };
            match event {
                HoldEvent::Acquired(lease) => {
                    let resources = town.names.of(&target, &lease.slots);
                    let mode = lease.note.mode;
                    let granted = town.checkers.granted(&began, self.id, lease.handle, &resources, mode);
                    index = Some(granted);
                    town.checkers.asked(granted, &lease.note);
                    town.checkers.told(granted, town.checkers.believed(lease.valid_until, stood_still));
                }
                HoldEvent::Extended(lease) => {
                    if let Some(index) = index {
                        let believed = town.checkers.believed(lease.valid_until, stood_still);
                        town.checkers.extended(index, lease.handle, believed);
                        if self.chance(30) {
                            town.checkers.write(index);
                        }
                    }
                }
                HoldEvent::Waiting { .. } => {}
                HoldEvent::Denied(why) => {
                    self.failed(&why);
                    return;
                }
                HoldEvent::Lost(_) | HoldEvent::Released { .. } => break,
            }
        }
        drop(stream);
        if let Some(index) = index {
            town.checkers.undone(index);
        }
        town.world.note(("hold ends", [self.id as u64, 0, 0]), || format!("c{} {held:?}", self.id));
    }

    async fn issue(&mut self) {
        let lock = self.rng.random_range(0..self.town.names.locks.len());
        let name = self.town.names.locks[lock].clone();
        self.issue_of(&name).await;
    }

    async fn issue_of(&mut self, name: &Name) {
        let town = Arc::clone(&self.town);
        let process = self.any_process();
        let lock = town.names.lock(name);
        let began = town.checkers.begin();
        let call = town.at(&process, process.service.issue_token(name));
        match timeout(Duration::from_secs(3), call).await {
            Ok(Some(Ok(token))) => town.checkers.issued(&began, lock, token.get()),
            Ok(Some(Err(why))) => self.failed(&why),
            Ok(None) | Err(_) => {}
        }
    }

    /// Takes a lock away from whoever holds it.
    async fn force(&mut self) {
        let town = Arc::clone(&self.town);
        let process = self.any_process();
        let lock = self.rng.random_range(0..town.names.locks.len());
        let began = town.checkers.forcing(lock);
        let call = town.at(
            &process,
            process.service.force_release(service::Resource::Lock, &town.names.locks[lock], None),
        );
        let answer = match timeout(Duration::from_secs(3), call).await {
            Ok(Some(Ok(held))) => Some(held),
            Ok(Some(Err(why))) => {
                self.failed(&why);
                None
            }
            Ok(None) | Err(_) => None,
        };
        town.checkers.forced(lock, began, answer);
    }

    /// Looks who holds something. Where some nodes do not answer, those that do may know of a
    /// token that was granted late and not told; then the answer is a guess.
    async fn look(&mut self) {
        let town = Arc::clone(&self.town);
        let process = self.any_process();
        let began = Instant::now();
        let patience = Duration::from_secs(3);
        match self.rng.random_range(0..4) {
            0 | 1 => {
                let lock = self.rng.random_range(0..town.names.locks.len());
                let call =
                    town.at(&process, process.service.look(service::Resource::Lock, &town.names.locks[lock]));
                if let Ok(Some(Ok(seen))) = timeout(patience, call).await
                    && let Some(holder) = seen.holder()
                    && seen.nodes.failed == 0
                {
                    town.checkers.inspected(lock, began, holder.token.get());
                }
            }
            2 => self.see_leader().await,
            _ => {
                let call = town
                    .at(&process, process.service.look(service::Resource::Semaphore, &town.names.semaphore));
                if let Ok(Some(Ok(seen))) = timeout(patience, call).await
                    && seen.in_use() > town.names.limit
                {
                    town.checkers.violate(format!(
                        "{} permits in use of {}",
                        seen.in_use(),
                        town.names.limit
                    ));
                }
            }
        }
    }

    async fn see_leader(&mut self) {
        let town = Arc::clone(&self.town);
        let process = self.any_process();
        let (began, told) = (Instant::now(), town.checkers.versions_told());
        let call = town.at(&process, process.service.look(service::Resource::Election, &town.names.election));
        if let Ok(Some(Ok(seen))) = timeout(Duration::from_secs(3), call).await
            && let Some(holder) = seen.holder()
        {
            let term = holder.token.get();
            town.checkers.shown(term, &holder.note, Some(&told));
            if seen.nodes.failed == 0 {
                town.checkers.inspected(town.names.election_resource(), began, term);
            }
        }
    }
}

/// The server's side of an acquisition, from the arrival of the request to the lease in hand.
async fn serve(
    town: Arc<Town>,
    process: Process,
    target: Target,
    options: AcquireOptions,
    there: Duration,
) -> Option<Result<Granted, ServiceError>> {
    sleep(there).await;
    town.at(&process, process.service.acquire(&target, &options)).await
}

/// The server has written its answer.
fn deliver(town: &Town, began: &Began, client: usize, target: &Target, granted: Granted) -> (usize, Lease) {
    let lease = granted.deliver();
    let resources = town.names.of(target, &lease.slots);
    let index = town.checkers.granted(began, client, lease.handle, &resources, lease.note.mode);
    town.checkers.asked(index, &lease.note);
    (index, lease)
}
