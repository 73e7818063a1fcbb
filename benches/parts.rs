//! The pure parts of a request, each alone, and a whole acquire and release without sockets.
//!
//! `cargo bench --bench parts`; a word after `--` chooses those that have it in their name.
#![allow(missing_docs, reason = "criterion's macros make public functions without any")]

use std::hint::black_box;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use criterion::{Criterion, criterion_group, criterion_main};
use quorate::api::{App, Limits, router};
use quorate::clock::{Clock, SystemClock};
use quorate::domain::{Ask, Keys, LeaseId, Mode, Name, Scope, validity_ms};
use quorate::node::Node;
use quorate::node::calls;
use quorate::node::embedded::EmbeddedNode;
use quorate::quorum::tally::{Count, token_of};
use quorate::quorum::{Engine, EngineOptions};
use quorate::service::{Service, WaitLimits};
use tower::ServiceExt as _;

fn pure(c: &mut Criterion) {
    c.bench_function("tally of five votes, the verdict after each", |b| {
        b.iter(|| {
            let mut count = Count::new(5);
            for vote in black_box([true, false, true, true, true]) {
                if vote {
                    count.yes += 1
                } else {
                    count.no += 1
                }
                black_box(count.verdict());
            }
        });
    });
    c.bench_function("token of five fences", |b| b.iter(|| token_of(black_box(&[7, 9, 9, 9, 8]), 5)));
    c.bench_function("validity", |b| b.iter(|| validity_ms(black_box(30_000), black_box(12))));

    let keys = Keys::new("quorate");
    let name = Name::new("orders:42").expect("a name");
    let scope = Scope::Records([Arc::from(keys.lock(&name))].into_iter().collect());
    let ask = Ask {
        scope: &scope,
        slots: &[],
        ttl_ms: 30_000,
        mode: Mode::Exclusive,
        max_hold_ms: 0,
        lock_delay_ms: 0,
        request: None,
        params: "-",
        data: "{\"at\":1790000000000}",
        look_only: false,
        limit: 0,
        standing: None,
    };
    let lease = LeaseId::from_bits(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
    c.bench_function("encoding of an acquire for all nodes", |b| {
        b.iter(|| calls::acquire(black_box(&ask), &lease, 1_790_000_000_000_000));
    });
}

/// The API over three embedded nodes.
async fn api() -> Router {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let nodes = (1..=3)
        .map(|i| Arc::new(EmbeddedNode::new(&format!("run-{i}"), Arc::clone(&clock))) as Arc<dyn Node>)
        .collect();
    let engine = Engine::new(nodes, clock, EngineOptions::default());
    engine.initialize().await.expect("new nodes can be marked");
    engine.ready_at_start().await.expect("nodes that can be used");
    let limits = WaitLimits { waiters_max: 100, waiters_per_name_max: 100 };
    router(App {
        service: Service::new(engine, limits),
        limits: Limits::default(),
        keys: None,
        render_metrics: Arc::new(String::new),
    })
}

async fn post(api: &Router, path: &str, body: String) -> Vec<u8> {
    let request = Request::post(path).header("content-type", "application/json").body(Body::from(body));
    let Ok(response) = api.clone().oneshot(request.expect("a request")).await;
    assert_eq!(response.status(), 200);
    axum::body::to_bytes(response.into_body(), 1 << 16).await.expect("a body").to_vec()
}

fn whole(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let api = runtime.block_on(api());
    c.bench_function("acquire and release through the API, three embedded nodes, no sockets", |b| {
        b.iter(|| {
            runtime.block_on(async {
                let lease = post(&api, "/v1/locks/bench/acquire", "{\"ttl_ms\":10000}".to_owned()).await;
                let text = String::from_utf8_lossy(&lease);
                let id =
                    text.split("\"lease_id\":\"").nth(1).and_then(|text| text.get(..46)).expect("a lease");
                post(&api, "/v1/locks/bench/release", format!("{{\"lease_id\":\"{id}\"}}")).await
            })
        });
    });
}

criterion_group!(benches, pure, whole);
criterion_main!(benches);
