//! One client: takes something, keeps it for a while, gives it back or dies; reads now and then.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::history::{Call, History, Told};
use super::theatre::SERVERS;
use crate::support::http::Answer;
use crate::support::{Api, number, secret};

pub const LOCKS: usize = 4;
pub const LIMIT: u64 = 3;

/// Where the servers listen now.
pub type Addresses = Arc<Mutex<[Option<SocketAddr>; SERVERS]>>;

pub struct Client {
    pub number: u64,
    pub random: StdRng,
    pub addresses: Addresses,
    pub history: Arc<History>,
}

/// What is to be held.
enum Thing {
    Lock(String),
    Multilock([String; 2]),
    Semaphore,
    Election,
}

/// A part of what is held that has a name and a token of its own.
struct Part {
    kind: &'static str,
    name: String,
    token: u64,
}

impl Thing {
    fn kind(&self) -> &'static str {
        match self {
            Self::Lock(_) | Self::Multilock(_) => "lock",
            Self::Semaphore => "semaphore",
            Self::Election => "election",
        }
    }

    fn path(&self, op: &str) -> String {
        match self {
            Self::Lock(name) => format!("/v1/locks/{name}/{op}"),
            Self::Multilock(_) => format!("/v1/multilocks/{op}"),
            Self::Semaphore => format!("/v1/semaphores/chaos/{op}"),
            Self::Election => format!("/v1/elections/chaos/{op}"),
        }
    }

    /// What every body about it says.
    fn body(&self) -> Value {
        match self {
            Self::Multilock(names) => json!({"names": names}),
            _ => json!({}),
        }
    }

    fn parts(&self, lease: &Value) -> Vec<Part> {
        let part = |name: &str, token| Part { kind: self.kind(), name: name.to_owned(), token };
        match self {
            Self::Lock(name) => vec![part(name, number(lease, "fencing_token"))],
            Self::Multilock(names) => {
                names.iter().map(|name| part(name, number(&lease["fencing_tokens"], name))).collect()
            }
            Self::Semaphore => vec![part("chaos", number(lease, "fencing_token"))],
            Self::Election => vec![part("chaos", number(lease, "term"))],
        }
    }
}

/// A lease while its client has it.
struct Lease {
    thing: Thing,
    answer: Value,
    parts: Vec<Part>,
    /// Of what was told, in the history.
    indices: Vec<usize>,
    until: Instant,
}

impl Client {
    fn lock(&mut self) -> String {
        format!("chaos:{}", self.random.random_range(0..LOCKS))
    }

    async fn api(&mut self) -> Option<Api> {
        let which = self.random.random_range(0..SERVERS);
        let address = self.addresses.lock().unwrap()[which];
        if address.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        address.map(Api::new)
    }

    async fn post(&mut self, what: &str, path: &str, body: &Value) -> Option<Answer> {
        let api = self.api().await?;
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

    pub async fn live(mut self, over: Arc<AtomicBool>) {
        while !over.load(Ordering::Relaxed) {
            match self.random.random_range(0..12) {
                0..=4 => {
                    let thing = Thing::Lock(self.lock());
                    self.hold(thing).await;
                }
                5 => {
                    let (first, second) = (self.lock(), self.lock());
                    if first != second {
                        self.hold(Thing::Multilock([first, second])).await;
                    }
                }
                6..=7 => self.hold(Thing::Semaphore).await,
                8 => self.hold(Thing::Election).await,
                9 => self.issue().await,
                _ => self.read().await,
            }
            let pause = self.random.random_range(0..20);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn issue(&mut self) {
        let (name, asked) = (self.lock(), Instant::now());
        let answer = self.post("issue", &format!("/v1/fencing/{name}/issue"), &json!({})).await;
        if let Some(answer) = answer.filter(|answer| answer.status == 200) {
            let (token, answered) = (number(&answer.json(), "fencing_token"), Instant::now());
            let more = json!({"token": token});
            let call = Call { op: "issue", kind: "lock", name: &name, asked, outcome: Some("ok"), more };
            self.history.record(self.number, call);
            let what = format!("lock:{name}");
            self.history.add(Told { what, token, asked, answered, until: answered, bare: true });
        }
    }

    /// Looks who holds something.
    async fn read(&mut self) {
        let (kind, name, path, field) = match self.random.random_bool(0.5) {
            true => ("election", "chaos".to_owned(), "/v1/elections/chaos".to_owned(), "term"),
            false => {
                let name = self.lock();
                ("lock", name.clone(), format!("/v1/locks/{name}"), "fencing_token")
            }
        };
        let Some(api) = self.api().await else { return };
        let asked = Instant::now();
        let Ok(answer) =
            tokio::time::timeout(Duration::from_secs(20), api.try_send("GET", &path, &[], b"")).await
        else {
            self.history.wrong.lock().unwrap().push(format!("no answer in 20 s: GET {path}"));
            return;
        };
        self.history.count("read", &answer);
        if let Some(answer) = answer.ok().filter(|answer| answer.status == 200) {
            let seen = answer.json();
            let held = seen["held"] == true || seen["leader"].is_string();
            let more = json!({"held": held, "token": seen[field], "value": seen["value"]});
            let call = Call { op: "read", kind, name: &name, asked, outcome: Some("ok"), more };
            self.history.record(self.number, call);
        }
    }

    async fn hold(&mut self, thing: Thing) {
        let ttl_ms = self.random.random_range(200..1_500);
        let Some(mut lease) = self.take(thing, ttl_ms).await else { return };
        loop {
            let pause = self.random.random_range(0..ttl_ms / 2);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let goes_on = match self.random.random_range(0..10) {
                // Dies: nobody will hear of it again.
                0 => false,
                1..=2 if matches!(lease.thing, Thing::Election) => self.proclaim(&mut lease).await,
                1..=4 => self.extend(&mut lease).await,
                _ => {
                    self.give_back(lease).await;
                    return;
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    async fn take(&mut self, thing: Thing, ttl_ms: u64) -> Option<Lease> {
        let mut body = thing.body();
        let (mut op, mut is_shared) = ("acquire", false);
        match thing {
            Thing::Lock(_) => {
                is_shared = self.random.random_bool(0.25);
                body["mode"] = json!(if is_shared { "shared" } else { "exclusive" });
            }
            Thing::Multilock(_) => {}
            Thing::Semaphore => {
                body["limit"] = json!(LIMIT);
                body["permits"] = json!(self.random.random_range(1..=2));
            }
            Thing::Election => {
                op = "campaign";
                body["candidate"] = json!(format!("c{}", self.number));
                body["value"] = json!(self.value());
            }
        }
        body["ttl_ms"] = json!(ttl_ms);
        body["wait_ms"] =
            json!(if self.random.random_bool(0.5) { 0 } else { self.random.random_range(1..1_500) });
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
            answer = self.post(op, &thing.path(op), &body).await;
            if answer.is_some() || left == 0 {
                break;
            }
        }
        let answer = answer.filter(|answer| answer.status == 200)?.json();
        let answered = Instant::now();
        let until = asked + Duration::from_millis(number(&answer, "validity_ms"));
        let parts = thing.parts(&answer);
        let mut indices = Vec::new();
        // Those who share are judged by Porcupine alone.
        for Part { kind, name, token } in parts.iter().filter(|_| !is_shared) {
            let whats: Vec<String> = match &answer["slots"] {
                Value::Array(slots) => slots.iter().map(|slot| format!("slot:{name}/{slot}")).collect(),
                _ => vec![format!("{kind}:{name}")],
            };
            indices.extend(whats.into_iter().map(|what| {
                let told = Told { what, token: *token, asked: first_asked, answered, until, bare: false };
                self.history.add(told)
            }));
        }
        let lease = Lease { thing, answer, parts, indices, until };
        let more = json!({"slots": lease.answer["slots"], "limit": body["limit"], "value": body["value"], "mode": body["mode"]});
        self.record("acquire", &lease, first_asked, Some("ok"), &more);
        Some(lease)
    }

    fn value(&mut self) -> String {
        format!("{:016x}", self.random.random::<u64>())
    }

    /// The same for each name that the lease has.
    fn record(
        &self,
        op: &'static str,
        lease: &Lease,
        asked: Instant,
        outcome: Option<&'static str>,
        more: &Value,
    ) {
        for Part { kind, name, token } in &lease.parts {
            let mut more = more.clone();
            more["lease"] = json!(secret(&lease.answer));
            more["token"] = json!(token);
            more["until_us"] = json!(self.history.at(lease.until));
            self.history.record(self.number, Call { op, kind, name, asked, outcome, more });
        }
    }

    fn body(lease: &Lease) -> Value {
        let mut body = lease.thing.body();
        body["lease_id"] = lease.answer["lease_id"].clone();
        body
    }

    /// False where the client has no lease any more, or hears nothing of it.
    async fn extend(&mut self, lease: &mut Lease) -> bool {
        let asked = Instant::now();
        let answer = self.post("extend", &lease.thing.path("extend"), &Self::body(lease)).await;
        match answer {
            Some(answer) if answer.status == 200 => {
                let answer = answer.json();
                lease.until = asked + Duration::from_millis(number(&answer, "validity_ms"));
                self.history.end(&lease.indices, lease.until);
                for (part, now) in lease.parts.iter().zip(lease.thing.parts(&answer)) {
                    assert_eq!(part.token, now.token, "an extension keeps the token");
                }
                let value = &answer["value"];
                self.record("extend", lease, asked, Some("ok"), &json!({"value": value}));
                true
            }
            answer => self.goes_on("extend", lease, asked, answer, &json!({})),
        }
    }

    async fn proclaim(&mut self, lease: &mut Lease) -> bool {
        let (asked, value) = (Instant::now(), self.value());
        let mut body = Self::body(lease);
        body["value"] = json!(value);
        let answer = self.post("proclaim", &lease.thing.path("proclaim"), &body).await;
        let more = json!({"value": value});
        match answer {
            Some(answer) if answer.status == 200 => {
                self.record("proclaim", lease, asked, Some("ok"), &more);
                true
            }
            answer => self.goes_on("proclaim", lease, asked, answer, &more),
        }
    }

    /// What to do with a lease about which the answer was not the one that was hoped for.
    fn goes_on(
        &self,
        op: &'static str,
        lease: &Lease,
        asked: Instant,
        answer: Option<Answer>,
        more: &Value,
    ) -> bool {
        if answer.as_ref().is_none_or(|answer| answer.code() != "lease_lost") {
            self.record(op, lease, asked, None, more);
            return answer.is_some();
        }
        self.record(op, lease, asked, Some("lost"), more);
        // Nodes that forgot abstain for longer than any lease lives, so a lease can be lost only
        // when its time is up.
        let left = lease.until.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            let Part { kind, name, token } = &lease.parts[0];
            let wrong = format!("{kind} {name}: lease {token} was called lost {left:?} too early");
            self.history.wrong.lock().unwrap().push(wrong);
        }
        false
    }

    async fn give_back(&mut self, mut lease: Lease) {
        let asked = Instant::now();
        if asked < lease.until {
            self.history.end(&lease.indices, asked);
        }
        let op = if matches!(lease.thing, Thing::Election) { "resign" } else { "release" };
        let answer = self.post(op, &lease.thing.path(op), &Self::body(&lease)).await;
        let released =
            answer.filter(|answer| answer.status == 200).map(|answer| answer.json()["released"] == true);
        let outcome = released.map(|released| if released { "ok" } else { "lost" });
        if outcome.is_none() {
            // It may end from then on.
            lease.until = lease.until.min(asked);
        }
        self.record("release", &lease, asked, outcome, &json!({}));
    }
}
