//! What the scripts promise, rule by rule (docs/protocol.md §1–§4), and how the node behaves around them.

use std::sync::atomic::AtomicUsize;

use futures_util::FutureExt as _;

use super::*;
use crate::clock::SeededClock;
use crate::domain::Keys;
use crate::node::ballot::Ballot;
use crate::node::calls::{self, Bounds};
use crate::node::{Command, Marker, ReplyTo, Script};

const NOW_MS: u64 = 1_790_000_000_000;
/// A token of this moment.
const P: u64 = NOW_MS * 1000;
const MAX: u64 = (1 << 53) - 1;
const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const MARKER: &str = "the marker";
const TTL: u64 = 30_000;
const RETENTION: u64 = 600_000;
const MINUTE_US: u64 = 60_000_000;
const SEMAPHORE: &str = "q:semaphore:s";

mod queue;

/// A clock that stands still; the node's offset turns it.
struct Stopped;

impl Clock for Stopped {
    fn wall_us(&self) -> u64 {
        P
    }

    fn random_bits(&self) -> u128 {
        0
    }

    fn random_below(&self, _: u64) -> u64 {
        0
    }
}

/// A node that is marked.
fn node() -> EmbeddedNode {
    let node = EmbeddedNode::new("run-1", Arc::new(Stopped));
    node.command(&["SET", "q:member", MARKER]).unwrap();
    node
}

/// `ms` after the beginning.
fn at(node: &EmbeddedNode, ms: u64) {
    node.set_clock_offset_us(i64::try_from(ms).unwrap() * 1000);
}

/// A reply as text: the code, then what follows the node's clock.
fn text(reply: Result<Value, NodeError>) -> String {
    fn show(value: &Value) -> String {
        match value {
            Value::Nil => "nil".to_owned(),
            Value::Int(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            Value::List(list) => format!("[{}]", list.iter().map(show).collect::<Vec<_>>().join(" ")),
        }
    }
    match reply {
        Ok(Value::List(list)) => {
            let parts: Vec<_> =
                list.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, item)| show(item)).collect();
            parts.join(" ")
        }
        Ok(other) => panic!("no list: {other:?}"),
        Err(error) => error.to_string(),
    }
}

struct Ask<'a> {
    lease: &'a str,
    request: &'a str,
    proposed: u64,
    ahead_us: u64,
    look_only: bool,
}

const ASK: Ask<'_> = Ask { lease: A, request: "-", proposed: P, ahead_us: MINUTE_US, look_only: false };

/// The marker that a voting call expects.
fn marker(ahead_us: u64) -> Marker {
    let bounds = Bounds { clock_bound_ms: ahead_us / 1000, fence_retention_ms: RETENTION };
    Marker { keys: Keys::new("q"), expected: MARKER.into(), votes: true, bounds }
}

fn run_ahead(node: &EmbeddedNode, script: Script, ahead_us: u64, keys: &[String], args: &[String]) -> String {
    let command = keys.iter().fold(Command::new(script), |command, key| command.key(key));
    let command = match args {
        [how, what] if script.is_batched() => command.call(how, what),
        args => args.iter().fold(command, |command, arg| command.arg(arg)),
    };
    text(node.eval(&command, script.may_be_marked().then(|| marker(ahead_us)).as_ref()))
}

fn run(node: &EmbeddedNode, script: Script, keys: &[String], args: &[String]) -> String {
    run_ahead(node, script, MINUTE_US, keys, args)
}

fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|&item| item.to_owned()).collect()
}

fn numbers(items: &[u64]) -> Vec<String> {
    items.iter().map(u64::to_string).collect()
}

/// Names below `q:lock:`, or slots of [`SEMAPHORE`].
enum On<'a> {
    Locks(&'a [&'a str]),
    Slots(&'a [u64]),
}

impl On<'_> {
    fn keys(&self) -> Vec<String> {
        match self {
            Self::Locks(names) => names.iter().map(|name| format!("q:lock:{name}")).collect(),
            Self::Slots(slots) => {
                let slots = slots.iter().map(|slot| format!("{SEMAPHORE}/{slot}"));
                slots.chain([SEMAPHORE.to_owned()]).collect()
            }
        }
    }

    fn slots(&self) -> String {
        match self {
            Self::Locks(_) => String::new(),
            Self::Slots(slots) => numbers(slots).join(","),
        }
    }

    fn tombstone(&self, lease: &str) -> String {
        format!("{}//{lease}", self.channels()[0])
    }

    /// Keys where slots are looked up by the lease.
    fn channels(&self) -> Vec<String> {
        match self {
            Self::Locks(_) => self.keys(),
            Self::Slots(_) => strings(&[SEMAPHORE]),
        }
    }

    fn by(&self) -> &'static str {
        match self {
            Self::Locks(_) => "",
            Self::Slots(_) => " slots",
        }
    }
}

/// The line of a lease.
fn line(lease: &str, ends_ms: u64, mark: char, token: u64, ttl: u64, request: &str) -> String {
    format!("{ends_ms:013} {lease} {mark} x {token:016} {ttl} 0 0 0 {request} - {{}}")
}

/// A record, with these lines.
fn record(fence: u64, freed_ms: u64, last: &str, lines: &[String]) -> String {
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    format!("2 0000000000000 {fence:016} {freed_ms:013} {last:0>32}\n{lines}")
}

fn acquire(node: &EmbeddedNode, on: &On<'_>, ask: &Ask<'_>) -> String {
    acquire_at(node, on, ask, 100, "")
}

/// Of so many permits of a semaphore, by whom stands at this place in the queue of servers.
fn acquire_at(node: &EmbeddedNode, on: &On<'_>, ask: &Ask<'_>, limit: u64, place: &str) -> String {
    let ttl = if ask.look_only { 0 } else { TTL };
    let line = line(ask.lease, 0, 'a', ask.proposed, ttl, ask.request);
    let slots = if matches!(on, On::Slots(_)) { on.slots() } else { "-".to_owned() };
    let how = format!("{ttl} 0 0 {slots} {limit} {place}");
    let reply = run_ahead(node, Script::Acquire, ask.ahead_us, &on.keys(), &[how, line[14..].to_owned()]);
    if reply == granted(ask.proposed) { GRANTED.to_owned() } else { reply }
}

fn extend(node: &EmbeddedNode, on: &On<'_>, lease: &str, token: u64, ttl: &str) -> String {
    extend_with(node, on, lease, token, ttl, ["0", "0", ""])
}

/// A retry of its request has it, too.
fn join(node: &EmbeddedNode, on: &On<'_>, lease: &str, token: u64) -> String {
    extend_with(node, on, lease, token, "own", ["1", "0", ""])
}

fn extend_with(
    node: &EmbeddedNode,
    on: &On<'_>,
    lease: &str,
    token: u64,
    ttl: &str,
    [joins, version, data]: [&str; 3],
) -> String {
    let args = [format!("{ttl} {joins}{}", on.by()), format!("{lease} {token:016} {version} {data}")];
    run_ahead(node, Script::Extend, MINUTE_US.max(token), &on.channels(), &args)
}

fn heal(node: &EmbeddedNode, on: &On<'_>, lease: &str, token: u64) -> String {
    heal_until(node, on, lease, token, NOW_MS + 20_000)
}

fn heal_until(node: &EmbeddedNode, on: &On<'_>, lease: &str, token: u64, ends_ms: u64) -> String {
    let line = line(lease, ends_ms, 'h', token, TTL, "-");
    run(node, Script::Heal, &on.keys(), &[on.slots(), line])
}

/// "1" and "0" where nothing more is to be said.
fn release_for(node: &EmbeddedNode, on: &On<'_>, lease: &str, reason: &str) -> String {
    let reply =
        run(node, Script::Release, &on.channels(), &[format!("{reason}{}", on.by()), lease.to_owned()]);
    reply.strip_suffix(" 0").map_or(reply.clone(), str::to_owned)
}

fn release(node: &EmbeddedNode, on: &On<'_>, lease: &str) -> String {
    release_for(node, on, lease, "release")
}

/// As whoever lost a round does.
fn undo(node: &EmbeddedNode, on: &On<'_>, lease: &str) -> String {
    release_for(node, on, lease, "lost")
}

fn read(node: &EmbeddedNode, on: &On<'_>) -> String {
    run(node, Script::Read, &on.keys(), &[])
}

fn issue(node: &EmbeddedNode, name: &str, proposed: u64) -> String {
    let args = numbers(&[proposed, MINUTE_US.max(proposed), RETENTION]);
    run(node, Script::Issue, &strings(&[&format!("q:lock:{name}")]), &args)
}

fn survey(node: &EmbeddedNode) -> String {
    run(node, Script::Survey, &strings(&[SEMAPHORE]), &numbers(&[100, 1, 2]))
}

const LOCK: On<'_> = On::Locks(&["a"]);
const BOTH: On<'_> = On::Locks(&["a", "b"]);

/// Granted with the token that was proposed.
const GRANTED: &str = "1";
/// Of a release: the lease was extended, or healed.
const NOT_AS_ACQUIRED: &str = "1 1";
const C: &str = "cccccccccccccccccccccccccccccccc";
const D: &str = "dddddddddddddddddddddddddddddddd";
const E: &str = "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";

fn granted(token: u64) -> String {
    format!("1 {token}")
}

#[test]
fn a_free_lock_is_granted_with_the_proposed_token() {
    let node = node();
    assert_eq!(acquire(&node, &LOCK, &ASK), GRANTED);
    assert_eq!(read(&node, &LOCK), format!("1 [{P} [30000 30000 {P} {A} 0 {{}} 0]]"));
    let record = record(P, 0, "", &[line(A, NOW_MS + TTL, 'a', P, TTL, "-")]);
    assert_eq!(node.get_raw("q:lock:a").unwrap(), record);
}

#[test]
fn a_held_lock_is_refused_with_what_is_known_of_its_holder() {
    let node = node();
    acquire(&node, &LOCK, &ASK);
    at(&node, 10_000);
    let ask = Ask { lease: B, proposed: P + 1, ..ASK };
    assert_eq!(acquire(&node, &LOCK, &ask), format!("0 [20000 30000 {P} {A} 0 {{}} 0 0 -]"));
    at(&node, TTL);
    assert_eq!(acquire(&node, &LOCK, &ask), GRANTED);
}

#[test]
fn only_looking_never_grants() {
    let node = node();
    let look = Ask { lease: B, look_only: true, ..ASK };
    assert_eq!(acquire(&node, &LOCK, &look), "0");
    assert_eq!(node.keys(), ["q:member"]);
    acquire(&node, &LOCK, &ASK);
    assert!(acquire(&node, &LOCK, &look).starts_with("0 [30000"));
}

#[test]
fn a_token_is_exact_at_2_to_the_53_minus_1() {
    let node = node();
    let far = Ask { proposed: MAX, ahead_us: MAX, ..ASK };
    assert_eq!(acquire(&node, &LOCK, &far), GRANTED);
    assert_eq!(read(&node, &LOCK), format!("1 [{MAX} [30000 30000 {MAX} {A} 0 {{}} 0]]"));
    assert!(extend(&node, &LOCK, A, MAX, "own").starts_with("1 30000"));
    assert_eq!(read(&node, &LOCK), format!("1 [{MAX} [30000 30000 {MAX} {A} 0 {{}} 0]]"));

    // One below, so that the sum in the next grant reaches it.
    node.command(&["SET", "q:lock:a", &record(MAX - 1, 1, "", &[])]).unwrap();
    assert_eq!(acquire(&node, &LOCK, &ASK), granted(MAX));
    assert!(node.get_raw("q:lock:a").unwrap().starts_with(&format!("2 0000000000000 {MAX} ")));
    assert_eq!(read(&node, &LOCK), format!("1 [{MAX} [30000 30000 {MAX} {A} 0 {{}} 0]]"));
}

#[test]
fn a_grant_is_above_every_token_that_the_node_knows() {
    let node = node();
    acquire(&node, &LOCK, &Ask { proposed: P + 1000, ..ASK });
    release(&node, &LOCK, A);
    for (lease, token) in [(B, P + 1001), (C, P + 1002), (D, P + 1003)] {
        assert_eq!(acquire(&node, &LOCK, &Ask { lease, ..ASK }), granted(token));
        release(&node, &LOCK, lease);
    }
    assert_eq!(acquire(&node, &LOCK, &Ask { lease: E, proposed: P + 2000, ..ASK }), GRANTED);
}

#[test]
fn the_fence_survives_the_release_for_its_retention() {
    let node = node();
    acquire(&node, &LOCK, &Ask { proposed: P + 7, ..ASK });
    assert_eq!(release(&node, &LOCK, A), "1");
    assert_eq!(read(&node, &LOCK), format!("1 [{}]", P + 7));
    // Counted from the end that the lease would have had.
    at(&node, TTL + RETENTION);
    assert!(node.get_raw("q:lock:a").is_some());
    at(&node, TTL + RETENTION + 1);
    assert_eq!(read(&node, &LOCK), "1 nil");
}

#[test]
fn a_token_too_far_ahead_of_the_nodes_clock_is_refused() {
    let node = node();
    let ask = |proposed| Ask { proposed, ..ASK };
    assert_eq!(acquire(&node, &LOCK, &ask(P + MINUTE_US + 1)), "-2");
    assert_eq!(acquire(&node, &LOCK, &ask(P + MINUTE_US)), GRANTED);
}

#[test]
fn a_node_whose_marker_is_another_or_missing_abstains() {
    let node = node();
    node.command(&["SET", "q:member", "another"]).unwrap();
    assert_eq!(acquire(&node, &LOCK, &ASK), "-1");
    assert_eq!(extend(&node, &LOCK, A, P, "own"), "-1");
    assert_eq!(heal(&node, &LOCK, A, P), "-1");
    node.flush();
    assert_eq!(acquire(&node, &LOCK, &ASK), "-1");
    for reply in [read(&node, &LOCK), issue(&node, "a", P), survey(&node)] {
        assert_eq!(reply, "-1 nil");
    }
    assert_eq!(node.keys(), Vec::<String>::new());
}

#[test]
fn the_marker_is_replaced_only_where_it_is_what_the_caller_saw() {
    let node = node();
    let keys = strings(&["q:member", "q:node", "q:membership"]);
    let mark = |seen: &str, new: &str| run(&node, Script::Mark, &keys, &strings(&[seen, new, "run-1", ""]));
    assert_eq!(mark("", "new"), format!("0 {MARKER}"));
    assert_eq!(mark(MARKER, "new"), "1 new");
    node.flush();
    assert_eq!(mark("new", "newer"), "0 ");
    assert_eq!(mark("", "newer"), "1 newer");
    assert_eq!(node.get_raw("q:member").as_deref(), Some("newer"));
    // A server of the version before finds a deployment of no nodes, and leaves it alone.
    assert_eq!(node.get_raw("q:node").as_deref(), Some("1 run-1 upgraded 0 0"));
}

#[test]
fn a_release_that_overtakes_its_acquire_leaves_nothing() {
    let node = node();
    assert_eq!(release(&node, &BOTH, A), "0");
    assert_eq!(acquire(&node, &BOTH, &ASK), "-3");
    assert_eq!(heal(&node, &BOTH, A, P), "-3");
    assert_eq!(node.keys(), ["q:lock:a".to_owned(), BOTH.tombstone(A), "q:member".to_owned()]);
    assert_eq!(read(&node, &BOTH), "1 nil nil");
    assert_eq!(acquire(&node, &BOTH, &Ask { lease: B, ..ASK }), GRANTED);
    assert_eq!(acquire(&node, &BOTH, &ASK), "-3", "while another one holds it, too");
    at(&node, 60_001);
    assert!(!node.keys().contains(&BOTH.tombstone(A)));
}

#[test]
fn a_release_that_found_everything_needs_no_tombstone() {
    let node = node();
    acquire(&node, &BOTH, &ASK);
    assert_eq!(release(&node, &BOTH, A), "1");
    assert_eq!(node.keys(), ["q:lock:a", "q:lock:b", "q:member"]);
    assert_eq!(release(&node, &BOTH, A), "0");
}

#[test]
fn a_node_that_may_have_forgotten_a_lease_says_so_when_that_is_released() {
    let node = node();
    acquire(&node, &LOCK, &ASK);
    node.flush();
    assert_eq!(release(&node, &LOCK, A), "0 2");
}

#[test]
fn releasing_takes_nothing_from_another_lease() {
    let node = node();
    acquire(&node, &LOCK, &ASK);
    assert_eq!(release(&node, &LOCK, B), "0");
    assert!(read(&node, &LOCK).contains(A));
}

fn life(node: &EmbeddedNode) -> Option<u64> {
    node.command(&["PTTL", "q:lock:a"]).unwrap().as_u64()
}

#[test]
fn the_key_of_a_name_that_nobody_had_before_ends_with_its_retention() {
    let node = node();
    acquire(&node, &LOCK, &ASK);
    assert_eq!(life(&node), Some(TTL + RETENTION));
    release(&node, &LOCK, A);
    assert_eq!(node.get_raw("q:lock:a").unwrap(), record(P, NOW_MS, A, &[]));
    assert_eq!(life(&node), Some(TTL + RETENTION));
}

#[test]
fn a_lease_that_was_released_leaves_no_tombstone_when_it_is_released_again() {
    let node = node();
    for (lease, token) in [(A, P), (B, P + 1)] {
        acquire(&node, &LOCK, &Ask { lease, proposed: token, ..ASK });
        release(&node, &LOCK, lease);
    }
    assert_eq!(release(&node, &LOCK, B), "0");
    assert_eq!(node.keys(), ["q:lock:a", "q:member"]);
    // Nor is it given back: what the node stores says that it is over.
    assert_eq!(heal(&node, &LOCK, B, P + 1), "0");
}

#[test]
fn a_record_of_the_version_before_is_held_until_it_ends_or_is_released() {
    let kept = "0000000000000";
    for (flag, own, token) in [('A', "", P + 5), ('E', "", P + 5), ('<', &*format!("{P} "), P)] {
        let node = node();
        let edition = "0".repeat(48);
        for data in ["{}".to_owned(), format!("{edition}{{}}")] {
            let before =
                format!("{}{kept}{}{flag}00030000{A} {own}request+0+7 {data}", NOW_MS + 10_000, P + 5);
            node.command(&["SET", "q:lock:a", &before, "PX", "700000"]).unwrap();
            let shown = format!("10000 30000 {token} {A} 0 {{}} 0");
            assert_eq!(read(&node, &LOCK), format!("1 [{} [{shown}]]", P + 5));
            assert_eq!(acquire(&node, &LOCK, &Ask { lease: B, ..ASK }), format!("0 [{shown} 0 -]"));
            assert_eq!(release(&node, &LOCK, A), NOT_AS_ACQUIRED);
            assert_eq!(read(&node, &LOCK), format!("1 [{}]", P + 5));
        }
    }
    let node = node();
    for over in [format!("{kept}0{}{P}", &A[..12]), format!("{kept}{kept}{P}A00030000{A} - {{}}")] {
        node.command(&["SET", "q:lock:a", &over]).unwrap();
        assert_eq!(read(&node, &LOCK), format!("1 [{P}]"));
        assert_eq!(acquire(&node, &LOCK, &ASK), granted(P + 1));
    }
}

#[test]
fn a_token_that_was_issued_while_a_lease_was_held_stays_behind_it() {
    let node = node();
    acquire(&node, &LOCK, &ASK);
    assert_eq!(issue(&node, "a", P), format!("1 {}", P + 1));
    assert_eq!(issue(&node, "a", P + 5), format!("1 {}", P + 5));
    assert_eq!(read(&node, &LOCK), format!("1 [{} [30000 30000 {P} {A} 0 {{}} 0]]", P + 5));
    assert_eq!(life(&node), Some(TTL + RETENTION));
    assert!(extend(&node, &LOCK, A, P, "own").starts_with("1 30000"));
    assert_eq!(read(&node, &LOCK), format!("1 [{} [30000 30000 {P} {A} 0 {{}} 0]]", P + 5));
    assert_eq!(release(&node, &LOCK, A), NOT_AS_ACQUIRED);
    assert_eq!(acquire(&node, &LOCK, &Ask { lease: B, ..ASK }), granted(P + 6));
}

#[test]
fn a_lease_is_raised_to_a_token_that_is_new_to_the_node_or_its_own() {
    let node = node();
    acquire(&node, &BOTH, &ASK);
    assert!(extend(&node, &BOTH, A, P, "raise").starts_with("1 30000"), "its own");
    assert_eq!(issue(&node, "b", P + 5), granted(P + 5));
    for issued_or_passed in [P + 5, P + 3] {
        assert_eq!(extend(&node, &BOTH, A, issued_or_passed, "raise"), "0");
    }
    assert!(extend(&node, &BOTH, A, P + 6, "raise").starts_with("1 30000"));
    assert!(extend(&node, &BOTH, A, P + 6, "raise").starts_with("1 30000"), "a duplicated message");
    assert_eq!(issue(&node, "b", P + 8), granted(P + 8));
    assert!(extend(&node, &BOTH, A, P + 6, "raise").starts_with("1 30000"), "its own, though others came");
}

#[test]
fn a_lease_is_raised_by_its_attempt_or_joined_by_a_retry_but_not_both_with_two_tokens() {
    let (raised, joined) = (node(), node());
    acquire(&raised, &LOCK, &ASK);
    assert!(extend(&raised, &LOCK, A, P + 5, "raise").starts_with("1 "));
    assert_eq!(join(&raised, &LOCK, A, P), "0");
    assert!(join(&raised, &LOCK, A, P + 5).starts_with("1 "));
    acquire(&joined, &LOCK, &ASK);
    assert!(join(&joined, &LOCK, A, P).starts_with("1 "));
    assert_eq!(extend(&joined, &LOCK, A, P + 5, "raise"), "0");
    assert!(extend(&joined, &LOCK, A, P, "own").starts_with("1 "));
}

#[test]
fn a_lease_is_not_joined_with_a_token_that_was_issued_meanwhile() {
    let node = node();
    acquire(&node, &BOTH, &ASK);
    assert_eq!(issue(&node, "b", P + 5), granted(P + 5));
    for issued_or_passed in [P + 5, P + 3] {
        assert_eq!(join(&node, &BOTH, A, issued_or_passed), "0");
    }
    assert!(join(&node, &BOTH, A, P + 6).starts_with("1 "));
}

#[test]
fn a_lease_that_was_joined_keeps_its_token_whoever_joins_it_next() {
    let node = node();
    acquire(&node, &LOCK, &ASK);
    assert!(join(&node, &LOCK, A, P + 5).starts_with("1 "), "nobody was told of its token yet");
    for another in [P, P + 6] {
        assert_eq!(join(&node, &LOCK, A, another), "0");
    }
    assert!(join(&node, &LOCK, A, P + 5).starts_with("1 "));
}

#[test]
fn a_lease_that_was_joined_goes_only_where_somebody_asks_for_it() {
    for on in [LOCK, BOTH, On::Slots(&[1, 4])] {
        let node = node();
        acquire(&node, &on, &Ask { request: "request-1", ..ASK });
        assert!(join(&node, &on, A, P).starts_with("1 30000 30000 j 0 request-1 - {} "));
        assert!(extend(&node, &on, A, P, "own").starts_with("1 30000 30000 j "), "it stays joined");
        let before = read(&node, &on);
        for leaves in ["undo", "lost", "bar"] {
            assert_eq!(release_for(&node, &on, A, leaves), "0 1", "{leaves}");
        }
        assert_eq!(read(&node, &on), before);
        assert_eq!(release(&node, &on, A), NOT_AS_ACQUIRED);
        assert_eq!(release(&node, &on, A), "0");
    }
}

#[test]
fn a_bar_takes_nothing_away_and_lets_nothing_come() {
    for on in [LOCK, BOTH, On::Slots(&[1, 4])] {
        let node = node();
        acquire(&node, &on, &ASK);
        assert_eq!(release_for(&node, &on, A, "bar"), "0 1");
        assert!(extend(&node, &on, A, P, "own").starts_with("1 "));
        assert_eq!(release_for(&node, &on, B, "bar"), "0");
        release(&node, &on, A);
        assert_eq!(acquire(&node, &on, &Ask { lease: B, proposed: P + 1, ..ASK }), "-3");
    }
}

#[test]
fn of_two_copies_of_the_data_the_greater_version_stays_whichever_comes_last() {
    for on in [LOCK, BOTH, On::Slots(&[1, 4])] {
        let node = node();
        acquire(&node, &on, &ASK);
        let update = |version: &str, data: &str| extend_with(&node, &on, A, 0, "keep", ["0", version, data]);
        assert!(update("10", "ten").starts_with("1 30000 30000 e 10 - - ten "));
        for earlier in ["9", "10", "0"] {
            assert!(update(earlier, "nine").starts_with("1 30000 30000 e 10 - - ten "));
        }
        assert!(update("9007199254740991", "last").starts_with("1 30000 30000 e 9007199254740991 - - last "));
        assert!(read(&node, &LOCK).ends_with(if matches!(on, On::Slots(_)) { "nil" } else { "last 0]]" }));
    }
}

#[test]
fn releasing_an_expired_lease_is_no_release() {
    let node = node();
    acquire(&node, &LOCK, &ASK);
    at(&node, TTL);
    assert_eq!(release(&node, &LOCK, A), "0");
}

#[test]
fn permits_that_are_kept_after_their_lease_expired_are_found_by_its_holder_also_after_an_undo() {
    let (node, on) = (node(), On::Slots(&[4, 7]));
    let line = format!("{A} a x {P:016} {TTL} 0 5000 0 - - {{}}");
    let how = format!("{TTL} 0 5000 {} 100", on.slots());
    assert_eq!(run(&node, Script::Acquire, &on.keys(), &[how, line]), granted(P));
    at(&node, TTL);
    let other = Ask { lease: B, proposed: P + TTL * 1000, ..ASK };
    for reason in ["undo", "over", "lost", "bar"] {
        assert_eq!(release_for(&node, &on, A, reason), "0", "{reason}");
        assert!(acquire(&node, &on, &other).starts_with("0 ["), "{reason}");
    }
    assert_eq!(release(&node, &on, A), "0");
    assert_eq!(acquire(&node, &on, &other), GRANTED);
}

#[test]
fn what_is_no_record_stops_neither_a_release_nor_a_walk() {
    let node = node();
    // With all that tells a record.
    let alike = format!("2 {:x<77}\n1 {A} a x odd\n", "");
    for (kind, odd) in [
        ("text", &["SET", "q:lock:a", "odd"][..]),
        ("type", &["ZADD", "q:lock:a", "1", "x"]),
        ("text that looks like one", &["SET", "q:lock:a", &alike]),
    ] {
        node.command(&["DEL", "q:lock:a"]).unwrap();
        assert_eq!(acquire(&node, &BOTH, &ASK), GRANTED, "{kind}");
        node.command(&["DEL", "q:lock:a"]).unwrap();
        node.command(odd).unwrap();
        let list = || run(&node, Script::List, &[], &strings(&["0", "q:lock:*", "100"]));
        assert_eq!(list(), format!("1 0 [q:lock:b 30000 30000 {P} {A} 0 {{}} 0]"), "{kind}");
        // A part of it.
        assert!(release(&node, &BOTH, A).starts_with('1'), "{kind}");
        assert_eq!(list(), "1 0", "{kind}");
        node.command(&["DEL", &BOTH.tombstone(A), "q:lock:b"]).unwrap();
    }
}

#[test]
fn a_key_that_holds_something_else_is_an_error_and_never_a_vote() {
    let node = node();
    node.command(&["ZADD", "q:lock:b", "1", "x"]).unwrap();
    assert!(acquire(&node, &BOTH, &ASK).starts_with("redis: WRONGTYPE"));
    node.command(&["SET", "q:lock:b", "odd"]).unwrap();
    assert!(acquire(&node, &BOTH, &ASK).contains("not a lease record"));
    assert_eq!(node.keys(), ["q:lock:b", "q:member"]);
}

#[test]
fn many_keys_are_granted_all_or_none() {
    let node = node();
    acquire(&node, &On::Locks(&["b"]), &ASK);
    let reply = acquire(&node, &On::Locks(&["a", "b", "c"]), &Ask { lease: B, ..ASK });
    assert!(reply.starts_with("0 [30000") && reply.contains(A), "{reply}");
    assert_eq!(node.keys(), ["q:lock:b", "q:member"]);
    release(&node, &On::Locks(&["b"]), A);
    // The token is above the highest fence among them, and the same everywhere.
    assert_eq!(acquire(&node, &On::Locks(&["a", "b", "c"]), &Ask { lease: B, ..ASK }), granted(P + 1));
    let entry = format!("[{0} [30000 30000 {0} {B} 0 {{}} 0]]", P + 1);
    assert_eq!(read(&node, &On::Locks(&["a", "b", "c"])), format!("1 {entry} {entry} {entry}"));
}

#[test]
fn a_message_that_comes_twice_gets_its_token_twice() {
    let node = node();
    assert_eq!(acquire(&node, &LOCK, &ASK), GRANTED);
    assert_eq!(acquire(&node, &LOCK, &ASK), GRANTED);
    release(&node, &LOCK, A);
    assert_eq!(acquire(&node, &LOCK, &Ask { lease: B, ..ASK }), granted(P + 1));
    assert_eq!(acquire(&node, &LOCK, &Ask { lease: B, ..ASK }), granted(P + 1));
    // An issued token belongs to whoever it was issued to.
    assert_eq!(issue(&node, "a", P), granted(P + 2));
    assert_eq!(acquire(&node, &LOCK, &Ask { lease: B, ..ASK }), granted(P + 3));
}

#[test]
fn a_message_that_comes_twice_shares_with_others_both_times() {
    let node = node();
    let share = |lease: &str, request: &str| {
        let line = line(lease, 0, 'a', P, TTL, request).replace(" a x ", " a s ");
        let args = [format!("{TTL} 0 0 - 0 "), line[14..].to_owned()];
        run_ahead(&node, Script::Acquire, MINUTE_US, &LOCK.keys(), &args)
    };
    let [other, first, again] = [share(B, "-"), share(A, "request-1"), share(A, "request-1")];
    assert!(other.starts_with("1 ") && first.starts_with("1 "), "{other} {first}");
    assert_eq!(again, first);
}

#[test]
fn only_what_is_still_held_is_extended() {
    let node = node();
    assert_eq!(extend(&node, &LOCK, A, P, "own"), "0");
    acquire(&node, &BOTH, &ASK);
    assert_eq!(extend(&node, &BOTH, B, P, "own"), "0");
    at(&node, 10_000);
    assert_eq!(extend(&node, &BOTH, A, P, "keep"), "1 20000 30000 e 0 - - {}  0 0 0 0 x");
    assert_eq!(extend(&node, &BOTH, A, P, "5000"), "1 5000 5000 e 0 - - {}  1 0 0 0 x");
    assert_eq!(extend(&node, &BOTH, A, P, "own"), "1 5000 5000 e 0 - - {}  0 0 0 0 x");
    at(&node, 15_000);
    assert_eq!(extend(&node, &BOTH, A, P, "own"), "0");
}

#[test]
fn the_raise_is_conditional_on_the_lease_and_never_lowers_a_fence() {
    let node = node();
    acquire(&node, &LOCK, &ASK);
    assert_eq!(extend(&node, &LOCK, B, P + 9, "keep"), "0");
    assert_eq!(read(&node, &LOCK), format!("1 [{P} [30000 30000 {P} {A} 0 {{}} 0]]"));
    assert!(extend(&node, &LOCK, A, P + 5, "keep").starts_with('1'));
    assert_eq!(read(&node, &LOCK), format!("1 [{0} [30000 30000 {0} {A} 0 {{}} 0]]", P + 5));
    assert_eq!(issue(&node, "a", P), granted(P + 6));
    assert!(extend(&node, &LOCK, A, P + 5, "own").starts_with('1'));
    assert_eq!(read(&node, &LOCK), format!("1 [{} [30000 30000 {} {A} 0 {{}} 0]]", P + 6, P + 5));
    release(&node, &LOCK, A);
    assert_eq!(acquire(&node, &LOCK, &Ask { lease: B, ..ASK }), granted(P + 7));
}

#[test]
fn issuing_tokens_leaves_a_lease_held() {
    let node = node();
    assert_eq!(issue(&node, "a", P), granted(P));
    assert_eq!(issue(&node, "a", P), granted(P + 1));
    assert_eq!(acquire(&node, &LOCK, &ASK), granted(P + 2));
    assert_eq!(issue(&node, "a", P), granted(P + 3));
    assert_eq!(read(&node, &LOCK), format!("1 [{} [30000 30000 {} {A} 0 {{}} 0]]", P + 3, P + 2));
    assert_eq!(issue(&node, "a", MAX), granted(MAX));
    assert_eq!(release(&node, &LOCK, A), "1");
}

#[test]
fn a_lost_lease_is_given_back_with_its_token() {
    let node = node();
    assert_eq!(heal(&node, &BOTH, A, P), "1");
    assert_eq!(read(&node, &LOCK), format!("1 [{P} [20000 30000 {P} {A} 0 {{}} 0]]"));
    assert!(extend(&node, &BOTH, A, P, "own").starts_with('1'));
}

#[test]
fn healing_takes_nothing_from_another_lease() {
    let node = node();
    acquire(&node, &On::Locks(&["b"]), &Ask { lease: B, ..ASK });
    assert_eq!(heal(&node, &BOTH, A, P), "0");
    assert_eq!(node.keys(), ["q:lock:b", "q:member"]);
}

#[test]
fn healing_comes_too_late_once_a_later_token_is_known() {
    let node = node();
    acquire(&node, &LOCK, &Ask { lease: B, proposed: P + 1, ..ASK });
    release(&node, &LOCK, B);
    assert_eq!(heal(&node, &LOCK, A, P), "0");
}

#[test]
fn a_healing_that_comes_when_the_lease_is_over_leaves_nothing() {
    let node = node();
    at(&node, 20_000);
    assert_eq!(heal(&node, &LOCK, A, P), "0");
    assert_eq!(node.keys(), ["q:member"]);
}

#[test]
fn what_was_healed_and_released_is_not_brought_back_by_what_comes_late() {
    for on in [LOCK, BOTH, On::Slots(&[3])] {
        let node = node();
        assert_eq!(heal(&node, &on, A, P), "1");
        assert_eq!(release(&node, &on, A), NOT_AS_ACQUIRED);
        // The acquire that was overtaken by all of this, and another healing.
        assert_eq!(acquire(&node, &on, &ASK), "-3");
        assert_eq!(heal_until(&node, &on, A, P, NOW_MS + 20_001), "-3");
        // A contender that was here meanwhile makes no difference.
        acquire(&node, &on, &Ask { lease: B, proposed: P + 1, ..ASK });
        release(&node, &on, B);
        assert_eq!(acquire(&node, &on, &ASK), "-3");
        assert_eq!(heal_until(&node, &on, A, P, NOW_MS + 20_001), "-3");
        assert!(read(&node, &LOCK).find(A).is_none());
    }
}

#[test]
fn contenders_that_lost_do_not_keep_a_node_from_getting_a_lease_back() {
    for on in [LOCK, BOTH, On::Slots(&[3])] {
        // The node has lost its data, and the lease is held at the others.
        let node = node();
        for (lease, proposed) in [(B, P + 1), (C, P + 2)] {
            assert_eq!(acquire(&node, &on, &Ask { lease, proposed, ..ASK }), GRANTED);
            assert_eq!(undo(&node, &on, lease), "1");
        }
        assert_eq!(heal(&node, &on, A, P), "1");
        assert!(extend(&node, &on, A, P, "own").starts_with("1 "));
    }
}

#[test]
fn a_contender_that_lost_makes_no_way_for_what_comes_late() {
    for on in [LOCK, BOTH, On::Slots(&[3])] {
        let node = node();
        assert_eq!(acquire(&node, &on, &ASK), GRANTED);
        assert_eq!(release(&node, &on, A), "1");
        assert_eq!(acquire(&node, &on, &Ask { lease: B, proposed: P + 1, ..ASK }), GRANTED);
        assert_eq!(undo(&node, &on, B), "1");
        assert_eq!(heal(&node, &on, A, P), "0");
    }
}

#[test]
fn what_was_healed_and_has_expired_is_healed_again() {
    let node = node();
    assert_eq!(heal(&node, &LOCK, A, P), "1");
    at(&node, 20_000);
    assert_eq!(heal_until(&node, &LOCK, A, P, NOW_MS + 30_000), "1");
    assert_eq!(read(&node, &LOCK), format!("1 [{P} [10000 30000 {P} {A} 0 {{}} 0]]"));
}

#[test]
fn a_healing_that_its_release_overtook_leaves_nothing() {
    let node = node();
    acquire(&node, &LOCK, &ASK);
    assert_eq!(release(&node, &LOCK, A), "1");
    assert_eq!(heal(&node, &LOCK, A, P), "0");
    assert_eq!(read(&node, &LOCK), format!("1 [{P}]"));
}

#[test]
fn an_expired_copy_of_the_lease_itself_is_healed() {
    let node = node();
    acquire(&node, &LOCK, &ASK);
    at(&node, TTL + 5);
    assert_eq!(heal_until(&node, &LOCK, A, P, NOW_MS + TTL + 20_005), "1");
    assert_eq!(read(&node, &LOCK), format!("1 [{P} [20000 30000 {P} {A} 0 {{}} 0]]"));
}

#[test]
fn a_lease_that_lost_one_of_its_keys_is_made_whole() {
    let node = node();
    acquire(&node, &BOTH, &ASK);
    assert_eq!(issue(&node, "a", P), granted(P + 1));
    node.command(&["DEL", "q:lock:b"]).unwrap();
    assert_eq!(extend(&node, &BOTH, A, P, "own"), "0");
    assert_eq!(heal(&node, &BOTH, A, P), "1");
    // What was left is not shortened and keeps the issued token.
    let (a, b) = (
        format!("[{} [30000 30000 {P} {A} 0 {{}} 0]]", P + 1),
        format!("[{P} [30000 30000 {P} {A} 0 {{}} 0]]"),
    );
    assert_eq!(read(&node, &BOTH), format!("1 {a} {b}"));
    assert!(extend(&node, &BOTH, A, P, "own").starts_with('1'));

    let slots = On::Slots(&[3]);
    acquire(&node, &slots, &ASK);
    node.command(&["DEL", &format!("{SEMAPHORE}//{A}")]).unwrap();
    assert_eq!(extend(&node, &slots, A, P, "own"), "0");
    assert_eq!(heal(&node, &slots, A, P), "1");
    assert!(extend(&node, &slots, A, P, "own").starts_with('1'));
}

#[test]
fn a_semaphore_that_is_full_for_the_asker_is_told_by_its_count_and_a_few_slots() {
    let node = node();
    acquire(&node, &On::Slots(&[4, 11, 7]), &ASK);
    let survey = |limit, wanted, named| {
        run(&node, Script::Survey, &strings(&[SEMAPHORE]), &numbers(&[limit, wanted, named]))
    };
    assert_eq!(survey(4, 1, 2), "1 3 [11 4 7] 30000");
    assert_eq!(survey(4, 2, 2), "1 3 [11 4] 30000");
    assert_eq!(survey(3, 1, 0), "1 3 [] 30000");
}

#[test]
fn slots_are_taken_found_by_lease_and_freed() {
    let node = node();
    let slots = On::Slots(&[4, 11]);
    assert_eq!(survey(&node), "1 0 [] 0");
    assert_eq!(acquire(&node, &slots, &ASK), GRANTED);
    assert_eq!(survey(&node), "1 2 [11 4] 30000");
    let refused = acquire(&node, &On::Slots(&[7, 11]), &Ask { lease: B, ..ASK });
    assert!(refused.starts_with("0 [30000"), "{refused}");
    assert_eq!(acquire(&node, &On::Slots(&[7]), &Ask { lease: B, ..ASK }), GRANTED);
    at(&node, 10_000);
    assert_eq!(extend(&node, &slots, A, P, "own"), "1 30000 30000 e 0 - - {} 4,11 0 0 0 0 x");
    assert_eq!(survey(&node), "1 3 [7 11 4] 20000");
    assert_eq!(release(&node, &slots, A), NOT_AS_ACQUIRED);
    assert_eq!(survey(&node), "1 1 [7] 20000");
    assert_eq!(extend(&node, &slots, A, P, "own"), "0");
    at(&node, TTL);
    assert_eq!(survey(&node), "1 0 [] 0");
}

#[test]
fn a_grant_clears_the_index_of_what_has_expired() {
    let node = node();
    acquire(&node, &On::Slots(&[1]), &ASK);
    at(&node, TTL);
    acquire(&node, &On::Slots(&[2]), &Ask { lease: B, ..ASK });
    assert_eq!(
        node.command(&["ZRANGEBYSCORE", SEMAPHORE, "-inf", "+inf"]).unwrap(),
        Value::List(vec![Value::Text("2".into())])
    );
    at(&node, TTL * 2 + 1);
    assert!(!node.keys().contains(&SEMAPHORE.to_owned()));
}

#[test]
fn an_index_of_the_wrong_type_leaves_no_slot_taken() {
    let node = node();
    node.command(&["SET", SEMAPHORE, "odd"]).unwrap();
    assert!(acquire(&node, &On::Slots(&[1, 2]), &ASK).starts_with("redis: WRONGTYPE"));
    assert!(heal(&node, &On::Slots(&[1, 2]), A, P).starts_with("redis: WRONGTYPE"));
    assert_eq!(node.keys(), ["q:member", SEMAPHORE]);
}

#[test]
fn a_retry_of_a_request_is_told_which_lease_it_has() {
    let node = node();
    let mine = Ask { request: "request-1", ..ASK };
    acquire(&node, &LOCK, &mine);
    let retry = Ask { lease: B, ..mine };
    assert_eq!(acquire(&node, &LOCK, &retry), format!("0 [30000 30000 {P} {A} 0 {{}} 0 1 -]"));

    acquire(&node, &On::Slots(&[5, 6]), &mine);
    // Whatever slot it asks for this time.
    assert_eq!(acquire(&node, &On::Slots(&[9]), &retry), format!("0 [30000 30000 {P} {A} 0 {{}} 0 1 - 5,6]"));
    assert_eq!(
        extend(&node, &On::Slots(&[5, 6]), A, P, "own"),
        "1 30000 30000 e 0 request-1 - {} 5,6 0 0 0 0 x"
    );
    release(&node, &On::Slots(&[5, 6]), A);
    assert_eq!(acquire(&node, &On::Slots(&[9]), &retry), GRANTED);
    // The first lease's release, come late, does not make the second one forgotten.
    release(&node, &On::Slots(&[5, 6]), A);
    let third = Ask { lease: C, ..mine };
    assert!(acquire(&node, &On::Slots(&[1]), &third).contains(B));
}

#[test]
fn a_request_id_that_looks_like_a_lease_id_touches_no_lease() {
    let node = node();
    acquire(&node, &On::Slots(&[5]), &ASK);
    assert_eq!(acquire(&node, &On::Slots(&[6]), &Ask { lease: B, request: A, ..ASK }), GRANTED);
    assert_eq!(extend(&node, &On::Slots(&[5]), A, P, "own"), "1 30000 30000 e 0 - - {} 5 0 0 0 0 x");
}

#[test]
fn out_of_memory_nothing_is_granted_and_everything_can_be_released() {
    let node = node();
    acquire(&node, &BOTH, &ASK);
    acquire(&node, &On::Slots(&[1]), &Ask { lease: B, request: "request-1", ..ASK });
    node.set_memory_full(true);
    let full = "redis: OOM command not allowed when used memory > 'maxmemory'.";
    assert_eq!(acquire(&node, &On::Locks(&["c"]), &Ask { lease: C, ..ASK }), full);
    assert_eq!(acquire(&node, &On::Slots(&[2]), &Ask { lease: C, ..ASK }), full);
    assert_eq!(extend(&node, &BOTH, A, P, "own"), full);
    assert_eq!(release(&node, &BOTH, A), "1");
    assert_eq!(release(&node, &On::Slots(&[1]), B), "1");
    assert_eq!(read(&node, &LOCK), format!("1 [{P}]"));
    // Not even the order of messages is lost.
    assert_eq!(release(&node, &LOCK, C), "0");
    node.set_memory_full(false);
    assert_eq!(acquire(&node, &LOCK, &Ask { lease: C, ..ASK }), "-3");
}

/// Counts hints, and calls the node from within each.
struct Counting {
    hints: AtomicUsize,
    missed: AtomicUsize,
    node: EmbeddedNode,
}

impl HintSink for Counting {
    fn hint(&self, _: &str, _: &str) {
        self.hints.fetch_add(1, Ordering::Relaxed);
        self.node.keys();
    }

    fn missed(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
        self.node.keys();
    }
}

fn listening(node: &EmbeddedNode) -> (EmbeddedNode, Arc<Counting>) {
    let sink = Arc::new(Counting { hints: 0.into(), missed: 0.into(), node: node.connect() });
    let connection = node.connect();
    connection.listen(sink.clone());
    (connection, sink)
}

#[tokio::test]
async fn a_release_wakes_whoever_subscribed_and_no_one_else() {
    let node = node();
    let (first, first_sink) = listening(&node);
    let (second, second_sink) = listening(&node);
    assert_eq!(first.connections(), (1, 0));
    first.subscribe("q:lock:a".into()).await.unwrap();
    assert_eq!(first.connections(), (1, 1));
    second.subscribe(SEMAPHORE.into()).await.unwrap();

    acquire(&node, &BOTH, &ASK);
    release(&node, &BOTH, A);
    acquire(&node, &On::Slots(&[1, 2]), &Ask { lease: B, ..ASK });
    release(&node, &On::Slots(&[1, 2]), B);
    let counts = || (first_sink.hints.load(Ordering::Relaxed), second_sink.hints.load(Ordering::Relaxed));
    assert_eq!(counts(), (1, 1));

    run(&node, Script::Publish, &strings(&["q:lock:a", "q:lock:b", SEMAPHORE]), &[]);
    assert_eq!(counts(), (2, 2));
    first.unsubscribe("q:lock:a");
    drop(second);
    run(&node, Script::Publish, &strings(&["q:lock:a", SEMAPHORE]), &[]);
    assert_eq!(counts(), (2, 2));
}

#[test]
fn a_release_says_whether_the_lease_is_as_it_was_acquired() {
    for on in [LOCK, BOTH, On::Slots(&[3])] {
        let node = node();
        acquire(&node, &on, &ASK);
        assert_eq!(release(&node, &on, A), "1");
        acquire(&node, &on, &Ask { lease: B, ..ASK });
        assert!(extend(&node, &on, B, P, "own").starts_with("1 "));
        assert_eq!(release(&node, &on, B), NOT_AS_ACQUIRED);
    }
}

#[tokio::test]
async fn a_lost_round_is_undone_silently() {
    let node = node();
    let (connection, sink) = listening(&node);
    connection.subscribe("q:lock:a".into()).await.unwrap();
    acquire(&node, &LOCK, &ASK);
    assert_eq!(undo(&node, &LOCK, A), "1");
    assert_eq!(sink.hints.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_restart_breaks_each_connection_once_and_changes_the_run_id() {
    let node = node();
    let (other, sink) = listening(&node);
    assert_eq!(other.identify().await.unwrap().run_id, "run-1");
    acquire(&node, &LOCK, &ASK);
    node.restart("run-2", true);
    assert_eq!(sink.missed.load(Ordering::Relaxed), 1);
    let status = calls::status(&Keys::new("q"), 0, 0, "");
    assert!(matches!(other.eval(&status, None), Err(NodeError::Connection(_))));
    assert!(text(other.eval(&status, None)).contains(MARKER));
    assert_eq!(node.identify().await.unwrap().run_id, "run-2");
    assert!(read(&node, &LOCK).contains(A));
    node.restart("run-3", false);
    assert_eq!(node.identify().await.unwrap().run_id, "run-3");
    assert_eq!(node.keys(), Vec::<String>::new());
}

#[tokio::test]
async fn what_identify_reports_can_be_set() {
    let node = node().with_address("embedded-1");
    node.set_eviction("allkeys-lru");
    node.set_role("slave");
    let identity = node.identify().await.unwrap();
    assert_eq!(
        (&*identity.eviction, &*identity.role, node.address()),
        ("allkeys-lru", "slave", "embedded-1")
    );
}

#[tokio::test(start_paused = true)]
async fn tokios_paused_time_drives_the_nodes_clock() {
    let node = EmbeddedNode::new("run-1", Arc::new(SeededClock::new(1, P)));
    node.command(&["SET", "q:member", MARKER]).unwrap();
    assert_eq!(acquire(&node, &LOCK, &ASK), GRANTED);
    tokio::time::advance(std::time::Duration::from_millis(TTL - 1)).await;
    let ask = Ask { lease: B, ..ASK };
    assert!(acquire(&node, &LOCK, &ask).starts_with("0 [1 "));
    tokio::time::advance(std::time::Duration::from_millis(1)).await;
    assert_eq!(acquire(&node, &LOCK, &ask), granted(P + 1));
    // A node's own clock, set back, gives the lease time again.
    at(&node, 0);
    node.set_clock_offset_us(-10_000_000);
    assert!(acquire(&node, &LOCK, &Ask { lease: A, ..ASK }).starts_with("0 [40000 "));
}

#[tokio::test]
async fn a_submitted_call_is_answered_before_submit_returns() {
    let node = node();
    let line = line(A, 0, 'a', P, TTL, "-");
    let command =
        Arc::new(Command::new(Script::Acquire).key("q:lock:a").call(&format!("{TTL} 0 0"), &line[14..]));
    let marker = Some(Arc::new(marker(MINUTE_US)));
    let answer = Ballot::of_one(|seat| {
        let reply = ReplyTo::new(command.clone(), None, tokio::time::Instant::now(), Some(seat));
        node.submit(Call { command, marker, reply });
    });
    let answer = answer.now_or_never().expect("it is answered").unwrap();
    assert!(answer.done);
    assert_eq!(answer.node_ms, NOW_MS);
    assert_eq!(answer.rest, [Value::Int(P as i64)]);
}
