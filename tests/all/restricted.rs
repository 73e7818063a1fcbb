//! Nodes as others run them: with rights taken away, commands renamed, a password that changes, in
//! cluster mode, behind IPv6. Each works, or is refused with a sentence that names the cause.

use serde_json::json;

use crate::support::server::init;
use crate::support::{Cluster, Redis, RedisOptions, Server, ServerOptions, eventually, unique};

/// What scripts call, and calls themselves, that a user's rights may lack.
const RIGHTS: [&str; 17] = [
    "zadd",
    "pexpire",
    "pttl",
    "zremrangebyscore",
    "zcount",
    "zrangebyscore",
    "zrem",
    "publish",
    "get",
    "mget",
    "set",
    "setrange",
    "del",
    "time",
    "evalsha",
    "script",
    "info",
];

#[tokio::test]
async fn a_node_whose_user_lacks_one_right_does_not_vote_and_a_failed_acquire_bars_nobody() {
    let cluster = Cluster::new(3);
    for node in &cluster.nodes {
        node.command::<()>(&["ACL", "SETUSER", "locker", "on", ">p", "~*", "&*", "+@all"]);
    }
    let urls = cluster.urls().into_iter().map(|url| url.replace("redis://", "redis://locker:p@"));
    let server = Server::start(&ServerOptions::over(urls));
    server.all_voting().await;
    let api = server.api();
    for right in RIGHTS {
        let rule = |sign: char| {
            for node in &cluster.nodes[..2] {
                node.command::<()>(&["ACL", "SETUSER", "locker", &format!("{sign}{right}")]);
                // Some are only asked for by a new connection.
                let _ = node.try_command::<i64>(&["CLIENT", "KILL", "USER", "locker"]);
            }
        };
        rule('-');
        eventually(&format!("the reason is named without {right}"), || async {
            let nodes = api.get("/v1/nodes").await.ok();
            nodes["nodes"].as_array().unwrap()[..2].iter().all(|node| {
                let reason = node["reason"].as_str().unwrap_or_default();
                node["state"] != "voting"
                    && ["NOPERM", "can't run this command", "no permissions"]
                        .iter()
                        .any(|words| reason.contains(words))
            })
        })
        .await;
        let name = unique("restricted");
        let body = json!({"limit": 3, "permits": 2, "ttl_ms": 300_000});
        let answer = api.post(&format!("/v1/semaphores/{name}/acquire"), body).await;
        answer.problem(503, "quorum_unavailable");
        rule('+');
        server.all_voting().await;
        let all = json!({"limit": 3, "permits": 3, "ttl_ms": 1_000, "wait_ms": 10_000});
        let lease = api.post(&format!("/v1/semaphores/{name}/acquire"), all).await.ok();
        let body = json!({"lease_id": lease["lease_id"]});
        let released = api.post(&format!("/v1/semaphores/{name}/release"), body).await.ok();
        assert_eq!(released, json!({"released": true}), "after {right}");
    }
}

/// Only lists go through all keys.
#[tokio::test]
async fn nodes_whose_user_may_not_scan_grant_leases_and_list_none() {
    let cluster = Cluster::new(3);
    for node in &cluster.nodes {
        node.command::<()>(&["ACL", "SETUSER", "locker", "on", ">p", "~*", "&*", "+@all", "-scan"]);
    }
    let urls = cluster.urls().into_iter().map(|url| url.replace("redis://", "redis://locker:p@"));
    let server = Server::start(&ServerOptions::over(urls));
    server.all_voting().await;
    let (api, name) = (server.api(), unique("unlisted"));
    let lease = api.acquire(&name, json!({})).await.ok();
    api.get("/v1/locks").await.problem(503, "quorum_unavailable");
    assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
    assert!(server.log().contains(r#"op="list""#), "{}", server.log());
}

/// A node in cluster mode that has all slots.
fn in_cluster_mode() -> Redis {
    let arguments = ["--cluster-enabled", "yes"].map(str::to_owned).to_vec();
    let node = Redis::with(RedisOptions { arguments, ..RedisOptions::default() });
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let mut words = vec!["CLUSTER", "ADDSLOTS"];
    words.extend(slots.iter().map(String::as_str));
    node.command::<()>(&words);
    node
}

#[tokio::test]
async fn a_node_in_cluster_mode_is_refused_and_the_reason_says_so() {
    let node = in_cluster_mode();
    let output = init(&[node.url()], &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("cluster mode"), "{said}");
    // It comes in the place of one that was not, and is no part of a quorum.
    let cluster = Cluster::new(3);
    let (proxies, options) = cluster.proxies();
    let server = Server::start(&options);
    server.all_voting().await;
    proxies[2].turn_to(node.port());
    let api = server.api();
    eventually("the server says so", || async {
        let nodes = api.get("/v1/nodes").await.ok();
        let reason = nodes["nodes"][2]["reason"].as_str().unwrap_or_default();
        nodes["nodes"][2]["state"] != "voting" && reason.contains("cluster mode")
    })
    .await;
    api.acquire(&unique("two"), json!({})).await.ok();
    cluster.nodes[0].stop();
    eventually("it is not ready", || async { api.get("/readyz").await.status == 503 }).await;
}

#[tokio::test]
async fn a_password_that_changes_while_in_use_is_read_again_from_its_file() {
    let cluster = Cluster::blank(3, &RedisOptions::default());
    let set = |password: &str| {
        for node in &cluster.nodes {
            let password = format!(">{password}");
            node.command::<()>(&[
                "ACL",
                "SETUSER",
                "locker",
                "on",
                "resetpass",
                &password,
                "~*",
                "&*",
                "+@all",
            ]);
            let _ = node.try_command::<i64>(&["CLIENT", "KILL", "USER", "locker"]);
        }
    };
    set("first");
    let file = crate::support::redis::new_directory().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let urls: Vec<String> =
        cluster.urls().iter().map(|url| url.replace("redis://", "redis://locker@")).collect();
    let arguments = ["--redis-password-file", file.to_str().unwrap()];
    assert!(init(&urls, &arguments).status.success());
    let server = Server::start(&ServerOptions::over(urls).with(&arguments));
    server.all_voting().await;
    set("second");
    let api = server.api();
    eventually("the old password is refused", || async {
        let nodes = api.get("/v1/nodes").await.text();
        assert!(!nodes.contains("first"), "{nodes}");
        nodes.contains("WRONGPASS")
    })
    .await;
    std::fs::write(&file, "second\n").unwrap();
    server.all_voting().await;
    let name = unique("rotated");
    let lease = api.acquire(&name, json!({})).await.ok();
    assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
    let _ = std::fs::remove_dir_all(file.parent().unwrap());
}

#[tokio::test]
async fn nodes_with_commands_renamed_and_others_behind_two_addresses_are_as_good_as_any() {
    let renamed = ["CONFIG", "KEYS", "FLUSHALL", "FLUSHDB", "DEBUG", "SAVE", "SHUTDOWN", "MONITOR"];
    let arguments =
        renamed.iter().flat_map(|name| ["--rename-command", name, "nobody-knows"].map(str::to_owned));
    // Each under a name of its own, or the last would be the only one.
    let arguments = arguments
        .enumerate()
        .map(|(i, word)| if word == "nobody-knows" { format!("{word}-{i}") } else { word });
    let managed = Redis::with(RedisOptions { arguments: arguments.collect(), ..RedisOptions::default() });
    let both = || ["--bind", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let over_six = Redis::with(RedisOptions { arguments: both(), ..RedisOptions::default() });
    // Only one of the addresses of this name leads to it, where the name has several.
    let mut by_name = Redis::with(RedisOptions::default());
    let urls = vec![
        managed.url(),
        format!("redis://[::1]:{}", over_six.port()),
        format!("redis://localhost:{}", by_name.port()),
    ];
    assert!(init(&urls, &[]).status.success());
    let server = Server::start(&ServerOptions::over(urls));
    server.all_voting().await;
    let (api, name) = (server.api(), unique("managed"));
    let lease = api.acquire(&name, json!({})).await.ok();
    assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
    by_name.kill();
    let port = by_name.port();
    eventually("the reason says which address failed how", || async {
        let nodes = api.get("/v1/nodes").await.ok();
        let reason = nodes["nodes"][2]["reason"].as_str().unwrap_or_default().to_owned();
        reason.contains(&format!("127.0.0.1:{port}: Connection refused"))
    })
    .await;
}
