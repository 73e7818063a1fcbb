//! Traces over OTLP, off unless an endpoint is named: a span per request, and below it one per
//! vote that a node was asked for.
//!
//! A request's span is one of `tracing`, which `tracing-opentelemetry` hands on. It is entered while the request
//! is polled, which is how a vote finds its parent. Off, a request and a vote each cost a look at one static. On, a
//! span that the sampler does not take costs little more. Finished spans go into a bounded queue, from which a
//! thread of the SDK's sends them in batches; a full queue drops spans and never waits.
//!
//! Spans carry no lock's name and no secret, as logs and metrics do not.

use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span};
use tokio::runtime::Handle;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

/// How long the collector may take for a batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The target of the spans of requests.
const REQUESTS: &str = "quorate::requests";

/// By which spans are sent.
static RUNTIME: OnceLock<Handle> = OnceLock::new();

/// Set once, before the first request; empty while traces are off.
static TRACES: OnceLock<Traces> = OnceLock::new();

struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

/// The layer of the log's subscriber that takes the spans of requests, and sends them and those of votes to the
/// collector at `endpoint`, the URL of its traces. Of the requests that come without a decision of their caller's,
/// `ratio` are sampled. To be called once. Nothing is sent before [`send_by`].
pub fn layer<S>(endpoint: &str, ratio: f64) -> Result<impl Layer<S>, String>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span>,
{
    let mut http = reqwest::Client::builder().timeout(EXPORT_TIMEOUT).connect_timeout(EXPORT_TIMEOUT);
    if endpoint.starts_with("http://") {
        // In small containers there are no certificates, and none are needed.
        http = http.tls_certs_only([]);
    }
    let http = http.build().map_err(|cause| cause.to_string())?;
    let client = Client { http, failing: AtomicBool::new(false) };
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
    let layer = tracing_opentelemetry::layer()
        .with_tracer(tracer.clone())
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(filter_fn(|of| of.target() == REQUESTS));
    let traces = Traces { provider, tracer, propagator: TraceContextPropagator::new() };
    TRACES.set(traces).map_err(|_| "traces were started before".to_owned())?;
    Ok(layer)
}

/// Sends spans by `runtime` from now on.
pub fn send_by(runtime: Handle) {
    // Set once, by the server; the exporter waits for no other.
    let _ = RUNTIME.set(runtime);
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

/// The span of a request on `route`: disabled unless traces are on. Of its headers those of W3C trace context count.
/// While it is entered, votes that are asked for belong to the request.
pub fn request_span<B>(
    method: &'static str,
    route: &str,
    request_id: &str,
    request: &Request<B>,
) -> tracing::Span {
    let span = tracing::trace_span!(
        target: REQUESTS,
        "request",
        otel.name = format_args!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
        quorate.request_id = request_id,
        quorate.code = Empty,
        error.type = Empty,
    );
    if let Some(traces) = TRACES.get() {
        let headers = HeaderExtractor(request.headers());
        // A span that was not entered yet can be given a parent.
        let _ = span.set_parent(traces.propagator.extract_with_context(&Context::new(), &headers));
    }
    span
}

/// The request of `span` was answered; `code` is that of the problem, or empty.
pub fn answered(span: &tracing::Span, status: u16, code: &'static str) {
    span.record("http.response.status_code", i64::from(status));
    if !code.is_empty() {
        span.record("quorate.code", code);
    }
    if status >= 500 {
        span.record("error.type", code);
        span.record("otel.status_code", "ERROR");
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

/// Lends the exporter, which runs on a thread of its own, this program's HTTP client and runtime.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    failing: AtomicBool,
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
            let runtime = RUNTIME.get().ok_or("there is no runtime yet")?;
            let sending = runtime.spawn(async move {
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
