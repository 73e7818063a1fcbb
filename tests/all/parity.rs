//! The embedded node against a real Redis: random sequences of all scripts must get
//! the same replies, publish the same hints and leave the same data behind.
//!
//! Time is the one thing that may differ, and only a little: fields that hold one are
//! compared within a tolerance, everything else exactly. Lives are either long, or so
//! short that the next step finds them over.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config, TestRunner};
use quorate::clock::SeededClock;
use quorate::domain::Keys;
use quorate::node::calls::Bounds;
use quorate::node::embedded::EmbeddedNode;
use quorate::node::scripts::reply_of_one;
use quorate::node::{Command, HintSink, Marker, Node, NodeError, Script, Value};

use crate::redis_process::RedisProcess;

/// How many sequences are tried, and how long they are at most.
const SEQUENCES: u32 = 300;
const STEPS: usize = 40;

/// How far apart the two may be in time, ms: a pause of the machine between them.
const TOLERANCE_MS: f64 = 5_000.0;

const MARKER: &str = "q:member";
const MARK: &str = "v1 run deployment 3 300000";
const INDEX: &str = "q:semaphore:s";
const LOCKS: [&str; 3] = ["q:lock:a", "q:lock:b", "q:lock:c"];
const SLOTS: [&str; 4] = ["0", "1", "2", "10"];
const LEASES: [&str; 4] = [
    "00000000000000000000000000000001",
    "99999999999999999999999999999999",
    "abcdefabcdefabcdefabcdefabcdefab",
    "ffffffffffffffffffffffffffffffff",
];
const REQUESTS: [&str; 4] = ["-", "-", "request-1", "a:b@c.d_e~f-g"];
const REASONS: [&str; 6] = ["release", "release", "undo", "lost", "over", "bar"];
const VERSIONS: [&str; 5] = ["0", "0", "1", "9", "1790000000000000"];
/// Records of a fence, and of nothing else: as this version writes it, and the one before.
const FENCE: &str = "2 0000000000000 9007199254740990 0000000000001 00000000000000000000000000000000\n";
const FORMER_FENCE: &str = "000000000000000000000000009007199254740990";
/// A lease as the version before wrote it, until the year 2286, and one that was released.
const FORMER: &str =
    "999999999999900000000000001790000000000000E0010000099999999999999999999999999999999 request-1+0+7 {}";
const FORMER_OVER: &str =
    "000000000000000000000000001790000000000000A0010000099999999999999999999999999999999 - {}";
const TOKEN_MAX: u64 = (1 << 53) - 1;

#[derive(Debug, Clone)]
enum Step {
    Script { command: Box<Command>, marker: Option<Marker> },
    Command(Vec<String>),
    MemoryFull(bool),
    Flush,
}

/// A step, and whether something in it lives so shortly that its end must be awaited.
type Timed = (Step, bool);

/// What a lease covers: locks, or slots of the semaphore.
#[derive(Debug, Clone)]
struct Scope {
    keys: Vec<String>,
    slots: Vec<String>,
    /// Keys where slots are looked up by the lease, and how a call says so.
    by_lease: (Vec<String>, &'static str),
}

impl Scope {
    /// The slots as a call names them, with a blank in front; or this.
    fn slots_or(&self, none: &str) -> String {
        if self.slots.is_empty() { none.to_owned() } else { format!(" {}", self.slots.join(",")) }
    }
}

fn owned(items: &[&str]) -> Vec<String> {
    items.iter().map(|&item| item.to_owned()).collect()
}

fn locks(keys: &[&str]) -> Scope {
    let keys = owned(keys);
    Scope { slots: Vec::new(), by_lease: (keys.clone(), ""), keys }
}

fn slots(slots: &[&str]) -> Scope {
    let mut keys: Vec<_> = slots.iter().map(|slot| format!("{INDEX}/{slot}")).collect();
    keys.push(INDEX.to_owned());
    Scope { keys, slots: owned(slots), by_lease: (owned(&[INDEX]), " slots") }
}

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![
        subsequence(LOCKS.to_vec(), 1..=3).prop_shuffle().prop_map(|keys| locks(&keys)),
        subsequence(SLOTS.to_vec(), 1..=2).prop_shuffle().prop_map(|taken| slots(&taken)),
    ]
}

/// A lease and what it covers: most often the same, so that it is found again.
fn lease() -> impl Strategy<Value = (String, Scope)> {
    let usual = [locks(&LOCKS[..1]), locks(&["q:lock:b", "q:lock:a"]), slots(&["0"]), slots(&["10", "0"])];
    let usual: Vec<_> = owned(&LEASES).into_iter().zip(usual).collect();
    prop_oneof![4 => select(usual), 1 => (one_of(&LEASES), scope())]
}

fn one_of(items: &[&'static str]) -> impl Strategy<Value = String> + use<> {
    select(items.to_vec()).prop_map(str::to_owned)
}

/// The marker that a voting call expects, and whether what is stored lives shortly.
fn marker() -> impl Strategy<Value = (Option<Marker>, bool)> {
    let expected = prop_oneof![12 => Just(MARK), 1 => Just("another")];
    let clock_bound_ms = prop_oneof![4 => Just(60_000), 1 => Just(TOKEN_MAX / 1000)];
    let fence_retention_ms = prop_oneof![9 => Just(600_000), 1 => Just(1)];
    (expected, clock_bound_ms, fence_retention_ms).prop_map(
        |(expected, clock_bound_ms, fence_retention_ms)| {
            let bounds = Bounds { clock_bound_ms, fence_retention_ms };
            let marker = Marker { keys: Keys::new("q"), expected: expected.into(), votes: true, bounds };
            (Some(marker), fence_retention_ms == 1)
        },
    )
}

/// A life in ms, and whether it is short. Odd ones are errors, or short.
fn life(long: &[&'static str]) -> impl Strategy<Value = (String, bool)> + use<> {
    prop_oneof![
        24 => one_of(long).prop_map(|text| (text, false)),
        3 => Just(("1".to_owned(), true)),
        1 => one_of(&["0", "1.5", "x", ""]).prop_map(|text| (text, true)),
    ]
}

/// Of scripts that run alone.
fn retention() -> impl Strategy<Value = (String, bool)> {
    prop_oneof![9 => Just(("600000".to_owned(), false)), 1 => Just(("1".to_owned(), true))]
}

/// A token about the time of `now_us`, or at the end of the exact numbers.
fn token(now_us: u64) -> impl Strategy<Value = String> {
    let near = select(vec![0, 0, 1, 2, 3, 30_000_000]).prop_map(move |more| now_us + more);
    let odd = select(vec![now_us - 1_000_000, now_us + 1_000_000_000, TOKEN_MAX, TOKEN_MAX - 1, 5]);
    prop_oneof![
        30 => near.prop_map(|token| format!("{token:016}")),
        6 => odd.prop_map(|token| format!("{token:016}")),
        1 => Just("9xxxxxxxxxxxxxxx".to_owned()),
    ]
}

fn ahead() -> impl Strategy<Value = String> {
    prop_oneof![4 => Just("60000000".to_owned()), 1 => Just(TOKEN_MAX.to_string())]
}

fn data() -> impl Strategy<Value = String> {
    let odd = ["{}", "", " spaces  and more ", "{\"owner\":\"ü\"}", "1 2 3 4 5 6 7 8 9"];
    one_of(&odd)
}

fn script(script: Script, marker: Option<Marker>, keys: &[String], args: &[String]) -> Step {
    let command = keys.iter().fold(Command::new(script), |command, key| command.key(key));
    let command = match args {
        [how, what] if script.is_batched() => command.call(how, what),
        args => args.iter().fold(command, |command, arg| command.arg(arg)),
    };
    Step::Script { command: Box::new(command), marker }
}

/// The line of a lease, from LEASE on.
fn lease_line(
    [lease, mark, token, ttl, version, request, data]: [&str; 7],
    (mode, limits): &(String, String),
) -> String {
    format!("{lease} {mark} {mode} {token} {ttl} {limits} {version} {request} limit=5 {data}")
}

/// What it excludes; its longest hold and its delay.
fn terms() -> impl Strategy<Value = (String, String)> {
    (one_of(&["x", "s"]), prop_oneof![3 => Just("0 0".to_owned()), 1 => Just("0 50000".to_owned())])
}

fn acquire(now_us: u64) -> impl Strategy<Value = Timed> {
    let ttl = life(&["100000", "100000", "200000"]);
    let place = prop_oneof![3 => Just(String::new()), 1 => place(now_us)];
    let asked = (one_of(&REQUESTS), ttl, terms(), prop_oneof![4 => Just("0"), 1 => Just("150000")]);
    (marker(), lease(), asked, token(now_us), data(), place).prop_map(
        |(marker, (lease, scope), (request, ttl, terms, hold), token, data, place)| {
            let line = lease_line([&lease, "a", &token, &ttl.0, "0", &request, &data], &terms);
            let delay = &terms.1[2..];
            let how = format!("{} {hold} {delay}{} 3 {place}", ttl.0, scope.slots_or(" -"));
            (script(Script::Acquire, marker.0, &scope.keys, &[how, line]), ttl.1 || marker.1)
        },
    )
}

/// Where a waiter stands in the queue of servers. One keeps a free record until its entry lapses, the others not at
/// all: how much of a moment is over may differ between two nodes.
fn place(now_us: u64) -> impl Strategy<Value = String> {
    let terms = vec!["100000 0 1", "100000 0 0", "100000 0 2"];
    let entry = (1..4_u64, select(terms), 0..3_u64);
    let entry = entry.prop_map(move |(server, terms, next)| {
        let next = if next == 0 { 0 } else { now_us + next };
        format!("{:016} {server:x}0001 {terms} 3 {next:016} 0", now_us + server)
    });
    prop_oneof![3 => entry, 1 => Just("odd".to_owned())]
}

fn extend(now_us: u64) -> impl Strategy<Value = Timed> {
    let words = one_of(&["own", "keep", "raise"]).prop_map(|ttl| (ttl, false));
    let ttl = prop_oneof![words, life(&["100000", "200000"])];
    let token = prop_oneof![6 => token(now_us), 1 => Just("0".repeat(16))];
    let what = (marker(), lease(), token, ttl, one_of(&["0", "1"]), one_of(&VERSIONS), data());
    what.prop_map(|(marker, (lease, scope), token, ttl, joins, version, data)| {
        let (keys, by) = scope.by_lease;
        let args = [format!("{} {joins}{by}", ttl.0), format!("{lease} {token} {version} {data}")];
        (script(Script::Extend, marker.0, &keys, &args), ttl.1 || marker.1)
    })
}

fn heal(now_us: u64) -> impl Strategy<Value = Timed> {
    // Far away, or over, or odd.
    let ends = prop_oneof![
        20 => select(vec![1_000_000, 2_000_000]).prop_map(move |left| (now_us / 1000 + left).to_string()),
        3 => Just((now_us / 1000).to_string()),
        1 => one_of(&["0", "-700000", "1.5", "x", ""]),
    ];
    let mark = one_of(&["h", "h", "j"]);
    let lease = (lease(), ends, mark, token(now_us), one_of(&["100000", "200000"]), terms());
    (marker(), lease, one_of(&VERSIONS), one_of(&REQUESTS), data()).prop_map(
        |(marker, ((lease, scope), ends, mark, token, ttl, terms), version, request, data)| {
            let line = lease_line([&lease, &mark, &token, &ttl, &version, &request, &data], &terms);
            let args = [scope.slots_or(""), format!("{ends:0>13} {line}")];
            (script(Script::Heal, marker.0, &scope.keys, &args), marker.1)
        },
    )
}

fn release() -> impl Strategy<Value = Timed> {
    let marker = prop_oneof![3 => marker().prop_map(|(marker, _)| marker), 1 => Just(None)];
    (marker, lease(), one_of(&REASONS)).prop_map(|(marker, (lease, scope), reason)| {
        let (keys, by) = scope.by_lease;
        (script(Script::Release, marker, &keys, &[format!("{reason}{by}"), lease]), false)
    })
}

fn issue(now_us: u64) -> impl Strategy<Value = Timed> {
    (marker(), one_of(&LOCKS), token(now_us), ahead(), retention()).prop_map(
        |(marker, key, token, ahead, retention)| {
            (script(Script::Issue, marker.0, &[key], &[token, ahead, retention.0]), retention.1)
        },
    )
}

fn look() -> impl Strategy<Value = Timed> {
    let read =
        (marker(), scope()).prop_map(|(marker, scope)| script(Script::Read, marker.0, &scope.keys, &[]));
    let survey = marker()
        .prop_map(|marker| script(Script::Survey, marker.0, &owned(&[INDEX]), &owned(&["3", "1", "9"])));
    let list =
        (marker(), one_of(&["q:lock:*", "q:*", "q:lock:a*", "nothing"])).prop_map(|(marker, pattern)| {
            script(Script::List, marker.0, &[], &["0".into(), pattern, "1000".into()])
        });
    let publish = scope().prop_map(|scope| script(Script::Publish, None, &scope.keys, &[]));
    let status = Just(script(Script::Status, None, &owned(&[MARKER]), &[]));
    prop_oneof![read, survey, list, publish, status].prop_map(|step| (step, false))
}

fn mark() -> impl Strategy<Value = Timed> {
    (one_of(&["", MARK, "another"]), one_of(&[MARK, MARK, "another"]))
        .prop_map(|(seen, new)| (script(Script::Mark, None, &owned(&[MARKER]), &[seen, new]), false))
}

/// What an operator, a fault or another program may do to a node.
fn meddle() -> impl Strategy<Value = Timed> {
    let key = prop_oneof![
        one_of(&LOCKS),
        one_of(&SLOTS).prop_map(|slot| format!("{INDEX}/{slot}")),
        Just(INDEX.to_owned()),
        one_of(&LEASES).prop_map(|lease| format!("{INDEX}//{lease}")),
        one_of(&LEASES).prop_map(|lease| format!("{}//{lease}", LOCKS[0])),
        one_of(&REQUESTS).prop_map(|request| format!("{INDEX}///{request}")),
        Just(MARKER.to_owned()),
    ];
    let text = one_of(&["odd", "12 34", FENCE, FORMER_FENCE, FORMER, FORMER_OVER, "2 7 x", "1", ""]);
    let command = (key, text, 0..4).prop_map(|(key, text, kind)| {
        Step::Command(match kind {
            0 => vec!["SET".to_owned(), key, text],
            1 => vec!["ZADD".to_owned(), key, "1".to_owned(), text],
            _ => vec!["DEL".to_owned(), key],
        })
    });
    // A marker that is gone or wrong would keep the rest of the sequence from happening.
    let restore = Just(Step::Command(owned(&["SET", MARKER, MARK])));
    prop_oneof![
        6 => command,
        4 => restore,
        1 => Just(Step::MemoryFull(true)),
        2 => Just(Step::MemoryFull(false)),
        1 => Just(Step::Flush),
    ]
    .prop_map(|step| (step, false))
}

fn step(now_us: u64) -> impl Strategy<Value = Timed> {
    prop_oneof![
        7 => acquire(now_us),
        4 => extend(now_us),
        3 => heal(now_us),
        3 => release(),
        1 => issue(now_us),
        2 => look(),
        1 => mark(),
        2 => meddle(),
    ]
}

/// The channels of hints in their order.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl HintSink for Heard {
    fn hint(&self, channel: &str, message: &str) {
        self.0.lock().unwrap().push(format!("{channel} {message}"));
    }

    fn missed(&self) {}
}

/// The real Redis with its connections.
struct Real<'a> {
    connection: redis::Connection,
    hints: redis::PubSub<'a>,
    /// For batches, since the client takes one error in a reply for all of it.
    raw: BufReader<TcpStream>,
}

impl Real<'_> {
    fn query(&mut self, command: &redis::Cmd) -> Result<Value, String> {
        match command.query::<redis::Value>(&mut self.connection) {
            Ok(reply) => Ok(value(reply)),
            Err(error) => {
                let text = format!("{} {}", error.code().unwrap_or("?"), error.detail().unwrap_or_default());
                Err(plain(&text))
            }
        }
    }

    fn run(&mut self, words: &[&str]) -> Result<Value, String> {
        self.query(redis::cmd(words[0]).arg(&words[1..]))
    }

    fn step(&mut self, step: &Step) -> Result<Value, String> {
        match step {
            Step::Script { command, marker } => {
                let (keys, args) = command.invocation(marker.as_ref());
                let text = command.script.text();
                let reply = self.query(redis::cmd("EVAL").arg(text).arg(keys.len()).arg(keys).arg(args))?;
                Ok(reply_of_one(command.script, reply).unwrap())
            }
            Step::Command(command) => self.run(&words(command)),
            Step::MemoryFull(full) => {
                self.run(&["CONFIG", "SET", "maxmemory", if *full { "1" } else { "0" }])
            }
            Step::Flush => self.run(&["FLUSHALL"]),
        }
    }

    /// Runs calls as one batch; their replies in the form that other scripts reply in.
    fn batch(&mut self, calls: &[(&Command, Option<&Marker>)]) -> Vec<Result<Value, String>> {
        let (mut keys, mut args) = calls[0].0.invocation(calls[0].1);
        for (command, _) in &calls[1..] {
            keys.extend(command.keys().map(str::to_owned));
            args.extend(command.args().map(str::to_owned));
        }
        let mut words = owned(&["EVAL", Script::Acquire.text(), &keys.len().to_string()]);
        words.append(&mut keys);
        words.append(&mut args);
        let mut text = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| text.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.raw.get_mut().write_all(text.as_bytes()).unwrap();
        let length = line(&mut self.raw);
        assert_eq!(length, format!("*{}", calls.len() + 1));
        let now = read_reply(&mut self.raw).unwrap();
        let one = |(command, _): &(&Command, Option<&Marker>)| {
            let reply = read_reply(&mut self.raw)?;
            Ok(reply_of_one(command.script, Value::List(vec![now.clone(), reply])).unwrap())
        };
        calls.iter().map(one).collect()
    }

    fn heard(&mut self) -> Vec<String> {
        self.run(&["PUBLISH", "the end", ""]).unwrap();
        let mut heard = Vec::new();
        loop {
            let hint = self.hints.get_message().unwrap();
            if hint.get_channel_name() == "the end" {
                return heard;
            }
            heard.push(format!("{} {}", hint.get_channel_name(), hint.get_payload::<String>().unwrap()));
        }
    }
}

/// An error without what Redis adds: where in which script a command failed; Redis 6 says so in front.
fn plain(text: &str) -> String {
    let text = text.split(" script: ").next().unwrap_or_default().trim_end();
    let told =
        text.strip_prefix("ERR Error running script (call to ").and_then(|rest| rest.split_once("): "));
    let Some((_, told)) = told else { return in_quotes(text) };
    // The place where it was raised, once or twice; Lua's own errors keep theirs.
    let place =
        |text: &str| text.strip_prefix("@user_script:")?.split_once(": ").map(|(_, rest)| rest.to_owned());
    let told = place(told).unwrap_or(told.to_owned());
    let told = place(&told).unwrap_or(told);
    let told = match told.strip_prefix('-') {
        Some(told) => told.to_owned(),
        None if told.starts_with(char::is_uppercase) => told,
        None => format!("ERR {told}"),
    };
    in_quotes(&told)
}

/// Redis 6 names the command without them. What no command is given is said in other words there, and by Valkey.
fn in_quotes(text: &str) -> String {
    if text.ends_with("ommand arguments must be strings or integers") {
        return "ERR Lua redis lib command arguments must be strings or integers".to_owned();
    }
    match text.strip_prefix("ERR invalid expire time in ") {
        Some(command) if !command.starts_with('\'') => {
            format!("ERR invalid expire time in '{command}' command")
        }
        _ => text.to_owned(),
    }
}

fn line(input: &mut impl BufRead) -> String {
    let mut line = String::new();
    input.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// A reply, or the error in its place.
fn read_reply(input: &mut impl BufRead) -> Result<Value, String> {
    let head = line(input);
    let number = || head[1..].parse::<i64>().unwrap();
    match &head[..1] {
        ":" => Ok(Value::Int(number())),
        "$" if number() < 0 => Ok(Value::Nil),
        "$" => {
            let mut text = vec![0; number() as usize + 2];
            input.read_exact(&mut text).unwrap();
            text.truncate(text.len() - 2);
            Ok(Value::Text(String::from_utf8_lossy(&text).into_owned()))
        }
        "*" => (0..number()).map(|_| read_reply(input)).collect::<Result<_, _>>().map(Value::List),
        _ => Err(plain(&head[1..])),
    }
}

/// How many steps from the first on can be one batch.
fn batch_at(steps: &[Timed]) -> Vec<(&Command, Option<&Marker>)> {
    let mut batch: Vec<(&Command, Option<&Marker>)> = Vec::new();
    for (step, short_lived) in steps {
        let Step::Script { command, marker } = step else { break };
        let fits = |(_, first): &(&Command, Option<&Marker>)| {
            format!("{first:?}") == format!("{:?}", marker.as_ref())
        };
        if !command.script.is_batched() || !batch.iter().all(fits) {
            break;
        }
        batch.push((command, marker.as_ref()));
        // Its end is awaited before the next step.
        if *short_lived {
            break;
        }
    }
    batch
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn embedded_step(node: &EmbeddedNode, step: &Step) -> Result<Value, String> {
    let done = || Ok(Value::Text("OK".to_owned()));
    let reply = match step {
        Step::Script { command, marker } => node.eval(command, marker.as_ref()),
        Step::Command(command) => node.command(&words(command)),
        Step::MemoryFull(full) => {
            node.set_memory_full(*full);
            return done();
        }
        Step::Flush => {
            node.flush();
            return done();
        }
    };
    reply.map_err(|error| match error {
        NodeError::Redis(text) => text.to_string(),
        other => panic!("the node answers {other}"),
    })
}

fn value(reply: redis::Value) -> Value {
    match reply {
        redis::Value::Nil => Value::Nil,
        redis::Value::Int(number) => Value::Int(number),
        redis::Value::BulkString(text) => Value::Text(String::from_utf8_lossy(&text).into_owned()),
        redis::Value::SimpleString(text) => Value::Text(text),
        redis::Value::Okay => Value::Text("OK".to_owned()),
        redis::Value::Array(list) => Value::List(list.into_iter().map(value).collect()),
        other => panic!("not a reply of RESP2: {other:?}"),
    }
}

/// Takes the times out of a reply and puts what has no order in one.
fn split(step: &Step, reply: Result<Value, String>) -> (Result<Value, String>, Vec<f64>) {
    let mut times = Vec::new();
    let Ok(Value::List(mut list)) = reply else { return (reply, times) };
    let mut take = |value: Option<&mut Value>| {
        if let Some(value @ Value::Int(_)) = value {
            if let Value::Int(time) = *value {
                times.push(time as f64);
            }
            *value = Value::Text("a time".to_owned());
        }
    };
    fn at(value: &mut Value, place: usize) -> Option<&mut Value> {
        match value {
            Value::List(list) => list.get_mut(place),
            _ => None,
        }
    }
    /// The times of a holder whose fields begin there. Those who share a record are in the order of their ends.
    fn of_holder(value: &mut Value, first: usize, take: &mut impl FnMut(Option<&mut Value>)) {
        take(at(value, first));
        if let Some(Value::List(shared)) = at(value, first + 6) {
            shared[1..].sort_by_key(|one| format!("{:?}", one.as_list().and_then(|one| one.get(3))));
            shared[1..].iter_mut().for_each(|one| take(at(one, 0)));
        }
    }
    if let Step::Script { command, .. } = step {
        take(list.get_mut(1));
        match command.script {
            // How long it is kept for somebody else.
            Script::Acquire
                if list.first() == Some(&Value::Int(0)) && matches!(list.get(2), Some(Value::Int(_))) =>
            {
                take(list.get_mut(2));
            }
            Script::Acquire => {
                if let Some(holder @ Value::List(_)) = list.get_mut(2) {
                    of_holder(holder, 0, &mut take);
                }
            }
            Script::Extend => {
                take(list.get_mut(2));
                take(list.get_mut(11));
            }
            Script::Read => {
                let entries = list.iter_mut().skip(2).filter_map(|entry| at(entry, 1));
                entries.for_each(|held| of_holder(held, 0, &mut take));
            }
            Script::Survey => {
                // Slots are in the order of their ends, which may be a millisecond apart.
                if let Some(Value::List(slots)) = list.get_mut(3) {
                    slots.sort_by_key(|slot| slot.as_text().map(str::to_owned));
                }
                take(list.get_mut(4));
            }
            Script::List => {
                if let Some(found) = list.get_mut(3..) {
                    found.sort_by_key(|item| format!("{:?}", item.as_list().and_then(<[_]>::first)));
                    found.iter_mut().for_each(|entry| of_holder(entry, 1, &mut take));
                }
            }
            _ => {}
        }
    }
    (Ok(Value::List(list)), times)
}

/// One key: its name, what it holds, and the times in it.
type Stored = (String, Vec<String>, Vec<f64>);

/// Everything a node stores.
fn stored(keys: Vec<String>, mut run: impl FnMut(&[&str]) -> Result<Value, String>) -> Vec<Stored> {
    let store = |key: String| {
        let mut times =
            vec![run(&["PTTL", &key]).map(|left| left.as_u64().map_or(-1.0, |left| left as f64)).unwrap()];
        let content = match run(&["GET", &key]) {
            Ok(Value::Text(text)) => {
                // Of a record's fields, times have 13 digits.
                let is_time =
                    |word: &&str| word.len() == 13 && word.bytes().all(|byte| byte.is_ascii_digit());
                let mut content = text.clone();
                for time in text.split([' ', '\n']).filter(is_time) {
                    times.push(time.parse().unwrap());
                    content = content.replacen(time, "a time", 1);
                }
                vec![content]
            }
            Ok(other) => panic!("{key} holds {other:?}"),
            Err(_) => {
                let Ok(Value::List(list)) = run(&["ZRANGEBYSCORE", &key, "-inf", "+inf", "WITHSCORES"])
                else {
                    panic!("{key} is of an unknown type")
                };
                let texts: Vec<_> = list.iter().filter_map(Value::as_text).collect();
                let mut pairs: Vec<_> = texts.chunks(2).map(|pair| (pair[0].to_owned(), pair[1])).collect();
                pairs.sort_unstable();
                times.extend(pairs.iter().filter_map(|(_, score)| score.parse::<f64>().ok()));
                pairs.into_iter().map(|(member, _)| member).collect()
            }
        };
        (key, content, times)
    };
    keys.into_iter().map(store).collect()
}

fn near(left: &[f64], right: &[f64]) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).all(|(left, right)| (left - right).abs() <= TOLERANCE_MS)
}

#[test]
fn an_embedded_node_answers_as_redis_does() {
    compare(false);
}

/// What calls of one batch see of each other is what they would see if each ran alone.
#[test]
fn calls_that_share_a_run_are_answered_as_if_each_ran_alone() {
    compare(true);
}

/// Runs sequences on both; with `batches`, Redis runs in one what can be one.
fn compare(batches: bool) {
    let server = RedisProcess::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut subscriber = client.get_connection().unwrap();
    let mut hints = subscriber.as_pubsub();
    hints.psubscribe("*").unwrap();
    let raw = BufReader::new(TcpStream::connect(("127.0.0.1", server.port())).unwrap());
    let real = RefCell::new(Real { connection: client.get_connection().unwrap(), hints, raw });

    let now_us = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap();
    let clock = Arc::new(SeededClock::new(0, now_us));
    let sequences = proptest::collection::vec(step(now_us), 1..STEPS);
    let config = Config { cases: SEQUENCES, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&sequences, |steps| {
        let mut real = real.borrow_mut();
        real.run(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
        real.run(&["FLUSHALL"]).unwrap();
        real.heard();
        let node = EmbeddedNode::new("run-1", clock.clone());
        let heard = Arc::new(Heard::default());
        node.listen(heard.clone());
        for channel in LOCKS.into_iter().chain([INDEX]).map(str::to_owned) {
            drop(node.subscribe(channel.into()));
        }
        for channel in SLOTS {
            drop(node.subscribe(format!("{INDEX}/{channel}").into()));
        }

        let marked = (Step::Command(owned(&["SET", MARKER, MARK])), false);
        let mut steps: &[Timed] = &[vec![marked], steps].concat();
        let mut replies = VecDeque::new();
        let mut full = false;
        while let [(step, short_lived), rest @ ..] = steps {
            if let Step::MemoryFull(now) = step {
                full = *now;
            }
            // Out of memory, what a release deletes makes room for the calls behind it.
            if batches && !full && replies.is_empty() {
                let batch = batch_at(steps);
                if !batch.is_empty() {
                    replies.extend(real.batch(&batch));
                }
            }
            steps = rest;
            let reply = replies.pop_front().unwrap_or_else(|| real.step(step));
            let (expected, expected_times) = split(step, reply);
            let (given, given_times) = split(step, embedded_step(&node, step));
            prop_assert_eq!(&given, &expected, "{:?}", step);
            prop_assert!(
                near(&given_times, &expected_times),
                "{:?}: {:?}, redis: {:?}",
                step,
                given_times,
                expected_times
            );
            if *short_lived {
                thread::sleep(Duration::from_millis(5));
            }
        }

        prop_assert_eq!(&*heard.0.lock().unwrap(), &real.heard());
        let mut keys = match real.run(&["KEYS", "*"]).unwrap() {
            Value::List(list) => list.iter().filter_map(Value::as_text).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        keys.sort_unstable();
        prop_assert_eq!(&node.keys(), &keys);
        let expected = stored(keys.clone(), |words| real.run(words));
        let given = stored(keys, |words| node.command(words).map_err(|error| error.to_string()));
        for (given, expected) in given.iter().zip(&expected) {
            prop_assert_eq!((&given.0, &given.1), (&expected.0, &expected.1));
            prop_assert!(near(&given.2, &expected.2), "{:?}, redis: {:?}", given, expected);
        }
        Ok(())
    });
    if let Err(why) = outcome {
        panic!("{why}");
    }
}
