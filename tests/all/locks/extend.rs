//! `POST /v1/locks/{name}/extend`.

use std::time::Duration;

use serde_json::json;

use crate::support::{Cluster, Server, Shared, eventually, number, secret, token, unique};

#[tokio::test]
async fn extending_sets_the_remaining_time_and_never_adds() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let (api, other) = (shared.api(), shared.other_api());
        let name = unique("extended");
        let lease = api.acquire(&name, json!({"ttl_ms": 20_000, "owner": "me"})).await.ok();
        let path = format!("/v1/locks/{name}/extend");
        for (api, ttl_ms) in [(&api, 60_000), (&other, 60_000), (&other, 10_000), (&api, 100_000)] {
            let body = json!({"lease_id": secret(&lease), "ttl_ms": ttl_ms});
            let extended = api.post(&path, body).await.ok();
            assert_eq!(secret(&extended), secret(&lease));
            assert_eq!(token(&extended), token(&lease), "extension keeps the token");
            assert_eq!(extended["owner"], "me");
            assert_eq!(number(&extended, "ttl_ms"), ttl_ms);
            assert!(number(&extended, "validity_ms") <= ttl_ms - ttl_ms / 100 - 2);
            let remaining = number(&api.lock(&name).await, "remaining_ms");
            assert!(remaining <= ttl_ms && remaining > ttl_ms / 2, "{remaining} of {ttl_ms}");
        }
    }
}

#[tokio::test]
async fn extending_without_a_ttl_uses_the_leases_own() {
    let api = Shared::nodes(3).api();
    let name = unique("own");
    let lease = api.acquire(&name, json!({"ttl_ms": 45_000})).await.ok();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let extended = api.extend(&name, &lease).await.ok();
    assert_eq!(number(&extended, "ttl_ms"), 45_000);
    assert!(number(&extended, "validity_ms") > 30_000);
}

#[tokio::test]
async fn a_lease_that_has_expired_is_lost() {
    for total in [1, 3, 5] {
        let api = Shared::nodes(total).api();
        let name = unique("lost");
        let lease = api.acquire(&name, json!({"ttl_ms": 100})).await.ok();
        eventually("it expires", || async { api.lock(&name).await["held"] == false }).await;
        let problem = api.extend(&name, &lease).await.problem(409, "lease_lost");
        assert!(number(&problem["nodes"], "quorum") == total as u64 / 2 + 1);
        assert_eq!(api.lock(&name).await["held"], false, "extension must not take it again");
    }
}

#[tokio::test]
async fn an_extension_that_took_longer_than_the_lease_then_has_is_none() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&["--node-timeout", "20s"]).await;
    let api = server.api();
    let lease = api.acquire("late", json!({"ttl_ms": 60_000})).await.ok();
    // Where an extension comes before the copy, that lasts for its whole ttl.
    eventually("all nodes have it", || async { cluster.leases("late").len() == 3 }).await;
    for node in &cluster.nodes {
        node.command::<()>(&["CLIENT", "PAUSE", "3000", "ALL"]);
    }
    let body = json!({"lease_id": secret(&lease), "ttl_ms": 100});
    api.post("/v1/locks/late/extend", body).await.problem(409, "lease_lost");
    eventually("nothing is left", || async { cluster.leases("late").is_empty() }).await;
}

/// The first is sent by way of a slow network and answered after what it has set is over.
#[tokio::test]
async fn an_extension_that_is_answered_too_late_leaves_one_alone_that_came_after_it() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let mut far = Server::start(&options.with(&["--node-timeout", "20s"]));
    far.all_voting().await;
    let near = cluster.server(&[]).await;
    let api = near.api();
    let lease = api.acquire("overtaken", json!({"ttl_ms": 60_000})).await.ok();
    proxies.iter().for_each(|proxy| proxy.delay(Duration::from_millis(1500)));
    let late = tokio::spawn({
        let (api, lease) = (far.api(), json!({"lease_id": secret(&lease), "ttl_ms": 2_500}));
        async move { api.post("/v1/locks/overtaken/extend", lease).await }
    });
    eventually("the nodes have it", || async {
        number(&api.lock("overtaken").await, "remaining_ms") <= 2_500
    })
    .await;
    let body = json!({"lease_id": secret(&lease), "ttl_ms": 60_000});
    api.post("/v1/locks/overtaken/extend", body).await.ok();
    late.await.unwrap().problem(409, "lease_lost");
    // It ends when the nodes have heard all that it has to say.
    far.terminate();
    assert!(far.ended().await.success());
    api.acquire("overtaken", json!({})).await.problem(409, "lock_held");
    assert_eq!(token(&api.extend("overtaken", &lease).await.ok()), token(&lease));
}

#[tokio::test]
async fn a_lease_stays_lost_when_somebody_took_and_released_the_lock_in_between() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let (api, other) = (shared.api(), shared.other_api());
        let name = unique("between");
        let lease = api.acquire(&name, json!({"ttl_ms": 100})).await.ok();
        let taken = other.acquire(&name, json!({"wait_ms": 30_000})).await.ok();
        api.extend(&name, &lease).await.problem(409, "lease_lost");
        assert_eq!(token(&other.lock(&name).await), token(&taken), "the holder is undisturbed");
        assert_eq!(other.release(&name, &taken).await.ok(), json!({"released": true}));
        api.extend(&name, &lease).await.problem(409, "lease_lost");
        assert_eq!(api.lock(&name).await["held"], false);
    }
}

#[tokio::test]
async fn a_lease_that_was_released_or_belongs_to_another_name_is_lost() {
    let api = Shared::nodes(3).api();
    let (name, elsewhere) = (unique("released"), unique("elsewhere"));
    let lease = api.acquire(&name, json!({})).await.ok();
    let other = api.acquire(&elsewhere, json!({})).await.ok();
    api.extend(&elsewhere, &lease).await.problem(409, "lease_lost");
    api.extend(&name, &other).await.problem(409, "lease_lost");
    assert_eq!(api.lock(&name).await["held"], true, "the holder is undisturbed");
    api.release(&name, &lease).await.ok();
    api.extend(&name, &lease).await.problem(409, "lease_lost");
}

#[tokio::test]
async fn a_lease_that_is_extended_in_time_is_held_for_as_long_as_its_holder_likes() {
    let shared = Shared::nodes(3);
    let (api, other) = (shared.api(), shared.other_api());
    let name = unique("kept");
    let lease = api.acquire(&name, json!({"ttl_ms": 5_000})).await.ok();
    for round in 0..20 {
        other.acquire(&name, json!({})).await.problem(409, "lock_held");
        let api = if round % 2 == 0 { &api } else { &other };
        api.extend(&name, &lease).await.ok();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(token(&api.lock(&name).await), token(&lease));
}

/// Granted by nodes 1 and 2. Then 3 is back and 2 is away: one matches, one does not, and one may.
#[tokio::test]
async fn a_lease_that_a_quorum_may_hold_is_not_called_lost() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let server = Server::start(&options);
    server.all_voting().await;
    let (api, name) = (server.api(), unique("maybe"));
    let state = async |i: usize| api.get("/v1/nodes").await.ok()["nodes"][i]["state"].clone();
    proxies[2].cut();
    // Before that an acquire may still get through.
    eventually("node 3 is away", async || state(2).await == "down").await;
    let lease = api.acquire(&name, json!({"ttl_ms": 60_000})).await.ok();
    proxies[2].heal();
    eventually("node 3 is back", async || state(2).await == "voting").await;
    proxies[1].cut();
    eventually("node 2 is away", async || state(1).await == "down").await;
    api.extend(&name, &lease).await.problem(503, "quorum_unavailable");
    // Nobody gets it: it is valid, and its holder knows nothing of all this.
    let other = cluster.server(&[]).await;
    other.api().acquire(&name, json!({})).await.problem(409, "lock_held");
    proxies[1].heal();
    eventually("node 2 is back", async || state(1).await == "voting").await;
    assert_eq!(token(&api.extend(&name, &lease).await.ok()), token(&lease));
}
