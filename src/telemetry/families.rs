//! Every metric in one list: name, HELP, labels, buckets; and the handles to record them.
//!
//! Handles are looked up once. Counters with a fixed set of labels exist at zero from the start, so
//! that a rate over a rare event is 0 and not "no data". No label ever carries a name that a client
//! chose.

use std::sync::LazyLock;
use std::time::Duration;

use ::metrics::{
    Counter, Gauge, Histogram, Label, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::outcomes::{Acquisition, Extension, Refusal, Release, Reloaded, Undo};
use crate::domain::Primitive;

/// Seconds; from a round trip on loopback to a lease's life.
const LATENCY_BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0, 120.0,
];
/// Seconds; waiting and holding take as long as people let them.
const LONG_BUCKETS: &[f64] =
    &[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

/// How often the samples of histograms, which are kept one by one, are counted into buckets.
const UPKEEP_EVERY: Duration = Duration::from_secs(1);

/// A metric with all of its series. It is shown from when the first of them is looked up.
pub struct Family {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
}

impl Family {
    const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, help, labels }
    }

    /// The counter whose labels have these `values`.
    pub fn counter(&self, values: &[&str]) -> Counter {
        LazyLock::force(&SHOWN);
        describe_counter!(self.name, self.help);
        counter!(self.name, self.labels(values))
    }

    /// The gauge whose labels have these `values`.
    pub fn gauge(&self, values: &[&str]) -> Gauge {
        LazyLock::force(&SHOWN);
        describe_gauge!(self.name, self.help);
        gauge!(self.name, self.labels(values))
    }

    /// The histogram whose labels have these `values`.
    pub fn histogram(&self, values: &[&str]) -> Histogram {
        LazyLock::force(&SHOWN);
        describe_histogram!(self.name, self.help);
        histogram!(self.name, self.labels(values))
    }

    fn labels(&self, values: &[&str]) -> Vec<Label> {
        debug_assert_eq!(self.labels.len(), values.len(), "{}", self.name);
        self.labels.iter().zip(values).map(|(&name, &value)| Label::new(name, value.to_owned())).collect()
    }

    fn by_primitive<T>(&self, series: impl Fn(&Self, &[&str]) -> T) -> [T; 4] {
        Primitive::ALL.map(|of| series(self, &[of.name()]))
    }
}

/// By primitive.
const fn of_primitives(name: &'static str, help: &'static str) -> Family {
    Family::new(name, help, &["primitive"])
}

/// Without labels.
const fn single(name: &'static str, help: &'static str) -> Family {
    Family::new(name, help, &[])
}

/// The counters of the primitives by how something ended.
fn by_outcome<const N: usize>(
    name: &'static str,
    help: &'static str,
    outcomes: [&str; N],
) -> [[Counter; N]; 4] {
    let family = Family::new(name, help, &["primitive", "outcome"]);
    Primitive::ALL.map(|of| outcomes.map(|outcome| family.counter(&[of.name(), outcome])))
}

/// The counters of a family with one label.
fn counters<const N: usize>(
    name: &'static str,
    help: &'static str,
    label: &'static [&'static str; 1],
    values: [&str; N],
) -> [Counter; N] {
    let family = Family::new(name, help, label);
    values.map(|value| family.counter(&[value]))
}

const WAIT_SECONDS: Family = of_primitives("quorate_wait_duration_seconds", "Time spent in the waiting room");
const HOLD_SECONDS: Family = of_primitives("quorate_hold_duration_seconds", "From the grant to the release");
/// When the server's certificate ends: a gauge, where there is one.
pub const TLS_CERTIFICATE_EXPIRY: Family = single(
    "quorate_tls_certificate_expiry_timestamp_seconds",
    "When the server's certificate expires, seconds since the epoch",
);
/// Answers of a node, by what it was asked for and how that ended.
pub(crate) const NODE_REQUESTS: Family = Family::new(
    "quorate_node_requests_total",
    "Scripts run at a node by outcome",
    &["node", "op", "outcome"],
);
/// Time to a node's answer.
pub(crate) const NODE_SECONDS: Family =
    Family::new("quorate_node_request_duration_seconds", "Time to a node's answer", &["node", "op"]);
/// 1 for the state that the node is in.
pub(crate) const NODE_STATE: Family =
    Family::new("quorate_node_state", "1 for the state that the node is in", &["node", "state"]);
/// Connections open to a node, by what they are for.
pub(crate) const POOL_CONNECTIONS: Family =
    Family::new("quorate_pool_connections", "Connections open to a node", &["node", "state"]);

/// Requests answered: a counter.
pub const HTTP_REQUESTS: Family = Family::new(
    "quorate_http_requests_total",
    "HTTP requests by method, route and status",
    &["method", "route", "status"],
);
/// Time to the head of the answer: a histogram.
pub const HTTP_SECONDS: Family = Family::new(
    "quorate_http_request_duration_seconds",
    "Time to the head of the answer",
    &["method", "route"],
);

/// The handles of all series that are known from the start.
pub struct Metrics {
    acquisitions: [[Counter; Acquisition::ALL.len()]; 4],
    extensions: [[Counter; Extension::ALL.len()]; 4],
    releases: [[Counter; Release::ALL.len()]; 4],
    acquire_seconds: [Histogram; 4],
    wait_seconds: [Histogram; 4],
    hold_seconds: [Histogram; 4],
    leases: [Gauge; 4],
    leases_expired: [Counter; 4],
    forced_releases: [Counter; 4],
    reload_failures: [Counter; Reloaded::ALL.len()],
    undos: [Counter; Undo::ALL.len()],
    refusals: [Counter; Refusal::ALL.len()],
    pub http_connections: Gauge,
    pub http_in_flight: Gauge,
    pub fencing_raises: Counter,
    pub split_votes: Counter,
    pub waiters: Gauge,
    pub streams: Gauge,
    pub longest_wait_seconds: Gauge,
    pub quorum_available: Gauge,
    pub membership_epoch: Gauge,
    pub member_list_mismatch: Gauge,
}

/// What all series go to, and are shown from. Made before the first of them.
static SHOWN: LazyLock<PrometheusHandle> = LazyLock::new(recorder);

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// Memory, CPU time and open files of the process, read when somebody asks.
static PROCESS: LazyLock<metrics_process::Collector> = LazyLock::new(|| {
    let collector = metrics_process::Collector::default();
    collector.describe();
    collector
});

/// The handles, made on first use.
pub fn metrics() -> &'static Metrics {
    &METRICS
}

impl Metrics {
    fn new() -> Self {
        let build = Family::new("quorate_build_info", "The version that runs", &["version"]);
        build.gauge(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        let gauge = |name, help| single(name, help).gauge(&[]);
        let counter = |name, help| single(name, help).counter(&[]);
        Self {
            acquisitions: by_outcome(
                "quorate_acquisitions_total",
                "Acquisitions by primitive and outcome",
                Acquisition::ALL.map(Acquisition::name),
            ),
            extensions: by_outcome(
                "quorate_extensions_total",
                "Extensions by primitive and outcome",
                Extension::ALL.map(Extension::name),
            ),
            releases: by_outcome(
                "quorate_releases_total",
                "Releases by primitive and outcome",
                Release::ALL.map(Release::name),
            ),
            acquire_seconds: of_primitives(
                "quorate_acquire_duration_seconds",
                "From the request to the grant, waiting included",
            )
            .by_primitive(Family::histogram),
            wait_seconds: WAIT_SECONDS.by_primitive(Family::histogram),
            hold_seconds: HOLD_SECONDS.by_primitive(Family::histogram),
            leases: of_primitives("quorate_leases", "Leases granted here that are neither released nor over")
                .by_primitive(Family::gauge),
            leases_expired: of_primitives(
                "quorate_leases_expired_total",
                "Leases granted here that ended without a release here",
            )
            .by_primitive(Family::counter),
            forced_releases: of_primitives(
                "quorate_forced_releases_total",
                "Forced releases that took something away",
            )
            .by_primitive(Family::counter),
            reload_failures: counters(
                "quorate_reload_failures_total",
                "Changed key files and certificates that could not be used",
                &["what"],
                Reloaded::ALL.map(Reloaded::name),
            ),
            undos: counters(
                "quorate_undos_total",
                "Undone grants by outcome, one per node",
                &["outcome"],
                Undo::ALL.map(Undo::name),
            ),
            refusals: counters(
                "quorate_http_refused_total",
                "Clients turned away before a handler, by reason",
                &["reason"],
                Refusal::ALL.map(Refusal::name),
            ),
            http_connections: gauge("quorate_http_connections", "Client connections open"),
            http_in_flight: gauge("quorate_http_in_flight", "Requests and streams in flight"),
            fencing_raises: counter(
                "quorate_fencing_raises_total",
                "Second rounds that raised a fencing token",
            ),
            split_votes: counter("quorate_split_votes_total", "Granting rounds that nobody won"),
            waiters: gauge("quorate_waiters", "Requests in the waiting room"),
            streams: gauge("quorate_streams", "Event streams open"),
            longest_wait_seconds: gauge(
                "quorate_longest_wait_seconds",
                "How long the longest waiter has waited",
            ),
            quorum_available: gauge("quorate_quorum_available", "1 while a quorum of nodes votes"),
            membership_epoch: gauge(
                "quorate_membership_epoch",
                "epoch of the membership in force, 0 while there is none",
            ),
            member_list_mismatch: gauge(
                "quorate_member_list_mismatch",
                "members that no URL of this server leads to, and listed nodes that are no members",
            ),
        }
    }

    /// All of them, as Prometheus reads them.
    pub fn render(&self) -> String {
        let shown = &*SHOWN;
        PROCESS.collect();
        shown.render()
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

    /// How many leases granted here are neither released nor over.
    pub fn leases(&self, primitive: Primitive) -> &Gauge {
        &self.leases[primitive as usize]
    }

    /// One lease ended without a release.
    pub fn expired(&self, primitive: Primitive) {
        self.leases_expired[primitive as usize].increment(1);
    }

    /// One lease was taken away by an operator.
    pub fn forced_release(&self, primitive: Primitive) {
        self.forced_releases[primitive as usize].increment(1);
    }

    /// A file that changed could not be used.
    pub fn reload_failed(&self, what: Reloaded) {
        self.reload_failures[what as usize].increment(1);
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

/// Makes the process' recorder, and a thread that keeps the samples of its histograms few: they come
/// from tests and benchmarks too, where no server would see to it.
fn recorder() -> PrometheusHandle {
    let long = [WAIT_SECONDS.name, HOLD_SECONDS.name].map(|name| Matcher::Full(name.to_owned()));
    let builder = PrometheusBuilder::new().set_buckets(LATENCY_BUCKETS);
    let builder = long
        .into_iter()
        .fold(builder, |made, name| made.and_then(|made| made.set_buckets_for_metric(name, LONG_BUCKETS)));
    let handle = builder.and_then(PrometheusBuilder::install_recorder);
    let handle = handle.expect("there are buckets, and no other recorder in this process");
    let kept = handle.clone();
    let thread = std::thread::Builder::new().name("metrics".to_owned());
    let upkeep = thread.spawn(move || {
        loop {
            std::thread::park_timeout(UPKEEP_EVERY);
            kept.run_upkeep();
        }
    });
    if let Err(cause) = upkeep {
        tracing::error!(%cause, "no thread for the upkeep of metrics: only a scrape frees their samples");
    }
    handle
}
