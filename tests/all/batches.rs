//! `/v1/leases`: many leases of any kind in one request.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Cluster, Shared, number, secret, unique};

/// A lease of each primitive, as it was granted, and as a batch names it.
async fn one_of_each(shared: &Shared, ttl_ms: u64) -> Vec<(Value, Value)> {
    let (api, name) = (shared.api(), unique("batch"));
    let other = format!("{name}:b");
    let lock = api.acquire(&name, json!({"ttl_ms": ttl_ms})).await.ok();
    let names = [format!("{name}:x"), format!("{name}:y")];
    let multilock = api.post("/v1/multilocks/acquire", json!({"names": names, "ttl_ms": ttl_ms})).await.ok();
    let permits = json!({"limit": 3, "permits": 2, "ttl_ms": ttl_ms});
    let semaphore = api.post(&format!("/v1/semaphores/{other}/acquire"), permits).await.ok();
    let candidacy = json!({"candidate": "c", "value": "v", "ttl_ms": ttl_ms});
    let office = api.post(&format!("/v1/elections/{name}/campaign"), candidacy).await.ok();
    let named = |primitive: &str, lease: Value| {
        let mut named = json!({"primitive": primitive, "lease_id": secret(&lease)});
        for field in ["name", "names"] {
            lease.get(field).into_iter().for_each(|name| named[field] = name.clone());
        }
        (lease, named)
    };
    vec![
        named("lock", lock),
        named("multilock", multilock),
        named("semaphore", semaphore),
        named("election", office),
    ]
}

#[tokio::test]
async fn leases_of_every_kind_are_extended_and_released_together_each_by_itself() {
    let shared = Shared::nodes(3);
    let api = shared.other_api();
    let (mut granted, mut leases): (Vec<Value>, Vec<Value>) =
        one_of_each(shared, 20_000).await.into_iter().unzip();
    // A lease that nobody holds, in the middle, costs the others nothing.
    let mut lost = leases[0].clone();
    lost["name"] = json!(unique("nobody"));
    leases.insert(2, lost);
    granted.insert(2, Value::Null);
    for lease in &mut leases {
        lease["ttl_ms"] = json!(40_000);
    }
    let answer = api.post("/v1/leases/extend", json!({"leases": leases})).await.ok();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 5);
    let members = |lease: &Value| lease.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    for ((asked, granted), result) in leases.iter().zip(&granted).zip(results) {
        if result.get("lease").is_none() {
            assert_eq!(result["problem"]["code"], "lease_lost", "{result}");
            assert_eq!(asked, &leases[2]);
            continue;
        }
        let lease = &result["lease"];
        assert_eq!(lease["lease_id"], asked["lease_id"]);
        assert!(number(lease, "validity_ms") > 20_000, "{lease}");
        assert_eq!(members(lease), members(granted), "as by itself");
        for member in ["name", "names", "mode", "limit", "permits", "slots", "candidate", "value"] {
            assert_eq!(lease.get(member), granted.get(member), "{member} of {lease}");
        }
    }
    assert_eq!(results[4]["lease"]["term"], results[4]["lease"]["fencing_token"]);

    for released in [true, false] {
        let answer = api.post("/v1/leases/release", json!({"leases": leases})).await.ok();
        let expected: Vec<Value> = (0..5).map(|i| json!({"released": released && i != 2})).collect();
        assert_eq!(answer["results"], json!(expected));
    }
}

#[tokio::test]
async fn a_batch_that_is_wrong_somewhere_is_refused_whole_and_says_where() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    let leases: Vec<Value> = one_of_each(shared, 20_000).await.into_iter().map(|(_, named)| named).collect();
    let good = &leases[0];
    let wrong = |change: Value| {
        let mut lease = good.clone();
        for (key, value) in change.as_object().unwrap() {
            lease[key] = value.clone();
        }
        json!([good, lease])
    };
    for (bad, field) in [
        (json!([]), "leases"),
        (Value::from(vec![good.clone(); 501]), "leases"),
        (wrong(json!({"primitive": "mutex"})), "leases[1].primitive"),
        (wrong(json!({"primitive": "multilock"})), "leases[1].names"),
        (wrong(json!({"names": ["a", "b"]})), "leases[1].name"),
        (wrong(json!({"name": null})), "leases[1].name"),
        (wrong(json!({"name": "a b"})), "leases[1].name"),
        (wrong(json!({"lease_id": "x"})), "leases[1].lease_id"),
        (wrong(json!({"ttl_ms": 1})), "leases[1].ttl_ms"),
        (wrong(json!({"ttl": 1})), "leases[1].ttl"),
        (wrong(json!({"names": "a"})), "leases[1].names"),
        (json!([good, 5]), "leases[1]"),
    ] {
        for verb in ["extend", "release"] {
            let answer = api.post(&format!("/v1/leases/{verb}"), json!({"leases": bad})).await;
            let problem = answer.problem(400, "invalid_request");
            assert_eq!(problem["errors"][0]["field"], field, "{problem}");
            assert!(problem["detail"].as_str().unwrap().starts_with(field), "{problem}");
        }
    }
    let twice = json!({"leases": [good, good]}).to_string().replacen("}]", r#","name":"a"}]"#, 1);
    let headers = [("content-type", "application/json")];
    let answer = api.send("POST", "/v1/leases/extend", &headers, twice.as_bytes()).await;
    assert_eq!(answer.problem(400, "invalid_request")["errors"][0]["field"], "leases[1].name");
    let released = api.post("/v1/leases/release", json!({"leases": leases})).await.ok();
    assert_eq!(released["results"][0]["released"], true, "nothing was released by what was refused");
}

#[tokio::test]
async fn five_hundred_leases_cost_a_node_less_than_a_tenth_of_so_many_calls() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let names: Vec<String> = (0..500).map(|i| format!("many:{i}")).collect();
    let leases = join_all(names.iter().map(async |name| {
        let lease = api.acquire(name, json!({"ttl_ms": 30_000})).await.ok();
        json!({"primitive": "lock", "name": name, "lease_id": secret(&lease)})
    }))
    .await;
    let runs = || {
        let stats = cluster.nodes[0].command::<String>(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).map(str::to_owned);
        line.and_then(|line| line.split(['=', ',']).nth(1).and_then(|calls| calls.parse::<u64>().ok()))
    };
    let before = runs().unwrap();
    let answer = api.post("/v1/leases/extend", json!({"leases": leases})).await.ok();
    let asked = runs().unwrap() - before;
    let extended = answer["results"].as_array().unwrap().iter().filter(|one| one["lease"].is_object());
    assert_eq!(extended.count(), 500);
    println!("500 leases were extended in {asked} runs of a script at a node");
    assert!(asked < 50, "{asked}");
}
