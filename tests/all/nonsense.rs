//! Nodes that answer nonsense of every type: abstentions with their cause, never a panic, and
//! nothing that is granted by them.

use std::mem::discriminant;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use quorate::clock::{Clock, SeededClock};
use quorate::domain::{Candidate, LeaseHandle, LeaseId, Name, RequestId, Survey, Token};
use quorate::node::ballot::Ballot;
use quorate::node::calls::{self, Extended, GrantVote, ListStep};
use quorate::node::{BoxFuture, Call, Command, HintSink, Identity, Node, NodeError, ReplyTo, Script, Value};
use quorate::quorum::{Engine, EngineOptions};
use quorate::service::{AcquireOptions, Held, Note, Resource, Service, Target, WaitLimits};

const NOW_MS: i64 = 1_790_000_000_000;

fn field() -> impl Strategy<Value = Value> {
    let edges = vec![
        i64::MIN,
        -1,
        0,
        1,
        2,
        30_000,
        NOW_MS,
        NOW_MS * 1000,
        (1 << 53) - 1,
        1 << 53,
        i64::MAX - 1,
        i64::MAX,
    ];
    let texts = ["", "0", "-", "1 2", "4294967296", "\u{fffd}", "{}", "{\"n\":18446744073709551615}"];
    let lease = "abcdefabcdefabcdefabcdefabcdefab";
    prop_oneof![
        4 => select(edges).prop_map(Value::Int),
        1 => any::<i64>().prop_map(Value::Int),
        2 => select(texts.to_vec()).prop_map(|text| Value::Text(text.to_owned())),
        2 => Just(Value::Text(lease.to_owned())),
        1 => ".{0,40}".prop_map(Value::Text),
        1 => Just(Value::Nil),
    ]
}

fn list_of(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    proptest::collection::vec(inner, 0..9).prop_map(Value::List)
}

/// What a script of ours could have answered, but for the fields' types and sizes; or anything.
fn reply() -> impl Strategy<Value = Result<Value, NodeError>> {
    let code = select(vec![1, 1, 1, 0, 0, 0, -1, -2, -3, -4, 2, i64::MAX]);
    let clock = prop_oneof![3 => Just(Value::Int(NOW_MS)), 1 => field()];
    let item = prop_oneof![3 => field(), 1 => list_of(field()), 1 => list_of(list_of(field()))];
    let shaped = (code, clock, proptest::collection::vec(item, 0..7))
        .prop_map(|(code, clock, rest)| Value::List([vec![Value::Int(code), clock], rest].concat()));
    let nested = field().prop_recursive(6, 64, 6, list_of);
    let error = select(vec![
        NodeError::Redis("WRONGTYPE odd".into()),
        NodeError::Nonsense,
        NodeError::Timeout,
        NodeError::Unmarked,
    ]);
    prop_oneof![
        8 => shaped.prop_map(Ok),
        1 => nested.prop_map(Ok),
        1 => error.prop_map(Err),
    ]
}

#[test]
fn every_reader_takes_any_reply_or_says_that_it_makes_no_sense() {
    let config = Config { cases: 20_000, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&reply(), |reply| {
        let command = Arc::new(Command::new(Script::Read));
        let error = reply.as_ref().err().map(discriminant);
        let answer = Ballot::of_one(|seat| {
            ReplyTo::new(command, None, tokio::time::Instant::now(), Some(seat)).send(reply);
        });
        let answer = match answer.now_or_never().expect("it is answered") {
            Ok(answer) => answer,
            Err(why) => {
                use NodeError::{ClockAhead, Nonsense, Undone, Unmarked};
                let known = matches!(why, Unmarked | ClockAhead | Undone | Nonsense);
                prop_assert!(error.map_or(known, |error| error == discriminant(&why)), "{why:?}");
                return Ok(());
            }
        };
        let refused = [
            GrantVote::read(answer.clone()).err(),
            Extended::read(answer.clone()).err(),
            Survey::read(answer.clone()).err(),
            ListStep::read(answer.clone()).err(),
            calls::read_entries(answer.clone(), answer.rest.len()).err(),
            calls::read_issued(&answer).err(),
            calls::Status::read(&answer).err(),
        ];
        for why in refused.into_iter().flatten() {
            prop_assert!(matches!(why, NodeError::Nonsense), "{why:?}");
        }
        Ok(())
    });
    if let Err(why) = outcome {
        panic!("{why}");
    }
}

/// A node that is marked and well, but for what it answers.
struct Odd {
    run_id: String,
    /// The marker, and the epoch that it knows.
    stored: Mutex<[String; 2]>,
    replies: Vec<Result<Value, NodeError>>,
    next: AtomicUsize,
}

impl Node for Odd {
    fn submit(&self, call: Call) {
        let text = |text: &str| Value::Text(text.to_owned());
        let answer =
            |rest: Vec<Value>| Ok(Value::List([vec![Value::Int(1), Value::Int(NOW_MS)], rest].concat()));
        let (mut stored, arg) =
            (self.stored.lock().unwrap(), |i: usize| call.command.args().nth(i).unwrap_or_default());
        let reply = match call.command.script {
            Script::Status => {
                let texts = vec![text(&stored[0]), text(&stored[1]), text("")];
                answer(vec![Value::List(texts), text(""), Value::Int(1), Value::Int(0), text("")])
            }
            Script::Mark => {
                *stored = [arg(1).to_owned(), arg(3).to_owned()];
                answer(vec![text(arg(1))])
            }
            Script::Register => answer(vec![text(arg(1)), text(arg(2))]),
            _ => self.replies[self.next.fetch_add(1, Ordering::Relaxed) % self.replies.len()].clone(),
        };
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            call.reply.send(reply);
        });
    }

    fn identify(&self) -> BoxFuture<Result<Identity, NodeError>> {
        let identity = Identity {
            run_id: self.run_id.clone(),
            role: "master".to_owned(),
            eviction: "noeviction".to_owned(),
            version: "7.0.0".to_owned(),
        };
        Box::pin(std::future::ready(Ok(identity)))
    }

    fn subscribe(&self, _: Arc<str>) -> BoxFuture<Result<(), NodeError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn unsubscribe(&self, _: &str) {}

    fn listen(&self, _: Arc<dyn HintSink>) {}

    fn address(&self) -> &str {
        &self.run_id
    }
}

/// Everything that a client can ask for, over nodes that answer these in turn.
async fn ask_for_everything(replies: Vec<Result<Value, NodeError>>) {
    let nodes = (0..3).map(|i| {
        let (run_id, replies) = (format!("run-{i}"), replies.clone());
        Arc::new(Odd { run_id, stored: Mutex::default(), replies, next: i.into() }) as Arc<dyn Node>
    });
    let clock = Arc::new(SeededClock::new(1, NOW_MS as u64 * 1000)) as Arc<dyn Clock>;
    let engine = Engine::new(nodes.collect(), clock, EngineOptions::default());
    engine.initialize().await.expect("they can be marked");
    engine.start();
    let limits = WaitLimits { waiters_max: 10, waiters_per_name_max: 10 };
    let service = Service::new(engine, limits);

    let name = Name::new("a").unwrap();
    let handle = LeaseHandle { id: LeaseId::from_bits(7), token: Token::new(5).unwrap() };
    let targets = [
        Target::Lock(name.clone()),
        Target::Multilock(vec![name.clone(), Name::new("b").unwrap()]),
        Target::Semaphore { name: name.clone(), limit: 3, permits: 2 },
        Target::Election(name.clone()),
    ];
    let patience = Duration::from_secs(20);
    for target in targets {
        let held: Held = target.held();
        for (wait_ms, request) in [(0, None), (50, RequestId::new("request").ok())] {
            let note = Note { candidate: Candidate::new("c").ok(), ..Note::default() };
            let options = AcquireOptions { ttl_ms: 1000, wait_ms, note, request };
            drop(tokio::time::timeout(patience, service.acquire(&target, &options)).await);
        }
        let (extend, release) = (service.extend(&held, handle, None), service.release(&held, handle));
        drop(tokio::time::timeout(patience, extend).await);
        drop(tokio::time::timeout(patience, release).await);
    }
    for resource in [Resource::Lock, Resource::Semaphore, Resource::Election] {
        drop(tokio::time::timeout(patience, service.look(resource, &name)).await);
        drop(tokio::time::timeout(patience, service.look_after(resource, &name, Some("free"), 50)).await);
        drop(tokio::time::timeout(patience, service.list(resource, "", None, 10)).await);
        drop(tokio::time::timeout(patience, service.force_release(resource, &name, None)).await);
    }
    drop(tokio::time::timeout(patience, service.issue_token(&name)).await);
    drop(tokio::time::timeout(patience, service.check_token(&name, handle.token)).await);
    let value = quorate::domain::Value::new("v").unwrap();
    drop(tokio::time::timeout(patience, service.proclaim(&name, handle, value)).await);
}

#[test]
fn no_service_panics_over_nodes_that_answer_nonsense() {
    // Tasks run in this thread; what panics in one of them is seen too.
    let panics = Arc::new(AtomicUsize::new(0));
    let (seen, here, hook) = (Arc::clone(&panics), std::thread::current().id(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        seen.fetch_add(usize::from(std::thread::current().id() == here), Ordering::Relaxed);
        hook(panic);
    }));
    let config = Config { cases: 80, failure_persistence: None, ..Config::default() };
    let replies = proptest::collection::vec(reply(), 1..8);
    let outcome = TestRunner::new(config).run(&replies, |replies| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(ask_for_everything(replies));
        prop_assert_eq!(panics.load(Ordering::Relaxed), 0);
        Ok(())
    });
    if let Err(why) = outcome {
        panic!("{why}");
    }
}
