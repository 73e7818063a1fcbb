//! What tests of single rounds run on: two API servers over three embedded nodes, whose calls a test can
//! hold up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Engine, EngineOptions, Extension, Order, Round};
use crate::clock::Clock;
use crate::domain::{Ask, Keys, LeaseHandle, Mode, Name, Renewal, Scope};
use crate::node::embedded::EmbeddedNode;
use crate::node::{BoxFuture, Call, Command, HintSink, Identity, Marker, Node, NodeError, Script};

/// The wall clock goes with the time that the test has paused.
struct Paused(Instant);

impl Clock for Paused {
    fn wall_us(&self) -> u64 {
        1_790_000_000_000_000 + self.0.elapsed().as_micros() as u64
    }

    fn random_bits(&self) -> u128 {
        rand::random()
    }

    fn random_below(&self, bound: u64) -> u64 {
        rand::random_range(0..bound.max(1))
    }
}

/// In which what was sent is done.
const TICK: Duration = Duration::from_millis(2);

/// Which calls a node does not get to.
#[derive(Clone, Copy)]
enum Hangs {
    Never,
    With(Script),
    Always,
}

/// A call that was answered for the node.
pub(crate) struct Late {
    command: Arc<Command>,
    marker: Option<Arc<Marker>>,
}

/// A connection to a node that counts what it is sent, and may hang.
pub(crate) struct Watched {
    pub(crate) node: EmbeddedNode,
    hangs: Mutex<Hangs>,
    hung: Mutex<Vec<Call>>,
    /// What it does not do at all.
    refuses: Mutex<Option<Script>>,
    /// Whether it lets nobody listen.
    mute: AtomicBool,
    acquires: AtomicU64,
}

impl Node for Watched {
    fn submit(&self, call: Call) {
        if call.command.script == Script::Acquire {
            self.acquires.fetch_add(1, Ordering::Relaxed);
        }
        let hangs = match *self.hangs.lock() {
            Hangs::Never => false,
            Hangs::With(script) => call.command.script == script,
            Hangs::Always => true,
        };
        if *self.refuses.lock() == Some(call.command.script) {
            call.reply.send(Err(NodeError::Redis("MISCONF cannot write".into())));
        } else if hangs {
            self.hung.lock().push(call);
        } else {
            self.node.submit(call);
        }
    }

    fn identify(&self) -> BoxFuture<Result<Identity, NodeError>> {
        self.node.identify()
    }

    fn subscribe(&self, channel: Arc<str>) -> BoxFuture<Result<(), NodeError>> {
        match self.mute.load(Ordering::Relaxed) {
            false => self.node.subscribe(channel),
            true => Box::pin(std::future::ready(Err(NodeError::Redis("NOPERM".into())))),
        }
    }

    fn unsubscribe(&self, channel: &str) {
        self.node.unsubscribe(channel);
    }

    fn listen(&self, sink: Arc<dyn HintSink>) {
        self.node.listen(sink);
    }

    fn address(&self) -> &str {
        self.node.address()
    }
}

impl Watched {
    pub(crate) fn hang(&self) {
        *self.hangs.lock() = Hangs::Always;
    }

    /// How many calls it has not got to.
    pub(crate) fn hung(&self) -> usize {
        self.hung.lock().len()
    }

    /// Whether it lets nobody listen from now on.
    pub(crate) fn mute(&self, mute: bool) {
        self.mute.store(mute, Ordering::Relaxed);
    }

    /// Only with calls of this kind.
    pub(crate) fn hang_with(&self, script: Script) {
        *self.hangs.lock() = Hangs::With(script);
    }

    /// From now on it has an error for calls of this kind, or for none.
    pub(crate) fn refuse(&self, script: Option<Script>) {
        *self.refuses.lock() = script;
    }

    /// Breaks the connection; what hangs arrives all the same when it is [`run`](Self::run).
    pub(crate) fn cut(&self) -> Vec<Late> {
        let answer = |Call { command, marker, reply }| {
            reply.send(Err(NodeError::Connection("cut".into())));
            Late { command, marker }
        };
        let hung = std::mem::take(&mut *self.hung.lock());
        hung.into_iter().map(answer).collect()
    }

    /// Runs what arrives late of this kind.
    pub(crate) fn run(&self, late: &[Late], script: Script) {
        for Late { command, marker } in late.iter().filter(|late| late.command.script == script) {
            self.node.eval(command, marker.as_deref()).unwrap();
        }
    }

    /// Goes on with what comes from now on.
    pub(crate) fn go_on_from_now(&self) {
        *self.hangs.lock() = Hangs::Never;
    }

    /// Goes on where it hung.
    pub(crate) fn go_on(&self) {
        *self.hangs.lock() = Hangs::Never;
        self.hung.lock().drain(..).for_each(|call| self.node.submit(call));
    }
}

/// The lines of leases in a record, expired ones too.
fn held_in(record: &str) -> impl Iterator<Item = &str> {
    record.lines().skip(1)
}

/// An API server over nodes of which the last is the spare.
pub(crate) struct Api {
    pub(crate) engine: Arc<Engine>,
    pub(crate) nodes: Vec<Arc<Watched>>,
    pub(crate) scope: Scope,
}

impl Api {
    pub(crate) async fn over(
        connections: impl Iterator<Item = EmbeddedNode>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        Self::with(connections, clock, EngineOptions::default()).await
    }

    pub(crate) async fn with(
        connections: impl Iterator<Item = EmbeddedNode>,
        clock: &Arc<dyn Clock>,
        options: EngineOptions,
    ) -> Self {
        let watch = |node| Watched {
            node,
            hangs: Mutex::new(Hangs::Never),
            hung: Mutex::default(),
            refuses: Mutex::default(),
            mute: AtomicBool::new(false),
            acquires: AtomicU64::new(0),
        };
        let nodes: Vec<_> = connections.map(|node| Arc::new(watch(node))).collect();
        let drivers = nodes.iter().map(|node| Arc::clone(node) as Arc<dyn Node>).collect();
        let engine = Engine::new(drivers, Arc::clone(clock), options);
        engine.initialize().await.unwrap();
        engine.start();
        while engine.spares.bits() == 0 {
            tokio::time::sleep(TICK).await;
        }
        // Rounds of these tests begin with the right to grant.
        assert!(engine.gain_right(engine.options.max_ttl_ms.min(30_000)).await);
        let key = Keys::new(&engine.options().key_prefix).lock(&Name::new("a").unwrap());
        Self { engine, nodes, scope: Scope::Records([key.into()].into_iter().collect()) }
    }

    /// Two servers over the same three nodes.
    pub(crate) async fn pair() -> [Self; 2] {
        let clock: Arc<dyn Clock> = Arc::new(Paused(Instant::now()));
        let nodes: Vec<_> =
            (0..3).map(|i| EmbeddedNode::new(&format!("run-{i}"), Arc::clone(&clock))).collect();
        let other = Self::over(nodes.iter().map(EmbeddedNode::connect), &clock).await;
        [Self::over(nodes.into_iter(), &clock).await, other]
    }

    pub(crate) async fn round(&self) -> Round {
        self.round_of(None, 30_000).await
    }

    /// One attempt of this request.
    pub(crate) async fn round_of(&self, request: Option<&str>, ttl_ms: u64) -> Round {
        self.round_for(&self.scope, &[], request, ttl_ms).await
    }

    /// One for these slots of a semaphore. A request asks all nodes at once.
    pub(crate) async fn round_for(
        &self,
        scope: &Scope,
        slots: &[u32],
        request: Option<&str>,
        ttl_ms: u64,
    ) -> Round {
        let ask = self.ask(scope, slots, request, ttl_ms);
        self.engine.grant(&ask, Order::Parallel).await
    }

    pub(crate) fn ask<'a>(
        &self,
        scope: &'a Scope,
        slots: &'a [u32],
        request: Option<&'a str>,
        ttl_ms: u64,
    ) -> Ask<'a> {
        Ask {
            scope,
            slots,
            mode: Mode::Exclusive,
            ttl_ms,
            max_hold_ms: 0,
            lock_delay_ms: 0,
            request,
            params: "-",
            data: "{}",
            look_only: false,
            limit: 10_000,
            standing: None,
        }
    }

    pub(crate) async fn acquire(&self) -> LeaseHandle {
        match self.round().await {
            Round::Granted(won) => {
                won.grant.keep();
                won.handle
            }
            Round::Refused(refusal) => panic!("{refusal:?}"),
            Round::NoQuorum(nodes) => panic!("{nodes:?}"),
        }
    }

    pub(crate) async fn release(&self, lease: &LeaseHandle) -> bool {
        self.engine.release(&self.scope, &lease.id).await.unwrap()
    }

    pub(crate) async fn extend(&self, lease: LeaseHandle) {
        let extension = self.engine.extend(&self.scope, lease, Renewal::Own, None, false).await;
        assert!(matches!(extension, Extension::Extended { .. }), "{extension:?}");
        tokio::time::sleep(TICK).await;
    }

    /// Which nodes hold the lease.
    pub(crate) fn holders(&self, lease: &LeaseHandle) -> [bool; 3] {
        let key = &self.scope.channels()[0];
        let is_held = |node: &Arc<Watched>| {
            let record = node.node.get_raw(key).unwrap_or_default();
            held_in(&record)
                .any(|line| line.get(14..).is_some_and(|line| line.starts_with(lease.id.expose())))
        };
        [0, 1, 2].map(|i| is_held(&self.nodes[i]))
    }

    /// Whether this node holds any lease.
    pub(crate) fn is_held_at(&self, i: usize) -> bool {
        let record = self.nodes[i].node.get_raw(&self.scope.channels()[0]);
        record.is_some_and(|record| held_in(&record).next().is_some())
    }

    pub(crate) fn acquires(&self) -> [u64; 3] {
        [0, 1, 2].map(|i| self.nodes[i].acquires.load(Ordering::Relaxed))
    }
}
