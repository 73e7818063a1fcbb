//! The command line as its users meet it: the binary, its output, its exit statuses.
#![allow(clippy::disallowed_methods, reason = "processes are waited for in real time")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::cli_terminal::at_a_terminal;
use crate::dev_server::{DevServer, ended, quorate, signal, until};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn run_exits_as_its_command_did() {
    let server = DevServer::start();
    for (script, status) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -s TERM $$", 143)] {
        let output = server.ask(&["run", "--lock", "a", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(status), "{script}: {}", text(&output.stderr));
        assert!(!server.is_held("a"), "given back after {script}");
    }
    assert_eq!(server.ask(&["run", "--lock", "a", "--", "/nonexistent/command"]).status.code(), Some(127));
    assert_eq!(server.ask(&["run", "--lock", "a", "--", "/"]).status.code(), Some(126));
    assert!(!server.is_held("a"));
}

#[test]
fn run_is_quiet_unless_told_otherwise() {
    let server = DevServer::start();
    let quiet = server.ask(&["run", "--lock", "a", "--", "echo", "hello"]);
    assert_eq!((text(&quiet.stdout), text(&quiet.stderr)), ("hello\n".to_owned(), String::new()));
    let loud = server.ask(&["run", "-v", "--lock", "a", "--", "echo", "hello"]);
    assert_eq!(text(&loud.stdout), "hello\n");
    for word in ["acquired", "released"] {
        assert!(text(&loud.stderr).contains(word), "{}", text(&loud.stderr));
    }
}

#[test]
fn the_command_finds_its_lease_in_the_environment() {
    let server = DevServer::start();
    let binary = crate::dev_server::QUORATE;
    let script = format!("{binary} lock extend a && {binary} lock get a && echo $QUORATE_FENCING_TOKEN");
    let output = server.ask(&["run", "--lock", "a", "--owner", "me", "--", "sh", "-c", &script]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let lines: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines[0]["fencing_token"], lines[2]);
    assert_eq!(lines[1]["fencing_token"], lines[2]);
    assert_eq!(lines[1]["owner"], "me");
    assert_eq!(lines[1].get("lease_id"), None);
}

#[test]
fn the_command_hears_nothing_of_a_lease_around_its_own() {
    let server = DevServer::start();
    let binary = crate::dev_server::QUORATE;
    let told = "echo \"[$QUORATE_FENCING_TOKEN][$QUORATE_FENCING_TOKENS]\"";
    let inner = server.ask(&[
        "run", "--lock", "a", "--", binary, "run", "--lock", "b", "--lock", "c", "--", "sh", "-c", told,
    ]);
    assert!(text(&inner.stdout).starts_with("[][{"), "{}", text(&inner.stdout));
    let inner = server.ask(&[
        "run", "--lock", "b", "--lock", "c", "--", binary, "run", "--lock", "a", "--", "sh", "-c", told,
    ]);
    assert!(text(&inner.stdout).ends_with("][]\n"), "{}", text(&inner.stdout));
}

#[test]
fn a_parent_that_ignores_its_children_does_not_hide_how_the_command_ended() {
    let server = DevServer::start();
    let output = std::process::Command::new("sh")
        .args(["-c", "trap '' CHLD; exec \"$0\" run --lock a -- sh -c 'exit 4'", crate::dev_server::QUORATE])
        .env("QUORATE_SERVER", server.url())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let server =
        DevServer::spawn(quorate().env("QUORATE_CONFIG", "").args(["dev", "--listen", "127.0.0.1:0"]));
    let mut command = server.command(&["lock", "get", "a"]);
    let output = command.env("QUORATE_CA", "").env("QUORATE_CLIENT_CERT", "").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_variable_that_is_no_text_is_refused_and_not_passed_over() {
    use std::os::unix::ffi::OsStrExt as _;
    let no_text = std::ffi::OsStr::from_bytes(b"/etc/quorate/keys\xff");
    // A port that is taken ends a server that does not mind at once, too.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    for (variable, words) in [
        ("QUORATE_API_KEYS", &["dev", "--listen", &listen][..]),
        ("QUORATE_API_KEY", &["lock", "get", "a", "--server", "http://127.0.0.1:1"]),
    ] {
        let output = quorate().env(variable, no_text).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(variable), "{}", text(&output.stderr));
    }
}

#[test]
fn a_server_does_not_mind_a_log_that_nobody_reads() {
    for gone in [true, false] {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = quorate();
        command.args(["dev", "--listen", "127.0.0.1:0", "--log-requests"]).stderr(writer);
        let mut server = DevServer::spawn(&mut command);
        drop(command);
        let reader = (!gone).then_some(reader);
        // More than a pipe holds.
        for _ in 0..1_000 {
            let answer = get(&server, "/v1/locks/a?no-such-parameter-as-this-one=1");
            assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        }
        assert!(get(&server, "/livez").starts_with("HTTP/1.1 200"));
        signal("TERM", server.child().id());
        assert_eq!(ended(server.child()), 0, "gone: {gone}");
        drop(reader);
    }
}

/// The answer to a GET on a connection of its own.
fn get(server: &DevServer, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(crate::dev_server::PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn what_is_held_is_not_acquired_and_the_command_does_not_run() {
    let server = DevServer::start();
    server.json(&["lock", "acquire", "a", "--owner", "somebody"]);
    for (wait, at_least) in [("0", 0), ("300ms", 300)] {
        let started = Instant::now();
        let output = server.ask(&["run", "--lock", "a", "--wait", wait, "--", "echo", "ran"]);
        assert_eq!(output.status.code(), Some(11));
        assert_eq!(text(&output.stdout), "");
        assert!(text(&output.stderr).contains("somebody"), "{}", text(&output.stderr));
        assert!(started.elapsed() >= Duration::from_millis(at_least));
    }
}

#[test]
fn run_waits_as_long_as_it_takes_even_beyond_the_servers_longest_wait() {
    for max_wait in ["300ms", "0"] {
        let server = DevServer::start_with(&["--max-wait", max_wait]);
        let held = server.json(&["lock", "acquire", "a"]);
        let mut waiting = server.command(&["run", "--lock", "a", "--", "true"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1_500));
        assert_eq!(waiting.try_wait().unwrap(), None);
        server.json(&["lock", "release", "a", "--lease-id", held["lease_id"].as_str().unwrap()]);
        assert_eq!(ended(&mut waiting), 0);
    }
}

#[test]
fn run_extends_what_it_holds() {
    let server = DevServer::start();
    let mut running =
        server.command(&["run", "--lock", "a", "--ttl", "2s", "--", "sleep", "5"]).spawn().unwrap();
    until("held", || server.is_held("a"));
    let token = server.json(&["lock", "get", "a"])["fencing_token"].clone();
    while running.try_wait().unwrap().is_none() {
        let seen = server.json(&["lock", "get", "a"]);
        // Between its end and ours it may have given the lock back.
        if running.try_wait().unwrap().is_none() && seen["held"] == true {
            assert_eq!(seen["fencing_token"], token);
        }
    }
    assert_eq!(ended(&mut running), 0);
    assert!(!server.is_held("a"));
}

#[test]
fn a_command_is_ended_when_its_lease_has_been_held_for_as_long_as_it_may() {
    let server = DevServer::start();
    let started = Instant::now();
    let output = server.ask(&["run", "--lock", "a", "--ttl", "1s", "--max-hold", "2s", "--", "sleep", "60"]);
    assert_eq!(output.status.code(), Some(20), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("--max-hold"), "{}", text(&output.stderr));
    assert!(started.elapsed() >= Duration::from_millis(1500), "{:?}", started.elapsed());
    until("free", || !server.is_held("a"));
}

#[test]
fn run_shares_a_lock_with_others_who_do() {
    let server = DevServer::start();
    let mut first = server.command(&["run", "--lock", "a", "--shared", "--", "sleep", "60"]).spawn().unwrap();
    until("held", || server.is_held("a"));
    let output = server.ask(&["run", "--lock", "a", "--shared", "--wait", "0", "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = server.ask(&["run", "--lock", "a", "--wait", "0", "--", "true"]);
    assert_eq!(output.status.code(), Some(11), "{}", text(&output.stderr));
    signal("TERM", first.id());
    ended(&mut first);
    for wrong in [&["--lock", "a", "--lock", "b"][..], &["--semaphore", "a", "--limit", "2"]] {
        let output = server.ask(&[&["run", "--shared"], wrong, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(64), "{wrong:?}");
    }
}

#[test]
fn a_lost_lease_ends_the_command_and_what_it_started() {
    let server = DevServer::start();
    for terminal in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        // A terminal that is gone tells those who are left, too.
        let script =
            format!("trap '' HUP; sleep 60 & echo $! > {0}.new; mv {0}.new {0}; wait", pids.display());
        let mut command =
            server.command(&["run", "--lock", "a", "--ttl", "900ms", "--", "sh", "-c", &script]);
        if terminal {
            let Some(at_terminal) = at_a_terminal(&command) else { continue };
            command = at_terminal;
        }
        let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("started", || pids.exists());
        let sleeper = std::fs::read_to_string(&pids).unwrap();
        server.json(&["lock", "force-release", "a"]);
        assert_eq!(ended(&mut running), 20);
        until("the child of the command is gone", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", sleeper.trim())).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z")
        });
        // To a terminal goes all of it.
        let output = running.wait_with_output().unwrap();
        let told = text(&output.stdout) + &text(&output.stderr);
        assert!(told.contains("lease_lost"), "{told}");
    }
}

/// Answers every request of one client in turn; what it was asked.
fn that_answers(answers: Vec<(&'static str, &'static str)>) -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for ((head, body), client) in answers.into_iter().zip(listener.incoming()) {
            let (mut client, mut request) = (client.unwrap(), vec![0; 4096]);
            // The client writes a small request in one piece.
            let length = client.read(&mut request).unwrap();
            let length_of_answer = body.len();
            let fields = format!("connection: close\r\ncontent-length: {length_of_answer}");
            write!(client, "HTTP/1.1 {head}\r\n{fields}\r\n\r\n{body}").unwrap();
            sender.send(text(&request[..length])).unwrap();
        }
    });
    (url, asked)
}

/// A lease as a server answers it.
const LEASE: &str = r#"{"lease_id":"l","fencing_token":1,"ttl_ms":600,"validity_ms":590,"waited_ms":0}"#;

#[test]
fn an_extension_asks_for_what_the_lease_has_whatever_the_server_grants_by_now() {
    let answers = vec![("200 OK", LEASE), ("200 OK", LEASE), ("200 OK", r#"{"released":true}"#)];
    let (server, asked) = that_answers(answers);
    let run = ["run", "--server", &server, "--lock", "a", "--wait", "0", "--ttl", "600ms", "--", "cat"];
    let mut running = quorate().args(run).stdin(Stdio::piped()).spawn().unwrap();
    let next = || asked.recv_timeout(crate::dev_server::PATIENCE).unwrap();
    assert!(next().contains("/acquire"));
    let extension = next();
    assert!(extension.contains("/extend") && !extension.contains("ttl_ms"), "{extension}");
    drop(running.stdin.take());
    assert_eq!(ended(&mut running), 0);
}

#[test]
fn a_command_that_ends_with_the_status_of_a_lost_lease_has_not_lost_it() {
    let trouble = ("503 Service Unavailable", "");
    let answers = vec![("200 OK", LEASE), trouble, trouble, trouble, trouble, trouble, trouble];
    let (server, _asked) = that_answers(answers);
    let run = ["run", "--server", &server, "--lock", "a", "--wait", "0", "--", "sh", "-c", "exit 20"];
    let output = quorate().args(run).output().unwrap();
    assert_eq!(output.status.code(), Some(20));
    assert!(text(&output.stderr).contains("not released"), "{}", text(&output.stderr));
}

#[test]
fn a_command_is_not_started_under_a_lease_that_is_over() {
    // As it looks to whoever was stopped while the answer came, or got it late.
    let over = r#"{"lease_id":"l","fencing_token":1,"ttl_ms":600,"validity_ms":0,"waited_ms":0}"#;
    let (server, asked) = that_answers(vec![("200 OK", over), ("200 OK", r#"{"released":false}"#)]);
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    // Faster than any signal that would end it: it does nothing but start.
    let run = ["run", "--server", &server, "--lock", "a", "--wait", "0", "--", "touch"];
    let output = quorate().args(run).arg(&started).output().unwrap();
    assert_eq!(output.status.code(), Some(20), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("over before"), "{}", text(&output.stderr));
    assert!(!started.exists());
    assert!(asked.iter().last().unwrap().contains("/release"));
}

#[test]
fn what_a_proxy_answers_is_passing_trouble_or_told_at_once() {
    let free = ("200 OK", LEASE);
    let given_back = ("200 OK", r#"{"released":true}"#);
    for passing in ["429 Too Many Requests", "408 Request Timeout", "502 Bad Gateway"] {
        let (server, _asked) = that_answers(vec![(passing, ""), free, given_back]);
        let run = ["run", "--server", &server, "--lock", "a", "--wait", "20s", "--", "true"];
        let output = quorate().args(run).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{passing}: {}", text(&output.stderr));
    }
    let (server, _asked) =
        that_answers(vec![("301 Moved Permanently\r\nlocation: https://elsewhere/", ""); 100]);
    let started = Instant::now();
    let run = ["run", "--server", &server, "--lock", "a", "--wait", "20s", "--", "true"];
    let output = quorate().args(run).output().unwrap();
    assert_eq!(output.status.code(), Some(70));
    assert!(text(&output.stderr).contains("redirects to https://elsewhere/"), "{}", text(&output.stderr));
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

#[test]
fn the_first_process_of_a_container_waits_for_orphans_while_the_command_runs() {
    let server = DevServer::start();
    // Says when all orphans are waited for, or that some are not.
    let script = "for i in 1 2 3; do (sh -c 'exit 0' &); done; n=0; \
        while [ $n -lt 200 ] && grep -q '^State:.Z' /proc/[0-9]*/status; do n=$((n+1)); sleep 0.05; done; \
        [ $n -lt 200 ]";
    let run = server.command(&["run", "--lock", "a", "--", "sh", "-c", script]);
    let mut contained = std::process::Command::new("unshare");
    contained.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--"]);
    let can = contained.arg("true").status().is_ok_and(|status| status.success());
    if !can {
        return crate::support::skip(
            "no unshare, or not allowed to: quorate run is not tried as a first process",
        );
    }
    let mut contained = std::process::Command::new("unshare");
    contained.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--"]);
    contained.arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        value.map(|value| contained.env(name, value));
    }
    let output = contained.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn without_a_server_the_command_is_ended_before_the_lease_is_over() {
    let mut server = DevServer::start();
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    let script = format!("trap 'touch {}; exit 0' TERM; while :; do sleep 0.05; done", told.display());
    let mut running =
        server.command(&["run", "--lock", "a", "--ttl", "3s", "--", "sh", "-c", &script]).spawn().unwrap();
    until("held", || server.is_held("a"));
    // Whatever was granted or extended before now ends within a ttl from now.
    let gone = Instant::now();
    server.child().kill().unwrap();
    server.child().wait().unwrap();
    until("told to end", || told.exists());
    assert!(gone.elapsed() < Duration::from_secs(3), "{:?}", gone.elapsed());
    assert_eq!(ended(&mut running), 20);
}

#[test]
fn a_hanging_server_does_not_keep_the_command_alive() {
    let mut server = DevServer::start();
    let mut running =
        server.command(&["run", "--lock", "a", "--ttl", "2s", "--", "sleep", "60"]).spawn().unwrap();
    until("held", || server.is_held("a"));
    let pid = server.child().id();
    let stopped = Instant::now();
    signal("STOP", pid);
    until("ended", || running.try_wait().unwrap().is_some() || stopped.elapsed() > Duration::from_secs(20));
    // It acts in time, and then tries for a moment to give back.
    assert!(stopped.elapsed() < Duration::from_secs(5), "{:?}", stopped.elapsed());
    signal("CONT", pid);
    assert_eq!(ended(&mut running), 20);
}

#[test]
fn a_command_that_is_deaf_is_killed() {
    let server = DevServer::start();
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    let script = format!("trap '' TERM; touch {}; while :; do sleep 0.05; done", started.display());
    let words = ["run", "--lock", "a", "--ttl", "600ms", "--kill-after", "200ms", "--", "sh", "-c", &script];
    let mut running = server.command(&words).spawn().unwrap();
    until("started", || started.exists());
    server.json(&["lock", "force-release", "a"]);
    assert_eq!(ended(&mut running), 20);
}

#[test]
fn signals_reach_the_command() {
    let server = DevServer::start();
    let folder = tempfile::tempdir().unwrap();
    for (status, name) in (31..)
        .zip(["TERM", "INT", "HUP", "USR1", "USR2", "QUIT", "ALRM", "VTALRM", "PROF", "IO", "XCPU", "ABRT"])
    {
        let ready = folder.path().join(name);
        let script =
            format!("trap 'exit {status}' {name}; touch {}; while :; do sleep 0.05; done", ready.display());
        let mut running = server.command(&["run", "--lock", "a", "--", "sh", "-c", &script]).spawn().unwrap();
        until("started", || ready.exists());
        signal(name, running.id());
        assert_eq!(ended(&mut running), status, "{name}");
        assert!(!server.is_held("a"), "{name}");
    }
}

#[test]
fn a_command_stops_with_run_and_goes_on_only_under_its_lease() {
    use std::os::unix::process::CommandExt as _;
    let server = DevServer::start();
    let folder = tempfile::tempdir().unwrap();
    for (ttl, status) in [("30s", 7), ("600ms", 20)] {
        let told = folder.path().join(ttl);
        let script = format!(
            "trap 'exit 7' USR1; echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 0.05; done",
            told.display()
        );
        let mut run = server.command(&["run", "--lock", "a", "--ttl", ttl, "--", "sh", "-c", &script]);
        // Not that of a terminal at which the tests run.
        let mut running = run.process_group(0).spawn().unwrap();
        until("started", || told.exists());
        let command = std::fs::read_to_string(&told).unwrap();
        let is_stopped = |pid: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
        };
        signal("TSTP", running.id());
        until("both are stopped", || is_stopped(command.trim()) && is_stopped(&running.id().to_string()));
        if status == 20 {
            until("the lease is over", || !server.is_held("a"));
            assert!(is_stopped(command.trim()));
            signal("CONT", running.id());
        } else {
            signal("CONT", running.id());
            until("it goes on", || !is_stopped(command.trim()));
            signal("USR1", running.id());
        }
        assert_eq!(ended(&mut running), status);
    }
}

/// They have no names, and service managers use them to end what they started.
#[test]
fn a_realtime_signal_ends_the_command_too() {
    let server = DevServer::start();
    let folder = tempfile::tempdir().unwrap();
    for number in ["35", "64"] {
        let ready = folder.path().join(number);
        let script = format!("trap 'exit 3' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
        let mut running = server.command(&["run", "--lock", "a", "--", "sh", "-c", &script]).spawn().unwrap();
        until("started", || ready.exists());
        signal(number, running.id());
        assert_eq!(ended(&mut running), 3, "{number}");
    }
}

#[test]
fn a_signal_while_waiting_leaves_nothing_behind() {
    let server = DevServer::start();
    let held = server.json(&["lock", "acquire", "a"]);
    for (name, status) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let mut waiting = server.command(&["run", "--lock", "a", "--", "true"]).spawn().unwrap();
        until("waiting", || server.waiters("a") == 1);
        signal(name, waiting.id());
        assert_eq!(ended(&mut waiting), status, "{name}");
        until("left", || server.waiters("a") == 0);
    }
    server.json(&["lock", "release", "a", "--lease-id", held["lease_id"].as_str().unwrap()]);
    until("free", || !server.is_held("a"));
    server.json(&["lock", "acquire", "a"]);
}

/// In front of `server`, as HAProxy is without `option abortonclose`: tells nobody that a client has left.
fn that_hides_who_leaves(server: &DevServer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, behind) = (format!("http://{}", listener.local_addr().unwrap()), server.address());
    std::thread::spawn(move || {
        for mut client in listener.incoming().map(Result::unwrap) {
            let mut server = TcpStream::connect(behind).unwrap();
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            // The copy to the client ends with the server's answer, and only then the connection to the server.
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || std::io::copy(&mut client, &mut server));
        }
    });
    url
}

#[test]
fn who_gives_up_behind_a_proxy_that_hides_it_leaves_nothing_behind() {
    let server = DevServer::start();
    let front = that_hides_who_leaves(&server);
    let held = server.json(&["lock", "acquire", "a"]);
    let run = ["run", "--server", &front, "--lock", "a", "--", "true"];
    let mut waiting = quorate().args(run).spawn().unwrap();
    until("waiting", || server.waiters("a") == 1);
    signal("TERM", waiting.id());
    assert_eq!(ended(&mut waiting), 143);
    assert_eq!(server.waiters("a"), 0);
    server.json(&["lock", "release", "a", "--lease-id", held["lease_id"].as_str().unwrap()]);
    server.json(&["lock", "acquire", "a"]);
}

#[test]
fn run_gives_up_where_there_is_no_server() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for wait in [&["--wait", "0"][..], &["--wait", "5s"], &[]] {
        let started = Instant::now();
        let server = format!("http://{nobody}");
        let mut command = quorate();
        command.args(["run", "--server", &server, "--lock", "a"]).args(wait).args(["--", "true"]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(70), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(&server), "{}", text(&output.stderr));
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_server_that_is_replaced_while_we_wait_is_ridden_through() {
    let mut server = DevServer::start();
    let address = server.address().to_string();
    server.json(&["lock", "acquire", "a"]);
    let mut waiting = server.command(&["run", "--lock", "a", "--", "true"]).spawn().unwrap();
    until("waiting", || server.waiters("a") == 1);
    server.child().kill().unwrap();
    server.child().wait().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(waiting.try_wait().unwrap(), None);
    let _another = DevServer::spawn(quorate().args(["dev", "--listen", &address]));
    assert_eq!(ended(&mut waiting), 0);
}

#[test]
fn a_connection_that_breaks_during_the_first_wait_is_not_a_server_that_was_never_there() {
    let mut server = DevServer::start();
    let address = server.address().to_string();
    server.json(&["lock", "acquire", "a"]);
    let mut waiting = server.command(&["lock", "acquire", "a", "--wait", "1m"]).spawn().unwrap();
    until("waiting", || server.waiters("a") == 1);
    server.child().kill().unwrap();
    server.child().wait().unwrap();
    let _another = DevServer::spawn(quorate().args(["dev", "--listen", &address]));
    assert_eq!(ended(&mut waiting), 0);
}

/// In front of `server`: grants the first acquire and breaks off instead of answering, and has no quorum for
/// those that follow.
fn that_loses_an_answer(server: &DevServer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, behind) = (format!("http://{}", listener.local_addr().unwrap()), server.address());
    std::thread::spawn(move || {
        let mut first = true;
        for mut client in listener.incoming().map(Result::unwrap) {
            let mut request = vec![0; 4096];
            // The client writes a small request in one piece.
            let length = client.read(&mut request).unwrap();
            let mut server = TcpStream::connect(behind).unwrap();
            if text(&request[..length]).contains("/release") {
                server.write_all(&request[..length]).unwrap();
                let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                std::thread::spawn(move || std::io::copy(&mut client, &mut server));
            } else if std::mem::take(&mut first) {
                server.write_all(&request[..length]).unwrap();
                let length = server.read(&mut request).unwrap();
                assert!(text(&request[..length]).contains("fencing_token"));
            } else {
                let problem = r#"{"type":"about:blank","title":"","status":503,"code":"quorum_unavailable"}"#;
                let head = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length:";
                write!(client, "{head} {}\r\n\r\n{problem}", problem.len()).unwrap();
            }
        }
    });
    url
}

#[test]
fn a_lease_whose_answer_got_lost_is_not_left_behind_where_no_quorum_answers_then() {
    let server = DevServer::start();
    let front = that_loses_an_answer(&server);
    let run = ["run", "--server", &front, "--lock", "a", "--wait", "1s", "--", "true"];
    let output = quorate().args(run).output().unwrap();
    assert_eq!(output.status.code(), Some(70), "{}", text(&output.stderr));
    assert!(!server.is_held("a"));
}

#[test]
fn wrong_usage_is_told_apart() {
    let server = DevServer::start();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = port.local_addr().unwrap().to_string();
    for words in [
        &["run", "--lock", "a"][..],
        &["run", "--", "true"],
        &["run", "--lock", "a", "--election", "b", "--", "true"],
        &["run", "--lock", "a", "--limit", "2", "--", "true"],
        &["run", "--semaphore", "a", "--", "true"],
        &["run", "--lock", "a/b", "--", "true"],
        &["run", "--lock", "a", "--ttl", "soon", "--", "true"],
        &["run", "--lock", "a", "--ttl", "1ms", "--", "true"],
        &["run", "--lock", "a", "--wait", "18446744073709551615", "--", "true"],
        &["run", "--lock", "a", "--wait", "10", "--", "true"],
        &["run", "--lock", "a", "--ttl", "30", "--", "true"],
        &["run", "--lock", "a", "--kill-after", "500000000000years", "--", "true"],
        &["election", "get", "a", "--after", "x", "--wait", "18446744073709551615s"],
        &["run", "--lock", "a", "--server", "nowhere", "--", "true"],
        // With a port that is taken, so that a server that does not mind ends, too.
        &["dev", "--redis", "redis://127.0.0.1:1", "--listen", &taken],
        &["nonsense"],
    ] {
        let output = server.ask(words);
        assert_eq!(output.status.code(), Some(64), "{words:?}: {}", text(&output.stderr));
        assert!(!output.stderr.is_empty());
    }
    assert_eq!(server.ask(&["--help"]).status.code(), Some(0));
    assert_eq!(server.ask(&["run", "--help"]).status.code(), Some(0));
}

#[test]
fn run_holds_permits_of_a_semaphore() {
    let server = DevServer::start();
    let words = ["run", "--semaphore", "s", "--limit", "2", "--", "sleep", "60"];
    let mut holders = [server.command(&words).spawn().unwrap(), server.command(&words).spawn().unwrap()];
    until("both hold", || server.json(&["semaphore", "get", "s"])["in_use"] == 2);
    let third = ["run", "--semaphore", "s", "--limit", "2", "--wait", "0", "--", "true"];
    assert_eq!(server.ask(&third).status.code(), Some(11));
    signal("TERM", holders[0].id());
    assert_eq!(ended(&mut holders[0]), 143);
    assert_eq!(server.ask(&third).status.code(), Some(0));
    signal("TERM", holders[1].id());
    ended(&mut holders[1]);
}

#[test]
fn run_leads_an_election() {
    let server = DevServer::start();
    let words = ["run", "--election", "e", "--candidate", "me", "--value", "here", "--", "sleep", "60"];
    let mut leader = server.command(&words).spawn().unwrap();
    until("elected", || server.json(&["election", "get", "e"])["leader"] == "me");
    let seen = server.json(&["election", "get", "e"]);
    assert_eq!(seen["value"], "here");
    let other = ["run", "--election", "e", "--candidate", "you", "--wait", "0", "--", "true"];
    assert_eq!(server.ask(&other).status.code(), Some(11));
    signal("INT", leader.id());
    assert_eq!(ended(&mut leader), 130);
    assert_eq!(server.json(&["election", "get", "e"]).get("leader"), None);
}

#[test]
fn run_holds_several_locks_or_none() {
    let server = DevServer::start();
    let script = "echo $QUORATE_FENCING_TOKENS";
    let output = server.ask(&["run", "--lock", "a", "--lock", "b", "--", "sh", "-c", script]);
    let tokens: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(tokens["a"].is_u64() && tokens["b"].is_u64(), "{tokens}");
    server.json(&["lock", "acquire", "b"]);
    let refused = server.ask(&["run", "--lock", "a", "--lock", "b", "--wait", "0", "--", "true"]);
    assert_eq!(refused.status.code(), Some(11));
    assert!(!server.is_held("a"));
}

#[test]
fn client_commands_answer_in_json_and_by_exit_status() {
    let server = DevServer::start();
    let words =
        ["lock", "acquire", "a", "--ttl", "20s", "--metadata", "team=red", "--request-id", "12345678"];
    let lease = server.json(&words);
    assert_eq!(server.json(&words)["lease_id"], lease["lease_id"], "the same request brings the same lease");
    let id = lease["lease_id"].as_str().unwrap();
    assert_eq!(server.json(&["lock", "get", "a"])["metadata"]["team"], "red");
    assert_eq!(server.json(&["lock", "list", "--prefix", "a"])["locks"][0]["name"], "a");
    assert_eq!(server.ask(&["lock", "acquire", "a"]).status.code(), Some(11));
    assert_eq!(server.json(&["lock", "extend", "a", "--lease-id", id, "--ttl", "9s"])["ttl_ms"], 9_000);
    let token = lease["fencing_token"].to_string();
    assert_eq!(server.json(&["fence", "check", "a", &token])["status"], "current");
    let by_environment =
        server.command(&["lock", "release", "a"]).env("QUORATE_LEASE_ID", id).output().unwrap();
    assert_eq!(text(&by_environment.stdout), "{\"released\":true}\n");
    assert_eq!(server.json(&["lock", "release", "a", "--lease-id", id])["released"], false);
    assert_eq!(server.ask(&["lock", "extend", "a", "--lease-id", id]).status.code(), Some(20));
    server.json(&["fence", "issue", "a"]);
    assert_eq!(server.ask(&["fence", "check", "a", &token]).status.code(), Some(20));
    assert_eq!(server.ask(&["lock", "extend", "a", "--lease-id", "nonsense"]).status.code(), Some(64));
    assert_eq!(server.json(&["nodes"])["nodes"].as_array().unwrap().len(), 3);

    let permits = server.json(&["semaphore", "acquire", "s", "--limit", "3", "--permits", "2"]);
    let id = permits["lease_id"].as_str().unwrap();
    server.json(&["semaphore", "extend", "s", "--lease-id", id]);
    assert_eq!(server.json(&["semaphore", "release", "s", "--lease-id", id])["released"], true);

    let leader = server.json(&["election", "campaign", "e", "--candidate", "me"]);
    let id = leader["lease_id"].as_str().unwrap();
    server.json(&["election", "proclaim", "e", "--value", "v", "--lease-id", id]);
    let seen = server.json(&["election", "get", "e"]);
    assert_eq!(seen["value"], "v");
    let revision = seen["revision"].as_str().unwrap();
    let same = server.json(&["election", "get", "e", "--after", revision, "--wait", "100ms"]);
    assert_eq!(same["revision"], seen["revision"]);
    assert_eq!(server.json(&["election", "resign", "e", "--lease-id", id])["released"], true);

    let both = server.json(&["multilock", "acquire", "x", "y"]);
    let id = both["lease_id"].as_str().unwrap();
    server.json(&["multilock", "extend", "x", "y", "--lease-id", id]);
    assert_eq!(server.json(&["multilock", "release", "x", "y", "--lease-id", id])["released"], true);
}

#[test]
fn healthcheck_says_by_its_status_whether_the_server_is_ready() {
    let mut server = DevServer::start();
    assert_eq!(server.ask(&["healthcheck"]).status.code(), Some(0));
    assert_eq!(server.ask(&["healthcheck", "--live"]).status.code(), Some(0));
    server.child().kill().unwrap();
    server.child().wait().unwrap();
    assert_eq!(server.ask(&["healthcheck"]).status.code(), Some(1));
}

#[test]
fn what_needs_no_server_prints_to_stdout() {
    let print = |words: &[&str]| {
        let output = quorate().args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(print(&["config"]).contains("listen = "));
    assert!(
        print(&["openapi"]).contains("\"openapi\": \"3.1")
            || print(&["openapi"]).contains("\"openapi\":\"3.1")
    );
    assert!(print(&["openapi", "--version", "3.0"]).contains("3.0."));
    for shell in ["bash", "zsh", "fish"] {
        assert!(print(&["completions", shell]).contains("healthcheck"), "{shell}");
    }
    assert!(print(&["--version"]).starts_with("quorate "));
    let key =
        print(&["keys", "new", "--name", "ci", "--scope", "lock", "--scope", "read", "--prefix", "ci:"]);
    for word in ["[[key]]", "sha256", "ci:"] {
        assert!(key.contains(word), "{key}");
    }
}

#[test]
fn run_without_a_ttl_takes_what_the_server_allows() {
    let server = DevServer::start_with(&["--max-ttl", "5s"]);
    let script = format!("{} lock get a", crate::dev_server::QUORATE);
    let output = server.ask(&["run", "--lock", "a", "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let seen: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(seen["remaining_ms"].as_u64().is_some_and(|ms| ms <= 5_000), "{seen}");
}

#[test]
fn what_is_wrong_is_said_once() {
    let server = DevServer::start();
    let output = server.ask(&["run", "--lock", "a", "--ttl", "50ms", "--", "true"]);
    assert_eq!(output.status.code(), Some(64));
    let told = text(&output.stderr);
    assert_eq!(told.matches("--ttl").count(), 1, "{told}");
    assert!(!told.contains("ttl_ms"), "{told}");
}

#[test]
fn a_duration_needs_a_unit_unless_it_is_zero() {
    let server = DevServer::start();
    for flags in [&["--wait", "10"][..], &["--ttl", "30"], &["--kill-after", "5"]] {
        let output = server.ask(&[&["run", "--lock", "a"], flags, &["--", "true"]].concat());
        let (told, number) = (text(&output.stderr), flags[1]);
        assert_eq!(output.status.code(), Some(64), "{told}");
        assert!(
            told.contains(&format!("write {number}s or {number}ms")) && told.contains(flags[0]),
            "{told}"
        );
    }
    let output = server.ask(&["run", "--lock", "a", "--wait", "0", "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_strict_release_tells_what_was_not_held_by_its_status() {
    let server = DevServer::start();
    let lease = server.json(&["lock", "acquire", "a"]);
    let release = ["lock", "release", "a", "--strict", "--lease-id", lease["lease_id"].as_str().unwrap()];
    assert_eq!(server.ask(&release).status.code(), Some(0));
    let again = server.ask(&release);
    assert_eq!(again.status.code(), Some(20), "{}", text(&again.stderr));
    assert_eq!(text(&again.stdout), "{\"released\":false}\n");
}

#[test]
fn every_client_command_says_where_its_key_and_its_server_come_from() {
    let help = |words: &[&str]| text(&quorate().args(words).arg("--help").output().unwrap().stdout);
    for words in [
        &["run"][..],
        &["lock", "acquire"],
        &["lock", "list"],
        &["multilock", "release"],
        &["semaphore", "get"],
        &["election", "campaign"],
        &["fence", "check"],
        &["nodes"],
        &["healthcheck"],
    ] {
        let help = help(words);
        assert!(help.contains("QUORATE_API_KEY") && help.contains("QUORATE_SERVER"), "{words:?}: {help}");
    }
    assert!(!help(&["serve"]).contains("QUORATE_API_KEY."), "the server has a file of keys");
}

#[test]
fn a_misspelt_variable_is_told_and_changes_nothing_else() {
    let output = quorate().env("QUORATE_SERVR", "http://x").arg("config").output().unwrap();
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("QUORATE_SERVER"), "{}", text(&output.stderr));
}

#[test]
fn a_port_that_is_taken_is_told_with_the_flag_for_another() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let output =
        quorate().args(["dev", "--listen", &taken.local_addr().unwrap().to_string()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--listen"), "{}", text(&output.stderr));
}

#[test]
fn a_new_key_can_be_printed_as_json() {
    let words = ["keys", "new", "--name", "ci", "--scope", "lock,read", "--prefix", "ci:", "-o", "json"];
    let output = quorate().args(words).output().unwrap();
    let key: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(key["secret"].as_str().is_some_and(|secret| secret.len() > 20), "{key}");
    let entry = &key["entry"];
    assert_eq!(
        (&entry["name"], &entry["scopes"][0], &entry["prefixes"][0]),
        (&"ci".into(), &"lock".into(), &"ci:".into())
    );
    assert_eq!(entry["sha256"].as_str().map(str::len), Some(64));
}

#[test]
fn manual_pages_tell_of_every_command_and_cite_only_pages_that_exist() {
    let folder = tempfile::tempdir().unwrap();
    let written = quorate().args(["man", "--dir", folder.path().to_str().unwrap()]).output().unwrap();
    assert!(written.status.success(), "{}", text(&written.stderr));
    let names: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for name in ["quorate.1", "quorate-run.1", "quorate-lock-force-release.1", "quorate-election-campaign.1"]
    {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    let one_page = text(&quorate().arg("man").output().unwrap().stdout);
    for section in
        ["QUORATE RUN", "QUORATE LOCK FORCE-RELEASE", "QUORATE SEMAPHORE GET", "QUORATE ELECTION CAMPAIGN"]
    {
        assert!(one_page.contains(&format!(".SH {section}")), "{section}");
    }
    let pages = names.iter().map(|name| std::fs::read_to_string(folder.path().join(name)).unwrap());
    for page in pages.chain([one_page]) {
        let plain = page.replace('\\', "");
        for (at, _) in plain.match_indices("(1)") {
            let cited = plain[..at].rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap();
            assert!(names.contains(&format!("{cited}.1")), "{cited}(1) in {plain}");
        }
    }
}
