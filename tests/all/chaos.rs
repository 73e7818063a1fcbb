//! Real processes under real faults: five `redis-server`, two API servers, a network that delays,
//! cuts, swallows and answers one way only; everything killed, stopped, flushed and starved at
//! random while clients take locks, permits and offices. What they were told is recorded and
//! checked: tokens rise in real-time order, no two leases are valid at once, nobody is let in
//! beyond a limit, and afterwards every name can be taken again and nothing is left.
//!
//! A minute by default, an hour with `QUORATE_CHAOS_SECONDS=3600`. The order of faults follows
//! from `QUORATE_CHAOS_SEED`; what they meet does not, since processes keep their own time.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::http::Answer;
use crate::support::proxy::Proxy;
use crate::support::{Api, Cluster, RedisOptions, Server, ServerOptions, number};

const NODES: usize = 5;
/// How many nodes may be away or silent at once; a majority stays, so that there is something
/// to check. Now and then one more goes, to see that this is only an outage.
const DISTURBED_MAX: usize = 2;
const LOCKS: usize = 4;
const LIMIT: u64 = 3;
/// Short, so that a node that forgot votes again soon.
const MAX_TTL: [&str; 2] = ["--max-ttl", "1500ms"];

/// What a client was told.
#[derive(Debug, Clone)]
struct Told {
    /// `lock:NAME`, `slot:NAME/N`, `office:NAME`: what can have one holder.
    what: String,
    token: u64,
    /// Before the request that granted it was sent.
    asked: Instant,
    /// After its answer came.
    answered: Instant,
    /// Surely valid until then: the validity told, counted from before asking, or its release.
    until: Instant,
    /// Issued without a lease.
    bare: bool,
}

/// What all clients were told, and what went how often.
#[derive(Default)]
struct History {
    told: Mutex<Vec<Told>>,
    answers: Mutex<BTreeMap<String, u64>>,
    wrong: Mutex<Vec<String>>,
}

impl History {
    fn count(&self, what: &str, answer: &std::io::Result<Answer>) {
        let outcome = match answer {
            Ok(answer) if answer.status == 200 => "200".to_owned(),
            Ok(answer) => format!("{} {}", answer.status, answer.code()),
            Err(_) => "no answer".to_owned(),
        };
        *self.answers.lock().unwrap().entry(format!("{what}: {outcome}")).or_default() += 1;
        if let Ok(answer) = answer {
            let expected = matches!(answer.status, 200 | 409 | 429 | 503);
            if !expected {
                self.wrong.lock().unwrap().push(format!("{what}: {} {}", answer.status, answer.text()));
            }
        }
    }

    /// The index by which its end can be told.
    fn add(&self, told: Told) -> usize {
        let mut all = self.told.lock().unwrap();
        all.push(told);
        all.len() - 1
    }

    fn end(&self, indices: &[usize], until: Instant) {
        let mut all = self.told.lock().unwrap();
        for &index in indices {
            all[index].until = until;
        }
    }
}

/// Where the servers listen now.
type Addresses = Arc<Mutex<[Option<SocketAddr>; 2]>>;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Lock,
    Semaphore,
    Election,
}

/// One client: takes something, keeps it for a while, gives it back or dies.
struct Client {
    random: StdRng,
    addresses: Addresses,
    history: Arc<History>,
}

impl Client {
    fn api(&mut self) -> Option<Api> {
        let which = self.random.random_range(0..2);
        let address = self.addresses.lock().unwrap()[which];
        address.map(Api::new)
    }

    async fn post(&mut self, what: &str, path: &str, body: &Value) -> Option<Answer> {
        let Some(api) = self.api() else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            return None;
        };
        let leaves = body.get("request_id").is_some() && self.random.random_bool(0.3);
        let patience = match leaves {
            true => Duration::from_micros(self.random.random_range(100..20_000)),
            false => Duration::from_secs(20),
        };
        let Ok(answer) = tokio::time::timeout(patience, api.try_post(path, body)).await else {
            if leaves {
                *self.history.answers.lock().unwrap().entry(format!("{what}: left before")).or_default() += 1;
            } else {
                let mut wrong = self.history.wrong.lock().unwrap();
                wrong.push(format!("{what}: no answer in {patience:?}: {path} {body}"));
            }
            return None;
        };
        self.history.count(what, &answer);
        answer.ok()
    }

    async fn live(mut self, over: Arc<AtomicBool>) {
        while !over.load(Ordering::Relaxed) {
            match self.random.random_range(0..10) {
                0..=5 => self.hold(Kind::Lock).await,
                6..=7 => self.hold(Kind::Semaphore).await,
                8 => self.hold(Kind::Election).await,
                _ => self.issue().await,
            }
            let pause = self.random.random_range(0..20);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn issue(&mut self) {
        let name = format!("chaos:{}", self.random.random_range(0..LOCKS));
        let asked = Instant::now();
        let answer = self.post("issue", &format!("/v1/fencing/{name}/issue"), &json!({})).await;
        if let Some(answer) = answer.filter(|answer| answer.status == 200) {
            let (token, answered) = (number(&answer.json(), "fencing_token"), Instant::now());
            let what = format!("lock:{name}");
            self.history.add(Told { what, token, asked, answered, until: answered, bare: true });
        }
    }

    async fn hold(&mut self, kind: Kind) {
        let ttl_ms = self.random.random_range(200..1_500);
        let wait_ms = if self.random.random_bool(0.5) { 0 } else { self.random.random_range(1..1_500) };
        let (family, name, acquire, release, mut body) = match kind {
            Kind::Lock => {
                let name = format!("chaos:{}", self.random.random_range(0..LOCKS));
                ("locks", name, "acquire", "release", json!({}))
            }
            Kind::Semaphore => {
                let permits = self.random.random_range(1..=2);
                (
                    "semaphores",
                    "chaos".to_owned(),
                    "acquire",
                    "release",
                    json!({"limit": LIMIT, "permits": permits}),
                )
            }
            Kind::Election => {
                ("elections", "chaos".to_owned(), "campaign", "resign", json!({"candidate": "c"}))
            }
        };
        body["ttl_ms"] = json!(ttl_ms);
        body["wait_ms"] = json!(wait_ms);
        let path = format!("/v1/{family}/{name}");
        // Some ask again with the same request id when there is no answer, and some lose patience
        // before there can be one.
        let mut tries = 1;
        if self.random.random_bool(0.6) {
            body["request_id"] = json!(format!("request-{:016x}", self.random.random::<u64>()));
            tries = 3;
        }
        // A lease that a retry gets may have been granted to the first try.
        let first_asked = Instant::now();
        let (mut asked, mut answer) = (first_asked, None);
        for left in (0..tries).rev() {
            asked = Instant::now();
            answer = self.post(acquire, &format!("{path}/{acquire}"), &body).await;
            if answer.is_some() || left == 0 {
                break;
            }
        }
        let Some(answer) = answer.filter(|answer| answer.status == 200) else { return };
        let answered = Instant::now();
        let lease = answer.json();
        let token = number(&lease, if matches!(kind, Kind::Election) { "term" } else { "fencing_token" });
        let until = asked + Duration::from_millis(number(&lease, "validity_ms"));
        let whats: Vec<String> = match kind {
            Kind::Lock => vec![format!("lock:{name}")],
            Kind::Election => vec![format!("office:{name}")],
            Kind::Semaphore => {
                lease["slots"].as_array().unwrap().iter().map(|slot| format!("slot:{name}/{slot}")).collect()
            }
        };
        let told = |what| Told { what, token, asked: first_asked, answered, until, bare: false };
        let indices: Vec<usize> = whats.into_iter().map(|what| self.history.add(told(what))).collect();
        let lease_id = json!({"lease_id": lease["lease_id"]});
        loop {
            let pause = self.random.random_range(0..ttl_ms / 2);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            match self.random.random_range(0..10) {
                // Dies: nobody will hear of it again.
                0 => return,
                1..=4 => {
                    let asked = Instant::now();
                    let answer = self.post("extend", &format!("{path}/extend"), &lease_id).await;
                    let Some(answer) = answer else { return };
                    if answer.status == 200 {
                        let until = asked + Duration::from_millis(number(&answer.json(), "validity_ms"));
                        self.history.end(&indices, until);
                    } else if answer.code() == "lease_lost" {
                        // Nodes that forgot abstain for longer than any lease lives, so a lease
                        // can be lost only when its time is up.
                        let left =
                            until_of(&self.history, &indices).saturating_duration_since(Instant::now());
                        if !left.is_zero() {
                            let wrong =
                                format!("{family} {name}: lease {token} was called lost {left:?} too early");
                            self.history.wrong.lock().unwrap().push(wrong);
                        }
                        return;
                    }
                }
                _ => {
                    let now = Instant::now();
                    if now < until_of(&self.history, &indices) {
                        self.history.end(&indices, now);
                    }
                    self.post(release, &format!("{path}/{release}"), &lease_id).await;
                    return;
                }
            }
        }
    }
}

fn until_of(history: &History, indices: &[usize]) -> Instant {
    history.told.lock().unwrap()[indices[0]].until
}

/// What is wrong with a history; nothing, one hopes.
fn violations(told: &[Told]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut by_what: HashMap<&str, Vec<&Told>> = HashMap::new();
    for one in told {
        by_what.entry(&one.what).or_default().push(one);
    }
    for (what, mut all) in by_what {
        // Tokens: greater than every one that was answered before this was asked for.
        let mut answered = all.clone();
        answered.sort_by_key(|one| one.answered);
        all.sort_by_key(|one| one.asked);
        let (mut next, mut highest) = (0, 0);
        for one in &all {
            while answered.get(next).is_some_and(|earlier| earlier.answered < one.asked) {
                highest = highest.max(answered[next].token);
                next += 1;
            }
            if one.token <= highest {
                wrong.push(format!("{what}: token {} was granted after {highest} had been", one.token));
            }
        }
        // Leases: surely valid from the answer until the end of what was told.
        let mut leases: Vec<&&Told> =
            all.iter().filter(|one| !one.bare && one.until > one.answered).collect();
        leases.sort_by_key(|one| one.answered);
        for pair in leases.windows(2) {
            if pair[1].answered < pair[0].until {
                let overlap = pair[0].until - pair[1].answered;
                wrong.push(format!(
                    "{what}: leases {} and {} were both valid for {overlap:?}",
                    pair[0].token, pair[1].token
                ));
            }
        }
    }
    wrong
}

/// The deployment, and what is the matter with it.
struct Theatre {
    random: StdRng,
    cluster: Cluster,
    /// By server: a proxy before each node.
    networks: Vec<Vec<Proxy>>,
    options: Vec<ServerOptions>,
    servers: Vec<Option<Server>>,
    addresses: Addresses,
    /// What ends a fault, and when.
    cures: Vec<(Instant, usize, Cure)>,
    faults: BTreeMap<&'static str, u64>,
    /// Logs of servers that were killed.
    logs: String,
}

#[derive(Debug, Clone, Copy)]
enum Cure {
    /// Of a node: start it again, let it go on, give it memory.
    Restart,
    Resume,
    Memory,
    /// Of the network between a server and a node.
    Network(usize),
    /// Of nothing: the node is just left alone for a while.
    Rest,
    /// Of a server (the number is the server's).
    Server,
}

impl Theatre {
    fn new(seed: u64) -> Self {
        let cluster = Cluster::with(NODES, &RedisOptions::default(), &MAX_TTL);
        let (networks, options): (Vec<_>, Vec<_>) = (0..2).map(|_| cluster.proxies()).unzip();
        let options: Vec<ServerOptions> =
            options.into_iter().map(|options: ServerOptions| options.with(&MAX_TTL)).collect();
        let mut theatre = Self {
            random: StdRng::seed_from_u64(seed),
            cluster,
            networks,
            options,
            servers: vec![None, None],
            addresses: Arc::default(),
            cures: Vec::new(),
            faults: BTreeMap::new(),
            logs: String::new(),
        };
        theatre.start_server(0);
        theatre.start_server(1);
        theatre
    }

    fn start_server(&mut self, which: usize) {
        let server = Server::start(&self.options[which]);
        self.addresses.lock().unwrap()[which] = Some(server.api().address());
        self.servers[which] = Some(server);
    }

    fn kill_server(&mut self, which: usize) {
        self.addresses.lock().unwrap()[which] = None;
        if let Some(mut server) = self.servers[which].take() {
            server.kill();
            self.logs += &server.log();
        }
    }

    fn disturbed(&self) -> Vec<usize> {
        let nodes =
            self.cures.iter().filter(|(_, _, cure)| !matches!(cure, Cure::Server)).map(|(_, node, _)| *node);
        let mut nodes: Vec<usize> = nodes.collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    fn cure(&mut self, subject: usize, cure: Cure) {
        match cure {
            Cure::Restart => self.cluster.nodes[subject].restart(),
            Cure::Resume => self.cluster.nodes[subject].resume(),
            Cure::Memory => {
                self.cluster.nodes[subject].command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            Cure::Network(server) => self.networks[server][subject].heal(),
            Cure::Rest => {}
            Cure::Server => self.start_server(subject),
        }
    }

    fn cure_what_is_due(&mut self, now: Instant) {
        let (due, later) = self.cures.drain(..).partition::<Vec<_>, _>(|(at, ..)| *at <= now);
        self.cures = later;
        for (_, subject, cure) in due {
            self.cure(subject, cure);
        }
    }

    /// One thing goes wrong.
    fn strike(&mut self) {
        let disturbed = self.disturbed();
        let allowed = DISTURBED_MAX + usize::from(self.random.random_bool(0.05));
        let node = self.random.random_range(0..NODES);
        if disturbed.contains(&node) || disturbed.len() >= allowed {
            return;
        }
        let server = self.random.random_range(0..2);
        let span = Duration::from_millis(self.random.random_range(50..1_500));
        // A node that forgot is away for a while longer: its quarantine.
        let forgetful = span + Duration::from_millis(2_000);
        let mut end =
            |after: Duration, node: usize, cure: Cure| self.cures.push((Instant::now() + after, node, cure));
        let redis = &mut self.cluster.nodes[node];
        let proxy = &self.networks[server][node];
        let name = match self.random.random_range(0..16) {
            0..=1 => {
                redis.kill();
                end(span, node, Cure::Restart);
                end(forgetful, node, Cure::Rest);
                "kill -9, empty restart"
            }
            2..=3 => {
                redis.stop();
                end(span, node, Cure::Resume);
                "SIGSTOP"
            }
            4 => {
                redis.command::<()>(&["FLUSHALL"]);
                end(forgetful, node, Cure::Rest);
                "FLUSHALL"
            }
            5 => {
                redis.command::<()>(&["CLIENT", "PAUSE", &span.as_millis().to_string(), "ALL"]);
                end(span, node, Cure::Rest);
                "CLIENT PAUSE"
            }
            6 => {
                redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
                end(span, node, Cure::Memory);
                "out of memory"
            }
            7 => {
                redis.command::<()>(&["SCRIPT", "FLUSH"]);
                "SCRIPT FLUSH"
            }
            8 => {
                let _ = redis.try_command::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                "CLIENT KILL"
            }
            9 => {
                let _ = redis.try_command::<i64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                "CLIENT KILL pubsub"
            }
            10 => {
                proxy.delay(span / 10);
                end(span, node, Cure::Network(server));
                "delay"
            }
            11 => {
                proxy.cut();
                end(span, node, Cure::Network(server));
                "cut"
            }
            12 => {
                proxy.black_hole();
                end(span, node, Cure::Network(server));
                "black hole"
            }
            13 => {
                proxy.mute_requests();
                end(span, node, Cure::Network(server));
                "one way: requests swallowed"
            }
            14 => {
                proxy.mute_answers();
                end(span, node, Cure::Network(server));
                "one way: answers swallowed"
            }
            _ => {
                if self.servers.iter().any(Option::is_none) {
                    return;
                }
                end(span, server, Cure::Server);
                self.kill_server(server);
                "API server killed"
            }
        };
        *self.faults.entry(name).or_default() += 1;
    }

    fn play(&mut self, span: Duration) {
        let curtain = Instant::now() + span;
        while Instant::now() < curtain {
            self.strike();
            let pause = Duration::from_millis(self.random.random_range(10..150));
            std::thread::sleep(pause);
            self.cure_what_is_due(Instant::now());
        }
        for (_, subject, cure) in std::mem::take(&mut self.cures) {
            self.cure(subject, cure);
        }
    }
}

#[test]
fn under_every_fault_tokens_rise_and_no_two_leases_are_valid_at_once() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let span = Duration::from_secs(setting("QUORATE_CHAOS_SECONDS").unwrap_or(45));
    let seed = setting("QUORATE_CHAOS_SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    println!("chaos: {span:?} with QUORATE_CHAOS_SEED={seed}");
    let mut theatre = Theatre::new(seed);
    let (history, over) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    // On a thread of their own, since faults are made by calls that block.
    let clients = {
        let (history, over, addresses) =
            (Arc::clone(&history), Arc::clone(&over), Arc::clone(&theatre.addresses));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut clients = JoinSet::new();
                for number in 0..24 {
                    let random = StdRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(number));
                    let client =
                        Client { random, addresses: Arc::clone(&addresses), history: Arc::clone(&history) };
                    clients.spawn(client.live(Arc::clone(&over)));
                }
                clients.join_all().await;
            });
        })
    };
    theatre.play(span);
    over.store(true, Ordering::Relaxed);
    clients.join().expect("no client panics");

    // The faults are over: everything can be had again, through both servers, and in full.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let healed = Instant::now();
    runtime.block_on(async {
        for server in theatre.servers.iter().flatten() {
            server.all_voting().await;
            let api = server.api();
            for i in 0..LOCKS {
                crate::support::eventually("a lock can be taken", || async {
                    let answer =
                        api.acquire(&format!("chaos:{i}"), json!({"ttl_ms": 1_000, "wait_ms": 3_000})).await;
                    answer.status == 200
                        && api.release(&format!("chaos:{i}"), &answer.json()).await.status == 200
                })
                .await;
            }
            let all = json!({"limit": LIMIT, "permits": LIMIT, "ttl_ms": 1_000, "wait_ms": 3_000});
            crate::support::eventually("all permits can be taken", || async {
                let answer = api.post("/v1/semaphores/chaos/acquire", all.clone()).await;
                let body = json!({"lease_id": answer.json()["lease_id"]});
                answer.status == 200 && api.post("/v1/semaphores/chaos/release", body).await.status == 200
            })
            .await;
            crate::support::eventually("the office can be had", || async {
                let body = json!({"candidate": "last", "ttl_ms": 1_000, "wait_ms": 3_000});
                let answer = api.post("/v1/elections/chaos/campaign", body).await;
                let body = json!({"lease_id": answer.json()["lease_id"]});
                answer.status == 200 && api.post("/v1/elections/chaos/resign", body).await.status == 200
            })
            .await;
        }
        crate::support::eventually("nothing is left", || async {
            theatre.cluster.leases("chaos").is_empty()
        })
        .await;
    });

    let told = history.told.lock().unwrap().clone();
    let mut wrong = violations(&told);
    wrong.extend(history.wrong.lock().unwrap().iter().cloned());
    let logs =
        theatre.servers.iter().flatten().map(Server::log).chain([theatre.logs.clone()]).collect::<String>();
    wrong.extend(logs.lines().filter(|line| line.contains("panic")).map(str::to_owned));
    let faults: u64 = theatre.faults.values().sum();
    let mut report = format!(
        "chaos: {faults} faults in {span:?}; {} leases and tokens granted; all well again {:?} after the last fault\n",
        told.len(),
        healed.elapsed()
    );
    for (name, count) in &theatre.faults {
        let _ = writeln!(report, "  {count:>6} × {name}");
    }
    for (answer, count) in history.answers.lock().unwrap().iter() {
        let _ = writeln!(report, "  {count:>6} answers {answer}");
    }
    // Straight to the output, which shows it although the test passes.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), report.as_bytes());
    assert!(wrong.is_empty(), "{} violations with seed {seed}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(told.len() as u64 > span.as_secs() * 5, "too little happened: {} grants", told.len());
}

#[test]
fn the_checkers_see_what_they_are_for() {
    let now = Instant::now();
    let at = |ms: u64| now + Duration::from_millis(ms);
    let told = |token, asked, answered, until| Told {
        what: "lock:a".to_owned(),
        token,
        asked: at(asked),
        answered: at(answered),
        until: at(until),
        bare: false,
    };
    let fine = vec![told(5, 0, 10, 100), told(6, 20, 100, 200), told(7, 150, 201, 300)];
    assert_eq!(violations(&fine), Vec::<String>::new());
    let overlapping = vec![told(5, 0, 10, 100), told(6, 20, 90, 200)];
    assert_eq!(violations(&overlapping).len(), 1);
    let repeated = vec![told(5, 0, 10, 20), told(5, 30, 40, 50)];
    assert_eq!(violations(&repeated).len(), 1);
    let back = vec![told(5, 0, 10, 20), told(9, 21, 22, 23), told(8, 30, 40, 50)];
    assert_eq!(violations(&back).len(), 1);
    // Asked for at the same time, either order is right.
    assert_eq!(violations(&[told(6, 0, 10, 11), told(5, 5, 20, 30)]), Vec::<String>::new());
    let mut other = told(1, 50, 60, 90);
    other.what = "lock:b".to_owned();
    assert_eq!(violations(&[told(5, 0, 10, 100), other]), Vec::<String>::new());
}
