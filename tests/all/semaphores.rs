//! `/v1/semaphores`: never more than the limit, and never less than it for long.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Answer, Api, Cluster, Server, Shared, eventually, number, secret, token, unique};

async fn acquire(api: &Api, name: &str, body: Value) -> Answer {
    api.post(&format!("/v1/semaphores/{name}/acquire"), body).await
}

async fn release(api: &Api, name: &str, lease: &Value) -> Value {
    let body = json!({"lease_id": secret(lease)});
    api.post(&format!("/v1/semaphores/{name}/release"), body).await.ok()
}

async fn seen(api: &Api, name: &str) -> Value {
    api.get(&format!("/v1/semaphores/{name}")).await.ok()
}

fn slots(lease: &Value) -> BTreeSet<u64> {
    lease["slots"].as_array().expect("slots").iter().map(|slot| slot.as_u64().unwrap()).collect()
}

#[tokio::test]
async fn as_many_permits_as_the_limit_says_are_granted_and_no_more() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let name = unique("limit");
        let mut taken = BTreeSet::new();
        let mut leases = Vec::new();
        for i in 0..5 {
            let api = if i % 2 == 0 { shared.api() } else { shared.other_api() };
            let lease = acquire(&api, &name, json!({"limit": 5, "owner": format!("o{i}"), "ttl_ms": 60_000}))
                .await
                .ok();
            assert_eq!(lease["limit"], 5);
            assert_eq!(lease["permits"], 1);
            assert_eq!(lease["name"], name);
            assert!(number(&lease, "validity_ms") <= 60_000 - 600 - 2);
            let own = slots(&lease);
            assert_eq!(own.len(), 1);
            assert!(own.iter().all(|slot| *slot < 5 && taken.insert(*slot)), "slot {own:?} twice");
            leases.push(lease);
        }
        for api in [shared.api(), shared.other_api()] {
            let answer = acquire(&api, &name, json!({"limit": 5})).await;
            let problem = answer.problem(409, "semaphore_full");
            assert!(number(&problem, "retry_after_ms") > 0);
            let holders = problem["holders"].as_array().expect("holders");
            assert_eq!(holders.len(), 5, "{problem}");
            for holder in holders {
                let owner = holder["owner"].as_str().unwrap();
                let lease = leases.iter().find(|lease| lease["owner"] == owner).unwrap();
                assert_eq!(slots(holder), slots(lease));
                assert_eq!(token(holder), token(lease));
                assert!(number(holder, "remaining_ms") > 0);
            }
            assert!(leases.iter().all(|lease| !answer.text().contains(secret(lease))));
        }
        let view = seen(&shared.other_api(), &name).await;
        assert_eq!(view["in_use"], 5);
        assert_eq!(view["holders"].as_array().unwrap().len(), 5);
        assert_eq!(view["waiters"], 0);
        assert_eq!(number(&view["nodes"], "total"), total as u64);
        assert_eq!(release(&shared.other_api(), &name, &leases[2]).await, json!({"released": true}));
        assert_eq!(release(&shared.api(), &name, &leases[2]).await, json!({"released": false}));
        let next = acquire(&shared.api(), &name, json!({"limit": 5})).await.ok();
        assert_eq!(slots(&next), slots(&leases[2]), "the slot that is free");
        assert!(token(&next) > token(&leases[2]));
    }
}

#[tokio::test]
async fn several_permits_are_granted_all_or_nothing() {
    let shared = Shared::nodes(3);
    let (api, other) = (shared.api(), shared.other_api());
    let name = unique("permits");
    let three = acquire(&api, &name, json!({"limit": 5, "permits": 3})).await.ok();
    assert_eq!(slots(&three).len(), 3);
    assert_eq!(three["permits"], 3);
    acquire(&other, &name, json!({"limit": 5, "permits": 3})).await.problem(409, "semaphore_full");
    assert_eq!(seen(&api, &name).await["in_use"], 3, "nothing is left of the refused");
    let two = acquire(&other, &name, json!({"limit": 5, "permits": 2})).await.ok();
    assert!(slots(&two).is_disjoint(&slots(&three)));
    let view = seen(&api, &name).await;
    assert_eq!(view["in_use"], 5);
    assert_eq!(view["holders"].as_array().unwrap().len(), 2);
    assert_eq!(release(&api, &name, &three).await, json!({"released": true}));
    assert_eq!(seen(&other, &name).await["in_use"], 2);
    acquire(&api, &name, json!({"limit": 5, "permits": 6})).await.problem(400, "invalid_request");
}

#[tokio::test]
async fn permits_are_extended_and_expire_like_locks() {
    let shared = Shared::nodes(3);
    let (api, other) = (shared.api(), shared.other_api());
    let name = unique("expiry");
    let path = format!("/v1/semaphores/{name}/extend");
    let kept = acquire(&api, &name, json!({"limit": 2, "ttl_ms": 1_000})).await.ok();
    let lost = acquire(&api, &name, json!({"limit": 2, "ttl_ms": 200})).await.ok();
    let body = json!({"lease_id": secret(&kept), "ttl_ms": 60_000});
    let extended = other.post(&path, body).await.ok();
    assert_eq!(slots(&extended), slots(&kept));
    assert_eq!(extended["permits"], 1);
    assert_eq!(extended["limit"], 2);
    assert_eq!(token(&extended), token(&kept));
    assert!(number(&extended, "validity_ms") > 30_000);
    eventually("one expires", || async { seen(&api, &name).await["in_use"] == 1 }).await;
    api.post(&path, json!({"lease_id": secret(&lost)})).await.problem(409, "lease_lost");
    let next = acquire(&other, &name, json!({"limit": 2})).await.ok();
    assert_eq!(slots(&next), slots(&lost));
    assert!(token(&next) > token(&lost));
    api.post(&path, json!({"lease_id": secret(&lost)})).await.problem(409, "lease_lost");
    assert_eq!(release(&api, &name, &lost).await, json!({"released": false}));
}

#[tokio::test]
async fn a_retry_gets_the_same_permits() {
    let shared = Shared::nodes(3);
    let name = unique("retry");
    let body = json!({"limit": 10, "permits": 3, "request_id": unique("request-id")});
    let first = acquire(&shared.api(), &name, body.clone()).await.ok();
    for api in [shared.api(), shared.other_api()] {
        let again = acquire(&api, &name, body.clone()).await.ok();
        assert_eq!(secret(&again), secret(&first));
        assert_eq!(slots(&again), slots(&first));
        assert_eq!(token(&again), token(&first));
    }
    assert_eq!(seen(&shared.api(), &name).await["in_use"], 3);
}

/// What fills the semaphore is the caller's own earlier request.
#[tokio::test]
async fn a_retry_gets_the_same_permits_of_a_semaphore_that_has_too_few_left() {
    let shared = Shared::nodes(3);
    for (permits, retried) in [
        (3, json!({"limit": 3, "permits": 3})),
        (2, json!({"limit": 3, "permits": 2})),
        (3, json!({"limit": 3, "permits": 3, "wait_ms": 50_000})),
    ] {
        let (name, id) = (unique("full"), unique("request-id"));
        let body = json!({"limit": 3, "permits": permits, "request_id": id});
        let first = acquire(&shared.api(), &name, body).await.ok();
        let mut retry = retried.clone();
        retry["request_id"] = json!(id);
        for api in [shared.api(), shared.other_api()] {
            let again = acquire(&api, &name, retry.clone()).await.ok();
            assert_eq!(secret(&again), secret(&first), "{retried}");
            assert_eq!(slots(&again), slots(&first), "{retried}");
            assert_eq!(token(&again), token(&first), "{retried}");
        }
        let other = json!({"limit": 3, "permits": 3, "request_id": unique("request-id")});
        acquire(&shared.api(), &name, other).await.problem(409, "semaphore_full");
        assert_eq!(seen(&shared.api(), &name).await["in_use"], permits, "{retried}");
    }
}

#[tokio::test]
async fn a_request_id_that_comes_with_other_parameters_is_refused() {
    let shared = Shared::nodes(3);
    let (name, id) = (unique("reused"), unique("request-id"));
    acquire(&shared.api(), &name, json!({"limit": 3, "request_id": id})).await.ok();
    for (limit, permits, fields) in [(3, 2, vec!["permits"]), (4, 2, vec!["limit", "permits"])] {
        let body = json!({"limit": limit, "permits": permits, "request_id": id});
        for api in [shared.api(), shared.other_api()] {
            let problem = acquire(&api, &name, body.clone()).await.problem(400, "invalid_request");
            let errors = problem["errors"].as_array().expect("errors");
            assert_eq!(
                errors.iter().map(|error| error["field"].as_str().unwrap()).collect::<Vec<_>>(),
                fields
            );
        }
    }
    assert_eq!(seen(&shared.api(), &name).await["in_use"], 1);
}

#[tokio::test]
async fn a_limit_below_what_is_in_use_is_refused_also_where_a_slot_is_free() {
    let shared = Shared::nodes(3);
    let name = unique("lower");
    let mut leases = Vec::new();
    for _ in 0..10 {
        leases.push(acquire(&shared.api(), &name, json!({"limit": 10})).await.ok());
    }
    let first = leases.iter().find(|lease| slots(lease).contains(&0)).expect("the first slot");
    release(&shared.api(), &name, first).await;
    for api in [shared.api(), shared.other_api()] {
        for _ in 0..10 {
            acquire(&api, &name, json!({"limit": 5})).await.problem(409, "semaphore_full");
        }
    }
    assert_eq!(seen(&shared.api(), &name).await["in_use"], 9);
    acquire(&shared.api(), &name, json!({"limit": 10})).await.ok();
}

/// Those who wait stand before a retry in the queue, but not before what it holds already.
#[tokio::test]
async fn a_retry_gets_the_same_permits_while_others_wait_for_them() {
    let api = Shared::nodes(3).api();
    let name = unique("queued");
    let body = json!({"limit": 2, "permits": 2, "request_id": unique("request-id")});
    let first = acquire(&api, &name, body.clone()).await.ok();
    let waiting = tokio::spawn({
        let (api, name) = (api.clone(), name.clone());
        async move { acquire(&api, &name, json!({"limit": 2, "wait_ms": 60_000})).await.ok() }
    });
    eventually("it waits", || async { seen(&api, &name).await["waiters"] == 1 }).await;
    assert_eq!(secret(&acquire(&api, &name, body).await.ok()), secret(&first));
    release(&api, &name, &first).await;
    waiting.await.unwrap();
}

#[tokio::test]
async fn a_waiter_gets_the_permit_that_is_released_or_expires() {
    let shared = Shared::nodes(3);
    for waiter in [shared.api(), shared.other_api()] {
        let name = unique("waits");
        let first = acquire(&shared.api(), &name, json!({"limit": 2})).await.ok();
        acquire(&shared.api(), &name, json!({"limit": 2, "ttl_ms": 1_500})).await.ok();
        let waiting = tokio::spawn({
            let (api, name) = (waiter.clone(), name.clone());
            async move { acquire(&api, &name, json!({"limit": 2, "wait_ms": 60_000})).await.ok() }
        });
        eventually("it waits", || async { seen(&waiter, &name).await["waiters"] == 1 }).await;
        release(&shared.api(), &name, &first).await;
        waiting.await.unwrap();
        let expired = acquire(&waiter, &name, json!({"limit": 2, "wait_ms": 60_000})).await.ok();
        assert_eq!(slots(&expired).len(), 1);
        acquire(&waiter, &name, json!({"limit": 2, "wait_ms": 100})).await.problem(409, "semaphore_full");
    }
}

#[tokio::test]
async fn waiters_for_permits_are_served_in_order_of_arrival() {
    let api = Shared::nodes(3).api();
    let name = unique("order");
    let first = acquire(&api, &name, json!({"limit": 1})).await.ok();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut queue = JoinSet::new();
    for place in 0..20 {
        let (waiter, waited_for, served) = (api.clone(), name.clone(), Arc::clone(&served));
        queue.spawn(async move {
            let lease = acquire(&waiter, &waited_for, json!({"limit": 1, "wait_ms": 60_000})).await.ok();
            served.lock().unwrap().push(place);
            release(&waiter, &waited_for, &lease).await;
        });
        eventually("it waits", || async { seen(&api, &name).await["waiters"] == place + 1 }).await;
    }
    release(&api, &name, &first).await;
    queue.join_all().await;
    assert_eq!(*served.lock().unwrap(), (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn each_request_is_judged_by_its_own_limit() {
    let api = Shared::nodes(3).api();
    let name = unique("changed");
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(acquire(&api, &name, json!({"limit": 4})).await.ok());
    }
    // Raised: more fit in.
    for _ in 0..2 {
        leases.push(acquire(&api, &name, json!({"limit": 6})).await.ok());
    }
    acquire(&api, &name, json!({"limit": 6})).await.problem(409, "semaphore_full");
    // Lowered: it takes effect as the upper slots drain.
    acquire(&api, &name, json!({"limit": 2})).await.problem(409, "semaphore_full");
    for lease in leases.iter().filter(|lease| slots(lease).iter().all(|slot| *slot >= 2)) {
        assert_eq!(release(&api, &name, lease).await, json!({"released": true}));
    }
    acquire(&api, &name, json!({"limit": 2})).await.problem(409, "semaphore_full");
    let low = leases.iter().find(|lease| slots(lease).contains(&0)).unwrap();
    release(&api, &name, low).await;
    let next = acquire(&api, &name, json!({"limit": 2})).await.ok();
    assert_eq!(slots(&next), BTreeSet::from([0]));
}

#[tokio::test]
async fn the_largest_semaphore_grants_its_last_permits() {
    // Taking thousands of permits at once is one long script at each node.
    let cluster = Cluster::new(3);
    let (one, two) =
        (cluster.server(&["--node-timeout", "10s"]).await, cluster.server(&["--node-timeout", "10s"]).await);
    let (api, other) = (one.api(), two.api());
    let name = unique("large");
    let asked = Instant::now();
    let most = acquire(&api, &name, json!({"limit": 10_000, "permits": 9_900, "ttl_ms": 120_000})).await.ok();
    println!("acquire of 9900 of 10000 permits at once: {:?} (debug build)", asked.elapsed());
    assert_eq!(slots(&most).len(), 9_900);
    let mut took = Vec::new();
    for _ in 0..100 {
        let asked = Instant::now();
        let lease = acquire(&other, &name, json!({"limit": 10_000, "ttl_ms": 120_000})).await.ok();
        took.push(asked.elapsed());
        assert!(slots(&lease).is_disjoint(&slots(&most)));
    }
    println!(
        "acquire of one of the last 100 of 10000 permits: {:?} (median, debug build)",
        crate::support::median(took)
    );
    acquire(&api, &name, json!({"limit": 10_000})).await.problem(409, "semaphore_full");
    assert_eq!(seen(&api, &name).await["in_use"], 10_000);
    assert_eq!(release(&api, &name, &most).await, json!({"released": true}));
    assert_eq!(seen(&api, &name).await["in_use"], 100);
}

/// Else a refusal costs the nodes and the server as much as the semaphore is large.
#[tokio::test]
async fn a_full_semaphore_is_refused_at_the_same_cost_whatever_its_limit() {
    const REFUSALS: u64 = 50;
    let cluster = Cluster::new(3);
    let server = cluster.server(&["--node-timeout", "10s"]).await;
    let api = server.api();
    let (small, large, lock) = (unique("small"), unique("large"), unique("lock"));
    acquire(&api, &small, json!({"limit": 10, "permits": 10, "ttl_ms": 120_000})).await.ok();
    acquire(&api, &large, json!({"limit": 10_000, "permits": 10_000, "ttl_ms": 120_000})).await.ok();
    api.acquire(&lock, json!({"ttl_ms": 120_000})).await.ok();
    let bytes = || -> u64 {
        let sent = |node: &crate::support::Redis| node.info("stats")["total_net_output_bytes"].parse::<u64>();
        cluster.nodes.iter().map(|node| sent(node).unwrap()).sum()
    };
    let mut costs = Vec::new();
    for (name, limit) in [(&small, 10), (&large, 10_000)] {
        let (before, mut took, mut lock_took) = (bytes(), Vec::new(), Vec::new());
        for _ in 0..REFUSALS {
            let asked = Instant::now();
            let problem = acquire(&api, name, json!({"limit": limit})).await.problem(409, "semaphore_full");
            took.push(asked.elapsed());
            assert_eq!(problem["holders"].as_array().unwrap().len(), 1);
        }
        costs.push((bytes() - before) / REFUSALS / 3);
        for _ in 0..REFUSALS {
            let asked = Instant::now();
            api.acquire(&lock, json!({})).await.problem(409, "lock_held");
            lock_took.push(asked.elapsed());
        }
        let (took, lock_took) = (crate::support::median(took), crate::support::median(lock_took));
        println!("full with limit {limit}: {took:?}, a held lock: {lock_took:?} (medians, debug build)");
    }
    println!("bytes that a node sends for a refusal with limit 10 and 10000: {costs:?}");
    assert!(costs[1] < 3 * costs[0], "{costs:?}");
}

/// The recipe for a rate limit: permits that are left to expire.
#[tokio::test]
async fn permits_left_to_expire_limit_the_rate() {
    let shared = Shared::nodes(3);
    let name = unique("rate");
    let (limit, ttl) = (5_usize, Duration::from_millis(600));
    let grants: Arc<Mutex<Vec<(Instant, Instant)>>> = Arc::default();
    let until = Instant::now() + Duration::from_secs(4);
    let mut callers = JoinSet::new();
    for caller in 0..6 {
        let api = if caller % 2 == 0 { shared.api() } else { shared.other_api() };
        let (name, grants) = (name.clone(), Arc::clone(&grants));
        callers.spawn(async move {
            while Instant::now() < until {
                let asked = Instant::now();
                let body = json!({"limit": limit, "ttl_ms": ttl.as_millis() as u64, "wait_ms": 300});
                if acquire(&api, &name, body).await.status == 200 {
                    grants.lock().unwrap().push((asked, Instant::now()));
                }
            }
        });
    }
    callers.join_all().await;
    let mut grants = grants.lock().unwrap().clone();
    grants.sort_by_key(|(_, answered)| *answered);
    for window in grants.windows(limit + 1) {
        // Both grants happened between asking and answer; the window that surely held them all is
        // from the earliest possible first to the latest possible last.
        let earliest = window.iter().map(|(asked, _)| *asked).min().unwrap();
        let latest = window.iter().map(|(_, answered)| *answered).max().unwrap();
        assert!(
            latest - earliest > ttl - Duration::from_millis(10),
            "{} grants in {:?}",
            limit + 1,
            latest - earliest
        );
    }
    println!("rate limit of {limit} in {ttl:?}: {} grants in 4 s", grants.len());
    assert!(grants.len() >= 3 * limit, "only {} grants in 4 s", grants.len());
}

/// Counts who holds a valid permit at any one time, by what the clients were told.
#[derive(Default)]
struct Census {
    valid: Mutex<HashMap<String, Instant>>,
    most: Mutex<usize>,
}

impl Census {
    fn granted(&self, lease: &Value, asked: Instant) {
        // The server counted the validity down to when it wrote the answer; from the moment of
        // asking it is surely no longer than this.
        let valid_until = asked + Duration::from_millis(number(lease, "validity_ms"));
        let now = Instant::now();
        let mut valid = self.valid.lock().unwrap();
        valid.retain(|_, until| *until > now);
        valid.insert(secret(lease).to_owned(), valid_until);
        let held = valid.values().filter(|until| **until > now).count();
        let mut most = self.most.lock().unwrap();
        *most = held.max(*most);
    }

    fn gone(&self, lease: &Value) {
        self.valid.lock().unwrap().remove(secret(lease));
    }
}

/// 60 clients that take and give back permits for a while.
async fn hammer(
    apis: Vec<Api>,
    name: &str,
    limit: u64,
    span: Duration,
    census: &Arc<Census>,
) -> (usize, usize) {
    let until = Instant::now() + span;
    let mut clients = JoinSet::new();
    for client in 0..60 {
        let api = Api::new(apis[client % apis.len()].address());
        let (name, census) = (name.to_owned(), Arc::clone(census));
        clients.spawn(async move {
            let (mut granted, mut refused) = (0, 0);
            while Instant::now() < until {
                let wait_ms = if client % 3 == 0 { 0 } else { 200 };
                let asked = Instant::now();
                let body = json!({"limit": limit, "ttl_ms": 3_000, "wait_ms": wait_ms});
                let answer = acquire(&api, &name, body).await;
                if answer.status != 200 {
                    assert!(matches!(answer.status, 409 | 503), "{}", answer.text());
                    refused += 1;
                    continue;
                }
                let lease = answer.json();
                census.granted(&lease, asked);
                granted += 1;
                let pause = rand::rng().random_range(1..60);
                tokio::time::sleep(Duration::from_millis(pause)).await;
                // Some die with their permit.
                if pause != 30 {
                    census.gone(&lease);
                    let body = json!({"lease_id": secret(&lease)});
                    api.post(&format!("/v1/semaphores/{name}/release"), body).await;
                }
            }
            (granted, refused)
        });
    }
    let results = clients.join_all().await;
    results.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// All permits can be taken, by one client alone.
async fn all_capacity_is_back(api: &Api, name: &str, limit: u64) {
    eventually("all capacity is back", || async {
        let answer = acquire(api, name, json!({"limit": limit, "permits": limit, "ttl_ms": 3_000})).await;
        answer.status == 200 && release(api, name, &answer.json()).await == json!({"released": true})
    })
    .await;
}

/// Three servers, each of which reaches only two of the three nodes, a different two. With a
/// counter per node, or a limit checked by each node, 15 would get in (docs/protocol.md §3).
#[tokio::test]
async fn servers_that_reach_different_nodes_never_admit_more_than_the_limit() {
    let cluster = Cluster::new(3);
    let mut servers = Vec::new();
    let mut networks = Vec::new();
    for _ in 0..3 {
        let (proxies, options) = cluster.proxies();
        let server = Server::start(&options);
        server.all_voting().await;
        servers.push(server);
        networks.push(proxies);
    }
    for (i, proxies) in networks.iter().enumerate() {
        proxies[i].cut();
    }
    let name = unique("attack");
    let census = Arc::new(Census::default());
    let apis: Vec<Api> = servers.iter().map(Server::api).collect();
    let (granted, refused) = hammer(apis.clone(), &name, 10, Duration::from_secs(6), &census).await;
    let most = *census.most.lock().unwrap();
    println!(
        "over-admission attack: {granted} grants, {refused} refusals, at most {most} of 10 valid at once"
    );
    assert!(most <= 10, "{most} valid permits of 10");
    assert!(granted > 60, "{granted}");
    networks.iter().flatten().for_each(|proxy| proxy.heal());
    for api in &apis {
        all_capacity_is_back(api, &name, 10).await;
    }
}

#[tokio::test]
async fn nodes_that_die_and_come_back_never_let_in_more_than_the_limit() {
    let mut cluster = Cluster::with(3, &Default::default(), &["--max-ttl", "3s"]);
    let mut servers = Vec::new();
    for _ in 0..2 {
        servers.push(cluster.server(&["--max-ttl", "3s"]).await);
    }
    let apis: Vec<Api> = servers.iter().map(Server::api).collect();
    let name = unique("restarts");
    let census = Arc::new(Census::default());
    let hammering = tokio::spawn({
        let (apis, name, census) = (apis.clone(), name.clone(), Arc::clone(&census));
        async move { hammer(apis, &name, 10, Duration::from_secs(9), &census).await }
    });
    for round in 0..2 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let node = &mut cluster.nodes[round];
        node.kill();
        tokio::time::sleep(Duration::from_millis(300)).await;
        node.restart();
        servers[0].all_voting().await;
    }
    let (granted, refused) = hammering.await.unwrap();
    let most = *census.most.lock().unwrap();
    println!(
        "semaphore under restarts: {granted} grants, {refused} refusals, at most {most} of 10 valid at once"
    );
    assert!(most <= 10, "{most} valid permits of 10");
    all_capacity_is_back(&apis[0], &name, 10).await;
}

#[tokio::test]
async fn twenty_clients_fill_twenty_slots_on_five_nodes() {
    let shared = Shared::nodes(5);
    let mut took = Vec::new();
    for _ in 0..10 {
        let name = unique("filling");
        let mut clients = JoinSet::new();
        for client in 0..20 {
            let api = if client % 2 == 0 { shared.api() } else { shared.other_api() };
            let name = name.clone();
            clients.spawn(async move {
                let asked = Instant::now();
                let lease = acquire(&api, &name, json!({"limit": 20, "wait_ms": 30_000})).await.ok();
                (slots(&lease), asked.elapsed())
            });
        }
        let results = clients.join_all().await;
        let filled: BTreeSet<u64> = results.iter().flat_map(|(slots, _)| slots.iter().copied()).collect();
        assert_eq!(filled, (0..20).collect());
        took.extend(results.iter().map(|(_, took)| *took));
    }
    took.sort_unstable();
    println!(
        "20 clients fill 20 slots on 5 nodes through 2 servers: p50 {:?}, p99 {:?} (debug build)",
        took[took.len() / 2],
        took[took.len() * 99 / 100]
    );
}

/// Somebody who waits, once `waiters` do.
async fn wait(api: &Api, name: &str, body: Value, waiters: u64) -> tokio::task::JoinHandle<Answer> {
    let waiting = tokio::spawn({
        let (api, name) = (api.clone(), name.to_owned());
        async move { acquire(&api, &name, body).await }
    });
    eventually("it waits", || async { seen(api, name).await["waiters"] == waiters }).await;
    waiting
}

#[tokio::test]
async fn who_does_not_wait_is_not_refused_by_a_semaphore_with_room() {
    let api = Shared::nodes(3).api();
    // Never more than six are in use. A client that was granted stands in the queue of servers for a moment
    // longer, so that with no room to spare another may be refused now and then.
    for (limit, refused_max) in [(20, 0), (6, 18)] {
        let name = unique("roomy");
        let mut clients = JoinSet::new();
        for client in 0..6 {
            let (api, name) = (api.clone(), name.clone());
            clients.spawn(async move {
                let wait_ms = if client % 2 == 0 { 0 } else { 60_000 };
                let mut refused = 0;
                for _ in 0..60 {
                    let answer = acquire(&api, &name, json!({"limit": limit, "wait_ms": wait_ms})).await;
                    if answer.status == 409 {
                        refused += 1;
                        continue;
                    }
                    release(&api, &name, &answer.ok()).await;
                }
                refused
            });
        }
        let refused: u32 = clients.join_all().await.into_iter().sum();
        assert!(refused <= refused_max, "{refused} of 360, limit {limit}");
    }
}

/// Only one of a queue is served at a time: the patience of the others ends while they stand in it.
#[tokio::test]
async fn who_waits_for_a_moment_only_is_not_refused_by_a_semaphore_with_room() {
    let api = Shared::nodes(3).api();
    let name = unique("impatient");
    for _ in 0..5 {
        let mut clients = JoinSet::new();
        for _ in 0..40 {
            let (api, name) = (api.clone(), name.clone());
            clients.spawn(async move { acquire(&api, &name, json!({"limit": 1_000, "wait_ms": 1})).await });
        }
        for answer in clients.join_all().await {
            answer.ok();
        }
    }
}

/// As in a rolling raise of the limit.
#[tokio::test]
async fn who_waits_with_another_limit_stands_in_nobodys_way() {
    let api = Shared::nodes(3).api();
    let name = unique("raised");
    let first = acquire(&api, &name, json!({"limit": 1})).await.ok();
    let old = wait(&api, &name, json!({"limit": 1, "wait_ms": 60_000}), 1).await;
    for wait_ms in [0, 60_000] {
        for _ in 0..3 {
            acquire(&api, &name, json!({"limit": 10, "wait_ms": wait_ms})).await.ok();
        }
    }
    for _ in 0..3 {
        acquire(&api, &name, json!({"limit": 10})).await.ok();
    }
    acquire(&api, &name, json!({"limit": 10})).await.problem(409, "semaphore_full");
    let new = wait(&api, &name, json!({"limit": 10, "wait_ms": 60_000}), 2).await;
    assert!(!old.is_finished(), "its slot is taken");
    // Both hear of it; one gets it, and the next gets what it gives back.
    release(&api, &name, &first).await;
    let (mut old, mut new) = (old, new);
    tokio::select! {
        lease = &mut old => {
            release(&api, &name, &lease.unwrap().ok()).await;
            new.await.unwrap().ok();
        }
        lease = &mut new => {
            release(&api, &name, &lease.unwrap().ok()).await;
            old.await.unwrap().ok();
        }
    }
}

#[tokio::test]
async fn who_waits_for_many_permits_is_not_overtaken_by_those_who_want_few() {
    let api = Shared::nodes(3).api();
    let name = unique("many");
    let first = acquire(&api, &name, json!({"limit": 10})).await.ok();
    let many = wait(&api, &name, json!({"limit": 10, "permits": 10, "wait_ms": 60_000}), 1).await;
    for (wait_ms, detail) in [
        (0, "Too few permits are free for this request and those that wait before it."),
        (100, "Too few permits became free within wait_ms for this request and those before it."),
    ] {
        let few = acquire(&api, &name, json!({"limit": 10, "wait_ms": wait_ms})).await;
        let problem = few.problem(409, "semaphore_full");
        assert_eq!(problem["detail"], detail);
        assert_eq!(problem["holders"].as_array().unwrap().len(), 1, "{problem}");
    }
    assert!(!many.is_finished());
    release(&api, &name, &first).await;
    assert_eq!(slots(&many.await.unwrap().ok()).len(), 10);
}

/// One node has nobody's permits, and of the others one is gone: it looks as if something were free.
#[tokio::test]
async fn a_full_semaphore_of_which_one_node_knows_nothing_costs_a_few_looks() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let server = Server::start(&options);
    server.all_voting().await;
    let (api, name) = (server.api(), unique("missed"));
    let is = async |node: usize, state: &str| {
        eventually(state, || async { api.get("/v1/nodes").await.ok()["nodes"][node]["state"] == state })
            .await;
    };
    proxies[0].cut();
    is(0, "down").await;
    for _ in 0..3 {
        acquire(&api, &name, json!({"limit": 3, "ttl_ms": 300_000})).await.ok();
    }
    proxies[0].heal();
    is(0, "voting").await;
    proxies[2].cut();
    is(2, "down").await;

    let scripts = || {
        let calls = |node: &crate::support::Redis| node.commandstats().get("evalsha").copied().unwrap_or(0);
        cluster.nodes[..2].iter().map(calls).sum::<u64>()
    };
    for (wait_ms, most) in [(0, 60), (2_500, 200)] {
        let before = scripts();
        let answer = acquire(&api, &name, json!({"limit": 3, "wait_ms": wait_ms})).await;
        let spent = scripts() - before;
        let problem = answer.problem(409, "semaphore_full");
        println!("refused with wait_ms {wait_ms}: {spent} scripts at two nodes, {}", problem["nodes"]);
        assert!(number(&problem["nodes"], "granted") < number(&problem["nodes"], "quorum"), "{problem}");
        assert!(number(&problem["nodes"], "held") > 0, "{problem}");
        assert!(spent <= most, "{spent} scripts with wait_ms {wait_ms}");
    }
}

#[tokio::test]
async fn a_slow_node_delays_neither_a_refusal_nor_a_look() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let server = Server::start(&options.with(&["--node-timeout", "30s"]));
    server.all_voting().await;
    let (api, name) = (server.api(), unique("slow"));
    for _ in 0..2 {
        acquire(&api, &name, json!({"limit": 2, "ttl_ms": 300_000})).await.ok();
    }
    let late = Duration::from_secs(20);
    proxies[2].delay(late);
    let asked = Instant::now();
    for wait_ms in [0, 100] {
        let refused = acquire(&api, &name, json!({"limit": 2, "wait_ms": wait_ms})).await;
        let problem = refused.problem(409, "semaphore_full");
        assert_eq!(problem["holders"].as_array().unwrap().len(), 2, "{problem}");
    }
    assert_eq!(seen(&api, &name).await["in_use"], 2);
    assert_eq!(seen(&api, &unique("free")).await["in_use"], 0);
    assert!(asked.elapsed() < late, "they waited for the slow node: {:?}", asked.elapsed());
}

#[tokio::test]
async fn without_a_quorum_nobody_is_said_to_hold_a_semaphore_that_nobody_holds() {
    let mut cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let (api, name) = (server.api(), unique("never"));
    cluster.nodes[..2].iter_mut().for_each(crate::support::Redis::kill);
    let looked = api.get(&format!("/v1/semaphores/{name}")).await;
    let asked = acquire(&api, &name, json!({"limit": 5, "permits": 2})).await;
    for answer in [looked, asked] {
        let problem = answer.problem(503, "quorum_unavailable");
        assert_eq!(problem["nodes"]["held"], 0, "{problem}");
    }
}
