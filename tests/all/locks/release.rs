//! `POST /v1/locks/{name}/release` and `DELETE /v1/locks/{name}`.

use serde_json::json;

use crate::support::{Cluster, Shared, eventually, secret, token, unique};

#[tokio::test]
async fn releasing_is_idempotent_and_possible_at_any_server() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let (api, other) = (shared.api(), shared.other_api());
        let name = unique("twice");
        let lease = api.acquire(&name, json!({})).await.ok();
        assert_eq!(other.release(&name, &lease).await.ok(), json!({"released": true}));
        for api in [&api, &other, &api] {
            assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": false}));
        }
        eventually("nothing is left", || async { shared.cluster.leases(&name).is_empty() }).await;
    }
}

#[tokio::test]
async fn a_stranger_and_a_former_holder_release_nothing() {
    let api = Shared::nodes(3).api();
    let name = unique("strangers");
    let former = api.acquire(&name, json!({"ttl_ms": 100})).await.ok();
    let holder = api.acquire(&name, json!({"wait_ms": 30_000})).await.ok();
    let stranger = api.acquire(&unique("stranger"), json!({})).await.ok();
    for lease in [&former, &stranger] {
        assert_eq!(api.release(&name, lease).await.ok(), json!({"released": false}));
    }
    assert_eq!(token(&api.lock(&name).await), token(&holder));
    assert_eq!(api.release(&name, &holder).await.ok(), json!({"released": true}));
}

#[tokio::test]
async fn a_lease_id_with_one_digit_changed_is_nobodys() {
    let api = Shared::nodes(3).api();
    let name = unique("digit");
    let lease = api.acquire(&name, json!({})).await.ok();
    let mut others = vec!["0".repeat(46), "f".repeat(46)];
    for at in [0, 31, 32, 45] {
        let mut text = secret(&lease).to_owned();
        let digit = if &text[at..=at] == "0" { "1" } else { "0" };
        text.replace_range(at..=at, digit);
        others.push(text);
    }
    for other in others {
        let body = json!({"lease_id": other});
        let released = api.post(&format!("/v1/locks/{name}/release"), body.clone()).await;
        assert_eq!(released.ok(), json!({"released": false}), "{other}");
        api.post(&format!("/v1/locks/{name}/extend"), body).await.problem(409, "lease_lost");
    }
    assert_eq!(token(&api.lock(&name).await), token(&lease));
    assert_eq!(token(&api.extend(&name, &lease).await.ok()), token(&lease));
    assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
}

#[tokio::test]
async fn releasing_a_name_that_was_never_held_is_no_error() {
    let api = Shared::nodes(3).api();
    let lease = api.acquire(&unique("other"), json!({})).await.ok();
    assert_eq!(api.release(&unique("never"), &lease).await.ok(), json!({"released": false}));
}

#[tokio::test]
async fn force_release_takes_a_lock_from_whoever_holds_it() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let (api, other) = (shared.api(), shared.other_api());
        let name = unique("forced");
        let path = format!("/v1/locks/{name}");
        assert_eq!(api.delete(&path).await.ok(), json!({"released": false}));
        let lease = api.acquire(&name, json!({})).await.ok();
        assert_eq!(other.delete(&path).await.ok(), json!({"released": true}));
        assert_eq!(api.lock(&name).await["held"], false);
        api.extend(&name, &lease).await.problem(409, "lease_lost");
        assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": false}));
        let next = api.acquire(&name, json!({})).await.ok();
        assert!(token(&next) > token(&lease), "the fence survives");
    }
}

#[tokio::test]
async fn force_release_clears_what_only_a_minority_of_the_nodes_holds() {
    let cluster = Cluster::new(5);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("remains");
    api.acquire(&name, json!({})).await.ok();
    eventually("all nodes have it", || async { cluster.leases(&name).len() == 5 }).await;
    for node in &cluster.nodes[..3] {
        let key = node.leases(&name).remove(0);
        node.command::<()>(&["DEL", &key]);
    }
    assert_eq!(api.lock(&name).await["held"], false, "two of five are no quorum");
    api.delete(&format!("/v1/locks/{name}")).await.ok();
    eventually("nothing is left", || async { cluster.leases(&name).is_empty() }).await;
}

#[tokio::test]
async fn force_release_tells_of_a_lease_that_is_held_where_a_node_that_held_it_is_down() {
    let mut cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("forced");
    let lease = api.acquire(&name, json!({})).await.ok();
    eventually("all nodes have it", || async { cluster.leases(&name).len() == 3 }).await;
    let key = cluster.nodes[0].leases(&name).remove(0);
    cluster.nodes[0].command::<()>(&["DEL", &key]);
    cluster.nodes[1].kill();
    assert_eq!(api.delete(&format!("/v1/locks/{name}")).await.ok(), json!({"released": true}));
    api.extend(&name, &lease).await.problem(409, "lease_lost");
    assert_eq!(api.delete(&format!("/v1/locks/{name}")).await.ok(), json!({"released": false}));
}

#[tokio::test]
async fn force_release_is_counted_once_by_what_it_found() {
    let mut cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let counts = async || {
        let mut counts = Vec::new();
        for outcome in ["released", "not_held", "no_quorum"] {
            let series = format!(r#"quorate_releases_total{{primitive="lock",outcome="{outcome}"}}"#);
            counts.push(api.metric(&series).await);
        }
        counts
    };
    let name = unique("counted");
    let path = format!("/v1/locks/{name}");
    api.delete(&path).await.ok();
    assert_eq!(counts().await, [0.0, 1.0, 0.0], "nobody held it");
    api.acquire(&name, json!({})).await.ok();
    api.delete(&path).await.ok();
    assert_eq!(counts().await, [1.0, 1.0, 0.0], "somebody held it");
    cluster.nodes[0].kill();
    cluster.nodes[1].kill();
    api.delete(&path).await.problem(503, "quorum_unavailable");
    assert_eq!(counts().await, [1.0, 1.0, 1.0], "nobody knows");
}

#[tokio::test]
async fn force_release_lets_the_first_waiter_in() {
    let shared = Shared::nodes(3);
    for api in [shared.api(), shared.other_api()] {
        let name = unique("forced");
        api.acquire(&name, json!({"ttl_ms": 300_000})).await.ok();
        let waiting = tokio::spawn({
            let (api, name) = (shared.api(), name.clone());
            async move { api.acquire(&name, json!({"wait_ms": 60_000})).await }
        });
        eventually("it waits", || async { shared.api().lock(&name).await["waiters"] == 1 }).await;
        let since = std::time::Instant::now();
        api.delete(&format!("/v1/locks/{name}")).await.ok();
        waiting.await.unwrap().ok();
        assert!(since.elapsed() < std::time::Duration::from_secs(10), "{:?}", since.elapsed());
    }
}
