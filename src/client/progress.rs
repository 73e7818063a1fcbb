//! What `quorate run` tells a person at a terminal while it waits: who holds the lease, for how long still, and
//! how many wait before it.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::terminal::Terminal;
use super::{Client, Printable, Target};

/// Who gets the lease before this hears nothing of it.
const FIRST: Duration = Duration::from_millis(500);

/// How often it looks.
const EVERY: Duration = Duration::from_secs(2);

/// Keeps one line up to date until dropped, which takes the line away. At no terminal it does nothing.
pub(super) async fn show(client: &Client, target: &Target) -> std::convert::Infallible {
    let terminal = Terminal::open().filter(|_| std::io::stderr().is_terminal());
    let Some(terminal) = terminal else { return std::future::pending().await };
    let mut line = Line { is_shown: false };
    // One who arrives is the last: as many as wait then, or at any time since, it waits for at most.
    let mut place = u64::MAX;
    sleep(FIRST).await;
    loop {
        // In the background it would write over the command line that somebody types.
        for (what, path) in paths(target).into_iter().filter(|_| terminal.is_ours()) {
            // Without the scope to read there is nothing to tell.
            let Ok(seen) = client.get(&path, Duration::ZERO).await else { continue };
            if let Some(holder) = holder(target, &seen) {
                place = place.min(seen.get("waiters").and_then(Value::as_u64).unwrap_or(u64::MAX));
                line.show(format_args!("quorate: waiting for {what}: {holder}{}", in_queue(place)));
                break;
            }
        }
        sleep(EVERY).await;
    }
}

/// The line that is written over.
struct Line {
    is_shown: bool,
}

impl Line {
    fn show(&mut self, text: impl Display) {
        self.is_shown = true;
        write(format_args!("\r\x1b[K{text}"));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.is_shown {
            write("\r\x1b[K");
        }
    }
}

fn write(what: impl Display) {
    let mut stderr = std::io::stderr();
    // A terminal that has gone is no reason to stop.
    let _ = write!(stderr, "{what}").and_then(|()| stderr.flush());
}

/// Each name that is waited for, and where it is shown.
fn paths(target: &Target) -> Vec<(String, String)> {
    let lock = |name: &String| (format!("lock {name}"), format!("v1/locks/{name}"));
    match target {
        Target::Lock(name) => vec![lock(name)],
        Target::Multilock(names) => names.iter().map(lock).collect(),
        Target::Semaphore { name, .. } => {
            vec![(format!("semaphore {name}"), format!("v1/semaphores/{name}"))]
        }
        Target::Election { name, .. } => vec![(format!("election {name}"), format!("v1/elections/{name}"))],
    }
}

fn remaining_ms(of: &Value) -> Option<u64> {
    of.get("remaining_ms").and_then(Value::as_u64)
}

/// Who is in the way; none where nobody is.
fn holder(target: &Target, seen: &Value) -> Option<String> {
    let name = |of: &Value, key| {
        of.get(key)
            .and_then(Value::as_str)
            .map_or_else(|| "somebody".to_owned(), |name| Printable(name).to_string())
    };
    match target {
        Target::Lock(_) | Target::Multilock(_) => {
            seen.get("held").and_then(Value::as_bool).filter(|held| *held).map(|_| {
                match seen.get("holders_total").and_then(Value::as_u64) {
                    Some(holders) => format!("shared by {holders}{}", left(seen)),
                    None => format!("held by {}{}", name(seen, "owner"), left(seen)),
                }
            })
        }
        Target::Election { .. } => {
            seen.get("leader").map(|_| format!("{} leads{}", name(seen, "leader"), left(seen)))
        }
        Target::Semaphore { limit, .. } => {
            let in_use = seen.get("in_use").and_then(Value::as_u64)?;
            let holders = seen.get("holders").and_then(Value::as_array)?;
            let next = holders.iter().min_by_key(|holder| remaining_ms(holder))?;
            let next = format!("{}'s first{}", name(next, "owner"), left(next));
            Some(format!("{in_use} of {limit} permits are in use, {next}"))
        }
    }
}

/// For how long still, as far as it is told.
fn left(of: &Value) -> String {
    let seconds = |ms: u64| humantime::format_duration(Duration::from_secs(ms.div_ceil(1_000)));
    remaining_ms(of).map_or_else(String::new, |ms| format!(" for {} unless extended", seconds(ms)))
}

/// The place in the queue, as far as it is known.
fn in_queue(place: u64) -> String {
    match place {
        0 | u64::MAX => String::new(),
        1 => "; you are next".to_owned(),
        place => format!("; you are number {place} in the queue, or further ahead"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whoever_is_in_the_way_is_told_without_acting_on_the_terminal() {
        let lock = Target::Lock("a".to_owned());
        let held = json!({"held": true, "owner": "ev\u{202e}il", "remaining_ms": 61_500});
        assert_eq!(holder(&lock, &held).unwrap(), r"held by ev\u{202e}il for 1m 2s unless extended");
        let shared = json!({"held": true, "mode": "shared", "holders_total": 3, "remaining_ms": 9_000});
        assert_eq!(holder(&lock, &shared).unwrap(), "shared by 3 for 9s unless extended");
        assert_eq!(holder(&lock, &json!({"held": false})), None);
        let election = Target::Election { name: "e".to_owned(), candidate: "me".to_owned(), value: None };
        assert_eq!(
            holder(&election, &json!({"leader": "you", "remaining_ms": 1})).unwrap(),
            "you leads for 1s unless extended"
        );
        assert_eq!(holder(&election, &json!({"revision": "x"})), None);
        let semaphore = Target::Semaphore { name: "s".to_owned(), limit: 2, permits: 1 };
        let full = json!({"in_use": 2, "holders": [{"owner": "b", "remaining_ms": 9_000}, {"owner": "a", "remaining_ms": 2_000}]});
        let told = "2 of 2 permits are in use, a's first for 2s unless extended";
        assert_eq!(holder(&semaphore, &full).unwrap(), told);
    }
}
