//! Clients behind proxies, and clients that vanish: what the server is not told it finds out.
//!
//! nginx, HAProxy and Envoy run with the files of `examples/proxies`. Where a program is missing, its tests pass, and a line
//! `skipped: …` of the output says so.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::dev_server::DevServer;
use crate::support::redis::{free_port, leashed, new_directory};
use crate::support::server::QUORATE;
use crate::support::{Api, Shared, eventually, number, secret, skip, unique};

/// A proxy in front of a server.
struct Proxy {
    child: Child,
    api: Api,
    directory: PathBuf,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn is_installed(program: &str) -> bool {
    let installed = Command::new(program).arg("-v").stderr(Stdio::null()).stdout(Stdio::null()).status();
    if installed.is_err() {
        skip(&format!("no {program}, streams and leaving not tested behind it"));
    }
    installed.is_ok()
}

/// How long a proxy lets an answer be silent, in the examples.
const SILENCE: &str = "75s";

/// An example with other addresses, and another patience.
fn example(file: &str, server: SocketAddr, port: u16, silence: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/proxies").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    assert!(["127.0.0.1", "8080", "8000", SILENCE].iter().all(|part| text.contains(part)));
    // In this order: the server's port could have the other's digits in it.
    text.replace("8000", "LISTEN")
        .replace("8080", &server.port().to_string())
        .replace("LISTEN", &port.to_string())
        .replace(SILENCE, silence)
}

impl Proxy {
    async fn start(program: &str, config: impl Fn(u16, &Path) -> String, words: &[&str]) -> Self {
        let (port, directory) = (free_port(), new_directory());
        let file = directory.join("config.yaml");
        std::fs::write(&file, config(port, &directory)).unwrap();
        let child = leashed(program).args(words).arg(&file).stdout(Stdio::null()).spawn().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let proxy = Self { child, api: Api::new(address), directory };
        eventually("the proxy listens", || async { TcpStream::connect(address).await.is_ok() }).await;
        eventually("the proxy knows the server", || async { proxy.api.get("/readyz").await.status == 200 })
            .await;
        proxy
    }

    async fn nginx(server: SocketAddr, silence: &str) -> Self {
        let config = |port, directory: &Path| {
            let at = directory.display();
            let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                .map(|kind| format!("{kind}_temp_path {at}/{kind};\n"))
                .concat();
            let example = example("nginx.conf", server, port, silence);
            format!(
                "daemon off; master_process off; pid {at}/pid; error_log stderr; events {{}}\n\
                 http {{ access_log off;\n{temporary}{example}}}\n"
            )
        };
        Self::start("nginx", config, &["-e", "stderr", "-c"]).await
    }

    async fn haproxy(server: SocketAddr, silence: &str, tells_who_leaves: bool) -> Self {
        let config = |port, _: &Path| {
            let example = example("haproxy.cfg", server, port, silence);
            assert!(example.contains("option abortonclose"));
            let option = if tells_who_leaves { "option abortonclose" } else { "no option abortonclose" };
            example.replace("option abortonclose", option)
        };
        Self::start("haproxy", config, &["-db", "-f"]).await
    }

    async fn envoy(server: SocketAddr, silence: &str) -> Self {
        let config = |port, _: &Path| example("envoy.yaml", server, port, silence);
        let words = ["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error", "--config-path"];
        Self::start("envoy", config, &words).await
    }

    /// Events pass at once, and a stream that ends ends at the server.
    async fn passes_streams_on(&self, server: &Api) {
        let name = unique("stream");
        let path = format!("/v1/locks/{name}/hold");
        let mut stream = self.api.stream("POST", &path, json!({"ttl_ms": 900})).await.ok().unwrap();
        let lease = stream.expect("acquired").await;
        assert_eq!(secret(&stream.expect("extended").await), secret(&lease));
        drop(stream);
        eventually("it is free", || async { server.lock(&name).await["held"] == false }).await;
    }

    /// Many requests, over connections that are kept.
    async fn passes_requests_on(&self) {
        let name = unique("request");
        for _ in 0..100 {
            let lease = self.api.acquire(&name, json!({})).await.ok();
            self.api.release(&name, &lease).await.ok();
        }
    }

    /// A waiter that leaves; with its request id.
    async fn wait_and_leave(&self, server: &Api, name: &str, request: &str) {
        let (api, path) = (self.api.clone(), name.to_owned());
        let body = json!({"wait_ms": 50_000, "request_id": request});
        let waiting = tokio::spawn(async move { api.acquire(&path, body).await });
        eventually("it waits", || async { number(&server.lock(name).await, "waiters") == 1 }).await;
        waiting.abort();
        let _ = waiting.await;
    }

    async fn tells_who_leaves(&self, server: &Api) {
        let name = unique("leaves");
        server.acquire(&name, json!({})).await.ok();
        self.wait_and_leave(server, &name, &unique("request")).await;
        eventually("it is gone", || async { number(&server.lock(&name).await, "waiters") == 0 }).await;
    }
}

#[tokio::test]
async fn behind_nginx_streams_pass_and_who_leaves_is_gone() {
    if !is_installed("nginx") {
        return;
    }
    let server = Shared::nodes(3).api();
    let proxy = Proxy::nginx(server.address(), SILENCE).await;
    proxy.passes_streams_on(&server).await;
    proxy.passes_requests_on().await;
    proxy.tells_who_leaves(&server).await;
}

#[tokio::test]
async fn behind_haproxy_streams_pass_and_who_leaves_is_gone() {
    if !is_installed("haproxy") {
        return;
    }
    let server = Shared::nodes(3).api();
    let proxy = Proxy::haproxy(server.address(), SILENCE, true).await;
    proxy.passes_streams_on(&server).await;
    proxy.passes_requests_on().await;
    proxy.tells_who_leaves(&server).await;
}

#[tokio::test]
async fn behind_envoy_streams_pass_and_who_leaves_is_gone() {
    if !is_installed("envoy") {
        return;
    }
    let server = Shared::nodes(3).api();
    let proxy = Proxy::envoy(server.address(), SILENCE).await;
    proxy.passes_streams_on(&server).await;
    proxy.passes_requests_on().await;
    proxy.tells_who_leaves(&server).await;
}

#[tokio::test]
async fn behind_a_proxy_that_hides_who_leaves_a_release_by_request_id_ends_the_wait() {
    if !is_installed("haproxy") {
        return;
    }
    let server = Shared::nodes(3).api();
    let proxy = Proxy::haproxy(server.address(), SILENCE, false).await;
    let (name, request) = (unique("hidden"), unique("request"));
    let lease = server.acquire(&name, json!({})).await.ok();
    proxy.wait_and_leave(&server, &name, &request).await;
    let path = format!("/v1/locks/{name}/release");
    let ended = proxy.api.post(&path, json!({"request_id": request})).await.ok();
    assert_eq!((&ended["released"], number(&server.lock(&name).await, "waiters")), (&json!(true), 0));
    server.release(&name, &lease).await.ok();
    server.acquire(&name, json!({})).await.ok();
}

/// Waits for 20 s behind a proxy that cuts off what is silent for 15.
async fn waits_longer_than_the_proxy(proxy: &Proxy, server: &Api) {
    let name = unique("silent");
    let lease = server.acquire(&name, json!({"ttl_ms": 60_000})).await.ok();
    let revision = server.lock(&name).await["revision"].as_str().unwrap().to_owned();
    let (path, acquire) =
        (format!("/v1/locks/{name}?after={revision}&wait_ms=20000"), format!("/v1/locks/{name}/acquire"));
    let events = proxy.api.with_header("accept", "text/event-stream");
    let spaces = proxy.api.with_header("prefer", "wait=20");
    let (cut_off, seen, read, refused) = tokio::join!(
        proxy.api.get(&path),
        events.get(&path),
        spaces.get(&path),
        events.post(&acquire, json!({"wait_ms": 20_000})),
    );
    assert_eq!(cut_off.status, 504, "{}", cut_off.text());
    assert_eq!(read.ok()["fencing_token"], lease["fencing_token"]);
    for (answer, event, member) in [(seen, "answer", "revision"), (refused, "problem", "code")] {
        let text = answer.text();
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, Some("text/event-stream")),
            "{text}"
        );
        assert!(text.starts_with(": heartbeat\n\n"), "{text}");
        let data = text.split_once(&format!("event: {event}\ndata: ")).unwrap_or_else(|| panic!("{text}")).1;
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert!(data[member] == revision.as_str() || data[member] == "lock_held", "{data}");
    }
}

#[tokio::test]
async fn heartbeats_keep_a_wait_alive_behind_a_proxy_that_cuts_off_what_is_silent() {
    let server = Shared::nodes(3).api();
    let nginx = async {
        if is_installed("nginx") {
            waits_longer_than_the_proxy(&Proxy::nginx(server.address(), "15s").await, &server).await;
        }
    };
    let haproxy = async {
        if is_installed("haproxy") {
            waits_longer_than_the_proxy(&Proxy::haproxy(server.address(), "15s", true).await, &server).await;
        }
    };
    let envoy = async {
        if is_installed("envoy") {
            waits_longer_than_the_proxy(&Proxy::envoy(server.address(), "15s").await, &server).await;
        }
    };
    tokio::join!(nginx, haproxy, envoy);
}

/// In a network of its own, which drops what comes from the client or goes to it; the seconds until another one
/// got the lock.
const VANISH: &str = r#"
set -e
trap 'kill $(jobs -p)' EXIT
ip link set lo up
setpriv --pdeathsig KILL -- "$QUORATE" dev --listen 127.0.0.1:8080 >"$DIRECTORY/log" 2>&1 &
until "$QUORATE" healthcheck >"$DIRECTORY/health" 2>&1; do sleep 0.1; done
curl -sN --interface 127.0.0.2 -H 'content-type: application/json' -d '{"ttl_ms":3000}' \
    http://127.0.0.1:8080/v1/locks/a/hold >"$DIRECTORY/events" &
until grep -q acquired "$DIRECTORY/events"; do sleep 0.1; done
iptables -A INPUT -s 127.0.0.2 -j DROP
iptables -A INPUT -d 127.0.0.2 -j DROP
began=$(date +%s)
"$QUORATE" lock acquire a --wait 1m >"$DIRECTORY/lease"
echo $(($(date +%s) - began))
"#;

#[test]
fn a_stream_whose_client_vanishes_keeps_its_lease_for_about_twice_its_ttl() {
    let alone = || {
        let mut command = leashed("timeout");
        command.args(["120", "unshare", "--map-root-user", "--net", "bash", "-c"]);
        command
    };
    let able = alone().arg("ip link set lo up && iptables -L && curl --version").output();
    if !able.is_ok_and(|output| output.status.success()) {
        println!("skipped, there is no network of one's own to be had");
        return;
    }
    let directory = new_directory();
    let mut command = alone();
    command.arg(VANISH).env("QUORATE", QUORATE).env("DIRECTORY", &directory);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    let seconds: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    println!("a lease of 3 s was free after {seconds} s");
    // It would be 30 without regard to the ttl.
    assert!(seconds < 15, "{seconds}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn a_stream_that_waits_is_not_silent_for_a_third_of_its_ttl() {
    let (api, name) = (Shared::nodes(1).api(), unique("silent"));
    api.acquire(&name, json!({})).await.ok();
    let body = json!({"ttl_ms": 3000, "wait_ms": 50_000}).to_string();
    let headers = [("content-type", "application/json")];
    let request = api.request("POST", &format!("/v1/locks/{name}/hold"), &headers, body.as_bytes());
    let mut stream = TcpStream::connect(api.address()).await.unwrap();
    stream.write_all(&request).await.unwrap();
    let (began, mut read) = (Instant::now(), Vec::new());
    while !String::from_utf8_lossy(&read).contains(": heartbeat") {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0, "{}", String::from_utf8_lossy(&read));
    }
    // Every 10 s where the ttl is long.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_answer_says_for_how_long_its_connection_is_kept() {
    let server = DevServer::start_with(&["--idle-timeout", "4s"]);
    let api = Api::new(server.address());
    assert_eq!(api.get("/livez").await.header("keep-alive"), Some("timeout=4"));
    let closing = api.with_header("connection", "close").get("/livez").await;
    assert_eq!(closing.header("keep-alive"), None);
}
