//! The command line at a terminal: job control, what it tells while it waits, tables.
#![allow(clippy::disallowed_methods, reason = "processes are waited for in real time")]

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::dev_server::{DevServer, QUORATE, ended, until};

/// A command at a terminal of its own, and somebody who types.
struct Typist {
    child: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
}

/// Makes a command run at a terminal of its own, if this machine can make one.
pub fn at_a_terminal(command: &Command) -> Option<Command> {
    let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap().replace('\'', "'\\''"));
    let words: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).map(quoted).collect();
    if Command::new("script").arg("--version").output().is_err() {
        crate::support::skip("no script(1), so no terminal (apt-get install bsdutils)");
        return None;
    }
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"]);
    terminal.stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => terminal.env(name, value),
            None => terminal.env_remove(name),
        };
    }
    Some(terminal)
}

impl Typist {
    fn start(command: &Command) -> Option<Self> {
        let mut terminal = at_a_terminal(command)?;
        let mut child = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let seen = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut bytes) {
                seen.lock().unwrap().extend_from_slice(&bytes[..length]);
            }
        });
        Some(Self { child, keys, shown })
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).unwrap();
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until `text` has been shown so often.
    fn sees(&self, text: &str, times: usize) {
        let what = format!("{text:?} is shown {times} times");
        let waiting = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(&what, || self.screen().matches(text).count() >= times);
        }));
        assert!(waiting.is_ok(), "in vain: {what}: {}", self.screen());
    }
}

impl Drop for Typist {
    fn drop(&mut self) {
        // Its terminal goes with it, and whoever sits there.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_command_started_in_the_background_gets_the_terminal_in_the_foreground() {
    let server = DevServer::start();
    let mut shell = server.command(&[""; 0]);
    // The same environment, but a shell that knows jobs and does not read ahead.
    let variables: Vec<_> = shell.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
    shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "--noediting", "-i"]);
    for (name, value) in variables {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env("PS1", "$ ");
    let Some(mut typist) = Typist::start(&shell) else { return };
    // So that it tells of a job's stop at once.
    typist.types("set -b\n");
    typist.types(&format!("{QUORATE} run --lock a -- sh -c 'read x; echo \"read: $x\"' &\n"));
    // Nothing stops there unseen: the shell tells that its job is stopped, by a read from the terminal.
    typist.sees("Stopped", 1);
    assert!(server.is_held("a"));
    typist.types("fg\n");
    typist.sees(" run --lock a", 3);
    // Ctrl-Z stops the job as any other.
    typist.types("\x1a");
    typist.sees("Stopped", 2);
    typist.types("fg\n");
    typist.sees(" run --lock a", 5);
    typist.types("hello\n");
    typist.sees("read: hello", 1);
    until("given back", || !server.is_held("a"));
    typist.types("exit 3\n");
    assert_eq!(ended(&mut typist.child), 3, "{}", typist.screen());
}

#[test]
fn waiting_tells_who_is_in_the_way_and_for_how_long() {
    let server = DevServer::start();
    let held = server.json(&["lock", "acquire", "a", "--ttl", "5m", "--owner", "some\u{202e}body"]);
    let Some(typist) = Typist::start(&server.command(&["run", "--lock", "a", "--", "true"])) else { return };
    let mut typist = typist;
    typist.sees(r"waiting for lock a: held by some\u{202e}body for 4m ", 1);
    typist.sees("unless extended; you are next", 1);
    assert!(!typist.screen().contains('\u{202e}'));
    server.json(&["lock", "release", "a", "--lease-id", held["lease_id"].as_str().unwrap()]);
    assert_eq!(ended(&mut typist.child), 0);
    assert!(typist.screen().ends_with("\r\u{1b}[K"), "the line is taken away: {:?}", typist.screen());
}

#[test]
fn a_list_is_a_table_at_a_terminal_unless_json_is_asked_for() {
    let server = DevServer::start();
    server.json(&["lock", "acquire", "a", "--owner", "me\u{202e}"]);
    for (words, starts) in [
        (&["lock", "list"][..], "NAME  OWNER"),
        (&["nodes"], "NODE  ADDRESS"),
        (&["lock", "list", "-o", "json"], "{\"locks\":[{"),
        (&["lock", "get", "a"], "{\r\n  "),
    ] {
        let Some(mut typist) = Typist::start(&server.command(words)) else { return };
        assert_eq!(ended(&mut typist.child), 0);
        typist.sees(starts, 1);
        assert!(typist.screen().starts_with(starts), "{words:?}: {}", typist.screen());
        assert!(!typist.screen().contains('\u{202e}'), "{words:?}: {}", typist.screen());
    }
    let table = server.ask(&["lock", "list", "-o", "table"]);
    assert!(table.stdout.starts_with(b"NAME  OWNER"));
}
