//! A node that may have forgotten leases abstains until all of them have expired, and a node that
//! must not vote never does.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::proxy::Proxy;
use crate::support::redis::{free_port, leashed, new_directory};
use crate::support::server::{init, libfaketime};
use crate::support::{
    Api, Cluster, EventStream, Redis, RedisOptions, Server, ServerOptions, eventually, number, skip, token,
    unique,
};

/// Short, so that a quarantine is over soon.
const MAX_TTL: [&str; 2] = ["--max-ttl", "2s"];
const MAX_TTL_MS: u64 = 2_000;

async fn node(api: &Api, i: usize) -> Value {
    api.get("/v1/nodes").await.ok()["nodes"][i].clone()
}

async fn becomes(api: &Api, i: usize, state: &str) {
    eventually(&format!("node {} is {state}", i + 1), || async { node(api, i).await["state"] == state })
        .await;
}

async fn marked() -> (Cluster, Server) {
    // `init` need not be told how long leases live.
    let cluster = Cluster::with(3, &RedisOptions::default(), &[]);
    let server = cluster.server(&MAX_TTL).await;
    server.all_voting().await;
    (cluster, server)
}

/// A lease of the longest ttl that is extended all the time. Where nothing was granted there is nothing to wait for, and
/// the right to grant lapses soon.
async fn held(server: &Server) -> EventStream {
    let path = format!("/v1/locks/{}/hold", unique("held"));
    let stream = server.api().stream("POST", &path, json!({"ttl_ms": MAX_TTL_MS})).await.ok();
    let mut stream = stream.expect("a stream");
    stream.expect("acquired").await;
    stream
}

/// What every node that forgot goes through, and that locks go on with the two others.
async fn is_quarantined_and_then_votes(server: &Server, i: usize, lost_at: Instant) {
    let api = server.api();
    becomes(&api, i, "quarantined").await;
    let seen = node(&api, i).await;
    if seen["state"] == "quarantined" {
        assert!(seen["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{seen}");
    }
    let series =
        format!(r#"quorate_node_state{{node="{}",state="quarantined"}}"#, seen["id"].as_str().unwrap());
    assert_eq!(api.metric(&series).await, 1.0);
    let name = unique("meanwhile");
    let lease = api.acquire(&name, json!({"ttl_ms": 2_000})).await.ok();
    assert!(number(&lease["nodes"], "granted") <= 2, "it votes: {lease}");
    assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
    becomes(&api, i, "voting").await;
    let waited = lost_at.elapsed();
    println!("a node that forgot was silent for {waited:?} with a max_ttl of 2 s");
    assert!(waited >= Duration::from_millis(MAX_TTL_MS), "it votes after {waited:?}");
    assert!(server.log().contains("quarantined"), "{}", server.log());
}

#[tokio::test]
async fn a_node_that_restarts_empty_abstains_for_the_longest_ttl() {
    let (mut cluster, server) = marked().await;
    let _held = held(&server).await;
    cluster.nodes[1].kill();
    let lost_at = Instant::now();
    cluster.nodes[1].restart();
    is_quarantined_and_then_votes(&server, 1, lost_at).await;
}

/// As the operations page has it: the next one restarts once the last one votes. That others try to get the
/// lease all the time makes no difference.
#[tokio::test]
async fn a_lease_outlives_restarts_of_all_nodes_one_after_the_other() {
    for persistent in [false, true] {
        let options = RedisOptions { persistent, ..RedisOptions::default() };
        let mut cluster = Cluster::with(3, &options, &[]);
        let server = cluster.server(&MAX_TTL).await;
        let (api, name) = (server.api(), unique("rolled"));
        let path = format!("/v1/locks/{name}");
        let held = api.stream("POST", &format!("{path}/hold"), json!({"ttl_ms": 1_500})).await.ok();
        let mut held = held.unwrap();
        let lease = held.expect("acquired").await;
        for i in 0..3 {
            cluster.nodes[i].kill();
            becomes(&api, i, "down").await;
            cluster.nodes[i].restart();
            eventually("it votes again", || async {
                let refused = api.acquire(&name, json!({})).await;
                assert_eq!(refused.status, 409, "{}", refused.text());
                node(&api, i).await["state"] == "voting"
            })
            .await;
        }
        held.expect("extended").await;
        let seen = api.get(&path).await.ok();
        assert_eq!((&seen["held"], &seen["fencing_token"]), (&json!(true), &lease["fencing_token"]));
    }
}

#[tokio::test]
async fn a_node_that_was_flushed_abstains_for_the_longest_ttl() {
    let (cluster, server) = marked().await;
    let _held = held(&server).await;
    let lost_at = Instant::now();
    cluster.nodes[2].command::<()>(&["FLUSHALL"]);
    is_quarantined_and_then_votes(&server, 2, lost_at).await;
}

#[tokio::test]
async fn a_node_that_restarts_with_old_data_abstains_for_the_longest_ttl() {
    let options = RedisOptions { persistent: true, ..RedisOptions::default() };
    let mut cluster = Cluster::with(3, &options, &MAX_TTL);
    let server = cluster.server(&MAX_TTL).await;
    let _held = held(&server).await;
    cluster.nodes[0].kill();
    let lost_at = Instant::now();
    cluster.nodes[0].restart();
    assert!(!cluster.nodes[0].dump().is_empty(), "its marker came back");
    is_quarantined_and_then_votes(&server, 0, lost_at).await;
}

/// The failure that the quarantine is for: a lease on two of three nodes, one of which forgets it.
#[tokio::test]
async fn nobody_is_let_in_through_nodes_that_forgot() {
    let (mut cluster, server) = marked().await;
    let second = cluster.server(&MAX_TTL).await;
    for round in 0..2 {
        server.all_voting().await;
        second.all_voting().await;
        let name = unique("amnesia");
        cluster.nodes[2].kill();
        let asked = Instant::now();
        let lease = server.api().acquire(&name, json!({"ttl_ms": 2_000})).await.ok();
        let valid_until = asked + Duration::from_millis(number(&lease, "validity_ms"));
        if round == 0 {
            cluster.nodes[1].kill();
            cluster.nodes[1].restart();
        } else {
            cluster.nodes[1].command::<()>(&["FLUSHALL"]);
        }
        cluster.nodes[2].restart();
        // Any of the servers, one of them started just now.
        let third = Server::start(&cluster.options().with(&MAX_TTL));
        let next = 'granted: loop {
            for api in [server.api(), second.api(), third.api()] {
                let answer = api.acquire(&name, json!({"ttl_ms": 2_000})).await;
                if answer.status == 200 {
                    break 'granted answer.ok();
                }
                assert!(matches!(answer.status, 409 | 503), "{}", answer.text());
            }
            assert!(asked.elapsed() < crate::support::PATIENCE, "it never comes back");
        };
        let now = Instant::now();
        assert!(now >= valid_until, "granted twice, {:?} before the first lease ends", valid_until - now);
        assert!(token(&next) > token(&lease));
    }
}

#[tokio::test]
async fn a_total_loss_lets_nobody_in_before_the_leases_have_expired() {
    let (cluster, server) = marked().await;
    let api = server.api();
    let name = unique("total");
    let asked = Instant::now();
    let lease = api.acquire(&name, json!({"ttl_ms": 2_000})).await.ok();
    let valid_until = asked + Duration::from_millis(number(&lease, "validity_ms"));
    cluster.nodes.iter().for_each(|node| node.command::<()>(&["FLUSHALL"]));
    api.acquire(&name, json!({})).await.problem(503, "quorum_unavailable");
    api.get("/readyz").await.problem(503, "quorum_unavailable");
    let next = api.acquire(&name, json!({"wait_ms": 60_000})).await.ok();
    assert!(Instant::now() >= valid_until);
    assert!(token(&next) > token(&lease));
}

/// Their append-only files may lack the last second, and so the record that leases of a longer class were granted. Only a
/// node that was closed is believed.
#[tokio::test]
async fn nodes_that_all_restart_at_once_with_their_data_let_nobody_in_before_the_leases_have_expired() {
    let arguments = ["--appendonly", "yes", "--appendfsync", "everysec"].map(str::to_owned).to_vec();
    let mut cluster = Cluster::with(3, &RedisOptions { arguments, ..RedisOptions::default() }, &MAX_TTL);
    let server = cluster.server(&MAX_TTL).await;
    let (api, name) = (server.api(), unique("power"));
    let asked = Instant::now();
    let lease = api.acquire(&name, json!({"ttl_ms": 2_000})).await.ok();
    let valid_until = asked + Duration::from_millis(number(&lease, "validity_ms"));
    cluster.nodes.iter_mut().for_each(Redis::kill);
    let lost_at = Instant::now();
    cluster.nodes.iter_mut().for_each(Redis::restart);
    assert!(cluster.nodes.iter().all(|node| !node.dump().is_empty()), "their data came back");
    let mut next = Value::Null;
    eventually("it is granted again", async || {
        let answer = api.acquire(&name, json!({"ttl_ms": 2_000})).await;
        assert!(matches!(answer.status, 200 | 409 | 503), "{}", answer.text());
        let is_granted = answer.status == 200;
        if is_granted {
            next = answer.ok();
        }
        is_granted
    })
    .await;
    let waited = lost_at.elapsed();
    println!("three nodes that restarted at once were silent for {waited:?} with a max_ttl of 2 s");
    assert!(Instant::now() >= valid_until && waited >= Duration::from_millis(MAX_TTL_MS), "{waited:?}");
    assert!(token(&next) > token(&lease));
}

#[tokio::test]
async fn blank_nodes_are_waited_for_and_then_marked_by_the_servers_alike() {
    let cluster = Cluster::blank(3, &RedisOptions::default());
    let started = Instant::now();
    let (one, two) = (
        Server::start(&cluster.options().with(&MAX_TTL)),
        // Another order is the same deployment.
        Server::start(&ServerOptions::over(cluster.urls().into_iter().rev()).with(&MAX_TTL)),
    );
    for server in [&one, &two] {
        let problem = server.api().get("/readyz").await.problem(503, "quorum_unavailable");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("quarantined") && detail.contains("blank"), "{detail}");
        server.api().acquire("early", json!({})).await.problem(503, "quorum_unavailable");
        eventually("it knows for how long", || async {
            node(&server.api(), 0).await.get("voting_in_ms").is_some()
        })
        .await;
        let first = node(&server.api(), 0).await;
        assert!((1..=MAX_TTL_MS + 100).contains(&number(&first, "voting_in_ms")), "{first}");
    }
    one.all_voting().await;
    two.all_voting().await;
    assert!(started.elapsed() >= Duration::from_millis(MAX_TTL_MS), "{:?}", started.elapsed());
    let lease = one.api().acquire("together", json!({"ttl_ms": 2_000})).await.ok();
    two.api().acquire("together", json!({"ttl_ms": 2_000})).await.problem(409, "lock_held");
    assert_eq!(two.api().release("together", &lease).await.ok(), json!({"released": true}));
    for server in [&one, &two] {
        assert!(server.log().contains("blank"), "{}", server.log());
    }
}

#[tokio::test]
async fn init_ends_the_wait_of_servers_that_run_already() {
    let cluster = Cluster::blank(3, &RedisOptions::default());
    // With the default of five minutes nobody would wait for it.
    let server = Server::start(&cluster.options());
    server.api().acquire("early", json!({})).await.problem(503, "quorum_unavailable");
    cluster.init(&[]);
    server.all_voting().await;
    server.api().acquire("now", json!({})).await.ok();
}

#[tokio::test]
async fn init_is_idempotent_in_any_order() {
    let cluster = Cluster::new(5);
    let marker = |node: &Redis| node.command::<String>(&["GET", "quorate:member"]);
    let marks = || cluster.nodes.iter().map(marker).collect::<Vec<_>>();
    let before = marks();
    assert!(before.iter().all(|marker| marker.starts_with("2 member 1 ")), "{before:?}");
    cluster.init(&[]);
    let mut urls = cluster.urls();
    urls.reverse();
    urls.swap(0, 2);
    let output = init(&urls, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(marks(), before);
    assert_eq!(marks(), before, "nothing changed");
    let server = cluster.server(&[]).await;
    server.api().acquire("works", json!({})).await.ok();
}

#[tokio::test]
async fn init_marks_a_node_also_where_a_server_leaves_its_note_meanwhile() {
    let cluster = Cluster::blank(3, &RedisOptions::default());
    let slow = Proxy::before(cluster.nodes[2].port());
    slow.delay(Duration::from_millis(150));
    let mut urls = cluster.urls();
    urls[2] = slow.url();
    let running = tokio::task::spawn_blocking(move || init(&urls, &MAX_TTL));
    let first = &cluster.nodes[0];
    // Looked at twice, and not marked yet, since the slow node is to be looked at too.
    eventually("init has looked", || async { first.commandstats().get("evalsha") >= Some(&2) }).await;
    let noted: Option<String> = first.command(&["SET", "quorate:member", "blank 0", "NX"]);
    let output = running.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let marker: String = first.command(&["GET", "quorate:member"]);
    assert!(marker.starts_with("2 member "), "init says that it is marked, and it is {marker}");
    println!("a note was left in between: {}", noted.is_some());
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(told.matches("marked ").count(), 3, "{told}");
    cluster.server(&MAX_TTL).await;
}

#[tokio::test]
async fn init_does_not_spare_a_node_that_restarted_its_quarantine() {
    let (mut cluster, server) = marked().await;
    let _held = held(&server).await;
    cluster.nodes[0].kill();
    becomes(&server.api(), 0, "down").await;
    let lost_at = Instant::now();
    cluster.nodes[0].restart();
    // On a busy machine the quarantine may be over when this is.
    cluster.init(&MAX_TTL);
    becomes(&server.api(), 0, "voting").await;
    let waited = lost_at.elapsed();
    assert!(waited >= Duration::from_millis(MAX_TTL_MS), "it votes after {waited:?}");
}

/// A flush changes no run id, so these nodes still look like those that were founded together.
#[tokio::test]
async fn init_does_not_spare_a_node_that_was_flushed_its_quarantine() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let flushed = &cluster.nodes[0];
    server.api().acquire("held", json!({})).await.ok();
    flushed.command::<()>(&["FLUSHALL"]);
    becomes(&server.api(), 0, "quarantined").await;
    let output = init(&cluster.urls(), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.starts_with(&format!("left redis://127.0.0.1:{} ", flushed.port())), "{told}");
    assert_ne!(node(&server.api(), 0).await["state"], "voting");
}

/// Asserts that `serve` and `init` end with an error that names one of these nodes.
fn refused(urls: &[String], named: &[&Redis], why: &[&str]) {
    let names = |text: &str| named.iter().any(|node| text.contains(&node.port().to_string()));
    let tells = |text: &str| why.iter().any(|word| text.contains(word));
    let Err(failed) = Server::try_start(&ServerOptions::over(urls.iter().cloned())) else {
        panic!("serve starts over {urls:?}");
    };
    assert!(!failed.status.success());
    assert!(names(&failed.stderr) && tells(&failed.stderr), "which node, and why? {}", failed.stderr);
    let output = init(urls, &[]);
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(names(&stderr) && tells(&stderr), "which node, and why? {stderr}");
}

#[tokio::test]
async fn a_replica_is_refused() {
    let cluster = Cluster::blank(3, &RedisOptions::default());
    let port = cluster.nodes[0].port().to_string();
    cluster.nodes[2].command::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    refused(&cluster.urls(), &[&cluster.nodes[2]], &["replica"]);
}

/// A `redis-server --sentinel` that promotes a replica of the node on `port` once that node is gone.
struct Sentinel(std::process::Child);

impl Sentinel {
    fn over(port: u16, listens: u16, directory: &Path) -> Self {
        let file = directory.join("sentinel.conf");
        let text = format!(
            "port {listens}\nsentinel monitor node 127.0.0.1 {port} 1\n\
             sentinel down-after-milliseconds node 500\nsentinel failover-timeout node 3000\n"
        );
        std::fs::write(&file, text).unwrap();
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = leashed(&binary);
        command.arg(&file).arg("--sentinel").current_dir(directory).stdout(std::process::Stdio::null());
        Self(command.spawn().expect("a Sentinel"))
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

#[tokio::test]
async fn a_replica_that_a_sentinel_promotes_takes_its_masters_place_as_a_process_that_may_have_forgotten() {
    let mut cluster = Cluster::blank(3, &RedisOptions::default());
    let master = &cluster.nodes[0];
    master.command::<()>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let replica = Redis::with(RedisOptions::default());
    replica.command::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    // As what follows promotions does: a virtual address, a load balancer, a name.
    let proxy = Proxy::before(master.port());
    let urls: Vec<String> = [proxy.url()].into_iter().chain(cluster.urls().into_iter().skip(1)).collect();
    assert!(init(&urls, &["--max-ttl", "1m"]).status.success());
    let server = Server::start(&ServerOptions::over(urls).with(&["--max-ttl", "1m"]));
    server.all_voting().await;
    let copied = |name: &str| replica.try_command::<String>(&["GET", name]).is_ok();
    eventually("the replica has the marker", || async { copied("quorate:member") }).await;
    let (listens, directory) = (free_port(), new_directory());
    let sentinel = Sentinel::over(master.port(), listens, &directory);
    let url = format!("redis://127.0.0.1:{listens}");
    eventually("the Sentinel knows the replica", || async {
        let connection = redis::Client::open(url.as_str()).and_then(|client| client.get_connection());
        connection.is_ok_and(|mut connection| {
            let asked = redis::cmd("INFO").arg("sentinel").query::<String>(&mut connection);
            asked.is_ok_and(|info| info.contains("slaves=1"))
        })
    })
    .await;

    let (api, name) = (server.api(), unique("promoted"));
    cluster.nodes[2].stop();
    becomes(&api, 2, "down").await;
    // It hears of nothing from now on, not even of what would wait in its socket.
    replica.stop();
    cluster.nodes[0].command::<()>(&["CLIENT", "KILL", "TYPE", "replica"]);
    let taken_at = Instant::now();
    let lease = api.acquire(&name, json!({"ttl_ms": 60_000})).await.ok();
    cluster.nodes[0].kill();
    replica.resume();
    cluster.nodes[2].resume();
    becomes(&api, 0, "down").await;
    // The Sentinel closes all connections with it.
    let role = || replica.try_command::<String>(&["INFO", "replication"]).unwrap_or_default();
    eventually("the replica is promoted", || async { role().contains("role:master") }).await;
    assert!(replica.leases(&name).is_empty(), "what it did not hear of is not there");
    proxy.turn_to(replica.port());
    // Another reason shows first where the Sentinel has closed a connection in between.
    eventually("it says why", || async {
        let seen = node(&api, 0).await;
        let says = seen["reason"].as_str().is_some_and(|reason| reason.contains("promoted replica"));
        seen["state"] == "quarantined" && says
    })
    .await;
    becomes(&api, 2, "voting").await;
    let second = api.acquire(&name, json!({"ttl_ms": 60_000})).await;
    let validity = Duration::from_millis(number(&lease, "validity_ms"));
    assert!(second.status != 200 || taken_at.elapsed() > validity, "two hold it: {}", second.text());
    drop(sentinel);
    let _ = std::fs::remove_dir_all(directory);
}

#[tokio::test]
async fn a_node_that_may_evict_is_refused() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let cluster = Cluster::blank(3, &RedisOptions::default());
        cluster.nodes[1].command::<()>(&["CONFIG", "SET", "maxmemory-policy", policy]);
        refused(&cluster.urls(), &[&cluster.nodes[1]], &[policy]);
    }
}

#[tokio::test]
async fn two_urls_of_the_same_node_are_refused() {
    let cluster = Cluster::blank(3, &RedisOptions::default());
    let mut urls = cluster.urls();
    urls[2] = urls[0].replace("127.0.0.1", "localhost");
    refused(&urls, &[&cluster.nodes[0]], &["same", "twice"]);
    urls[2] = format!("{}/3", urls[0]);
    refused(&urls, &[&cluster.nodes[0]], &["same", "twice"]);
    urls[2] = urls[0].clone();
    refused(&urls, &[&cluster.nodes[0]], &["same", "twice"]);
}

/// N comes from the membership, and not from a server's list.
#[tokio::test]
async fn a_list_of_other_nodes_changes_no_quorum_and_founds_no_deployment() {
    let five = Cluster::new(5);
    let few = Server::start(&ServerOptions::over(five.urls()[..3].to_vec())).ready().await;
    let lease = few.api().acquire("few", json!({})).await.ok();
    assert_eq!((number(&lease["nodes"], "total"), number(&lease["nodes"], "quorum")), (5, 3));
    let output = init(&five.urls()[..3], &[]);
    assert!(!output.status.success());
    let blank = Cluster::blank(1, &RedisOptions::default());
    let more = Server::start(&ServerOptions::over([five.urls(), blank.urls()].concat())).ready().await;
    becomes(&more.api(), 5, "refused").await;
    let reason = node(&more.api(), 5).await["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("quorate members add"), "{reason}");
    assert!(blank.nodes[0].dump().is_empty(), "it was written to");
    let problem = more.api().acquire("few", json!({})).await.problem(409, "lock_held");
    assert_eq!(number(&problem["nodes"], "total"), 5);
}

/// Seen before: 84 to 91 of 300 names were granted to both.
#[tokio::test]
async fn servers_whose_lists_differ_never_grant_a_name_twice() {
    let cluster = Cluster::with(3, &RedisOptions::default(), &MAX_TTL);
    let other = Cluster::blank(1, &RedisOptions::default());
    let urls = cluster.urls();
    let one = cluster.server(&MAX_TTL).await;
    let lists = vec![urls[0].clone(), urls[1].clone(), other.urls()[0].clone()];
    let two = Server::start(&ServerOptions::over(lists).with(&MAX_TTL)).ready().await;
    becomes(&two.api(), 2, "refused").await;
    for i in 0..100 {
        let name = format!("both:{i}");
        let (a, b) = (one.api(), two.api());
        let (a, b) = tokio::join!(
            a.acquire(&name, json!({"ttl_ms": 2_000})),
            b.acquire(&name, json!({"ttl_ms": 2_000}))
        );
        assert!(a.status != 200 || b.status != 200, "both hold {name}");
    }
}

/// Seen before: granted again after 3.5 s with 26 s of the first lease left.
#[tokio::test]
async fn a_server_that_starts_after_the_clocks_of_a_quorum_stepped_waits_for_the_leases() {
    let (cluster, server) = marked().await;
    let api = server.api();
    let asked = Instant::now();
    let lease = api.acquire("doubt", json!({"ttl_ms": 2_000})).await.ok();
    let valid_until = asked + Duration::from_millis(number(&lease, "validity_ms"));
    // As a clock step makes them: the lease is over there, and the doubt is written.
    for node in &cluster.nodes[..2] {
        let marker: String = node.command(&["GET", "quorate:member"]);
        let run_id = marker.split(' ').nth(4).unwrap().to_owned();
        node.command::<()>(&[
            "SET",
            "quorate:member",
            &format!("2 doubt {run_id} 0 {run_id} its clock stepped"),
        ]);
        node.command::<()>(&["DEL", "quorate:lock:doubt"]);
    }
    drop(server);
    let next = Server::start(&cluster.options().with(&MAX_TTL));
    let again = next.api().acquire("doubt", json!({"wait_ms": 30_000})).await.ok();
    assert!(Instant::now() >= valid_until, "granted twice");
    assert!(token(&again) > token(&lease));
}

#[tokio::test]
async fn a_node_of_a_later_version_is_refused_and_not_written_to() {
    let (cluster, server) = marked().await;
    cluster.nodes[1].command::<()>(&["SET", "quorate:member", "3 something new"]);
    becomes(&server.api(), 1, "refused").await;
    tokio::time::sleep(Duration::from_millis(MAX_TTL_MS)).await;
    server.api().acquire("two", json!({})).await.ok();
    // Nor is a class of leases recorded there, by this server or one that starts now.
    cluster.nodes[1].command::<()>(&["DEL", "quorate:classes"]);
    server.api().acquire("three", json!({})).await.ok();
    let before = cluster.nodes[1].dump();
    assert_eq!(before["quorate:member"].as_deref(), Some("3 something new"));
    let later = Server::start(&cluster.options().with(&MAX_TTL)).ready().await;
    becomes(&later.api(), 1, "refused").await;
    let seen = node(&later.api(), 1).await;
    assert!(seen["reason"].as_str().is_some_and(|why| why.contains("later version")), "{seen}");
    assert_eq!(cluster.nodes[1].dump(), before);
}

/// Seen before: running servers granted, and every new one exited.
#[tokio::test]
async fn a_server_starts_beside_one_node_that_is_unfit() {
    let (cluster, _server) = marked().await;
    cluster.nodes[1].command::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let later = Server::start(&cluster.options().with(&MAX_TTL)).ready().await;
    becomes(&later.api(), 1, "refused").await;
    let seen = node(&later.api(), 1).await;
    assert!(seen["reason"].as_str().is_some_and(|reason| reason.contains("allkeys-lru")), "{seen}");
    let lease = later.api().acquire("two", json!({"ttl_ms": 2_000})).await.ok();
    assert_eq!(number(&lease["nodes"], "granted"), 2);
    // Two of three are not enough.
    cluster.nodes[2].command::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    refused(&cluster.urls(), &[&cluster.nodes[1], &cluster.nodes[2]], &["allkeys-lru"]);
}

/// Seen before: 87,262,198 ms, a day, for ever.
#[tokio::test]
async fn a_limit_of_a_day_under_which_nothing_was_granted_costs_nobody_a_day() {
    let mut cluster = Cluster::with(3, &RedisOptions::default(), &["--max-ttl", "24h"]);
    let once = cluster.server(&["--max-ttl", "24h"]).await;
    once.api().acquire("short", json!({"ttl_ms": 1_000})).await.ok();
    drop(once);
    let server = cluster.server(&["--max-ttl", "30s"]).await;
    server.api().acquire("class", json!({"ttl_ms": 30_000})).await.ok();
    cluster.nodes[1].restart();
    let mut waits = 0;
    eventually("it says for how long", async || {
        waits = node(&server.api(), 1).await["voting_in_ms"].as_u64().unwrap_or(0);
        waits > 0
    })
    .await;
    // 30 s and the drift.
    assert!((20_000..=30_302).contains(&waits), "{waits}");
}

/// Seen before: a burst of ten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_lease_at_one_server_costs_no_request_at_another_a_503() {
    let cluster = Cluster::with(3, &RedisOptions::default(), &[]);
    let server = cluster.server(&["--max-ttl", "30s"]).await;
    let ends = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut workers = tokio::task::JoinSet::new();
    for i in 0..8 {
        let (api, ends) = (Api::new(server.api().address()), std::sync::Arc::clone(&ends));
        workers.spawn(async move {
            let (name, mut rounds) = (format!("worker:{i}"), 0);
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                let lease = api.acquire(&name, json!({"ttl_ms": 30_000})).await.ok();
                assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
                rounds += 1;
            }
            rounds
        });
    }
    for max_ttl in ["5m", "1h", "24h"] {
        let longer = cluster.server(&["--max-ttl", max_ttl]).await;
        longer.api().acquire("long", json!({"ttl_ms": 250_000})).await.ok();
        let lease = longer.api().lock("long").await;
        assert_eq!(lease["held"], true);
        longer.api().delete("/v1/locks/long").await.ok();
    }
    ends.store(true, std::sync::atomic::Ordering::Relaxed);
    let rounds: Vec<u64> = workers.join_all().await;
    assert!(rounds.iter().all(|&rounds| rounds > 10), "{rounds:?}");
}

/// As where it ended before it had marked the last node.
#[tokio::test]
async fn an_init_that_broke_off_is_run_again_and_adds_what_was_missing() {
    let cluster = Cluster::with(3, &RedisOptions::default(), &MAX_TTL);
    let register: String = cluster.nodes[0].command(&["GET", "quorate:membership"]);
    let chosen = register.strip_suffix("|||").expect("no step is under way");
    let run_id = cluster.nodes[2].info("server")["run_id"].clone();
    let entry = chosen.split(' ').find(|entry| entry.starts_with(&run_id)).unwrap();
    let nonce = entry.split(',').nth(1).unwrap();
    let blank = format!("2 doubt {run_id} {nonce} - blank");
    cluster.nodes[2].command::<()>(&["SET", "quorate:member", &blank]);
    cluster.nodes[2].command::<()>(&["SET", "quorate:membership", &format!("|1|1|{chosen}")]);
    let before = [0, 1].map(|i| cluster.nodes[i].dump());
    let output = init(&cluster.urls(), &MAX_TTL);
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{told}");
    let is_told = [0, 1, 2].map(|i| told.contains(&cluster.nodes[i].port().to_string()));
    assert_eq!(is_told, [false, false, true], "{told}");
    assert_eq!([0, 1].map(|i| cluster.nodes[i].dump()), before);
    let server = cluster.server(&MAX_TTL).await;
    assert_eq!(number(&server.api().acquire("three", json!({})).await.ok()["nodes"], "total"), 3);
}

/// Nodes of the version before remember all: their markers are taken over, without a quarantine, and so is what is held.
#[tokio::test]
async fn a_deployment_of_the_version_before_is_taken_over_under_load() {
    let cluster = Cluster::blank(3, &RedisOptions::default());
    for node in &cluster.nodes {
        let run_id = node.info("server")["run_id"].clone();
        node.command::<()>(&["SET", "quorate:node", &format!("1 {run_id} 0123456789abcdef 3 300000")]);
        let (seconds, _): (u64, u64) = node.command(&["TIME"]);
        let (ends_ms, lease) = ((seconds + 100) * 1000, "0123456789abcdef0123456789abcdef");
        let record = format!("{ends_ms:013}{ends_ms:013}0000000000000042E00100000{lease} - {{}}");
        node.command::<()>(&["SET", "quorate:lock:before", &record, "PX", "600000"]);
    }
    let servers = [(); 2].map(|()| Server::start(&cluster.options()));
    let began = Instant::now();
    let mut workers = tokio::task::JoinSet::new();
    for (i, server) in servers.iter().enumerate() {
        let api = Api::new(server.api().address());
        eventually("it is ready", || async { api.get("/readyz").await.status == 200 }).await;
        workers.spawn(async move {
            for round in 0..200 {
                let name = format!("load:{i}:{round}");
                let lease = api.acquire(&name, json!({})).await.ok();
                assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
            }
            api.acquire("before", json!({})).await.problem(409, "lock_held");
        });
    }
    workers.join_all().await;
    // A quarantine takes five minutes.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    for server in &servers {
        server.all_voting().await;
    }
    for node in &cluster.nodes {
        let (old, new): (String, String) =
            (node.command(&["GET", "quorate:node"]), node.command(&["GET", "quorate:member"]));
        assert!(old.ends_with(" upgraded 0 0") && new.starts_with("2 member 1 "), "{old} {new}");
    }
}

#[tokio::test]
async fn a_node_of_another_deployment_is_refused() {
    let (ours, theirs) = (Cluster::new(3), Cluster::new(3));
    let before = theirs.nodes[0].dump();
    assert!(!before.is_empty());
    let urls = vec![ours.nodes[0].url(), ours.nodes[1].url(), theirs.nodes[0].url()];
    refused(&urls, &[&theirs.nodes[0]], &["another deployment", "different deployment"]);
    assert_eq!(theirs.nodes[0].dump(), before);
    // Both deployments themselves are untouched.
    ours.server(&[]).await;
    theirs.server(&[]).await;
}

#[tokio::test]
async fn deployments_with_different_prefixes_share_nodes() {
    let cluster = Cluster::new(3);
    cluster.init(&["--key-prefix", "second"]);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&["--key-prefix", "second"]).await);
    one.api().acquire("name", json!({})).await.ok();
    two.api().acquire("name", json!({})).await.ok();
    one.api().acquire("name", json!({})).await.problem(409, "lock_held");
}

#[tokio::test]
async fn a_node_that_becomes_unfit_is_refused_when_it_is_connected_to_again_and_may_come_back() {
    let (cluster, server) = marked().await;
    let api = server.api();
    let unfit: [(&[&str], &[&str]); 2] = [
        (
            &["CONFIG", "SET", "maxmemory-policy", "allkeys-lfu"],
            &["CONFIG", "SET", "maxmemory-policy", "noeviction"],
        ),
        (&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
    ];
    for (breaks, mends) in unfit {
        let redis = &cluster.nodes[1];
        let reconnect =
            || drop(redis.try_command::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]));
        redis.command::<()>(breaks);
        reconnect();
        becomes(&api, 1, "refused").await;
        let seen = node(&api, 1).await;
        assert!(seen["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{seen}");
        api.get("/readyz").await.ok();
        let lease = api.acquire(&unique("two"), json!({"ttl_ms": 2_000})).await.ok();
        assert_eq!(number(&lease["nodes"], "granted"), 2);
        redis.command::<()>(mends);
        reconnect();
        becomes(&api, 1, "voting").await;
    }
}

#[tokio::test]
async fn a_refused_node_that_dies_is_down() {
    let (mut cluster, server) = marked().await;
    let api = server.api();
    cluster.nodes[1].command::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    becomes(&api, 1, "refused").await;
    cluster.nodes[1].kill();
    becomes(&api, 1, "down").await;
    eventually("it says why", || async {
        node(&api, 1).await["reason"].as_str().is_some_and(|reason| reason.contains("connection"))
    })
    .await;
}

#[tokio::test]
async fn a_node_that_cannot_be_marked_says_why() {
    let (mut cluster, server) = marked().await;
    let api = server.api();
    cluster.nodes[1].kill();
    cluster.nodes[1].restart();
    cluster.nodes[1].command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    eventually("the reason has the node's own words", || async {
        let seen = node(&api, 1).await;
        seen["state"] == "quarantined" && seen["reason"].as_str().is_some_and(|reason| reason.contains("OOM"))
    })
    .await;
    api.get("/readyz").await.ok();
    cluster.nodes[1].command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    becomes(&api, 1, "voting").await;
    assert_eq!(node(&api, 1).await.get("reason"), None);
    // When the server came, and now; not each attempt.
    let log = server.log();
    let marked =
        log.lines().filter(|line| line.contains("INFO") && line.contains("mark") && line.contains("n2"));
    assert!(marked.count() <= 2, "{log}");
}

#[tokio::test]
async fn nobody_is_let_in_through_a_node_that_was_unfit_for_a_while() {
    let (cluster, server) = marked().await;
    let api = server.api();
    let redis = &cluster.nodes[2];
    // Lags behind the node, as replicas do, and has its marker.
    let other = Redis::with(RedisOptions::default());
    other.command::<()>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    other.command::<()>(&["SET", "quorate:member", &redis.command::<String>(&["GET", "quorate:member"])]);
    let port = other.port().to_string();
    let spells: [(&[&str], &[&str]); 2] = [
        (&["REPLICAOF", "127.0.0.1", &port], &["REPLICAOF", "NO", "ONE"]),
        (
            &["CONFIG", "SET", "maxmemory-policy", "volatile-lru", ";", "CONFIG", "SET", "maxmemory", "1"],
            &["CONFIG", "SET", "maxmemory-policy", "noeviction", ";", "CONFIG", "SET", "maxmemory", "0"],
        ),
    ];
    for (begins, ends) in spells {
        let name = unique("spell");
        cluster.nodes[0].stop();
        becomes(&api, 0, "down").await;
        let taken_at = Instant::now();
        let lease = api.acquire(&name, json!({"ttl_ms": 2_000})).await.ok();
        cluster.nodes[0].resume();
        let run = |words: &[&str]| words.split(|word| *word == ";").for_each(|words| redis.command(words));
        run(begins);
        becomes(&api, 2, "refused").await;
        // Nothing is stored for want of memory, and leases go for it.
        eventually("the node has forgotten the lease", || async {
            let _ = redis.try_command::<()>(&["SET", "filler", ""]);
            redis.leases(&name).is_empty()
        })
        .await;
        run(ends);
        eventually("the node is not refused", || async { node(&api, 2).await["state"] != "refused" }).await;
        let seen = node(&api, 2).await;
        becomes(&api, 0, "voting").await;
        let second = api.acquire(&name, json!({"ttl_ms": 2_000})).await;
        let validity = Duration::from_millis(number(&lease, "validity_ms"));
        assert!(second.status != 200 || taken_at.elapsed() > validity, "two hold it: {}", second.text());
        assert_eq!(seen["state"], "quarantined", "{seen}");
        server.all_voting().await;
    }
}

#[tokio::test]
async fn a_node_that_cannot_be_reached_at_start_is_no_reason_not_to_start() {
    let mut cluster = Cluster::with(3, &RedisOptions::default(), &MAX_TTL);
    cluster.nodes[0].kill();
    let server = Server::start(&cluster.options().with(&MAX_TTL)).ready().await;
    assert_eq!(node(&server.api(), 0).await["state"], "down");
    server.api().acquire("two", json!({"ttl_ms": 2_000})).await.ok();
    cluster.nodes[0].restart();
    server.all_voting().await;
    // For init it is.
    cluster.nodes[0].kill();
    let output = init(&cluster.urls(), &MAX_TTL);
    assert!(!output.status.success());
    let port = cluster.nodes[0].port().to_string();
    assert!(String::from_utf8_lossy(&output.stderr).contains(&port), "which node?");
}

#[tokio::test]
async fn the_longest_ttl_of_any_server_counts_for_all() {
    let (mut cluster, server) = marked().await;
    // Another server lets leases live longer; once it has been there, every node knows.
    let longer = cluster.server(&["--max-ttl", "60s"]).await;
    longer.api().acquire("long", json!({"ttl_ms": 60_000})).await.ok();
    drop(longer);
    server.all_voting().await;
    cluster.nodes[1].restart();
    becomes(&server.api(), 1, "quarantined").await;
    // Long before the two seconds of its own are over.
    let since = Instant::now();
    eventually("it knows for how long", || async {
        node(&server.api(), 1).await["voting_in_ms"].as_u64().is_some_and(|wait| wait > 30_000)
    })
    .await;
    assert!(since.elapsed() < Duration::from_millis(MAX_TTL_MS), "{:?}", since.elapsed());
    tokio::time::sleep(Duration::from_millis(MAX_TTL_MS)).await;
    assert_eq!(node(&server.api(), 1).await["state"], "quarantined");
}

/// The clock of one node, in a file.
struct WrongClock(PathBuf);

impl WrongClock {
    /// Three nodes, of which the last goes by it; `None` where that cannot be had.
    fn of_the_last() -> Option<(Cluster, Self)> {
        let library = libfaketime()?;
        let libc = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        if !Path::new(libc).exists() {
            skip(&format!("no {libc} to be loaded before libfaketime: no clock of a node steps"));
            return None;
        }
        let clock = Self(new_directory().join("clock"));
        clock.set("+0s");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let environment = [
            ("LD_PRELOAD", format!("{}:{libc}", text(&library))),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", text(&clock.0)),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let mut cluster = Cluster::blank(2, &RedisOptions::default());
        cluster.nodes.push(Redis::with(RedisOptions { environment, ..RedisOptions::default() }));
        cluster.init(&MAX_TTL);
        Some((cluster, clock))
    }

    fn set(&self, offset: &str) {
        std::fs::write(&self.0, offset).unwrap();
    }
}

impl Drop for WrongClock {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

#[tokio::test]
async fn a_node_whose_clock_steps_abstains_for_the_longest_ttl() {
    let Some((cluster, clock)) = WrongClock::of_the_last() else { return };
    let server = cluster.server(&MAX_TTL).await;
    let api = server.api();
    for step in ["+60s", "+0s"] {
        let name = unique("step");
        let lease = api.acquire(&name, json!({"ttl_ms": 2_000})).await.ok();
        let stepped_at = Instant::now();
        clock.set(step);
        becomes(&api, 2, "quarantined").await;
        let seen = node(&api, 2).await;
        assert!(seen["reason"].as_str().is_some_and(|reason| reason.contains("clock")), "{seen}");
        // The two others know better.
        assert_eq!(token(&api.extend(&name, &lease).await.ok()), token(&lease));
        api.acquire(&name, json!({})).await.problem(409, "lock_held");
        becomes(&api, 2, "voting").await;
        assert!(stepped_at.elapsed() >= Duration::from_millis(MAX_TTL_MS), "{:?}", stepped_at.elapsed());
    }
}

#[tokio::test]
async fn the_vote_that_tells_of_a_clock_step_does_not_count() {
    let Some((cluster, clock)) = WrongClock::of_the_last() else { return };
    let server = cluster.server(&MAX_TTL).await;
    let api = server.api();
    for step in ["+60s", "+120s"] {
        let name = unique("step");
        // One node has never heard of the lease, and to another it soon has expired.
        cluster.nodes[0].stop();
        becomes(&api, 0, "down").await;
        let taken_at = Instant::now();
        let lease = api.acquire(&name, json!({"ttl_ms": 2_000})).await.ok();
        cluster.nodes[0].resume();
        server.all_voting().await;
        clock.set(step);
        let second = api.acquire(&name, json!({"ttl_ms": 2_000})).await;
        let validity = Duration::from_millis(number(&lease, "validity_ms"));
        assert!(second.status != 200 || taken_at.elapsed() > validity, "two hold it: {}", second.text());
        server.all_voting().await;
    }
}

#[tokio::test]
async fn a_clock_that_keeps_stepping_keeps_its_node_from_voting() {
    let Some((cluster, clock)) = WrongClock::of_the_last() else { return };
    let server = cluster.server(&MAX_TTL).await;
    let _held = held(&server).await;
    let api = server.api();
    clock.set("+0 x2.0");
    becomes(&api, 2, "quarantined").await;
    // Each step begins the wait anew.
    let mut left = u64::MAX;
    for _ in 0..5 {
        eventually("the clock steps again", async || {
            let before = left;
            let seen = node(&api, 2).await;
            assert_ne!(seen["state"], "voting");
            left = seen["voting_in_ms"].as_u64().unwrap_or(u64::MAX);
            left > before
        })
        .await;
    }
}
