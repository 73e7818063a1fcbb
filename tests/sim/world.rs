//! The world of one seed: nodes, the network between them and the API servers, and time.
//!
//! [`SimNode`] stands where the driver of a real Redis would: between a member of the
//! engine and an embedded node that runs the real scripts. It behaves as the driver
//! does: one connection with calls in order, a timeout for each, a connection that is
//! given up after a silence, and then another. Every message becomes an event in one
//! heap, and one task delivers them; tokio's paused clock jumps from one to the next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quorate::clock::Clock;
use quorate::node::embedded::{EmbeddedNode, Snapshot};
use quorate::node::{
    BoxFuture, Call, Command, HintSink, Identity, Marker, Node, NodeError, ReplyTo, Script, Value,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::history::History;

/// Wall clock when a run begins, µs: somewhere in 2025.
pub const START_US: u64 = 1_750_000_000_000_000;
/// After this many timeouts in a row a connection is given up.
const SILENCE_MAX: u32 = 2;
/// Where a node's marker stands.
const MARKER: &str = "quorate:member";

/// The clock of a node: it may run fast or slow, and step.
pub struct NodeClock {
    start: Instant,
    /// Parts per million that it is fast.
    rate_ppm: AtomicI64,
    offset_us: AtomicI64,
}

impl NodeClock {
    fn new(rate_ppm: i64, offset_us: i64) -> Self {
        Self { start: Instant::now(), rate_ppm: rate_ppm.into(), offset_us: offset_us.into() }
    }

    /// From now on it runs right; what it has gained stays.
    fn run_right(&self) {
        let gained = self.start.elapsed().as_micros() as i64 * self.rate_ppm.swap(0, Ordering::Relaxed);
        self.step(gained / 1_000_000);
    }

    fn step(&self, by_us: i64) {
        self.offset_us.fetch_add(by_us, Ordering::Relaxed);
    }
}

impl Clock for NodeClock {
    fn wall_us(&self) -> u64 {
        let elapsed = self.start.elapsed().as_micros() as i64;
        let gained = elapsed * self.rate_ppm.load(Ordering::Relaxed) / 1_000_000;
        (START_US as i64 + elapsed + gained + self.offset_us.load(Ordering::Relaxed)) as u64
    }

    fn random_bits(&self) -> u128 {
        unreachable!("a node draws no lots")
    }

    fn random_below(&self, _: u64) -> u64 {
        unreachable!("a node draws no lots")
    }
}

/// How messages fare between one server and one node.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// Requests lost, of 100.
    pub requests_lost: u32,
    /// Replies lost, of 100.
    pub replies_lost: u32,
    /// Requests that arrive twice in a row, of 100.
    pub doubled: u32,
    /// Requests sent once more behind later ones, as after a script flush, of 100.
    pub resent: u32,
    /// One way takes up to this, ms.
    pub slow_ms: u64,
    /// Messages that take ten times as long, of 100.
    pub stragglers: u32,
}

impl Weather {
    pub const FAIR: Self =
        Self { requests_lost: 0, replies_lost: 0, doubled: 0, resent: 0, slow_ms: 2, stragglers: 2 };
}

/// What a message asks the node.
#[derive(Clone)]
enum Body {
    Call { command: Arc<Command>, marker: Option<Arc<Marker>> },
    Identify,
    Subscribe(Arc<str>),
}

/// Who waits for the answer.
enum Asker {
    Call(ReplyTo),
    Identify(oneshot::Sender<Result<Identity, NodeError>>),
    Subscribe(oneshot::Sender<Result<(), NodeError>>),
}

/// What came back.
enum Back {
    Value(Result<Value, NodeError>),
    Identity(Identity),
    Subscribed,
    Failed(NodeError),
}

impl Asker {
    fn answer(self, back: Back) {
        // A receiver that has left is no error.
        match (self, back) {
            (Self::Call(reply), Back::Value(value)) => reply.send(value),
            (Self::Call(reply), Back::Failed(why)) => reply.send(Err(why)),
            (Self::Identify(to), Back::Identity(identity)) => drop(to.send(Ok(identity))),
            (Self::Identify(to), Back::Failed(why)) => drop(to.send(Err(why))),
            (Self::Subscribe(to), Back::Subscribed) => drop(to.send(Ok(()))),
            (Self::Subscribe(to), Back::Failed(why)) => drop(to.send(Err(why))),
            _ => unreachable!("an answer to another question"),
        }
    }
}

/// Answers to give once no lock is held.
type Answers = Vec<(Asker, Back)>;

/// One way between an incarnation of a server and a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Way {
    pub server: usize,
    life: u32,
    pub node: usize,
}

struct Message {
    id: u64,
    conn: u64,
    /// Which start of the node the connection was made to.
    start: u32,
    body: Body,
}

enum Event {
    Arrive(Way, Message),
    Reply(Way, u64, Back),
    Timeout(Way, u64),
    Reset(Way, u64),
    Reconnect(Way),
    Hint(Way, Arc<str>, Box<str>),
    Resume { node: usize, stop: u64 },
    ServerResume { server: usize, pause: u64 },
    Restart { node: usize },
    Mend(Mend),
}

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
pub enum Mend {
    Weather(Way),
    Requests(Way),
    Replies(Way),
    Hints(Way),
    Memory(usize),
}

struct Due {
    at_ms: u64,
    order: u64,
    event: Event,
}

impl Due {
    fn key(&self) -> (u64, u64) {
        (self.at_ms, self.order)
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The driver's side of one way.
struct Link {
    embedded: Arc<EmbeddedNode>,
    conn: u64,
    up: bool,
    start: u32,
    run_id: String,
    former: Vec<String>,
    silence: u32,
    pending: BTreeMap<u64, Asker>,
    /// When looks at the node were sent that are not answered yet, and the last ones that were, ms.
    looks: BTreeMap<u64, u64>,
    looked: Vec<u64>,
    /// Nothing overtakes on one connection: when the last request and the last reply come.
    last_request: (u64, u64),
    last_reply: (u64, u64),
    /// What an old connection still holds comes then: (connection, ms).
    lag: Vec<(u64, u64)>,
    weather: Weather,
    requests_blocked: bool,
    replies_blocked: bool,
    sink: Option<Arc<dyn HintSink>>,
    wanted: BTreeSet<Arc<str>>,
    hints_cut: bool,
}

struct Server {
    life: u32,
    alive: bool,
    pause: u64,
    paused: bool,
    /// When it was paused last, and for how long it was before, ms.
    paused_at_ms: u64,
    paused_ms: u64,
    outbox: Vec<(Way, Call)>,
    inbox: Vec<Event>,
    links: Vec<Link>,
}

struct NodeState {
    embedded: Arc<EmbeddedNode>,
    clock: Arc<NodeClock>,
    up: bool,
    /// Counts the starts of its connections, and those of its process.
    start: u32,
    life: u32,
    stopped: bool,
    stop: u64,
    /// Messages that arrived while it was stopped.
    backlog: Vec<(Way, Message)>,
    /// It is a replica, and refuses to write.
    read_only: bool,
    /// When it last voted, ms.
    voted_ms: u64,
    /// How often it lost data.
    losses: u64,
    /// It has forgotten leases, as only servers can tell that looked at it before.
    untold: Option<Untold>,
    /// How often a server set about writing to it what it is.
    marks: u64,
    /// What it stored at some moments, ms; and when it last went back to one.
    snapshots: Vec<(u64, Arc<Snapshot>)>,
    back_ms: u64,
}

/// What a node forgot, until that is written to it.
struct Untold {
    incarnation: String,
    since_ms: u64,
    marks: u64,
}

pub struct Inner {
    rng: SmallRng,
    heap: BinaryHeap<Reverse<Due>>,
    order: u64,
    messages: u64,
    nodes: Vec<NodeState>,
    servers: Vec<Server>,
    node_timeout_ms: u64,
    /// No faults any more.
    calm: bool,
    closed: bool,
    /// What waits for an answer that a dead server can never get.
    graveyard: Vec<Asker>,
    buried: Vec<Call>,
    runs: u64,
    pub history: History,
    pub ledger: Ledger,
    /// When a node last lost its data, or took leases for expired since its clock stepped.
    pub forgot_ms: Option<u64>,
    /// How far nodes' clocks went back in all, ms: leases that had expired there live again.
    pub stepped_back_ms: u64,
    /// How often clocks went back where nodes have forgotten tokens, or nodes forgot tokens after that: nobody can tell
    /// then how far these had come.
    pub tokens_lost: u64,
}

/// A lease at a node: since when, with which ttl, and when that ends, ms.
struct Stored {
    at: u64,
    ttl: u64,
    ends: u64,
}

/// Which node was made to store which lease and was not told since to forget it. Whether the
/// lease has expired by itself makes no difference: who owes a release must not count on that.
#[derive(Default)]
pub struct Ledger {
    open: BTreeMap<(usize, String), Stored>,
    /// Which processes had to do with a lease: what they owe dies with them.
    touched: BTreeMap<String, BTreeSet<(usize, u32)>>,
    /// Leases that a node was told to forget, and of these the ones of which it may have forgotten that, too:
    /// an eviction leaves the marker, so an acquire that comes still later is done again. The node is in
    /// quarantine for longer than that lease may last.
    undone: BTreeSet<(usize, String)>,
    undone_before: BTreeSet<(usize, String)>,
}

impl Ledger {
    fn forgot(&mut self, node: usize) {
        self.open.retain(|(of, _), _| *of != node);
        let here = self.undone.iter().filter(|(of, _)| *of == node);
        self.undone_before.extend(here.cloned());
    }

    /// A node that answers the release of a lease with an error is asked again until the lease is over.
    fn refused(&mut self, way: Way, command: &Command, now: u64) {
        if command.script == Script::Release {
            let released = command.args().nth(1).unwrap_or_default();
            let is_over = |node: usize, lease: &str, stored: &Stored| {
                node == way.node && lease == released && stored.ends < now
            };
            self.open.retain(|(node, lease), stored| !is_over(*node, lease, stored));
        }
    }

    /// `done`: what it asked for; `stays`: a lease that it was to release, since a retry has joined it.
    fn ran(&mut self, way: Way, command: &Command, done: bool, stays: bool, now: u64) {
        if !command.script.is_batched() {
            return;
        }
        // How it runs, behind its name and the number of its keys; and what.
        let args: Vec<&str> = command.args().collect();
        let (how, what) = (args[0].split(' ').skip(2).collect::<Vec<_>>(), args[1]);
        let heals = command.script == Script::Heal;
        let lease = if heals { &what[14..46] } else { &what[..32] };
        self.touched.entry(lease.to_owned()).or_default().insert((way.server, way.life));
        match command.script {
            Script::Acquire if self.undone_before.contains(&(way.node, lease.to_owned())) => {}
            Script::Acquire | Script::Heal if done => {
                let ttl = if heals { what.split(' ').nth(5).unwrap_or_default() } else { how[0] };
                let ttl = ttl.parse().unwrap_or_default();
                self.open.insert((way.node, lease.to_owned()), Stored { at: now, ttl, ends: now + ttl });
            }
            Script::Release => {
                // One that stays ends by its ttl: nobody owes anything for it any more.
                self.open.remove(&(way.node, lease.to_owned()));
                if !stays {
                    self.undone.insert((way.node, lease.to_owned()));
                }
            }
            Script::Extend if done => {
                if let Some(stored) = self.open.get_mut(&(way.node, lease.to_owned())) {
                    stored.ttl = how[0].parse().unwrap_or(stored.ttl);
                    stored.ends = stored.ends.max(now + stored.ttl);
                }
            }
            _ => {}
        }
    }
}

/// Everything outside of the servers.
pub struct World {
    inner: Mutex<Inner>,
    /// An event became due earlier than all others.
    earlier: Notify,
    next_ms: AtomicU64,
    start: Instant,
    /// A server died or went on.
    pub servers_changed: Notify,
}

/// What a seed decides about a deployment.
pub struct Plan {
    pub seed: u64,
    pub nodes: usize,
    pub servers: usize,
    pub node_timeout_ms: u64,
    /// Parts per million that a node's clock may be fast or slow.
    pub rate_ppm_max: i64,
    /// How wrong a node's clock is at first, ms.
    pub node_offset_ms_max: i64,
}

impl World {
    pub fn new(plan: &Plan, printed: bool) -> Arc<Self> {
        let mut rng = SmallRng::seed_from_u64(plan.seed ^ 0x776f_726c_6400_0000);
        let nodes = (0..plan.nodes)
            .map(|i| {
                let rate_ppm = rng.random_range(-plan.rate_ppm_max..=plan.rate_ppm_max);
                let offset = rng.random_range(-plan.node_offset_ms_max..=plan.node_offset_ms_max);
                let clock = Arc::new(NodeClock::new(rate_ppm, offset * 1000));
                let embedded = EmbeddedNode::new(&format!("run-{i}-0"), Arc::clone(&clock) as _);
                let embedded = Arc::new(embedded.with_address(&format!("n{}", i + 1)));
                NodeState {
                    embedded,
                    clock,
                    up: true,
                    start: 0,
                    life: 0,
                    stopped: false,
                    stop: 0,
                    backlog: Vec::new(),
                    read_only: false,
                    voted_ms: 0,
                    losses: 0,
                    untold: None,
                    marks: 0,
                    snapshots: Vec::new(),
                    back_ms: 0,
                }
            })
            .collect();
        let server = |_| Server {
            life: 0,
            alive: false,
            pause: 0,
            paused: false,
            paused_at_ms: 0,
            paused_ms: 0,
            outbox: Vec::new(),
            inbox: Vec::new(),
            links: Vec::new(),
        };
        let inner = Inner {
            rng,
            heap: BinaryHeap::new(),
            order: 0,
            messages: 0,
            nodes,
            servers: (0..plan.servers).map(server).collect(),
            node_timeout_ms: plan.node_timeout_ms,
            calm: false,
            closed: false,
            graveyard: Vec::new(),
            buried: Vec::new(),
            runs: 0,
            history: History::new(printed),
            ledger: Ledger::default(),
            forgot_ms: None,
            stepped_back_ms: 0,
            tokens_lost: 0,
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            earlier: Notify::new(),
            next_ms: AtomicU64::new(u64::MAX),
            start: Instant::now(),
            servers_changed: Notify::new(),
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Virtual time since the start, ms.
    pub fn ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    pub fn note(&self, what: (&'static str, [u64; 3]), text: impl FnOnce() -> String) {
        let ms = self.ms();
        self.lock().history.note(ms, what, text);
    }

    /// A new process of server `server`: the nodes that it lists, one bit each, as its engine gets them.
    pub fn boot(self: &Arc<Self>, server: usize, list: u64) -> (u32, Vec<Arc<dyn Node>>) {
        let mut inner = self.lock();
        let weather = Weather { stragglers: if inner.calm { 0 } else { 2 }, ..Weather::FAIR };
        let links = inner
            .nodes
            .iter()
            .map(|node| Link {
                embedded: Arc::new(node.embedded.connect()),
                conn: 0,
                up: false,
                start: 0,
                run_id: String::new(),
                former: Vec::new(),
                silence: 0,
                pending: BTreeMap::new(),
                looks: BTreeMap::new(),
                looked: Vec::new(),
                last_request: (0, 0),
                last_reply: (0, 0),
                lag: Vec::new(),
                weather,
                requests_blocked: false,
                replies_blocked: false,
                sink: None,
                wanted: BTreeSet::new(),
                hints_cut: false,
            })
            .collect();
        let state = &mut inner.servers[server];
        state.life += 1;
        state.alive = true;
        state.paused = false;
        state.links = links;
        let life = state.life;
        let ways: Vec<_> = (0..inner.nodes.len()).map(|node| Way { server, life, node }).collect();
        for &way in &ways {
            inner.connect(way, self.ms());
        }
        drop(inner);
        let nodes = ways
            .into_iter()
            .filter(|way| list & (1 << way.node) != 0)
            .map(|way| {
                Arc::new(SimNode { world: Arc::clone(self), way, address: format!("n{}", way.node + 1) })
                    as Arc<dyn Node>
            })
            .collect();
        (life, nodes)
    }

    /// Delivers events for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            let due = {
                let mut inner = self.lock();
                match inner.heap.peek() {
                    Some(Reverse(due)) if due.at_ms <= self.ms() => {
                        inner.heap.pop().map(|Reverse(due)| due.event)
                    }
                    other => {
                        let next_ms = other.map_or(u64::MAX, |Reverse(due)| due.at_ms);
                        self.next_ms.store(next_ms, Ordering::Relaxed);
                        None
                    }
                }
            };
            if let Some(event) = due {
                let wakes = match &event {
                    Event::Arrive(..) | Event::Restart { .. } | Event::Mend(_) => false,
                    Event::Timeout(way, id) => self.lock().is_pending(*way, *id),
                    _ => true,
                };
                self.handle(event);
                if wakes {
                    // Whoever this woke acts before the next event.
                    tokio::task::yield_now().await;
                }
                continue;
            }
            let next_ms = self.next_ms.load(Ordering::Relaxed);
            let wait = async {
                match next_ms {
                    u64::MAX => std::future::pending().await,
                    next_ms => {
                        tokio::time::sleep_until(self.start + Duration::from_millis(next_ms)).await;
                    }
                }
            };
            tokio::select! {
                biased;
                () = self.earlier.notified() => {}
                () = wait => {}
            }
        }
    }

    /// Wakes the deliverer where something is due before what it waits for.
    fn schedule_changed(&self, inner: &Inner) {
        let first = inner.heap.peek().map_or(u64::MAX, |Reverse(due)| due.at_ms);
        if first < self.next_ms.load(Ordering::Relaxed) {
            self.next_ms.store(first, Ordering::Relaxed);
            self.earlier.notify_one();
        }
    }

    /// Changes the world, then tells everybody.
    fn with<T>(&self, change: impl FnOnce(&mut Inner, u64, &mut Answers) -> T) -> T {
        let mut answers = Vec::new();
        let result = {
            let mut inner = self.lock();
            let result = change(&mut inner, self.ms(), &mut answers);
            self.schedule_changed(&inner);
            result
        };
        for (asker, back) in answers {
            asker.answer(back);
        }
        result
    }

    fn handle(&self, event: Event) {
        if let Some(way) = event.way() {
            let mut inner = self.lock();
            let server = &mut inner.servers[way.server];
            if server.life != way.life || !server.alive {
                // What is on its way to a node still gets there; nothing comes back.
                if !matches!(event, Event::Arrive(..)) {
                    return;
                }
            } else if server.paused && event.is_for_server() {
                server.inbox.push(event);
                return;
            }
        }
        match event {
            Event::Arrive(way, message) => self.arrive(way, message),
            Event::Reply(way, id, back) => self.with(|inner, _, answers| {
                let link = inner.link(way);
                link.silence = 0;
                if let Some(sent_ms) = link.looks.remove(&id) {
                    link.looked.push(sent_ms);
                }
                if let Some(asker) = link.pending.remove(&id) {
                    answers.push((asker, back));
                }
            }),
            Event::Timeout(way, id) => self.with(|inner, now, answers| inner.timeout(way, id, now, answers)),
            Event::Reset(way, conn) => self.with(|inner, now, answers| {
                if inner.link(way).conn == conn && inner.link(way).up {
                    inner.disconnect(way, "closed by the node", now, answers);
                }
            }),
            Event::Reconnect(way) => {
                let missed = self.with(|inner, now, _| inner.connect(way, now));
                if let Some(sink) = missed {
                    sink.missed();
                }
            }
            Event::Hint(way, channel, message) => {
                let sink = {
                    let mut inner = self.lock();
                    let link = inner.link(way);
                    (!link.hints_cut && link.wanted.contains(&channel)).then(|| link.sink.clone()).flatten()
                };
                if let Some(sink) = sink {
                    sink.hint(&channel, &message);
                }
            }
            Event::Resume { node, stop } => {
                if self.lock().nodes[node].stop == stop {
                    self.resume_node(node);
                }
            }
            Event::ServerResume { server, pause } => {
                if self.lock().servers[server].pause == pause {
                    self.resume_server(server);
                }
            }
            Event::Restart { node } => self.start_node(node),
            Event::Mend(mend) => self.with(|inner, _, _| inner.mend(mend)),
        }
    }

    /// A request has come to its node.
    fn arrive(&self, way: Way, message: Message) {
        let (embedded, read_only) = {
            let mut guard = self.lock();
            let inner = &mut *guard;
            let now = self.ms();
            let alive = inner.servers[way.server].life == way.life && inner.servers[way.server].alive;
            if alive {
                let link = &inner.servers[way.server].links[way.node];
                if let Some(&(_, until)) = link.lag.iter().find(|(conn, _)| *conn == message.conn)
                    && until > now
                {
                    inner.push_in_order(until, Event::Arrive(way, message));
                    self.schedule_changed(inner);
                    return;
                }
                if link.requests_blocked {
                    inner.note(
                        now,
                        ("blocked", [way.server as u64, way.node as u64, message.id]),
                        String::new,
                    );
                    return;
                }
            }
            let node = &mut inner.nodes[way.node];
            if !node.up || node.start != message.start {
                // There is nobody behind this connection any more.
                inner.push(now, Event::Reset(way, message.conn));
                self.schedule_changed(inner);
                return;
            }
            if node.stopped {
                node.backlog.push((way, message));
                return;
            }
            let link = alive.then(|| &inner.servers[way.server].links[way.node]);
            let embedded = link.map_or_else(|| Arc::clone(&node.embedded), |link| Arc::clone(&link.embedded));
            (embedded, node.read_only)
        };
        // Without the lock: what the script publishes comes back to this world.
        let back = match &message.body {
            Body::Call { command, marker } => {
                let value = match command.script {
                    Script::Status => embedded.eval(command, marker.as_deref()),
                    _ if read_only => Err(NodeError::Redis("READONLY it is a replica".into())),
                    _ => embedded.eval(command, marker.as_deref()),
                };
                let refused = value.as_ref().map_or_else(|_| 9, code);
                if value.is_err() {
                    self.lock().ledger.refused(way, command, self.ms());
                } else {
                    let mut inner = self.lock();
                    let stays =
                        matches!(&value, Ok(Value::List(reply)) if reply.get(2) == Some(&Value::Int(1)));
                    inner.ledger.ran(way, command, refused == DONE, refused != DONE && stays, self.ms());
                    if command.script.is_marked() {
                        inner.nodes[way.node].voted_ms = self.ms();
                    }
                }
                let what = [(way.server * 10 + way.node) as u64, command.script as u64, refused as u64];
                self.note(("run", what), || {
                    let way = format!("s{}→n{}", way.server + 1, way.node + 1);
                    format!("{way} {} {}", command.script.name(), short(command, marker.as_deref(), &value))
                });
                Back::Value(value)
            }
            Body::Identify => match futures_util::FutureExt::now_or_never(embedded.identify()) {
                Some(Ok(identity)) => Back::Identity(identity),
                _ => return,
            },
            Body::Subscribe(channel) => {
                match futures_util::FutureExt::now_or_never(embedded.subscribe(Arc::clone(channel))) {
                    Some(Ok(())) => Back::Subscribed,
                    _ => return,
                }
            }
        };
        self.with(|inner, now, _| {
            inner.runs += 1;
            let server = &inner.servers[way.server];
            if server.life != way.life || !server.alive {
                return;
            }
            let link = &server.links[way.node];
            if link.conn != message.conn || link.replies_blocked {
                return;
            }
            let weather = link.weather;
            if inner.rng.random_range(0..100) < weather.replies_lost {
                return;
            }
            let delay = inner.delay(weather);
            let order = inner.next_order();
            let link = inner.link(way);
            let at = following(&mut link.last_reply, (now + delay, order));
            inner.heap.push(Reverse(Due {
                at_ms: at.0,
                order: at.1,
                event: Event::Reply(way, message.id, back),
            }));
        });
    }

    fn submit(&self, way: Way, call: Call) {
        self.with(|inner, now, answers| {
            let server = &mut inner.servers[way.server];
            if server.life != way.life || !server.alive || inner.closed {
                inner.buried.push(call);
                return;
            }
            if server.paused {
                server.outbox.push((way, call));
                return;
            }
            inner.send_call(way, call, now, answers);
        });
    }

    fn ask(&self, way: Way, body: Body, asker: Asker) {
        self.with(|inner, now, answers| {
            let server = &inner.servers[way.server];
            if server.life != way.life || !server.alive || inner.closed {
                inner.graveyard.push(asker);
                return;
            }
            inner.send(way, body, asker, now, answers);
        });
    }

    /// Whether this life of the server is over.
    pub fn is_dead(&self, server: usize, life: u32) -> bool {
        let inner = self.lock();
        inner.servers[server].life != life || !inner.servers[server].alive
    }

    pub fn is_paused(&self, server: usize) -> bool {
        self.lock().servers[server].paused
    }

    /// For how long this server has been paused in all, ms.
    pub fn paused_ms(&self, server: usize) -> u64 {
        let inner = self.lock();
        let state = &inner.servers[server];
        state.paused_ms + if state.paused { self.ms() - state.paused_at_ms } else { 0 }
    }

    fn resume_node(&self, node: usize) {
        self.with(|inner, now, _| {
            let state = &mut inner.nodes[node];
            state.stopped = false;
            let mut backlog = std::mem::take(&mut state.backlog);
            inner.note(now, ("node on", [node as u64, backlog.len() as u64, 0]), || {
                format!("n{} goes on with {} messages", node + 1, backlog.len())
            });
            // Each connection in its own order, connections in any.
            while !backlog.is_empty() {
                let pick = inner.rng.random_range(0..backlog.len());
                let conn = |entry: &(Way, Message)| (entry.0, entry.1.conn);
                let chosen = conn(&backlog[pick]);
                let first = backlog.iter().position(|entry| conn(entry) == chosen).unwrap_or(pick);
                let (way, message) = backlog.remove(first);
                inner.push_in_order(now, Event::Arrive(way, message));
            }
        });
    }

    fn resume_server(&self, server: usize) {
        let inbox = self.with(|inner, now, answers| {
            let state = &mut inner.servers[server];
            state.paused = false;
            state.paused_ms += now - state.paused_at_ms;
            let inbox = std::mem::take(&mut state.inbox);
            let outbox = std::mem::take(&mut state.outbox);
            inner.note(now, ("server on", [server as u64, inbox.len() as u64, outbox.len() as u64]), || {
                format!("s{} goes on: {} came, {} to send", server + 1, inbox.len(), outbox.len())
            });
            for (way, call) in outbox {
                inner.send_call(way, call, now, answers);
            }
            inbox
        });
        self.with(|inner, now, _| {
            for event in inbox {
                inner.push_in_order(now, event);
            }
        });
        self.servers_changed.notify_waiters();
    }

    fn start_node(&self, node: usize) {
        self.with(|inner, now, _| {
            if inner.nodes[node].up {
                return;
            }
            inner.nodes[node].up = true;
            // For what servers that died meanwhile had sent: their own connections are gone.
            drop(inner.nodes[node].embedded.identify());
            inner.note(now, ("node up", [node as u64, 0, 0]), || format!("n{} is up again", node + 1));
        });
    }

    // What faults do.

    /// The ways that exist now.
    pub fn ways(&self) -> Vec<Way> {
        let inner = self.lock();
        let alive = inner.servers.iter().enumerate().filter(|(_, server)| server.alive);
        alive
            .flat_map(|(i, server)| {
                let life = server.life;
                (0..inner.nodes.len()).map(move |node| Way { server: i, life, node })
            })
            .collect()
    }

    /// Changes how messages fare on a way, for a while.
    pub fn set_weather(&self, way: Way, weather: Weather, for_ms: u64) {
        self.with(|inner, now, _| {
            inner.link(way).weather = weather;
            inner.push(now + for_ms, Event::Mend(Mend::Weather(way)));
        });
    }

    /// Loses everything in one direction or both.
    pub fn block(&self, way: Way, requests: bool, replies: bool, for_ms: u64) {
        self.with(|inner, now, _| {
            if requests {
                inner.link(way).requests_blocked = true;
                inner.push(now + for_ms, Event::Mend(Mend::Requests(way)));
            }
            if replies {
                inner.link(way).replies_blocked = true;
                inner.push(now + for_ms, Event::Mend(Mend::Replies(way)));
            }
        });
    }

    /// Cuts the connection at the server's end; what it had sent comes to the node late.
    pub fn cut(&self, way: Way, late_ms: u64) {
        self.with(|inner, now, answers| {
            let link = inner.link(way);
            if link.up {
                let conn = link.conn;
                link.lag.push((conn, now + late_ms));
                inner.disconnect(way, "connection reset", now, answers);
            }
        });
    }

    pub fn cut_hints(&self, way: Way, for_ms: u64) {
        self.with(|inner, now, _| {
            inner.link(way).hints_cut = true;
            inner.push(now + for_ms, Event::Mend(Mend::Hints(way)));
        });
    }

    /// A node becomes what must not vote: a replica, which writes nothing, or one that may evict.
    pub fn make_unfit(&self, node: usize, replica: bool) {
        let mut inner = self.lock();
        let now = self.ms();
        let state = &mut inner.nodes[node];
        state.read_only = replica;
        if replica {
            state.embedded.set_role("slave");
        } else {
            state.embedded.set_eviction("volatile-ttl");
        }
        inner.note(now, ("unfit", [node as u64, u64::from(replica), 0]), || {
            format!("n{} {}", node + 1, if replica { "becomes a replica" } else { "may evict" })
        });
    }

    /// It is a master that evicts nothing again. Where `forgets` it has lost some of its leases by then,
    /// though neither its process nor its marker tell.
    pub fn make_fit(&self, node: usize, forgets: bool) {
        let embedded = {
            let mut inner = self.lock();
            let now = self.ms();
            let state = &mut inner.nodes[node];
            state.read_only = false;
            state.embedded.set_role("master");
            state.embedded.set_eviction("noeviction");
            let embedded = Arc::clone(&state.embedded);
            if forgets {
                inner.forgot(node, now);
                inner.nodes[node].forgets_untold(now);
            }
            inner.note(now, ("fit", [node as u64, u64::from(forgets), 0]), || {
                format!("n{} is fit to vote{}", node + 1, if forgets { ", but has lost leases" } else { "" })
            });
            embedded
        };
        if forgets {
            for key in embedded.keys() {
                // What does not expire stays.
                let lost = key != MARKER && self.lock().rng.random_range(0..4) > 0;
                if lost {
                    let _ = embedded.command(&["DEL", &key]);
                }
            }
        }
    }

    /// When a node last voted, ms.
    pub fn voted_ms(&self, node: usize) -> u64 {
        self.lock().nodes[node].voted_ms
    }

    /// Whether all faults have ended.
    pub fn is_calm(&self) -> bool {
        self.lock().calm
    }

    /// Ends the process of a node; it starts again after `down_ms`.
    pub fn crash_node(&self, node: usize, keep_data: bool, down_ms: u64) {
        self.with(|inner, now, _| {
            let state = &mut inner.nodes[node];
            if !state.up {
                return;
            }
            state.up = false;
            state.stopped = false;
            state.stop += 1;
            state.life += 1;
            state.untold = None;
            let run_id = format!("run-{node}-{}", state.life);
            state.embedded.restart(&run_id, keep_data);
            if !keep_data {
                inner.forgot(node, now);
            }
            inner.push(now + down_ms, Event::Restart { node });
            inner.break_connections(node, now);
        });
    }

    /// The node that had this process, if it still has.
    pub fn node_of(&self, run_id: &str) -> Option<usize> {
        let inner = self.lock();
        let is_it =
            |(i, node): (usize, &NodeState)| (run_id == format!("run-{i}-{}", node.life)).then_some(i);
        inner.nodes.iter().enumerate().find_map(is_it)
    }

    /// Nodes whose process is closed.
    pub fn closed_nodes(&self) -> Vec<usize> {
        let nodes: Vec<_> = {
            let inner = self.lock();
            let process = |i: usize| format!(" run-{i}-{}", inner.nodes[i].life);
            (0..inner.nodes.len()).map(|i| (process(i), Arc::clone(&inner.nodes[i].embedded))).collect()
        };
        let is_closed = |(process, node): &(String, Arc<EmbeddedNode>)| {
            node.get_raw(MARKER).is_some_and(|text| text.starts_with("2 closed ") && text.ends_with(process))
        };
        nodes.iter().enumerate().filter(|(_, node)| is_closed(node)).map(|(i, _)| i).collect()
    }

    /// What each node stores of the membership.
    pub fn registers(&self) -> Vec<String> {
        let nodes: Vec<_> = self.lock().nodes.iter().map(|node| Arc::clone(&node.embedded)).collect();
        nodes.iter().filter_map(|node| node.get_raw("quorate:membership")).collect()
    }

    /// What a closed node stores now.
    pub fn copy_of(&self, node: usize) -> Option<Arc<Snapshot>> {
        let embedded = Arc::clone(&self.lock().nodes[node].embedded);
        let is_closed = embedded.get_raw(MARKER)?.starts_with("2 closed ");
        is_closed.then(|| Arc::new(embedded.snapshot()))
    }

    /// Restarts a node with what it once stored.
    pub fn roll_back(&self, node: usize, snapshot: &Snapshot, down_ms: u64) {
        if self.lock().nodes[node].up {
            self.crash_node(node, false, down_ms);
            self.lock().nodes[node].embedded.restore(snapshot);
        }
    }

    /// A later version has marked a node, for a while; whether its marker was left alone.
    pub async fn mark_newer(&self, node: usize, for_ms: u64) -> bool {
        const NEWER: &str = "3 of a later version";
        let (embedded, losses) = {
            let inner = self.lock();
            (Arc::clone(&inner.nodes[node].embedded), inner.nodes[node].losses)
        };
        let Some(before) = embedded.get_raw(MARKER).filter(|before| before != NEWER) else { return true };
        if embedded.command(&["SET", MARKER, NEWER]).is_err() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(for_ms)).await;
        let is_there = embedded.get_raw(MARKER).as_deref() == Some(NEWER);
        // Its memory may be full for a while.
        while embedded.get_raw(MARKER).as_deref() == Some(NEWER) {
            if embedded.command(&["SET", MARKER, &before]).is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        is_there || self.lock().nodes[node].losses != losses
    }

    /// A member has gone, and has taken what it held with it.
    pub fn left(&self) {
        let mut inner = self.lock();
        inner.forgot_ms = Some(self.ms());
    }

    /// Loses all data of a node, which goes on running.
    pub fn flush_node(&self, node: usize) {
        let embedded = {
            let mut inner = self.lock();
            inner.forgot(node, self.ms());
            Arc::clone(&inner.nodes[node].embedded)
        };
        embedded.flush();
    }

    /// Stops a node for a while; what arrives is executed afterwards.
    pub fn stop_node(&self, node: usize, for_ms: u64) {
        self.with(|inner, now, _| {
            let state = &mut inner.nodes[node];
            if state.up && !state.stopped {
                state.stopped = true;
                state.stop += 1;
                let stop = state.stop;
                inner.push(now + for_ms, Event::Resume { node, stop });
            }
        });
    }

    pub fn fill_memory(&self, node: usize, for_ms: u64) {
        let embedded = Arc::clone(&self.lock().nodes[node].embedded);
        embedded.set_memory_full(true);
        // Looks are not counted there from now on.
        self.lock().nodes[node].snapshots.clear();
        self.with(|inner, now, _| inner.push(now + for_ms, Event::Mend(Mend::Memory(node))));
    }

    pub fn step_node_clock(&self, node: usize, by_ms: i64) {
        let mut inner = self.lock();
        inner.stepped_back_ms += by_ms.min(0).unsigned_abs();
        inner.tokens_lost += u64::from(by_ms < 0 && inner.forgot_ms.is_some());
        inner.nodes[node].clock.step(by_ms * 1000);
        if by_ms > 0 {
            // What it held has expired there.
            inner.forgot_ms = Some(self.ms());
            inner.nodes[node].forgets_untold(self.ms());
        }
    }

    /// All servers stand still for a while, as on one machine that is suspended: the nodes' clocks go on meanwhile.
    pub fn stand_still(&self, for_ms: u64) {
        let inner = self.lock();
        inner.nodes.iter().for_each(|node| node.clock.step(for_ms as i64 * 1000));
    }

    /// Keeps what a node stores now, for later.
    pub fn take_snapshot(&self, node: usize) {
        let now = self.ms();
        let state = &mut self.lock().nodes[node];
        if state.up && state.embedded.get_raw(MARKER).is_some_and(|marker| marker.starts_with("2 ")) {
            state.snapshots.push((now, Arc::new(state.embedded.snapshot())));
        }
    }

    /// A node goes back to a snapshot, with its process or, where that `restarts`, as another one. One whose process
    /// goes on is told only by those who have looked at it often enough since. Whether it did.
    pub fn go_back(&self, node: usize, restarts: bool) -> bool {
        let snapshot = {
            let mut inner = self.lock();
            let pick =
                inner.nodes[node].snapshots.len().checked_sub(1).map(|last| inner.rng.random_range(0..=last));
            let Some((taken_ms, snapshot)) = pick.map(|i| inner.nodes[node].snapshots[i].clone()) else {
                return false;
            };
            // Of three servers each finds it further back than before, whichever looks first.
            let state = &inner.nodes[node];
            let is_marked = incarnation(&state.embedded).is_some();
            let is_told = restarts || is_marked && inner.have_looked(node, taken_ms.max(state.back_ms), 4);
            if !is_told || !inner.nodes[node].up || inner.nodes[node].stopped {
                return false;
            }
            snapshot
        };
        if restarts {
            self.crash_node(node, false, 1);
        }
        self.with(|inner, now, _| {
            let embedded = Arc::clone(&inner.nodes[node].embedded);
            if !restarts {
                inner.forgot(node, now);
                inner.break_connections(node, now);
            }
            embedded.restore(&snapshot);
            inner.nodes[node].back_ms = now;
            if !restarts {
                inner.nodes[node].forgets_untold(now);
            }
            inner.note(now, ("back", [node as u64, u64::from(restarts), 0]), || {
                format!("n{} is back at a snapshot", node + 1)
            });
        });
        true
    }

    /// Whether what a node forgot is known only to servers that looked at it before: others must not start now. Servers
    /// that have seen it again and again, and write nothing, are not waited for.
    pub fn is_untold(&self) -> bool {
        let mut guard = self.lock();
        let (inner, now_ms) = (&mut *guard, self.ms());
        for (i, node) in inner.nodes.iter_mut().enumerate() {
            let servers = inner.servers.iter().filter(|server| server.alive);
            let looks = |since_ms| {
                let looked = servers.map(|server| &server.links[i].looked);
                looked.map(|looked| looked.iter().filter(|ms| **ms > since_ms).count()).max().unwrap_or(0)
            };
            // What a later version has marked for a while is marked as before afterwards.
            let is_newer = node.embedded.get_raw(MARKER).is_some_and(|marker| marker.starts_with("3 "));
            let now = incarnation(&node.embedded);
            let marks = node.marks;
            node.untold = node.untold.take().filter(|untold| {
                let is_told = !is_newer && now.as_ref() != Some(&untold.incarnation);
                let is_neglected = untold.marks == marks && looks(untold.since_ms) >= 8;
                !is_told && !is_neglected && now_ms < untold.since_ms + 30_000
            });
        }
        inner.nodes.iter().any(|node| node.untold.is_some())
    }

    /// The first nodes are of a deployment of the version before.
    pub fn mark_old(&self, nodes: usize, max_ttl_ms: u64) {
        for (i, node) in self.lock().nodes.iter().take(nodes).enumerate() {
            let marker = format!("1 run-{i}-0 old {nodes} {max_ttl_ms}");
            let _ = node.embedded.command(&["SET", "quorate:node", &marker]);
        }
    }

    /// Whether every server has looked at a node.
    pub fn is_known(&self, node: usize) -> bool {
        self.lock().have_looked(node, 0, 1)
    }

    /// Ends a server without a chance to clean up.
    pub fn crash_server(&self, server: usize) {
        let mut inner = self.lock();
        if !inner.servers[server].alive {
            return;
        }
        let state = &mut inner.servers[server];
        state.alive = false;
        let outbox = std::mem::take(&mut state.outbox);
        let inbox = std::mem::take(&mut state.inbox);
        let mut askers = Vec::new();
        for link in &mut state.links {
            askers.extend(std::mem::take(&mut link.pending).into_values());
            for channel in &link.wanted {
                link.embedded.unsubscribe(channel);
            }
        }
        inner.graveyard.extend(askers);
        inner.buried.extend(outbox.into_iter().map(|(_, call)| call));
        drop(inner);
        drop(inbox);
        self.servers_changed.notify_waiters();
    }

    pub fn nodes(&self) -> usize {
        self.lock().nodes.len()
    }

    pub fn is_alive(&self, server: usize) -> bool {
        self.lock().servers[server].alive
    }

    /// Stops a server for a while: nothing comes in, nothing goes out.
    pub fn pause_server(&self, server: usize, for_ms: u64) {
        self.with(|inner, now, _| {
            let state = &mut inner.servers[server];
            if state.alive && !state.paused {
                state.paused = true;
                state.paused_at_ms = now;
                state.pause += 1;
                let pause = state.pause;
                inner.push(now + for_ms, Event::ServerResume { server, pause });
            }
        });
    }

    /// Ends all faults; nothing bad happens any more.
    pub fn calm(&self) {
        let (nodes, servers): (Vec<_>, Vec<_>) = {
            let mut inner = self.lock();
            inner.calm = true;
            for server in 0..inner.servers.len() {
                let life = inner.servers[server].life;
                for node in 0..inner.servers[server].links.len() {
                    let way = Way { server, life, node };
                    for mend in
                        [Mend::Weather(way), Mend::Requests(way), Mend::Replies(way), Mend::Hints(way)]
                    {
                        inner.mend(mend);
                    }
                    inner.link(way).lag.clear();
                    // Two in a row, there and back, take longer than the shortest time-out.
                    inner.link(way).weather.stragglers = 0;
                }
            }
            inner.nodes.iter().for_each(|node| node.clock.run_right());
            let nodes = inner.nodes.iter().map(|node| (node.up, node.stopped)).collect();
            let servers = inner.servers.iter().map(|server| server.paused).collect();
            (nodes, servers)
        };
        for (i, (up, stopped)) in nodes.into_iter().enumerate() {
            if !up {
                self.start_node(i);
            }
            if stopped {
                self.resume_node(i);
            }
            self.with(|inner, _, _| inner.mend(Mend::Memory(i)));
        }
        for (i, paused) in servers.into_iter().enumerate() {
            if paused {
                self.resume_server(i);
            }
        }
    }

    /// The run is over: nothing is sent any more.
    pub fn close(&self) {
        let (graveyard, buried) = {
            let mut inner = self.lock();
            inner.closed = true;
            inner.heap.clear();
            for server in &mut inner.servers {
                for link in &mut server.links {
                    link.sink = None;
                }
            }
            (std::mem::take(&mut inner.graveyard), std::mem::take(&mut inner.buried))
        };
        drop(graveyard);
        drop(buried);
        // What those dropped may have been buried again.
        let links: Vec<_> =
            self.lock().servers.iter_mut().flat_map(|s| std::mem::take(&mut s.links)).collect();
        drop(links);
        self.lock().buried.clear();
    }

    /// Leases that a node was made to store and not told to forget since: node, lease, when.
    /// Without those that a process had to do with which is dead.
    pub fn unsettled(&self) -> Vec<(usize, String, u64)> {
        let inner = self.lock();
        let ledger = &inner.ledger;
        let lives = |&(server, life): &(usize, u32)| {
            inner.servers[server].life == life && inner.servers[server].alive
        };
        ledger
            .open
            .iter()
            .filter(|((_, lease), _)| ledger.touched[lease].iter().all(lives))
            .map(|((node, lease), stored)| (*node, lease.clone(), stored.at))
            .collect()
    }

    /// Scripts run so far.
    pub fn runs(&self) -> u64 {
        self.lock().runs
    }
}

/// The incarnation that a node is marked as, if it is; the epoch makes no difference.
fn incarnation(node: &EmbeddedNode) -> Option<String> {
    let marker = node.get_raw(MARKER)?;
    let mut words = marker.strip_prefix("2 member ")?.split(' ').skip(2);
    Some(format!("{} {}", words.next()?, words.next()?))
}

/// A call and its reply as people can read them: ids cut short, JSON and times left out.
fn short(command: &Command, marker: Option<&Marker>, reply: &Result<Value, NodeError>) -> String {
    let word = |word: &str| match word {
        word if word.starts_with('{') => "…".to_owned(),
        word => word
            .strip_prefix("quorate:")
            .unwrap_or(word)
            .split(':')
            .map(|part| if part.len() >= 32 && part.is_ascii() { &part[..6] } else { part })
            .collect::<Vec<_>>()
            .join(":"),
    };
    fn value(reply: &Value, word: &dyn Fn(&str) -> String) -> String {
        match reply {
            Value::Nil => "nil".to_owned(),
            Value::Int(number) => number.to_string(),
            Value::Text(text) => word(text),
            Value::List(list) => {
                let items: Vec<_> = list.iter().map(|item| value(item, word)).collect();
                format!("[{}]", items.join(" "))
            }
        }
    }
    let words = |words: Vec<String>| words.iter().map(|text| word(text)).collect::<Vec<_>>().join(" ");
    let (keys, args) = command.invocation(marker);
    let reply = match reply {
        Ok(reply) => value(reply, &word),
        Err(why) => why.to_string(),
    };
    format!("{} | {} = {reply}", words(keys), words(args))
}

/// [`code`] of a script that did what it was asked for.
const DONE: i64 = 5;

/// The code that a script's reply begins with, +4, so that it is not negative.
fn code(value: &Value) -> i64 {
    match value {
        Value::List(list) => match list.first() {
            Some(Value::Int(code)) => code + 4,
            _ => 0,
        },
        _ => 0,
    }
}

/// Keeps the order of one connection: `next`, or right after `last`.
fn following(last: &mut (u64, u64), next: (u64, u64)) -> (u64, u64) {
    *last = if next > *last { next } else { (last.0, last.1 + 1) };
    *last
}

impl Event {
    fn way(&self) -> Option<Way> {
        match self {
            Self::Arrive(way, _)
            | Self::Reply(way, ..)
            | Self::Timeout(way, _)
            | Self::Reset(way, _)
            | Self::Reconnect(way)
            | Self::Hint(way, ..) => Some(*way),
            Self::Mend(Mend::Memory(_)) => None,
            Self::Mend(Mend::Weather(way) | Mend::Requests(way) | Mend::Replies(way) | Mend::Hints(way)) => {
                Some(*way)
            }
            Self::Resume { .. } | Self::ServerResume { .. } | Self::Restart { .. } => None,
        }
    }

    fn is_for_server(&self) -> bool {
        !matches!(self, Self::Arrive(..) | Self::Mend(_))
    }
}

impl NodeState {
    /// It has forgotten leases, but not its marker.
    fn forgets_untold(&mut self, now: u64) {
        let untold = |incarnation| Untold { incarnation, since_ms: now, marks: self.marks };
        self.untold = incarnation(&self.embedded).map(untold);
    }
}

impl Inner {
    fn note(&mut self, ms: u64, what: (&'static str, [u64; 3]), text: impl FnOnce() -> String) {
        self.history.note(ms, what, text);
    }

    fn is_pending(&self, way: Way, id: u64) -> bool {
        let server = &self.servers[way.server];
        server.life == way.life && server.links[way.node].pending.contains_key(&id)
    }

    /// All connections of a node break.
    fn break_connections(&mut self, node: usize, now: u64) {
        self.nodes[node].start += 1;
        self.nodes[node].backlog.clear();
        for server in 0..self.servers.len() {
            if !self.servers[server].alive {
                continue;
            }
            let life = self.servers[server].life;
            let link = &self.servers[server].links[node];
            let way = Way { server, life, node };
            for channel in &link.wanted {
                link.embedded.unsubscribe(channel);
            }
            let conn = link.conn;
            let delay = self.rng.random_range(0..5);
            self.push(now + delay, Event::Reset(way, conn));
        }
    }

    /// Whether every server has looked at a node so often since then.
    fn have_looked(&self, node: usize, since_ms: u64, times: usize) -> bool {
        let mut servers = self.servers.iter().filter(|server| server.alive).peekable();
        let looks = |looked: &[u64]| looked.iter().filter(|sent_ms| **sent_ms > since_ms).count();
        servers.peek().is_some() && servers.all(|server| looks(&server.links[node].looked) >= times)
    }

    /// A node has lost its data.
    fn forgot(&mut self, node: usize, now: u64) {
        self.nodes[node].losses += 1;
        self.tokens_lost += u64::from(self.stepped_back_ms > 0);
        self.forgot_ms = Some(now);
        self.ledger.forgot(node);
    }

    fn link(&mut self, way: Way) -> &mut Link {
        &mut self.servers[way.server].links[way.node]
    }

    /// A place among the events of one moment: by chance, or nothing would ever overtake.
    fn next_order(&mut self) -> u64 {
        self.order += 1;
        (self.rng.random_range(0..1_u64 << 20) << 32) | self.order
    }

    fn push(&mut self, at_ms: u64, event: Event) {
        let order = self.next_order();
        self.heap.push(Reverse(Due { at_ms, order, event }));
    }

    /// Behind all that are due at the same moment so far.
    fn push_in_order(&mut self, at_ms: u64, event: Event) {
        self.order += 1;
        let order = (1 << 60) | self.order;
        self.heap.push(Reverse(Due { at_ms, order, event }));
    }

    fn delay(&mut self, weather: Weather) -> u64 {
        let delay = self.rng.random_range(0..=weather.slow_ms);
        if self.rng.random_range(0..100) < weather.stragglers { delay * 10 } else { delay }
    }

    fn send_call(&mut self, way: Way, mut call: Call, now: u64, answers: &mut Answers) {
        // As the driver does.
        let is_stale = call.is_stale(&self.link(way).former);
        let Call { command, marker, reply } = call;
        if is_stale {
            answers.push((Asker::Call(reply), Back::Failed(NodeError::Unmarked)));
            return;
        }
        self.send(way, Body::Call { command, marker }, Asker::Call(reply), now, answers);
    }

    fn send(&mut self, way: Way, body: Body, asker: Asker, now: u64, answers: &mut Answers) {
        self.messages += 1;
        let id = self.messages;
        let timeout_ms = self.node_timeout_ms;
        let link = self.link(way);
        if !link.up {
            answers.push((asker, Back::Failed(NodeError::Connection("not connected".into()))));
            return;
        }
        link.pending.insert(id, asker);
        let script = if let Body::Call { command, .. } = &body { Some(command.script) } else { None };
        if script == Some(Script::Status) {
            link.looks.insert(id, now);
        }
        let message = Message { id, conn: link.conn, start: link.start, body };
        let weather = link.weather;
        self.nodes[way.node].marks += u64::from(script == Some(Script::Mark));
        self.push(now + timeout_ms, Event::Timeout(way, id));
        if self.rng.random_range(0..100) < weather.requests_lost {
            self.note(now, ("lost", [way.server as u64, way.node as u64, id]), String::new);
            return;
        }
        let delay = self.delay(weather);
        let doubled = self.rng.random_range(0..100) < weather.doubled;
        let resent = self.rng.random_range(0..100) < weather.resent;
        let at = (now + delay, self.next_order());
        let mut at = following(&mut self.link(way).last_request, at);
        if resent {
            // Refused there for want of the script, and sent once more: later ones may be first.
            at = (at.0 + 1 + self.rng.random_range(0..=weather.slow_ms), self.next_order());
        } else if doubled {
            let twin = Message { body: message.body.clone(), ..message };
            let at = following(&mut self.link(way).last_request, at);
            self.heap.push(Reverse(Due { at_ms: at.0, order: at.1, event: Event::Arrive(way, twin) }));
        }
        self.heap.push(Reverse(Due { at_ms: at.0, order: at.1, event: Event::Arrive(way, message) }));
    }

    fn timeout(&mut self, way: Way, id: u64, now: u64, answers: &mut Answers) {
        let link = self.link(way);
        let Some(asker) = link.pending.remove(&id) else { return };
        answers.push((asker, Back::Failed(NodeError::Timeout)));
        link.silence += 1;
        if link.silence >= SILENCE_MAX && link.up {
            self.disconnect(way, "no reply for too long", now, answers);
        }
    }

    fn disconnect(&mut self, way: Way, why: &str, now: u64, answers: &mut Answers) {
        let again_ms = self.rng.random_range(0..50);
        let link = self.link(way);
        link.up = false;
        link.silence = 0;
        for asker in std::mem::take(&mut link.pending).into_values() {
            answers.push((asker, Back::Failed(NodeError::Connection(why.into()))));
        }
        let conn = link.conn;
        self.note(now, ("disconnect", [way.server as u64, way.node as u64, conn]), || {
            format!("s{}→n{} connection {conn}: {why}", way.server + 1, way.node + 1)
        });
        self.push(now + again_ms, Event::Reconnect(way));
    }

    /// Makes a connection, or tries again later. Says who may have missed hints.
    fn connect(&mut self, way: Way, now: u64) -> Option<Arc<dyn HintSink>> {
        let node = &self.nodes[way.node];
        let (reachable, start) = (node.up && !node.stopped, node.start);
        let link = &self.servers[way.server].links[way.node];
        if link.up {
            return None;
        }
        if !reachable || link.requests_blocked || link.replies_blocked {
            let again_ms = self.rng.random_range(50..250);
            self.push(now + again_ms, Event::Reconnect(way));
            return None;
        }
        let embedded = Arc::clone(&link.embedded);
        let identity = futures_util::FutureExt::now_or_never(embedded.identify())?.ok()?;
        let link = self.link(way);
        link.conn += 1;
        link.up = true;
        link.start = start;
        if link.run_id != identity.run_id {
            let former = std::mem::replace(&mut link.run_id, identity.run_id.clone());
            link.former.retain(|known| *known != identity.run_id);
            if !former.is_empty() {
                link.former.push(former);
            }
        }
        for channel in &link.wanted {
            drop(embedded.subscribe(Arc::clone(channel)));
        }
        let (conn, sink) = (link.conn, link.sink.clone());
        self.note(now, ("connect", [way.server as u64, way.node as u64, conn]), || {
            format!("s{}→n{} connection {conn}", way.server + 1, way.node + 1)
        });
        sink
    }

    fn mend(&mut self, mend: Mend) {
        let way = match mend {
            Mend::Weather(way) | Mend::Requests(way) | Mend::Replies(way) | Mend::Hints(way) => way,
            Mend::Memory(node) => {
                self.nodes[node].embedded.set_memory_full(false);
                self.nodes[node].snapshots.clear();
                return;
            }
        };
        let server = &mut self.servers[way.server];
        if server.life != way.life {
            return;
        }
        let link = &mut server.links[way.node];
        match mend {
            Mend::Weather(_) => link.weather = Weather::FAIR,
            Mend::Requests(_) => link.requests_blocked = false,
            Mend::Replies(_) => link.replies_blocked = false,
            Mend::Hints(_) => link.hints_cut = false,
            Mend::Memory(_) => {}
        }
    }
}

/// The driver of one node, as one server has it.
pub struct SimNode {
    world: Arc<World>,
    way: Way,
    address: String,
}

/// What a node publishes travels like everything else.
struct Wire {
    world: std::sync::Weak<World>,
    way: Way,
}

impl HintSink for Wire {
    fn hint(&self, channel: &str, message: &str) {
        let Some(world) = self.world.upgrade() else { return };
        world.with(|inner, now, _| {
            let server = &inner.servers[self.way.server];
            if server.life != self.way.life || !server.alive {
                return;
            }
            let link = &server.links[self.way.node];
            let weather = link.weather;
            if link.hints_cut || link.replies_blocked || inner.rng.random_range(0..100) < weather.replies_lost
            {
                return;
            }
            let delay = inner.delay(weather);
            inner.push(now + delay, Event::Hint(self.way, channel.into(), message.into()));
        });
    }

    fn missed(&self) {
        // The connection breaks with the node, and the next one tells.
    }
}

impl Node for SimNode {
    fn submit(&self, call: Call) {
        self.world.submit(self.way, call);
    }

    fn identify(&self) -> BoxFuture<Result<Identity, NodeError>> {
        let (to, identity) = oneshot::channel();
        self.world.ask(self.way, Body::Identify, Asker::Identify(to));
        Box::pin(async move { identity.await.unwrap_or(Err(NodeError::Dropped)) })
    }

    fn subscribe(&self, channel: Arc<str>) -> BoxFuture<Result<(), NodeError>> {
        let (to, confirmed) = oneshot::channel();
        if !self.world.is_dead(self.way.server, self.way.life) {
            self.world.lock().link(self.way).wanted.insert(Arc::clone(&channel));
        }
        self.world.ask(self.way, Body::Subscribe(channel), Asker::Subscribe(to));
        Box::pin(async move { confirmed.await.unwrap_or(Err(NodeError::Dropped)) })
    }

    fn unsubscribe(&self, channel: &str) {
        if !self.world.is_dead(self.way.server, self.way.life) {
            let embedded = {
                let mut inner = self.world.lock();
                let link = inner.link(self.way);
                link.wanted.remove(channel);
                Arc::clone(&link.embedded)
            };
            embedded.unsubscribe(channel);
        }
    }

    fn listen(&self, sink: Arc<dyn HintSink>) {
        let wire = Wire { world: Arc::downgrade(&self.world), way: self.way };
        let embedded = {
            let mut inner = self.world.lock();
            let link = inner.link(self.way);
            link.sink = Some(sink);
            Arc::clone(&link.embedded)
        };
        embedded.listen(Arc::new(wire));
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn connection(&self) -> u64 {
        if self.world.is_dead(self.way.server, self.way.life) {
            return 0;
        }
        self.world.lock().link(self.way).conn
    }
}
