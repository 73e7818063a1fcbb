//! A `quorate dev` process for tests of the binary: started on a free port, ended on drop.
#![allow(clippy::disallowed_methods, reason = "processes are waited for in real time")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The binary under test.
pub const QUORATE: &str = env!("CARGO_BIN_EXE_quorate");

/// How long anything here may take before the test gives up: far more than it needs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A running server on embedded nodes.
pub struct DevServer {
    child: Child,
    url: String,
}

impl DevServer {
    /// With the defaults.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With further flags.
    pub fn start_with(flags: &[&str]) -> Self {
        Self::spawn(quorate().args(["dev", "--listen", "127.0.0.1:0"]).args(flags))
    }

    /// By a command of one's own, which must be a server that says where it listens.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the server starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the server says something");
        let url = line.trim().strip_prefix("listening on ").expect("it says where it listens").to_owned();
        Self { child, url }
    }

    /// Where it listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same as an address.
    pub fn address(&self) -> SocketAddr {
        self.url.rsplit('/').next().and_then(|address| address.parse().ok()).expect("an address")
    }

    /// A client command for this server.
    pub fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = quorate();
        command.env("QUORATE_SERVER", &self.url).args(words);
        command
    }

    /// Runs a client command to its end.
    pub fn ask<S: AsRef<OsStr>>(&self, words: &[S]) -> Output {
        self.command(words).output().expect("the command starts")
    }

    /// Runs a client command that succeeds; its answer.
    pub fn json<S: AsRef<OsStr>>(&self, words: &[S]) -> serde_json::Value {
        let output = self.ask(words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON on stdout")
    }

    /// Whether somebody holds the lock.
    pub fn is_held(&self, lock: &str) -> bool {
        self.json(&["lock", "get", lock])["held"] == true
    }

    /// How many wait for the lock.
    pub fn waiters(&self, lock: &str) -> u64 {
        self.json(&["lock", "get", lock])["waiters"].as_u64().expect("a number")
    }

    /// The process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for DevServer {
    fn drop(&mut self) {
        // Gone already where the test was about that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The binary with nothing of this process's settings.
pub fn quorate() -> Command {
    // Whoever runs the tests in the background may have left signals ignored, which the program
    // respects and its children inherit.
    let mut command = if cfg!(target_os = "linux") {
        let mut command = Command::new("env");
        command.args(["--default-signal", QUORATE]);
        command
    } else {
        Command::new(QUORATE)
    };
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUORATE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Sends a signal by name, as a shell does.
pub fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status().expect("kill runs");
    assert!(sent.success(), "signal {name} to {pid}");
}

/// Waits until `it` holds.
pub fn until(what: &str, mut it: impl FnMut() -> bool) {
    let started = Instant::now();
    while !it() {
        assert!(started.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for the end of a process; its exit status.
pub fn ended(child: &mut Child) -> i32 {
    let mut status = None;
    until("the process ends", || {
        status = child.try_wait().expect("it can be waited for");
        status.is_some()
    });
    status.and_then(|status| status.code()).expect("it ended by itself")
}
