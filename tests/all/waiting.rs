//! `wait_ms`: in order, woken at once, at no cost for the nodes, and never for longer than asked.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{
    Api, Cluster, Server, Shared, allow_open_files, eventually, median, number, secret, token, unique,
};

/// A client that waits for `name` in the background.
fn wait(api: &Api, name: &str, body: Value) -> JoinHandle<crate::support::Answer> {
    let (api, name) = (api.clone(), name.to_owned());
    tokio::spawn(async move { api.acquire(&name, body).await })
}

async fn waiters(api: &Api, name: &str) -> u64 {
    number(&api.lock(name).await, "waiters")
}

#[tokio::test]
async fn a_waiter_gets_the_lock_when_it_is_released_at_the_same_or_another_server() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        for (holder, waiter) in [(shared.api(), shared.api()), (shared.api(), shared.other_api())] {
            let mut handovers = Vec::new();
            for _ in 0..20 {
                let name = unique("handover");
                let lease = holder.acquire(&name, json!({})).await.ok();
                let waiting = wait(&waiter, &name, json!({"wait_ms": 60_000}));
                eventually("it waits", || async { waiters(&waiter, &name).await == 1 }).await;
                let (released, granted) = tokio::join!(
                    async {
                        holder.release(&name, &lease).await.ok();
                        Instant::now()
                    },
                    async {
                        let next = waiting.await.unwrap().ok();
                        (Instant::now(), next)
                    }
                );
                let (at, next) = granted;
                handovers.push(at.saturating_duration_since(released));
                assert!(token(&next) > token(&lease));
                assert_eq!(waiters(&waiter, &name).await, 0);
            }
            let which = if holder.address() == waiter.address() { "one server" } else { "two servers" };
            println!("hand-over on {total} nodes through {which}: {:?} (median of 20)", median(handovers));
        }
    }
}

#[tokio::test]
async fn how_long_was_waited_is_counted_for_those_who_left_too() {
    let cluster = Cluster::new(1);
    let server = cluster.server(&[]).await;
    let (api, name) = (server.api(), unique("left"));
    api.acquire(&name, json!({})).await.ok();
    let waiting = wait(&api, &name, json!({"wait_ms": 50_000}));
    eventually("it waits", || async { waiters(&api, &name).await == 1 }).await;
    waiting.abort();
    let count = r#"quorate_wait_duration_seconds_count{primitive="lock"}"#;
    eventually("it is counted", || async { api.metric(count).await == 1.0 }).await;
}

/// As a proxy does that asks once more before it gave up.
#[tokio::test]
async fn the_same_request_waiting_twice_gets_its_lease_twice_and_at_once() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    let mut lags = Vec::new();
    for _ in 0..5 {
        let name = unique("twice");
        let lease = api.acquire(&name, json!({})).await.ok();
        let body = json!({"wait_ms": 60_000, "request_id": unique("request-id")});
        let first = wait(&api, &name, body.clone());
        eventually("one waits", || async { waiters(&api, &name).await == 1 }).await;
        let second = wait(&api, &name, body);
        eventually("both wait", || async { waiters(&api, &name).await == 2 }).await;
        api.release(&name, &lease).await.ok();
        let first = first.await.unwrap().ok();
        let began = Instant::now();
        assert_eq!(secret(&second.await.unwrap().ok()), secret(&first));
        lags.push(began.elapsed());
    }
    // It used to be found by the look that is taken every two seconds.
    assert!(lags.iter().any(|lag| *lag < Duration::from_secs(1)), "{lags:?}");
}

#[tokio::test]
async fn waiters_are_served_in_order_of_arrival() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    let name = unique("order");
    let lease = shared.other_api().acquire(&name, json!({})).await.ok();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut queue = JoinSet::new();
    for place in 0..40 {
        let (api, name, served) = (api.clone(), name.clone(), Arc::clone(&served));
        queue.spawn({
            let api = api.clone();
            let name = name.clone();
            async move {
                let lease = api.acquire(&name, json!({"wait_ms": 60_000})).await.ok();
                served.lock().unwrap().push(place);
                api.release(&name, &lease).await.ok();
            }
        });
        eventually("it stands in the queue", || async { waiters(&api, &name).await == place + 1 }).await;
    }
    shared.other_api().release(&name, &lease).await.ok();
    queue.join_all().await;
    assert_eq!(*served.lock().unwrap(), (0..40).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_dead_holders_lock_reaches_the_first_waiter_soon_after_its_ttl() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        for waiter in [shared.api(), shared.other_api()] {
            let name = unique("dead");
            let taken = Instant::now();
            let dead = shared.api().acquire(&name, json!({"ttl_ms": 700})).await.ok();
            let next = waiter.acquire(&name, json!({"wait_ms": 60_000})).await.ok();
            let after = taken.elapsed();
            assert!(after >= Duration::from_millis(number(&dead, "validity_ms")), "too early: {after:?}");
            println!(
                "a lease of 700 ms on {total} nodes reached its waiter {after:?} after it was asked for"
            );
            assert!(after < Duration::from_secs(4), "{after:?}");
            assert!(number(&next, "waited_ms") > 0);
        }
    }
}

#[tokio::test]
async fn nobody_waits_longer_than_asked() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    let name = unique("timeout");
    api.acquire(&name, json!({"owner": "me"})).await.ok();
    for wait_ms in [1, 200, 600] {
        let asked = Instant::now();
        let answer = api.acquire(&name, json!({"wait_ms": wait_ms})).await;
        let problem = answer.problem(409, "lock_held");
        assert!(asked.elapsed() >= Duration::from_millis(wait_ms), "{:?} of {wait_ms}", asked.elapsed());
        assert!(asked.elapsed() < Duration::from_millis(wait_ms) + Duration::from_secs(5));
        assert_eq!(problem["holder"]["owner"], "me");
        assert!(number(&problem, "retry_after_ms") > 0);
    }
    // Those behind the first in the queue, too.
    let crowd: Vec<_> = (0..10).map(|_| wait(&api, &name, json!({"wait_ms": 300}))).collect();
    for waiter in crowd {
        let problem = waiter.await.unwrap().problem(409, "lock_held");
        assert_eq!(problem["holder"]["owner"], "me", "{problem}");
    }
    assert_eq!(waiters(&api, &name).await, 0);
}

#[tokio::test]
async fn who_stops_waiting_behind_a_slow_first_attempt_is_not_told_that_the_nodes_are_down() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let server = Server::start(&options.with(&["--node-timeout", "5s"]));
    server.all_voting().await;
    let (api, name) = (server.api(), unique("slow-first"));
    proxies.iter().for_each(|proxy| proxy.delay(Duration::from_millis(300)));
    let first = wait(&api, &name, json!({"wait_ms": 10_000}));
    eventually("the first one asks", async || api.metric("quorate_waiters").await >= 1.0).await;
    let answer = api.acquire(&name, json!({"wait_ms": 20})).await;
    assert_eq!(answer.problem(409, "lock_held")["nodes"]["failed"], 0);
    first.await.unwrap().ok();
}

#[tokio::test]
async fn a_free_lock_is_granted_at_once_however_long_one_would_wait() {
    let api = Shared::nodes(3).api();
    let lease = api.acquire(&unique("free"), json!({"wait_ms": 60_000})).await.ok();
    assert!(number(&lease, "waited_ms") < 10_000);
}

#[tokio::test]
async fn waiting_rides_through_moments_without_a_quorum() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("outage");
    cluster.nodes[0].stop();
    cluster.nodes[1].stop();
    api.acquire(&unique("refused"), json!({})).await.problem(503, "quorum_unavailable");
    let waiting = wait(&api, &name, json!({"wait_ms": 60_000}));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(!waiting.is_finished());
    cluster.nodes[0].resume();
    cluster.nodes[1].resume();
    waiting.await.unwrap().ok();
}

#[tokio::test]
async fn the_waiting_room_is_bounded_per_name_and_in_all() {
    let cluster = Cluster::new(1);
    let server = cluster.server(&["--max-waiters", "5", "--max-waiters-per-name", "3"]).await;
    let api = server.api();
    let (one, two) = (unique("one"), unique("two"));
    for name in [&one, &two] {
        api.acquire(name, json!({})).await.ok();
    }
    let mut waiting = Vec::new();
    for (name, room) in [(&one, 3), (&two, 2)] {
        for place in 1..=room {
            waiting.push(wait(&api, name, json!({"wait_ms": 60_000})));
            eventually("it waits", || async { waiters(&api, name).await == place }).await;
        }
        let answer = api.acquire(name, json!({"wait_ms": 1_000})).await;
        let problem = answer.problem(429, "too_many_waiters");
        assert!(number(&problem, "retry_after_ms") > 0);
        assert!(answer.header("retry-after").is_some());
        // Who does not wait needs no room.
        api.acquire(name, json!({})).await.problem(409, "lock_held");
    }
    // Nor who would wait, but has not to.
    api.acquire(&unique("free"), json!({"wait_ms": 1_000})).await.ok();
    let metrics = api.get("/metrics").await.text();
    assert!(metrics.lines().any(|line| line == "quorate_waiters 5"), "{metrics}");
    eventually("the longest wait is seen", || async {
        api.metric("quorate_longest_wait_seconds").await > 0.0
    })
    .await;
    let rejected = r#"quorate_acquisitions_total{primitive="lock",outcome="rejected"}"#;
    assert_eq!(api.metric(rejected).await, 2.0);
    waiting.iter().for_each(JoinHandle::abort);
    eventually("there is room again", || async { api.metric("quorate_waiters").await == 0.0 }).await;
}

#[tokio::test]
async fn with_pub_sub_cut_again_and_again_waiters_still_make_progress() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let name = unique("deaf");
    let over = Arc::new(AtomicBool::new(false));
    let cut = {
        let over = Arc::clone(&over);
        let mut connections: Vec<_> = cluster.nodes.iter().map(|node| node.connection()).collect();
        std::thread::spawn(move || {
            let mut cuts = 0;
            while !over.load(Ordering::Relaxed) {
                for connection in &mut connections {
                    let mut command = redis::cmd("CLIENT");
                    cuts += command.arg("KILL").arg("TYPE").arg("pubsub").query::<u64>(connection).unwrap();
                }
                std::thread::sleep(Duration::from_millis(30));
            }
            cuts
        })
    };
    let mut workers = JoinSet::new();
    for worker in 0..6 {
        let api = if worker % 2 == 0 { one.api() } else { two.api() };
        let name = name.clone();
        workers.spawn(async move {
            for _ in 0..10 {
                let lease = api.acquire(&name, json!({"wait_ms": 60_000, "ttl_ms": 30_000})).await.ok();
                tokio::time::sleep(Duration::from_millis(5)).await;
                api.release(&name, &lease).await.ok();
            }
        });
    }
    let started = Instant::now();
    workers.join_all().await;
    over.store(true, Ordering::Relaxed);
    let cuts = cut.join().unwrap();
    println!(
        "60 hand-overs between two servers with {cuts} pub/sub connections cut took {:?}",
        started.elapsed()
    );
    assert!(cuts > 10, "nothing was cut");
}

/// A counter that is read, then written, with time in between: it loses increments unless the
/// lock excludes; and that rejects whoever comes with an older fencing token.
#[derive(Default)]
struct Register {
    value: AtomicU64,
    fence: AtomicU64,
    inside: AtomicU64,
}

impl Register {
    async fn increment(&self, token: u64) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
        let before = self.fence.swap(token, Ordering::SeqCst);
        assert!(token > before, "token {token} after {before}");
        let value = self.value.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.value.store(value + 1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// 10 workers with 100 increments each; `half_way` happens after 500.
async fn count_to_a_thousand(apis: &[Api], half_way: impl FnOnce()) {
    let (name, register) = (unique("counter"), Arc::new(Register::default()));
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for worker in 0..10 {
        // Connections of one's own, as ten processes would have.
        let api = Api::new(apis[worker % apis.len()].address());
        let (name, register) = (name.clone(), Arc::clone(&register));
        workers.spawn(async move {
            for _ in 0..100 {
                let lease = api.acquire(&name, json!({"wait_ms": 60_000, "ttl_ms": 60_000})).await.ok();
                register.increment(token(&lease)).await;
                assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
            }
        });
    }
    eventually("half of it is done", || async { register.value.load(Ordering::SeqCst) >= 500 }).await;
    half_way();
    workers.join_all().await;
    assert_eq!(register.value.load(Ordering::SeqCst), 1_000);
    println!("10 workers × 100 increments through {} server(s): 1000 in {:?}", apis.len(), started.elapsed());
}

#[tokio::test]
async fn a_thousand_increments_by_ten_workers_are_a_thousand() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    count_to_a_thousand(&[server.api()], || {}).await;
}

#[tokio::test]
async fn a_thousand_increments_through_two_servers_are_a_thousand() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    count_to_a_thousand(&[one.api(), two.api()], || {}).await;
}

#[tokio::test]
async fn a_thousand_increments_with_a_node_killed_half_way_are_a_thousand() {
    let mut cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let victim = &mut cluster.nodes[0];
    count_to_a_thousand(&[one.api(), two.api()], || victim.kill()).await;
}

/// Commands that every node was asked for by `waiters` requests served one after the other.
async fn commands_per_handover(cluster: &Cluster, api: &Api, waiting: usize) -> Vec<f64> {
    let name = unique("crowd");
    let holder = api.acquire(&name, json!({"ttl_ms": 300_000})).await.ok();
    let mut crowd = JoinSet::new();
    for _ in 0..waiting {
        let (api, name) = (api.clone(), name.clone());
        crowd.spawn(async move {
            let lease = api.acquire(&name, json!({"wait_ms": 60_000, "ttl_ms": 300_000})).await.ok();
            api.release(&name, &lease).await.ok();
            secret(&lease).to_owned()
        });
    }
    eventually("all wait", || async { waiters(api, &name).await == waiting as u64 }).await;
    let of_interest = |(name, calls): (String, u64)| {
        // Commands inside of scripts are counted too, so the calls of scripts alone are the messages.
        (name.starts_with("eval") || name.contains("subscribe") || name == "publish").then_some((name, calls))
    };
    let count = || -> Vec<BTreeMap<String, u64>> {
        cluster
            .nodes
            .iter()
            .map(|node| node.commandstats().into_iter().filter_map(of_interest).collect())
            .collect()
    };
    let before = count();
    let started = Instant::now();
    api.release(&name, &holder).await.ok();
    let served = crowd.join_all().await;
    let took = started.elapsed();
    assert_eq!(served.iter().collect::<std::collections::HashSet<_>>().len(), waiting);
    let after = count();
    let messages = |counts: &BTreeMap<String, u64>| -> u64 {
        counts.iter().filter(|(name, _)| *name != "publish").map(|(_, calls)| calls).sum()
    };
    let per_node: Vec<f64> = after
        .iter()
        .zip(&before)
        .map(|(after, before)| (messages(after) - messages(before)) as f64 / waiting as f64)
        .collect();
    println!(
        "{waiting} waiters on one lock, all served in {took:?}; commands per hand-over at each node: {}",
        per_node.iter().map(|count| format!("{count:.2}")).collect::<Vec<_>>().join(", ")
    );
    per_node
}

#[tokio::test]
async fn a_thousand_waiters_cost_the_nodes_no_more_per_handover_than_ten() {
    allow_open_files(4_000);
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let few = commands_per_handover(&cluster, &api, 10).await;
    let some = commands_per_handover(&cluster, &api, 100).await;
    let many = commands_per_handover(&cluster, &api, 1_000).await;
    // A release and the next acquire at the two nodes that are asked; which these are differs, probes come on top.
    let sum = |commands: &[f64]| commands.iter().sum::<f64>();
    assert!(sum(&many) < sum(&few).max(sum(&some)) + 3.0, "{few:?} {some:?} {many:?}");
    assert!(many.iter().all(|commands| *commands < 2.5), "{many:?}");
}

#[tokio::test]
async fn thousands_of_waiters_that_are_not_served_cost_the_nodes_nothing() {
    allow_open_files(4_000);
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let calls = || -> u64 {
        let of = |stats: BTreeMap<String, u64>| {
            stats.iter().filter(|(name, _)| name.starts_with("eval")).map(|(_, calls)| calls).sum::<u64>()
        };
        cluster.nodes.iter().map(|node| of(node.commandstats())).sum()
    };
    let name = unique("idle");
    api.acquire(&name, json!({"ttl_ms": 300_000})).await.ok();
    let crowd: Vec<_> = (0..1_000).map(|_| wait(&api, &name, json!({"wait_ms": 60_000}))).collect();
    eventually("all wait", || async { waiters(&api, &name).await == 1_000 }).await;
    let (before, since) = (calls(), Instant::now());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let rate = (calls() - before) as f64 / since.elapsed().as_secs_f64() / 3.0;
    println!("1000 waiters that nobody serves: {rate:.1} scripts a second at each node, probes included");
    assert!(rate < 20.0, "{rate} scripts a second at each node");
    crowd.iter().for_each(JoinHandle::abort);
    eventually("all have gone", || async { waiters(&api, &name).await == 0 }).await;
}

#[tokio::test]
async fn an_even_number_of_nodes_does_not_end_in_ties() {
    for total in [2, 4] {
        let cluster = Cluster::new(total);
        let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
        let name = unique("even");
        let started = Instant::now();
        let mut workers = JoinSet::new();
        for worker in 0..12 {
            let api = Api::new(if worker % 2 == 0 { one.api().address() } else { two.api().address() });
            let name = name.clone();
            workers.spawn(async move {
                let mut last = 0;
                for _ in 0..15 {
                    let lease = api.acquire(&name, json!({"wait_ms": 60_000, "ttl_ms": 60_000})).await.ok();
                    assert!(token(&lease) > last);
                    last = token(&lease);
                    assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
                }
            });
        }
        workers.join_all().await;
        println!("180 hand-overs on {total} nodes through two servers took {:?}", started.elapsed());
        // Nobody waits: of those who ask at once, one gets it, unless each took the votes that
        // were still out for another's.
        let mut all = 0;
        for _ in 0..10 {
            let name = unique("even");
            let mut askers = JoinSet::new();
            for asker in 0..8 {
                let api = if asker % 2 == 0 { one.api() } else { two.api() };
                let name = name.clone();
                askers.spawn(async move { api.acquire(&name, json!({})).await.status });
            }
            let granted = askers.join_all().await.into_iter().filter(|status| *status == 200).count();
            assert!(granted <= 1, "{granted} have {name} on {total} nodes");
            all += granted;
        }
        println!("{all} of 10 names on {total} nodes were given to somebody");
        assert!(all >= 5, "{all} of 10 names on {total} nodes were given to anybody");
    }
}

#[tokio::test]
async fn nodes_are_listened_to_only_while_somebody_waits() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let channels = || -> Vec<usize> {
        let of = |node: &crate::support::Redis| {
            let channels: Vec<String> = node.command(&["PUBSUB", "CHANNELS"]);
            channels.len()
        };
        cluster.nodes.iter().map(of).collect()
    };
    assert_eq!(channels(), [0, 0, 0]);
    let names = [unique("heard"), unique("heard")];
    let mut waiting = Vec::new();
    for name in &names {
        api.acquire(name, json!({})).await.ok();
        for _ in 0..20 {
            waiting.push(wait(&api, name, json!({"wait_ms": 60_000})));
        }
    }
    eventually("all wait", || async { api.metric("quorate_waiters").await == 40.0 }).await;
    eventually("one channel a name", || async { channels() == [2, 2, 2] }).await;
    waiting.iter().for_each(JoinHandle::abort);
    eventually("nobody listens", || async { channels() == [0, 0, 0] }).await;
}

#[tokio::test]
async fn a_lease_whose_end_comes_nearer_is_not_waited_for_until_its_old_one() {
    let shared = Shared::nodes(3);
    for waiter in [shared.api(), shared.other_api()] {
        let mut waits = Vec::new();
        for _ in 0..5 {
            let name = unique("shorter");
            let holder = shared.api();
            let lease = holder.acquire(&name, json!({"ttl_ms": 60_000})).await.ok();
            let waiting = wait(&waiter, &name, json!({"wait_ms": 60_000}));
            eventually("it waits", || async { waiters(&waiter, &name).await == 1 }).await;
            // Until it has found that the lease is held, and for how long.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let body = json!({"lease_id": secret(&lease), "ttl_ms": 200});
            holder.post(&format!("/v1/locks/{name}/extend"), body).await.ok();
            let since = Instant::now();
            waiting.await.unwrap().ok();
            waits.push(since.elapsed());
        }
        // Without being told it looks every two seconds.
        assert!(median(waits.clone()) < Duration::from_millis(1_500), "{waits:?}");
    }
}

/// As when the server that was to give it back was killed. The votes of those who ask at two servers are
/// split sooner or later, and then they ask one node first, which for some names is that one.
#[tokio::test]
async fn what_is_left_of_a_lease_at_one_node_keeps_nobody_waiting() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let paths = |i: usize| {
        let semaphore = json!({"limit": 1, "wait_ms": 20_000});
        [
            (format!("locks/lock-{i:02}"), json!({"wait_ms": 20_000})),
            (format!("semaphores/permit-{i:02}"), semaphore),
        ]
    };
    for (path, body) in (0..12).flat_map(paths) {
        let mut first = body.clone();
        first["ttl_ms"] = json!(300_000);
        one.api().post(&format!("/v1/{path}/acquire"), first).await.ok();
        let name = path.rsplit('/').next().unwrap();
        eventually("all nodes have it", async || cluster.leases(name).len() == 3).await;
        for node in [&cluster.nodes[0], &cluster.nodes[2]] {
            let keys = node.command::<Vec<String>>(&["KEYS", &format!("*:{name}*")]);
            keys.iter().for_each(|key| node.command::<()>(&["DEL", key]));
        }
        let held = one.api().post(&format!("/v1/{path}/acquire"), body.clone()).await.ok();
        let mut waiting = JoinSet::new();
        for i in 0..6 {
            let api = if i % 2 == 0 { one.api() } else { two.api() };
            let (path, body) = (path.clone(), body.clone());
            waiting.spawn(async move {
                let lease = api.post(&format!("/v1/{path}/acquire"), body).await.ok();
                let body = json!({"lease_id": secret(&lease)});
                api.post(&format!("/v1/{path}/release"), body).await.ok();
            });
        }
        let waiters =
            async || one.api().metric("quorate_waiters").await + two.api().metric("quorate_waiters").await;
        eventually("all wait", async || waiters().await == 6.0).await;
        one.api().post(&format!("/v1/{path}/release"), json!({"lease_id": secret(&held)})).await.ok();
        waiting.join_all().await;
    }
}

#[tokio::test]
async fn without_a_quorum_those_who_wait_send_nothing_and_go_on_when_it_is_back() {
    const NAMES: usize = 300;
    let cluster = Cluster::new(3);
    let server = cluster.server(&["--max-waiters", "1000"]).await;
    let (api, stem) = (server.api(), unique("outage"));
    cluster.nodes[..2].iter().for_each(|node| node.stop());
    eventually("no quorum", || async { api.get("/readyz").await.status == 503 }).await;
    let mut waiting = JoinSet::new();
    for i in 0..NAMES {
        let (api, name) = (api.clone(), format!("{stem}:{i}"));
        waiting.spawn(async move { api.acquire(&name, json!({"wait_ms": 60_000})).await.ok() });
    }
    eventually("all wait", || async { api.metric("quorate_waiters").await == NAMES as f64 }).await;
    let commands = || cluster.nodes[2].info("stats")["total_commands_processed"].parse::<u64>().unwrap();
    let before = commands();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let sent = commands() - before;
    println!("{NAMES} waiting names without a quorum: {} commands a second at the survivor", sent / 2);
    assert!(sent < 2 * 500, "{sent} in two seconds");
    cluster.nodes[..2].iter().for_each(|node| node.resume());
    assert_eq!(waiting.join_all().await.len(), NAMES);
}
