//! SIGTERM: who waits is told, what is held by streams is given back, and the process ends well.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Cluster, Server, eventually, number, secret, unique};

#[tokio::test]
async fn a_server_told_to_end_sends_its_waiters_away_and_ends() {
    let cluster = Cluster::new(3);
    let (mut one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let api = one.api();
    let name = unique("drain");
    let lease = two.api().acquire(&name, json!({"ttl_ms": 300_000})).await.ok();
    let permit = two.api().post(&format!("/v1/semaphores/{name}/acquire"), json!({"limit": 1})).await.ok();
    let path = format!("/v1/elections/{name}");
    let leader = two.api().post(&format!("{path}/campaign"), json!({"candidate": "a"})).await.ok();
    let revision = two.api().get(&path).await.ok()["revision"].as_str().unwrap().to_owned();
    let mut waiting = Vec::new();
    let mut wait = |method: &'static str, path: String, body: Value| {
        let api = api.clone();
        waiting.push(tokio::spawn(async move {
            let body = if method == "GET" { String::new() } else { body.to_string() };
            api.send(method, &path, &[("content-type", "application/json")], body.as_bytes()).await
        }));
    };
    for _ in 0..20 {
        wait("POST", format!("/v1/locks/{name}/acquire"), json!({"wait_ms": 60_000}));
    }
    wait(
        "POST",
        "/v1/multilocks/acquire".into(),
        json!({"names": [name, unique("other")], "wait_ms": 60_000}),
    );
    wait("POST", format!("/v1/semaphores/{name}/acquire"), json!({"limit": 1, "wait_ms": 60_000}));
    wait("POST", format!("{path}/campaign"), json!({"candidate": "b", "wait_ms": 60_000}));
    wait("GET", format!("{path}?after={revision}&wait_ms=60000"), Value::Null);
    let mut observer = api.stream("GET", &format!("{path}/observe"), Value::Null).await.ok().unwrap();
    observer.expect("leader").await;
    eventually("all wait", || async { api.metric("quorate_waiters").await == 23.0 }).await;

    let told = Instant::now();
    one.terminate();
    for waiter in waiting {
        let answer = waiter.await.unwrap();
        let problem = answer.problem(503, "shutting_down");
        assert!(number(&problem, "retry_after_ms") > 0);
        assert!(answer.header("retry-after").is_some());
    }
    observer.end().await;
    let status = one.ended().await;
    assert_eq!(status.code(), Some(0), "{status}");
    println!("a server with 24 waiters and a stream ended {:?} after SIGTERM", told.elapsed());
    assert!(told.elapsed() < Duration::from_secs(20));
    assert!(!one.log().contains("panic"), "{}", one.log());
    let log = one.log();
    let (_, draining) = log.split_once("draining").expect("it says so");
    assert!(!draining.contains("WARN"), "those who waited do not fill the log: {draining}");
    // Those who waited left nothing; those who hold still do.
    assert_eq!(two.api().release(&name, &lease).await.ok(), json!({"released": true}));
    two.api().acquire(&name, json!({})).await.ok();
    let body = json!({"lease_id": secret(&permit)});
    assert_eq!(
        two.api().post(&format!("/v1/semaphores/{name}/release"), body).await.ok(),
        json!({"released": true})
    );
    let body = json!({"lease_id": secret(&leader)});
    assert_eq!(two.api().post(&format!("{path}/resign"), body).await.ok(), json!({"released": true}));
}

#[tokio::test]
async fn a_server_with_nothing_to_do_ends_at_once_on_sigterm_and_sigint() {
    for name in [nix::sys::signal::Signal::SIGTERM, nix::sys::signal::Signal::SIGINT] {
        let cluster = Cluster::new(1);
        let mut server = cluster.server(&[]).await;
        let api = server.api();
        let lease = api.acquire("kept", json!({})).await.ok();
        crate::support::redis::signal(server.pid(), name);
        assert_eq!(server.ended().await.code(), Some(0));
        // A lease that is bound to nothing outlives the server.
        let next = cluster.server(&[]).await;
        assert_eq!(next.api().release("kept", &lease).await.ok(), json!({"released": true}));
    }
}

/// Requests keep coming while the server ends: each is answered properly or not at all, and
/// nothing is held that nobody was told of.
#[tokio::test]
async fn a_server_that_ends_under_load_answers_properly_or_not_at_all() {
    let cluster = Cluster::new(3);
    let (mut one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let name = unique("load");
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..16 {
        let (api, name) = (one.api(), format!("{name}:{client}"));
        clients.spawn(async move {
            let mut answered = 0;
            let mut told = false;
            loop {
                let body = json!({"ttl_ms": 300_000, "wait_ms": if client % 2 == 0 { 0 } else { 5_000 }});
                let Ok(answer) = api.try_post(&format!("/v1/locks/{name}/acquire"), &body).await else {
                    break;
                };
                answered += 1;
                if answer.status == 503 {
                    answer.problem(503, "shutting_down");
                    told = true;
                    continue;
                }
                let lease = answer.ok();
                let body = json!({"lease_id": secret(&lease)});
                match api.try_post(&format!("/v1/locks/{name}/release"), &body).await {
                    Ok(released) if released.status == 200 => {}
                    // The release was refused or cut off: it is still ours, and we know it.
                    _ => return (answered, told, Some((name, lease))),
                }
            }
            (answered, told, None)
        });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    one.terminate();
    assert_eq!(one.ended().await.code(), Some(0));
    let results = clients.join_all().await;
    let answered: usize = results.iter().map(|(answered, ..)| answered).sum();
    println!("{answered} acquires answered by a server that ended under load");
    for (name, lease) in results.into_iter().filter_map(|(.., held)| held) {
        two.api().release(&name, &lease).await.ok();
    }
    eventually("nothing is left", || async { cluster.leases(&name).is_empty() }).await;
}

/// A node that is slow grants what the others have refused by then: the server must not end before
/// it has heard of it and taken it back.
#[tokio::test]
async fn a_vote_that_comes_after_the_answer_is_undone_before_the_server_ends() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let (mut one, two) = (Server::start(&options), cluster.server(&[]).await);
    one.all_voting().await;
    two.api().acquire("late", json!({"ttl_ms": 300_000})).await.ok();
    let slow = &cluster.nodes[2];
    eventually("all nodes know", || async { cluster.leases("late").len() == 3 }).await;
    let key = &slow.leases("late")[0];
    // Once more somebody's was there, but is not any more: what comes is not the first that it knows.
    let freed = format!("2 {:013} {:016} {:013} {:032}\n", 0, 1, 1, 0);
    slow.command::<()>(&["SET", key, &freed]);
    proxies[2].delay(Duration::from_millis(20));
    // With a request id all nodes are asked at once.
    let asked = json!({"ttl_ms": 300_000, "request_id": "late-request"});
    one.api().acquire("late", asked).await.problem(409, "lock_held");
    one.terminate();
    assert_eq!(one.ended().await.code(), Some(0));
    let record: Option<String> = slow.command(&["GET", key]);
    assert_ne!(record, Some(freed), "it ended before the node had even granted it");
    assert!(slow.leases("late").is_empty(), "an orphan");
}

#[tokio::test]
async fn a_client_that_never_reads_does_not_keep_a_server_from_ending() {
    let cluster = Cluster::new(1);
    let mut server = cluster.server(&["--shutdown-timeout", "3s"]).await;
    let api = server.api();
    let mut idle = Vec::new();
    for i in 0..20 {
        let mut connection = api.connect().await.unwrap();
        match i % 3 {
            // Nothing, half a head, half a body.
            0 => {}
            1 => connection.send(b"POST /v1/locks/x/acquire HTTP/1.1\r\nhost: a\r\n").await.unwrap(),
            _ => {
                let head = "POST /v1/locks/x/acquire HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{";
                connection.send(head.as_bytes()).await.unwrap();
            }
        }
        idle.push(connection);
    }
    let mut stream = api.stream("POST", "/v1/locks/held/hold", json!({})).await.ok().unwrap();
    stream.expect("acquired").await;
    let told = Instant::now();
    server.terminate();
    assert_eq!(server.ended().await.code(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(15), "{:?}", told.elapsed());
    eventually("the lease is given back", || async { cluster.leases("held").is_empty() }).await;
}
