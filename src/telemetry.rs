//! Every metric in one list: name, labels, help, buckets; and the handles to record them.
//!
//! Handles are looked up once. Counters with a fixed set of labels exist at zero
//! from the start, so that a rate over a rare event is 0 and not "no data". No
//! label ever carries a name that a client chose.

pub mod seldom;
pub mod trace;

use std::sync::LazyLock;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram};
use metrics::{gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

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

/// How an acquisition ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)] // docs/operations.md says what each means.
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

/// The handles.
pub struct Metrics {
    acquisitions: [[Counter; 6]; 4],
    extensions: [[Counter; 3]; 4],
    releases: [[Counter; 3]; 4],
    acquire_seconds: [Histogram; 4],
    wait_seconds: [Histogram; 4],
    hold_seconds: [Histogram; 4],
    undos: [Counter; 3],
    refusals: [Counter; REFUSALS.len()],
    /// Client connections open now.
    pub http_connections: Gauge,
    /// Requests and streams in flight now.
    pub http_in_flight: Gauge,
    /// Second fencing rounds.
    pub fencing_raises: Counter,
    /// Rounds that nobody won.
    pub split_votes: Counter,
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

/// The handles, made on first use: [`install`] must come before.
pub fn metrics() -> &'static Metrics {
    &METRICS
}

impl Metrics {
    fn new() -> Self {
        let by_primitive = |make: &dyn Fn(&'static str) -> Histogram| Primitive::ALL.map(|p| make(p.name()));
        Self {
            acquisitions: Primitive::ALL.map(|p| {
                ACQUISITIONS.map(|outcome| {
                    counter!("quorate_acquisitions_total", "primitive" => p.name(), "outcome" => outcome)
                })
            }),
            extensions: Primitive::ALL.map(|p| {
                EXTENSIONS.map(|outcome| {
                    counter!("quorate_extensions_total", "primitive" => p.name(), "outcome" => outcome)
                })
            }),
            releases: Primitive::ALL.map(|p| {
                RELEASES.map(|outcome| {
                    counter!("quorate_releases_total", "primitive" => p.name(), "outcome" => outcome)
                })
            }),
            acquire_seconds: by_primitive(
                &|p| histogram!("quorate_acquire_duration_seconds", "primitive" => p),
            ),
            wait_seconds: by_primitive(&|p| histogram!("quorate_wait_duration_seconds", "primitive" => p)),
            hold_seconds: by_primitive(&|p| histogram!("quorate_hold_duration_seconds", "primitive" => p)),
            undos: UNDOS.map(|outcome| counter!("quorate_undos_total", "outcome" => outcome)),
            refusals: REFUSALS.map(|reason| counter!("quorate_http_refused_total", "reason" => reason)),
            http_connections: gauge!("quorate_http_connections"),
            http_in_flight: gauge!("quorate_http_in_flight"),
            fencing_raises: counter!("quorate_fencing_raises_total"),
            split_votes: counter!("quorate_split_votes_total"),
            waiters: gauge!("quorate_waiters"),
            streams: gauge!("quorate_streams"),
            longest_wait_seconds: gauge!("quorate_longest_wait_seconds"),
            quorum_available: gauge!("quorate_quorum_available"),
        }
    }

    /// One acquisition ended.
    pub fn acquisition(&self, primitive: Primitive, outcome: Acquisition) {
        self.acquisitions[primitive as usize][outcome as usize].increment(1);
    }

    /// One extension ended.
    pub fn extension(&self, primitive: Primitive, outcome: Extension) {
        self.extensions[primitive as usize][outcome as usize].increment(1);
    }

    /// One release ended.
    pub fn release(&self, primitive: Primitive, outcome: Release) {
        self.releases[primitive as usize][outcome as usize].increment(1);
    }

    /// From the request to the grant, waiting included.
    pub fn acquired_in(&self, primitive: Primitive, took: Duration) {
        self.acquire_seconds[primitive as usize].record(took);
    }

    /// In the waiting room.
    pub fn waited(&self, primitive: Primitive, took: Duration) {
        self.wait_seconds[primitive as usize].record(took);
    }

    /// From the grant to the release.
    pub fn held(&self, primitive: Primitive, took: Duration) {
        self.hold_seconds[primitive as usize].record(took);
    }

    /// One undo at one node ended.
    pub fn undo(&self, outcome: Undo) {
        self.undos[outcome as usize].increment(1);
    }

    /// One client was turned away.
    pub fn refused(&self, why: Refusal) {
        self.refusals[why as usize].increment(1);
    }
}

/// The handles of one node.
pub struct NodeMetrics {
    node: String,
    requests: Vec<[Counter; NODE_OUTCOMES.len()]>,
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
        let of = |script: Script, outcome: &'static str| {
            counter!("quorate_node_requests_total",
                "node" => node.to_owned(), "op" => script.name(), "outcome" => outcome)
        };
        Self {
            node: node.to_owned(),
            requests: Script::ALL.iter().map(|&s| NODE_OUTCOMES.map(|o| of(s, o))).collect(),
            seconds: Script::ALL
                .iter()
                .map(|s| {
                    histogram!("quorate_node_request_duration_seconds",
                        "node" => node.to_owned(), "op" => s.name())
                })
                .collect(),
            states: NodeState::ALL.map(
                |state| gauge!("quorate_node_state", "node" => node.to_owned(), "state" => state.name()),
            ),
            connections: ["calls", "hints"]
                .map(|state| gauge!("quorate_pool_connections", "node" => node.to_owned(), "state" => state)),
        }
    }

    /// The label.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// One call ended after `took`.
    pub fn request(&self, script: Script, answer: Result<bool, &NodeError>, took: Duration) {
        let outcome = node_outcome(answer);
        self.requests[script as usize][outcome].increment(1);
        self.seconds[script as usize].record(took);
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

/// Installs the recorder and describes every metric. Call once, before anything records;
/// the caller runs [`PrometheusHandle::run_upkeep`] from time to time.
///
/// # Errors
/// When a recorder is installed already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let long = ["quorate_wait_duration_seconds", "quorate_hold_duration_seconds"];
    let mut builder = PrometheusBuilder::new().set_buckets(LATENCY_BUCKETS)?;
    for name in long {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), LONG_BUCKETS)?;
    }
    let handle = builder.install_recorder()?;
    describe();
    // The version is the only label value that changes with a release.
    gauge!("quorate_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    LazyLock::force(&METRICS);
    Ok(handle)
}

fn describe() {
    describe_counter!("quorate_acquisitions_total", "Acquisitions by primitive and outcome");
    describe_counter!("quorate_extensions_total", "Extensions by primitive and outcome");
    describe_counter!("quorate_releases_total", "Releases by primitive and outcome");
    describe_histogram!(
        "quorate_acquire_duration_seconds",
        "From the request to the grant, waiting included"
    );
    describe_histogram!("quorate_wait_duration_seconds", "Time spent in the waiting room");
    describe_histogram!("quorate_hold_duration_seconds", "From the grant to the release");
    describe_gauge!("quorate_waiters", "Requests in the waiting room");
    describe_gauge!("quorate_streams", "Event streams open");
    describe_gauge!("quorate_longest_wait_seconds", "How long the longest waiter has waited");
    describe_counter!("quorate_fencing_raises_total", "Second rounds that raised a fencing token");
    describe_counter!("quorate_split_votes_total", "Granting rounds that nobody won");
    describe_counter!("quorate_undos_total", "Undone grants by outcome, one per node");
    describe_gauge!("quorate_node_state", "1 for the state that the node is in");
    describe_counter!("quorate_node_requests_total", "Scripts run at a node by outcome");
    describe_histogram!("quorate_node_request_duration_seconds", "Time to a node's answer");
    describe_gauge!("quorate_pool_connections", "Connections open to a node");
    describe_gauge!("quorate_quorum_available", "1 while a quorum of nodes votes");
    describe_counter!("quorate_http_requests_total", "HTTP requests by method, route and status");
    describe_histogram!("quorate_http_request_duration_seconds", "Time to the head of the answer");
    describe_counter!("quorate_http_refused_total", "Clients turned away before a handler, by reason");
    describe_gauge!("quorate_http_connections", "Client connections open");
    describe_gauge!("quorate_http_in_flight", "Requests and streams in flight");
    describe_gauge!("quorate_build_info", "The version that runs");
}
