//! HTTP only: the route table, what requests and answers look like, problems, keys, streams, the document.
//!
//! A handler parses, makes one call to the service, and maps the answer; nothing here decides what
//! a lock means. axum and utoipa appear nowhere else (but where the server is started).
//!
//! - `table`: all routes on one page, below
//! - `locks`, `multilocks`, `semaphores`, `elections`, `fencing`, `service`: a file per resource
//! - `leases`: acquire, extend, release and hold, once for all four primitives
//! - `extract`, `fields`: from a request to what it asks for
//! - `views`, `delivery`, `streams`: from what the service says to an answer
//! - `problem`: the only place that knows status codes
//! - `routes`: from a path and a method to a handler
//! - `front`: request id, key, metrics and log line around every route
//! - [`refusals`]: problems at the connection, before there is a route
//! - [`auth`]: keys, scopes, prefixes
//! - `openapi`: the document

pub mod auth;
mod console;
mod delivery;
mod elections;
mod extract;
mod fencing;
mod fields;
mod front;
mod leases;
mod locks;
mod multilocks;
mod openapi;
mod problem;
mod problem_docs;
pub mod refusals;
mod routes;
mod semaphores;
mod service;
mod streams;
mod views;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{Method, Uri};
use axum::routing::MethodRouter;
use utoipa::IntoParams;
use utoipa::openapi::path::PathItem;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use self::auth::KeyRing;
use self::front::Route;
use self::routes::{Endpoint, Routes, endpoint, streaming};
use self::streams::Streams;
use crate::service::{Primitive, Service};

pub use self::front::{Answering, Belated};
pub use self::openapi::{openapi_3_0_json, openapi_json};

/// All routes.
fn table(keys: Option<&Arc<KeyRing>>) -> Table<'_> {
    use Primitive::{Election, Lock, Multilock, Semaphore};
    let mut t = Table::new(keys);
    t.acquires(Lock, handlers!(locks::acquire_lock));
    t.keyed(handlers!(locks::extend_lock));
    t.keyed(handlers!(locks::release_lock));
    t.keyed(handlers!(locks::get_lock, locks::force_release_lock));
    t.keyed(handlers!(locks::list_locks));
    t.acquires(Lock, handlers!(streaming: locks::hold_lock));
    t.acquires(Multilock, handlers!(multilocks::acquire_multilock));
    t.keyed(handlers!(multilocks::extend_multilock));
    t.keyed(handlers!(multilocks::release_multilock));
    t.acquires(Semaphore, handlers!(semaphores::acquire_semaphore));
    t.keyed(handlers!(semaphores::extend_semaphore));
    t.keyed(handlers!(semaphores::release_semaphore));
    t.keyed(handlers!(semaphores::get_semaphore));
    t.acquires(Semaphore, handlers!(streaming: semaphores::hold_semaphore));
    t.acquires(Election, handlers!(elections::campaign));
    t.keyed(handlers!(elections::extend_election));
    t.keyed(handlers!(elections::resign));
    t.keyed(handlers!(elections::proclaim));
    t.keyed(handlers!(elections::get_leader));
    t.keyed(handlers!(elections::observe_election));
    t.acquires(Election, handlers!(streaming: elections::hold_election));
    t.keyed(handlers!(fencing::issue_token));
    t.keyed(handlers!(fencing::check_token));
    t.keyed(handlers!(fencing::get_fence));
    t.keyed(handlers!(service::list_nodes));
    t.open(handlers!(service::get_livez));
    t.open(handlers!(service::get_readyz));
    t.open(handlers!(service::get_metrics));
    t.open(handlers!(service::get_openapi));
    t.open(handlers!(service::get_openapi_3_0));
    t.hidden("/", endpoint(|_: State<Shared>, _: Uri| console::get_root()));
    t.hidden("/console", endpoint(|_: State<Shared>, _: Uri| console::get_console()));
    t.hidden("/console/{*file}", endpoint(|_: State<Shared>, uri| console::get_console_file(uri)));
    for path in ["/docs", "/docs/", "/docs/{*file}"] {
        t.hidden(path, endpoint(|_: State<Shared>, uri| service::get_docs(uri)));
    }
    t
}

/// What [`router`] serves.
pub struct App {
    /// What a request means.
    pub service: Service,
    /// What a request may ask for.
    pub limits: Limits,
    /// The keys that are asked for; `None`: none, everyone may do everything.
    pub keys: Option<Arc<KeyRing>>,
    /// Writes the metrics in Prometheus' text format.
    pub render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// What a request may ask for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest ttl, in milliseconds.
    pub max_ttl_ms: u64,
    /// The longest wait, in milliseconds.
    pub max_wait_ms: u64,
    /// The longest body, in bytes.
    pub body_bytes_max: usize,
    /// The most event streams at a time.
    pub streams_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_ttl_ms: 300_000, max_wait_ms: 60_000, body_bytes_max: 64 * 1024, streams_max: 20_000 }
    }
}

/// The API.
pub fn router(app: Arc<App>) -> Router {
    let server = Server {
        service: app.service.clone(),
        limits: app.limits,
        keyed: app.keys.is_some(),
        render_metrics: Arc::clone(&app.render_metrics),
        streams: Streams::new(app.limits.streams_max),
    };
    let routes = table(app.keys.as_ref()).routes;
    Router(Arc::new((routes, Arc::new(server))))
}

/// Answers requests.
#[derive(Clone)]
pub struct Router(Arc<(Routes<Shared>, Shared)>);

impl Router {
    /// The answer to any request; to drop it is to leave, as a client does.
    pub fn answer(&self, request: Request) -> Answering {
        let (routes, server) = &*self.0;
        routes.answer(request, server)
    }
}

/// What handlers work with.
struct Server {
    service: Service,
    limits: Limits,
    /// Whether callers are asked for keys: what an open route shows, everybody may see.
    keyed: bool,
    render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
    streams: Arc<Streams>,
}

impl Server {
    /// Milliseconds since the epoch, for display only.
    fn wall_ms(&self) -> u64 {
        self.service.wall_ms()
    }
}

type Shared = Arc<Server>;

/// The document and the routes, as they are put together.
struct Table<'a> {
    keys: Option<&'a Arc<KeyRing>>,
    document: OpenApiRouter<Shared>,
    routes: Routes<Shared>,
}

/// What one path has: its document, and its handlers, by method.
type Documented = (UtoipaMethodRouter<Shared>, Vec<(Method, Endpoint<Shared>)>);

/// Handlers of one path.
macro_rules! handlers {
    (streaming: $handler:path) => {
        (routes!($handler), vec![(method_of(&routes!($handler)), streaming(endpoint($handler)))])
    };
    ($($handler:path),+) => {
        (routes!($($handler),+), vec![$((method_of(&routes!($handler)), endpoint($handler))),+])
    };
}
use handlers;

/// Of a document of one handler.
fn method_of((_, paths, _): &UtoipaMethodRouter<Shared>) -> Method {
    match paths.paths.values().next() {
        Some(PathItem { get: Some(_), .. }) => Method::GET,
        Some(PathItem { put: Some(_), .. }) => Method::PUT,
        Some(PathItem { delete: Some(_), .. }) => Method::DELETE,
        Some(PathItem { patch: Some(_), .. }) => Method::PATCH,
        _ => Method::POST,
    }
}

impl<'a> Table<'a> {
    fn new(keys: Option<&'a Arc<KeyRing>>) -> Self {
        Self { keys, document: OpenApiRouter::with_openapi(openapi::base()), routes: Routes::new() }
    }

    /// Asks for a key with the scope of the method.
    fn keyed(&mut self, path: Documented) {
        self.add(path, self.keys, None);
    }

    /// The same for a route that acquires, which is counted.
    fn acquires(&mut self, primitive: Primitive, path: Documented) {
        self.add(path, self.keys, Some(primitive));
    }

    /// Asks for no key.
    fn open(&mut self, path: Documented) {
        self.add(path, None, None);
    }

    /// Asks for no key and is not in the document.
    fn hidden(&mut self, path: &str, get: Endpoint<Shared>) {
        self.routes.add(Route::new(path, None, None), vec![(Method::GET, get)]);
    }

    fn add(
        &mut self,
        ((schemas, paths, _), methods): Documented,
        keys: Option<&Arc<KeyRing>>,
        acquires: Option<Primitive>,
    ) {
        let template = paths.paths.keys().next().map_or("", String::as_str);
        self.routes.add(Route::new(template, keys.cloned(), acquires), methods);
        // axum's router is not served, only the document is taken from it.
        let document = std::mem::take(&mut self.document);
        self.document = document.routes((schemas, paths, MethodRouter::new()));
    }
}

/// The name in the path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code)] // For the document; `extract::Call` reads it.
struct NamePath {
    /// 1 to 200 characters of `A–Z a–z 0–9 . _ ~ : @ -`, but not `.` or `..`. Hierarchy by `:`.
    #[param(
        min_length = 1,
        max_length = 200,
        pattern = r"^(\.{0,2}[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*|\.{3}[A-Za-z0-9._~:@-]*)$",
        example = "orders:42"
    )]
    name: String,
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::{Request, Response};
    use serde_json::{Value, json};

    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::node::Node;
    use crate::node::embedded::EmbeddedNode;
    use crate::quorum::{Engine, EngineOptions};
    use crate::service::WaitLimits;

    /// The whole API over three embedded nodes.
    async fn api(keys: Option<KeyRing>) -> Router {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let node = |i| Arc::new(EmbeddedNode::new(&format!("node-{i}"), Arc::clone(&clock))) as Arc<dyn Node>;
        let engine = Engine::new((1..=3).map(node).collect(), Arc::clone(&clock), EngineOptions::default());
        engine.initialize().await.unwrap();
        engine.start();
        engine.until_available().await;
        let limits = WaitLimits { waiters_max: 100, waiters_per_name_max: 10 };
        router(Arc::new(App {
            service: Service::new(engine, limits),
            limits: Limits { streams_max: 1, ..Limits::default() },
            keys: keys.map(Arc::new),
            render_metrics: Arc::new(|| "quorate_build_info 1\n".to_owned()),
        }))
    }

    async fn ask(api: &Router, method: &str, path: &str, body: Value, key: Option<&str>) -> Response<Body> {
        let mut request =
            Request::builder().method(method).uri(path).header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        api.answer(request.body(body).unwrap()).await
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
        let (key, entry) = auth::new_key("k", &scopes, &["mine:".to_owned()]).unwrap();
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
        let (_, entry) = auth::new_key("k", &["read".to_owned()], &[]).unwrap();
        let api = api(Some(KeyRing::parse(&entry).unwrap())).await;
        let open = ["/livez", "/readyz", "/metrics", "/openapi.json", "/openapi-3.0.json", "/docs", "/docs/"];
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
            if status != 200 {
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
