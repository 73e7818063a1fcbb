//! API keys: who may do what with which names.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::redis::new_directory;
use crate::support::server::{quorate, run_quorate};
use crate::support::{Api, Cluster, Server, eventually, secret};

struct KeyFile(PathBuf);

/// A key's secret, its scopes, and its prefixes if not all names are its.
type KeyEntry<'a> = (&'a str, &'a [&'a str], Option<&'a [&'a str]>);

impl KeyFile {
    fn new(keys: &[KeyEntry<'_>]) -> Self {
        let file = Self(new_directory().join("keys.toml"));
        file.write(keys);
        file
    }

    fn write(&self, keys: &[KeyEntry<'_>]) {
        let mut text = String::from("# keys of a test\n");
        for (secret, scopes, prefixes) in keys {
            let hash = hex::encode(Sha256::digest(secret));
            text += &format!("[[key]]\nname = \"{secret}-name\"\nsha256 = \"{hash}\"\nscopes = {scopes:?}\n");
            if let Some(prefixes) = prefixes {
                text += &format!("prefixes = {prefixes:?}\n");
            }
        }
        std::fs::write(&self.0, text).unwrap();
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

const READER: &str = "reader-secret-0123456789";
const LOCKER: &str = "locker-secret-0123456789";
const ADMIN: &str = "admin-secret-0123456789";
const ORDERS: &str = "orders-secret-0123456789";
const OWNER: &str = "owner-secret-0123456789";

fn keys() -> KeyFile {
    KeyFile::new(&[
        (READER, &["read"], None),
        (LOCKER, &["lock"], None),
        (ADMIN, &["admin"], None),
        (ORDERS, &["read", "lock", "admin"], Some(&["orders:", "shared:"])),
        (OWNER, &["read", "lock", "admin"], None),
    ])
}

async fn keyed() -> (Cluster, Server, KeyFile) {
    let (cluster, keys) = (Cluster::new(1), keys());
    let server = Server::start(&cluster.options().with(&["--api-keys", keys.path(), "--log-level", "trace"]));
    let api = server.api();
    eventually("it is ready", || async { api.get("/readyz").await.status == 200 }).await;
    (cluster, server, keys)
}

#[tokio::test]
async fn a_server_that_asks_for_keys_tells_strangers_no_reason_why_it_is_not_ready() {
    let (mut cluster, server, _keys) = keyed().await;
    let port = cluster.nodes[0].port().to_string();
    cluster.nodes[0].kill();
    let api = server.api();
    eventually("it is not ready", || async { api.get("/readyz").await.status == 503 }).await;
    let problem = api.get("/readyz").await.problem(503, "quorum_unavailable");
    assert_eq!(problem["detail"], "0 of 1 nodes voting, 1 needed; n1 down");
    assert_eq!(problem["nodes"]["failed"], 1, "{problem}");
    // Who has a key is told, there as elsewhere.
    let nodes = with(&api, READER).get("/v1/nodes").await.text();
    assert!(nodes.contains(&port) && nodes.contains("reason"), "{nodes}");
}

#[test]
fn the_banner_of_dev_says_whether_there_are_keys_and_shows_calls_that_work() {
    let keys = keys();
    for flags in [&["--api-keys", keys.path()][..], &[]] {
        let mut command = quorate();
        command.args(["dev", "--listen", "0.0.0.0:0"]).args(flags).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let lines = stdout.lines().map_while(Result::ok).take_while(|line| !line.contains("Ctrl-C"));
        let banner: Vec<String> = lines.collect();
        child.kill().unwrap();
        child.wait().unwrap();
        let keyed = !flags.is_empty();
        assert_eq!(banner.concat().contains("there are no API keys"), !keyed, "{banner:#?}");
        let calls: Vec<_> = banner.iter().filter(|line| line.contains("curl")).collect();
        assert_eq!(calls.len(), 2, "{banner:#?}");
        for call in calls {
            assert_eq!(call.contains("-H 'authorization: Bearer SECRET'"), keyed, "{call}");
        }
    }
}

fn with(api: &Api, key: &str) -> Api {
    api.with_header("authorization", &format!("Bearer {key}"))
}

const LEASE_ID: &str = "0123456789abcdef0123456789abcdef0000000000002a";

/// Every operation with what it takes: (method, path, body, scope).
fn operations(name: &str) -> Vec<(&'static str, String, Value, &'static str)> {
    let lease = json!({"lease_id": LEASE_ID});
    let names = json!({"names": [format!("{name}:a"), format!("{name}:b")]});
    let mut held = names.clone();
    held["lease_id"] = json!(LEASE_ID);
    vec![
        ("GET", format!("/v1/locks/{name}"), Value::Null, "read"),
        ("GET", format!("/v1/locks?prefix={name}"), Value::Null, "read"),
        ("GET", format!("/v1/semaphores/{name}"), Value::Null, "read"),
        ("GET", format!("/v1/elections/{name}"), Value::Null, "read"),
        ("GET", format!("/v1/fencing/{name}"), Value::Null, "read"),
        ("POST", format!("/v1/locks/{name}/acquire"), json!({"ttl_ms": 100}), "lock"),
        ("POST", format!("/v1/locks/{name}/extend"), lease.clone(), "lock"),
        ("POST", format!("/v1/locks/{name}/release"), lease.clone(), "lock"),
        ("POST", "/v1/multilocks/acquire".to_owned(), names, "lock"),
        ("POST", "/v1/multilocks/extend".to_owned(), held.clone(), "lock"),
        ("POST", "/v1/multilocks/release".to_owned(), held, "lock"),
        ("POST", format!("/v1/semaphores/{name}/acquire"), json!({"limit": 3, "ttl_ms": 100}), "lock"),
        ("POST", format!("/v1/semaphores/{name}/extend"), lease.clone(), "lock"),
        ("POST", format!("/v1/semaphores/{name}/release"), lease.clone(), "lock"),
        ("POST", format!("/v1/elections/{name}/campaign"), json!({"candidate": "c", "ttl_ms": 100}), "lock"),
        ("POST", format!("/v1/elections/{name}/extend"), lease.clone(), "lock"),
        (
            "POST",
            format!("/v1/elections/{name}/proclaim"),
            json!({"lease_id": LEASE_ID, "value": "v"}),
            "lock",
        ),
        ("POST", format!("/v1/elections/{name}/resign"), lease, "lock"),
        ("POST", format!("/v1/fencing/{name}/issue"), json!({}), "lock"),
        ("POST", format!("/v1/fencing/{name}/check"), json!({"fencing_token": 1_u64 << 52}), "lock"),
        ("DELETE", format!("/v1/locks/{name}"), Value::Null, "admin"),
    ]
}

async fn call(api: &Api, method: &str, path: &str, body: &Value) -> crate::support::Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    api.send(method, path, &[("content-type", "application/json")], body.as_bytes()).await
}

#[tokio::test]
async fn without_a_key_only_what_probes_and_readers_of_the_docs_need_is_open() {
    let (_cluster, server, _keys) = keyed().await;
    let api = server.api();
    for path in ["/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/console", "/console/app.js"] {
        let status = api.get(path).await.status;
        assert!((200..400).contains(&status), "{path}: {status}");
    }
    let strangers = [
        ("no key", api.clone()),
        ("an unknown key", with(&api, "nobody-secret-0123456789")),
        ("an empty key", with(&api, "")),
        ("another scheme", api.with_header("authorization", &format!("Basic {OWNER}"))),
        ("a bare key", api.with_header("authorization", OWNER)),
        ("a longer key", with(&api, &format!("{OWNER}0"))),
        ("a shorter key", with(&api, &OWNER[1..])),
        ("the hash of a key", with(&api, &hex::encode(Sha256::digest(OWNER)))),
    ];
    for (who, stranger) in strangers {
        for (method, path, body, _) in operations("orders:1") {
            let answer = call(&stranger, method, &path, &body).await;
            assert_eq!(answer.status, 401, "{who}: {method} {path}: {}", answer.text());
            answer.problem(401, "unauthenticated");
            assert!(answer.header("www-authenticate").is_some_and(|value| value.starts_with("Bearer ")));
        }
        stranger.get("/v1/nodes").await.problem(401, "unauthenticated");
    }
}

#[tokio::test]
async fn whoever_is_refused_is_told_whether_the_key_is_missing_unknown_or_not_enough() {
    let (_cluster, server, _keys) = keyed().await;
    let api = server.api();
    let realm = r#"Bearer realm="quorate""#;
    for (api, status, error) in [
        (api.clone(), 401, String::new()),
        (with(&api, "nobody-secret-0123456789"), 401, r#", error="invalid_token""#.to_owned()),
        (with(&api, LOCKER), 403, r#", error="insufficient_scope""#.to_owned()),
        (with(&api, ORDERS), 403, r#", error="insufficient_scope""#.to_owned()),
    ] {
        let answer = api.get("/v1/locks/other").await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(answer.header("www-authenticate"), Some(format!("{realm}{error}").as_str()));
    }
}

#[tokio::test]
async fn of_two_keys_in_a_request_neither_counts() {
    let (_cluster, server, _keys) = keyed().await;
    for (first, second) in [(OWNER, "nobody"), ("nobody", OWNER), (OWNER, OWNER)] {
        let api = with(&with(&server.api(), first), second);
        let problem = api.acquire("twice", json!({})).await.problem(400, "invalid_request");
        assert_eq!(problem["errors"], json!([{"field": "Authorization", "message": "is given twice"}]));
    }
    assert_eq!(with(&server.api(), READER).lock("twice").await["held"], false);
}

#[tokio::test]
async fn a_key_may_do_what_its_scopes_say_and_nothing_else() {
    let (_cluster, server, _keys) = keyed().await;
    let api = server.api();
    for (key, may) in [(READER, "read"), (LOCKER, "lock"), (ADMIN, "admin"), (OWNER, "everything")] {
        let api = with(&api, key);
        for (i, (method, path, body, scope)) in operations("free").into_iter().enumerate() {
            let path = path.replace("free", &format!("free{i}"));
            let answer = call(&api, method, &path, &body).await;
            if may == "everything" || may == scope {
                assert!(matches!(answer.status, 200 | 409), "{may}: {method} {path}: {}", answer.text());
            } else {
                assert_eq!(answer.status, 403, "{may}: {method} {path}: {}", answer.text());
                answer.problem(403, "forbidden");
            }
        }
        let nodes = api.get("/v1/nodes").await;
        assert_eq!(nodes.status, if matches!(may, "read" | "everything") { 200 } else { 403 });
    }
}

#[tokio::test]
async fn members_are_seen_with_the_scope_read_and_changed_with_admin_alone() {
    let (_cluster, server, _keys) = keyed().await;
    let url = json!({"url": "redis://127.0.0.1:1"});
    let changes = [
        ("POST", "/v1/members", url.clone()),
        ("POST", "/v1/members/n1/replace", url),
        ("POST", "/v1/members/n1/close", json!({})),
        ("DELETE", "/v1/members/n1", Value::Null),
    ];
    for (method, path, body) in &changes {
        call(&server.api(), method, path, body).await.problem(401, "unauthenticated");
        for key in [READER, LOCKER] {
            call(&with(&server.api(), key), method, path, body).await.problem(403, "forbidden");
        }
        // One of one cannot go, and nothing leads to the other one.
        for key in [ADMIN, OWNER] {
            call(&with(&server.api(), key), method, path, body).await.problem(409, "unsafe_change");
        }
    }
    for (key, status) in [(READER, 200), (LOCKER, 403), (ADMIN, 403), (OWNER, 200)] {
        assert_eq!(with(&server.api(), key).get("/v1/members").await.status, status, "{key}");
    }
    server.api().get("/v1/members").await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn a_key_may_touch_only_names_with_its_prefixes() {
    let (_cluster, server, _keys) = keyed().await;
    let api = with(&server.api(), ORDERS);
    for name in ["orders:1", "shared:x", "orders:"] {
        for (method, path, body, _) in operations(name) {
            let answer = call(&api, method, &path, &body).await;
            assert!(matches!(answer.status, 200 | 409), "{method} {path}: {}", answer.text());
        }
    }
    for name in ["order:1", "xorders:1", "orders", "Orders:1", "secret"] {
        for (method, path, body, _) in operations(name) {
            let answer = call(&api, method, &path, &body).await;
            // Names of a multilock of "orders" begin with "orders:", which is fine.
            if name == "orders" && path.contains("multilocks") {
                continue;
            }
            // A list may also just leave out what is not to be seen.
            if path.contains('?') && answer.status == 200 {
                assert_eq!(answer.json()["locks"], json!([]));
                continue;
            }
            assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
            answer.problem(403, "forbidden");
        }
    }
    // Percent-encoded it is the same name.
    api.acquire("%6Frders:2", json!({})).await.ok();
    api.acquire("%73ecret", json!({})).await.problem(403, "forbidden");
    // One foreign member is one too many.
    let names = json!({"names": ["orders:3", "secret"]});
    api.post("/v1/multilocks/acquire", names).await.problem(403, "forbidden");
    assert_eq!(api.lock("orders:3").await["held"], false);
    // The members are everybody's.
    let closed = api.post("/v1/members/n1/close", json!({})).await.problem(403, "forbidden");
    assert!(closed["detail"].as_str().unwrap().contains("prefixes"), "{closed}");
    // A list shows nothing of others.
    with(&server.api(), OWNER).acquire("secret", json!({"owner": "somebody"})).await.ok();
    let everything = api.get("/v1/locks").await;
    assert!(!everything.text().contains("secret"), "{}", everything.text());
}

#[tokio::test]
async fn keys_are_read_again_when_the_file_changes() {
    let (_cluster, server, keys) = keyed().await;
    let api = server.api();
    with(&api, OWNER).acquire("before", json!({})).await.ok();
    with(&api, "fresh-secret-0123456789").get("/v1/nodes").await.problem(401, "unauthenticated");
    keys.write(&[("fresh-secret-0123456789", &["read"], None)]);
    eventually("the new key is known", || async {
        with(&api, "fresh-secret-0123456789").get("/v1/nodes").await.status == 200
    })
    .await;
    with(&api, OWNER).get("/v1/nodes").await.problem(401, "unauthenticated");
    // A file that cannot be read changes nothing.
    std::fs::write(&keys.0, "[[key]]\nname = ").unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    with(&api, "fresh-secret-0123456789").get("/v1/nodes").await.ok();
}

#[tokio::test]
async fn a_key_is_shown_by_nothing() {
    let (_cluster, server, _keys) = keyed().await;
    let api = server.api();
    for key in [OWNER, ORDERS, "unknown-secret-0123456789"] {
        let api = with(&api, key);
        api.acquire("orders:9", json!({})).await;
        api.acquire("orders:9", json!({"ttl": 1})).await;
        api.acquire("elsewhere", json!({})).await;
    }
    let shown = server.log() + &api.get("/metrics").await.text();
    for key in [OWNER, ORDERS, "unknown-secret-0123456789"] {
        let line = shown.lines().find(|line| line.contains(key) && !line.contains(&format!("{key}-name")));
        assert_eq!(line, None);
    }
}

#[tokio::test]
async fn a_new_key_is_printed_once_with_its_entry() {
    let output = run_quorate(&[
        "keys", "new", "--name", "ci", "--scope", "lock", "--scope", "read", "--prefix", "ci:",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let start = said.find("[[key]]").unwrap_or_else(|| panic!("no entry: {said}"));
    let entry: String = said[start..]
        .lines()
        .take_while(|line| !line.trim().is_empty())
        .map(|line| format!("{line}\n"))
        .collect();
    let table: toml::Table = entry.parse().unwrap_or_else(|why| panic!("{why}: {entry}"));
    let hash = table["key"][0]["sha256"].as_str().unwrap();
    let of_words = |word: &&str| hex::encode(Sha256::digest(word.trim_matches(['"', '\'', '`']))) == hash;
    let key = said.split_whitespace().find(of_words).unwrap_or_else(|| panic!("no key in {said}"));
    assert!(key.len() >= 32, "{key}");
    // It works as printed.
    let file = KeyFile::new(&[]);
    std::fs::write(&file.0, &entry).unwrap();
    let cluster = Cluster::new(1);
    let server = Server::start(&cluster.options().with(&["--api-keys", file.path()]));
    let api = with(&server.api(), key.trim_matches(['"', '\'', '`']));
    eventually("it is ready", || async { api.get("/readyz").await.status == 200 }).await;
    let lease = api.acquire("ci:build", json!({})).await.ok();
    assert!(!secret(&lease).is_empty());
    api.acquire("other", json!({})).await.problem(403, "forbidden");
    api.delete("/v1/locks/ci:build").await.problem(403, "forbidden");
}

#[test]
fn an_empty_prefix_is_not_taken_for_all_names() {
    for prefixes in [&["--prefix", ""][..], &["--prefix", "ci:", ""], &["--prefix", "ci:,"]] {
        let output = run_quorate(&[&["keys", "new", "--name", "ci", "--scope", "lock"], prefixes].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{prefixes:?}: {told}");
        assert!(told.contains("a prefix is empty") && output.stdout.is_empty(), "{prefixes:?}: {told}");
    }
}

#[tokio::test]
async fn without_keys_only_loopback_is_listened_on() {
    let cluster = Cluster::new(1);
    for address in ["0.0.0.0:0", "[::]:0"] {
        let Err(failed) = Server::try_start(&cluster.options().with(&["--listen", address])) else {
            panic!("serves everybody on {address}");
        };
        assert!(!failed.status.success());
        assert!(failed.stderr.contains("--insecure-no-auth"), "{}", failed.stderr);
    }
    let open = Server::start(&cluster.options().with(&["--listen", "0.0.0.0:0", "--insecure-no-auth"]))
        .ready()
        .await;
    open.api().acquire("open", json!({})).await.ok();
    let keys = keys();
    let guarded =
        Server::start(&cluster.options().with(&["--listen", "0.0.0.0:0", "--api-keys", keys.path()]));
    guarded.api().get("/v1/nodes").await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn a_key_file_that_is_wrong_keeps_the_server_from_starting() {
    let cluster = Cluster::new(1);
    let file = KeyFile::new(&[]);
    for text in [
        "[[key]]\nname = \"a\"\n",
        "[[key]]\nname = \"a\"\nsha256 = \"zz\"\nscopes = [\"read\"]\n",
        "[[key]]\nname = \"a\"\nsha256 = \"SHA\"\nscopes = [\"fly\"]\n",
        "[[key]]\nname = \"a\"\nsha256 = \"SHA\"\nscope = [\"read\"]\n",
        "[[key]]\nname = \"a\"\nsha256 = \"SHA\"\nscopes = [\"read\"]\nprefixes = [\"\"]\n",
        "nonsense",
    ] {
        let text = text.replace("SHA", &hex::encode(Sha256::digest("x")));
        std::fs::write(&file.0, &text).unwrap();
        let started = Server::try_start(&cluster.options().with(&["--api-keys", file.path()]));
        assert!(started.is_err(), "starts with {text}");
    }
    let missing = Server::try_start(&cluster.options().with(&["--api-keys", "/nowhere/keys.toml"]));
    assert!(missing.is_err_and(|failed| failed.stderr.contains("/nowhere/keys.toml")));
}

#[tokio::test]
async fn a_hangup_has_the_key_file_read_again_though_it_is_the_same() {
    let (_cluster, server, _keys) = keyed().await;
    assert!(!server.log().contains("keys read again"));
    crate::support::redis::signal(server.pid(), nix::sys::signal::Signal::SIGHUP);
    eventually("it is read again", async || server.log().contains("keys read again")).await;
}

#[tokio::test]
async fn a_forced_release_is_one_line_of_the_log_with_key_name_and_reason() {
    let (_cluster, server, _keys) = keyed().await;
    let api = with(&server.api(), OWNER);
    api.acquire("stuck:1", json!({"ttl_ms": 60_000})).await.ok();
    api.delete("/v1/locks/stuck:1?reason=its%20host%20is%20gone").await.ok();
    eventually("it is logged", async || server.log().contains("forced release")).await;
    let log = server.log();
    let line = log.lines().find(|line| line.contains("forced release")).unwrap();
    for part in ["stuck:1", "reason=\"its host is gone\"", "lock", "released=true", "key="] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[tokio::test]
async fn any_key_may_ask_what_it_may_do_and_is_shown_only_waiters_of_its_names() {
    let (_cluster, server, _keys) = keyed().await;
    let [all, orders, locker] = [OWNER, ORDERS, LOCKER].map(|key| with(&server.api(), key));
    assert_eq!(locker.get("/v1/key").await.ok()["scopes"], json!(["lock"]));
    let own = orders.get("/v1/key").await.ok();
    assert_eq!(own["scopes"], json!(["read", "lock", "admin"]));
    assert_eq!(own["prefixes"], json!(["orders:", "shared:"]));
    assert_eq!((&own["name"], own.as_object().unwrap().len()), (&json!(format!("{ORDERS}-name")), 3));
    server.api().get("/v1/key").await.problem(401, "unauthenticated");
    locker.get("/v1/waiters").await.problem(403, "forbidden");
    let mut tasks = Vec::new();
    for name in ["orders:1", "other:1"] {
        all.acquire(name, json!({"ttl_ms": 60_000})).await.ok();
        let api = all.clone();
        tasks.push(tokio::spawn(async move { api.acquire(name, json!({"wait_ms": 30_000})).await }));
    }
    let waiting = async |api: &Api| api.get("/v1/waiters").await.ok()["waiters"].as_array().unwrap().len();
    eventually("both wait", async || waiting(&all).await == 2).await;
    assert_eq!(waiting(&orders).await, 1);
    tasks.iter().for_each(|task| task.abort());
}
