//! Looking at locks, semaphores and elections: lists, long polls, streams, who waits, forced releases.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Shared, eventually, number, secret, token, unique};

async fn permits(api: &crate::support::Api, name: &str, owner: &str) -> Value {
    let body = json!({"limit": 5, "permits": 2, "ttl_ms": 60_000, "owner": owner});
    api.post(&format!("/v1/semaphores/{name}/acquire"), body).await.ok()
}

#[tokio::test]
async fn semaphores_and_elections_are_listed_page_by_page_as_they_are_read_alone() {
    for total in [1, 3] {
        let shared = Shared::nodes(total);
        let (api, prefix) = (shared.api(), unique("listed"));
        // A name that begins like another, and one of each kind that must not be found.
        let names: Vec<String> = ["a", "a-b", "a.b", "b", "c"].map(|end| format!("{prefix}:{end}")).into();
        for name in &names {
            permits(&api, name, "one").await;
            permits(&api, name, "two").await;
            let body = json!({"candidate": "host-1", "value": "v", "ttl_ms": 60_000});
            api.post(&format!("/v1/elections/{name}/campaign"), body).await.ok();
        }
        api.acquire(&format!("{prefix}:lock"), json!({})).await.ok();
        for kind in ["semaphores", "elections"] {
            for (api, limit) in [(shared.api(), 2), (shared.other_api(), 100)] {
                let (mut found, mut cursor) = (Vec::new(), String::new());
                loop {
                    let path = format!("/v1/{kind}?prefix={prefix}:&limit={limit}{cursor}");
                    let page = api.get(&path).await.ok();
                    assert!(page[kind].as_array().unwrap().len() <= limit);
                    found.extend(page[kind].as_array().unwrap().clone());
                    let Some(next) = page.get("next_cursor") else { break };
                    cursor = format!("&cursor={}", next.as_str().unwrap());
                    assert!(found.len() < 10, "the pages do not end");
                }
                let listed: Vec<_> = found.iter().map(|one| one["name"].as_str().unwrap()).collect();
                let listed_once: BTreeSet<_> = listed.iter().map(|&name| name.to_owned()).collect();
                assert_eq!(listed_once, names.iter().cloned().collect(), "{kind}, limit {limit}");
                assert!(listed.is_sorted() && listed.len() == names.len(), "{listed:?}");
                for one in &found {
                    let alone = api.get(&format!("/v1/{kind}/{}", one["name"].as_str().unwrap())).await.ok();
                    for field in ["revision", "in_use", "leader", "term", "value", "waiters"] {
                        assert_eq!(one.get(field), alone.get(field), "{field}");
                    }
                    assert!(!one.to_string().contains("lease_id"));
                    if kind == "semaphores" {
                        assert_eq!((number(one, "in_use"), one["holders"].as_array().unwrap().len()), (4, 2));
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_lease_of_permits_is_taken_away_by_its_token_and_the_others_stay() {
    let shared = Shared::nodes(3);
    let (api, name) = (shared.api(), unique("forced"));
    let path = format!("/v1/semaphores/{name}");
    let (one, two) = (permits(&api, &name, "one").await, permits(&api, &name, "two").await);
    let force = async |query: &str| shared.other_api().delete(&format!("{path}{query}")).await.ok();
    assert_eq!(force("?fencing_token=1&reason=nobody").await, json!({"released": false}));
    let released = force(&format!("?fencing_token={}&reason=its%20host%20is%20gone", token(&one))).await;
    assert_eq!(released, json!({"released": true}));
    let seen = api.get(&path).await.ok();
    assert_eq!((number(&seen, "in_use"), &seen["holders"][0]["owner"]), (2, &json!("two")));
    let extended = api.post(&format!("{path}/extend"), json!({"lease_id": secret(&one)})).await;
    extended.problem(409, "lease_lost");
    api.post(&format!("{path}/extend"), json!({"lease_id": secret(&two)})).await.ok();
    assert_eq!(force("").await, json!({"released": true}));
    assert_eq!(force("").await, json!({"released": false}));
    assert_eq!(number(&api.get(&path).await.ok(), "in_use"), 0);
}

#[tokio::test]
async fn a_leader_is_made_to_resign_and_the_next_candidate_leads() {
    let shared = Shared::nodes(3);
    let (api, name) = (shared.api(), unique("deposed"));
    let path = format!("/v1/elections/{name}");
    assert_eq!(api.delete(&path).await.ok(), json!({"released": false}));
    let first = json!({"candidate": "first", "ttl_ms": 60_000});
    let first = api.post(&format!("{path}/campaign"), first).await.ok();
    let waits = {
        let (api, path) = (api.clone(), format!("{path}/campaign"));
        tokio::spawn(async move {
            api.post(&path, json!({"candidate": "second", "ttl_ms": 60_000, "wait_ms": 30_000})).await.ok()
        })
    };
    eventually("it waits", async || number(&api.get(&path).await.ok(), "waiters") == 1).await;
    assert_eq!(api.delete(&format!("{path}?reason=gone")).await.ok(), json!({"released": true}));
    assert!(number(&waits.await.unwrap(), "term") > number(&first, "term"));
    assert_eq!(api.get(&path).await.ok()["leader"], "second");
}

#[tokio::test]
async fn what_cannot_be_asked_of_lists_waiters_and_forced_releases_is_refused() {
    let api = Shared::nodes(3).api();
    let long = "x".repeat(201);
    for (method, path, field) in [
        ("DELETE", format!("/v1/locks/a?reason={long}"), "reason"),
        ("DELETE", "/v1/locks/a?reason=a%0Ab".to_owned(), "reason"),
        ("DELETE", "/v1/locks/a?reason=a%E2%80%AEb".to_owned(), "reason"),
        ("DELETE", "/v1/locks/a?reason=".to_owned(), "reason"),
        ("DELETE", "/v1/locks/a?fencing_token=1".to_owned(), "fencing_token"),
        ("DELETE", "/v1/elections/a?reason=%1B".to_owned(), "reason"),
        ("DELETE", "/v1/elections/a?why=x".to_owned(), "why"),
        ("DELETE", "/v1/semaphores/a?fencing_token=0".to_owned(), "fencing_token"),
        ("DELETE", "/v1/semaphores/a?fencing_token=x".to_owned(), "fencing_token"),
        ("DELETE", "/v1/semaphores/a?fencing_token=9007199254740992".to_owned(), "fencing_token"),
        ("GET", "/v1/semaphores?limit=0".to_owned(), "limit"),
        ("GET", "/v1/elections?cursor=x".to_owned(), "cursor"),
        ("GET", "/v1/elections?prefix=a/b".to_owned(), "prefix"),
        ("GET", "/v1/waiters?primitive=mutex".to_owned(), "primitive"),
        ("GET", "/v1/waiters?cursor=2a".to_owned(), "cursor"),
        ("GET", "/v1/waiters?limit=1001".to_owned(), "limit"),
        ("GET", "/v1/waiters?prefix=a%20b".to_owned(), "prefix"),
        ("GET", "/v1/locks/a?wait_ms=60001".to_owned(), "wait_ms"),
        ("GET", format!("/v1/semaphores/a?after={}", "x".repeat(257)), "after"),
        ("GET", "/v1/locks/a/observe?after=x".to_owned(), "after"),
        ("GET", "/v1/key?x=1".to_owned(), "x"),
    ] {
        let problem = api.send(method, &path, &[], b"").await.problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], field, "{path}: {problem}");
    }
    // Its sender means it to say which of them.
    let narrowed = api.send("DELETE", "/v1/semaphores/a", &[], br#"{"fencing_token": 1}"#).await;
    assert_eq!(narrowed.problem(400, "invalid_request")["errors"][0]["field"], "body");
}

#[tokio::test]
async fn who_waits_here_is_listed_in_the_order_of_arrival() {
    let shared = Shared::nodes(3);
    let (api, stem) = (shared.api(), unique("waits"));
    let [a, b] = ["a", "b"].map(|end| format!("{stem}:{end}"));
    let held = api.acquire(&a, json!({"ttl_ms": 60_000})).await.ok();
    let list = async |query: &str| api.get(&format!("/v1/waiters?prefix={stem}{query}")).await.ok();
    let waiting = async |count: usize| {
        eventually("it waits", async || list("").await["waiters"].as_array().unwrap().len() == count).await;
    };
    let mut tasks = Vec::new();
    for (path, body) in [
        (format!("/v1/locks/{a}/acquire"), json!({"wait_ms": 40_000, "owner": "o", "metadata": {"k": "v"}})),
        ("/v1/multilocks/acquire".to_owned(), json!({"names": [b, a], "wait_ms": 30_000})),
    ] {
        let api = api.clone();
        tasks.push(tokio::spawn(async move { api.post(&path, body).await.ok() }));
        waiting(tasks.len()).await;
    }
    let all = list("").await["waiters"].clone();
    assert_eq!(
        (&all[0]["primitive"], &all[0]["name"], &all[0]["owner"]),
        (&json!("lock"), &json!(a), &json!("o"))
    );
    assert_eq!((&all[0]["metadata"], number(&all[0], "wait_ms")), (&json!({"k": "v"}), 40_000));
    assert_eq!((&all[1]["primitive"], &all[1]["names"]), (&json!("multilock"), &json!([b, a])));
    assert_eq!([0, 1].map(|at| number(&all[at], "position")), [1, 2]);
    assert!(all[1].get("name").is_none() && all[1].get("owner").is_none());
    assert_eq!(list("&primitive=multilock").await["waiters"].as_array().unwrap().len(), 1);
    assert_eq!(list("&primitive=semaphore").await["waiters"], json!([]));
    let first = list("&limit=1").await;
    assert_eq!(first["waiters"].as_array().unwrap().len(), 1);
    let rest = list(&format!("&limit=1&cursor={}", first["next_cursor"].as_str().unwrap())).await;
    assert_eq!((&rest["waiters"][0]["primitive"], rest.get("next_cursor")), (&json!("multilock"), None));
    api.release(&a, &held).await.ok();
    let mut tasks = tasks.into_iter();
    let lease = tasks.next().unwrap().await.unwrap();
    api.release(&a, &lease).await.ok();
    tasks.next().unwrap().await.unwrap();
    assert_eq!(list("").await["waiters"], json!([]));
}

#[tokio::test]
async fn an_observed_lock_tells_of_grants_here_and_elsewhere_and_of_each_end() {
    let shared = Shared::nodes(3);
    let (api, name) = (shared.api(), unique("observed"));
    let path = format!("/v1/locks/{name}/observe");
    let mut observers = Vec::new();
    for api in [shared.api(), shared.other_api()] {
        let mut observer =
            api.stream("GET", &path, Value::Null).await.unwrap_or_else(|why| panic!("{}", why.text()));
        assert_eq!(observer.expect("free").await["held"], false);
        observers.push(observer);
    }
    let lease = api.acquire(&name, json!({"owner": "o", "ttl_ms": 60_000})).await.ok();
    for observer in &mut observers {
        let event = observer.next().await;
        assert_eq!((event.name.as_str(), &event.data["owner"]), ("held", &json!("o")));
        assert_eq!((token(&event.data), &event.data["revision"]), (token(&lease), &json!(event.id)));
        assert!(!event.data.to_string().contains("lease_id"));
    }
    api.release(&name, &lease).await.ok();
    for observer in &mut observers {
        observer.expect("free").await;
    }
    // One that nobody releases.
    api.acquire(&name, json!({"ttl_ms": 700})).await.ok();
    for observer in &mut observers {
        observer.expect("held").await;
        observer.expect("free").await;
    }
}

/// Each release was a hint to look, and put the look off that would have found the next grant.
#[tokio::test]
async fn an_observer_at_another_server_sees_that_a_name_is_taken_again_and_again() {
    let shared = Shared::nodes(3);
    let (api, name) = (shared.api(), unique("busy"));
    let path = format!("/v1/locks/{name}/observe");
    let mut observer = shared.other_api().stream("GET", &path, Value::Null).await.ok().unwrap();
    observer.expect("free").await;
    let turns = async {
        loop {
            let lease = api.acquire(&name, json!({"wait_ms": 10_000})).await.ok();
            tokio::time::sleep(Duration::from_millis(300)).await;
            api.release(&name, &lease).await.ok();
        }
    };
    let seen = async { while observer.next().await.name != "held" {} };
    tokio::select! {
        never = turns => never,
        () = seen => {}
        () = tokio::time::sleep(Duration::from_secs(10)) => panic!("never seen held"),
    }
}

#[tokio::test]
async fn an_observed_lock_tells_how_many_share_it() {
    let shared = Shared::nodes(3);
    let (api, name) = (shared.api(), unique("observed"));
    let path = format!("/v1/locks/{name}/observe");
    let observed = shared.other_api().stream("GET", &path, Value::Null).await;
    let mut observer = observed.unwrap_or_else(|why| panic!("{}", why.text()));
    observer.expect("free").await;
    let mut leases = Vec::new();
    for total in [1, 2, 1] {
        if total > leases.len() {
            let body = json!({"mode": "shared", "ttl_ms": 60_000});
            leases.push(api.acquire(&name, body).await.ok());
        } else {
            api.release(&name, &leases.pop().unwrap()).await.ok();
        }
        while observer.expect("held").await["holders_total"] != total {}
    }
    let forced = api.send("DELETE", &format!("/v1/locks/{name}?reason=over"), &[], b"").await.ok();
    assert_eq!(forced["released"], true);
    loop {
        let event = observer.next().await;
        if event.name == "free" {
            break;
        }
    }
}

#[tokio::test]
async fn an_observed_semaphore_tells_of_each_change_of_its_holders() {
    let shared = Shared::nodes(3);
    let (api, name) = (shared.api(), unique("observed"));
    let path = format!("/v1/semaphores/{name}");
    let observed = shared.other_api().stream("GET", &format!("{path}/observe"), Value::Null).await;
    let mut observer = observed.unwrap_or_else(|why| panic!("{}", why.text()));
    let mut in_use = async || number(&observer.expect("changed").await, "in_use");
    assert_eq!(in_use().await, 0);
    let lease = permits(&api, &name, "one").await;
    assert_eq!(in_use().await, 2);
    permits(&api, &name, "two").await;
    assert_eq!(in_use().await, 4);
    api.post(&format!("{path}/release"), json!({"lease_id": secret(&lease)})).await.ok();
    assert_eq!(in_use().await, 2);
}

#[tokio::test]
async fn a_read_with_a_revision_waits_until_that_is_another() {
    let shared = Shared::nodes(3);
    let (api, name) = (shared.api(), unique("polled"));
    for (kind, body) in
        [("locks", json!({"ttl_ms": 60_000})), ("semaphores", json!({"limit": 2, "ttl_ms": 60_000}))]
    {
        let path = format!("/v1/{kind}/{name}");
        let read = async |query: String| shared.other_api().get(&format!("{path}{query}")).await.ok();
        let free = read(String::new()).await["revision"].as_str().unwrap().to_owned();
        assert_eq!(read(format!("?after={free}&wait_ms=50")).await["revision"], free.as_str());
        let (changed, lease) = tokio::join!(read(format!("?after={free}&wait_ms=30000")), async {
            api.post(&format!("{path}/acquire"), body.clone()).await.ok()
        },);
        let taken = changed["revision"].as_str().unwrap().to_owned();
        assert_ne!(taken, free);
        // An extension is no change.
        api.post(&format!("{path}/extend"), json!({"lease_id": secret(&lease)})).await.ok();
        assert_eq!(read(format!("?after={taken}&wait_ms=50")).await["revision"], taken.as_str());
        let (changed, _) = tokio::join!(read(format!("?after={taken}&wait_ms=30000")), async {
            api.post(&format!("{path}/release"), json!({"lease_id": secret(&lease)})).await.ok()
        },);
        assert_eq!(changed["revision"], free.as_str());
    }
}

#[tokio::test]
async fn who_asks_for_events_gets_the_answer_to_a_wait_as_an_event() {
    let (api, name) = (Shared::nodes(3).api(), unique("event"));
    let [acquire, path] = [format!("/v1/locks/{name}/acquire"), format!("/v1/locks/{name}")];
    let mut stream = api.stream("POST", &acquire, json!({"wait_ms": 5000})).await.ok().unwrap();
    let lease = stream.expect("answer").await;
    stream.end().await;
    let lease = api.extend(&name, &lease).await.ok();
    let mut stream =
        api.stream("GET", &format!("{path}?after=x&wait_ms=5000"), Value::Null).await.ok().unwrap();
    assert_eq!(stream.expect("answer").await["fencing_token"], lease["fencing_token"]);
    stream.end().await;
    // What is known before a heartbeat is due has its own status.
    let refused = api.stream("POST", &acquire, json!({"wait_ms": 100})).await.err().unwrap();
    refused.problem(409, "lock_held");
    let mut waiting = api.connect().await.unwrap();
    let headers = [("accept", "text/event-stream"), ("content-type", "application/json")];
    waiting.send(&api.request("POST", &acquire, &headers, br#"{"wait_ms": 50000}"#)).await.unwrap();
    eventually("it waits", || async { api.lock(&name).await["waiters"] == 1 }).await;
    drop(waiting);
    eventually("it is gone", || async { api.lock(&name).await["waiters"] == 0 }).await;
}

#[tokio::test]
async fn a_server_without_keys_allows_everything() {
    let answer = Shared::nodes(3).api().get("/v1/key").await.ok();
    assert_eq!(answer, json!({"scopes": ["read", "lock", "admin"]}));
}
