//! HTTP only: routes, what requests and answers look like, problems, keys, streams, the document.
//!
//! A handler takes typed extractors, makes one call to the service, and returns a typed answer; nothing here
//! decides what a lock means. axum and utoipa appear nowhere else (but where the server is started).
//!
//! - [`router`]: all routes and the layers around them, on one page
//! - `locks`, `multilocks`, `semaphores`, `elections`, `fencing`, `waiters`, `service`: a file per resource
//! - `leases`: acquire, extend, release and hold, once for all four primitives
//! - `lists`, `changes`: a page of names, long polls and streams of changes, forced releases, once for all
//! - `state`: what is served, and what handlers work with
//! - `request`, `fields`, `caller`: from a request to what it asks for, and who asks
//! - `views`, `stream`, `heartbeat`, `slots`, `peer`: what answers are made of
//! - `problem`: the table of everything that can go wrong
//! - `auth`, `observe`: the layers of our own
//! - `document`: OpenAPI
//! - `console`: the files of the web console

mod auth;
mod batches;
mod caller;
mod changes;
mod console;
mod document;
mod elections;
mod fencing;
mod fields;
mod heartbeat;
mod leases;
mod lists;
mod locks;
mod members;
mod multilocks;
mod observe;
mod peer;
mod problem;
mod request;
mod request_id;
mod router;
mod semaphores;
mod service;
mod slots;
mod state;
mod stream;
mod views;
mod waiters;

pub use self::members::member_list;
pub use self::peer::UserTimeout;
pub use self::router::{openapi_3_0_json, openapi_json, overloaded, router};
pub use self::state::{App, AppState, Limits, Shared, is_probe};

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::http::{Request, Response};
    use serde_json::{Value, json};
    use tower::ServiceExt as _;

    use std::sync::Arc;

    use super::*;
    use crate::access::{self, KeyRing};
    use crate::clock::{Clock, SystemClock};
    use crate::node::Node;
    use crate::node::embedded::EmbeddedNode;
    use crate::quorum::{Engine, EngineOptions};
    use crate::service::{Service, WaitLimits};

    /// The whole API over three embedded nodes.
    async fn api(keys: Option<KeyRing>) -> Router {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let node = |i| Arc::new(EmbeddedNode::new(&format!("node-{i}"), Arc::clone(&clock))) as Arc<dyn Node>;
        let engine = Engine::new((1..=3).map(node).collect(), Arc::clone(&clock), EngineOptions::default());
        engine.initialize().await.unwrap();
        engine.start();
        engine.until_available().await;
        let limits = WaitLimits { waiters_max: 100, waiters_per_name_max: 10 };
        router(App {
            service: Service::new(engine, limits),
            limits: Limits { streams_max: 1, ..Limits::default() },
            keys: keys.map(Arc::new),
            render_metrics: Arc::new(|| "quorate_build_info 1\n".to_owned()),
        })
    }

    async fn ask(api: &Router, method: &str, path: &str, body: Value, key: Option<&str>) -> Response<Body> {
        let mut request =
            Request::builder().method(method).uri(path).header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        api.clone().oneshot(request.body(body).unwrap()).await.unwrap()
    }

    async fn post(api: &Router, path: &str, body: Value) -> Response<Body> {
        ask(api, "POST", path, body, None).await
    }

    async fn json_of(response: Response<Body>) -> Value {
        serde_json::from_slice(&to_bytes(response.into_body(), 1 << 20).await.unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_lease_whose_answer_nobody_takes_is_undone() {
        let api = api(None).await;
        let answer = post(&api, "/v1/locks/a/acquire", json!({})).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(post(&api, "/v1/locks/a/acquire", json!({})).await.status(), 409);
        drop(answer);
        let again = post(&api, "/v1/locks/a/acquire", json!({"wait_ms": 5000})).await;
        assert_eq!(again.status(), 200);
    }

    #[tokio::test]
    async fn a_lease_whose_answer_is_taken_stays() {
        let api = api(None).await;
        let lease = json_of(post(&api, "/v1/locks/a/acquire", json!({"owner": "me"})).await).await;
        let refused = json_of(post(&api, "/v1/locks/a/acquire", json!({"wait_ms": 50})).await).await;
        assert_eq!(refused["code"], "lock_held");
        assert_eq!(refused["holder"]["owner"], "me");
        let lease_id = &lease["lease_id"];
        let extended = json_of(post(&api, "/v1/locks/a/extend", json!({"lease_id": lease_id})).await).await;
        assert_eq!(extended["fencing_token"], lease["fencing_token"]);
        let released = post(&api, "/v1/locks/a/release", json!({"lease_id": lease_id})).await;
        assert_eq!(json_of(released).await, json!({"released": true}));
    }

    #[tokio::test]
    async fn a_stream_beyond_the_limit_is_429_and_holds_nothing() {
        let api = api(None).await;
        let stream = post(&api, "/v1/locks/a/hold", json!({})).await;
        assert_eq!(stream.headers()["content-type"], "text/event-stream");
        let refused = post(&api, "/v1/locks/b/hold", json!({})).await;
        assert_eq!(refused.status(), 429);
        assert_eq!(json_of(refused).await["code"], "too_many_waiters");
        drop(stream);
        let both = json!({"names": ["a", "b"], "wait_ms": 5000});
        assert_eq!(post(&api, "/v1/multilocks/acquire", both).await.status(), 200);
    }

    #[tokio::test]
    async fn a_key_touches_only_its_names_wherever_they_stand() {
        let scopes = ["read", "lock", "admin"].map(str::to_owned);
        let (key, entry) = access::new_key("k", &scopes, &["mine:".to_owned()]).unwrap();
        let api = api(Some(KeyRing::parse(&entry).unwrap())).await;
        for (method, path, body, status) in [
            ("POST", "/v1/locks/mine:a/acquire", json!({}), 200),
            ("POST", "/v1/locks/mine%3Ab/acquire", json!({}), 200),
            ("POST", "/v1/locks/other/acquire", json!({}), 403),
            ("GET", "/v1/locks/other", Value::Null, 403),
            ("DELETE", "/v1/locks/other", Value::Null, 403),
            ("DELETE", "/v1/locks/mine:a", Value::Null, 200),
            ("POST", "/v1/multilocks/acquire", json!({"names": ["mine:c", "other"]}), 403),
            ("POST", "/v1/multilocks/acquire", json!({"names": ["mine:c", "mine:d"]}), 200),
            ("GET", "/v1/locks", Value::Null, 403),
            ("GET", "/v1/locks?prefix=min", Value::Null, 403),
            ("GET", "/v1/locks?prefix=mine:", Value::Null, 200),
            ("POST", "/v1/elections/other/hold", json!({"candidate": "c"}), 403),
            ("GET", "/v1/elections/other/observe", Value::Null, 403),
            ("GET", "/v1/nodes", Value::Null, 200),
        ] {
            let answer = ask(&api, method, path, body, Some(&key)).await;
            assert_eq!(answer.status(), status, "{method} {path}");
        }
    }

    #[tokio::test]
    async fn only_the_open_routes_answer_without_a_key() {
        let (_, entry) = access::new_key("k", &["read".to_owned()], &[]).unwrap();
        let api = api(Some(KeyRing::parse(&entry).unwrap())).await;
        let open = [
            "/livez",
            "/readyz",
            "/metrics",
            "/openapi.json",
            "/openapi-3.0.json",
            "/docs",
            "/docs/",
            "/console",
        ];
        for path in open {
            assert_eq!(ask(&api, "GET", path, Value::Null, None).await.status(), 200, "{path}");
        }
        let document: Value = serde_json::from_str(&openapi_json()).unwrap();
        for (path, item) in document["paths"].as_object().unwrap() {
            if open.contains(&path.as_str()) {
                continue;
            }
            for method in item.as_object().unwrap().keys() {
                let answer =
                    ask(&api, &method.to_uppercase(), &path.replace("{name}", "a"), Value::Null, None).await;
                assert_eq!(answer.status(), 401, "{method} {path}");
            }
        }
    }

    #[tokio::test]
    async fn every_answer_has_a_request_id_and_every_failure_is_a_problem() {
        let api = api(None).await;
        for (method, path, status) in [
            ("GET", "/livez", 200),
            ("GET", "/nothing", 404),
            ("GET", "/docs/nothing", 404),
            ("GET", "/console/nothing", 404),
            ("GET", "/console?key=x", 400),
            ("GET", "/", 307),
            ("GET", "/console/", 307),
            ("GET", "/v1/locks/", 404),
            ("GET", "/v1/locks/a/b", 404),
            ("PATCH", "/v1/locks/a", 405),
            ("GET", "/v1/locks/a%20b", 400),
            ("GET", "/v1/locks/a?x=1", 400),
            ("GET", "/livez?x=1", 400),
            ("POST", "/v1/fencing/a/issue", 200),
            ("POST", "/v1/fencing/a/check", 400),
        ] {
            let answer = ask(&api, method, path, Value::Null, None).await;
            assert_eq!(answer.status(), status, "{method} {path}");
            assert!(answer.headers().contains_key("x-request-id"), "{method} {path}");
            if status >= 400 {
                assert_eq!(answer.headers()["content-type"], problem::MEDIA_TYPE, "{method} {path}");
                let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
                assert_eq!(json_of(answer).await["request_id"], id, "{method} {path}");
            }
        }
    }

    #[tokio::test]
    async fn the_served_documents_are_the_printed_ones() {
        let api = api(None).await;
        for (path, printed) in [("/openapi.json", openapi_json()), ("/openapi-3.0.json", openapi_3_0_json())]
        {
            let answer = ask(&api, "GET", path, Value::Null, None).await;
            assert_eq!(to_bytes(answer.into_body(), 1 << 20).await.unwrap(), printed);
        }
    }
}
