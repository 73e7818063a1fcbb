//! `/v1/multilocks`: many locks at once, all or nothing, under one lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::seq::SliceRandom;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Api, Cluster, Shared, eventually, number, secret, token, unique};

fn names(stem: &str, which: &str) -> Vec<String> {
    let stem = unique(stem);
    which.chars().map(|letter| format!("{stem}:{letter}")).collect()
}

async fn call(api: &Api, verb: &str, names: &[String], more: Value) -> crate::support::Answer {
    let mut body = more;
    body["names"] = json!(names);
    api.post(&format!("/v1/multilocks/{verb}"), body).await
}

#[tokio::test]
async fn many_locks_are_granted_under_one_lease_with_a_token_each() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let names = names("many", "cab");
        let lease =
            call(&shared.api(), "acquire", &names, json!({"owner": "me", "ttl_ms": 20_000})).await.ok();
        assert_eq!(lease["names"], json!(names), "in the order of the request");
        assert!(lease.get("name").is_none() && lease.get("fencing_token").is_none(), "{lease}");
        assert!(secret(&lease).len() >= 32);
        assert_eq!(lease["owner"], "me");
        assert!(number(&lease, "validity_ms") <= 20_000 - 200 - 2);
        for name in &names {
            let seen = shared.other_api().lock(name).await;
            assert_eq!(seen["held"], true);
            assert_eq!(seen["owner"], "me");
            assert_eq!(token(&seen), number(&lease["fencing_tokens"], name));
        }
        assert_eq!(lease["fencing_tokens"].as_object().unwrap().len(), 3);
    }
}

#[tokio::test]
async fn multilocks_and_single_locks_exclude_each_other() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let (api, other) = (shared.api(), shared.other_api());
        let names = names("exclusion", "abc");
        let lease = call(&api, "acquire", &names, json!({"owner": "multi"})).await.ok();
        for name in &names {
            let problem = other.acquire(name, json!({})).await.problem(409, "lock_held");
            assert_eq!(problem["holder"]["owner"], "multi");
        }
        call(&other, "acquire", &names[1..], json!({})).await.problem(409, "lock_held");
        let released = call(&other, "release", &names, json!({"lease_id": secret(&lease)})).await.ok();
        assert_eq!(released, json!({"released": true}));
        let again = call(&other, "release", &names, json!({"lease_id": secret(&lease)})).await.ok();
        assert_eq!(again, json!({"released": false}));

        let single = api.acquire(&names[1], json!({"owner": "single"})).await.ok();
        assert!(token(&single) > number(&lease["fencing_tokens"], &names[1]));
        let problem = call(&other, "acquire", &names, json!({})).await.problem(409, "lock_held");
        assert_eq!(problem["holder"]["owner"], "single");
        for name in [&names[0], &names[2]] {
            assert_eq!(other.lock(name).await["held"], false, "all or nothing");
            let free = other.acquire(name, json!({})).await.ok();
            other.release(name, &free).await.ok();
        }
        api.release(&names[1], &single).await.ok();
        let next = call(&other, "acquire", &names, json!({})).await.ok();
        assert!(number(&next["fencing_tokens"], &names[1]) > token(&single));
    }
}

#[tokio::test]
async fn the_order_of_the_names_means_nothing() {
    let api = Shared::nodes(3).api();
    let names = names("order", "abcd");
    let mut shuffled = names.clone();
    let lease = call(&api, "acquire", &names, json!({"ttl_ms": 10_000})).await.ok();
    shuffled.reverse();
    let body = json!({"lease_id": secret(&lease), "ttl_ms": 60_000});
    let extended = call(&api, "extend", &shuffled, body.clone()).await.ok();
    assert_eq!(secret(&extended), secret(&lease));
    assert_eq!(extended["fencing_tokens"], lease["fencing_tokens"]);
    assert!(number(&extended, "validity_ms") > 30_000);
    shuffled.shuffle(&mut rand::rng());
    // Which also takes the body of an extension.
    assert_eq!(call(&api, "release", &shuffled, body).await.ok(), json!({"released": true}));
    eventually("nothing is left", || async { Shared::nodes(3).cluster.leases(&names[0]).is_empty() }).await;
}

#[tokio::test]
async fn a_lease_that_lost_one_of_its_locks_is_lost() {
    let api = Shared::nodes(3).api();
    let names = names("part", "abc");
    let lease = call(&api, "acquire", &names, json!({})).await.ok();
    assert_eq!(api.delete(&format!("/v1/locks/{}", names[1])).await.ok(), json!({"released": true}));
    call(&api, "extend", &names, json!({"lease_id": secret(&lease)})).await.problem(409, "lease_lost");
    // Nor does what is left of it stand in anybody's way.
    for name in &names {
        eventually("it is free", || async { api.acquire(name, json!({})).await.status == 200 }).await;
    }
}

#[tokio::test]
async fn sixty_four_locks_at_once_are_the_most() {
    let api = Shared::nodes(3).api();
    let stem = unique("most");
    let names: Vec<String> = (0..65).map(|i| format!("{stem}:{i}")).collect();
    call(&api, "acquire", &names, json!({})).await.problem(400, "invalid_request");
    let lease = call(&api, "acquire", &names[..64], json!({})).await.ok();
    assert_eq!(lease["fencing_tokens"].as_object().unwrap().len(), 64);
    let body = json!({"lease_id": secret(&lease)});
    assert_eq!(call(&api, "release", &names[..64], body).await.ok(), json!({"released": true}));
}

#[tokio::test]
async fn a_retry_of_a_multilock_gets_the_same_lease() {
    let shared = Shared::nodes(3);
    let names = names("retry", "ab");
    let body = json!({"request_id": unique("request-id")});
    let first = call(&shared.api(), "acquire", &names, body.clone()).await.ok();
    let mut turned = names.clone();
    turned.reverse();
    let again = call(&shared.other_api(), "acquire", &turned, body).await.ok();
    assert_eq!(secret(&again), secret(&first));
    assert_eq!(again["fencing_tokens"], first["fencing_tokens"]);
}

#[tokio::test]
async fn a_request_id_stands_for_one_set_of_names() {
    let shared = Shared::nodes(3);
    let (api, names) = (shared.api(), names("request", "abcd"));
    let body = json!({"request_id": unique("request-id")});
    let single = api.acquire(&names[0], body.clone()).await.ok();
    let pair = call(&api, "acquire", &names[1..3], body.clone()).await.ok();
    api.acquire(&names[3], json!({})).await.ok();
    // Over the single lock, over a part of the pair, and each with one that somebody else holds.
    for others in [[0, 1], [2, 0], [0, 3], [3, 2], [2, 3]] {
        let others = others.map(|at| names[at].clone());
        call(&shared.other_api(), "acquire", &others, body.clone()).await.problem(409, "lock_held");
    }
    let extended = call(&api, "extend", &names[1..3], json!({"lease_id": secret(&pair)})).await.ok();
    assert_eq!(extended["fencing_tokens"], pair["fencing_tokens"]);
    assert_eq!(api.release(&names[0], &single).await.ok(), json!({"released": true}));
}

#[tokio::test]
async fn a_release_with_a_wrong_name_tells_that_something_was_released() {
    let api = Shared::nodes(3).api();
    let names = names("wrong", "abcd");
    let lease = call(&api, "acquire", &names[..3], json!({})).await.ok();
    let body = json!({"lease_id": secret(&lease)});
    assert_eq!(call(&api, "release", &names[1..], body.clone()).await.ok(), json!({"released": true}));
    assert_eq!(call(&api, "release", &names[1..], body.clone()).await.ok(), json!({"released": false}));
    // None of the nodes holds another lease.
    let lost = call(&api, "extend", &names[..3], body).await.problem(409, "lease_lost");
    assert_eq!((&lost["nodes"]["held"], &lost["nodes"]["granted"]), (&json!(0), &json!(0)));
}

#[tokio::test]
async fn a_multilock_waits_for_all_of_its_locks() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    let names = names("waits", "abc");
    let a = api.acquire(&names[0], json!({})).await.ok();
    let c = shared.other_api().acquire(&names[2], json!({"ttl_ms": 1_500})).await.ok();
    let waiting = tokio::spawn({
        let (api, names) = (shared.api(), names.clone());
        async move { call(&api, "acquire", &names, json!({"wait_ms": 60_000})).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    // One is released, the other expires.
    api.release(&names[0], &a).await.ok();
    let lease = waiting.await.unwrap().ok();
    assert!(number(&lease["fencing_tokens"], &names[2]) > token(&c));
    call(&api, "acquire", &names, json!({"wait_ms": 100})).await.problem(409, "lock_held");
}

#[tokio::test]
async fn who_waits_for_several_locks_is_counted_at_each_of_them() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    let names = names("counted", "ab");
    let held = api.acquire(&names[0], json!({})).await.ok();
    let waiting = |names: &[String]| {
        let (api, names) = (shared.api(), names.to_vec());
        tokio::spawn(async move { call(&api, "acquire", &names, json!({"wait_ms": 60_000})).await })
    };
    let (first, second) = (waiting(&names), waiting(&names));
    let alone = tokio::spawn({
        let (api, name) = (shared.api(), names[0].clone());
        async move { api.acquire(&name, json!({"wait_ms": 60_000})).await }
    });
    let counts = async || {
        [number(&api.lock(&names[0]).await, "waiters"), number(&api.lock(&names[1]).await, "waiters")]
    };
    eventually("all are counted", async || counts().await == [3, 2]).await;
    for one in [alone, first, second] {
        one.abort();
    }
    eventually("none is any more", async || counts().await == [0, 0]).await;
    api.release(&names[0], &held).await.ok();
}

/// Fifty clients, two servers, random overlapping sets in random order: nobody waits for ever,
/// and no lock has two holders.
#[tokio::test]
async fn random_overlapping_sets_deadlock_nobody_and_have_one_holder_each() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let stem = unique("overlap");
    let all: Vec<String> = (0..12).map(|i| format!("{stem}:{i}")).collect();
    let holders: Arc<Mutex<HashMap<String, (usize, u64)>>> = Arc::default();
    let until = Instant::now() + Duration::from_secs(5);
    let mut clients = JoinSet::new();
    for client in 0..50 {
        let api = Api::new(if client % 2 == 0 { one.api().address() } else { two.api().address() });
        let (all, holders) = (all.clone(), Arc::clone(&holders));
        clients.spawn(async move {
            let (mut granted, mut timeouts) = (0, 0);
            while Instant::now() < until {
                let mut names = all.clone();
                names.shuffle(&mut rand::rng());
                names.truncate(rand::rng().random_range(1..5));
                let more = json!({"wait_ms": 30_000, "ttl_ms": 60_000});
                let answer = match names.as_slice() {
                    [name] => api.acquire(name, more).await,
                    _ => call(&api, "acquire", &names, more).await,
                };
                if answer.status == 409 {
                    timeouts += 1;
                    continue;
                }
                let lease = answer.ok();
                for name in &names {
                    let token = lease["fencing_tokens"][name].as_u64().unwrap_or_else(|| token(&lease));
                    let mut holders = holders.lock().unwrap();
                    let (holder, last) = holders.entry(name.clone()).or_insert((usize::MAX, 0));
                    assert_eq!(*holder, usize::MAX, "{name} has two holders");
                    assert!(token > *last, "{name}: token {token} after {last}");
                    (*holder, *last) = (client, token);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
                for name in &names {
                    holders.lock().unwrap().get_mut(name).unwrap().0 = usize::MAX;
                }
                let body = json!({"lease_id": secret(&lease)});
                let released = match names.as_slice() {
                    [name] => api.release(name, &lease).await,
                    _ => call(&api, "release", &names, body).await,
                };
                assert_eq!(released.ok(), json!({"released": true}));
                granted += 1;
            }
            (granted, timeouts)
        });
    }
    let results = clients.join_all().await;
    let (granted, timeouts) = results.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!("50 clients with random overlapping sets: {granted} grants in 5 s, {timeouts} timeouts of 30 s");
    assert_eq!(timeouts, 0, "somebody waited for 30 s");
    assert!(granted > 50, "{granted}");
    eventually("nothing is left", || async { cluster.leases(&stem).is_empty() }).await;
}

/// Four clients a name, each of which asks again as soon as it has released.
#[tokio::test]
async fn a_multilock_gets_its_turn_among_names_whose_queues_never_empty() {
    let shared = Shared::nodes(3);
    let (api, names) = (shared.api(), names("busy", "abc"));
    let mut clients = JoinSet::new();
    for name in names.iter().flat_map(|name| [name; 4]) {
        let (api, name) = (api.clone(), name.clone());
        clients.spawn(async move {
            loop {
                let lease = api.acquire(&name, json!({"wait_ms": 60_000})).await.ok();
                tokio::time::sleep(Duration::from_millis(5)).await;
                api.release(&name, &lease).await.ok();
            }
        });
    }
    for name in &names {
        eventually("others wait", || async { number(&api.lock(name).await, "waiters") >= 3 }).await;
    }
    for _ in 0..5 {
        let lease = call(&api, "acquire", &names, json!({"wait_ms": 10_000})).await.ok();
        // Those who came before it are three a name, and it asks no more often than it may succeed.
        println!("waited {} ms, {} attempts", lease["waited_ms"], lease["attempts"]);
        assert!(number(&lease, "attempts") < 20, "{lease}");
        call(&api, "release", &names, json!({"lease_id": secret(&lease)})).await.ok();
    }
    clients.abort_all();
}
