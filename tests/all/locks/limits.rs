//! `max_hold_ms` and `lock_delay_ms`, of every primitive.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Api, Cluster, Shared, eventually, number, secret, unique};

/// Of each primitive: how it is acquired, with which body; extended; and released.
fn primitives(name: &str) -> [(String, Value, String, String, &'static str); 4] {
    let names = json!([format!("{name}-a"), format!("{name}-b")]);
    let of = |kind: &str, acquire: &str, release: &str, body: Value, code: &'static str| {
        let path = |what: &str| match kind {
            "multilocks" => format!("/v1/{kind}/{what}"),
            _ => format!("/v1/{kind}/{name}/{what}"),
        };
        (path(acquire), body, path("extend"), path(release), code)
    };
    [
        of("locks", "acquire", "release", json!({}), "lock_held"),
        of("multilocks", "acquire", "release", json!({"names": names}), "lock_held"),
        of("semaphores", "acquire", "release", json!({"limit": 1}), "semaphore_full"),
        of("elections", "campaign", "resign", json!({"candidate": "me"}), "election_lost"),
    ]
}

fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The body that speaks of this lease.
fn of_lease(asked: &Value, lease: &Value) -> Value {
    let mut body = json!({"lease_id": secret(lease)});
    if let Some(names) = asked.get("names") {
        body["names"] = names.clone();
    }
    body
}

#[tokio::test]
async fn no_extension_reaches_beyond_the_longest_hold_and_one_at_the_limit_is_told_so() {
    for total in [1, 3] {
        let shared = Shared::nodes(total);
        let api = shared.api();
        for (acquire, body, extend, _, _) in primitives(&unique("capped")) {
            let asked = with(&body, &json!({"ttl_ms": 2000, "max_hold_ms": 3000}));
            let since = Instant::now();
            let lease = api.post(&acquire, asked.clone()).await.ok();
            assert!(lease["hold_until"].is_string(), "{lease}");
            tokio::time::sleep(Duration::from_millis(1200)).await;
            let extended = api.post(&extend, of_lease(&body, &lease)).await.ok();
            let left = 3000 - 1200;
            assert!(number(&extended, "validity_ms") <= left, "{extended}");
            assert_eq!(extended["hold_until"], lease["hold_until"], "the limit does not move");
            let other = shared.other_api();
            let again = || other.post(&extend, of_lease(&body, &lease));
            // A node that the first extension reaches late still has room for this one.
            eventually("the limit is told", || async { again().await.status == 409 }).await;
            let problem = again().await.problem(409, "hold_limit_reached");
            assert_eq!(number(&problem["nodes"], "total"), total as u64);
            // It is held for as long as it may be, and is free then.
            let other = with(&body, &json!({"wait_ms": 10_000}));
            api.post(&acquire, other).await.ok();
            assert!(since.elapsed() >= Duration::from_millis(2900), "{:?}", since.elapsed());
        }
    }
}

#[tokio::test]
async fn a_lease_that_ended_at_its_limit_is_told_so_while_nobody_else_has_the_name() {
    let api = Shared::nodes(3).api();
    let name = unique("ended");
    let lease = api.acquire(&name, json!({"ttl_ms": 200, "max_hold_ms": 200})).await.ok();
    eventually("it is over", || async { api.lock(&name).await["held"] == false }).await;
    api.extend(&name, &lease).await.problem(409, "hold_limit_reached");
    api.acquire(&name, json!({})).await.ok();
    api.extend(&name, &lease).await.problem(409, "lease_lost");
}

#[tokio::test]
async fn a_shorter_extension_is_one_at_the_limit_too() {
    let api = Shared::nodes(3).api();
    let name = unique("shorter");
    let lease = api.acquire(&name, json!({"ttl_ms": 30_000, "max_hold_ms": 30_000})).await.ok();
    let body = json!({"lease_id": secret(&lease), "ttl_ms": 10_000});
    let extended = api.post(&format!("/v1/locks/{name}/extend"), body).await.ok();
    assert!(number(&extended, "validity_ms") <= 10_000);
    // And there is room again.
    assert!(number(&api.extend(&name, &lease).await.ok(), "validity_ms") <= 10_000);
}

#[tokio::test]
async fn a_limit_is_known_at_a_node_that_lost_the_lease_and_is_given_it_back() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let lease = api.acquire("healed", json!({"ttl_ms": 20_000, "max_hold_ms": 60_000})).await.ok();
    eventually("all nodes have it", || async { cluster.leases("healed").len() == 3 }).await;
    cluster.nodes[0].command::<()>(&["DEL", &cluster.leases("healed")[0]]);
    api.extend("healed", &lease).await.ok();
    eventually("it is there again", || async { cluster.leases("healed").len() == 3 }).await;
    let body = json!({"lease_id": secret(&lease), "ttl_ms": 300_000});
    api.post("/v1/locks/healed/extend", body.clone()).await.ok();
    api.post("/v1/locks/healed/extend", body).await.problem(409, "hold_limit_reached");
}

#[tokio::test]
async fn a_name_stays_taken_where_a_lease_expires_and_not_where_it_is_released() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    for (acquire, body, extend, release, code) in primitives(&unique("delayed")) {
        let asked = with(&body, &json!({"ttl_ms": 300, "lock_delay_ms": 2000}));
        let long = with(&body, &json!({"ttl_ms": 30_000, "lock_delay_ms": 20_000}));
        let lease = api.post(&acquire, long).await.ok();
        assert_eq!(api.post(&release, of_lease(&body, &lease)).await.ok(), json!({"released": true}));
        let since = Instant::now();
        let lease = api.post(&acquire, asked.clone()).await.ok();
        tokio::time::sleep(Duration::from_millis(400)).await;
        let over = api.post(&extend, of_lease(&body, &lease)).await;
        assert_eq!(over.status, 409, "{}", over.text());
        shared.other_api().post(&acquire, body.clone()).await.problem(409, code);
        let next = shared.other_api().post(&acquire, with(&body, &json!({"wait_ms": 10_000}))).await.ok();
        assert!(since.elapsed() >= Duration::from_millis(2300), "{:?}", since.elapsed());
        api.post(&release, of_lease(&body, &next)).await.ok();
    }
}

async fn expired(api: &Api, name: &str) -> Value {
    let lease = api.acquire(name, json!({"ttl_ms": 100, "lock_delay_ms": 60_000})).await.ok();
    // At all nodes.
    let is_kept = async || (1000..59_800).contains(&number(&api.lock(name).await, "remaining_ms"));
    eventually("it is over", is_kept).await;
    lease
}

#[tokio::test]
async fn what_is_kept_after_it_has_expired_is_shown_and_goes_by_its_holders_word_or_by_force() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    let name = unique("kept");
    let lease = expired(&api, &name).await;
    let seen = api.lock(&name).await;
    assert_eq!(seen["held"], true);
    assert!(number(&seen, "remaining_ms") > 1000, "{seen}");
    let waits = tokio::spawn({
        let (other, name) = (shared.other_api(), name.clone());
        async move { other.acquire(&name, json!({"wait_ms": 30_000})).await.ok() }
    });
    eventually("it waits", || async { number(&shared.other_api().lock(&name).await, "waiters") == 1 }).await;
    assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": false}));
    let next = waits.await.unwrap();
    assert!(number(&next, "waited_ms") < 25_000, "{next}");
    api.release(&name, &next).await.ok();

    expired(&api, &name).await;
    api.delete(&format!("/v1/locks/{name}")).await.ok();
    api.acquire(&name, json!({})).await.ok();
}

#[tokio::test]
async fn a_stream_at_its_limit_ends_with_that_problem_when_the_lease_does() {
    let shared = Shared::nodes(3);
    let name = unique("stream");
    let path = format!("/v1/locks/{name}/hold");
    let body = json!({"ttl_ms": 600, "max_hold_ms": 1000});
    let since = Instant::now();
    let mut stream = shared
        .api()
        .stream("POST", &path, body)
        .await
        .unwrap_or_else(|answer| panic!("no stream: {}", answer.text()));
    let lease = stream.expect("acquired").await;
    let problem = loop {
        let event = stream.next().await;
        match &*event.name {
            "extended" => assert_eq!(event.data["hold_until"], lease["hold_until"]),
            "lost" => break event.data,
            _ => panic!("{event:?}"),
        }
    };
    assert_eq!(problem["code"], "hold_limit_reached");
    assert!(since.elapsed() >= Duration::from_millis(900), "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_request_id_stands_for_its_limits() {
    let api = Shared::nodes(3).api();
    let name = unique("same");
    let asked = json!({"request_id": "limits-of-one", "max_hold_ms": 60_000, "lock_delay_ms": 10});
    let lease = api.acquire(&name, asked.clone()).await.ok();
    assert_eq!(secret(&api.acquire(&name, asked.clone()).await.ok()), secret(&lease));
    for (field, value) in [("max_hold_ms", 70_000), ("lock_delay_ms", 20)] {
        let mut other = asked.clone();
        other[field] = json!(value);
        let problem = api.acquire(&name, other).await.problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], field);
    }
}
