//! Where clients touch the server: limits, deadlines, protocols, TLS, and the way it ends.
#![allow(clippy::disallowed_methods, reason = "processes are waited for in real time")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::dev_server::{DevServer, PATIENCE, ended, quorate, signal, until};

/// A client that speaks bytes.
struct Raw(TcpStream);

impl Raw {
    fn connect(server: &DevServer) -> Self {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    /// One answer, as far as its `content-length` goes; empty where the server closed.
    fn answer(&mut self) -> String {
        let mut bytes = Vec::new();
        let mut byte = [0];
        while !bytes.ends_with(b"\r\n\r\n") {
            match self.0.read(&mut byte) {
                Ok(1) => bytes.push(byte[0]),
                _ => return String::from_utf8(bytes).unwrap(),
            }
        }
        let head = String::from_utf8(bytes.clone()).unwrap().to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        self.0.read_exact(&mut body).unwrap();
        bytes.extend(body);
        String::from_utf8(bytes).unwrap()
    }

    fn get(&mut self, path: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
        self.answer()
    }

    fn post(&mut self, path: &str, body: &str) {
        let length = body.len();
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
    }

    /// Whether the server closes within its patience and `within`.
    fn closes_within(&mut self, within: Duration) -> bool {
        let started = Instant::now();
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest);
        started.elapsed() < within
    }
}

/// Asserts that the answer is this problem, with the request id of its header.
#[track_caller]
fn is_problem(answer: &str, status: u16, code: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    assert!(head.contains("content-type: application/problem+json"), "{answer}");
    let problem: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!((&problem["status"], &problem["code"]), (&status.into(), &code.into()), "{answer}");
    let id = head.lines().find_map(|line| line.strip_prefix("x-request-id: "));
    assert_eq!(problem["request_id"].as_str(), id, "{answer}");
}

/// A metric's value.
fn metric(server: &DevServer, name: &str) -> f64 {
    let text = Raw::connect(server).get("/metrics");
    let line =
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name} in {text}"));
    line.trim().parse().unwrap()
}

/// A long poll that waits for the lock `a`, which must be held.
fn long_poll(server: &DevServer) -> Raw {
    let mut client = Raw::connect(server);
    client.post("/v1/locks/a/acquire", r#"{"wait_ms": 60000}"#);
    client
}

#[test]
fn a_head_that_does_not_arrive_in_time_is_given_up() {
    let server = DevServer::start_with(&["--header-timeout", "500ms", "--idle-timeout", "1s"]);
    for part in ["", "GET /livez HTTP/1.1\r\nhost:"] {
        let mut client = Raw::connect(&server);
        client.send(part);
        assert!(client.closes_within(Duration::from_secs(5)), "{part:?}");
    }
    // A later one has the time of a connection that rests.
    let mut slow_second = Raw::connect(&server);
    assert!(slow_second.get("/livez").starts_with("HTTP/1.1 200"));
    slow_second.send("GET /livez HT");
    assert!(slow_second.closes_within(Duration::from_secs(5)));
    assert_eq!(metric(&server, "quorate_http_refused_total{reason=\"header_timeout\"}"), 2.0);
}

#[test]
fn a_connection_may_rest_between_requests_for_longer_than_a_head_may_take() {
    let server = DevServer::start_with(&["--header-timeout", "300ms", "--idle-timeout", "4s"]);
    let mut client = Raw::connect(&server);
    assert!(client.get("/livez").starts_with("HTTP/1.1 200"));
    std::thread::sleep(Duration::from_secs(2));
    assert!(client.get("/livez").starts_with("HTTP/1.1 200"));
    assert!(client.closes_within(Duration::from_secs(10)));
}

#[test]
fn a_connection_does_not_keep_the_room_of_a_large_answer() {
    let mut server = DevServer::start();
    let pid = server.child().id();
    let large = "/docs/swagger-ui-bundle.js";
    let size = Raw::connect(&server).get(large).len() as u64;
    assert!(size > 1_000_000);
    let before = crate::support::resident_bytes(pid);
    let mut clients: Vec<_> = (0..40).map(|_| Raw::connect(&server)).collect();
    for client in &mut clients {
        assert_eq!(client.get(large).len() as u64, size);
    }
    let each = crate::support::resident_bytes(pid).saturating_sub(before) / clients.len() as u64;
    assert!(each < size / 4, "{each} bytes each");
}

#[test]
fn a_body_that_does_not_arrive_in_time_is_given_up() {
    let server = DevServer::start_with(&["--body-timeout", "300ms"]);
    let mut client = Raw::connect(&server);
    client.send(
        "POST /v1/locks/a/acquire HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: 20\r\n\r\n{\"ttl_",
    );
    let answer = client.answer();
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
    assert_eq!(metric(&server, "quorate_http_refused_total{reason=\"body_timeout\"}"), 1.0);
}

/// What has no route yet is answered by hyper: a status, and no body.
#[test]
fn too_large_a_head_or_body_is_refused() {
    let server = DevServer::start();
    let mut client = Raw::connect(&server);
    client.send(&format!("GET /livez HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "x".repeat(20_000)));
    assert!(client.answer().starts_with("HTTP/1.1 431"));
    let long = format!("x-long: {}", "x".repeat(20_000));
    for (header, query) in [(long.as_str(), String::new()), ("x: x", format!("?{}", "x".repeat(20_000)))] {
        let output = Command::new("curl")
            .args(["-si", "--http2-prior-knowledge", "-H", header])
            .arg(format!("{}/livez{query}", server.url()))
            .output()
            .expect("curl runs");
        let answer = String::from_utf8(output.stdout).unwrap();
        assert!(answer.starts_with("HTTP/2 431"), "{answer}");
    }
    assert_eq!(metric(&server, "quorate_http_refused_total{reason=\"header_bytes\"}"), 1.0);
    let mut client = Raw::connect(&server);
    client.post("/v1/locks/a/acquire", &format!("{{\"owner\": \"{}\"}}", "x".repeat(70_000)));
    is_problem(&client.answer(), 413, "payload_too_large");
}

#[test]
fn what_is_no_http_is_answered_with_400_and_the_connection_ends() {
    let server = DevServer::start();
    for garbage in ["GET / HTTX\r\n\r\n", "GET /a b HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\u{1}: x\r\n\r\n"] {
        let mut client = Raw::connect(&server);
        client.send(garbage);
        assert!(client.answer().starts_with("HTTP/1.1 400"), "{garbage:?}");
        assert!(client.closes_within(Duration::from_secs(5)), "{garbage:?}");
    }
    // Behind a request that was fine, and with one more on its heels.
    let mut client = Raw::connect(&server);
    assert!(client.get("/livez").starts_with("HTTP/1.1 200"));
    client.send("GET /livez HTTP/1.1\r\nhost: x\r\n\r\nno HTTP\r\n\r\nGET /livez HTTP/1.1\r\n\r\n");
    assert!(client.answer().starts_with("HTTP/1.1 200"));
    assert!(client.answer().starts_with("HTTP/1.1 400"));
    assert_eq!(metric(&server, "quorate_http_refused_total{reason=\"malformed\"}"), 4.0);
}

#[test]
fn one_connection_too_many_is_told_so() {
    let server = DevServer::start_with(&["--max-connections", "2"]);
    let mut first = Raw::connect(&server);
    let mut second = Raw::connect(&server);
    assert!(first.get("/livez").starts_with("HTTP/1.1 200"));
    assert!(second.get("/livez").starts_with("HTTP/1.1 200"));
    let mut third = Raw::connect(&server);
    let answer = third.get("/v1/locks/a");
    is_problem(&answer, 503, "overloaded");
    assert!(answer.contains("retry-after: 1"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    drop(first);
    until("a place is free", || Raw::connect(&server).get("/v1/locks/a").starts_with("HTTP/1.1 200"));
}

#[test]
fn probes_are_answered_however_many_are_connected() {
    let server = DevServer::start_with(&["--max-connections", "1"]);
    let mut first = Raw::connect(&server);
    assert!(first.get("/livez").starts_with("HTTP/1.1 200"));
    for probe in ["/livez", "/readyz", "/metrics"] {
        let mut probing = Raw::connect(&server);
        let answer = probing.get(probe);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        assert!(probing.closes_within(Duration::from_secs(20)), "{probe}");
    }
    // More than are kept for that are closed, and it is well again without them.
    let mut many: Vec<Raw> = (0..400).map(|_| Raw::connect(&server)).collect();
    assert!(many[399].closes_within(Duration::from_secs(20)));
    drop(many);
    until("probes are answered", || Raw::connect(&server).get("/livez").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_connection_too_many_that_asks_nothing_keeps_no_place_from_a_probe_in_either_http() {
    let server = DevServer::start_with(&["--max-connections", "1", "--header-timeout", "500ms"]);
    let mut first = Raw::connect(&server);
    assert!(first.get("/livez").starts_with("HTTP/1.1 200"));
    // The other's begins with its preface and settings, as a client's that connects in advance.
    for beginning in ["", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0"] {
        let mut silent = Raw::connect(&server);
        silent.send(beginning);
        assert!(silent.closes_within(Duration::from_secs(20)), "{beginning:?}");
    }
}

#[test]
fn one_request_too_many_is_told_so_but_probes_are_answered() {
    let server = DevServer::start_with(&["--max-in-flight", "3"]);
    let mut client = Raw::connect(&server);
    client.post("/v1/locks/a/acquire", "{}");
    assert!(client.answer().starts_with("HTTP/1.1 200"));
    let waiting: Vec<Raw> = (0..3).map(|_| long_poll(&server)).collect();
    until("all wait", || client.get("/metrics").contains("quorate_waiters 3"));
    let answer = client.get("/v1/locks/a");
    is_problem(&answer, 503, "overloaded");
    assert!(answer.contains("retry-after: 1"), "{answer}");
    client.send("GET /v1/locks/a HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n\r\n");
    assert!(client.answer().contains("\"request_id\":\"mine\""));
    for probe in ["/livez", "/readyz"] {
        assert!(client.get(probe).starts_with("HTTP/1.1 200"), "{probe}");
    }
    drop(waiting);
    until("there is room", || client.get("/v1/locks/a").starts_with("HTTP/1.1 200"));
}

#[test]
fn connections_and_requests_are_counted() {
    let server = DevServer::start();
    let mut holder = Raw::connect(&server);
    holder.post("/v1/locks/a/acquire", "{}");
    assert!(holder.answer().starts_with("HTTP/1.1 200"));
    let waiting: Vec<Raw> = (0..5).map(|_| long_poll(&server)).collect();
    until("counted", || {
        metric(&server, "quorate_http_in_flight") >= 5.0 && metric(&server, "quorate_http_connections") >= 6.0
    });
    drop(waiting);
    until("forgotten", || metric(&server, "quorate_http_in_flight") <= 1.0);
}

#[test]
fn http_2_is_spoken_by_prior_knowledge() {
    let server = DevServer::start();
    let output = Command::new("curl")
        .args(["-s", "--http2-prior-knowledge", "-w", "%{http_version} %{http_code}", "-o", "/dev/null"])
        .arg(format!("{}/livez", server.url()))
        .output()
        .expect("curl runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2 200");
}

#[test]
fn a_client_that_leaves_is_forgotten_at_once() {
    let server = DevServer::start();
    let mut holder = Raw::connect(&server);
    holder.post("/v1/locks/a/acquire", "{}");
    assert!(holder.answer().starts_with("HTTP/1.1 200"));
    let waiting = long_poll(&server);
    until("waits", || server.waiters("a") == 1);
    drop(waiting);
    let left = Instant::now();
    until("forgotten", || server.waiters("a") == 0);
    assert!(left.elapsed() < Duration::from_secs(2), "{:?}", left.elapsed());
}

#[test]
fn on_sigterm_waiting_ends_and_the_server_exits_with_0() {
    let mut server = DevServer::start();
    let mut holder = Raw::connect(&server);
    holder.post("/v1/locks/a/acquire", "{}");
    assert!(holder.answer().starts_with("HTTP/1.1 200"));
    let mut waiting: Vec<Raw> = (0..100).map(|_| long_poll(&server)).collect();
    until("all wait", || server.waiters("a") == 100);
    let pid = server.child().id();
    signal("TERM", pid);
    for client in &mut waiting {
        let answer = client.answer();
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("shutting_down"), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("retry-after"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        assert!(client.closes_within(Duration::from_secs(5)));
    }
    assert_eq!(ended(server.child()), 0);
}

#[test]
fn while_a_request_is_finished_probes_read_not_ready() {
    let mut server = DevServer::start();
    // A request whose body is on its way is not cut off.
    let mut slow = Raw::connect(&server);
    let body = r#"{"ttl_ms": 1000}"#;
    slow.send(&format!(
        "POST /v1/locks/a/acquire HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ));
    until("in flight", || metric(&server, "quorate_http_in_flight") >= 1.0);
    let mut resting = Raw::connect(&server);
    assert!(resting.get("/livez").starts_with("HTTP/1.1 200"));
    let pid = server.child().id();
    signal("TERM", pid);
    assert!(resting.closes_within(Duration::from_secs(5)), "an idle connection ends at once");
    let answer = Raw::connect(&server).get("/readyz");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("shutting_down"), "{answer}");
    assert_eq!(server.child().try_wait().unwrap(), None);
    slow.send(body);
    assert!(slow.answer().starts_with("HTTP/1.1 "));
    assert_eq!(ended(server.child()), 0);
}

#[test]
fn probes_that_take_their_time_read_not_ready_in_the_end() {
    let mut server = DevServer::start();
    let mut slow = Raw::connect(&server);
    slow.send("POST /v1/locks/a/acquire HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{");
    until("in flight", || metric(&server, "quorate_http_in_flight") >= 1.0);
    signal("TERM", server.child().id());
    for _ in 0..8 {
        let mut probe = Raw::connect(&server);
        std::thread::sleep(Duration::from_millis(250));
        let answer = probe.get("/readyz");
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("shutting_down"), "{answer}");
    }
    slow.send("}");
    assert!(slow.answer().starts_with("HTTP/1.1 "));
    assert_eq!(ended(server.child()), 0);
}

#[test]
fn an_http_2_connection_is_known_as_such_however_its_first_bytes_arrive() {
    let server = DevServer::start_with(&["--header-timeout", "500ms"]);
    let mut client = Raw::connect(&server);
    client.send("PR");
    std::thread::sleep(Duration::from_millis(50));
    client.send("I * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    client.0.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
    // GET http://x/livez, its names from the static table.
    let head = b"\x82\x86\x01\x01x\x04\x06/livez";
    client.0.write_all(&[0, 0, head.len() as u8, 1, 5, 0, 0, 0, 1]).unwrap();
    client.0.write_all(head).unwrap();
    // Pings look like heads to one who does not know.
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let until = Instant::now() + Duration::from_millis(2_500);
    while Instant::now() < until {
        client.0.write_all(&ping).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    client.0.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut read = Vec::new();
    let end = client.0.read_to_end(&mut read).expect_err("the connection is open");
    assert_eq!(end.kind(), std::io::ErrorKind::WouldBlock);
    assert!(read.windows(4).any(|piece| piece == b"live"));
}

#[test]
fn a_second_signal_ends_at_once_and_the_deadline_ends_in_time() {
    let stuck = |server: &DevServer| {
        let mut client = Raw::connect(server);
        client.send("POST /v1/locks/a/acquire HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{");
        until("in flight", || metric(server, "quorate_http_in_flight") >= 1.0);
        client
    };
    let mut server = DevServer::start_with(&["--body-timeout", "60s"]);
    let _client = stuck(&server);
    let pid = server.child().id();
    signal("TERM", pid);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(server.child().try_wait().unwrap(), None);
    signal("INT", pid);
    assert_eq!(ended(server.child()), 130);

    // Also one that has no client any more, and waits for a collector that does not answer.
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let mut server = DevServer::start_with(&["--otlp-endpoint", &endpoint, "--shutdown-timeout", "60s"]);
    assert!(Raw::connect(&server).get("/livez").starts_with("HTTP/1.1 200"));
    let pid = server.child().id();
    signal("TERM", pid);
    let _sent = collector.accept().unwrap();
    let told = Instant::now();
    signal("INT", pid);
    assert_eq!(ended(server.child()), 130);
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());

    let mut server = DevServer::start_with(&["--body-timeout", "60s", "--shutdown-timeout", "2s"]);
    let _client = stuck(&server);
    let pid = server.child().id();
    let told = Instant::now();
    signal("TERM", pid);
    assert_eq!(ended(server.child()), 0);
    assert!(told.elapsed() < Duration::from_millis(2_500), "{:?}", told.elapsed());
}

#[test]
fn without_keys_the_server_is_not_opened_to_others() {
    let refused =
        quorate().args(["serve", "--redis", "redis://127.0.0.1:1", "--listen", "0.0.0.0:0"]).output();
    let refused = refused.unwrap();
    assert_eq!(refused.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--insecure-no-auth"));
}

#[test]
fn passwords_of_nodes_are_in_no_log_line_and_not_in_the_help() {
    let serving = quorate()
        .args(["serve", "--listen", "127.0.0.1:0", "--log-level", "trace", "--log-format", "json"])
        .args(["--connect-timeout", "100ms"])
        .env("QUORATE_REDIS", "redis://user:s3cret@127.0.0.1:1/3")
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(4));
    signal("TERM", serving.id());
    let output = serving.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("listening"), "{log}");
    assert!(!log.contains("s3cret"), "{log}");
    for line in log.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    }
    assert!(output.stdout.is_empty(), "stdout stays clean where logs are for machines");
    let mut help = quorate();
    help.args(["serve", "--help"]).env("QUORATE_REDIS", "redis://user:s3cret@127.0.0.1:1");
    assert!(!String::from_utf8_lossy(&help.output().unwrap().stdout).contains("s3cret"));
}

#[test]
fn the_key_file_is_read_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.toml");
    let (first, entry) = new_key("first");
    std::fs::write(&file, &entry).unwrap();
    let server = DevServer::start_with(&["--api-keys", file.to_str().unwrap()]);
    let with = |key: &str| {
        let mut command = server.command(&["lock", "get", "a"]);
        command.env("QUORATE_API_KEY", key).output().unwrap().status.code().unwrap()
    };
    assert_eq!((with(&first), with("wrong")), (0, 77));
    let (second, entry) = new_key("second");
    std::fs::write(&file, &entry).unwrap();
    until("the new key is known", || with(&second) == 0);
    assert_eq!(with(&first), 77);
    std::fs::write(&file, "[[key").unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(with(&second), 0, "what was read before stays in use");
}

/// A new key: its secret, and the entry for the key file.
fn new_key(name: &str) -> (String, String) {
    let output = quorate().args(["keys", "new", "--name", name, "--scope", "read"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let secret = text.lines().nth(2).unwrap().to_owned();
    let entry = text[text.find("[[key]]").unwrap()..].to_owned();
    (secret, entry)
}

/// An authority with a certificate for 127.0.0.1 and one for a client, made by openssl.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        this.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=authority \
                      -keyout ca.key -out ca.crt",
        );
        this.issue("server", "subjectAltName=IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n");
        this.issue("client", "extendedKeyUsage=clientAuth\nbasicConstraints=critical,CA:FALSE\n");
        let both =
            [this.path("client.crt"), this.path("client.key")].map(|path| std::fs::read(path).unwrap());
        std::fs::write(this.path("client.pem"), both.concat()).unwrap();
        this
    }

    /// A new key and certificate.
    fn issue(&self, name: &str, extensions: &str) {
        std::fs::write(self.path("extensions"), extensions).unwrap();
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out {name}.crt"
        ));
    }

    fn openssl(&self, words: &str) {
        let mut command = Command::new("openssl");
        let output = command.args(words.split_whitespace()).current_dir(self.0.path()).output();
        let output = output.expect("openssl runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn server(&self, more: &[&str]) -> DevServer {
        let (cert, key) = (self.text("server.crt"), self.text("server.key"));
        DevServer::start_with(&[&["--tls-cert", &cert, "--tls-key", &key], more].concat())
    }
}

/// The fingerprint of the certificate that the server shows.
fn shown(server: &DevServer, folder: &Path) -> String {
    let script = format!(
        "openssl s_client -connect {} </dev/null 2>/dev/null | openssl x509 -noout -fingerprint",
        server.address()
    );
    let output = Command::new("sh").args(["-c", &script]).current_dir(folder).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn https_is_served_with_both_versions_of_http() {
    let certificates = Certificates::new();
    let server = certificates.server(&[]);
    assert!(server.url().starts_with("https://"));
    let ca = certificates.text("ca.crt");
    assert_eq!(server.ask(&["run", "--ca", &ca, "--lock", "a", "--", "true"]).status.code(), Some(0));
    assert_eq!(server.ask(&["healthcheck"]).status.code(), Some(1), "an unknown authority is not trusted");
    for (flag, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let output = Command::new("curl")
            .args(["-s", "--cacert", &ca, flag, "-w", "%{http_version} %{http_code}", "-o", "/dev/null"])
            .arg(format!("{}/livez", server.url()))
            .output()
            .expect("curl runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{version} 200"));
    }
}

#[test]
fn a_server_with_the_certificate_of_an_authority_is_refused_in_words_that_help() {
    let certificates = Certificates::new();
    let extensions = "subjectAltName=IP:127.0.0.1\nbasicConstraints=critical,CA:TRUE\n";
    certificates.issue("server", extensions);
    let server = certificates.server(&[]);
    let ca = certificates.text("ca.crt");
    let output = server.ask(&["nodes", "--ca", &ca]);
    assert_eq!(output.status.code(), Some(70));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("that of an authority (CA:TRUE)") && said.contains("basicConstraints=CA:FALSE"),
        "{said}"
    );
}

#[test]
fn a_changed_certificate_is_shown_to_new_clients_and_a_broken_one_is_not() {
    let certificates = Certificates::new();
    let server = certificates.server(&[]);
    let folder = certificates.0.path().to_owned();
    let before = shown(&server, &folder);
    assert!(before.contains("Fingerprint"), "{before}");
    certificates.issue("server", "subjectAltName=IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n");
    until("the new certificate is shown", || shown(&server, &folder) != before);
    let after = shown(&server, &folder);
    std::fs::write(certificates.path("server.crt"), "no certificate").unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(shown(&server, &folder), after);
}

#[test]
fn only_clients_with_a_certificate_may_connect_where_that_is_asked_for() {
    let certificates = Certificates::new();
    let ca = certificates.text("ca.crt");
    let server = certificates.server(&["--tls-client-ca", &ca]);
    let pem = certificates.text("client.pem");
    let with = server.ask(&["healthcheck", "--ca", &ca, "--client-cert", &pem]);
    assert_eq!(with.status.code(), Some(0), "{}", String::from_utf8_lossy(&with.stderr));
    assert_eq!(server.ask(&["healthcheck", "--ca", &ca]).status.code(), Some(1));
}

#[test]
fn a_handshake_that_does_not_arrive_in_time_is_given_up() {
    let certificates = Certificates::new();
    let server = certificates.server(&["--header-timeout", "500ms"]);
    assert!(Raw::connect(&server).closes_within(Duration::from_secs(5)));
}
