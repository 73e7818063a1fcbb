//! `/v1/elections`: at most one leader, terms that rise, observers that miss nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Answer, Api, Cluster, EventStream, Shared, eventually, number, secret, unique};

async fn call(api: &Api, name: &str, verb: &str, body: Value) -> Answer {
    api.post(&format!("/v1/elections/{name}/{verb}"), body).await
}

async fn campaign(api: &Api, name: &str, candidate: &str) -> Answer {
    call(api, name, "campaign", json!({"candidate": candidate})).await
}

async fn resign(api: &Api, name: &str, leadership: &Value) -> Value {
    call(api, name, "resign", json!({"lease_id": secret(leadership)})).await.ok()
}

async fn leader(api: &Api, name: &str) -> Value {
    api.get(&format!("/v1/elections/{name}")).await.ok()
}

async fn observe(api: &Api, name: &str) -> EventStream {
    api.stream("GET", &format!("/v1/elections/{name}/observe"), Value::Null)
        .await
        .unwrap_or_else(|answer| panic!("no stream: {}", answer.text()))
}

#[tokio::test]
async fn one_candidate_leads_until_it_resigns() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let (api, other) = (shared.api(), shared.other_api());
        let name = unique("leads");
        let vacant = leader(&api, &name).await;
        for field in ["leader", "value", "term", "remaining_ms"] {
            assert!(vacant.get(field).is_none(), "{field} of a vacant office: {vacant}");
        }
        let body = json!({"candidate": "a", "value": "10.0.0.1:7000", "ttl_ms": 20_000});
        let first = call(&api, &name, "campaign", body).await.ok();
        assert_eq!(first["name"], name);
        assert_eq!(first["candidate"], "a");
        assert_eq!(first["value"], "10.0.0.1:7000");
        assert_eq!(number(&first, "ttl_ms"), 20_000);
        assert!(number(&first, "validity_ms") <= 20_000 - 200 - 2);
        for api in [&api, &other] {
            let answer = campaign(api, &name, "b").await;
            let problem = answer.problem(409, "election_lost");
            assert_eq!(problem["holder"]["candidate"], "a");
            assert_eq!(problem["holder"]["value"], "10.0.0.1:7000");
            assert_eq!(number(&problem["holder"], "term"), number(&first, "term"));
            assert!(number(&problem["holder"], "remaining_ms") > 0);
            assert!(number(&problem, "retry_after_ms") > 0);
            assert!(!answer.text().contains(secret(&first)));
            let seen = leader(api, &name).await;
            assert_eq!(seen["leader"], "a");
            assert_eq!(seen["value"], "10.0.0.1:7000");
            assert_eq!(number(&seen, "term"), number(&first, "term"));
            assert!((1..=20_000).contains(&number(&seen, "remaining_ms")));
            assert_ne!(seen["revision"], vacant["revision"]);
            assert_eq!(seen["waiters"], 0);
        }
        assert_eq!(resign(&other, &name, &first).await, json!({"released": true}));
        assert_eq!(resign(&api, &name, &first).await, json!({"released": false}));
        assert!(leader(&other, &name).await.get("leader").is_none());
        let second = campaign(&other, &name, "b").await.ok();
        assert!(number(&second, "term") > number(&first, "term"));
    }
}

#[tokio::test]
async fn a_leader_stays_for_as_long_as_it_extends_and_no_longer() {
    let shared = Shared::nodes(3);
    let (api, other) = (shared.api(), shared.other_api());
    let name = unique("stays");
    let first =
        call(&api, &name, "campaign", json!({"candidate": "a", "value": "v", "ttl_ms": 5_000})).await.ok();
    for ttl_ms in [60_000, 8_000] {
        let body = json!({"lease_id": secret(&first), "ttl_ms": ttl_ms});
        let extended = call(&other, &name, "extend", body).await.ok();
        assert_eq!(extended["candidate"], "a");
        assert_eq!(extended["value"], "v");
        assert_eq!(extended["term"], first["term"]);
        assert_eq!(number(&extended, "ttl_ms"), ttl_ms);
    }
    call(&other, &name, "extend", json!({"lease_id": secret(&first), "ttl_ms": 800})).await.ok();
    let since = Instant::now();
    let body = json!({"candidate": "b", "wait_ms": 60_000});
    let second = call(&other, &name, "campaign", body).await.ok();
    println!("a leader that stops extending (800 ms left) is replaced after {:?}", since.elapsed());
    assert!(since.elapsed() > Duration::from_millis(700));
    assert!(since.elapsed() < Duration::from_secs(5));
    assert!(number(&second, "term") > number(&first, "term"));
    call(&api, &name, "extend", json!({"lease_id": secret(&first)})).await.problem(409, "lease_lost");
    let body = json!({"lease_id": secret(&first), "value": "late"});
    call(&api, &name, "proclaim", body).await.problem(409, "lease_lost");
    assert!(leader(&api, &name).await.get("value").is_none(), "the late proclamation is not seen");
}

#[tokio::test]
async fn a_resigning_leader_is_replaced_at_once() {
    let shared = Shared::nodes(3);
    for heir in [shared.api(), shared.other_api()] {
        let name = unique("resigns");
        let first = campaign(&shared.api(), &name, "a").await.ok();
        let waiting = tokio::spawn({
            let (heir, name) = (heir.clone(), name.clone());
            async move { call(&heir, &name, "campaign", json!({"candidate": "b", "wait_ms": 60_000})).await.ok() }
        });
        eventually("b waits", || async { leader(&heir, &name).await["waiters"] == 1 }).await;
        let since = Instant::now();
        assert_eq!(resign(&shared.api(), &name, &first).await, json!({"released": true}));
        let second = waiting.await.unwrap();
        println!("a leader that resigns is replaced after {:?}", since.elapsed());
        assert_eq!(second["candidate"], "b");
        assert!(since.elapsed() < Duration::from_secs(5));
    }
}

#[tokio::test]
async fn a_retry_of_a_campaign_gets_the_same_term() {
    let shared = Shared::nodes(3);
    let name = unique("retry");
    let body = json!({"candidate": "a", "request_id": unique("request-id")});
    let first = call(&shared.api(), &name, "campaign", body.clone()).await.ok();
    let again = call(&shared.other_api(), &name, "campaign", body).await.ok();
    assert_eq!(secret(&again), secret(&first));
    assert_eq!(again["term"], first["term"]);
}

#[tokio::test]
async fn what_the_leader_proclaims_is_seen_and_changes_the_revision() {
    let shared = Shared::nodes(3);
    let (api, other) = (shared.api(), shared.other_api());
    let name = unique("proclaims");
    let leadership = call(&api, &name, "campaign", json!({"candidate": "a", "ttl_ms": 30_000})).await.ok();
    let mut revisions = vec![leader(&api, &name).await["revision"].clone()];
    // A → B → A is a change each time.
    for (api, value) in [(&other, "A"), (&api, "B"), (&other, "A"), (&api, "ü\n\u{1f512}")] {
        let body = json!({"lease_id": secret(&leadership), "value": value});
        let proclaimed = call(api, &name, "proclaim", body).await.ok();
        assert_eq!(proclaimed["value"], value);
        assert_eq!(proclaimed["candidate"], "a");
        assert_eq!(proclaimed["term"], leadership["term"]);
        assert!(number(&proclaimed, "validity_ms") < 30_000, "proclaiming is no extension");
        for api in [&shared.api(), &shared.other_api()] {
            let seen = leader(api, &name).await;
            assert_eq!(seen["value"], value);
            assert_eq!(seen["term"], leadership["term"]);
        }
        revisions.push(leader(api, &name).await["revision"].clone());
    }
    let different: std::collections::HashSet<String> = revisions.iter().map(ToString::to_string).collect();
    assert_eq!(different.len(), revisions.len(), "{revisions:?}");
}

/// What each node stores with the leader's lease, from the version on; nothing where it stores none.
fn copies(cluster: &Cluster, name: &str) -> Vec<String> {
    let key = format!("quorate:election:{name}");
    let copy = |node: &crate::support::Redis| {
        let record: Option<String> = node.command(&["GET", &key]);
        record.map(|record| record.split(' ').skip(12).collect()).unwrap_or_default()
    };
    cluster.nodes.iter().map(copy).collect()
}

fn agree(copies: &[String]) -> bool {
    copies.iter().all(|copy| *copy == copies[0])
}

/// A full node votes and reads, and takes nothing new.
fn set_full(node: &crate::support::Redis, full: bool) {
    node.command::<()>(&["CONFIG", "SET", "maxmemory", if full { "1" } else { "0" }]);
}

async fn proclaim(api: &Api, name: &str, leadership: &Value, value: &str) -> Answer {
    call(api, name, "proclaim", json!({"lease_id": secret(leadership), "value": value})).await
}

#[tokio::test]
async fn what_was_proclaimed_is_not_taken_back_by_a_node_that_missed_it() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("missed");
    let body = json!({"candidate": "a", "value": "old", "ttl_ms": 60_000});
    let leadership = call(&api, &name, "campaign", body).await.ok();
    let mut observer = observe(&api, &name).await;
    assert_eq!(observer.expect("leader").await["value"], "old");
    // A node beyond the quorum gets its copy a moment later.
    eventually("all nodes have it", async || agree(&copies(&cluster, &name))).await;
    set_full(&cluster.nodes[2], true);
    let proclaimed = proclaim(&api, &name, &leadership, "new").await.ok();
    assert_eq!(number(&proclaimed["nodes"], "granted"), 2);
    // Whoever looks or contends now asks one node that has it and one that has not.
    cluster.nodes[1].stop();
    let revision = leader(&api, &name).await["revision"].clone();
    for _ in 0..40 {
        let seen = leader(&api, &name).await;
        assert_eq!((&seen["value"], &seen["revision"]), (&json!("new"), &revision));
        let refused = campaign(&api, &name, "b").await.problem(409, "election_lost");
        assert_eq!(refused["holder"]["value"], "new");
    }
    cluster.nodes[1].resume();
    set_full(&cluster.nodes[2], false);
    for _ in 0..20 {
        let extended = call(&api, &name, "extend", json!({"lease_id": secret(&leadership)})).await.ok();
        assert_eq!(extended["value"], "new");
    }
    eventually("an extension brought it to the node that missed it", || async {
        call(&api, &name, "extend", json!({"lease_id": secret(&leadership)})).await.ok();
        agree(&copies(&cluster, &name))
    })
    .await;
    proclaim(&api, &name, &leadership, "newer").await.ok();
    assert_eq!(observer.expect("leader").await["value"], "new");
    assert_eq!(observer.expect("leader").await["value"], "newer");
}

#[tokio::test]
async fn a_revision_is_not_used_again_after_a_node_missed_a_proclaim() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    for _ in 0..5 {
        let name = unique("counted");
        let leadership = campaign(&api, &name, "a").await.ok();
        eventually("all nodes have the lease", || async { agree(&copies(&cluster, &name)) }).await;
        let mut revisions = vec![leader(&api, &name).await["revision"].clone()];
        for (full, value) in [(true, "1"), (true, "2"), (false, "3"), (false, "4")] {
            set_full(&cluster.nodes[2], full);
            proclaim(&api, &name, &leadership, value).await.ok();
            let seen = leader(&api, &name).await;
            assert_eq!(seen["value"], value);
            assert!(
                !revisions.contains(&seen["revision"]),
                "{value}: {} after {revisions:?}",
                seen["revision"]
            );
            revisions.push(seen["revision"].clone());
        }
    }
}

#[tokio::test]
async fn a_node_that_lost_the_lease_gets_it_back_with_what_was_proclaimed_last() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    for _ in 0..10 {
        let name = unique("healed");
        let leadership = call(&api, &name, "campaign", json!({"candidate": "a", "value": "old"})).await.ok();
        eventually("all nodes have the lease", || async { agree(&copies(&cluster, &name)) }).await;
        set_full(&cluster.nodes[2], true);
        proclaim(&api, &name, &leadership, "new").await.ok();
        set_full(&cluster.nodes[2], false);
        cluster.nodes[1].command::<()>(&["DEL", &format!("quorate:election:{name}")]);
        let extended = call(&api, &name, "extend", json!({"lease_id": secret(&leadership)})).await.ok();
        assert_eq!(extended["value"], "new");
        eventually("all nodes have it", || async {
            call(&api, &name, "extend", json!({"lease_id": secret(&leadership)})).await.ok();
            agree(&copies(&cluster, &name))
        })
        .await;
    }
}

/// A proclaim that reaches one node only is refused, and is seen or not: but not taken back once seen.
#[tokio::test]
async fn a_value_that_somebody_saw_is_not_taken_back() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("seen");
    let leadership = call(&api, &name, "campaign", json!({"candidate": "a", "value": "old"})).await.ok();
    eventually("all nodes have the lease", || async { agree(&copies(&cluster, &name)) }).await;
    let key = format!("quorate:election:{name}");
    let before: Vec<String> = cluster.nodes.iter().map(|node| node.command(&["GET", &key])).collect();
    proclaim(&api, &name, &leadership, "new").await.ok();
    eventually("all nodes have the value", || async { agree(&copies(&cluster, &name)) }).await;
    for (node, record) in cluster.nodes.iter().zip(before).skip(1) {
        node.command::<()>(&["SET", &key, &record, "KEEPTTL"]);
    }
    cluster.nodes[1].stop();
    assert_eq!(leader(&api, &name).await["value"], "new");
    cluster.nodes[1].resume();
    server.all_voting().await;
    cluster.nodes[0].stop();
    assert_eq!(leader(&api, &name).await["value"], "new");
    cluster.nodes[0].resume();
}

#[tokio::test]
async fn proclaims_at_the_same_time_have_a_revision_each_and_all_agree_on_the_last() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let (one, two) = (one.api(), two.api());
    for other in [&one, &two].repeat(20) {
        let name = unique("race");
        let leadership = campaign(&one, &name, "a").await.ok();
        let known: Mutex<HashMap<String, Value>> = Mutex::default();
        let know = |seen: &Value| {
            let mut known = known.lock().unwrap();
            let value = known.entry(seen["revision"].to_string()).or_insert_with(|| seen["value"].clone());
            assert_eq!(*value, seen["value"], "revision {}", seen["revision"]);
        };
        let look = async || {
            for api in [&one, &two].repeat(5) {
                know(&leader(api, &name).await);
            }
        };
        let (x, y, ()) = tokio::join!(
            proclaim(&one, &name, &leadership, "x"),
            proclaim(other, &name, &leadership, "y"),
            look()
        );
        assert_eq!((&x.ok()["value"], &y.ok()["value"]), (&json!("x"), &json!("y")));
        look().await;
        eventually("the nodes agree", || async {
            call(&one, &name, "extend", json!({"lease_id": secret(&leadership)})).await.ok();
            agree(&copies(&cluster, &name))
        })
        .await;
        look().await;
        let last = leader(&one, &name).await;
        assert_eq!(leader(&two, &name).await["revision"], last["revision"]);
        // What comes after both has another one.
        proclaim(&two, &name, &leadership, "z").await.ok();
        look().await;
        assert_eq!(leader(&one, &name).await["value"], "z");
    }
}

#[tokio::test]
async fn a_long_poll_answers_as_soon_as_the_revision_differs() {
    let shared = Shared::nodes(3);
    let (api, other) = (shared.api(), shared.other_api());
    let name = unique("poll");
    let poll = |api: &Api, after: &Value, wait_ms: u64| {
        let after = crate::support::http::encode(after.as_str().unwrap());
        let path = format!("/v1/elections/{name}?after={after}&wait_ms={wait_ms}");
        let api = api.clone();
        tokio::spawn(async move { api.get(&path).await })
    };
    let mut seen = leader(&api, &name).await;
    // Nothing happens: the same after the time.
    let asked = Instant::now();
    let same = poll(&api, &seen["revision"], 400).await.unwrap().ok();
    assert_eq!(same["revision"], seen["revision"]);
    assert!(asked.elapsed() >= Duration::from_millis(400));
    // It differs already: at once, also from what no server ever gave out.
    for other in ["something-else", "", "with spaces\n", "ünïcode", &"x".repeat(256)] {
        let asked = Instant::now();
        let now = poll(&api, &json!(other), 50_000).await.unwrap().ok();
        assert_eq!(now["revision"], seen["revision"]);
        assert!(asked.elapsed() < Duration::from_secs(20), "{other:?}");
    }
    poll(&api, &json!("x".repeat(257)), 0).await.unwrap().problem(400, "invalid_request");

    let mut leadership = Value::Null;
    for step in ["campaign", "proclaim", "resign", "campaign again", "expire"] {
        // Twice, at the server where it happens and at the other.
        let polls = [poll(&api, &seen["revision"], 50_000), poll(&other, &seen["revision"], 50_000)];
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(polls.iter().all(|poll| !poll.is_finished()), "before {step}");
        let since = Instant::now();
        match step {
            "proclaim" => {
                let body = json!({"lease_id": secret(&leadership), "value": "v"});
                call(&api, &name, "proclaim", body).await.ok();
            }
            "resign" => drop(resign(&api, &name, &leadership).await),
            "expire" => {
                call(&api, &name, "extend", json!({"lease_id": secret(&leadership), "ttl_ms": 300}))
                    .await
                    .ok();
            }
            _ => leadership = campaign(&api, &name, "a").await.ok(),
        }
        for poll in polls {
            let changed = poll.await.unwrap().ok();
            assert_ne!(changed["revision"], seen["revision"], "after {step}");
            match step {
                "resign" | "expire" => assert!(changed.get("leader").is_none(), "after {step}: {changed}"),
                _ => assert_eq!(changed["leader"], "a", "after {step}"),
            }
        }
        assert!(since.elapsed() < Duration::from_secs(10), "{step} was seen after {:?}", since.elapsed());
        seen = leader(&api, &name).await;
    }
}

#[tokio::test]
async fn an_observer_sees_the_present_state_and_then_every_change_in_order() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    let name = unique("observed");
    let mut observers = vec![observe(&api, &name).await, observe(&shared.other_api(), &name).await];
    for observer in &mut observers {
        let first = observer.next().await;
        assert_eq!(first.name, "vacant");
        assert_eq!(first.data["name"], name);
    }
    let mut terms = Vec::new();
    for round in 0..10 {
        let candidate = format!("c{round}");
        let leadership = campaign(&api, &name, &candidate).await.ok();
        terms.push(number(&leadership, "term"));
        let mut last = Value::Null;
        for observer in &mut observers {
            let event = observer.next().await;
            assert_eq!(event.name, "leader");
            assert_eq!(event.data["leader"], candidate);
            assert_eq!(number(&event.data, "term"), *terms.last().unwrap());
            last = event.data["revision"].clone();
        }
        let body = json!({"lease_id": secret(&leadership), "value": "v"});
        call(&api, &name, "proclaim", body).await.ok();
        for observer in &mut observers {
            let event = observer.next().await;
            assert_eq!(event.name, "leader");
            assert_eq!(event.data["value"], "v");
            assert_ne!(event.data["revision"], last);
        }
        resign(&api, &name, &leadership).await;
        for observer in &mut observers {
            let event = observer.next().await;
            assert_eq!(event.name, "vacant");
            assert!(event.data.get("leader").is_none());
        }
    }
    assert!(terms.is_sorted_by(|earlier, later| earlier < later));
    // Who comes later begins with what is.
    let leadership = campaign(&api, &name, "late").await.ok();
    let mut late = observe(&shared.other_api(), &name).await;
    let first = late.next().await;
    assert_eq!((first.name.as_str(), &first.data["leader"]), ("leader", &json!("late")));
    assert_eq!(first.data["term"], leadership["term"]);
}

#[tokio::test]
async fn whoever_begins_to_observe_without_a_quorum_is_told_so() {
    let mut cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    cluster.nodes[0].kill();
    cluster.nodes[1].kill();
    let refused = api.stream("GET", "/v1/elections/e/observe", serde_json::Value::Null).await;
    refused.err().expect("a stream").problem(503, "quorum_unavailable");
}

#[tokio::test]
async fn a_long_poll_that_ends_without_a_quorum_says_so_and_not_what_was() {
    let mut cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let leadership = campaign(&api, "e", "a").await.ok();
    // Keeps what it saw in memory.
    let mut observer = observe(&api, "e").await;
    assert_eq!(observer.expect("leader").await["term"], leadership["term"]);
    cluster.nodes[0].kill();
    cluster.nodes[1].kill();
    let path = "/v1/elections/e?after=vacant&wait_ms=300";
    eventually("no quorum", || async { api.get("/v1/elections/e").await.status == 503 }).await;
    api.get(path).await.problem(503, "quorum_unavailable");
}

#[tokio::test]
async fn many_observers_of_one_election_share_one_watch() {
    crate::support::allow_open_files(4_000);
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("crowd");
    let scripts = || -> u64 {
        let of = |node: &crate::support::Redis| -> u64 {
            let stats = node.commandstats();
            stats.iter().filter(|(name, _)| name.starts_with("eval")).map(|(_, calls)| calls).sum()
        };
        cluster.nodes.iter().map(of).sum()
    };
    let mut observers = vec![observe(&api, &name).await];
    observers[0].next().await;
    let before = scripts();
    for _ in 0..299 {
        let mut observer = observe(&api, &name).await;
        observer.next().await;
        observers.push(observer);
    }
    let cost = scripts() - before;
    assert!(
        cost < 299 * 3 * 3 / 2,
        "{cost} scripts for 299 who come, each of whom takes one look at 3 nodes"
    );
    let subscribers: Vec<u64> = cluster
        .nodes
        .iter()
        .map(|node| node.command::<String>(&["CLIENT", "LIST", "TYPE", "pubsub"]).lines().count() as u64)
        .collect();
    assert!(subscribers.iter().all(|count| *count <= 1), "{subscribers:?} subscribers");
    let before = scripts();
    let leadership = campaign(&api, &name, "a").await.ok();
    for observer in &mut observers {
        assert_eq!(observer.expect("leader").await["leader"], "a");
    }
    let cost = scripts() - before;
    println!("300 observers of one election learn of a change at {cost} scripts over 3 nodes");
    assert!(cost < 60, "{cost} scripts for one change");
    drop(leadership);
    drop(observers);
    eventually("no stream is open", || async { api.metric("quorate_streams").await == 0.0 }).await;
}

/// What the candidates were told, for the checks at the end.
#[derive(Default)]
struct Reigns {
    /// By term: surely in office from, surely until (by validity, or resigned before).
    all: Mutex<HashMap<u64, (Instant, Instant)>>,
}

/// Elections through two servers with leaders that die, resign and extend at random, and servers
/// of nodes that come and go: at every moment at most one valid leader, terms that rise, and
/// observers that see every change in order.
#[tokio::test]
async fn with_leaders_killed_at_random_there_is_one_at_most_and_terms_rise() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let name = unique("turmoil");
    let reigns = Arc::new(Reigns::default());
    let over = Arc::new(AtomicBool::new(false));
    let mut watchers = JoinSet::new();
    for server in [&one, &two] {
        let (api, name, over) = (server.api(), name.clone(), Arc::clone(&over));
        watchers.spawn(async move {
            let mut observer = observe(&api, &name).await;
            let mut seen = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let event = tokio::time::timeout(Duration::from_millis(200), observer.try_next()).await;
                if let Ok(event) = event {
                    seen.push(event.expect("the stream goes on"));
                }
            }
            seen
        });
    }
    let until = Instant::now() + Duration::from_secs(6);
    let mut candidates = JoinSet::new();
    for i in 0..8 {
        let api = Api::new(if i % 2 == 0 { one.api().address() } else { two.api().address() });
        let (name, reigns) = (name.clone(), Arc::clone(&reigns));
        candidates.spawn(async move {
            let mut terms = Vec::new();
            while Instant::now() < until {
                let asked = Instant::now();
                let body = json!({"candidate": format!("c{i}"), "ttl_ms": 400, "wait_ms": 3_000});
                let answer = call(&api, &name, "campaign", body).await;
                if answer.status == 409 {
                    continue;
                }
                let mut leadership = answer.ok();
                let (term, from) = (number(&leadership, "term"), Instant::now());
                terms.push(term);
                let mut end = asked + Duration::from_millis(number(&leadership, "validity_ms"));
                reigns.all.lock().unwrap().insert(term, (from, end));
                // Dies, resigns, or goes on for a while.
                while rand::rng().random_bool(0.6) {
                    let pause = rand::rng().random_range(1..120);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    let asked = Instant::now();
                    let extended =
                        call(&api, &name, "extend", json!({"lease_id": secret(&leadership)})).await;
                    if extended.status != 200 {
                        extended.problem(409, "lease_lost");
                        break;
                    }
                    leadership = extended.json();
                    end = asked + Duration::from_millis(number(&leadership, "validity_ms"));
                    reigns.all.lock().unwrap().insert(term, (from, end));
                }
                if rand::rng().random_bool(0.6) {
                    let now = Instant::now();
                    reigns.all.lock().unwrap().insert(term, (from, end.min(now)));
                    resign(&api, &name, &leadership).await;
                }
            }
            terms
        });
    }
    let terms: Vec<Vec<u64>> = candidates.join_all().await;
    assert!(terms.iter().all(|own| own.is_sorted_by(|earlier, later| earlier < later)), "a term went back");
    let mut reigns: Vec<(u64, (Instant, Instant))> =
        reigns.all.lock().unwrap().iter().map(|(term, reign)| (*term, *reign)).collect();
    reigns.sort_by_key(|(_, (from, _))| *from);
    for pair in reigns.windows(2) {
        let ((earlier, (_, end)), (later, (from, _))) = (pair[0], pair[1]);
        assert!(later > earlier, "term {later} after {earlier}");
        assert!(end <= from, "terms {earlier} and {later} were both valid for {:?}", end - from);
    }
    // Let the last one's end be seen.
    eventually("the office is vacant", || async { leader(&one.api(), &name).await.get("leader").is_none() })
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    over.store(true, Ordering::Relaxed);
    for seen in watchers.join_all().await {
        let seen_terms: Vec<u64> = seen.iter().filter_map(|event| event.data["term"].as_u64()).collect();
        assert!(seen_terms.is_sorted(), "an observer saw a term go back: {seen_terms:?}");
        assert!(
            seen.windows(2).all(|pair| pair[0].data["revision"] != pair[1].data["revision"]),
            "told twice"
        );
        let missed = reigns.iter().filter(|(term, _)| !seen_terms.contains(term)).count();
        println!(
            "turmoil: {} terms in 6 s, an observer saw {} changes, {missed} terms missed",
            reigns.len(),
            seen.len()
        );
        assert_eq!(seen.last().map(|event| event.name.as_str()), Some("vacant"));
        // A term that begins and ends within a round trip may be over before anybody can look.
        let long = reigns.iter().filter(|(_, (from, end))| *end > *from + Duration::from_millis(200));
        let missed: Vec<_> = long.filter(|(term, _)| !seen_terms.contains(term)).collect();
        assert!(missed.is_empty(), "not seen: {missed:?}");
    }
    assert!(reigns.len() > 10, "only {} terms", reigns.len());
}
