//! The audit log: who took what away, what was read again, and what became of each lease.

use crate::dev_server::{DevServer, quorate, until};

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
    assert_eq!(find("released", "given").unwrap()["names"], serde_json::json!(["given", "back"]));
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
