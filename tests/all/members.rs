//! Changes of the members, while locks are acquired all the time: no request fails for it, and tokens keep rising.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::server::quorate;
use crate::support::{Api, Cluster, RedisOptions, Server, ServerOptions, eventually, number, secret, token};

/// Short, so that a step is over soon.
const MAX_TTL: [&str; 2] = ["--max-ttl", "2s"];

/// Acquires and releases one lock all the time, and extends another one.
struct Load {
    ends: Arc<AtomicBool>,
    task: JoinHandle<u64>,
}

impl Load {
    fn start(api: Api, held_ttl_ms: u64) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ends);
        let task = tokio::spawn(async move {
            let held = api.acquire("load:held", json!({"ttl_ms": held_ttl_ms})).await.ok();
            let (mut rounds, mut last) = (0, 0);
            while !over.load(Ordering::Relaxed) {
                let lease = api.acquire("load:turns", json!({"ttl_ms": 1_000})).await.ok();
                assert!(token(&lease) > last, "{} after {last}", token(&lease));
                last = token(&lease);
                assert_eq!(api.release("load:turns", &lease).await.ok()["released"], true);
                assert_eq!(token(&api.extend("load:held", &held).await.ok()), token(&held));
                rounds += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert!(!secret(&held).is_empty());
            rounds
        });
        Self { ends, task }
    }

    async fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        let rounds = self.task.await.expect("no request failed");
        assert!(rounds > 10, "{rounds}");
        println!("{rounds} rounds without a failure");
    }
}

async fn members(api: &Api) -> Value {
    api.get("/v1/members").await.ok()
}

/// Until the next change may begin.
async fn settled(api: &Api) {
    eventually("the change is over", || async { members(api).await.get("changing").is_none() }).await;
}

async fn all_vote(server: &Server, count: usize) {
    eventually("all members vote", || async {
        let seen = members(&server.api()).await;
        let voting = seen["members"].as_array().unwrap().iter().filter(|member| member["state"] == "voting");
        seen.get("changing").is_none() && voting.count() == count
    })
    .await;
}

#[tokio::test]
async fn three_nodes_become_five_and_three_again_under_load() {
    let cluster = Cluster::with(3, &RedisOptions::default(), &[]);
    let more = Cluster::blank(2, &RedisOptions::default());
    let urls = [cluster.urls(), more.urls()].concat();
    let options = ServerOptions::over(urls.clone()).with(&MAX_TTL);
    let (one, two) = (Server::start(&options).ready().await, Server::start(&options).ready().await);
    let api = one.api();
    assert_eq!(api.metric("quorate_member_list_mismatch").await, 2.0);
    let load = Load::start(two.api(), 2_000);
    for (epoch, url) in [(2, &urls[3]), (4, &urls[4])] {
        let seen = api.post("/v1/members", json!({"url": url})).await.ok();
        assert_eq!((number(&seen, "epoch"), seen["changing"].is_string()), (epoch, true), "{seen}");
        let again = api.post("/v1/members", json!({"url": url})).await;
        again.problem(409, "change_in_progress");
        settled(&api).await;
    }
    all_vote(&one, 5).await;
    all_vote(&two, 5).await;
    assert_eq!(api.metric("quorate_member_list_mismatch").await, 0.0);
    let lease = api.acquire("five", json!({})).await.ok();
    assert_eq!(number(&lease["nodes"], "total"), 5);
    let answer = api.delete("/v1/members/n5").await.ok();
    assert_eq!(answer["members"].as_array().map(Vec::len), Some(4));
    settled(&api).await;
    api.delete(&format!("/v1/members/redis%3A%2F%2F127.0.0.1%3A{}", more.nodes[0].port())).await.ok();
    settled(&api).await;
    all_vote(&two, 3).await;
    assert!(api.metric("quorate_membership_epoch").await >= 9.0);
    load.end().await;
    let log = one.log();
    let line = log.lines().find(|line| line.contains("membership changed by command")).unwrap_or_default();
    assert!(line.contains("add redis://") && line.contains("request_id="), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_that_are_closed_before_their_restart_vote_again_within_seconds() {
    let mut cluster = Cluster::with(3, &RedisOptions { persistent: true, ..RedisOptions::default() }, &[]);
    // A quarantine would take five minutes.
    let server = cluster.server(&["--max-ttl", "300s"]).await;
    let api = server.api();
    api.acquire("long", json!({"ttl_ms": 300_000})).await.ok();
    // It outlasts the restart of a node: the next one is closed before each copy has been extended.
    let load = Load::start(server.api(), 30_000);
    let began = Instant::now();
    for i in 0..3 {
        api.post(&format!("/v1/members/n{}/close", i + 1), json!({})).await.ok();
        let next = format!("/v1/members/n{}/close", (i + 1) % 3 + 1);
        api.post(&next, json!({})).await.problem(409, "unsafe_change");
        cluster.nodes[i].restart();
        let back = Instant::now();
        all_vote(&server, 3).await;
        println!("n{} votes {:?} after it answered", i + 1, back.elapsed());
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    load.end().await;
    api.acquire("long", json!({})).await.problem(409, "lock_held");
}

/// With the commands of the operations page, at the nodes as the chart's do it, and however they keep their data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_from_the_command_line_takes_seconds_with_either_kind_of_file() {
    for persistent in [true, false] {
        let save = ["--save", "3600 1"].map(str::to_owned).to_vec();
        let arguments = if persistent { Vec::new() } else { save };
        let options = RedisOptions { persistent, arguments, ..RedisOptions::default() };
        let mut cluster = Cluster::with(3, &options, &[]);
        let server = cluster.server(&[]).await;
        let load = Load::start(server.api(), 30_000);
        let urls = cluster.urls();
        let began = Instant::now();
        for i in 0..3 {
            let at_nodes = urls.iter().flat_map(|url| ["--redis", url]);
            let output = quorate().args(["members", "close", &urls[i]]).args(at_nodes).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            // As its unit or its pod ends it.
            cluster.nodes[i].terminate();
            cluster.nodes[i].restart();
            let back = Instant::now();
            // The server may not have noticed anything yet.
            let run_id = cluster.nodes[i].info("server")["run_id"].clone();
            eventually("it is a member again", || async {
                let marker: String = cluster.nodes[i].command(&["GET", "quorate:member"]);
                marker.starts_with("2 member ") && marker.contains(&run_id)
            })
            .await;
            all_vote(&server, 3).await;
            println!("n{} votes {:?} after it answered, persistent: {persistent}", i + 1, back.elapsed());
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        load.end().await;
    }
}

/// Member by member, as the operations page has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_moves_to_other_nodes_under_load() {
    let cluster = Cluster::with(3, &RedisOptions::default(), &[]);
    let others = Cluster::blank(3, &RedisOptions::default());
    let (from, to) = (cluster.urls(), others.urls());
    let options = ServerOptions::over([from.clone(), to.clone()].concat()).with(&MAX_TTL);
    let (server, second) = (Server::start(&options).ready().await, Server::start(&options).ready().await);
    let load = Load::start(second.api(), 2_000);
    let url = format!("http://{}", server.api().address());
    for (old, new) in from.iter().zip(&to) {
        let output = quorate().args(["members", "replace", old, new, "--server", &url]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        all_vote(&server, 3).await;
        all_vote(&second, 3).await;
    }
    drop(cluster);
    let lease = server.api().acquire("moved", json!({"ttl_ms": 1_000})).await.ok();
    assert_eq!((number(&lease["nodes"], "total"), number(&lease["nodes"], "quorum")), (3, 2));
    load.end().await;
}

/// Seen before: 200, and then no quorum and no command that led out.
#[tokio::test]
async fn a_change_that_leaves_no_quorum_of_members_that_answer_is_refused() {
    let mut cluster = Cluster::with(3, &RedisOptions::default(), &[]);
    let other = Cluster::blank(1, &RedisOptions::default());
    let urls = [cluster.urls(), other.urls()].concat();
    let api = Server::start(&ServerOptions::over(urls.clone()).with(&MAX_TTL)).ready().await;
    let api = api.api();
    cluster.nodes[2].kill();
    eventually("it is down", || async { members(&api).await["members"][2]["state"] == "down" }).await;
    api.delete("/v1/members/n1").await.problem(409, "unsafe_change");
    api.post("/v1/members/n2/close", json!({})).await.problem(409, "unsafe_change");
    api.post("/v1/members/n1/replace", json!({"url": urls[3]})).await.problem(409, "unsafe_change");
    api.acquire("still", json!({"ttl_ms": 1_000})).await.ok();
    api.post("/v1/members/n3/replace", json!({"url": urls[3]})).await.ok();
    settled(&api).await;
    api.post("/v1/members/n1/close", json!({})).await.ok();
}

/// What an old copy of its data says has been used up.
#[tokio::test]
async fn a_closed_marker_lets_a_member_back_once() {
    let mut cluster = Cluster::with(3, &RedisOptions { persistent: true, ..RedisOptions::default() }, &[]);
    let server = cluster.server(&MAX_TTL).await;
    let api = server.api();
    api.acquire("class", json!({"ttl_ms": 2_000})).await.ok();
    api.post("/v1/members/n2/close", json!({})).await.ok();
    let closed: String = cluster.nodes[1].command(&["GET", "quorate:member"]);
    assert!(closed.starts_with("2 closed "), "{closed}");
    cluster.nodes[1].restart();
    all_vote(&server, 3).await;
    let copied = Instant::now();
    cluster.nodes[1].command::<()>(&["SET", "quorate:member", &closed]);
    cluster.nodes[1].restart();
    eventually("it is not trusted", || async {
        let node = api.get("/v1/nodes").await.ok()["nodes"][1].clone();
        node["state"] == "quarantined"
    })
    .await;
    all_vote(&server, 3).await;
    assert!(copied.elapsed() > Duration::from_secs(2), "{:?}", copied.elapsed());
}

#[tokio::test]
async fn a_member_is_replaced_and_a_deployment_retired_from_the_command_line() {
    let cluster = Cluster::with(3, &RedisOptions::default(), &[]);
    let other = Cluster::blank(1, &RedisOptions::default());
    let urls = [cluster.urls(), other.urls()].concat();
    let server = Server::start(&ServerOptions::over(urls.clone()).with(&MAX_TTL)).ready().await;
    let run = |arguments: &[&str]| {
        let output = quorate().arg("members").args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let url = format!("http://{}", server.api().address());
    let at_server = ["--server", &url];
    server.api().acquire("class", json!({"ttl_ms": 2_000})).await.ok();
    let (done, text) = run(&[&["replace", "n3", &urls[3]], &at_server[..]].concat());
    assert!(done && text.contains("\"epoch\":3"), "{text}");
    let (done, text) = run(&[&["remove", "n1"], &at_server[..]].concat());
    assert!(!done && text.contains("under way"), "{text}");
    all_vote(&server, 3).await;
    let (done, text) = run(&at_server);
    assert!(done && text.contains(&other.nodes[0].port().to_string()), "{text}");
    assert!(!text.contains(&cluster.nodes[2].port().to_string()), "{text}");
    // The one that was replaced lives on, and is named.
    let node = server.api().get("/v1/nodes").await.ok()["nodes"][2].clone();
    assert_eq!(node["state"], "refused", "{node}");
    assert!(node["reason"].as_str().is_some_and(|why| why.contains("replaced")), "{node}");

    let at_nodes: Vec<&str> = urls.iter().flat_map(|url| ["--redis", url]).collect();
    let (done, text) = run(&[&["retire"], &at_server[..]].concat());
    assert!(!done && text.contains("--redis"), "{text}");
    let (done, text) = run(&[&["retire"], &at_nodes[..]].concat());
    assert!(done, "{text}");
    eventually("nothing is granted any more", || async {
        server.api().acquire("moved", json!({"ttl_ms": 100})).await.status == 503
    })
    .await;
}
