//! `request_id` and `Idempotency-Key`: a retry is safe.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::{Cluster, Server, Shared, eventually, number, secret, token, unique};

#[tokio::test]
async fn a_retry_gets_the_same_lease_at_the_same_and_at_another_server() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let (name, id) = (unique("retry"), unique("request-id"));
        let body = json!({"request_id": id, "owner": "me", "ttl_ms": 60_000});
        let first = shared.api().acquire(&name, body.clone()).await.ok();
        for api in [shared.api(), shared.other_api(), shared.api()] {
            let again = api.acquire(&name, body.clone()).await.ok();
            assert_eq!(secret(&again), secret(&first));
            assert_eq!(token(&again), token(&first));
            assert_eq!(again["owner"], "me");
        }
        shared.api().acquire(&name, json!({})).await.problem(409, "lock_held");
        let other = json!({"request_id": unique("another-id")});
        shared.api().acquire(&name, other).await.problem(409, "lock_held");
        assert_eq!(shared.other_api().release(&name, &first).await.ok(), json!({"released": true}));
        let next = shared.api().acquire(&name, body).await.ok();
        assert_ne!(secret(&next), secret(&first), "it is not held any more: a new lease");
        assert!(token(&next) > token(&first));
    }
}

#[tokio::test]
async fn a_retry_sets_the_time_anew() {
    let api = Shared::nodes(3).api();
    let (name, id) = (unique("refreshed"), unique("request-id"));
    api.acquire(&name, json!({"request_id": id, "ttl_ms": 10_000})).await.ok();
    let again = api.acquire(&name, json!({"request_id": id, "ttl_ms": 50_000})).await.ok();
    assert!(number(&again, "validity_ms") > 30_000);
}

#[tokio::test]
async fn the_idempotency_key_is_a_request_id() {
    let shared = Shared::nodes(3);
    let (name, id) = (unique("header"), unique("request-id"));
    let keyed = shared.api().with_header("idempotency-key", &id);
    let first = keyed.acquire(&name, json!({})).await.ok();
    assert_eq!(secret(&keyed.acquire(&name, json!({})).await.ok()), secret(&first));
    let in_body = shared.other_api().acquire(&name, json!({"request_id": id})).await.ok();
    assert_eq!(secret(&in_body), secret(&first));
    let bad = shared.api().with_header("idempotency-key", "short");
    bad.acquire(&name, json!({})).await.problem(400, "invalid_request");
}

#[tokio::test]
async fn what_an_earlier_attempt_left_at_a_minority_is_taken_back() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let body = json!({"request_id": "minority", "ttl_ms": 300_000});
    let first = api.acquire("remains", body.clone()).await.ok();
    eventually("all nodes have it", async || cluster.leases("remains").len() == 3).await;
    for node in &cluster.nodes[..2] {
        node.command::<()>(&["DEL", "quorate:lock:remains"]);
    }
    let second = api.acquire("remains", body).await.ok();
    assert_ne!(secret(&second), secret(&first));
    // Before long it has a copy of the second.
    eventually("the third node has given it back", async || {
        let record: Option<String> = cluster.nodes[2].command(&["GET", "quorate:lock:remains"]);
        let record = record.unwrap_or_default();
        !record.lines().skip(1).any(|line| secret(&first).starts_with(&line[..32]))
    })
    .await;
    assert_eq!(token(&api.lock("remains").await), token(&second));
}

#[tokio::test]
async fn one_request_id_for_two_names_gives_two_leases() {
    let api = Shared::nodes(3).api();
    let id = unique("request-id");
    let one = api.acquire(&unique("one"), json!({"request_id": id})).await.ok();
    let two = api.acquire(&unique("two"), json!({"request_id": id})).await.ok();
    assert_ne!(secret(&one), secret(&two));
}

#[tokio::test]
async fn retries_that_overlap_at_two_servers_end_with_one_lease() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        for _ in 0..20 {
            let (name, id) = (unique("overlap"), unique("request-id"));
            let ask = |api: crate::support::Api| {
                let (name, body) = (name.clone(), json!({"request_id": id}));
                async move { api.acquire(&name, body).await }
            };
            let (one, two) = tokio::join!(ask(shared.api()), ask(shared.other_api()));
            let granted: Vec<Value> =
                [one, two].iter().filter(|answer| answer.status == 200).map(|answer| answer.ok()).collect();
            assert!(!granted.is_empty(), "neither was granted");
            // What the nodes hold in the end is what a third retry gets.
            let held = ask(shared.api()).await.ok();
            let matching = granted.iter().filter(|lease| secret(lease) == secret(&held)).count();
            assert_eq!(matching, granted.len(), "a lease was granted and then taken away by its own retry");
        }
    }
}

#[tokio::test]
async fn a_retry_whose_lease_remains_at_a_minority_starts_anew() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let (name, id) = (unique("minority"), unique("request-id"));
    let first = api.acquire(&name, json!({"request_id": id})).await.ok();
    crate::support::eventually("all nodes have it", || async { cluster.leases(&name).len() == 3 }).await;
    for node in &cluster.nodes[1..] {
        node.command::<()>(&["DEL", &node.leases(&name)[0]]);
    }
    let second = api.acquire(&name, json!({"request_id": id})).await.ok();
    assert_ne!(secret(&second), secret(&first));
    assert!(token(&second) > token(&first));
    api.extend(&name, &first).await.problem(409, "lease_lost");
    api.extend(&name, &second).await.ok();
}

/// A vote that comes late may name the lease of a retry that was granted after this one was given up.
#[tokio::test]
async fn what_a_late_vote_names_is_not_taken_for_the_remains_of_an_earlier_attempt() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let mut one = Server::start(&options.with(&["--node-timeout", "20s"]));
    one.all_voting().await;
    let two = cluster.server(&[]).await;
    let body = json!({"request_id": "late-vote", "ttl_ms": 300_000});
    proxies[2].delay(Duration::from_secs(2));
    let mut attempt = one.api().stream("POST", "/v1/locks/late/hold", body.clone()).await.ok().unwrap();
    attempt.expect("acquired").await;
    drop(attempt);
    eventually("it is given back", || async { cluster.leases("late").is_empty() }).await;
    let retry = two.api().acquire("late", body).await.ok();
    one.terminate();
    // It ends when it has heard of the last vote.
    assert!(one.ended().await.success());
    two.api().extend("late", &retry).await.ok();
}

/// The retry goes to a server that cannot see one of the nodes that hold the lease. For all that
/// server knows a quorum may hold it, so it must not take it away (docs/protocol.md §1.9).
#[tokio::test]
async fn a_retry_never_takes_away_a_lease_that_a_quorum_may_hold() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let (others, other_options) = cluster.proxies();
    let one = Server::start(&options);
    let two = Server::start(&other_options);
    one.all_voting().await;
    two.all_voting().await;
    // The first reaches nodes 1 and 2, the second nodes 1 and 3.
    proxies[2].cut();
    others[1].cut();
    let (name, id) = (unique("partial"), unique("request-id"));
    let body = json!({"request_id": id, "ttl_ms": 60_000});
    let first = one.api().acquire(&name, body.clone()).await.ok();
    let again = two.api().acquire(&name, body).await;
    if again.status == 200 {
        assert_eq!(secret(&again.json()), secret(&first), "another lease while the first one is held");
    }
    one.api().extend(&name, &first).await.ok();
}

/// The retry finds the first attempt at one node of three, where it cannot be granted any more; but by the
/// time it takes that away, another node has become free for the first attempt, which was on its way.
#[tokio::test]
async fn a_retry_leaves_a_lease_alone_that_gets_its_quorum_after_the_retry_has_looked() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let (others, other_options) = cluster.proxies();
    let patient = ["--node-timeout", "20s"];
    let (one, two) = (Server::start(&options.with(&patient)), Server::start(&other_options.with(&patient)));
    one.all_voting().await;
    two.all_voting().await;
    let (name, id) = (unique("on-its-way"), unique("request-id"));
    // What somebody else has left at the second node.
    one.api().acquire(&name, json!({"ttl_ms": 300_000})).await.ok();
    eventually("all nodes have it", async || cluster.leases(&name).len() == 3).await;
    let key = cluster.nodes[1].leases(&name).remove(0);
    for node in [&cluster.nodes[0], &cluster.nodes[2]] {
        node.command::<()>(&["DEL", &key]);
    }
    let ask = |api: crate::support::Api| {
        let (name, body) = (name.clone(), json!({"request_id": id, "ttl_ms": 300_000}));
        tokio::spawn(async move { api.acquire(&name, body).await })
    };
    proxies[1..].iter().for_each(|proxy| proxy.delay(Duration::from_secs(2)));
    others.iter().for_each(|proxy| proxy.delay(Duration::from_secs(1)));
    let first = ask(one.api());
    eventually("the first node has it", async || !cluster.nodes[0].leases(&name).is_empty()).await;
    let second = ask(two.api());
    eventually("the retry has looked", async || !cluster.nodes[2].leases(&name).is_empty()).await;
    cluster.nodes[1].command::<()>(&["DEL", &key]);
    let (first, second) = (first.await.unwrap().ok(), second.await.unwrap().ok());
    assert_eq!((secret(&first), token(&first)), (secret(&second), token(&second)));
    others.iter().for_each(crate::support::proxy::Proxy::heal);
    two.api().extend(&name, &first).await.ok();
}

/// Two nodes have granted the first attempt with different tokens, and the third, which decides which of the
/// two is reported, is still to hear of it when the retry looks.
#[tokio::test]
async fn a_retry_raises_no_token_while_a_node_may_decide_for_another() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let (one, two) = (Server::start(&options.with(&["--node-timeout", "5s"])), cluster.server(&[]).await);
    one.all_voting().await;
    let (name, id) = (unique("undecided"), unique("request-id"));
    two.api().acquire(&name, json!({"ttl_ms": 300_000})).await.ok();
    eventually("all nodes have it", async || cluster.leases(&name).len() == 3).await;
    let key = cluster.nodes[2].leases(&name).remove(0);
    cluster.nodes[0].command::<()>(&["DEL", &key]);
    let later = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(4);
    let fence = format!("{}{:016}", "0".repeat(26), later.as_micros());
    cluster.nodes[1].command::<()>(&["SET", &key, &fence]);

    proxies[1].mute_answers();
    proxies[2].delay(Duration::from_secs(2));
    let body = json!({"request_id": id, "ttl_ms": 300_000});
    let first = {
        let (api, name, body) = (one.api(), name.clone(), body.clone());
        tokio::spawn(async move { api.acquire(&name, body).await })
    };
    let have_it = async || cluster.nodes[..2].iter().all(|node| !node.leases(&name).is_empty());
    eventually("two nodes have it", have_it).await;
    let second = two.api().acquire(&name, body).await.ok();
    cluster.nodes[2].command::<()>(&["DEL", &key]);
    let first = first.await.unwrap();
    if first.status == 200 {
        assert_eq!((secret(&first.json()), token(&first.json())), (secret(&second), token(&second)));
    }
    two.api().extend(&name, &second).await.ok();
}

/// The client's connection breaks at a random moment and it asks again, at once, elsewhere. The
/// first server undoes what nobody was told of; that must not hit the lease that the second one
/// has just handed out.
#[tokio::test]
async fn a_retry_after_a_broken_connection_keeps_the_lease_that_it_gets() {
    use rand::Rng;
    let shared = Shared::nodes(3);
    let (one, two) = (shared.api(), shared.other_api());
    let (mut kept, mut lost) = (0, Vec::new());
    for round in 0..600 {
        let (name, id) = (unique("broken"), unique("request-id"));
        let path = format!("/v1/locks/{name}/acquire");
        let body = json!({"request_id": id, "ttl_ms": 60_000});
        let first =
            one.request("POST", &path, &[("content-type", "application/json")], body.to_string().as_bytes());
        let mut connection = one.connect().await.unwrap();
        connection.send(&first).await.unwrap();
        let pause = rand::rng().random_range(0..400);
        let since = std::time::Instant::now();
        while since.elapsed() < std::time::Duration::from_micros(pause) {
            tokio::task::yield_now().await;
        }
        drop(connection);
        let again = if round % 2 == 0 { &one } else { &two };
        let lease = again.acquire(&name, body).await.ok();
        // Whatever the first server still has to undo has arrived by now.
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        let extended = two.extend(&name, &lease).await;
        if extended.status == 200 {
            kept += 1;
        } else {
            lost.push(format!("round {round}, after {pause} µs: {}", extended.code()));
        }
    }
    assert!(lost.is_empty(), "{} of {} leases were taken away: {lost:?}", lost.len(), kept + lost.len());
}

/// The same with the worst timing: the first server is far from the nodes, so that its undoing
/// arrives when the retry, which found the lease at a quorum, has been answered.
#[tokio::test]
async fn a_late_undo_does_not_take_away_the_lease_that_a_retry_was_given() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let far = Server::start(&options);
    far.all_voting().await;
    let near = cluster.server(&[]).await;
    proxies.iter().for_each(|proxy| proxy.delay(std::time::Duration::from_millis(60)));
    for _ in 0..5 {
        let (name, id) = (unique("late-undo"), unique("request-id"));
        let body = json!({"request_id": id, "ttl_ms": 60_000});
        let leaving = tokio::spawn({
            let (api, name, body) = (far.api(), name.clone(), body.clone());
            async move { api.acquire(&name, body).await }
        });
        crate::support::eventually("the nodes have it", || async { cluster.leases(&name).len() == 3 }).await;
        leaving.abort();
        let _ = leaving.await;
        let lease = near.api().acquire(&name, body).await.ok();
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        near.api().acquire(&name, json!({})).await.problem(409, "lock_held");
        assert_eq!(token(&near.api().extend(&name, &lease).await.ok()), token(&lease));
    }
}

/// As when a client lost its stream and opens another before the server has noticed.
#[tokio::test]
async fn a_stream_that_ends_leaves_the_lease_of_the_stream_that_followed_it_alone() {
    let shared = Shared::nodes(3);
    for second in [shared.api(), shared.other_api()] {
        let (name, id) = (unique("streams"), unique("request-id"));
        let path = format!("/v1/locks/{name}/hold");
        let body = json!({"request_id": id, "ttl_ms": 20_000});
        let mut earlier = shared.api().stream("POST", &path, body.clone()).await.ok().unwrap();
        earlier.expect("acquired").await;
        let Ok(mut later) = second.stream("POST", &path, body).await else {
            // Refusing a second stream is fine too.
            continue;
        };
        let lease = later.expect("acquired").await;
        let valid_until =
            std::time::Instant::now() + std::time::Duration::from_millis(number(&lease, "validity_ms"));
        drop(earlier);
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let thief = shared.other_api().acquire(&name, json!({})).await;
        assert!(
            thief.status == 409,
            "granted to somebody else {:?} before the stream's lease ends",
            valid_until.saturating_duration_since(std::time::Instant::now())
        );
    }
}

/// Each finds what the other has begun, and one of them takes it away.
#[tokio::test]
async fn the_same_request_at_two_servers_at_once_gets_one_lease_at_both() {
    let shared = Shared::nodes(3);
    let (one, other) = (shared.api(), shared.other_api());
    for round in 0..600 {
        let name = unique("twins");
        let body = json!({"request_id": format!("request-{name}")});
        let (first, second) =
            tokio::join!(one.acquire(&name, body.clone()), other.acquire(&name, body.clone()));
        let statuses = (first.status, second.status);
        let told = [&first, &second].map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
        assert_eq!(statuses, (200, 200), "round {round}: {told:?}");
        let (first, second) = (first.ok(), second.ok());
        assert_eq!((secret(&first), token(&first)), (secret(&second), token(&second)), "round {round}");
    }
}

/// What one has begun may be held where the node does not answer, until its own attempt ends.
#[tokio::test]
async fn the_same_request_at_two_servers_at_once_is_granted_with_a_node_down_too() {
    let mut cluster = Cluster::new(3);
    let (one, other) = (cluster.server(&[]).await, cluster.server(&[]).await);
    cluster.nodes[2].kill();
    for round in 0..200 {
        let name = unique("twins");
        let body = json!({"request_id": format!("request-{name}")});
        let (one, other) = (one.api(), other.api());
        let (first, second) =
            tokio::join!(one.acquire(&name, body.clone()), other.acquire(&name, body.clone()));
        let statuses = (first.status, second.status);
        let told = [&first, &second].map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
        assert_eq!(statuses, (200, 200), "round {round}: {told:?}");
        assert_eq!(secret(&first.ok()), secret(&second.ok()), "round {round}");
    }
}

/// The first node that is asked, after a round that nobody won, holds what is left of somebody else's lease.
#[tokio::test]
async fn a_retry_is_not_told_of_somebody_else_while_its_own_lease_may_be_held() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let server = Server::start(&options);
    server.all_voting().await;
    let api = server.api();
    // Of so many names each node is the first of some.
    let bodies = (0..6).map(|i| {
        let wait_ms = i % 2 * 300;
        (format!("hidden-{i}"), json!({"request_id": format!("request-{i}"), "wait_ms": wait_ms}))
    });
    let mut leases = Vec::new();
    for (name, body) in bodies {
        api.acquire(&name, json!({"ttl_ms": 300_000})).await.ok();
        eventually("all nodes have it", async || cluster.leases(&name).len() == 3).await;
        let key = cluster.nodes[1].leases(&name).remove(0);
        for node in [&cluster.nodes[0], &cluster.nodes[2]] {
            node.command::<()>(&["DEL", &key]);
        }
        let lease = api.acquire(&name, body.clone()).await.ok();
        leases.push((name, body, lease));
    }
    proxies[2].cut();
    let state = async || api.get("/v1/nodes").await.ok()["nodes"][2]["state"].clone();
    eventually("node 3 is away", async || state().await == "down").await;
    for (name, body, _) in &leases {
        api.acquire(name, body.clone()).await.problem(503, "quorum_unavailable");
    }
    proxies[2].heal();
    server.all_voting().await;
    for (name, body, lease) in &leases {
        let again = api.acquire(name, body.clone()).await.ok();
        assert_eq!((secret(&again), token(&again)), (secret(lease), token(lease)));
    }
}

/// Whoever waits before it was refused, for all the nodes tell by somebody else.
#[tokio::test]
async fn a_retry_whose_turn_does_not_come_is_not_told_of_somebody_else_while_its_lease_may_be_held() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let server = Server::start(&options);
    server.all_voting().await;
    let api = server.api();
    let body = json!({"request_id": "behind-another", "ttl_ms": 300_000, "wait_ms": 300});
    let lease = api.acquire("behind", body.clone()).await.ok();
    eventually("all nodes have it", async || cluster.leases("behind").len() == 3).await;
    cluster.nodes[1].command::<()>(&["DEL", &cluster.nodes[1].leases("behind")[0]]);
    proxies[2].cut();
    let state = async || api.get("/v1/nodes").await.ok()["nodes"][2]["state"].clone();
    eventually("node 3 is away", async || state().await == "down").await;
    let first = tokio::spawn({
        let api = server.api();
        async move { api.acquire("behind", json!({"wait_ms": 60_000})).await }
    });
    eventually("somebody waits", async || api.metric("quorate_waiters").await == 1.0).await;
    api.acquire("behind", body.clone()).await.problem(503, "quorum_unavailable");
    proxies[2].heal();
    server.all_voting().await;
    let again = api.acquire("behind", body).await.ok();
    assert_eq!((secret(&again), token(&again)), (secret(&lease), token(&lease)));
    first.abort();
}
