//! `hold`: a lease bound to a connection, told event by event.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::http2::post_unread;
use crate::support::redis::signal;
use crate::support::{Api, Cluster, EventStream, Shared, eventually, number, secret, token, unique};

async fn hold(api: &Api, name: &str, body: Value) -> EventStream {
    let path = format!("/v1/locks/{name}/hold");
    api.stream("POST", &path, body).await.unwrap_or_else(|answer| panic!("no stream: {}", answer.text()))
}

#[tokio::test]
async fn a_held_lock_is_extended_at_a_third_of_its_ttl_and_excludes_others() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let name = unique("held");
        let mut stream = hold(&shared.api(), &name, json!({"ttl_ms": 900, "owner": "streamer"})).await;
        let lease = stream.expect("acquired").await;
        assert_eq!(lease["name"], name);
        assert_eq!(number(&lease, "ttl_ms"), 900);
        assert!(secret(&lease).len() >= 32);
        let since = Instant::now();
        for _ in 0..6 {
            let extended = stream.expect("extended").await;
            assert_eq!(secret(&extended), secret(&lease));
            assert_eq!(token(&extended), token(&lease));
            assert!(number(&extended, "validity_ms") > 0);
            let problem = shared.other_api().acquire(&name, json!({})).await.problem(409, "lock_held");
            assert_eq!(problem["holder"]["owner"], "streamer");
        }
        assert!(since.elapsed() > Duration::from_millis(900), "held for longer than its ttl");
        drop(stream);
        eventually("it is free", || async {
            shared.other_api().acquire(&name, json!({})).await.status == 200
        })
        .await;
    }
}

#[tokio::test]
async fn a_hold_that_does_not_wait_is_refused_plainly() {
    let api = Shared::nodes(3).api();
    let name = unique("refused");
    api.acquire(&name, json!({"owner": "me"})).await.ok();
    let path = format!("/v1/locks/{name}/hold");
    let Err(answer) = api.stream("POST", &path, json!({})).await else { panic!("a stream") };
    assert_eq!(answer.problem(409, "lock_held")["holder"]["owner"], "me");
    let Err(answer) = api.stream("POST", &path, json!({"ttl": 5})).await else { panic!("a stream") };
    answer.problem(400, "invalid_request");
}

#[tokio::test]
async fn a_hold_that_waits_is_told_its_place_and_then_served() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    let name = unique("queued");
    let lease = shared.other_api().acquire(&name, json!({})).await.ok();
    let mut first = hold(&api, &name, json!({"wait_ms": 60_000})).await;
    assert_eq!(first.expect("waiting").await["position"], 1);
    eventually("it waits", || async { number(&api.lock(&name).await, "waiters") == 1 }).await;
    let mut second = hold(&api, &name, json!({"wait_ms": 60_000})).await;
    assert_eq!(second.expect("waiting").await["position"], 2);
    shared.other_api().release(&name, &lease).await.ok();
    let acquired = first.expect("acquired").await;
    assert!(token(&acquired) > token(&lease));
    drop(first);
    let next = second.expect("acquired").await;
    assert!(token(&next) > token(&acquired));
}

#[tokio::test]
async fn a_hold_whose_time_is_up_is_denied_and_ends() {
    let api = Shared::nodes(3).api();
    let name = unique("denied");
    api.acquire(&name, json!({"owner": "me"})).await.ok();
    let mut stream = hold(&api, &name, json!({"wait_ms": 300})).await;
    stream.expect("waiting").await;
    let problem = stream.expect("denied").await;
    assert_eq!(problem["code"], "lock_held");
    assert_eq!(problem["status"], 409);
    assert_eq!(problem["holder"]["owner"], "me");
    stream.end().await;
}

#[tokio::test]
async fn a_lease_that_is_taken_away_is_lost_at_once() {
    let shared = Shared::nodes(3);
    let name = unique("forced");
    let mut stream = hold(&shared.api(), &name, json!({"ttl_ms": 1_500})).await;
    let lease = stream.expect("acquired").await;
    shared.other_api().delete(&format!("/v1/locks/{name}")).await.ok();
    let next = shared.other_api().acquire(&name, json!({})).await.ok();
    let problem = loop {
        let event = stream.next().await;
        match event.name.as_str() {
            "extended" => {}
            "lost" => break event.data,
            other => panic!("{other}: {}", event.data),
        }
    };
    assert_eq!(problem["code"], "lease_lost");
    stream.end().await;
    assert!(token(&next) > token(&lease));
    assert_eq!(token(&shared.api().lock(&name).await), token(&next), "the new holder is undisturbed");
}

#[tokio::test]
async fn a_lease_is_lost_when_its_validity_ends_while_the_nodes_are_gone() {
    for frozen in [true, false] {
        let mut cluster = Cluster::new(3);
        let server = cluster.server(&[]).await;
        let api = server.api();
        let mut stream = hold(&api, &unique("orphan"), json!({"ttl_ms": 3_000})).await;
        let lease = stream.expect("acquired").await;
        let valid_until = Instant::now() + Duration::from_millis(number(&lease, "validity_ms"));
        for node in &mut cluster.nodes[..2] {
            if frozen { node.stop() } else { node.kill() }
        }
        let problem = stream.expect("lost").await;
        let late = Instant::now().saturating_duration_since(valid_until);
        assert_eq!(problem["code"], "lease_lost");
        println!("a lease whose nodes are gone was called lost {late:?} after its validity had ended");
        // A holder must stop by then: the server may be late only by what the machine is busy.
        assert!(late < Duration::from_millis(1_500), "told {late:?} too late");
        assert!(valid_until.elapsed() < Duration::from_secs(5));
        stream.end().await;
    }
}

#[tokio::test]
async fn a_short_outage_does_not_end_a_hold() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let name = unique("outage");
    let mut stream = hold(&server.api(), &name, json!({"ttl_ms": 9_000})).await;
    let lease = stream.expect("acquired").await;
    cluster.nodes[0].stop();
    cluster.nodes[1].stop();
    tokio::time::sleep(Duration::from_millis(4_000)).await;
    cluster.nodes[0].resume();
    cluster.nodes[1].resume();
    let extended = stream.expect("extended").await;
    assert_eq!(token(&extended), token(&lease));
}

#[tokio::test]
async fn leaving_a_stream_releases_its_lease_at_once() {
    let shared = Shared::nodes(3);
    let name = unique("left");
    for _ in 0..20 {
        let mut stream = hold(&shared.api(), &name, json!({"ttl_ms": 300_000})).await;
        stream.expect("acquired").await;
        let waiting = tokio::spawn({
            let (api, name) = (shared.other_api(), name.clone());
            async move { api.acquire(&name, json!({"wait_ms": 60_000})).await.ok() }
        });
        drop(stream);
        let next = waiting.await.unwrap();
        shared.other_api().release(&name, &next).await.ok();
    }
}

#[tokio::test]
async fn a_server_that_drains_releases_what_its_streams_hold_and_says_so() {
    let cluster = Cluster::new(3);
    let (mut one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let name = unique("drained");
    let mut streams = Vec::new();
    for i in 0..20 {
        let mut stream = hold(&one.api(), &format!("{name}:{i}"), json!({"ttl_ms": 300_000})).await;
        stream.expect("acquired").await;
        streams.push(stream);
    }
    let mut waiting = hold(&one.api(), &format!("{name}:0"), json!({"wait_ms": 60_000})).await;
    waiting.expect("waiting").await;
    one.terminate();
    for mut stream in streams {
        let released = stream.expect("released").await;
        assert!(released["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
        stream.end().await;
    }
    assert_eq!(waiting.expect("denied").await["code"], "shutting_down");
    waiting.end().await;
    for i in 0..20 {
        two.api().acquire(&format!("{name}:{i}"), json!({})).await.ok();
    }
    assert!(one.ended().await.success());
}

/// What is held in all three ways: its kind, and what a hold of it asks for besides.
fn kinds() -> [(&'static str, Value); 3] {
    [("locks", json!({})), ("semaphores", json!({"limit": 1})), ("elections", json!({"candidate": "c"}))]
}

/// `body` with this ttl and this request id.
fn retried(mut body: Value, ttl_ms: u64, id: &str) -> Value {
    body["ttl_ms"] = json!(ttl_ms);
    body["request_id"] = json!(id);
    body
}

#[tokio::test]
async fn a_server_that_drains_leaves_a_lease_to_the_retry_that_has_taken_it_over() {
    let cluster = Cluster::new(3);
    let (mut one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let mut taken_over = Vec::new();
    for (kind, body) in kinds() {
        let path = format!("/v1/{kind}/over");
        let body = retried(body, 300_000, &unique("request-id"));
        let hold = format!("{path}/hold");
        let mut first = one.api().stream("POST", &hold, body.clone()).await.ok().unwrap();
        let lease = first.expect("acquired").await;
        let mut second = two.api().stream("POST", &hold, body).await.ok().unwrap();
        assert_eq!(secret(&second.expect("acquired").await), secret(&lease));
        taken_over.push((path, lease, first, second));
    }
    one.terminate();
    for (_, _, first, _) in &mut taken_over {
        first.expect("released").await;
    }
    // It ends when all that it had to take back is taken back.
    assert!(one.ended().await.success());
    for (path, lease, _, _second) in taken_over {
        let body = json!({"lease_id": secret(&lease)});
        two.api().post(&format!("{path}/extend"), body).await.ok();
    }
}

/// The request of an attempt that was given up may be read long after its retry was answered.
#[tokio::test]
async fn a_hold_that_comes_after_its_own_retry_leaves_it_the_lease() {
    let cluster = Cluster::new(3);
    let (mut late, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let mut leases = Vec::new();
    for wait_ms in [0, 60_000] {
        for (kind, body) in kinds() {
            for reads_on in [false, true] {
                let path = format!("/v1/{kind}/late:{wait_ms}:{reads_on}");
                let mut body = retried(body.clone(), 300_000, &unique("request-id"));
                body["wait_ms"] = json!(wait_ms);
                let mut attempt = late.api().connect().await.unwrap();
                signal(late.pid(), Signal::SIGSTOP);
                let headers = [("content-type", "application/json")];
                let text = body.to_string();
                let request = late.api().request("POST", &format!("{path}/hold"), &headers, text.as_bytes());
                attempt.send(&request).await.unwrap();
                let verb = if kind == "elections" { "campaign" } else { "acquire" };
                let lease = two.api().post(&format!("{path}/{verb}"), body).await.ok();
                if reads_on {
                    signal(late.pid(), Signal::SIGCONT);
                    let mut seen = String::new();
                    while !seen.contains("event: acquired") {
                        seen += &attempt.piece().await;
                    }
                    drop(attempt);
                } else {
                    drop(attempt);
                    signal(late.pid(), Signal::SIGCONT);
                }
                leases.push((path, lease));
            }
        }
    }
    eventually("all are missed", || async { late.api().metric("quorate_streams").await == 0.0 }).await;
    late.terminate();
    assert!(late.ended().await.success());
    for (path, lease) in leases {
        let answer = two.api().post(&format!("{path}/extend"), json!({"lease_id": secret(&lease)})).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
}

#[tokio::test]
async fn what_two_attempts_share_stays_when_both_leave_and_a_release_gives_it_back() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    for (kind, body) in kinds() {
        for first_leaves_first in [true, false] {
            let path = format!("/v1/{kind}/both:{first_leaves_first}");
            let retried = retried(body.clone(), 300_000, &unique("request-id"));
            let mut streams = Vec::new();
            for server in [&one, &two] {
                let hold = format!("{path}/hold");
                let mut stream = server.api().stream("POST", &hold, retried.clone()).await.ok().unwrap();
                let lease = stream.expect("acquired").await;
                streams.push((server, stream, lease));
            }
            if !first_leaves_first {
                streams.reverse();
            }
            let shared = secret(&streams[0].2).to_owned();
            for (server, stream, lease) in streams {
                let held = json!({"lease_id": secret(&lease)});
                two.api().post(&format!("{path}/extend"), held).await.ok();
                drop(stream);
                eventually("it has left", || async { server.api().metric("quorate_streams").await == 0.0 })
                    .await;
            }
            let (verb, back) =
                if kind == "elections" { ("campaign", "resign") } else { ("acquire", "release") };
            let refused = two.api().post(&format!("{path}/{verb}"), body.clone()).await;
            assert_eq!(refused.status, 409, "it stays: {}", refused.text());
            two.api().post(&format!("{path}/{back}"), json!({"lease_id": shared})).await.ok();
            two.api().post(&format!("{path}/{verb}"), body.clone()).await.ok();
        }
    }
}

#[tokio::test]
async fn a_server_that_ends_leaves_the_lease_to_whoever_took_it_by_the_same_request() {
    let cluster = Cluster::new(3);
    let (mut late, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let mut body = retried(json!({}), 300_000, &unique("request-id"));
    let lease = two.api().post("/v1/locks/a/acquire", body.clone()).await.ok();
    body["wait_ms"] = json!(0);
    let mut attempt = late.api().connect().await.unwrap();
    let headers = [("content-type", "application/json")];
    let request = late.api().request("POST", "/v1/locks/a/hold", &headers, body.to_string().as_bytes());
    attempt.send(&request).await.unwrap();
    let mut seen = String::new();
    while !seen.contains("event: acquired") {
        seen += &attempt.piece().await;
    }
    late.terminate();
    assert!(late.ended().await.success());
    let answer = two.api().post("/v1/locks/a/extend", json!({"lease_id": secret(&lease)})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn semaphores_and_elections_are_held_like_locks() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    let name = unique("others");
    let path = format!("/v1/semaphores/{name}/hold");
    let body = json!({"limit": 3, "permits": 2, "ttl_ms": 900, "owner": "me"});
    let mut permits = api.stream("POST", &path, body).await.ok().unwrap();
    let lease = permits.expect("acquired").await;
    assert_eq!(lease["slots"].as_array().unwrap().len(), 2);
    assert_eq!(lease["permits"], 2);
    let extended = permits.expect("extended").await;
    assert_eq!(extended["slots"], lease["slots"]);
    let Err(full) = api.stream("POST", &path, json!({"limit": 3, "permits": 2})).await else {
        panic!("a stream")
    };
    full.problem(409, "semaphore_full");

    let path = format!("/v1/elections/{name}/hold");
    let mut leader =
        api.stream("POST", &path, json!({"candidate": "a", "value": "v", "ttl_ms": 900})).await.ok().unwrap();
    let leadership = leader.expect("acquired").await;
    assert_eq!(leadership["candidate"], "a");
    assert_eq!(leadership["value"], "v");
    let extended = leader.expect("extended").await;
    assert_eq!(extended["term"], leadership["term"]);
    let mut heir =
        api.stream("POST", &path, json!({"candidate": "b", "wait_ms": 60_000})).await.ok().unwrap();
    heir.expect("waiting").await;
    drop((permits, leader));
    let next = heir.expect("acquired").await;
    assert_eq!(next["candidate"], "b");
    assert!(number(&next, "term") > number(&leadership, "term"));
    eventually("the permits are back", || async {
        let seen = api.get(&format!("/v1/semaphores/{name}")).await.ok();
        seen["in_use"] == 0
    })
    .await;
}

/// Returns with the first heartbeat of a stream that holds something else.
async fn heartbeat(api: &Api) {
    let path = format!("/v1/locks/{}/hold", unique("silent"));
    let mut connection = api.connect().await.unwrap();
    let headers = [("content-type", "application/json")];
    connection.send(&api.request("POST", &path, &headers, br#"{"ttl_ms":300000}"#)).await.unwrap();
    let mut seen = String::new();
    // An event begins with id, event or data; only a comment begins with a colon.
    let comment = async {
        while !seen.contains("\n:") {
            seen += &connection.piece().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), comment).await.expect("no heartbeat");
}

#[tokio::test]
async fn a_client_that_stops_reading_in_a_queue_does_not_keep_those_behind_it() {
    let shared = Shared::nodes(3);
    let api = shared.api();
    for kind in ["locks", "semaphores"] {
        let path = format!("/v1/{kind}/{}", unique("unread"));
        let body = |mut body: Value| {
            if kind == "semaphores" {
                body["limit"] = json!(1);
            }
            body
        };
        let asked = body(json!({"ttl_ms": 300_000}));
        let holder = shared.other_api().post(&format!("{path}/acquire"), asked).await.ok();
        // It takes the first event, and not the heartbeat.
        let window = b"id: 1\nevent: waiting\ndata: {\"position\":1}\n\n".len() as u32;
        let asked = body(json!({"ttl_ms": 1_000, "wait_ms": 60_000})).to_string();
        let _unread = post_unread(api.address(), &format!("{path}/hold"), &asked, window).await.unwrap();
        let waiters = || async { number(&api.get(&path).await.ok(), "waiters") };
        eventually("it waits", || async { waiters().await == 1 }).await;
        heartbeat(&api).await;
        let next = tokio::spawn({
            let (api, path, asked) = (api.clone(), path.clone(), body(json!({"wait_ms": 40_000})));
            async move { api.post(&format!("{path}/acquire"), asked).await }
        });
        eventually("another waits behind it", || async { waiters().await == 2 }).await;
        let body = json!({"lease_id": secret(&holder)});
        shared.other_api().post(&format!("{path}/release"), body).await.ok();
        next.await.unwrap().ok();
    }
}

#[tokio::test]
async fn a_server_that_drains_gives_back_what_is_held_by_a_client_that_does_not_read() {
    let cluster = Cluster::new(3);
    let mut server = cluster.server(&["--shutdown-timeout", "5s"]).await;
    let mut clients = Vec::new();
    for (name, wait_ms) in [("unread:now", 0), ("unread:later", 60_000)] {
        let path = format!("/v1/locks/{name}/hold");
        let body = json!({"ttl_ms": 300_000, "wait_ms": wait_ms}).to_string();
        clients.push(post_unread(server.api().address(), &path, &body, 0).await.unwrap());
        eventually("it holds", || async { !cluster.leases(name).is_empty() }).await;
    }
    server.terminate();
    assert!(server.ended().await.success());
    assert!(cluster.leases("unread").is_empty());
}

#[tokio::test]
async fn a_silent_stream_has_a_heartbeat() {
    let api = Shared::nodes(3).api();
    let since = Instant::now();
    heartbeat(&api).await;
    assert!(since.elapsed() > Duration::from_secs(5), "a heartbeat after {:?}", since.elapsed());
}

#[tokio::test]
async fn a_thousand_streams_are_held_by_one_server() {
    crate::support::allow_open_files(4_000);
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let memory = || crate::support::resident_bytes(server.pid());
    let threads = || std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().count();
    let stem = unique("thousand");
    let mut warm = Vec::new();
    for i in 0..50 {
        warm.push(hold(&api, &format!("{stem}:warm:{i}"), json!({"ttl_ms": 120_000})).await);
    }
    let (before, threads_before) = (memory(), threads());
    let mut streams = Vec::new();
    for i in 0..1_000 {
        let mut stream = hold(&api, &format!("{stem}:{i}"), json!({"ttl_ms": 120_000})).await;
        stream.expect("acquired").await;
        streams.push(stream);
    }
    assert_eq!(api.metric("quorate_streams").await, 1_050.0);
    let per_stream = memory().saturating_sub(before) / 1_000;
    println!("1000 held streams: {per_stream} bytes of memory each (debug build), {} threads", threads());
    assert!(per_stream < 100_000, "{per_stream} bytes each");
    assert!(threads() <= threads_before + 2);
    drop((streams, warm));
    eventually("all are released", || async { cluster.leases(&stem).is_empty() }).await;
    eventually("no stream is open", || async { api.metric("quorate_streams").await == 0.0 }).await;
}
