//! The metrics layer: around every request it counts, times, logs, and writes problems out.
//!
//! Problems get their request id here, and a panic or a refusal of the layers inside becomes one, so that
//! whatever is counted is what the client was told.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use metrics::{Counter, Histogram};
use parking_lot::RwLock;
use tokio::time::Instant;
use tower::layer::layer_fn;
use tower::{Layer, Service, service_fn};
use tower_http::request_id::RequestId;
use tracing::Span;

use super::problem::{Kind, Problem};
use crate::service::Primitive;
use crate::telemetry::seldom::Seldom;
use crate::telemetry::{self, Acquisition, trace};

/// Metrics' status of a request whose client left before the answer, as nginx counts it.
const CLIENT_LEFT: u16 = 499;

/// The label of a method; a client may invent others.
fn label(method: &Method) -> &'static str {
    const KNOWN: [&str; 8] = ["GET", "POST", "DELETE", "HEAD", "PUT", "PATCH", "OPTIONS", "TRACE"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("OTHER")
}

/// Requests, and how long they took.
type Meter = (Counter, Histogram);

/// What is known of a route.
struct Route {
    /// The path with `{name}` in it, never a name itself.
    template: String,
    /// What the route acquires, if it does.
    acquires: Option<Primitive>,
    /// By method and status; made when first needed, and there are no more than the API has of either.
    meters: RwLock<HashMap<(&'static str, u16), Meter>>,
    /// Lines of requests for which there was no room.
    no_room: Seldom,
    /// Lines of requests that found no quorum.
    no_quorum: Seldom,
}

impl Route {
    fn new(template: &str) -> Self {
        let (template, now) = (template.to_owned(), Instant::now());
        let (no_room, no_quorum) = (Seldom::new(now), Seldom::new(now));
        Self { acquires: acquires(&template), template, meters: RwLock::default(), no_room, no_quorum }
    }

    fn count(&self, method: &'static str, status: u16, took: Duration) {
        let count = |(requests, seconds): &Meter| {
            requests.increment(1);
            seconds.record(took);
        };
        if let Some(meter) = self.meters.read().get(&(method, status)) {
            return count(meter);
        }
        let requests = telemetry::HTTP_REQUESTS.counter(&[method, &self.template, &status.to_string()]);
        let seconds = telemetry::HTTP_SECONDS.histogram(&[method, &self.template]);
        count(self.meters.write().entry((method, status)).or_insert((requests, seconds)));
    }

    /// The service counts what it was asked for; what never came that far is counted here.
    fn count_rejected(&self, status: StatusCode) {
        if let (Some(primitive), 400 | 401 | 403 | 413 | 415) = (self.acquires, status.as_u16()) {
            telemetry::metrics().acquisition(primitive, Acquisition::Rejected);
        }
    }
}

/// What a route acquires.
fn acquires(template: &str) -> Option<Primitive> {
    let (resource, verb) = template.strip_prefix("/v1/")?.rsplit_once('/')?;
    let primitive = match resource.split('/').next()? {
        "locks" => Primitive::Lock,
        "multilocks" => Primitive::Multilock,
        "semaphores" => Primitive::Semaphore,
        "elections" => Primitive::Election,
        _ => return None,
    };
    matches!(verb, "acquire" | "campaign" | "hold").then_some(primitive)
}

/// The span of a request, for tower-http's trace layer.
pub(super) fn span(request: &Request) -> Span {
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str);
    let id = request.extensions().get::<RequestId>().and_then(|id| id.header_value().to_str().ok());
    trace::request_span(label(request.method()), route, id.unwrap_or_default(), request)
}

/// By template; made when first asked for, and there are no more templates than routes.
#[derive(Default)]
struct Routes(RwLock<HashMap<String, Arc<Route>>>);

impl Routes {
    fn of(&self, path: Option<&MatchedPath>) -> Arc<Route> {
        let template = path.map_or("unmatched", MatchedPath::as_str);
        if let Some(known) = self.0.read().get(template) {
            return Arc::clone(known);
        }
        let mut routes = self.0.write();
        Arc::clone(routes.entry(template.to_owned()).or_insert_with(|| Arc::new(Route::new(template))))
    }
}

/// Counts, times and logs every request, and writes its problem out.
pub(super) fn observe<S, A>() -> impl Layer<
    S,
    Service = impl Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + Sync,
> + Clone
+ Send
+ Sync
where
    S: Service<Request, Response = A, Error = Infallible, Future: Send> + Clone + Send + Sync,
    A: IntoResponse,
{
    let routes = Arc::new(Routes::default());
    layer_fn(move |mut inner: S| {
        let routes = Arc::clone(&routes);
        service_fn(move |request: Request| {
            let mut asked = Asked::new(&routes, &request);
            let answer = inner.call(request);
            async move {
                let Ok(answer) = answer.await;
                Ok(asked.finish(answer.into_response()))
            }
        })
    })
}

/// What is known of a request until it is answered, or its client has left.
struct Asked {
    route: Arc<Route>,
    method: &'static str,
    id: HeaderValue,
    started: Instant,
    /// Where the request is traced.
    span: Span,
    answered: bool,
}

impl Asked {
    fn new(routes: &Routes, request: &Request) -> Self {
        let extensions = request.extensions();
        let route = routes.of(extensions.get::<MatchedPath>());
        let id = extensions.get::<RequestId>().map(|id| id.header_value().clone());
        Self {
            route,
            method: label(request.method()),
            id: id.unwrap_or(HeaderValue::from_static("")),
            started: Instant::now(),
            span: Span::current(),
            answered: false,
        }
    }

    fn finish(&mut self, mut response: Response) -> Response {
        self.answered = true;
        let status = response.status();
        let mut code = "";
        if status.is_client_error() || status.is_server_error() {
            let told = response.extensions_mut().remove::<Problem>();
            let problem = told.unwrap_or_else(|| Problem::of_status(status));
            code = problem.kind().code();
            response = problem.render(self.id());
        }
        let took = self.started.elapsed();
        self.route.count(self.method, status.as_u16(), took);
        self.route.count_rejected(status);
        trace::answered(&self.span, status.as_u16(), code);
        self.log(response.status(), took, code);
        response
    }

    fn id(&self) -> &str {
        self.id.to_str().unwrap_or_default()
    }

    /// One line per request. Contention is an answer, not a failure, and so is "come back later"
    /// of a server that drains: at `info` a busy lock, or thousands of long polls that end at once,
    /// would flood the log. So would an outage, or a full room, of which each route tells now and then.
    /// Neither names nor bodies are logged.
    fn log(&self, status: StatusCode, took: Duration, code: &str) {
        let (route, method, id) = (self.route.template.as_str(), self.method, self.id());
        macro_rules! line {
            ($level:ident $(, $more:ident)?) => {
                tracing::$level!(
                    method,
                    route,
                    status = status.as_u16(),
                    code,
                    ?took,
                    request_id = id,
                    $($more,)?
                    "request"
                )
            };
        }
        match status.as_u16() {
            500 => line!(error),
            _ if code == Kind::ShuttingDown.code() => line!(debug),
            429 => match self.route.no_room.line(Instant::now()) {
                Some(suppressed) => line!(info, suppressed),
                None => line!(debug),
            },
            501.. => match self.route.no_quorum.line(Instant::now()) {
                Some(suppressed) => line!(warn, suppressed),
                None => line!(debug),
            },
            409 | ..400 => line!(debug),
            _ => line!(info),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.answered {
            self.route.count(self.method, CLIENT_LEFT, self.started.elapsed());
            trace::answered(&self.span, CLIENT_LEFT, "");
        }
    }
}
