//! The driver of a Redis node, over real redis-servers that are killed, stopped, flushed and lied about.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command as Process, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::clock::{Clock, SystemClock};
use quorate::domain::Keys;
use quorate::node::ballot::Ballot;
use quorate::node::calls::{self, Bounds};
use quorate::node::redis::{RedisNode, RedisOptions};
use quorate::node::{
    Answer, BoxFuture, Call, Command, HintSink, Marker, Node, NodeError, ReplyTo, Script, Value,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

/// Long enough for the busiest machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A redis-server of this test alone.
struct Server {
    process: Child,
    port: u16,
    folder: PathBuf,
    args: Vec<String>,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("quorate-node-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let process = Self::spawn(port, &folder, &args);
        Self { process, port, folder, args }
    }

    fn spawn(port: u16, folder: &Path, args: &[String]) -> Child {
        Process::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--dir"])
            .arg(folder)
            .args(args)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed")
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn signal(&self, signal: &str) {
        let done = Process::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(done.unwrap().success());
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn restart(&mut self) {
        self.process = Self::spawn(self.port, &self.folder, &self.args);
    }

    /// Runs a command as an outsider, once the server listens.
    async fn run<T: redis::FromRedisValue + Send + 'static>(&self, words: &[&str]) -> redis::RedisResult<T> {
        self.run_as("", words).await
    }

    async fn run_as<T: redis::FromRedisValue + Send + 'static>(
        &self,
        user: &str,
        words: &[&str],
    ) -> redis::RedisResult<T> {
        let url = format!("redis://{user}127.0.0.1:{}", self.port);
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (url, words) = (url.clone(), words.clone());
            let result = tokio::task::spawn_blocking(move || {
                let mut connection = redis::Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
                redis::cmd(&words[0]).arg(&words[1..]).query(&mut connection)
            });
            match result.await.unwrap() {
                Err(error) if error.is_connection_refusal() && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                other => return other,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Outside of the range that clients' own ports come from: such a port could be taken, by a
/// client of anything, between the death of a server and its restart.
fn free_port() -> u16 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let base = std::process::id() as usize * 64;
    loop {
        let port = 16_000 + ((base + NEXT.fetch_add(1, Ordering::Relaxed)) % 16_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn options() -> RedisOptions {
    // Generous, so that a busy machine is not taken for a dead node.
    RedisOptions {
        node_timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(5),
        ..RedisOptions::default()
    }
}

fn quick() -> RedisOptions {
    RedisOptions {
        node_timeout: Duration::from_millis(200),
        connect_timeout: Duration::from_millis(300),
        hints_ping_every: Duration::from_millis(50),
        ..RedisOptions::default()
    }
}

/// `None` where the call was never answered.
type Receiver = Pin<Box<dyn Future<Output = Option<Result<Answer, NodeError>>> + Send>>;

fn send_marked(node: &RedisNode, command: Command, marker: Option<Marker>) -> Receiver {
    let command = Arc::new(command);
    let mut ballot = Ballot::new(1);
    let reply = ReplyTo::new(command.clone(), None, Instant::now(), Some(ballot.seat(0)));
    node.submit(Call { command, marker: marker.map(Arc::new), reply });
    Box::pin(async move { ballot.next().await.map(|(_, answer)| answer) })
}

fn send(node: &RedisNode, command: Command) -> Receiver {
    let marker = command.script.may_be_marked().then(|| marker("M"));
    send_marked(node, command, marker)
}

async fn ask(node: &RedisNode, command: Command) -> Result<Answer, NodeError> {
    in_time(send(node, command)).await.expect("every call is answered")
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("waited in vain for an answer")
}

fn status() -> Command {
    calls::status(&Keys::new("q"), 0, 0, "")
}

fn mark(seen: &str, new: &str) -> Command {
    calls::mark(&Keys::new("q"), seen, new, "a", "")
}

fn acquire(lease: &str, key: &str) -> Command {
    let token = SystemClock::new().wall_us();
    let line = format!("{lease} a x {token} 30000 0 0 0 - - {{}}");
    Command::new(Script::Acquire).key(key).call("30000 0 0", &line)
}

fn release(lease: &str, key: &str) -> Command {
    Command::new(Script::Release).key(key).call("release", lease)
}

fn marker(expected: &str) -> Marker {
    let bounds = Bounds { clock_bound_ms: 60_000, fence_retention_ms: 600_000 };
    Marker { keys: Keys::new("q"), expected: expected.into(), votes: true, bounds }
}

/// Asks again and again until the answer is `good`.
async fn until<T: std::fmt::Debug>(what: &str, attempt: impl AsyncFnMut() -> T, good: impl Fn(&T) -> bool) {
    drop(seen(what, attempt, good).await);
}

/// The same, for whoever wants to see the answer.
async fn seen<T>(what: &str, mut attempt: impl AsyncFnMut() -> T, good: impl Fn(&T) -> bool) -> T
where
    T: std::fmt::Debug,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = attempt().await;
        if good(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}; last seen: {seen:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn until_up(node: &RedisNode) {
    until("the node answers", async || ask(node, status()).await, Result::is_ok).await;
}

async fn connect(server: &Server, options: RedisOptions) -> Arc<RedisNode> {
    let _: String = server.run(&["PING"]).await.unwrap();
    let node = RedisNode::new(&server.url(), options).unwrap();
    until_up(&node).await;
    node
}

#[tokio::test]
async fn calls_run_in_the_order_of_their_submission_and_answers_find_their_callers() {
    let server = Server::start(&[]);
    let node = connect(&server, options()).await;
    // Each mark succeeds only right after the one before it.
    let names: Vec<String> =
        std::iter::once(String::new()).chain((1..=3000).map(|i| i.to_string())).collect();
    let receivers: Vec<_> = names.windows(2).map(|pair| send(&node, mark(&pair[0], &pair[1]))).collect();
    for (receiver, name) in receivers.into_iter().zip(&names[1..]) {
        let answer = in_time(receiver).await.unwrap().unwrap();
        assert!(answer.done, "mark {name} came too early or too late");
        assert_eq!(answer.rest, [Value::Text(name.clone())]);
    }
}

#[tokio::test]
async fn a_call_is_sent_while_earlier_ones_wait_for_their_answers() {
    let server = Server::start(&[]);
    let _: String = server.run(&["PING"]).await.unwrap();
    let (hold, held) = tokio::sync::watch::channel(false);
    let url = one_way_street(server.port, held).await;
    // Only the call itself may wake the driver, no answer and no timeout.
    let patient = RedisOptions { node_timeout: Duration::from_secs(600), ..options() };
    let node = RedisNode::new(&url, patient).unwrap();
    until_up(&node).await;

    hold.send(true).unwrap();
    let mut receivers = Vec::new();
    let mut before = String::new();
    for name in ["a", "b", "c"] {
        receivers.push(send(&node, mark(&std::mem::replace(&mut before, name.into()), name)));
        until(
            "it has run",
            async || server.run::<Option<String>>(&["GET", "q:member"]).await.unwrap(),
            |marker| marker.as_deref() == Some(name),
        )
        .await;
    }
    hold.send(false).unwrap();
    for receiver in receivers {
        assert!(in_time(receiver).await.unwrap().unwrap().done);
    }
}

/// The address of a proxy that always lets requests through, and answers while not `held`.
async fn one_way_street(port: u16, held: tokio::sync::watch::Receiver<bool>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut requests, mut to_client) = listener.accept().await.unwrap().0.into_split();
        let server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (mut answers, mut to_server) = server.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut requests, &mut to_server).await });
        let mut held = held;
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = answers.read(&mut buffer).await {
            let open = held.wait_for(|held| !held).await.is_ok();
            if !open || to_client.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    });
    url
}

#[tokio::test]
async fn calls_that_share_a_run_have_each_its_own_answer_in_their_order() {
    let server = Server::start(&[]);
    let node = connect(&server, options()).await;
    ask(&node, mark("", "M")).await.unwrap();
    let _: i64 = server.run(&["ZADD", "q:lock:odd", "1", "x"]).await.unwrap();
    let lease = |i: u32| format!("{i:032x}");
    // More than one run takes, with calls in between that have a run of their own.
    let mut receivers = Vec::new();
    for i in 0..200 {
        let key = format!("q:lock:{}", i % 50);
        receivers.push((send(&node, acquire(&lease(i), &key)), Ok(true)));
        receivers.push((send(&node, acquire(&lease(1000 + i), &key)), Ok(false)));
        receivers.push((send(&node, acquire(&lease(2000 + i), "q:lock:odd")), Err("WRONGTYPE")));
        if i % 30 == 0 {
            receivers.push((send(&node, status()), Ok(true)));
        }
        // Its lease is undone before its acquire comes.
        receivers.push((send(&node, release(&lease(3000 + i), "q:lock:late")), Ok(false)));
        receivers.push((send(&node, acquire(&lease(3000 + i), "q:lock:late")), Err("released")));
        receivers.push((send(&node, release(&lease(i), &key)), Ok(true)));
    }
    // A call that expects another marker has no part in what the others find.
    let command = acquire(&lease(5000), "q:lock:other");
    receivers.push((send_marked(&node, command, Some(marker("another"))), Err("marker")));
    receivers.push((send(&node, acquire(&lease(5001), "q:lock:other")), Ok(true)));
    for (i, (receiver, expected)) in receivers.into_iter().enumerate() {
        match (in_time(receiver).await.unwrap(), expected) {
            (Ok(answer), Ok(done)) => assert_eq!(answer.done, done, "{i}"),
            (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{i}: {error}"),
            (answer, expected) => panic!("{i}: {answer:?}, not {expected:?}"),
        }
    }
    let runs: String = server.run(&["INFO", "commandstats"]).await.unwrap();
    let runs = runs.split("cmdstat_evalsha:calls=").nth(1).and_then(|text| text.split(',').next());
    let runs: u32 = runs.unwrap().parse().unwrap();
    assert!(runs < 200, "{runs} runs for 1,200 calls");
}

#[tokio::test]
async fn a_whole_batch_is_sent_again_where_the_scripts_were_flushed() {
    let server = Server::start(&[]);
    let node = connect(&server, options()).await;
    ask(&node, mark("", "M")).await.unwrap();
    for round in 0..3 {
        let _: String = server.run(&["SCRIPT", "FLUSH"]).await.unwrap();
        let lease = |i: u32| format!("{:032x}", round * 100 + i);
        let receivers: Vec<_> = (0..20)
            .flat_map(|i| {
                let key = format!("q:lock:{i}");
                [send(&node, acquire(&lease(i), &key)), send(&node, release(&lease(i), &key))]
            })
            .collect();
        for receiver in receivers {
            assert!(in_time(receiver).await.unwrap().unwrap().done);
        }
    }
}

#[tokio::test]
async fn a_batch_whose_calls_have_timed_out_does_not_put_later_answers_out_of_step() {
    let server = Server::start(&[]);
    let node = connect(&server, options()).await;
    ask(&node, mark("", "M")).await.unwrap();
    server.signal("-STOP");
    let lease = |i: u32| format!("{i:032x}");
    let early: Vec<_> = (0..10).map(|i| send(&node, acquire(&lease(i), &format!("q:lock:{i}")))).collect();
    for receiver in early {
        assert!(matches!(in_time(receiver).await.unwrap(), Err(NodeError::Timeout)));
    }
    let late: Vec<_> = (0..10).map(|i| send(&node, release(&lease(i), &format!("q:lock:{i}")))).collect();
    server.signal("-CONT");
    for receiver in late {
        assert!(in_time(receiver).await.unwrap().unwrap().done);
    }
}

#[tokio::test]
async fn large_requests_and_large_replies_arrive_whole() {
    let server = Server::start(&[]);
    let node = connect(&server, options()).await;
    ask(&node, mark("", "M")).await.unwrap();
    let data = "x".repeat(1000);
    let lease = "00112233445566778899aabbccddeeff";
    let keys: Vec<String> = (0..1000).map(|i| format!("q:lock:{i}")).collect();
    let ends_ms = 9_000_000_000_000_u64;
    let stored = format!(
        "2 {:013} {:016} {:013} {:032}\n{ends_ms} {lease} a x {:016} 30000 0 0 0 - - {data}\n",
        0, 1, 0, 0, 1
    );
    let mut words = vec!["MSET"];
    words.extend(keys.iter().flat_map(|key| [key.as_str(), stored.as_str()]));
    let _: String = server.run(&words).await.unwrap();

    let read = || keys.iter().fold(Command::new(Script::Read), |command, key| command.key(key));
    let receivers: Vec<_> = (0..4).map(|_| send(&node, read())).collect();
    for receiver in receivers {
        let answer = in_time(receiver).await.unwrap().unwrap();
        assert_eq!(answer.rest.len(), 1000);
        for entry in &answer.rest {
            let [_, held] = entry.as_list().unwrap() else { panic!("{entry:?}") };
            assert_eq!(held.as_list().unwrap()[5], Value::Text(data.clone()));
        }
    }
    assert!(ask(&node, status()).await.is_ok());
}

#[tokio::test]
async fn a_killed_node_fails_at_once_and_is_used_within_a_second_of_its_return() {
    let mut server = Server::start(&[]);
    let node = connect(&server, options()).await;
    let before = node.identify().await.unwrap();
    let generation = node.generation();
    assert_eq!((before.role.as_str(), before.eviction.as_str()), ("master", "noeviction"));

    server.kill();
    let down = seen("the node is down", async || ask(&node, status()).await, Result::is_err).await;
    assert!(matches!(down, Err(NodeError::Connection(_))), "{down:?}");
    assert!(matches!(node.identify().await, Err(NodeError::Connection(_))));
    let since = Instant::now();
    for _ in 0..1000 {
        assert!(matches!(ask(&node, status()).await, Err(NodeError::Connection(_))));
    }
    assert!(since.elapsed() < Duration::from_secs(1), "a call to a dead node costs nothing");
    assert_eq!(node.connections().0, 0);

    server.restart();
    let _: String = server.run(&["PING"]).await.unwrap();
    let since = Instant::now();
    until_up(&node).await;
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    assert!(node.generation() > generation);
    assert_ne!(node.identify().await.unwrap().run_id, before.run_id);
}

#[tokio::test]
async fn a_marker_of_an_earlier_process_is_not_even_sent_to_its_successor() {
    let mut server = Server::start(&[]);
    let node = connect(&server, options()).await;
    let run_id = node.identify().await.unwrap().run_id;
    let expected: Arc<str> = format!("1 {run_id} d 3 30000").into();
    let marker = || Some(marker(&expected));
    ask(&node, mark("", &expected)).await.unwrap();
    let read = || Command::new(Script::Read).key("q:lock:a");
    assert!(send_marked(&node, read(), marker()).await.unwrap().is_ok());

    server.kill();
    server.restart();
    until_up(&node).await;
    // The successor has the marker, as if from an old file on disk.
    ask(&node, mark("", &expected)).await.unwrap();
    let answer = send_marked(&node, read(), marker()).await.unwrap();
    assert!(matches!(answer, Err(NodeError::Unmarked)), "{answer:?}");
}

#[tokio::test]
async fn a_stopped_node_times_out_is_given_up_and_is_used_again() {
    let server = Server::start(&[]);
    let node = connect(&server, quick()).await;
    server.signal("-STOP");
    let since = Instant::now();
    let answer = ask(&node, status()).await;
    assert!(matches!(answer, Err(NodeError::Timeout)), "{answer:?}");
    assert!(since.elapsed() >= Duration::from_millis(200));
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    // The connection is open still, but nobody answers: it is not believed in for long.
    until(
        "the connection is given up",
        async || ask(&node, status()).await,
        |answer| matches!(answer, Err(NodeError::Connection(_))),
    )
    .await;
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());

    server.signal("-CONT");
    until_up(&node).await;
}

#[tokio::test]
async fn a_short_stop_keeps_the_connection_and_late_answers_go_nowhere() {
    let server = Server::start(&[]);
    let node = connect(&server, RedisOptions { node_timeout: Duration::from_secs(1), ..options() }).await;
    let generation = node.generation();
    server.signal("-STOP");
    let late: Vec<_> = (0..100).map(|i| send(&node, mark("", &format!("late{i}")))).collect();
    for receiver in late {
        assert!(matches!(in_time(receiver).await.unwrap(), Err(NodeError::Timeout)));
    }
    let asked = send(&node, status());
    server.signal("-CONT");
    // The hundred answers that come first belong to the hundred before.
    let answer = in_time(asked).await.unwrap().unwrap();
    assert_eq!(calls::Status::read(&answer).unwrap().marker, "late0");
    assert_eq!(node.generation(), generation);
}

#[tokio::test]
async fn a_full_queue_refuses_and_has_room_again_afterwards() {
    let server = Server::start(&[]);
    let node = connect(&server, RedisOptions { queue_len: 16, ..options() }).await;
    server.signal("-STOP");
    let publish = || Command::new(Script::Publish).key("q:news");
    let mut receivers: Vec<_> = (0..20).map(|_| send(&node, publish())).collect();
    for receiver in receivers.split_off(16) {
        assert!(matches!(in_time(receiver).await.unwrap(), Err(NodeError::Overloaded)));
    }
    // Or a node that is busy would be taken for dead.
    receivers.push(send(&node, status()));
    server.signal("-CONT");
    for receiver in receivers {
        assert!(in_time(receiver).await.unwrap().is_ok());
    }
    assert!(ask(&node, status()).await.is_ok());
}

#[tokio::test]
async fn a_dropped_node_answers_what_it_owes_and_closes_its_connections() {
    let server = Server::start(&[]);
    let node = connect(&server, options()).await;
    in_time(node.subscribe("a".into())).await.unwrap();
    server.signal("-STOP");
    let sent = send(&node, status());
    // Let it leave the queue: what was sent is answered like what was not.
    tokio::task::yield_now().await;
    let queued = send(&node, status());
    drop(node);
    for receiver in [sent, queued] {
        assert!(matches!(in_time(receiver).await.unwrap(), Err(NodeError::Dropped)));
    }
    server.signal("-CONT");
    until(
        "only the outsider is connected",
        async || server.run::<String>(&["CLIENT", "LIST"]).await.unwrap().lines().count(),
        |&count| count == 1,
    )
    .await;
}

#[tokio::test]
async fn a_script_flush_goes_unnoticed_and_keeps_the_order() {
    let server = Server::start(&[]);
    let node = connect(&server, options()).await;
    let generation = node.generation();
    let mut seen = String::new();
    for round in 0..5 {
        let _: String = server.run(&["SCRIPT", "FLUSH"]).await.unwrap();
        let names: Vec<String> = (0..50).map(|i| format!("{round}-{i}")).collect();
        let receivers: Vec<_> = names
            .iter()
            .map(|name| send(&node, mark(&std::mem::replace(&mut seen, name.clone()), name)))
            .collect();
        for receiver in receivers {
            assert!(in_time(receiver).await.unwrap().unwrap().done);
        }
        assert!(ask(&node, status()).await.is_ok(), "scripts that were not called are loaded too");
    }
    assert_eq!(node.generation(), generation);
}

#[tokio::test]
async fn a_killed_connection_is_made_anew_and_every_call_is_answered() {
    let server = Server::start(&[]);
    let node = connect(&server, options()).await;
    for _ in 0..20 {
        let generation = node.generation();
        let receivers: Vec<_> = (0..50).map(|_| send(&node, status())).collect();
        let _: u64 = server.run(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
        for receiver in receivers {
            let answer = in_time(receiver).await.unwrap();
            assert!(matches!(answer, Ok(_) | Err(NodeError::Connection(_))), "{answer:?}");
        }
        let since = Instant::now();
        until("there is a new connection", async || node.generation(), |&now| now > generation).await;
        until_up(&node).await;
        assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    }
}

#[tokio::test]
async fn a_wrong_type_is_an_abstention_of_that_call_alone() {
    let server = Server::start(&[]);
    let node = connect(&server, options()).await;
    ask(&node, mark("", "M")).await.unwrap();
    let _: u64 = server.run(&["HSET", "q:lock:wrong", "field", "value"]).await.unwrap();
    let lease = |i: u8| format!("{i:032x}");
    let before = send(&node, acquire(&lease(1), "q:lock:a"));
    let wrong = send(&node, acquire(&lease(2), "q:lock:wrong"));
    let after = send(&node, acquire(&lease(3), "q:lock:b"));
    assert!(in_time(before).await.unwrap().unwrap().done);
    match in_time(wrong).await.unwrap() {
        Err(NodeError::Redis(text)) => assert!(text.contains("WRONGTYPE"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert!(in_time(after).await.unwrap().unwrap().done);
}

#[tokio::test]
async fn a_busy_node_abstains_with_its_own_words() {
    let server = Server::start(&["--lua-time-limit", "50"]);
    let node = connect(&server, options()).await;
    let (port, patience) = (server.port, PATIENCE);
    let endless = tokio::task::spawn_blocking(move || {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        let mut connection = client.get_connection_with_timeout(patience).unwrap();
        redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection)
    });
    until(
        "the node says BUSY",
        async || ask(&node, status()).await,
        |answer| matches!(answer, Err(NodeError::Redis(text)) if text.starts_with("BUSY")),
    )
    .await;
    let _: String = server.run(&["SCRIPT", "KILL"]).await.unwrap();
    assert!(endless.await.unwrap().is_err());
    until_up(&node).await;
}

#[tokio::test]
async fn a_late_acquire_behind_its_release_leaves_nothing() {
    let server = Server::start(&[]);
    let node = connect(&server, quick()).await;
    ask(&node, mark("", "M")).await.unwrap();

    // Over one connection: both sit in the stopped node, in order.
    server.signal("-STOP");
    let lease = "a".repeat(32);
    let grant = send(&node, acquire(&lease, "q:lock:a"));
    let undo = send(&node, release(&lease, "q:lock:a"));
    assert!(matches!(in_time(grant).await.unwrap(), Err(NodeError::Timeout)));
    assert!(matches!(in_time(undo).await.unwrap(), Err(NodeError::Timeout)));

    // Over two: the connection of the acquire is given up before the release is sent.
    let other = "b".repeat(32);
    let grant = send(&node, acquire(&other, "q:lock:b"));
    assert!(in_time(grant).await.unwrap().is_err());
    until("the connection is given up", async || node.connections().0, |&open| open == 0).await;
    server.signal("-CONT");
    until("the release is confirmed", async || ask(&node, release(&other, "q:lock:b")).await, Result::is_ok)
        .await;

    // The node reads the given-up connection to its end before it closes it.
    until(
        "the old connections are gone",
        async || server.run::<String>(&["CLIENT", "LIST", "TYPE", "normal"]).await.unwrap(),
        |list| list.lines().filter(|line| line.contains("name=quorate")).count() == 1,
    )
    .await;
    for key in ["q:lock:a", "q:lock:b"] {
        let record: Option<String> = server.run(&["GET", key]).await.unwrap();
        let over = record.as_deref().is_none_or(|record| record.lines().count() == 1);
        assert!(over, "{key} is held for nobody: {record:?}");
    }
}

#[derive(Default)]
struct Heard {
    hints: Mutex<Vec<String>>,
    missed: AtomicUsize,
}

impl HintSink for Heard {
    fn hint(&self, channel: &str, _: &str) {
        self.hints.lock().unwrap().push(channel.to_owned());
    }

    fn missed(&self) {
        self.missed.fetch_add(1, Ordering::SeqCst);
    }
}

impl Heard {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.hints.lock().unwrap())
    }

    fn missed(&self) -> usize {
        self.missed.load(Ordering::SeqCst)
    }
}

async fn listen(server: &Server, options: RedisOptions) -> (Arc<RedisNode>, Arc<Heard>) {
    let node = connect(server, options).await;
    let heard = Arc::new(Heard::default());
    node.listen(heard.clone());
    (node, heard)
}

async fn publish(server: &Server, channel: &str) -> usize {
    server.run(&["PUBLISH", channel, ""]).await.unwrap()
}

#[tokio::test]
async fn hints_arrive_for_what_is_subscribed_and_for_nothing_else() {
    let server = Server::start(&[]);
    let (node, heard) = listen(&server, options()).await;
    assert_eq!(node.connections(), (1, 0), "no connection before somebody listens");
    in_time(node.subscribe("a".into())).await.unwrap();
    assert_eq!(node.connections(), (1, 1));
    // Confirmed means confirmed: the very next publish is heard by the node's count.
    assert_eq!(publish(&server, "a").await, 1);
    until("the hint is there", async || heard.take(), |hints| hints == &["a"]).await;

    // Twice does no harm.
    in_time(node.subscribe("a".into())).await.unwrap();
    assert_eq!(publish(&server, "a").await, 1);
    until("the hint is there once", async || heard.take(), |hints| hints == &["a"]).await;

    node.unsubscribe("a");
    node.unsubscribe("never subscribed");
    until("nobody listens", async || publish(&server, "a").await, |&listeners| listeners == 0).await;
    // A change of mind, and another, end where they should.
    let first = node.subscribe("a".into());
    node.unsubscribe("a");
    let second = node.subscribe("a".into());
    drop(first);
    in_time(second).await.unwrap();
    assert_eq!(publish(&server, "a").await, 1);
    assert_eq!(heard.missed(), 0);
}

#[tokio::test]
async fn what_a_node_let_nobody_subscribe_to_is_subscribed_once_it_does() {
    let server = Server::start(&[]);
    let options = RedisOptions { hints_ping_every: Duration::from_millis(50), ..options() };
    let (node, heard) = listen(&server, options).await;
    let channels = async |rule: &str| {
        let _: () = server.run(&["ACL", "SETUSER", "default", rule]).await.unwrap();
    };
    channels("resetchannels").await;
    for _ in 1..=2 {
        assert!(matches!(in_time(node.subscribe("a".into())).await, Err(NodeError::Redis(_))));
    }
    channels("allchannels").await;
    until("whoever waits is told to look", async || heard.missed(), |&missed| missed == 1).await;
    assert_eq!(publish(&server, "a").await, 1);
    until("the hint is there", async || heard.take(), |hints| hints == &["a"]).await;
}

#[tokio::test]
async fn thousands_of_subscriptions_at_once_are_all_confirmed() {
    let server = Server::start(&[]);
    let (node, heard) = listen(&server, options()).await;
    let waiting: Vec<BoxFuture<_>> = (0..3000).map(|i| node.subscribe(format!("c{i}").into())).collect();
    for confirmed in waiting {
        in_time(confirmed).await.unwrap();
    }
    assert_eq!(publish(&server, "c2999").await, 1);
    until("the hint is there", async || heard.take(), |hints| hints == &["c2999"]).await;
    (0..3000).for_each(|i| node.unsubscribe(&format!("c{i}")));
    until(
        "all are unsubscribed",
        async || server.run::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await.unwrap().len(),
        |&count| count == 0,
    )
    .await;
}

#[tokio::test]
async fn hints_recover_from_killed_connections_again_and_again() {
    let server = Server::start(&[]);
    let (node, heard) = listen(&server, options()).await;
    let channels: Vec<String> = (0..1000).map(|i| format!("c{i}")).collect();
    for channel in &channels {
        drop(node.subscribe(channel.as_str().into()));
    }
    in_time(node.subscribe("last".into())).await.unwrap();
    for round in 1..=10 {
        let killed: u64 = server.run(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
        assert_eq!(killed, 1);
        let since = Instant::now();
        until("whoever waits is told to look", async || heard.missed(), |&missed| missed == round).await;
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
        // Told only after everything was subscribed again.
        for channel in ["c0", "c999", "last"] {
            assert_eq!(publish(&server, channel).await, 1);
        }
        until("the hints are there", async || heard.hints.lock().unwrap().len(), |&n| n >= 3).await;
        assert_eq!(heard.take(), ["c0", "c999", "last"]);
    }
}

#[tokio::test]
async fn a_half_open_connection_for_hints_is_noticed_and_made_anew() {
    let server = Server::start(&[]);
    let (node, heard) = listen(&server, quick()).await;
    in_time(node.subscribe("a".into())).await.unwrap();
    server.signal("-STOP");
    until("the connection is given up", async || node.connections().1, |&open| open == 0).await;
    // There are no hints for now, and whoever asks is told so rather than kept waiting.
    assert!(in_time(node.subscribe("b".into())).await.is_err());
    server.signal("-CONT");
    until("whoever waits is told to look", async || heard.missed(), |&missed| missed >= 1).await;
    // Wanted although the first answer was an error.
    for channel in ["a", "b"] {
        until("it is subscribed", async || publish(&server, channel).await, |&count| count == 1).await;
    }
}

#[tokio::test]
async fn whoever_is_told_that_there_are_no_hints_is_told_to_look_once_there_are() {
    let mut server = Server::start(&[]);
    let (node, heard) = listen(&server, quick()).await;
    server.kill();
    assert!(in_time(node.subscribe("a".into())).await.is_err());
    // Nobody wants anything when the node is back.
    node.unsubscribe("a");
    server.restart();
    until_up(&node).await;
    if in_time(node.subscribe("b".into())).await.is_err() {
        until("whoever waits is told to look", async || heard.missed(), |&missed| missed >= 1).await;
    }
}

#[tokio::test]
async fn the_connection_for_hints_is_closed_when_nobody_has_listened_for_a_while() {
    let server = Server::start(&[]);
    let options = RedisOptions {
        hints_ping_every: Duration::from_millis(10),
        hints_idle: Duration::from_millis(100),
        ..options()
    };
    let (node, heard) = listen(&server, options).await;
    in_time(node.subscribe("a".into())).await.unwrap();
    node.unsubscribe("a");
    until("it is closed", async || node.connections().1, |&open| open == 0).await;
    in_time(node.subscribe("a".into())).await.unwrap();
    assert_eq!(node.connections(), (1, 1));
    assert_eq!(heard.missed(), 0, "nobody listened, nothing was missed");
}

#[tokio::test]
async fn the_password_never_shows() {
    const SECRET: &str = "s3cr3t-of-this-node";
    const WRONG: &str = "wr0ng-but-as-secret";
    let server = Server::start(&["--requirepass", SECRET]);
    let _: String = server.run_as(&format!(":{SECRET}@"), &["PING"]).await.unwrap();
    let mut shown = Vec::new();

    let url = format!("redis://:{SECRET}@127.0.0.1:{}/2", server.port);
    let good = RedisNode::new(&url, options()).unwrap();
    until_up(&good).await;
    assert_eq!(good.address(), format!("redis://127.0.0.1:{}/2", server.port));
    assert!(in_time(good.subscribe("a".into())).await.is_ok());
    shown.push(format!("{} {good:?}", good.address()));

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{WRONG}\n")).unwrap();
    let with = RedisOptions { password_file: Some(file.path().to_owned()), ..options() };
    shown.push(format!("{with:?}"));
    let bad = RedisNode::new(&server.url(), with).unwrap();
    let told = |answer: &Result<Answer, NodeError>| match answer {
        Err(error) => error.to_string().contains("WRONGPASS"),
        Ok(_) => false,
    };
    let error = seen("the node has refused", async || ask(&bad, status()).await, told).await;
    shown.push(format!("{error:?} {bad:?} {}", bad.address()));
    shown.push(format!("{:?}", bad.identify().await));
    let error = in_time(bad.subscribe("a".into())).await.unwrap_err();
    shown.push(format!("{error} {error:?}"));

    let none = RedisNode::new(&server.url(), options()).unwrap();
    until(
        "the node has refused",
        async || ask(&none, status()).await,
        |answer| matches!(answer, Err(error) if error.to_string().contains("NOAUTH")),
    )
    .await;

    for url in [
        format!("http://:{SECRET}@host"),
        format!("redis://:{SECRET}@host:port"),
        format!("redis://:{SECRET}@host/database"),
        format!("redis://:{SECRET}@"),
        format!("rediss://:{SECRET}@host/#insecure"),
        format!(":{SECRET}"),
    ] {
        let error = RedisNode::new(&url, options()).unwrap_err();
        shown.push(format!("{error} {error:?}"));
    }
    for text in shown {
        assert!(!text.contains(SECRET) && !text.contains(WRONG), "{text}");
    }
}

#[tokio::test]
async fn a_user_a_database_and_a_unix_socket_are_taken_from_the_url() {
    let folder = std::env::temp_dir().join(format!("quorate-socket-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("redis.sock");
    let server = Server::start(&["--unixsocket", socket.to_str().unwrap()]);
    let _: String =
        server.run(&["ACL", "SETUSER", "lock%er", "on", ">pass/word", "~*", "&*", "+@all"]).await.unwrap();

    let url = format!("redis://lock%25er:pass%2Fword@127.0.0.1:{}/3", server.port);
    let node = RedisNode::new(&url, options()).unwrap();
    until_up(&node).await;
    ask(&node, mark("", "of database 3")).await.unwrap();
    in_time(node.subscribe("a".into())).await.unwrap();
    let clients: String = server.run(&["CLIENT", "LIST"]).await.unwrap();
    assert_eq!(clients.lines().filter(|line| line.contains("user=lock%er")).count(), 2, "{clients}");
    assert!(clients.lines().any(|line| line.contains("name=quorate") && line.contains("db=3")), "{clients}");

    let url = format!("unix://{}?db=3", socket.display());
    let node = RedisNode::new(&url, options()).unwrap();
    assert_eq!(node.address(), format!("unix://{}", socket.display()));
    until_up(&node).await;
    let answer = ask(&node, status()).await.unwrap();
    assert_eq!(calls::Status::read(&answer).unwrap().marker, "of database 3");
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn tls_is_spoken_with_the_certificates_that_are_named() {
    let folder = std::env::temp_dir().join(format!("quorate-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let made = Process::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &path("key.pem"), "-out", &path("cert.pem")])
        .stderr(Stdio::null())
        .status();
    assert!(made.expect("openssl is installed").success());
    let tls_port = free_port().to_string();
    let server = Server::start(&[
        "--tls-port",
        &tls_port,
        "--tls-cert-file",
        &path("cert.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-auth-clients",
        "no",
        "--tls-ca-cert-file",
        &path("cert.pem"),
    ]);
    let _: String = server.run(&["PING"]).await.unwrap();
    let url = format!("rediss://localhost:{tls_port}");
    let trusting = RedisOptions { ca_file: Some(path("cert.pem").into()), ..options() };
    let node = RedisNode::new(&url, trusting).unwrap();
    assert_eq!(node.address(), url);
    until_up(&node).await;
    let receivers: Vec<_> = (0..500).map(|_| send(&node, status())).collect();
    for receiver in receivers {
        assert!(in_time(receiver).await.unwrap().is_ok());
    }
    in_time(node.subscribe("a".into())).await.unwrap();
    assert_eq!(publish(&server, "a").await, 1);

    let node = RedisNode::new(&url, options()).unwrap();
    until(
        "the certificate is refused",
        async || ask(&node, status()).await,
        |answer| matches!(answer, Err(error) if error.to_string().contains("certificate")),
    )
    .await;
    let missing = RedisOptions { ca_file: Some(path("missing.pem").into()), ..options() };
    assert!(RedisNode::new(&url, missing).unwrap_err().to_string().contains("missing.pem"));

    // From now on the node wants to see a certificate too.
    let _: () = server.run(&["CONFIG", "SET", "tls-auth-clients", "yes"]).await.unwrap();
    let trusting = RedisOptions { ca_file: Some(path("cert.pem").into()), ..options() };
    let node = RedisNode::new(&url, trusting.clone()).unwrap();
    until(
        "a node that asks for a certificate says so",
        async || ask(&node, status()).await,
        |answer| matches!(answer, Err(error) if error.to_string().contains("asks for a certificate")),
    )
    .await;
    let identity_files = Some((path("cert.pem").into(), path("key.pem").into()));
    let node = RedisNode::new(&url, RedisOptions { identity_files, ..trusting.clone() }).unwrap();
    until_up(&node).await;
    let identity_files = Some((path("cert.pem").into(), path("missing.pem").into()));
    let missing = RedisNode::new(&url, RedisOptions { identity_files, ..trusting });
    assert!(missing.unwrap_err().to_string().contains("missing.pem"));
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn a_server_that_talks_nonsense_is_a_failed_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let node = RedisNode::new(&url, options()).unwrap();
    until(
        "the nonsense is recognised",
        async || ask(&node, status()).await,
        |answer| matches!(answer, Err(NodeError::Connection(why)) if why.contains("protocol error")),
    )
    .await;
    assert_eq!(node.generation(), 0);
    server.abort();
}

/// An event loop that looks after few sockets at a time, as the server's does, comes to a node's
/// socket late when many others are ready before it.
#[test]
fn an_answer_that_is_there_and_not_read_yet_is_not_late() {
    const NODE_TIMEOUT: Duration = Duration::from_millis(200);
    let runtime =
        tokio::runtime::Builder::new_current_thread().max_io_events_per_tick(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::start(&[]);
        let options = RedisOptions { node_timeout: NODE_TIMEOUT, ..options() };
        let node = connect(&server, options).await;

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut crowd = Vec::new();
        for _ in 0..100 {
            let (mine, theirs) = tokio::join!(
                tokio::net::TcpStream::connect(listener.local_addr().unwrap()),
                listener.accept()
            );
            crowd.push((mine.unwrap(), theirs.unwrap().0));
        }
        for (mine, _) in &mut crowd {
            mine.write_all(b"ready").await.unwrap();
        }
        let mut outsider = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let mut answered = || -> String {
            let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut outsider).unwrap();
            stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap().to_owned()
        };
        let before = answered();
        let asked = Instant::now();
        let answer = send(&node, status());
        // A few turns until it is sent, and then one that takes until it is answered, and too long.
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        while answered() == before || asked.elapsed() < 2 * NODE_TIMEOUT {
            assert!(asked.elapsed() < PATIENCE, "it was never sent");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(in_time(answer).await.expect("it is answered").is_ok());
    });
}
