//! Traces as a collector receives them: a span per request, and below it one per vote.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message as _;
use serde_json::json;

use crate::support::{Cluster, Server, eventually, unique};

/// A collector that keeps all spans, with who sent them.
struct Collector {
    address: SocketAddr,
    received: Arc<Mutex<Vec<ResourceSpans>>>,
}

impl Collector {
    async fn start() -> Self {
        let received: Arc<Mutex<Vec<ResourceSpans>>> = Arc::default();
        let kept = Arc::clone(&received);
        let take = async move |body: Bytes| {
            let request = ExportTraceServiceRequest::decode(body).expect("OTLP");
            kept.lock().unwrap().extend(request.resource_spans);
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, received }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn spans(&self) -> Vec<Span> {
        let received = self.received.lock().unwrap().clone();
        let scopes = received.into_iter().flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// What the last sender says of itself under `key`.
    fn sender(&self, key: &str) -> String {
        let received = self.received.lock().unwrap();
        let sender = received.last().and_then(|spans| spans.resource.as_ref()).expect("spans of somebody");
        value(&sender.attributes, key)
    }
}

/// What a span says of itself under `key`.
fn said(span: &Span, key: &str) -> String {
    value(&span.attributes, key)
}

fn value(attributes: &[KeyValue], key: &str) -> String {
    let value = attributes.iter().find(|attribute| attribute.key == key);
    match value.and_then(|attribute| attribute.value.clone()).and_then(|value| value.value) {
        Some(AnyValue::StringValue(text)) => text,
        Some(AnyValue::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

#[tokio::test]
async fn a_request_is_a_span_of_its_callers_trace_with_a_span_below_it_for_each_vote() {
    let collector = Collector::start().await;
    let mut cluster = Cluster::new(3);
    let mut server = cluster.server(&["--otlp-endpoint", &collector.url()]).await;
    server.all_voting().await;
    let api = server.api();
    let call = async |decision: &str, path: String| {
        let parent = format!("00-{TRACE}-{CALLER}-{decision}");
        let headers = [
            ("traceparent", parent.as_str()),
            ("x-request-id", "mine"),
            ("content-type", "application/json"),
        ];
        api.send("POST", &path, &headers, b"{}").await.ok();
    };
    let name = unique("traced");
    // The first lease of its length also asks for the right to grant such.
    call("00", format!("/v1/locks/{}/acquire", unique("untraced"))).await;
    call("01", format!("/v1/locks/{name}/acquire")).await;
    // The node beyond the quorum is asked last.
    eventually("all nodes have it", || async { cluster.leases(&name).len() == 3 }).await;
    cluster.nodes[1].kill();
    eventually("the death is seen", || async {
        api.get("/v1/nodes").await.ok()["nodes"][1]["state"] == "down"
    })
    .await;
    call("01", format!("/v1/fencing/{name}/issue")).await;
    // What is not sent yet is sent at the end.
    server.terminate();
    assert_eq!(server.ended().await.code(), Some(0));

    let spans = collector.spans();
    let trace: Vec<_> = spans.iter().filter(|span| hex::encode(&span.trace_id) == TRACE).collect();
    let of = |route: &str| {
        let mut found = trace.iter().filter(|span| said(span, "http.route") == route);
        let request = found.next().unwrap_or_else(|| panic!("no span of {route} in {trace:?}"));
        assert!(found.next().is_none(), "{route}: the caller that decides against it is heard");
        assert_eq!(hex::encode(&request.parent_span_id), CALLER);
        assert_eq!(request.name, format!("POST {route}"));
        assert_eq!(said(request, "http.response.status_code"), "200");
        assert_eq!(said(request, "quorate.request_id"), "mine");
        let votes = trace.iter().filter(|span| span.parent_span_id == request.span_id);
        let mut votes: Vec<_> = votes
            .map(|vote| ["quorate.node", "quorate.op", "quorate.outcome"].map(|key| said(vote, key)))
            .collect();
        votes.sort();
        votes
    };
    // The copy beyond the quorum comes later and is nothing that the request waits for.
    let votes = of("/v1/locks/{name}/acquire");
    assert!((2..=3).contains(&votes.len()), "{votes:?}");
    assert!(votes.iter().all(|vote| vote[1..] == ["acquire", "done"]), "{votes:?}");
    assert_eq!(
        of("/v1/fencing/{name}/issue"),
        [["n1", "issue", "done"], ["n2", "issue", "down"], ["n3", "issue", "done"]]
    );
    assert!(!format!("{spans:?}").contains(&name), "no span has a name in it");
    // Nobody decided for the others, so that each is its own trace.
    let nodes = spans.iter().find(|span| said(span, "http.route") == "/v1/nodes").expect("traced too");
    assert!(nodes.parent_span_id.is_empty() && hex::encode(&nodes.trace_id) != TRACE);
}

#[tokio::test]
async fn only_the_share_that_was_asked_for_is_traced_unless_the_caller_decides() {
    let collector = Collector::start().await;
    let cluster = Cluster::new(1);
    let more = ["--otlp-endpoint", &collector.url(), "--otlp-sample-ratio", "0"];
    let mut server = cluster.server(&more).await;
    let api = server.api();
    for _ in 0..50 {
        api.acquire(&unique("share"), json!({})).await.ok();
    }
    let parent = format!("00-{TRACE}-{CALLER}-01");
    api.send("GET", "/livez", &[("traceparent", &parent)], b"").await.ok();
    server.terminate();
    assert_eq!(server.ended().await.code(), Some(0));
    let spans = collector.spans();
    assert_eq!(spans.len(), 1, "{spans:?}");
    assert_eq!(said(&spans[0], "http.route"), "/livez");
}

#[tokio::test]
async fn what_the_environment_says_of_the_service_comes_before_what_the_server_says() {
    const NAME: &str = "OTEL_SERVICE_NAME";
    const ATTRIBUTES: (&str, &str) =
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=theirs,service.version=7,team=locks");
    let cluster = Cluster::new(1);
    let ours = env!("CARGO_PKG_VERSION");
    for (environment, expected) in [
        (&[][..], ["quorate", ours]),
        (&[(NAME, "")], ["quorate", ours]),
        (&[ATTRIBUTES], ["theirs", "7"]),
        (&[(NAME, ""), ATTRIBUTES], ["theirs", "7"]),
        (&[(NAME, "mine"), ATTRIBUTES], ["mine", "7"]),
    ] {
        let collector = Collector::start().await;
        let mut options = cluster.options().with(&["--otlp-endpoint", &collector.url()]);
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        options.environment.extend(environment);
        let mut server = Server::start(&options);
        server.api().get("/livez").await.ok();
        server.terminate();
        assert_eq!(server.ended().await.code(), Some(0));
        let told = ["service.name", "service.version"].map(|key| collector.sender(key));
        assert_eq!(told, expected, "{:?}", options.environment);
    }
}

#[tokio::test]
async fn a_collector_that_is_not_there_costs_a_line_in_the_log_and_nothing_else() {
    let cluster = Cluster::new(1);
    let more = ["--otlp-endpoint", "http://127.0.0.1:1", "--shutdown-timeout", "3s"];
    let mut server = cluster.server(&more).await;
    let api = server.api();
    for _ in 0..3_000 {
        api.get("/livez").await.ok();
    }
    eventually("it is told", || async { server.log().contains("traces cannot be sent") }).await;
    let told = Instant::now();
    server.terminate();
    assert_eq!(server.ended().await.code(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(4), "{:?}", told.elapsed());
    assert_eq!(server.log().matches("traces cannot be sent").count(), 1, "{}", server.log());
}
