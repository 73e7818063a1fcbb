//! The place of a request in its queue, and the release that speaks of a request: both outlive the connection.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Answer, Api, Shared, eventually, number, secret, token, unique};

/// A lock that somebody holds, at a server.
struct Busy {
    api: Api,
    name: String,
    lease: Value,
}

impl Busy {
    async fn new() -> Self {
        let (api, name) = (Shared::nodes(3).api(), unique("place"));
        let lease = api.acquire(&name, json!({})).await.ok();
        Self { api, name, lease }
    }

    /// A request waits in the background, as the last of so many.
    async fn wait(&self, request: &str, wait_ms: u64, count: u64) -> JoinHandle<Answer> {
        let (api, name) = (self.api.clone(), self.name.clone());
        let body = json!({"wait_ms": wait_ms, "request_id": request});
        let waiting = tokio::spawn(async move { api.acquire(&name, body).await });
        self.until_waiting(count).await;
        waiting
    }

    async fn until_waiting(&self, count: u64) {
        let waiters = async || number(&self.api.lock(&self.name).await, "waiters") == count;
        eventually("so many wait", waiters).await;
    }

    async fn release_request(&self, request: &str) -> bool {
        let path = format!("/v1/locks/{}/release", self.name);
        released(&self.api.post(&path, json!({"request_id": request})).await)
    }

    /// Frees it: which of two is served first, and then the other one, too?
    async fn serves_first(&self, mut one: JoinHandle<Answer>, mut other: JoinHandle<Answer>) -> bool {
        self.api.release(&self.name, &self.lease).await.ok();
        let (lease, is_first) = tokio::select! {
            answer = &mut one => (answer.unwrap().ok(), true),
            answer = &mut other => (answer.unwrap().ok(), false),
        };
        self.api.release(&self.name, &lease).await.ok();
        let next = if is_first { other } else { one }.await.unwrap().ok();
        assert!(token(&next) > token(&lease));
        self.api.release(&self.name, &next).await.ok();
        is_first
    }
}

fn released(answer: &Answer) -> bool {
    answer.ok()["released"].as_bool().unwrap()
}

#[tokio::test]
async fn a_request_whose_time_was_over_has_its_place_when_it_comes_back() {
    let busy = Busy::new().await;
    let [first, second] = [(); 2].map(|()| unique("request"));
    busy.wait(&first, 1000, 1).await.await.unwrap().problem(409, "lock_held");
    let other = busy.wait(&second, 60_000, 1).await;
    let again = busy.wait(&first, 60_000, 2).await;
    assert!(busy.serves_first(again, other).await);
}

#[tokio::test]
async fn a_request_that_lost_its_connection_has_its_place_when_it_comes_back() {
    let busy = Busy::new().await;
    let [first, second] = [(); 2].map(|()| unique("request"));
    busy.wait(&first, 60_000, 1).await.abort();
    busy.until_waiting(0).await;
    let other = busy.wait(&second, 60_000, 1).await;
    let again = busy.wait(&first, 60_000, 2).await;
    assert!(busy.serves_first(again, other).await);
}

/// As behind a proxy that does not tell the server that its client has left.
#[tokio::test]
async fn an_attempt_whose_end_the_server_has_not_seen_shares_its_place_with_the_next() {
    let busy = Busy::new().await;
    let [first, second] = [(); 2].map(|()| unique("request"));
    let unseen = busy.wait(&first, 60_000, 1).await;
    let other = busy.wait(&second, 60_000, 2).await;
    let again = busy.wait(&first, 60_000, 3).await;
    busy.api.release(&busy.name, &busy.lease).await.ok();
    let (unseen, again) = (unseen.await.unwrap().ok(), again.await.unwrap().ok());
    assert_eq!(secret(&unseen), secret(&again));
    busy.api.release(&busy.name, &again).await.ok();
    let last = other.await.unwrap().ok();
    busy.api.release(&busy.name, &last).await.ok();
}

#[tokio::test]
async fn those_behind_a_request_that_is_away_are_served() {
    let busy = Busy::new().await;
    let [first, second] = [(); 2].map(|()| unique("request"));
    busy.wait(&first, 60_000, 1).await.abort();
    busy.until_waiting(0).await;
    let other = busy.wait(&second, 60_000, 1).await;
    busy.api.release(&busy.name, &busy.lease).await.ok();
    let lease = other.await.unwrap().ok();
    let again = busy.wait(&first, 60_000, 1).await;
    busy.api.release(&busy.name, &lease).await.ok();
    busy.api.release(&busy.name, &again.await.unwrap().ok()).await.ok();
}

#[tokio::test]
async fn a_release_by_request_id_ends_its_wait_and_its_place() {
    let busy = Busy::new().await;
    let [first, second] = [(); 2].map(|()| unique("request"));
    let ended = busy.wait(&first, 60_000, 1).await;
    assert!(busy.release_request(&first).await);
    let ended = ended.await.unwrap().problem(409, "lock_held");
    assert_eq!(ended["detail"], "A release with this request_id ended the request.");
    assert_eq!((number(&ended["nodes"], "granted"), number(&ended["nodes"], "quorum")), (0, 2), "{ended}");
    assert!(number(&ended, "retry_after_ms") > 0, "{ended}");
    busy.until_waiting(0).await;
    assert!(!busy.release_request(&first).await, "nothing is left to be ended");
    let other = busy.wait(&second, 60_000, 1).await;
    let again = busy.wait(&first, 60_000, 2).await;
    assert!(!busy.serves_first(again, other).await);
}

/// Where it is acquired, where it is released, and the fields that say what.
fn primitives(name: &str) -> Vec<(String, String, Value)> {
    let of = |kind: &str, acquire: &str, release: &str, body| {
        (format!("/v1/{kind}/{acquire}"), format!("/v1/{kind}/{release}"), body)
    };
    let at = |call: &str| format!("{name}/{call}");
    vec![
        of("locks", &at("acquire"), &at("release"), json!({})),
        of("multilocks", "acquire", "release", json!({"names": [format!("{name}:1"), format!("{name}:2")]})),
        of("semaphores", &at("acquire"), &at("release"), json!({"limit": 4, "permits": 2})),
        of("elections", &at("campaign"), &at("resign"), json!({"candidate": "one"})),
    ]
}

fn with(body: &Value, field: &str, value: &str) -> Value {
    let mut body = body.clone();
    body[field] = value.into();
    body
}

/// What a release says beside whose lease it means.
fn names_of(body: &Value) -> Value {
    body.get("names").map_or_else(|| json!({}), |names| json!({ "names": names }))
}

#[tokio::test]
async fn a_release_by_request_id_gives_back_what_the_request_got_at_whatever_server() {
    let shared = Shared::nodes(3);
    for (acquire, release, body) in primitives(&unique("released")) {
        for api in [shared.api(), shared.other_api()] {
            let request = unique("request");
            let mine = with(&body, "request_id", &request);
            let lease = shared.api().post(&acquire, mine.clone()).await.ok();
            let end = with(&names_of(&body), "request_id", &request);
            let nobody = with(&names_of(&body), "request_id", &unique("request"));
            assert!(!released(&api.post(&release, nobody).await), "{release}: another one's");
            assert!(released(&api.post(&release, end.clone()).await), "{release}");
            assert!(!released(&api.post(&release, end.clone()).await), "{release}: once more");
            let by_lease = with(&names_of(&body), "lease_id", secret(&lease));
            assert!(!released(&api.post(&release, by_lease).await), "{release}: it is gone");
            let next = shared.api().post(&acquire, mine).await.ok();
            assert_ne!(secret(&next), secret(&lease), "a request id can be used again");
            assert!(released(&api.post(&release, end).await));
        }
    }
}

#[tokio::test]
async fn a_release_names_one_of_lease_and_request() {
    let api = Shared::nodes(3).api();
    let lease = "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000";
    for (_, release, body) in primitives(&unique("named")) {
        let base = names_of(&body);
        let both = with(&with(&base, "lease_id", lease), "request_id", "request:1");
        let bad = [
            (base.clone(), "lease_id"),
            (both, "lease_id"),
            (with(&base, "request_id", "short"), "request_id"),
            (with(&base, "lease_id", "short"), "lease_id"),
        ];
        for (body, field) in bad {
            let problem = api.post(&release, body.clone()).await.problem(400, "invalid_request");
            let fields: Vec<_> = problem["errors"].as_array().unwrap().iter().map(|e| &e["field"]).collect();
            assert_eq!(fields, [field], "{release} {body}");
        }
        let mut one = with(&base, "request_id", "request:1");
        one["lease_id"] = Value::Null;
        assert!(!released(&api.post(&release, one).await), "null means absent");
    }
}

#[tokio::test]
async fn an_acquire_is_ended_by_the_release_behind_it_at_whatever_moment() {
    let shared = Shared::nodes(3);
    let (api, observer) = (shared.api(), shared.other_api());
    let mut ended = 0;
    for moment in 0..100 {
        let (name, request) = (unique("moment"), unique("request"));
        let acquire = {
            let (api, name) = (api.clone(), name.clone());
            let body = json!({"wait_ms": 5000, "request_id": request});
            tokio::spawn(async move { api.acquire(&name, body).await })
        };
        tokio::time::sleep(Duration::from_micros(50 * moment)).await;
        let path = format!("/v1/locks/{name}/release");
        let was_there = released(&api.post(&path, json!({"request_id": request})).await);
        let answer = acquire.await.unwrap();
        if was_there {
            ended += 1;
            assert_eq!(observer.lock(&name).await["held"], false, "{moment}");
        } else {
            // The acquire came after the release, and is served.
            assert!(released(&api.post(&path, json!({"lease_id": secret(&answer.ok())})).await));
        }
    }
    assert!(ended > 0);
}

#[tokio::test]
async fn a_waiting_stream_ends_by_a_release_of_its_request() {
    let busy = Busy::new().await;
    let request = unique("request");
    let path = format!("/v1/locks/{}/hold", busy.name);
    let body = json!({"wait_ms": 60_000, "request_id": request});
    let mut stream = busy.api.stream("POST", &path, body).await.ok().unwrap();
    stream.expect("waiting").await;
    busy.until_waiting(1).await;
    assert!(busy.release_request(&request).await);
    assert_eq!(stream.expect("denied").await["code"], "lock_held");
    stream.end().await;
    busy.until_waiting(0).await;
}
