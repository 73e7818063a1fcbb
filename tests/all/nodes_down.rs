//! Nodes that are dead, frozen, or answer with errors: a minority changes nothing, a majority is
//! told apart from contention, and nothing is left behind.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    Api, Cluster, RedisOptions, Server, ServerOptions, eventually, median, number, token, unique,
};

/// Every kind of call, once.
async fn everything_works(api: &Api) {
    let name = unique("works");
    let lease = api.acquire(&name, json!({"owner": "me"})).await.ok();
    assert_eq!(api.acquire(&name, json!({})).await.problem(409, "lock_held")["holder"]["owner"], "me");
    api.extend(&name, &lease).await.ok();
    assert_eq!(token(&api.lock(&name).await), token(&lease));
    let listed = api.get(&format!("/v1/locks?prefix={name}")).await.ok();
    assert_eq!(listed["locks"][0]["name"], name);
    assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
    let next = api.acquire(&name, json!({})).await.ok();
    assert!(token(&next) > token(&lease));
    assert_eq!(api.delete(&format!("/v1/locks/{name}")).await.ok(), json!({"released": true}));
    let waited = api.acquire(&name, json!({"wait_ms": 10_000})).await.ok();
    assert!(token(&waited) > token(&next));

    let body = json!({"names": [format!("{name}:a"), format!("{name}:b")]});
    api.post("/v1/multilocks/acquire", body).await.ok();
    let body = json!({"limit": 2, "permits": 2});
    api.post(&format!("/v1/semaphores/{name}/acquire"), body.clone()).await.ok();
    api.post(&format!("/v1/semaphores/{name}/acquire"), body).await.problem(409, "semaphore_full");
    assert_eq!(api.get(&format!("/v1/semaphores/{name}")).await.ok()["in_use"], 2);
    api.post(&format!("/v1/elections/{name}/campaign"), json!({"candidate": "c"})).await.ok();
    assert_eq!(api.get(&format!("/v1/elections/{name}")).await.ok()["leader"], "c");
    let issued = api.post(&format!("/v1/fencing/{name}:f/issue"), json!({})).await.ok();
    let check = json!({"fencing_token": token(&issued)});
    assert_eq!(api.post(&format!("/v1/fencing/{name}:f/check"), check).await.ok()["status"], "current");
    assert_eq!(api.get("/readyz").await.status, 200);
}

async fn states(api: &Api) -> Vec<String> {
    let nodes = api.get("/v1/nodes").await.ok();
    let states =
        nodes["nodes"].as_array().unwrap().iter().map(|node| node["state"].as_str().unwrap().to_owned());
    states.collect()
}

#[tokio::test]
async fn with_a_minority_of_the_nodes_killed_everything_works() {
    for total in [3, 5] {
        let mut cluster = Cluster::new(total);
        let server = cluster.server(&[]).await;
        let api = server.api();
        let name = unique("before");
        let lease = api.acquire(&name, json!({})).await.ok();
        for dead in 0..total.div_ceil(2) - 1 {
            cluster.nodes[dead * 2].kill();
            // At once, while the server may not know it yet, and when it does.
            everything_works(&api).await;
            eventually("the death is seen", || async { states(&api).await[dead * 2] == "down" }).await;
            everything_works(&api).await;
        }
        assert_eq!(token(&api.extend(&name, &lease).await.ok()), token(&lease));
    }
}

#[tokio::test]
async fn votes_that_fail_are_logged_with_node_and_cause_but_not_each_of_them() {
    let mut cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    cluster.nodes[1].kill();
    eventually("the death is seen", || async { states(&api).await[1] == "down" }).await;
    for _ in 0..200 {
        api.acquire(&unique("logged"), json!({})).await.ok();
    }
    let log = server.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("vote failed")).collect();
    let of_node = lines.iter().filter(|line| line.contains("WARN") && line.contains("n2")).count();
    assert!(lines.iter().any(|line| line.contains("down") && line.contains("acquire")), "{log}");
    // One per cause in ten seconds; a machine that needs a minute for this has other worries.
    assert!((1..=20).contains(&of_node) && of_node == lines.len(), "{log}");
}

#[tokio::test]
async fn an_outage_is_logged_now_and_then_and_not_with_every_request_that_it_fails() {
    let mut cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    cluster.nodes[0].kill();
    cluster.nodes[1].kill();
    eventually("the deaths are seen", || async { api.get("/readyz").await.status == 503 }).await;
    for _ in 0..200 {
        api.acquire(&unique("outage"), json!({})).await.problem(503, "quorum_unavailable");
    }
    let log = server.log();
    let lines: Vec<_> =
        log.lines().filter(|line| line.contains("status=503") && line.contains("/acquire")).collect();
    // One in ten seconds, see above.
    assert!((1..=10).contains(&lines.len()), "{log}");
    assert!(lines.iter().all(|line| line.contains("WARN") && line.contains("suppressed=")), "{log}");
}

#[tokio::test]
async fn nodes_that_let_nobody_subscribe_are_told_of_once() {
    let cluster = Cluster::new(3);
    for node in &cluster.nodes {
        node.command::<()>(&["ACL", "SETUSER", "deaf", "on", ">secret", "~*", "&*", "+@all", "-subscribe"]);
    }
    let urls = cluster.urls().into_iter().map(|url| url.replace("redis://", "redis://deaf:secret@"));
    let server = Server::start(&ServerOptions::over(urls));
    server.all_voting().await;
    let api = server.api();
    let name = unique("unheard");
    let _lease = api.acquire(&name, json!({})).await.ok();
    let wait = || async { api.acquire(&name, json!({"wait_ms": 100})).await.problem(409, "lock_held") };
    let told =
        || server.log().lines().filter(|line| line.contains("WARN") && line.contains("NOPERM")).count();
    wait().await;
    eventually("each node is told of", || async { told() == 3 }).await;
    wait().await;
    wait().await;
    let log = server.log();
    assert_eq!(told(), 3, "{log}");
    assert!(!log.contains(&name), "{log}");
}

#[tokio::test]
async fn without_a_majority_of_the_nodes_the_answer_is_503_within_two_seconds() {
    for total in [1, 3, 5] {
        let mut cluster = Cluster::new(total);
        let server = cluster.server(&[]).await;
        let api = server.api();
        let name = unique("majority");
        let lease = api.acquire(&name, json!({})).await.ok();
        for node in &mut cluster.nodes[total / 2..] {
            node.kill();
        }
        let free = unique("free");
        let extend = json!({"lease_id": lease["lease_id"]});
        let calls = [
            (format!("/v1/locks/{free}/acquire"), json!({})),
            (format!("/v1/locks/{name}/acquire"), json!({})),
            (format!("/v1/locks/{name}/extend"), extend.clone()),
            (format!("/v1/locks/{name}/release"), extend),
            (format!("/v1/semaphores/{free}/acquire"), json!({"limit": 3})),
            (format!("/v1/elections/{free}/campaign"), json!({"candidate": "c"})),
            (format!("/v1/fencing/{free}/issue"), json!({})),
            (format!("/v1/fencing/{free}/check"), json!({"fencing_token": 1})),
            ("/v1/multilocks/acquire".to_owned(), json!({"names": [free, unique("free")]})),
        ];
        for (path, body) in calls {
            let asked = Instant::now();
            let problem = api.post(&path, body).await.problem(503, "quorum_unavailable");
            assert!(asked.elapsed() < Duration::from_secs(2), "{path} took {:?}", asked.elapsed());
            assert!(number(&problem, "retry_after_ms") > 0);
            assert_eq!(number(&problem["nodes"], "total"), total as u64);
            assert!(number(&problem["nodes"], "failed") >= number(&problem["nodes"], "quorum"));
        }
        for path in [format!("/v1/locks/{name}"), "/v1/locks".to_owned(), format!("/v1/semaphores/{name}")] {
            api.get(&path).await.problem(503, "quorum_unavailable");
        }
        let asked = Instant::now();
        api.acquire(&name, json!({"wait_ms": 700})).await.problem(503, "quorum_unavailable");
        assert!(asked.elapsed() >= Duration::from_millis(700), "it rides through moments without a quorum");
        api.get("/readyz").await.problem(503, "quorum_unavailable");
        assert_eq!(api.get("/livez").await.status, 200);
        assert_eq!(api.get("/v1/nodes").await.ok()["available"], false);
    }
}

#[tokio::test]
async fn what_was_not_granted_is_not_there_when_the_nodes_come_back_with_their_data() {
    let options = RedisOptions { persistent: true, ..RedisOptions::default() };
    let mut cluster = Cluster::with(3, &options, &["--max-ttl", "2s"]);
    let server = cluster.server(&["--max-ttl", "2s"]).await;
    let api = server.api();
    // Two freeze, so that they may get the command and cannot answer.
    let frozen = unique("frozen");
    cluster.nodes[1].stop();
    cluster.nodes[2].stop();
    api.acquire(&frozen, json!({"ttl_ms": 2_000})).await.problem(503, "quorum_unavailable");
    cluster.nodes[1].resume();
    cluster.nodes[2].resume();
    eventually("nothing is left", || async { cluster.leases(&frozen).is_empty() }).await;
    server.all_voting().await;
    // Two die, and come back with what they wrote.
    let dead = unique("dead");
    let kept = unique("kept");
    api.acquire(&kept, json!({"ttl_ms": 2_000})).await.ok();
    eventually("all nodes have it", || async {
        cluster.nodes.iter().all(|node| node.dump().keys().any(|key| key.contains(&kept)))
    })
    .await;
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    api.acquire(&dead, json!({"ttl_ms": 2_000})).await.problem(503, "quorum_unavailable");
    cluster.nodes[1].restart();
    cluster.nodes[2].restart();
    assert!(cluster.nodes[1].dump().keys().any(|key| key.contains(&kept)), "the data came back");
    assert_eq!(cluster.leases(&dead), Vec::<String>::new());
    server.all_voting().await;
    everything_works_briefly(&api, &dead).await;
}

async fn everything_works_briefly(api: &Api, name: &str) {
    let lease = api.acquire(name, json!({"ttl_ms": 2_000})).await.ok();
    assert_eq!(api.release(name, &lease).await.ok(), json!({"released": true}));
}

async fn latencies(api: &Api, rounds: usize) -> Vec<Duration> {
    let name = unique("latency");
    let mut all = Vec::new();
    for _ in 0..rounds {
        let asked = Instant::now();
        let lease = api.acquire(&name, json!({})).await.ok();
        all.push(asked.elapsed());
        api.release(&name, &lease).await.ok();
    }
    all
}

#[tokio::test]
async fn a_frozen_node_adds_nothing_to_anybodys_latency() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    latencies(&api, 50).await;
    let before = median(latencies(&api, 300).await);
    cluster.nodes[1].stop();
    let frozen = Instant::now();
    // Before the server knows, while it finds out, and when it has given the node up.
    let mut during = Vec::new();
    while frozen.elapsed() < Duration::from_secs(3) {
        during.extend(latencies(&api, 50).await);
    }
    assert_eq!(states(&api).await[1], "down");
    let slowest = during.iter().max().copied().unwrap_or_default();
    let slow = during.iter().filter(|took| **took > Duration::from_millis(250)).count();
    let (rounds, during) = (during.len(), median(during));
    cluster.nodes[1].resume();
    println!(
        "one of three nodes frozen: median acquire {before:?} before, {during:?} meanwhile ({rounds} rounds, \
         slowest {slowest:?})"
    );
    // The node would add its whole timeout, half a second. What is left is noise.
    assert!(during < before * 4 + Duration::from_millis(10), "{before:?} became {during:?}");
    assert!(slow <= rounds / 100, "{slow} of {rounds} waited for the frozen node");
    let since = Instant::now();
    server.all_voting().await;
    println!("a node that is let go on votes again after {:?}", since.elapsed());
    everything_works(&api).await;
}

#[tokio::test]
async fn a_late_set_does_not_survive_the_release_that_overtook_it() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    for round in 0..24 {
        let frozen = &cluster.nodes[round % 3];
        let name = unique("late");
        frozen.stop();
        let lease = api.acquire(&name, json!({})).await.ok();
        if round % 2 == 0 {
            // Another connection may carry the release after a while.
            tokio::time::sleep(Duration::from_millis(10 * round as u64)).await;
        }
        assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
        frozen.resume();
        eventually("the release wins", || async { cluster.leases(&name).is_empty() }).await;
        // All that was under way has arrived once the node votes again; it is still not there.
        server.all_voting().await;
        assert_eq!(cluster.leases(&name), Vec::<String>::new(), "round {round}");
    }
}

#[tokio::test]
async fn a_late_set_does_not_survive_a_client_that_went_away_either() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    for _ in 0..8 {
        let name = unique("gone");
        cluster.nodes[0].stop();
        cluster.nodes[1].stop();
        // Not granted, as only one node can answer; then the client leaves.
        let asked = tokio::time::timeout(Duration::from_millis(30), api.acquire(&name, json!({}))).await;
        assert!(asked.is_err(), "granted by one of three: {asked:?}");
        cluster.nodes[0].resume();
        cluster.nodes[1].resume();
        server.all_voting().await;
        eventually("nothing is left", || async { cluster.leases(&name).is_empty() }).await;
    }
}

#[tokio::test]
async fn a_node_that_answers_with_an_error_abstains() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    // A key of another type is neither a grant nor a lease of somebody else.
    let name = unique("type");
    let probe = api.acquire(&name, json!({})).await.ok();
    let key = cluster.leases(&name).remove(0);
    api.release(&name, &probe).await.ok();
    let spoil = |i: usize| {
        cluster.nodes[i].command::<()>(&["DEL", &key]);
        cluster.nodes[i].command::<()>(&["LPUSH", &key, "not a lease"]);
    };
    spoil(0);
    let lease = api.acquire(&name, json!({})).await.ok();
    assert!(token(&lease) > token(&probe));
    api.extend(&name, &lease).await.ok();
    assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
    spoil(1);
    api.acquire(&name, json!({})).await.problem(503, "quorum_unavailable");
    // Text that no script of ours wrote.
    let name = unique("garbage");
    api.acquire(&name, json!({})).await.ok();
    let key = cluster.leases(&name).remove(0);
    cluster.nodes[0].command::<()>(&["SET", &key, "hello"]);
    cluster.nodes[1].command::<()>(&["SET", &key, "\u{1f512} 1 2 3"]);
    api.acquire(&name, json!({})).await.problem(503, "quorum_unavailable");
    assert_eq!(api.get("/readyz").await.status, 200, "the nodes themselves are well");
}

/// The first two nodes of three answer, but with this error whenever they are to write.
async fn are_told_of(api: &Api, error: &str) {
    eventually("the server knows that it cannot grant", || async { api.get("/readyz").await.status == 503 })
        .await;
    let answer = api.get("/readyz").await.problem(503, "quorum_unavailable");
    assert_eq!(answer["nodes"]["granted"], 1, "{answer}");
    assert!(answer["detail"].as_str().is_some_and(|detail| detail.contains(error)), "{answer}");
    assert_eq!(states(api).await, ["down", "down", "voting"]);
    assert_eq!(api.metric("quorate_quorum_available").await, 0.0);
    assert_eq!(api.metric(r#"quorate_node_state{node="n1",state="down"}"#).await, 1.0);
}

#[tokio::test]
async fn nodes_without_memory_or_replicas_abstain() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let held = unique("held");
    let lease = api.acquire(&held, json!({})).await.ok();
    let set = |i: usize, name: &str, value: &str| {
        cluster.nodes[i].command::<()>(&["CONFIG", "SET", name, value]);
    };
    set(0, "maxmemory", "1");
    everything_works(&api).await;
    set(1, "maxmemory", "1");
    let free = unique("free");
    api.acquire(&free, json!({})).await.problem(503, "quorum_unavailable");
    are_told_of(&api, "OOM").await;
    // Deletes work without memory.
    assert_eq!(api.release(&held, &lease).await.ok(), json!({"released": true}));
    set(0, "maxmemory", "0");
    set(1, "maxmemory", "0");
    eventually("nothing is left", || async { cluster.leases(&held).is_empty() }).await;
    server.all_voting().await;
    everything_works(&api).await;
    // As when the disk is full.
    set(0, "min-replicas-to-write", "1");
    everything_works(&api).await;
    set(1, "min-replicas-to-write", "1");
    api.acquire(&free, json!({})).await.problem(503, "quorum_unavailable");
    are_told_of(&api, "NOREPLICAS").await;
    set(0, "min-replicas-to-write", "0");
    set(1, "min-replicas-to-write", "0");
    eventually("it works again", || async { api.acquire(&free, json!({})).await.status == 200 }).await;
}

#[tokio::test]
async fn a_node_that_is_busy_with_somebodys_script_abstains() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    cluster.nodes[0].command::<()>(&["CONFIG", "SET", "lua-time-limit", "10"]);
    let mut busy = cluster.nodes[0].connection();
    let script = std::thread::spawn(move || {
        let _: Result<(), _> = redis::cmd("EVAL").arg("while true do end").arg(0).query(&mut busy);
    });
    for _ in 0..20 {
        let name = unique("busy");
        let lease = api.acquire(&name, json!({})).await.ok();
        assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
    }
    eventually("the script is ended", || async {
        cluster.nodes[0].try_command::<()>(&["SCRIPT", "KILL"]).is_ok() || script.is_finished()
    })
    .await;
    script.join().unwrap();
    server.all_voting().await;
    everything_works(&api).await;
}

#[tokio::test]
async fn scripts_that_a_node_forgot_and_connections_that_it_cut_are_made_anew() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("flushed");
    for round in 0..30 {
        for node in &cluster.nodes {
            match round % 3 {
                0 => node.command::<()>(&["SCRIPT", "FLUSH"]),
                1 => drop(node.try_command::<i64>(&["CLIENT", "KILL", "SKIPME", "yes"])),
                _ => {}
            }
        }
        // The moment itself may cost an answer, never a grant that nobody has.
        eventually("it works again", || async {
            let answer = api.acquire(&name, json!({})).await;
            match answer.status {
                200 => {
                    let lease = answer.json();
                    eventually("released", || async { api.release(&name, &lease).await.status == 200 }).await;
                    true
                }
                503 => false,
                other => panic!("{other} {}", answer.text()),
            }
        })
        .await;
    }
    eventually("nothing is left", || async { cluster.leases(&name).is_empty() }).await;
}

/// Without a node, a tie looks like a lease that the node may know of.
#[tokio::test]
async fn of_two_that_ask_at_the_same_moment_without_a_node_one_gets_it() {
    for (total, dead) in [(3, 1), (5, 2)] {
        let mut cluster = Cluster::new(total);
        let servers = [cluster.server(&[]).await, cluster.server(&[]).await];
        let apis = servers.each_ref().map(|server| server.api());
        for i in 0..dead {
            cluster.nodes[i * 2].kill();
        }
        for api in &apis {
            let down = || async { states(api).await.iter().filter(|state| *state == "down").count() };
            eventually("the deaths are seen", || async { down().await == dead }).await;
        }
        for round in 0..60 {
            let name = unique("tie");
            let (one, other) =
                tokio::join!(apis[0].acquire(&name, json!({})), apis[1].acquire(&name, json!({})));
            let statuses = [one.status, other.status];
            assert!(
                matches!(statuses, [200, 409] | [409, 200]),
                "{total} nodes, round {round}: {statuses:?}"
            );
        }
    }
}

/// One node holds it, one does not, one does not say: neither held nor free.
#[tokio::test]
async fn what_only_a_node_that_is_out_of_reach_could_tell_is_not_told() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("doubt");
    let [lock, election] = ["locks", "elections"].map(|kind| format!("/v1/{kind}/{name}"));
    let is = |node: usize, state: &'static str| {
        let api = &api;
        async move { eventually("its state is seen", || async { states(api).await[node] == state }).await }
    };
    cluster.nodes[2].stop();
    is(2, "down").await;
    api.post(&format!("{lock}/acquire"), json!({"ttl_ms": 300_000})).await.ok();
    api.post(&format!("{election}/campaign"), json!({"candidate": "c", "ttl_ms": 300_000})).await.ok();
    cluster.nodes[2].resume();
    is(2, "voting").await;
    cluster.nodes[0].stop();
    is(0, "down").await;
    for path in [&lock, &election] {
        let problem = api.get(path).await.problem(503, "quorum_unavailable");
        assert_eq!(problem["nodes"]["failed"], 1);
        assert!(!problem["detail"].as_str().unwrap().contains("Too few"), "two of three answered: {problem}");
    }
    cluster.nodes[0].resume();
    is(0, "voting").await;
    assert_eq!(api.get(&lock).await.ok()["held"], true);
    assert_eq!(api.get(&election).await.ok()["leader"], "c");
}

#[tokio::test]
async fn what_a_quorum_agrees_on_is_told_without_a_node_that_hangs() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let server = Server::start(&options.with(&["--node-timeout", "30s"]));
    server.all_voting().await;
    let api = server.api();
    let (name, path) = (unique("agreed"), "/v1/locks?prefix=agreed");
    let lease = api.acquire(&name, json!({"ttl_ms": 300_000})).await.ok();
    eventually("all nodes have it", async || cluster.leases(&name).len() == 3).await;
    proxies[2].mute_answers();
    let since = Instant::now();
    assert_eq!(api.get(path).await.ok()["locks"][0]["name"], name);
    let fence = json!({"name": name, "highest_token": token(&lease)});
    assert_eq!(api.get(&format!("/v1/fencing/{name}")).await.ok(), fence);
    let check = json!({"fencing_token": token(&lease)});
    assert_eq!(api.post(&format!("/v1/fencing/{name}/check"), check).await.ok()["status"], "current");
    assert_eq!(api.delete(&format!("/v1/locks/{name}")).await.ok(), json!({"released": true}));
    assert_eq!(api.get(path).await.ok(), json!({"locks": []}));
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
}

#[tokio::test]
async fn nodes_that_grant_only_when_the_ttl_is_over_are_not_said_to_be_silent() {
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let server = Server::start(&options.with(&["--node-timeout", "20s"])).ready().await;
    server.all_voting().await;
    proxies.iter().for_each(|proxy| proxy.delay(Duration::from_millis(60)));
    let name = unique("late");
    let problem = server.api().acquire(&name, json!({"ttl_ms": 100})).await;
    let problem = problem.problem(503, "quorum_unavailable");
    assert!(number(&problem["nodes"], "granted") >= 2, "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("ttl") && !detail.contains("Too few"), "{detail}");
    eventually("nothing is left behind", || async { cluster.leases(&name).is_empty() }).await;
}
