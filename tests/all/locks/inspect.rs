//! `GET /v1/locks/{name}`.

use serde_json::json;

use crate::support::{Cluster, Shared, eventually, number, token, unique};

#[tokio::test]
async fn a_lock_shows_its_holder_to_everybody() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let name = unique("seen");
        let body =
            json!({"ttl_ms": 60_000, "owner": "worker-7", "metadata": {"job": "invoices", "run": "7"}});
        let lease = shared.api().acquire(&name, body).await.ok();
        for api in [shared.api(), shared.other_api()] {
            let seen = api.lock(&name).await;
            assert_eq!(seen["name"], name);
            assert_eq!(seen["held"], true);
            assert_eq!(seen["owner"], "worker-7");
            assert_eq!(seen["metadata"], json!({"job": "invoices", "run": "7"}));
            assert_eq!(token(&seen), token(&lease));
            assert_eq!(seen["acquired_at"], lease["acquired_at"]);
            assert!((1..=60_000).contains(&number(&seen, "remaining_ms")));
            assert_eq!(number(&seen, "waiters"), 0);
            assert_eq!(number(&seen["nodes"], "total"), total as u64);
            assert!(seen.get("lease_id").is_none());
        }
    }
}

#[tokio::test]
async fn a_free_lock_shows_no_holder() {
    let api = Shared::nodes(3).api();
    let name = unique("free");
    let check = |seen: serde_json::Value| {
        assert_eq!(seen["held"], false);
        assert_eq!(seen["name"], name);
        for field in ["owner", "metadata", "fencing_token", "remaining_ms", "acquired_at"] {
            assert!(seen.get(field).is_none(), "{field} of a free lock: {seen}");
        }
    };
    check(api.lock(&name).await);
    let lease = api.acquire(&name, json!({"owner": "gone"})).await.ok();
    api.release(&name, &lease).await.ok();
    check(api.lock(&name).await);
}

#[tokio::test]
async fn only_a_quorum_makes_a_holder() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("quorum");
    let lease = api.acquire(&name, json!({})).await.ok();
    eventually("all nodes have it", || async { cluster.leases(&name).len() == 3 }).await;
    let forget = |i: usize| {
        let node = &cluster.nodes[i];
        node.command::<()>(&["DEL", &node.leases(&name)[0]]);
    };
    forget(0);
    assert_eq!(token(&api.lock(&name).await), token(&lease));
    forget(1);
    assert_eq!(api.lock(&name).await["held"], false);
    let listed = api.get(&format!("/v1/locks?prefix={name}")).await.ok();
    assert_eq!(listed["locks"], json!([]));
}

#[tokio::test]
async fn a_node_that_lost_a_lease_gets_it_back_with_the_next_extension() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("healed");
    let lease = api.acquire(&name, json!({})).await.ok();
    eventually("all nodes have it", || async { cluster.leases(&name).len() == 3 }).await;
    let node = &cluster.nodes[1];
    node.command::<()>(&["DEL", &node.leases(&name)[0]]);
    api.extend(&name, &lease).await.ok();
    eventually("the node has it again", || async { node.leases(&name).len() == 1 }).await;
    // It counts again: another node may forget now.
    let other = &cluster.nodes[2];
    other.command::<()>(&["DEL", &other.leases(&name)[0]]);
    assert_eq!(token(&api.extend(&name, &lease).await.ok()), token(&lease));
    assert_eq!(token(&api.lock(&name).await), token(&lease));
}
