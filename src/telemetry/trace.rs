//! Traces over OTLP, off unless an endpoint is named: a span per request, and below it one per
//! vote that a node was asked for.
//!
//! Off, a request and a vote each cost a look at one static. On, a span that the sampler does
//! not take costs little more. Finished spans go into a bounded queue, from which a thread of the
//! SDK's sends them in batches; a full queue drops spans and never waits. The request's
//! span is the current one while the request is polled, which is how a vote finds its parent.
//!
//! Spans carry no lock's name and no secret, as logs and metrics do not.

use std::fmt;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{
    Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, ContextGuard, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span};
use tokio::runtime::Handle;

/// How long the collector may take for a batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Set once, before the first request; empty while traces are off.
static TRACES: OnceLock<Traces> = OnceLock::new();

struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

/// Begins to send spans to the collector at `endpoint`, the URL of its traces. Of the requests
/// that come without a decision of their caller's, `ratio` are sampled. To be called within the
/// runtime, once.
///
/// # Errors
/// When the endpoint cannot be used; says why.
pub fn start(endpoint: &str, ratio: f64) -> Result<(), String> {
    let mut http = reqwest::Client::builder().timeout(EXPORT_TIMEOUT).connect_timeout(EXPORT_TIMEOUT);
    if endpoint.starts_with("http://") {
        // In small containers there are no certificates, and none are needed.
        http = http.tls_certs_only([]);
    }
    let http = http.build().map_err(|cause| cause.to_string())?;
    let client = Client { http, runtime: Handle::current(), failing: AtomicBool::new(false) };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(endpoint)
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .map_err(|cause| cause.to_string())?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))))
        .with_resource(resource())
        .build();
    let tracer = provider.tracer("quorate");
    let traces = Traces { provider, tracer, propagator: TraceContextPropagator::new() };
    TRACES.set(traces).map_err(|_| "traces were started before".to_owned())
}

/// Who sends the spans: as the environment says, else as we do. The SDK's own order would give an unnamed
/// service a name before we do.
fn resource() -> Resource {
    let ours = [("service.name", "quorate"), ("service.version", env!("CARGO_PKG_VERSION"))];
    let resource = Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attributes(ours.map(|(key, value)| KeyValue::new(key, value)))
        .with_detector(Box::new(EnvResourceDetector::new()));
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name).build(),
        _ => resource.build(),
    }
}

/// Sends what has not been sent, for at most `patience`.
pub async fn finish(patience: Duration) {
    let Some(traces) = TRACES.get() else { return };
    let provider = traces.provider.clone();
    // It blocks, while the export itself runs on this runtime.
    let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(patience));
    if let Ok(Ok(Err(cause))) = tokio::time::timeout(patience, flushed).await {
        tracing::debug!(%cause, "not all traces were sent");
    }
}

/// The span of a request.
pub struct RequestSpan(Context);

impl RequestSpan {
    /// One for a request on `route`, if traces are on and this one is sampled. `header` reads
    /// the request's headers, of which those of W3C trace context count.
    pub fn begin<'a>(
        method: &'static str,
        route: &str,
        request_id: &str,
        header: &'a dyn Fn(&str) -> Option<&'a str>,
    ) -> Option<Box<Self>> {
        let traces = TRACES.get()?;
        let caller = traces.propagator.extract_with_context(&Context::new(), &Headers(header));
        let span = traces
            .tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", method),
                KeyValue::new("http.route", route.to_owned()),
                KeyValue::new("quorate.request_id", request_id.to_owned()),
            ])
            .start_with_context(&traces.tracer, &caller);
        span.span_context().is_sampled().then(|| Box::new(Self(Context::new().with_span(span))))
    }

    /// Until the guard is dropped, votes that are asked for belong to this request.
    pub fn enter(&self) -> ContextGuard {
        self.0.clone().attach()
    }

    /// The request was answered; `code` is that of the problem, or empty.
    pub fn end(&self, status: u16, code: &'static str) {
        let span = self.0.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if !code.is_empty() {
            span.set_attribute(KeyValue::new("quorate.code", code));
        }
        if status >= 500 {
            span.set_attribute(KeyValue::new("error.type", code));
            span.set_status(Status::error(code));
        }
        span.end();
    }
}

/// The span of one vote.
pub struct VoteSpan(Span);

impl VoteSpan {
    /// One for a call to `node`, if it is made for a request that has a span.
    pub fn begin(node: &str, op: &'static str) -> Option<Box<Self>> {
        let traces = TRACES.get()?;
        Context::map_current(|request| {
            request.has_active_span().then(|| {
                let span = traces
                    .tracer
                    .span_builder(format!("vote {}", op))
                    .with_kind(SpanKind::Client)
                    .with_attributes([
                        KeyValue::new("db.system.name", "redis"),
                        KeyValue::new("quorate.node", node.to_owned()),
                        KeyValue::new("quorate.op", op),
                    ])
                    .start_with_context(&traces.tracer, request);
                Box::new(Self(span))
            })
        })
    }

    /// The node answered or did not, in the words of `quorate_node_requests_total`.
    pub fn end(mut self: Box<Self>, outcome: &'static str, answered: bool) {
        self.0.set_attribute(KeyValue::new("quorate.outcome", outcome));
        if !answered {
            self.0.set_attribute(KeyValue::new("error.type", outcome));
            self.0.set_status(Status::error(outcome));
        }
        self.0.end();
    }
}

struct Headers<'a>(&'a dyn Fn(&str) -> Option<&'a str>);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (self.0)(key)
    }

    fn keys(&self) -> Vec<&str> {
        Vec::new()
    }
}

/// Lends the exporter, which runs on a thread of its own, this program's HTTP client and runtime.
struct Client {
    http: reqwest::Client,
    runtime: Handle,
    failing: AtomicBool,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    /// Says when sending begins to fail and when it works again, not each time.
    fn note(&self, sent: Result<reqwest::StatusCode, &reqwest::Error>) {
        let why = match sent {
            Ok(status) if status.is_success() => None,
            Ok(status) => Some(format!("the collector answered {status}")),
            // Without the URL, which may hold a secret.
            Err(cause) => Some(std::error::Error::source(cause).unwrap_or(cause).to_string()),
        };
        let before = self.failing.swap(why.is_some(), Ordering::Relaxed);
        match why {
            Some(why) if !before => tracing::warn!(%why, "traces cannot be sent and are dropped"),
            None if before => tracing::info!("traces are sent again"),
            _ => {}
        }
    }
}

impl HttpClient for Client {
    // What `async_trait` makes of the trait's method.
    fn send_bytes<'s, 'f>(
        &'s self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let request = reqwest::Request::try_from(request)?;
            let http = self.http.clone();
            let sending = self.runtime.spawn(async move {
                let response = http.execute(request).await?;
                let (status, headers) = (response.status(), response.headers().clone());
                response.bytes().await.map(|body| (status, headers, body))
            });
            let sent = sending.await?;
            self.note(sent.as_ref().map(|(status, ..)| *status));
            let (status, headers, body) = sent.map_err(reqwest::Error::without_url)?;
            let mut response = Response::new(body);
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            Ok(response)
        })
    }
}
