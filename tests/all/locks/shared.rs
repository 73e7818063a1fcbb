//! Shared leases: beside one another, never beside an exclusive one.

use serde_json::{Value, json};

use crate::support::{Api, Cluster, Shared, eventually, number, secret, token, unique};

fn shared(more: Value) -> Value {
    let mut body = json!({"mode": "shared"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn share(api: &Api, name: &str, owner: &str) -> Value {
    let lease = api.acquire(name, shared(json!({"owner": owner, "ttl_ms": 60_000}))).await.ok();
    assert_eq!(lease["mode"], "shared");
    lease
}

#[tokio::test]
async fn shared_leases_stand_beside_one_another_and_exclude_exclusive_ones() {
    for total in [1, 3, 5] {
        let deployment = Shared::nodes(total);
        let (api, other) = (deployment.api(), deployment.other_api());
        let name = unique("shared");
        let before = api.acquire(&name, json!({})).await.ok();
        assert_eq!(before["mode"], "exclusive");
        let problem = other.acquire(&name, shared(json!({}))).await.problem(409, "lock_held");
        assert_eq!(problem["mode"], "exclusive");
        api.release(&name, &before).await.ok();

        let mut leases = Vec::new();
        for (i, api) in [&api, &other, &api].into_iter().enumerate() {
            leases.push(share(api, &name, &format!("reader-{i}")).await);
        }
        let problem = other.acquire(&name, json!({})).await.problem(409, "lock_held");
        assert_eq!(problem["mode"], "shared");
        assert!(problem.get("holder").is_none(), "{problem}");
        assert_eq!(number(&problem, "holders_total"), 3);
        for seen in [&problem, &api.lock(&name).await] {
            assert_eq!(seen["mode"], "shared");
            assert_eq!(number(seen, "holders_total"), 3, "{seen}");
            let mut owners: Vec<_> =
                seen["holders"].as_array().unwrap().iter().map(|holder| holder["owner"].clone()).collect();
            owners.sort_by_key(Value::to_string);
            assert_eq!(owners, ["reader-0", "reader-1", "reader-2"]);
        }
        let names = json!({"names": [&name, format!("{name}-b")]});
        let problem = api.post("/v1/multilocks/acquire", names).await.problem(409, "lock_held");
        assert_eq!(problem["mode"], "shared");

        for lease in &leases {
            assert!(token(lease) > token(&before));
            assert_eq!(api.extend(&name, lease).await.ok()["mode"], "shared");
            api.acquire(&name, json!({})).await.problem(409, "lock_held");
            assert_eq!(other.release(&name, lease).await.ok(), json!({"released": true}));
        }
        let after = api.acquire(&name, json!({})).await.ok();
        assert!(leases.iter().all(|lease| token(lease) < token(&after)));
    }
}

#[tokio::test]
async fn each_of_those_who_share_a_lock_extends_and_releases_its_own_lease_alone() {
    let deployment = Shared::nodes(3);
    let api = deployment.api();
    let name = unique("own");
    let short = api.acquire(&name, shared(json!({"owner": "dead", "ttl_ms": 1000}))).await.ok();
    let long = share(&api, &name, "alive").await;
    // Whoever lives renews nobody else's time.
    eventually("the other one is over", || async {
        api.extend(&name, &long).await.ok();
        number(&api.lock(&name).await, "holders_total") == 1
    })
    .await;
    api.extend(&name, &short).await.problem(409, "lease_lost");
    assert_eq!(api.lock(&name).await["holders"][0]["owner"], "alive");
    // Nor does who releases its own free another's.
    let another = share(&deployment.other_api(), &name, "another").await;
    assert_eq!(api.release(&name, &another).await.ok(), json!({"released": true}));
    assert_eq!(api.release(&name, &another).await.ok(), json!({"released": false}));
    api.acquire(&name, json!({})).await.problem(409, "lock_held");
    api.extend(&name, &long).await.ok();
}

#[tokio::test]
async fn one_who_waits_for_a_lock_alone_is_not_overtaken_by_those_who_share_it() {
    let deployment = Shared::nodes(3);
    let (api, other) = (deployment.api(), deployment.other_api());
    let name = unique("writer");
    let first = share(&api, &name, "first").await;
    let writer = tokio::spawn({
        let (other, name) = (deployment.other_api(), name.clone());
        async move { other.acquire(&name, json!({"wait_ms": 60_000, "owner": "writer"})).await.ok() }
    });
    eventually("it waits", || async { number(&other.lock(&name).await, "waiters") == 1 }).await;
    // It is known at the other server, too, as soon as it was refused once.
    eventually("it is known", || async {
        let asked = api.acquire(&name, shared(json!({"owner": "late"}))).await;
        if asked.status == 200 {
            api.release(&name, &asked.ok()).await.ok();
            return false;
        }
        asked.problem(409, "lock_held")["mode"] == "shared"
    })
    .await;
    let late: Vec<_> = [deployment.api(), deployment.other_api()]
        .into_iter()
        .map(|api| {
            let name = name.clone();
            tokio::spawn(async move { api.acquire(&name, shared(json!({"wait_ms": 60_000}))).await.ok() })
        })
        .collect();
    eventually("all wait", || async {
        number(&api.lock(&name).await, "waiters") + number(&other.lock(&name).await, "waiters") == 3
    })
    .await;
    api.release(&name, &first).await.ok();
    let writer = writer.await.unwrap();
    assert!(late.iter().all(|late| !late.is_finished()));
    other.release(&name, &writer).await.ok();
    for late in late {
        let late = late.await.unwrap();
        assert!(token(&late) > token(&writer));
    }
    assert_eq!(number(&api.lock(&name).await, "holders_total"), 2, "both are let in");
}

#[tokio::test]
async fn a_retry_of_a_shared_request_gets_its_lease_back_and_another_mode_is_another_request() {
    let deployment = Shared::nodes(3);
    let name = unique("retry");
    share(&deployment.api(), &name, "other").await;
    let asked = shared(json!({"request_id": "shared-retry-1"}));
    let lease = deployment.api().acquire(&name, asked.clone()).await.ok();
    let again = deployment.other_api().acquire(&name, asked).await.ok();
    assert_eq!((secret(&again), token(&again)), (secret(&lease), token(&lease)));
    assert_eq!(again["mode"], "shared");
    assert_eq!(number(&deployment.api().lock(&name).await, "holders_total"), 2);
    let exclusive = json!({"request_id": "shared-retry-1"});
    let problem = deployment.api().acquire(&name, exclusive).await.problem(400, "invalid_request");
    assert_eq!(problem["errors"][0]["field"], "mode");
}

#[tokio::test]
async fn many_share_a_lock_of_whom_some_are_shown_and_all_go_by_force() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    for i in 0..40 {
        let body = json!({"owner": format!("r{i}"), "ttl_ms": 60_000 + 1000 * i});
        api.acquire("many", shared(body)).await.ok();
    }
    // The newest are at a bare quorum for a moment, so no node knows of all.
    let total = || async { number(&api.lock("many").await, "holders_total") };
    eventually("a node knows of all", || async { total().await == 40 }).await;
    let seen = api.lock("many").await;
    let holders = seen["holders"].as_array().unwrap();
    assert_eq!(holders.len(), 16);
    assert_eq!(holders[0]["owner"], "r39", "those that last longest come first");
    let listed = api.get("/v1/locks?prefix=many").await.ok();
    assert_eq!(number(&listed["locks"][0], "holders_total"), 40);
    assert_eq!(api.delete("/v1/locks/many").await.ok(), json!({"released": true}));
    assert_eq!(api.lock("many").await["held"], false);
    eventually("nothing is left", || async { cluster.leases("many").is_empty() }).await;
}

#[tokio::test]
async fn shared_leases_of_a_node_that_lost_them_are_given_back() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let leases = [share(&api, "healed", "a").await, share(&api, "healed", "b").await];
    let key = cluster.leases("healed").swap_remove(0);
    let held = |node: usize| {
        let record: Option<String> = cluster.nodes[node].command(&["GET", &key]);
        record.map_or(0, |record| record.lines().count() - 1)
    };
    let all = || (0..3).map(held).collect::<Vec<_>>();
    eventually("all nodes have both", || async { all() == [2; 3] }).await;
    cluster.nodes[0].command::<()>(&["DEL", &key]);
    // The one with the lesser token first: a greater one is a later lease's, as far as a node knows.
    for (i, lease) in leases.iter().enumerate() {
        eventually("it is there again", || async {
            api.extend("healed", lease).await.ok();
            held(0) == i + 1
        })
        .await;
    }
    api.acquire("healed", json!({})).await.problem(409, "lock_held");
}
