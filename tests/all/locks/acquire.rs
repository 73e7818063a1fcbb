//! `POST /v1/locks/{name}/acquire` without waiting.

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::support::http::encode;
use crate::support::{Cluster, PATIENCE, Shared, eventually, number, secret, token, unique};

/// Checks the form of a lease that was just granted for `ttl_ms` by some of `total` nodes.
#[track_caller]
fn check_lease(lease: &Value, name: &str, ttl_ms: u64, total: u64) {
    assert_eq!(lease["name"], name);
    assert!(secret(lease).len() >= 32, "128 random bits take at least 32 hex digits");
    assert!((1..1 << 53).contains(&token(lease)));
    assert_eq!(number(lease, "ttl_ms"), ttl_ms);
    let validity = number(lease, "validity_ms");
    assert!(validity > 0 && validity <= ttl_ms - ttl_ms / 100 - 2, "the drift is not taken off: {validity}");
    let at = |field: &str| {
        let text = lease[field].as_str().unwrap_or_else(|| panic!("no {field}"));
        assert!(text.ends_with('Z'), "not UTC: {text}");
        OffsetDateTime::parse(text, &Rfc3339).unwrap()
    };
    assert!(at("expires_at") > at("acquired_at"));
    number(lease, "waited_ms");
    assert!(number(lease, "attempts") >= 1);
    let nodes = &lease["nodes"];
    assert_eq!(number(nodes, "total"), total);
    assert_eq!(number(nodes, "quorum"), total / 2 + 1);
    assert!(number(nodes, "granted") > total / 2);
    assert!(number(nodes, "granted") + number(nodes, "held") + number(nodes, "failed") <= total);
    assert!(lease.as_object().unwrap().values().all(|value| !value.is_null()), "a null in {lease}");
}

#[tokio::test]
async fn a_free_lock_is_granted_on_one_three_and_five_nodes() {
    for total in [1, 3, 5] {
        let api = Shared::nodes(total).api();
        let name = unique("free");
        let lease = api.acquire(&name, json!({"ttl_ms": 20_000})).await.ok();
        check_lease(&lease, &name, 20_000, total as u64);
        assert!(lease.get("owner").is_none());
        api.release(&name, &lease).await.ok();
    }
}

#[tokio::test]
async fn a_held_lock_is_refused_with_its_holder() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let (api, other) = (shared.api(), shared.other_api());
        let name = unique("held");
        let body = json!({"owner": "worker-7", "metadata": {"job": "invoices"}});
        let lease = api.acquire(&name, body).await.ok();
        for api in [&api, &other] {
            let answer = api.acquire(&name, json!({})).await;
            let problem = answer.problem(409, "lock_held");
            let holder = &problem["holder"];
            assert_eq!(holder["owner"], "worker-7");
            assert_eq!(holder["metadata"], json!({"job": "invoices"}));
            assert_eq!(token(holder), token(&lease));
            assert!((1..=30_000).contains(&number(holder, "remaining_ms")));
            assert!(number(&problem, "retry_after_ms") > 0);
            assert!(answer.header("retry-after").is_some());
            assert!(number(&problem["nodes"], "held") >= number(&problem["nodes"], "quorum"));
            assert!(!answer.text().contains(secret(&lease)), "the secret was told");
        }
        api.release(&name, &lease).await.ok();
    }
}

#[tokio::test]
async fn a_released_lock_is_granted_again_with_a_greater_token_and_another_secret() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let name = unique("again");
        let first = shared.api().acquire(&name, json!({})).await.ok();
        assert_eq!(shared.api().release(&name, &first).await.ok(), json!({"released": true}));
        let second = shared.other_api().acquire(&name, json!({})).await.ok();
        assert!(token(&second) > token(&first));
        assert_ne!(secret(&second), secret(&first));
    }
}

#[tokio::test]
async fn a_lease_that_nobody_extends_expires() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let (api, other) = (shared.api(), shared.other_api());
        let name = unique("expires");
        let first = api.acquire(&name, json!({"ttl_ms": 300})).await.ok();
        let deadline = std::time::Instant::now() + PATIENCE;
        let second = loop {
            let answer = other.acquire(&name, json!({})).await;
            if answer.status == 200 {
                break answer.ok();
            }
            answer.problem(409, "lock_held");
            assert!(std::time::Instant::now() < deadline, "it never expires");
        };
        assert!(token(&second) > token(&first));
    }
}

#[tokio::test]
async fn of_many_who_ask_at_once_at_two_servers_exactly_one_is_granted() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        for _ in 0..10 {
            let name = unique("rush");
            let mut askers = tokio::task::JoinSet::new();
            for i in 0..16 {
                let api = if i % 2 == 0 { shared.api() } else { shared.other_api() };
                let name = name.clone();
                askers.spawn(async move { api.acquire(&name, json!({})).await });
            }
            let answers = askers.join_all().await;
            let granted = answers.iter().filter(|answer| answer.status == 200).count();
            answers.iter().filter(|answer| answer.status != 200).for_each(|answer| {
                answer.problem(409, "lock_held");
            });
            assert_eq!(granted, 1, "{name} on {total} nodes");
        }
    }
}

#[tokio::test]
async fn fields_left_out_or_null_have_their_defaults_and_an_empty_body_is_an_empty_object() {
    let api = Shared::nodes(3).api();
    let nulls = json!({"ttl_ms": null, "wait_ms": null, "owner": null, "metadata": null, "request_id": null});
    let bodies = [(String::new(), "text/plain"), ("{}".to_owned(), "application/json; charset=utf-8")];
    for (body, content_type) in bodies.into_iter().chain([(nulls.to_string(), "application/json")]) {
        let name = unique("defaults");
        let path = format!("/v1/locks/{name}/acquire");
        let lease = api.send("POST", &path, &[("content-type", content_type)], body.as_bytes()).await.ok();
        assert_eq!(number(&lease, "ttl_ms"), 30_000, "{body}");
    }
    let name = unique("defaults");
    let lease = api.send("POST", &format!("/v1/locks/{name}/acquire"), &[], b"").await.ok();
    assert_eq!(number(&lease, "ttl_ms"), 30_000, "no content type at all");
}

#[tokio::test]
async fn the_default_ttl_is_the_longest_allowed_where_that_is_shorter() {
    let cluster = Cluster::with(1, &Default::default(), &["--max-ttl", "5s"]);
    let server = cluster.server(&["--max-ttl", "5s"]).await;
    let lease = server.api().acquire("short", json!({})).await.ok();
    assert_eq!(number(&lease, "ttl_ms"), 5_000);
    let problem = server.api().acquire("long", json!({"ttl_ms": 5_001})).await;
    problem.problem(400, "invalid_request");
}

#[tokio::test]
async fn owner_and_metadata_may_be_as_large_as_they_may_be() {
    let api = Shared::nodes(3).api();
    let name = unique("labels");
    let owner = "ü".repeat(127) + "\n";
    // 16 entries; 16 × (2 + 62) = 1,024 bytes.
    let metadata: serde_json::Map<_, _> = (10..26).map(|i| (i.to_string(), "é".repeat(31).into())).collect();
    let body = json!({"owner": owner, "metadata": metadata});
    let lease = api.acquire(&name, body).await.ok();
    assert_eq!(lease["owner"], owner);
    let seen = api.lock(&name).await;
    assert_eq!(seen["owner"], owner);
    assert_eq!(seen["metadata"], Value::Object(metadata));
}

#[tokio::test]
async fn a_percent_encoded_name_is_the_same_name() {
    let api = Shared::nodes(3).api();
    let name = unique("A-Za-z0-9._~:@-");
    let lease = api.acquire(&name, json!({})).await.ok();
    assert_eq!(lease["name"], name);
    let every_byte: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
    for spelling in [encode(&name), every_byte] {
        assert_ne!(spelling, name);
        api.acquire(&spelling, json!({})).await.problem(409, "lock_held");
        assert_eq!(api.lock(&spelling).await["name"], name);
    }
    assert_eq!(api.release(&encode(&name), &lease).await.ok(), json!({"released": true}));
    let longest = unique("l") + &"x".repeat(300);
    let longest = &longest[..200];
    let lease = api.acquire(longest, json!({})).await.ok();
    assert_eq!(lease["name"], longest);
}

#[tokio::test]
async fn a_lock_a_semaphore_and_an_election_of_one_name_are_three_things() {
    let api = Shared::nodes(3).api();
    let name = unique("same");
    let lock = api.acquire(&name, json!({})).await.ok();
    let semaphore = api.post(&format!("/v1/semaphores/{name}/acquire"), json!({"limit": 1})).await.ok();
    let election = api.post(&format!("/v1/elections/{name}/campaign"), json!({"candidate": "a"})).await.ok();
    let release = |kind: &str, verb: &str| format!("/v1/{kind}/{name}/{verb}");
    for lease in [&semaphore, &election] {
        assert_eq!(api.release(&name, lease).await.ok(), json!({"released": false}));
    }
    let body = json!({"lease_id": lock["lease_id"]});
    assert_eq!(
        api.post(&release("semaphores", "release"), body.clone()).await.ok(),
        json!({"released": false})
    );
    assert_eq!(api.post(&release("elections", "resign"), body).await.ok(), json!({"released": false}));
    assert_eq!(api.lock(&name).await["held"], true);
}

#[tokio::test]
async fn every_answer_carries_a_request_id_and_the_clients_own_where_it_sent_one() {
    let api = Shared::nodes(3).api();
    let mine = api.with_header("x-request-id", "trace-0815");
    let name = unique("traced");
    assert_eq!(mine.acquire(&name, json!({})).await.header("x-request-id"), Some("trace-0815"));
    let problem = mine.acquire(&name, json!({})).await.problem(409, "lock_held");
    assert_eq!(problem["request_id"], "trace-0815");
    let (one, two) = (api.get("/livez").await, api.get("/v1/locks").await);
    let ids = [&one, &two].map(|answer| answer.header("x-request-id").expect("X-Request-Id").to_owned());
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn leases_live_at_the_nodes_and_not_in_the_server() {
    let cluster = Cluster::new(3);
    let name = unique("restart");
    let mut first = cluster.server(&[]).await;
    let lease = first.api().acquire(&name, json!({"owner": "before"})).await.ok();
    first.kill();
    let second = cluster.server(&[]).await;
    let api = second.api();
    assert_eq!(api.acquire(&name, json!({})).await.problem(409, "lock_held")["holder"]["owner"], "before");
    assert_eq!(token(&api.extend(&name, &lease).await.ok()), token(&lease));
    assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
    eventually("nothing is left", || async { cluster.leases(&name).is_empty() }).await;
}
