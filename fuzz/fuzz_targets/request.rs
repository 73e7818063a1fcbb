//! Names, query strings and bodies, through the routes that are served, over a node in this process.
#![no_main]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use libfuzzer_sys::fuzz_target;
use quorate::api::{App, Limits, router};
use quorate::clock::{Clock, SystemClock};
use quorate::node::Node;
use quorate::node::embedded::EmbeddedNode;
use quorate::quorum::{Engine, EngineOptions};
use quorate::service::{Service, WaitLimits};
use tokio::runtime::Runtime;
use tower::ServiceExt;

const ROUTES: [(&str, &str); 28] = [
    ("POST", "/v1/locks/{}/acquire"),
    ("POST", "/v1/locks/{}/extend"),
    ("POST", "/v1/locks/{}/release"),
    ("POST", "/v1/locks/{}/hold"),
    ("GET", "/v1/locks/{}"),
    ("DELETE", "/v1/locks/{}"),
    ("GET", "/v1/locks"),
    ("POST", "/v1/multilocks/acquire"),
    ("POST", "/v1/multilocks/extend"),
    ("POST", "/v1/multilocks/release"),
    ("POST", "/v1/semaphores/{}/acquire"),
    ("POST", "/v1/semaphores/{}/extend"),
    ("POST", "/v1/semaphores/{}/release"),
    ("GET", "/v1/semaphores/{}"),
    ("POST", "/v1/elections/{}/campaign"),
    ("POST", "/v1/elections/{}/extend"),
    ("POST", "/v1/elections/{}/proclaim"),
    ("POST", "/v1/elections/{}/resign"),
    ("GET", "/v1/elections/{}"),
    ("GET", "/v1/elections/{}/observe"),
    ("POST", "/v1/fencing/{}/issue"),
    ("POST", "/v1/fencing/{}/check"),
    ("GET", "/v1/fencing/{}"),
    ("GET", "/v1/nodes"),
    ("GET", "/v1/members"),
    ("POST", "/v1/members"),
    ("POST", "/v1/members/{}/close"),
    ("POST", "/v1/leases/extend"),
];

static SERVED: LazyLock<(Runtime, Router)> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let router = runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let node: Arc<dyn Node> = Arc::new(EmbeddedNode::new("run-1", Arc::clone(&clock)));
        let engine = Engine::new(vec![node], clock, EngineOptions::default());
        engine.initialize().await.unwrap();
        engine.start();
        let service = Service::new(engine, WaitLimits { waiters_max: 1000, waiters_per_name_max: 1000 });
        let limits = Limits { max_wait_ms: 1, ..Limits::default() };
        router(App { service, limits, keys: None, render_metrics: Arc::new(String::new) })
    });
    (runtime, router)
});

// Which route, then name, query and body, with a zero byte between them.
fuzz_target!(|data: &[u8]| {
    let Some((&which, rest)) = data.split_first() else { return };
    let (method, path) = ROUTES[usize::from(which) % ROUTES.len()];
    let mut parts = rest.splitn(3, |byte| *byte == 0);
    let (name, query) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let body = parts.next().unwrap_or_default().to_vec();
    let (name, query) = (String::from_utf8_lossy(name), String::from_utf8_lossy(query));
    let mut target = path.replace("{}", &name);
    if !query.is_empty() {
        target = format!("{target}?{query}");
    }
    let request = Request::builder().method(method).uri(target).header("content-type", "application/json");
    // What hyper refuses before.
    let Ok(request) = request.body(Body::from(body)) else { return };
    let (runtime, router) = &*SERVED;
    let answer = runtime.block_on(async {
        let answer = router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        // Streams have no end.
        let body = to_bytes(answer.into_body(), 1 << 20);
        let _ = tokio::time::timeout(Duration::from_millis(5), body).await;
        status
    });
    assert_ne!(answer.as_u16(), 500);
});
