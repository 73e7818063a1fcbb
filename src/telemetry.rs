//! Every metric in one list: name, help, labels, buckets; and the handles to record them.
//!
//! Handles are looked up once, and recording is an addition or two: a histogram that kept its
//! samples until somebody asks would fill the CPU's cache with them. Counters with a fixed set of
//! labels exist at zero from the start, so that a rate over a rare event is 0 and not "no data".
//! No label ever carries a name that a client chose.

pub mod seldom;
pub mod trace;

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec};
use prometheus::{Opts, Registry, TextEncoder};

use crate::domain::Primitive;
use crate::node::{NodeError, Script};

/// Seconds; from a round trip on loopback to a lease's life.
const LATENCY_BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0, 120.0,
];
/// Seconds; waiting and holding take as long as people let them.
const LONG_BUCKETS: &[f64] =
    &[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

/// The labels, in the order in which they are shown: from what is counted to how it ended.
const LABELS: [&str; 10] =
    ["primitive", "node", "method", "op", "route", "state", "status", "outcome", "reason", "version"];

/// How an acquisition ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)] // docs/monitoring.md says what each means.
pub enum Acquisition {
    Granted,
    Held,
    Timeout,
    NoQuorum,
    Cancelled,
    Rejected,
}
const ACQUISITIONS: [&str; 6] = ["granted", "held", "timeout", "no_quorum", "cancelled", "rejected"];

/// How an extension ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Extension {
    Extended,
    Lost,
    NoQuorum,
}
const EXTENSIONS: [&str; 3] = ["extended", "lost", "no_quorum"];

/// How a release ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Release {
    Released,
    NotHeld,
    NoQuorum,
}
const RELEASES: [&str; 3] = ["released", "not_held", "no_quorum"];

/// How an undo at one node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Undo {
    /// The node confirmed it.
    Done,
    /// Refused by the node until the lease had expired by itself.
    Expired,
    /// Dropped because too many were waiting.
    Abandoned,
}
const UNDOS: [&str; 3] = ["done", "expired", "abandoned"];

/// Why a client was turned away before its request reached a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Refusal {
    /// As many connections as allowed are open.
    Connections,
    /// As many requests as allowed are in flight.
    InFlight,
    /// The head, or the TLS handshake, took too long.
    HeaderTimeout,
    /// The body took too long.
    BodyTimeout,
    /// The head was larger than it may be.
    HeaderBytes,
    /// What came was no HTTP.
    Malformed,
}
const REFUSALS: [&str; 6] =
    ["connections", "in_flight", "header_timeout", "body_timeout", "header_bytes", "malformed"];

/// Outcomes of a call to a node, as `quorate_node_requests_total` labels them.
pub const NODE_OUTCOMES: [&str; 14] = [
    "done",
    "refused",
    "timeout",
    "connection",
    "down",
    "quarantined",
    "node_refused",
    "overloaded",
    "unmarked",
    "clock_ahead",
    "clock_stepped",
    "undone",
    "redis_error",
    "nonsense",
];

/// Which of [`NODE_OUTCOMES`] the answer is.
pub fn node_outcome(answer: Result<bool, &NodeError>) -> usize {
    match answer {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(NodeError::Timeout) => 2,
        Err(NodeError::Connection(_) | NodeError::Dropped) => 3,
        Err(NodeError::Down) => 4,
        Err(NodeError::Quarantined) => 5,
        Err(NodeError::Refused(_)) => 6,
        Err(NodeError::Overloaded) => 7,
        Err(NodeError::Unmarked) => 8,
        Err(NodeError::ClockAhead) => 9,
        Err(NodeError::ClockStepped) => 10,
        Err(NodeError::Undone) => 11,
        Err(NodeError::Redis(_)) => 12,
        Err(NodeError::Nonsense) => 13,
    }
}

/// Makes metrics, and gathers what they have come to.
struct Families(Registry);

impl Families {
    fn add<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let added = made.and_then(|family| self.0.register(Box::new(family.clone())).map(|()| family));
        // All are made at once, from constants.
        added.expect("each has a name of its own")
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::new(name, help))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.add(GaugeVec::new(Opts::new(name, help), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.add(Gauge::new(name, help))
    }

    fn histograms(&self, name: &str, help: &str, labels: &[&str], bounds: &[f64]) -> HistogramVec {
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), labels))
    }
}

/// The handles.
pub struct Metrics {
    families: Families,
    acquisitions: [[IntCounter; ACQUISITIONS.len()]; 4],
    extensions: [[IntCounter; EXTENSIONS.len()]; 4],
    releases: [[IntCounter; RELEASES.len()]; 4],
    acquire_seconds: [Histogram; 4],
    wait_seconds: [Histogram; 4],
    hold_seconds: [Histogram; 4],
    undos: [IntCounter; UNDOS.len()],
    refusals: [IntCounter; REFUSALS.len()],
    node_requests: IntCounterVec,
    node_seconds: HistogramVec,
    node_states: GaugeVec,
    pool_connections: GaugeVec,
    /// Requests answered, by method, route and status.
    pub http_requests: IntCounterVec,
    /// Time to the head of the answer, by method and route.
    pub http_seconds: HistogramVec,
    /// Client connections open now.
    pub http_connections: Gauge,
    /// Requests and streams in flight now.
    pub http_in_flight: Gauge,
    /// Second fencing rounds.
    pub fencing_raises: IntCounter,
    /// Rounds that nobody won.
    pub split_votes: IntCounter,
    /// Waiters now.
    pub waiters: Gauge,
    /// Event streams open now.
    pub streams: Gauge,
    /// How long the longest waiter has waited, s.
    pub longest_wait_seconds: Gauge,
    /// 1 while a quorum of nodes votes.
    pub quorum_available: Gauge,
}

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// The handles, made on first use.
pub fn metrics() -> &'static Metrics {
    &METRICS
}

impl Metrics {
    fn new() -> Self {
        let made = Families(Registry::new());
        fn outcomes<const N: usize>(family: &IntCounterVec, of: [&str; N]) -> [[IntCounter; N]; 4] {
            Primitive::ALL.map(|p| of.map(|outcome| family.with_label_values(&[p.name(), outcome])))
        }
        let by_primitive =
            |family: HistogramVec| Primitive::ALL.map(|p| family.with_label_values(&[p.name()]));
        let version = made.gauges("quorate_build_info", "The version that runs", &["version"]);
        // The only label value that changes with a release.
        version.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        let (primitive, outcome) = (["primitive"], ["primitive", "outcome"]);
        Self {
            acquisitions: outcomes(
                &made.counters(
                    "quorate_acquisitions_total",
                    "Acquisitions by primitive and outcome",
                    &outcome,
                ),
                ACQUISITIONS,
            ),
            extensions: outcomes(
                &made.counters("quorate_extensions_total", "Extensions by primitive and outcome", &outcome),
                EXTENSIONS,
            ),
            releases: outcomes(
                &made.counters("quorate_releases_total", "Releases by primitive and outcome", &outcome),
                RELEASES,
            ),
            acquire_seconds: by_primitive(made.histograms(
                "quorate_acquire_duration_seconds",
                "From the request to the grant, waiting included",
                &primitive,
                LATENCY_BUCKETS,
            )),
            wait_seconds: by_primitive(made.histograms(
                "quorate_wait_duration_seconds",
                "Time spent in the waiting room",
                &primitive,
                LONG_BUCKETS,
            )),
            hold_seconds: by_primitive(made.histograms(
                "quorate_hold_duration_seconds",
                "From the grant to the release",
                &primitive,
                LONG_BUCKETS,
            )),
            undos: {
                let family = made.counters(
                    "quorate_undos_total",
                    "Undone grants by outcome, one per node",
                    &["outcome"],
                );
                UNDOS.map(|outcome| family.with_label_values(&[outcome]))
            },
            refusals: {
                let family = made.counters(
                    "quorate_http_refused_total",
                    "Clients turned away before a handler, by reason",
                    &["reason"],
                );
                REFUSALS.map(|reason| family.with_label_values(&[reason]))
            },
            node_requests: made.counters(
                "quorate_node_requests_total",
                "Scripts run at a node by outcome",
                &["node", "op", "outcome"],
            ),
            node_seconds: made.histograms(
                "quorate_node_request_duration_seconds",
                "Time to a node's answer",
                &["node", "op"],
                LATENCY_BUCKETS,
            ),
            node_states: made.gauges(
                "quorate_node_state",
                "1 for the state that the node is in",
                &["node", "state"],
            ),
            pool_connections: made.gauges(
                "quorate_pool_connections",
                "Connections open to a node",
                &["node", "state"],
            ),
            http_requests: made.counters(
                "quorate_http_requests_total",
                "HTTP requests by method, route and status",
                &["method", "route", "status"],
            ),
            http_seconds: made.histograms(
                "quorate_http_request_duration_seconds",
                "Time to the head of the answer",
                &["method", "route"],
                LATENCY_BUCKETS,
            ),
            http_connections: made.gauge("quorate_http_connections", "Client connections open"),
            http_in_flight: made.gauge("quorate_http_in_flight", "Requests and streams in flight"),
            fencing_raises: made
                .counter("quorate_fencing_raises_total", "Second rounds that raised a fencing token"),
            split_votes: made.counter("quorate_split_votes_total", "Granting rounds that nobody won"),
            waiters: made.gauge("quorate_waiters", "Requests in the waiting room"),
            streams: made.gauge("quorate_streams", "Event streams open"),
            longest_wait_seconds: made
                .gauge("quorate_longest_wait_seconds", "How long the longest waiter has waited"),
            quorum_available: made.gauge("quorate_quorum_available", "1 while a quorum of nodes votes"),
            families: made,
        }
    }

    /// All of them, as Prometheus reads them.
    pub fn render(&self) -> String {
        let mut families = self.families.0.gather();
        for metric in families.iter_mut().flat_map(|family| family.mut_metric()) {
            metric.mut_label().sort_by_key(|label| LABELS.iter().position(|name| *name == label.name()));
        }
        // Families without metrics are refused, and not gathered.
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }

    /// One acquisition ended.
    pub fn acquisition(&self, primitive: Primitive, outcome: Acquisition) {
        self.acquisitions[primitive as usize][outcome as usize].inc();
    }

    /// One extension ended.
    pub fn extension(&self, primitive: Primitive, outcome: Extension) {
        self.extensions[primitive as usize][outcome as usize].inc();
    }

    /// One release ended.
    pub fn release(&self, primitive: Primitive, outcome: Release) {
        self.releases[primitive as usize][outcome as usize].inc();
    }

    /// From the request to the grant, waiting included.
    pub fn acquired_in(&self, primitive: Primitive, took: Duration) {
        self.acquire_seconds[primitive as usize].observe(took.as_secs_f64());
    }

    /// In the waiting room.
    pub fn waited(&self, primitive: Primitive, took: Duration) {
        self.wait_seconds[primitive as usize].observe(took.as_secs_f64());
    }

    /// From the grant to the release.
    pub fn held(&self, primitive: Primitive, took: Duration) {
        self.hold_seconds[primitive as usize].observe(took.as_secs_f64());
    }

    /// One undo at one node ended.
    pub fn undo(&self, outcome: Undo) {
        self.undos[outcome as usize].inc();
    }

    /// One client was turned away.
    pub fn refused(&self, why: Refusal) {
        self.refusals[why as usize].inc();
    }
}

/// The handles of one node.
pub struct NodeMetrics {
    node: String,
    requests: Vec<[IntCounter; NODE_OUTCOMES.len()]>,
    seconds: Vec<Histogram>,
    states: [Gauge; 4],
    connections: [Gauge; 2],
}

/// What a node is, as people are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// It votes.
    Voting,
    /// It abstains until what it may have forgotten has expired.
    Quarantined,
    /// It does not answer, or can grant nothing.
    Down,
    /// It must not vote as it is.
    Refused,
}

impl NodeState {
    const ALL: [Self; 4] = [Self::Voting, Self::Quarantined, Self::Down, Self::Refused];

    /// As the API and `quorate_node_state` call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Voting => "voting",
            Self::Quarantined => "quarantined",
            Self::Down => "down",
            Self::Refused => "refused",
        }
    }
}

impl NodeMetrics {
    /// For the node with the label `node` (`n1`, `n2`, …).
    pub fn new(node: &str) -> Self {
        let Metrics { node_requests, node_seconds, node_states, pool_connections, .. } = metrics();
        let scripts = || Script::ALL.iter().map(|script| script.name());
        let outcomes = |op| NODE_OUTCOMES.map(|o| node_requests.with_label_values(&[node, op, o]));
        Self {
            node: node.to_owned(),
            requests: scripts().map(outcomes).collect(),
            seconds: scripts().map(|op| node_seconds.with_label_values(&[node, op])).collect(),
            states: NodeState::ALL.map(|state| node_states.with_label_values(&[node, state.name()])),
            connections: ["calls", "hints"].map(|of| pool_connections.with_label_values(&[node, of])),
        }
    }

    /// The label.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// One call ended after `took`.
    pub fn request(&self, script: Script, answer: Result<bool, &NodeError>, took: Duration) {
        let outcome = node_outcome(answer);
        self.requests[script as usize][outcome].inc();
        self.seconds[script as usize].observe(took.as_secs_f64());
    }

    /// The node is in this state, and in no other.
    pub fn state(&self, state: NodeState) {
        for (of, gauge) in NodeState::ALL.iter().zip(&self.states) {
            gauge.set(if *of == state { 1.0 } else { 0.0 });
        }
    }

    /// Connections open: (calls, hints).
    pub fn connections(&self, open: (usize, usize)) {
        self.connections[0].set(open.0 as f64);
        self.connections[1].set(open.1 as f64);
    }
}
