//! `/v1/fencing`: tokens without a lock, and what is known of them.

use serde_json::{Value, json};

use crate::support::{Answer, Api, Cluster, Shared, number, token, unique};

async fn issue(api: &Api, name: &str) -> u64 {
    let issued = api.post(&format!("/v1/fencing/{name}/issue"), json!({})).await.ok();
    assert_eq!(issued["name"], name);
    token(&issued)
}

async fn check(api: &Api, name: &str, token: u64) -> Answer {
    api.post(&format!("/v1/fencing/{name}/check"), json!({"fencing_token": token})).await
}

async fn fence(api: &Api, name: &str) -> Value {
    api.get(&format!("/v1/fencing/{name}")).await.ok()
}

#[tokio::test]
async fn issued_tokens_rise_through_all_servers_in_the_same_sequence_as_the_locks() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let (api, other) = (shared.api(), shared.other_api());
        let name = unique("issued");
        let mut tokens = Vec::new();
        for _ in 0..10 {
            tokens.push(issue(&api, &name).await);
            tokens.push(issue(&other, &name).await);
            let lease = api.acquire(&name, json!({})).await.ok();
            tokens.push(token(&lease));
            // Issuing while the lock is held disturbs nobody.
            tokens.push(issue(&other, &name).await);
            assert_eq!(token(&api.extend(&name, &lease).await.ok()), token(&lease));
            assert_eq!(token(&api.lock(&name).await), token(&lease));
            assert_eq!(other.release(&name, &lease).await.ok(), json!({"released": true}));
        }
        assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
        let last = tokens.pop();
        assert_eq!(fence(&other, &name).await, json!({"name": name, "highest_token": last}));
    }
}

#[tokio::test]
async fn a_token_is_current_until_a_later_one_is_issued() {
    let shared = Shared::nodes(3);
    let (api, other) = (shared.api(), shared.other_api());
    let name = unique("current");
    let first = issue(&api, &name).await;
    assert_eq!(
        check(&other, &name, first).await.ok(),
        json!({"name": name, "status": "current", "highest_token": first})
    );
    let lease = other.acquire(&name, json!({})).await.ok();
    let problem = check(&api, &name, first).await.problem(409, "stale_token");
    assert_eq!(number(&problem, "highest_token"), token(&lease));
    assert_eq!(check(&api, &name, token(&lease)).await.ok()["status"], "current");
    other.release(&name, &lease).await.ok();
    assert_eq!(
        check(&api, &name, token(&lease)).await.ok()["status"],
        "current",
        "released, but not overtaken"
    );
    issue(&api, &name).await;
    check(&other, &name, token(&lease)).await.problem(409, "stale_token");
}

#[tokio::test]
async fn a_token_higher_than_any_known_is_unknown_and_checking_changes_nothing() {
    let api = Shared::nodes(3).api();
    let name = unique("unknown");
    assert_eq!(fence(&api, &name).await, json!({"name": name}));
    assert_eq!(check(&api, &name, 5).await.ok(), json!({"name": name, "status": "unknown"}));
    assert_eq!(fence(&api, &name).await, json!({"name": name}), "a check is a read");
    let issued = issue(&api, &name).await;
    let greatest = (1_u64 << 53) - 1;
    for higher in [issued + 1, greatest] {
        let answer = check(&api, &name, higher).await.ok();
        assert_eq!(answer, json!({"name": name, "status": "unknown", "highest_token": issued}));
    }
    assert_eq!(fence(&api, &name).await["highest_token"], issued);
    assert!(issue(&api, &name).await > issued);
    let problem = check(&api, &name, 1).await.problem(409, "stale_token");
    assert!(number(&problem, "highest_token") > issued);
}

#[tokio::test]
async fn fences_of_members_of_a_multilock_are_those_of_the_locks() {
    let api = Shared::nodes(3).api();
    let names = [unique("member"), unique("member")];
    let before = issue(&api, &names[0]).await;
    let lease = api.post("/v1/multilocks/acquire", json!({"names": names})).await.ok();
    for name in &names {
        let token = number(&lease["fencing_tokens"], name);
        assert!(token > before);
        assert_eq!(check(&api, name, token).await.ok()["status"], "current");
    }
    check(&api, &names[0], before).await.problem(409, "stale_token");
}

#[tokio::test]
async fn a_fence_outlives_its_lease_by_the_retention_only() {
    let arguments = ["--max-ttl", "500ms", "--clock-bound", "500ms", "--fence-retention", "1s"];
    let cluster = Cluster::with(3, &Default::default(), &["--max-ttl", "500ms"]);
    let server = cluster.server(&arguments).await;
    let api = server.api();
    let name = unique("retention");
    let lease = api.acquire(&name, json!({"ttl_ms": 500})).await.ok();
    assert_eq!(fence(&api, &name).await["highest_token"], token(&lease));
    let issued = issue(&api, &unique("retention")).await;
    crate::support::eventually("unbounded names do not fill Redis", || async {
        cluster.nodes.iter().all(|node| node.dump().keys().all(|key| !key.contains("retention")))
    })
    .await;
    assert_eq!(fence(&api, &name).await, json!({"name": name}));
    assert_eq!(check(&api, &name, token(&lease)).await.ok(), json!({"name": name, "status": "unknown"}));
    // Time makes them rise all the same.
    assert!(issue(&api, &name).await > issued);
}
