//! `/metrics` against a list of every family: its type, labels, HELP and buckets. Dashboards and
//! alerts of others stand on them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::support::{Cluster, unique};

/// Bounds of the histograms that measure answers, as `le` spells them.
const LATENCY: &str =
    "0.0001 0.00025 0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 120 +Inf";
/// Bounds of those that measure waiting and holding.
const LONG: &str = "0.001 0.005 0.01 0.05 0.1 0.5 1 2.5 5 10 30 60 120 300 900 3600 +Inf";

/// Name, type, labels, HELP.
const FAMILIES: &[[&str; 4]] = &[
    ["process_cpu_seconds_total", "counter", "", "Total user and system CPU time spent in seconds."],
    ["process_max_fds", "gauge", "", "Maximum number of open file descriptors."],
    ["process_open_fds", "gauge", "", "Number of open file descriptors."],
    ["process_resident_memory_bytes", "gauge", "", "Resident memory size in bytes."],
    ["process_start_time_seconds", "gauge", "", "Start time of the process since unix epoch in seconds."],
    ["process_threads", "gauge", "", "Number of OS threads in the process."],
    ["process_virtual_memory_bytes", "gauge", "", "Virtual memory size in bytes."],
    ["process_virtual_memory_max_bytes", "gauge", "", "Maximum amount of virtual memory available in bytes."],
    [
        "quorate_acquire_duration_seconds",
        "histogram",
        "primitive",
        "From the request to the grant, waiting included",
    ],
    ["quorate_acquisitions_total", "counter", "primitive outcome", "Acquisitions by primitive and outcome"],
    ["quorate_build_info", "gauge", "version", "The version that runs"],
    ["quorate_extensions_total", "counter", "primitive outcome", "Extensions by primitive and outcome"],
    ["quorate_fencing_raises_total", "counter", "", "Second rounds that raised a fencing token"],
    ["quorate_forced_releases_total", "counter", "primitive", "Forced releases that took something away"],
    ["quorate_hold_duration_seconds", "histogram", "primitive", "From the grant to the release"],
    ["quorate_http_connections", "gauge", "", "Client connections open"],
    ["quorate_http_in_flight", "gauge", "", "Requests and streams in flight"],
    ["quorate_http_refused_total", "counter", "reason", "Clients turned away before a handler, by reason"],
    ["quorate_http_request_duration_seconds", "histogram", "method route", "Time to the head of the answer"],
    [
        "quorate_http_requests_total",
        "counter",
        "method route status",
        "HTTP requests by method, route and status",
    ],
    ["quorate_leases", "gauge", "primitive", "Leases granted here that are neither released nor over"],
    [
        "quorate_leases_expired_total",
        "counter",
        "primitive",
        "Leases granted here that ended without a release here",
    ],
    ["quorate_longest_wait_seconds", "gauge", "", "How long the longest waiter has waited"],
    [
        "quorate_member_list_mismatch",
        "gauge",
        "",
        "members that no URL of this server leads to, and listed nodes that are no members",
    ],
    ["quorate_membership_epoch", "gauge", "", "epoch of the membership in force, 0 while there is none"],
    ["quorate_node_request_duration_seconds", "histogram", "node op", "Time to a node's answer"],
    ["quorate_node_requests_total", "counter", "node op outcome", "Scripts run at a node by outcome"],
    ["quorate_node_state", "gauge", "node state", "1 for the state that the node is in"],
    ["quorate_pool_connections", "gauge", "node state", "Connections open to a node"],
    ["quorate_quorum_available", "gauge", "", "1 while a quorum of nodes votes"],
    ["quorate_releases_total", "counter", "primitive outcome", "Releases by primitive and outcome"],
    [
        "quorate_reload_failures_total",
        "counter",
        "what",
        "Changed key files and certificates that could not be used",
    ],
    ["quorate_split_votes_total", "counter", "", "Granting rounds that nobody won"],
    ["quorate_streams", "gauge", "", "Event streams open"],
    ["quorate_undos_total", "counter", "outcome", "Undone grants by outcome, one per node"],
    ["quorate_wait_duration_seconds", "histogram", "primitive", "Time spent in the waiting room"],
    ["quorate_waiters", "gauge", "", "Requests in the waiting room"],
];

/// A family as it is shown.
#[derive(Default)]
struct Family {
    help: String,
    kind: String,
    /// The names of its labels, in order; one entry for each combination that a series has.
    labels: BTreeSet<String>,
    /// The bounds of the buckets, in order, by the series that they are of.
    bounds: BTreeMap<String, Vec<String>>,
}

fn families(text: &str) -> BTreeMap<String, Family> {
    let mut found: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            found.entry(name.to_owned()).or_default().help = help.to_owned();
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            found.entry(name.to_owned()).or_default().kind = kind.to_owned();
            continue;
        }
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap_or((series, ""));
        let of_histogram = ["_bucket", "_sum", "_count"].iter().filter_map(|part| name.strip_suffix(part));
        let name = of_histogram.into_iter().find(|name| found.contains_key(*name)).unwrap_or(name);
        let family = found.get_mut(name).unwrap_or_else(|| panic!("no HELP or TYPE before {line}"));
        let labels = labels.trim_end_matches('"');
        let pairs: Vec<(&str, &str)> = labels
            .split("\",")
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once("=\"").unwrap())
            .collect();
        let (bounds, pairs): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(label, _)| *label == "le");
        family.labels.insert(pairs.iter().map(|(label, _)| *label).collect::<Vec<_>>().join(" "));
        let bounds = bounds.into_iter().map(|(_, bound)| bound.to_owned());
        family.bounds.entry(format!("{pairs:?}")).or_default().extend(bounds);
    }
    found
}

#[tokio::test]
async fn every_family_has_the_labels_help_and_buckets_that_it_is_known_by() {
    let cluster = Cluster::new(1);
    let server = cluster.server(&[]).await;
    let api = server.api();
    api.acquire(&unique("counted"), json!({})).await.ok();
    let found = families(&api.get("/metrics").await.text());
    let shown: Vec<[String; 4]> = found
        .iter()
        .map(|(name, family)| {
            let labels: Vec<&str> = family.labels.iter().map(String::as_str).collect();
            [name.clone(), family.kind.clone(), labels.join(" or "), family.help.clone()]
        })
        .collect();
    assert_eq!(shown, FAMILIES);
    for (name, family) in found.iter().filter(|(_, family)| family.kind == "histogram") {
        let long =
            ["quorate_wait_duration_seconds", "quorate_hold_duration_seconds"].contains(&name.as_str());
        for (series, bounds) in &family.bounds {
            assert_eq!(bounds.join(" "), if long { LONG } else { LATENCY }, "{name} {series}");
        }
    }
}
