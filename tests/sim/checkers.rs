//! What must hold, checked while it happens, on true virtual time.
//!
//! The checkers know what clients know: when a call began, what it answered and when.
//! They never look into a server. Each violated promise is one sentence; the first
//! one fails the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quorate::domain::{LeaseHandle, Mode, Version};
use quorate::service::Note;
use tokio::time::Instant;

use crate::world::World;

/// A thing that one lease at a time may cover: a lock, a slot, an election.
pub type Resource = usize;

/// How a lease looks from outside.
pub struct Lease {
    pub handle: LeaseHandle,
    pub resources: Vec<Resource>,
    pub client: usize,
    /// In the order of events: when its call began, and when it was told.
    began: u64,
    told: u64,
    /// When its call began, ms.
    began_ms: u64,
    /// Until when its holder may believe in it.
    valid_until: Instant,
    /// The holder does not believe in it any more.
    given_up: bool,
    /// When it was first told to be valid, if ever: what was told too late binds nobody.
    told_in_time: Option<Instant>,
    /// In the order of events: when its release was acknowledged.
    pub released: Option<u64>,
    /// No extension makes it valid beyond this.
    hold_until: Option<Instant>,
    /// How long nobody else has it after it has expired.
    delay: Duration,
    /// Beside others of its kind.
    shared: bool,
    /// As in [`Began`].
    tokens_lost: u64,
}

/// The beginning of a call that may grant: every token told before it.
#[derive(Clone)]
pub struct Began {
    at: u64,
    at_ms: u64,
    floor: Vec<u64>,
    /// How often tokens were lost before: nothing is known of those of before.
    tokens_lost: u64,
}

/// A protected thing that takes writes.
#[derive(Default)]
struct Register {
    /// The greatest token seen.
    fence: u64,
    /// Writers whose writes were taken, with and without a look at the token.
    fenced: BTreeSet<usize>,
    unfenced: BTreeSet<usize>,
}

/// What leaders proclaimed.
#[derive(Default)]
struct Proclaimed {
    /// The latest version of a term that was told to be stored.
    told: BTreeMap<u64, Version>,
    /// What each version of a term says.
    says: BTreeMap<(u64, Version), String>,
}

#[derive(Default, Clone, Copy, Debug)]
pub struct Counts {
    pub grants: u64,
    pub extensions: u64,
    pub releases: u64,
    pub issued: u64,
    pub forced: u64,
    pub resumed: u64,
    pub lost: u64,
    pub refused: u64,
    pub unavailable: u64,
    pub writes: u64,
    pub stale_fenced: u64,
    pub stale_unfenced: u64,
    pub cancelled: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.grants += other.grants;
        self.extensions += other.extensions;
        self.releases += other.releases;
        self.issued += other.issued;
        self.forced += other.forced;
        self.resumed += other.resumed;
        self.lost += other.lost;
        self.refused += other.refused;
        self.unavailable += other.unavailable;
        self.writes += other.writes;
        self.stale_fenced += other.stale_fenced;
        self.stale_unfenced += other.stale_unfenced;
        self.cancelled += other.cancelled;
    }
}

pub struct State {
    leases: Vec<Lease>,
    by_id: BTreeMap<String, usize>,
    /// Leases of a resource.
    of: Vec<Vec<usize>>,
    /// The greatest token told, of a resource.
    floor: Vec<u64>,
    /// Tokens told, of a resource, and whether others may have the same.
    tokens: Vec<BTreeMap<u64, bool>>,
    registers: Vec<Register>,
    /// Who is taking a resource away from its holders, and in the order of events until when somebody did.
    forcing: Vec<u32>,
    forced: Vec<u64>,
    proclaimed: Proclaimed,
    order: u64,
    tokens_lost: u64,
    /// For how long all servers stood still in all, while nodes and clients went on.
    stood_still: Duration,
    pub counts: Counts,
    pub violations: Vec<String>,
}

/// All checkers of one run.
pub struct Checkers {
    world: Arc<World>,
    /// Clocks keep to the assumptions, so that mutual exclusion must hold without fencing.
    exclusive: bool,
    state: Mutex<State>,
}

impl Checkers {
    pub fn new(world: Arc<World>, resources: usize, exclusive: bool) -> Arc<Self> {
        let state = State {
            leases: Vec::new(),
            by_id: BTreeMap::new(),
            of: vec![Vec::new(); resources],
            floor: vec![0; resources],
            tokens: vec![BTreeMap::new(); resources],
            registers: (0..resources).map(|_| Register::default()).collect(),
            forcing: vec![0; resources],
            forced: vec![0; resources],
            proclaimed: Proclaimed::default(),
            order: 0,
            tokens_lost: 0,
            stood_still: Duration::ZERO,
            counts: Counts::default(),
            violations: Vec::new(),
        };
        Arc::new(Self { world, exclusive, state: Mutex::new(state) })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn violated(&self, state: &mut State, what: String) {
        self.world.note(("VIOLATION", [0; 3]), || what.clone());
        state.violations.push(format!("at {} ms: {what}", self.world.ms()));
    }

    /// From outside of the checkers: something that must not happen did.
    pub fn violate(&self, what: String) {
        self.violated(&mut self.lock(), what);
    }

    /// A number that nobody else gets.
    pub fn next(&self) -> u64 {
        let mut state = self.lock();
        state.order += 1;
        state.order
    }

    /// The state, without what is known of tokens where these were lost meanwhile.
    fn up_to_date(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let tokens_lost = self.world.lock().tokens_lost;
        if state.tokens_lost != tokens_lost {
            state.tokens_lost = tokens_lost;
            state.floor.fill(0);
            state.tokens.iter_mut().for_each(BTreeMap::clear);
            state.registers.iter_mut().for_each(|register| *register = Register::default());
        }
        state
    }

    /// A call that may grant begins.
    pub fn begin(&self) -> Began {
        let mut state = self.up_to_date();
        state.order += 1;
        let (at, tokens_lost) = (state.order, state.tokens_lost);
        Began { at, at_ms: self.world.ms(), floor: state.floor.clone(), tokens_lost }
    }

    /// A retry begins. It may get what an earlier attempt was granted, with the token of then: that attempt
    /// may have had it only after the client was told something else.
    pub fn begin_again(&self, first: &Began) -> Began {
        Began { floor: first.floor.clone(), tokens_lost: first.tokens_lost, ..self.begin() }
    }

    /// A token was issued without a lease.
    pub fn issued(&self, began: &Began, resource: Resource, token: u64) {
        let mut state = self.up_to_date();
        state.counts.issued += 1;
        if began.tokens_lost != state.tokens_lost {
            return;
        }
        if token <= began.floor[resource] {
            let what = format!(
                "token {token} was issued for {resource} after {} had been told",
                began.floor[resource]
            );
            self.violated(&mut state, what);
        }
        // One who shares the name may have been raised to it.
        if state.tokens[resource].insert(token, true) == Some(false) {
            self.violated(&mut state, format!("token {token} of {resource} was given out twice"));
        }
        state.floor[resource] = state.floor[resource].max(token);
        drop(state);
        self.world.note(("issued", [resource as u64, token, 0]), || format!("r{resource} token {token}"));
    }

    /// The server has answered with a lease: from here on its token counts, even if the
    /// answer gets lost. `valid_until` counts once [`Checkers::told`].
    pub fn granted(
        &self,
        began: &Began,
        client: usize,
        handle: LeaseHandle,
        resources: &[Resource],
        mode: Mode,
    ) -> usize {
        let shared = mode == Mode::Shared;
        let mut state = self.up_to_date();
        state.counts.grants += 1;
        state.order += 1;
        let token = handle.token.get();
        let are_tokens_known = began.tokens_lost == state.tokens_lost;
        for &resource in resources.iter().filter(|_| are_tokens_known) {
            if token <= began.floor[resource] && !state.knows(&handle) {
                let what = format!(
                    "c{client} got r{resource} with token {token} by a call that began after {} had been told",
                    began.floor[resource]
                );
                self.violated(&mut state, what);
            }
        }
        if let Some(&known) = state.by_id.get(handle.id.expose()) {
            state.counts.resumed += 1;
            let lease = &mut state.leases[known];
            if lease.handle != handle || lease.resources != resources {
                let what = format!(
                    "the lease of token {} came back with token {token} or other slots",
                    lease.handle.token.get()
                );
                self.violated(&mut state, what);
            } else if lease.released.is_some_and(|released| released < began.at) {
                let what = format!("the lease of token {token} came back after its release");
                self.violated(&mut state, what);
            }
            return known;
        }
        let index = state.leases.len();
        resources.iter().for_each(|&resource| state.of[resource].push(index));
        for &resource in resources.iter().filter(|_| are_tokens_known) {
            // Those who share a name may have the same one.
            if state.tokens[resource].insert(token, shared).is_some_and(|before| !(before && shared)) {
                self.violated(&mut state, format!("token {token} of r{resource} was given out twice"));
            }
            state.floor[resource] = state.floor[resource].max(token);
        }
        let told = state.order;
        state.leases.push(Lease {
            handle,
            resources: resources.to_vec(),
            client,
            began: began.at,
            told,
            began_ms: began.at_ms,
            valid_until: Instant::now(),
            given_up: false,
            told_in_time: None,
            released: None,
            hold_until: None,
            delay: Duration::ZERO,
            shared,
            tokens_lost: began.tokens_lost,
        });
        state.by_id.insert(handle.id.expose().to_owned(), index);
        drop(state);
        self.world.note(("granted", [client as u64, resources[0] as u64, token]), || {
            format!("c{client} {resources:?} token {token}")
        });
        index
    }

    /// What was asked for with a lease that was granted before now.
    pub fn asked(&self, index: usize, note: &Note) {
        // What clocks may drift, and by how much they have stepped back.
        let stepped_ms = self.world.lock().stepped_back_ms;
        let lease = &mut self.lock().leases[index];
        if let Some(hold_ms) = note.max_hold_ms {
            let most = Instant::now() + Duration::from_millis(hold_ms + hold_ms / 50 + stepped_ms + 20);
            lease.hold_until.get_or_insert(most);
        }
        lease.delay = Duration::from_millis(note.lock_delay_ms.unwrap_or(0));
    }

    /// The client learns until when it may believe in its lease.
    pub fn told(&self, index: usize, valid_until: Instant) {
        let mut state = self.up_to_date();
        let now = Instant::now();
        let lease = &mut state.leases[index];
        lease.valid_until = valid_until;
        let (token, resources) = (lease.handle.token.get(), lease.resources.clone());
        let left = valid_until.saturating_duration_since(now).as_millis();
        self.world.note(("told", [index as u64, left as u64, token]), || {
            format!("lease {index} {resources:?} token {token}: {left} ms")
        });
        let stepped = Duration::from_millis(self.world.lock().stepped_back_ms);
        if self.exclusive && state.leases[index].hold_until.is_some_and(|most| valid_until > most + stepped) {
            self.violated(&mut state, format!("the lease of token {token} is valid beyond its longest hold"));
        }
        if left == 0 || state.leases[index].given_up || state.is_forced(index) {
            return;
        }
        state.leases[index].told_in_time.get_or_insert(now);
        if !self.exclusive {
            return;
        }
        let forgot_ms = self.world.lock().forgot_ms;
        for resource in resources {
            let others: Vec<usize> = state.of[resource].iter().copied().filter(|&i| i != index).collect();
            for other in others {
                if state.is_forced(other) || state.leases[index].shared && state.leases[other].shared {
                    continue;
                }
                let other = &state.leases[other];
                let theirs = other.handle.token.get();
                if !other.given_up && other.valid_until > now {
                    let what = format!(
                        "two valid leases of r{resource}: token {token} of c{}, {left} ms, beside token {theirs} of c{}, {} ms",
                        state.leases[index].client,
                        other.client,
                        other.valid_until.duration_since(now).as_millis()
                    );
                    self.violated(&mut state, what);
                } else if !other.given_up
                    && other.told_in_time.is_some()
                    && forgot_ms.is_none_or(|at| at < other.began_ms)
                    && other.valid_until + other.delay > now
                {
                    let what = format!(
                        "r{resource} was granted with token {token} although the lease of token {theirs} expired less than {:?} ago",
                        other.delay
                    );
                    self.violated(&mut state, what);
                } else if other.told_in_time.is_some()
                    && theirs > token
                    && [other.tokens_lost, state.leases[index].tokens_lost] == [state.tokens_lost; 2]
                {
                    let what = format!(
                        "the lease of r{resource} with token {token} is told to be valid after token {theirs} was"
                    );
                    self.violated(&mut state, what);
                }
            }
        }
    }

    /// All servers stood still for so long; what holders believe ends that much sooner by the clock of this run, which is
    /// the servers'.
    pub fn stand_still(&self, by: Duration) {
        let mut state = self.lock();
        state.stood_still += by;
        for lease in &mut state.leases {
            lease.valid_until -= by;
            lease.hold_until = lease.hold_until.map(|until| until - by);
        }
    }

    /// For how long all servers have stood still so far.
    pub fn stood_still(&self) -> Duration {
        self.lock().stood_still
    }

    /// Until when one believes in a lease who asked for it when servers had stood still for so long in all.
    pub fn believed(&self, valid_until: Instant, before: Duration) -> Instant {
        valid_until - (self.stood_still() - before)
    }

    /// Whether its holder believes in it now.
    pub fn is_valid(&self, index: usize) -> bool {
        let state = self.lock();
        let lease = &state.leases[index];
        !lease.given_up && lease.valid_until > Instant::now()
    }

    /// An extension is sent: if it shortens the lease, that counts whatever becomes of the answer.
    pub fn extending(&self, index: usize, ttl_ms: u64) {
        let drift_ms = ttl_ms / 100 + 2;
        let at_most = Instant::now() + Duration::from_millis(ttl_ms - drift_ms);
        let lease = &mut self.lock().leases[index];
        lease.valid_until = lease.valid_until.min(at_most);
    }

    /// An extension was answered well.
    pub fn extended(&self, index: usize, handle: LeaseHandle, valid_until: Instant) {
        {
            let mut state = self.lock();
            state.counts.extensions += 1;
            let lease = &state.leases[index];
            if lease.handle != handle {
                let what = format!("an extension changed the token to {}", handle.token.get());
                self.violated(&mut state, what);
            } else if lease.released.is_some() {
                let what = format!("a released lease was extended, token {}", handle.token.get());
                self.violated(&mut state, what);
            }
        }
        self.told(index, valid_until);
    }

    /// The server says that it is not held any more, and its holder stops believing in it. Before
    /// its time, only data that was lost meanwhile can be the reason.
    pub fn lost(&self, index: usize) {
        let forgot_ms = self.world.lock().forgot_ms;
        let mut state = self.lock();
        let lease = &state.leases[index];
        let valid = !lease.given_up && lease.valid_until > Instant::now();
        if self.exclusive
            && valid
            && !state.is_forced(index)
            && forgot_ms.is_none_or(|at| at < lease.began_ms)
        {
            let what = format!(
                "the lease of r{} with token {} is said to be lost, but no node has forgotten it",
                lease.resources[0],
                lease.handle.token.get()
            );
            self.violated(&mut state, what);
        }
        state.leases[index].given_up = true;
    }

    /// The holder has left, and its server undoes the lease.
    pub fn undone(&self, index: usize) {
        let mut state = self.lock();
        state.order += 1;
        state.leases[index].given_up = true;
        state.leases[index].released = Some(state.order);
    }

    /// Somebody takes a resource away from whoever holds it.
    pub fn forcing(&self, resource: Resource) -> Instant {
        let mut state = self.lock();
        state.counts.forced += 1;
        state.forcing[resource] += 1;
        Instant::now()
    }

    /// It is free now, or nobody knows; `held` is what was said of it before.
    pub fn forced(&self, resource: Resource, began: Instant, held: Option<bool>) {
        let forgot_ms = self.world.lock().forgot_ms;
        let mut state = self.lock();
        state.forcing[resource] -= 1;
        let now = Instant::now();
        // Another one may have taken it away, too, and have said so.
        let valid = state.of[resource].iter().map(|&i| &state.leases[i]).find(|lease| {
            let remembered = forgot_ms.is_none_or(|at| at < lease.began_ms);
            let told = lease.told_in_time.is_some_and(|told| told <= began);
            told && remembered && !lease.given_up && lease.valid_until > now && !state.is_forced_at(lease)
        });
        if let Some(lease) = valid
            && self.exclusive
            && held == Some(false)
        {
            let token = lease.handle.token.get();
            let what = format!("r{resource} is said to have been free, and was held with token {token}");
            self.violated(&mut state, what);
        }
        state.order += 1;
        state.forced[resource] = state.order;
    }

    /// The holder stops believing in it.
    pub fn give_up(&self, index: usize) {
        self.lock().leases[index].given_up = true;
    }

    /// Its first release says that it was not held.
    pub fn not_held(&self, index: usize) {
        let mut state = self.lock();
        let lease = &state.leases[index];
        if self.exclusive
            && lease.valid_until > Instant::now()
            && lease.released.is_none()
            && !state.is_forced(index)
        {
            let (resource, token) = (lease.resources[0], lease.handle.token.get());
            let what = format!(
                "the lease of r{resource} with token {token} is valid, and said not to have been held"
            );
            self.violated(&mut state, what);
        }
    }

    /// A release was answered.
    pub fn released(&self, index: usize) {
        let mut state = self.lock();
        state.counts.releases += 1;
        state.order += 1;
        let order = state.order;
        let lease = &mut state.leases[index];
        lease.given_up = true;
        lease.released = Some(order);
        let token = lease.handle.token.get();
        self.world.note(("released", [index as u64, token, 0]), || format!("lease {index} token {token}"));
    }

    /// The holder of a lease writes to what it protects, believing in it or not.
    pub fn write(&self, index: usize) {
        let mut state = self.up_to_date();
        state.counts.writes += 1;
        let token = state.leases[index].handle.token.get();
        for resource in state.leases[index].resources.clone() {
            if state.later(index, &state.registers[resource].unfenced, self.exclusive) {
                state.counts.stale_unfenced += 1;
            }
            state.registers[resource].unfenced.insert(index);
            if token < state.registers[resource].fence || state.leases[index].tokens_lost != state.tokens_lost
            {
                continue;
            }
            if state.later(index, &state.registers[resource].fenced, self.exclusive) {
                state.counts.stale_fenced += 1;
                let what = format!("the fenced register r{resource} took a stale write with token {token}");
                self.violated(&mut state, what);
            }
            state.registers[resource].fence = token;
            state.registers[resource].fenced.insert(index);
        }
    }

    /// A proclaim was told to be stored.
    pub fn proclaimed(&self, term: u64, note: &Note) {
        self.shown(term, note, None);
        let told = &mut self.lock().proclaimed.told;
        let latest = told.entry(term).or_default();
        *latest = note.version.max(*latest);
    }

    /// The latest version of each term that was told to be stored.
    pub fn versions_told(&self) -> BTreeMap<u64, Version> {
        self.lock().proclaimed.told.clone()
    }

    /// Somebody was shown what the leader proclaims: nothing earlier than what was `told` before he
    /// asked, and the same of one version as everybody else.
    pub fn shown(&self, term: u64, note: &Note, told: Option<&BTreeMap<u64, Version>>) {
        let mut state = self.lock();
        let (version, value) = (note.version, format!("{:?}", note.value));
        if let Some(&latest) = told.and_then(|told| told.get(&term))
            && version < latest
        {
            let what = format!("term {term} is shown with version {version} after {latest} was stored");
            self.violated(&mut state, what);
        }
        let says = state.proclaimed.says.entry((term, version)).or_insert_with(|| value.clone());
        if *says != value {
            let what = format!("version {version} of term {term} says {says} and {value}");
            self.violated(&mut state, what);
        }
    }

    /// Somebody else looked and was told of a holder: it must be the one that all the
    /// time held it.
    pub fn inspected(&self, resource: Resource, began: Instant, token: u64) {
        if !self.exclusive {
            return;
        }
        let mut state = self.lock();
        let now = Instant::now();
        let valid = state.of[resource].iter().map(|&i| &state.leases[i]).find(|lease| {
            !lease.given_up && lease.valid_until > now && lease.told_in_time.is_some_and(|told| told <= began)
        });
        let valid = valid.filter(|lease| !state.is_forced_at(lease));
        // Of those who share it one stands for all.
        if let Some(lease) = valid.filter(|lease| !lease.shared)
            && lease.handle.token.get() != token
        {
            let what = format!(
                "r{resource} is said to be held with token {token}, but its holder was told {}",
                lease.handle.token.get()
            );
            self.violated(&mut state, what);
        }
    }
}

impl State {
    fn knows(&self, handle: &LeaseHandle) -> bool {
        self.by_id.contains_key(handle.id.expose())
    }

    /// Whether somebody may have taken it away from its holder.
    fn is_forced(&self, index: usize) -> bool {
        self.is_forced_at(&self.leases[index])
    }

    fn is_forced_at(&self, lease: &Lease) -> bool {
        lease.resources.iter().any(|&of| self.forcing[of] > 0 || lease.began < self.forced[of])
    }

    /// Whether one of these leases is a later one.
    fn later(&self, index: usize, others: &BTreeSet<usize>, exclusive: bool) -> bool {
        let lease = &self.leases[index];
        let others = others.iter().map(|&other| &self.leases[other]);
        // Those who share a name have no order among them.
        others.filter(|other| !(lease.shared && other.shared)).any(|other| {
            let in_turn = exclusive
                && lease.told_in_time.is_some()
                && other.told_in_time.is_some()
                && other.told > lease.told;
            other.began > lease.told || in_turn
        })
    }

    /// The lease with this id, where it was told.
    pub fn lease(&self, id: &str) -> Option<&Lease> {
        self.by_id.get(id).map(|&index| &self.leases[index])
    }
}
