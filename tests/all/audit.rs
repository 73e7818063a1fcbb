//! The audit log: who took what away, what was read again, and what became of each lease.

use serde_json::{Value, json};

use crate::dev_server::{DevServer, quorate, until};
use crate::support::{Cluster, eventually};

#[test]
fn the_audit_log_tells_of_forced_releases_of_reloads_and_of_each_lease() {
    let folder = tempfile::tempdir().unwrap();
    let [log, keys] = ["audit.jsonl", "keys.toml"].map(|name| folder.path().join(name));
    let made =
        quorate().args(["keys", "new", "--name", "ops", "--scope", "read,lock,admin"]).output().unwrap();
    let made = String::from_utf8(made.stdout).unwrap();
    let entry = made.split_once("[[key]]").unwrap().1;
    std::fs::write(&keys, format!("[[key]]{entry}")).unwrap();
    let secret = made.split("\n\n").nth(1).unwrap();
    let [log_path, keys_path] = [&log, &keys].map(|path| path.to_str().unwrap());
    let server = DevServer::start_with(&["--api-keys", keys_path, "--audit-log", log_path, "--audit-leases"]);
    let ask = |words: &[&str]| {
        let output = server.command(words).env("QUORATE_API_KEY", secret).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let lease: serde_json::Value =
        serde_json::from_slice(&ask(&["lock", "acquire", "taken", "--owner", "somebody"])).unwrap();
    ask(&["lock", "force-release", "taken", "--reason", "gone & forgotten"]);
    ask(&["lock", "acquire", "over", "--ttl", "100ms"]);
    let late = ["lock", "extend", "taken", "--lease-id", lease["lease_id"].as_str().unwrap()];
    let late = server.command(&late).env("QUORATE_API_KEY", secret).output().unwrap();
    assert_eq!(late.status.code(), Some(20));
    ask(&["run", "--lock", "given", "--lock", "back", "--", "true"]);
    std::fs::write(&keys, "no keys").unwrap();
    let lines = || -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&log).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let find = |event: &str, name: &str| {
        let is_it = |line: &serde_json::Value| {
            line["event"] == event && (name.is_empty() || line["names"][0] == name)
        };
        lines().into_iter().find(is_it)
    };
    for (event, name) in [
        ("granted", "taken"),
        ("forced_release", "taken"),
        ("lost", "taken"),
        ("granted", "over"),
        ("expired", "over"),
        ("granted", "given"),
        ("released", "given"),
        ("reloaded", ""),
    ] {
        until(&format!("{event} {name}"), || find(event, name).is_some());
    }
    let granted = find("granted", "taken").unwrap();
    assert_eq!((&granted["owner"], &granted["fencing_token"]), (&"somebody".into(), &lease["fencing_token"]));
    let forced = find("forced_release", "taken").unwrap();
    assert_eq!(
        (&forced["key"], &forced["primitive"], &forced["released"]),
        (&"ops".into(), &"lock".into(), &true.into())
    );
    assert_eq!(forced["reason"], "gone & forgotten");
    assert!(forced["request_id"].as_str().is_some_and(|id| !id.is_empty()), "{forced}");
    assert!(find("expired", "taken").is_none(), "what was taken away is not over by itself");
    assert_eq!(find("released", "given").unwrap()["names"], json!(["given", "back"]));
    let reloaded = find("reloaded", "").unwrap();
    assert!(reloaded["what"] == "keys" && reloaded["error"].is_string(), "{reloaded}");
    assert!(lines().iter().all(|line| !line.to_string().contains(lease["lease_id"].as_str().unwrap())));
    let metrics = String::from_utf8(http(&server)).unwrap();
    for series in [
        "quorate_forced_releases_total{primitive=\"lock\"} 1",
        "quorate_leases_expired_total{primitive=\"lock\"} 1",
        "quorate_leases{primitive=\"lock\"} 0",
        "quorate_leases{primitive=\"multilock\"} 0",
        "quorate_reload_failures_total{what=\"keys\"} 1",
    ] {
        assert!(metrics.lines().any(|line| line == series), "{series} in {metrics}");
    }
}

/// What the audit tells of each lease, in order.
fn told(log: &std::path::Path, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_it = lines.filter(|line| line["names"][0] == name);
    of_it.map(|line| line["event"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_audit_log_tells_a_lease_that_a_stream_held_to_be_released_only_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit.jsonl");
    let cluster = Cluster::new(3);
    let server = cluster.server(&["--audit-log", log.to_str().unwrap(), "--audit-leases"]).await;
    let api = server.api();
    let hold = async |name: &str, body: Value| {
        let mut stream = api.stream("POST", &format!("/v1/locks/{name}/hold"), body).await.unwrap();
        while stream.next().await.name != "acquired" {}
        stream
    };
    // Of a lease that a stream held, how it ended.
    let ended = async |name: &str| {
        eventually("the end of the lease is told", || async { told(&log, name).len() > 1 }).await;
    };

    let mut capped = hold("capped", json!({"ttl_ms": 200, "max_hold_ms": 200})).await;
    while capped.next().await.name != "lost" {}
    ended("capped").await;

    let mut forgotten = hold("forgotten", json!({"ttl_ms": 300})).await;
    loop {
        for node in &cluster.nodes {
            node.command::<u64>(&["DEL", "quorate:lock:forgotten"]);
        }
        if forgotten.next().await.name == "lost" {
            break;
        }
    }
    ended("forgotten").await;

    drop(hold("left", json!({"ttl_ms": 20_000})).await);
    ended("left").await;

    let mut cut_off = hold("cut-off", json!({"ttl_ms": 2_000})).await;
    cluster.nodes.iter().for_each(|node| node.stop());
    while cut_off.next().await.name != "lost" {}
    ended("cut-off").await;
    cluster.nodes.iter().for_each(|node| node.resume());

    // Lines are in order: behind this one there is nothing more to be told of the others.
    drop(hold("last", json!({"ttl_ms": 20_000, "wait_ms": 60_000})).await);
    ended("last").await;
    for (name, end) in
        [("capped", "expired"), ("forgotten", "lost"), ("left", "released"), ("cut-off", "expired")]
    {
        assert_eq!(told(&log, name), ["granted", end], "{name}");
    }
    assert_eq!(api.metric("quorate_leases{primitive=\"lock\"}").await, 0.0);
    assert_eq!(api.metric("quorate_leases_expired_total{primitive=\"lock\"}").await, 3.0);
}

#[tokio::test]
async fn the_audit_log_tells_a_lease_to_be_released_at_the_server_that_released_it_and_who_changed_the_members()
 {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit.jsonl");
    let cluster = Cluster::new(3);
    let one = cluster.server(&[]).await;
    let other = cluster.server(&["--audit-log", log.to_str().unwrap(), "--audit-leases"]).await;
    let lease = one.api().acquire("elsewhere", json!({"owner": "worker"})).await.ok();
    let id = &lease["lease_id"];
    other.api().post("/v1/locks/elsewhere/release", json!({"lease_id": id})).await.ok();
    other.api().post("/v1/members/n3/close", json!({})).await.ok();
    let find = |event: &str| {
        let text = std::fs::read_to_string(&log).unwrap();
        let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["event"] == event)
    };
    eventually("both are written", async || find("released").is_some() && find("members_changed").is_some())
        .await;
    let released = find("released").unwrap();
    assert_eq!(
        (&released["names"], &released["fencing_token"]),
        (&json!(["elsewhere"]), &lease["fencing_token"])
    );
    let changed = find("members_changed").unwrap();
    assert!(
        changed["change"].as_str().unwrap().starts_with("close ") && changed["epoch"].is_u64(),
        "{changed}"
    );
    assert!(!changed["request_id"].as_str().unwrap().is_empty());
}

#[tokio::test]
async fn a_forced_release_of_which_no_quorum_tells_the_outcome_is_written_down_too() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit.jsonl");
    let mut cluster = Cluster::new(3);
    let server = cluster.server(&["--audit-log", log.to_str().unwrap()]).await;
    let api = server.api();
    api.acquire("taken", json!({})).await.ok();
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    api.delete("/v1/locks/taken?reason=gone").await.problem(503, "quorum_unavailable");
    let written = || std::fs::read_to_string(&log).unwrap();
    eventually("it is written", || async { written().ends_with('\n') }).await;
    let line: serde_json::Value = serde_json::from_str(written().trim()).unwrap();
    assert_eq!(
        (&line["event"], &line["names"], &line["reason"]),
        (&json!("forced_release"), &json!(["taken"]), &json!("gone"))
    );
    assert!(line.get("released").is_none() && line["error"].is_string(), "{line}");
}

/// The answer to a GET of the metrics.
fn http(server: &DevServer) -> Vec<u8> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(crate::dev_server::PATIENCE)).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}
