//! What happens around every request: its id, its key, its problem, its metrics, its log line.
//!
//! One future around each handler's instead of a stack of five layers: the route is known when the
//! table is made, so that metric handles are looked up once and not per request, and nothing is
//! boxed a second time.

use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;
use metrics::{Counter, Histogram};
use tokio::time::Instant;

use super::auth::{KeyRing, Scope};
use super::problem::{Kind, Problem};
use crate::service::Primitive;
use crate::telemetry::seldom::Seldom;
use crate::telemetry::trace::RequestSpan;
use crate::telemetry::{self, Acquisition};

/// The header that names a request.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where browsers say whose page had them send a request.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// A client's own request id is kept up to this length.
const REQUEST_ID_MAX: usize = 128;
/// Metrics' status of a request whose client left before the answer, as nginx counts it.
const CLIENT_LEFT: u16 = 499;

/// Whoever waited longer than this for an answer may have left without hyper having seen it.
const BELATED_AFTER: Duration = Duration::from_millis(30);

/// Marks an answer that took longer than that, so that only whoever gets such a one is looked for.
#[derive(Clone)]
pub struct Belated;

/// The answer of a handler.
pub(super) type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

/// What is known of a route.
pub(super) struct Route {
    /// The path with `{name}` in it, never a name itself.
    template: String,
    /// Asked of every caller; `None`: open to all.
    keys: Option<Arc<KeyRing>>,
    /// What the route acquires, if it does.
    acquires: Option<Primitive>,
    /// By method, as [`method_index`] counts them; made when first needed.
    meters: [OnceLock<Meter>; METHODS.len()],
    /// Lines of requests for which there was no room.
    no_room: Seldom,
    /// Lines of requests that found no quorum.
    no_quorum: Seldom,
}

const METHODS: [&str; 9] = ["GET", "POST", "DELETE", "HEAD", "PUT", "PATCH", "OPTIONS", "TRACE", "OTHER"];

fn method_index(method: &Method) -> usize {
    let last = METHODS.len() - 1;
    METHODS[..last].iter().position(|name| *name == method.as_str()).unwrap_or(last)
}

/// The metrics of one method of one route.
struct Meter {
    seconds: Histogram,
    /// In the order of [`STATUSES`]; made when first needed.
    requests: [OnceLock<Counter>; STATUSES.len()],
}

/// Every status that the API answers with. Others, which only a bug could bring, count as the last.
const STATUSES: [u16; 14] = [200, 303, 400, 401, 403, 404, 405, 409, 413, 415, 429, CLIENT_LEFT, 503, 500];

impl Route {
    pub(super) fn new(template: &str, keys: Option<Arc<KeyRing>>, acquires: Option<Primitive>) -> Self {
        let (template, now) = (template.to_owned(), Instant::now());
        let (no_room, no_quorum) = (Seldom::new(now), Seldom::new(now));
        Self { template, keys, acquires, meters: Default::default(), no_room, no_quorum }
    }

    pub(super) fn template(&self) -> &str {
        &self.template
    }

    /// Lets the request in and, with its id, to `handle`, which answers it or has a problem with it.
    pub(super) fn answer(
        self: &Arc<Self>,
        mut request: Request,
        handle: impl FnOnce(Request, &HeaderValue) -> Result<Answer, Problem>,
    ) -> Answering {
        let started = Instant::now();
        let method = method_index(request.method());
        let id = request_id(request.headers());
        let span = {
            let (headers, id) = (request.headers(), id.to_str().unwrap_or_default());
            let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            RequestSpan::begin(METHODS[method], &self.template, id, &header)
        };
        let work = self.admit(&mut request).and_then(|()| {
            let _entered = span.as_ref().map(|span| span.enter());
            handle(request, &id)
        });
        let work = work.map_or_else(Work::Refused, Work::Handler);
        Answering { work, route: Arc::clone(self), method, id, started, span }
    }

    fn meter(&self, method: usize) -> &Meter {
        self.meters[method].get_or_init(|| Meter {
            seconds: telemetry::HTTP_SECONDS.histogram(&[METHODS[method], &self.template]),
            requests: Default::default(),
        })
    }

    fn count(&self, method: usize, status: u16, took: Duration) {
        let meter = self.meter(method);
        let at = STATUSES.iter().position(|&known| known == status).unwrap_or(STATUSES.len() - 1);
        let requests = meter.requests[at].get_or_init(|| {
            let labels = [METHODS[method], &self.template, &STATUSES[at].to_string()];
            telemetry::HTTP_REQUESTS.counter(&labels)
        });
        requests.increment(1);
        meter.seconds.record(took);
    }

    /// Whether the request may come in; notes the key for the extractors.
    fn admit(&self, request: &mut Request) -> Result<(), Problem> {
        let Some(keys) = &self.keys else {
            // A page of any site can have its visitors' browsers send this to servers that only they reach.
            let foreign = Scope::needed(request.method()) != Scope::Read
                && request.headers().get(SEC_FETCH_SITE).is_some_and(|site| site == "cross-site");
            return if foreign { Err(Problem::of_another_site()) } else { Ok(()) };
        };
        let key = keys.authenticate(request.headers())?;
        key.allow(Scope::needed(request.method()))?;
        request.extensions_mut().insert(key);
        Ok(())
    }

    /// The service counts what it was asked for; what never came that far is counted here.
    fn count_rejected(&self, status: StatusCode) {
        if let (Some(primitive), 400 | 401 | 403 | 413 | 415) = (self.acquires, status.as_u16()) {
            telemetry::metrics().acquisition(primitive, Acquisition::Rejected);
        }
    }
}

enum Work {
    Handler(Answer),
    Refused(Problem),
    Done,
}

/// A request being answered.
pub struct Answering {
    work: Work,
    route: Arc<Route>,
    method: usize,
    id: HeaderValue,
    started: Instant,
    /// Where the request is traced.
    span: Option<Box<RequestSpan>>,
}

impl Future for Answering {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let _entered = this.span.as_ref().map(|span| span.enter());
        let response = match &mut this.work {
            Work::Handler(answer) => {
                // After a panic the future is dropped and never polled again.
                match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
                    Ok(poll) => Ok(ready!(poll)),
                    // The panic hook has written what happened.
                    Err(_) => Err(Problem::internal()),
                }
            }
            Work::Refused(problem) => Err(problem.clone()),
            Work::Done => Err(Problem::internal()),
        };
        this.work = Work::Done;
        Poll::Ready(this.finish(response))
    }
}

impl Answering {
    /// Whether it may bring a lease.
    pub fn acquires(&self) -> bool {
        self.route.acquires.is_some()
    }

    fn finish(&mut self, response: Result<Response, Problem>) -> Response {
        let mut problem = None;
        let mut response = match response {
            Ok(response) if response.status().is_client_error() || response.status().is_server_error() => {
                let (mut parts, _) = response.into_parts();
                let told = parts.extensions.remove::<Problem>();
                let told = told.unwrap_or_else(|| Problem::of_status(parts.status));
                problem.insert(told).render(self.id())
            }
            Ok(response) => response,
            Err(told) => problem.insert(told).render(self.id()),
        };
        let status = response.status();
        let took = self.started.elapsed();
        if took > BELATED_AFTER {
            response.extensions_mut().insert(Belated);
        }
        self.route.count(self.method, status.as_u16(), took);
        self.route.count_rejected(status);
        if METHODS[self.method] == "HEAD" {
            response = without_body(response);
        }
        let code = problem.as_ref().map_or("", |problem| problem.kind().code());
        if let Some(span) = &self.span {
            span.end(status.as_u16(), code);
        }
        self.log(status, took, code);
        let id = mem::replace(&mut self.id, HeaderValue::from_static("-"));
        response.headers_mut().insert(REQUEST_ID, id);
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
        let (route, method, id) = (self.route.template.as_str(), METHODS[self.method], self.id());
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

impl Drop for Answering {
    fn drop(&mut self) {
        if !matches!(self.work, Work::Done) {
            self.route.count(self.method, CLIENT_LEFT, self.started.elapsed());
            if let Some(span) = &self.span {
                span.end(CLIENT_LEFT, "");
            }
        }
    }
}

/// What `HEAD` is answered: the head that `GET` has.
fn without_body(mut response: Response) -> Response {
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    *response.body_mut() = Body::empty();
    response
}

/// The client's own request id when it is one, else a new one.
pub(super) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let usable = |id: &&HeaderValue| {
        (1..=REQUEST_ID_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(REQUEST_ID).filter(usable).cloned().unwrap_or_else(new_request_id)
}

/// Unique enough to find a log line by: this process's random number, and a count.
pub(super) fn new_request_id() -> HeaderValue {
    static PROCESS: LazyLock<u32> = LazyLock::new(rand::random);
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let mut text = [0; 17];
    let count = COUNT.fetch_add(1, Ordering::Relaxed) as u32;
    let _ = hex::encode_to_slice(PROCESS.to_be_bytes(), &mut text[..8]);
    text[8] = b'-';
    let _ = hex::encode_to_slice(count.to_be_bytes(), &mut text[9..]);
    // Hex digits and a hyphen always make a header value.
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;
    use axum::extract::State;

    use crate::api::routes::{Endpoint, Routes, endpoint};

    fn app(keys: Option<Arc<KeyRing>>) -> Routes<()> {
        let mut routes = Routes::new();
        let mut add = |method, path, endpoint: Endpoint<()>| {
            routes.add(Route::new(path, keys.clone(), None), vec![(method, endpoint)]);
        };
        add(Method::GET, "/fine", endpoint(async |_: State<()>, _: Request| "fine"));
        add(Method::GET, "/panic", endpoint(async |_: State<()>, _: Request| -> () { panic!("on purpose") }));
        add(Method::GET, "/bad", endpoint(async |_: State<()>, _: Request| Problem::not_found()));
        add(Method::GET, "/bare", endpoint(async |_: State<()>, _: Request| StatusCode::IM_A_TEAPOT));
        add(Method::POST, "/post", endpoint(async |_: State<()>, _: Request| "done"));
        routes
    }

    async fn ask(
        app: Routes<()>,
        request: axum::http::request::Builder,
    ) -> (StatusCode, HeaderMap, serde_json::Value) {
        let response = app.answer(request.body(Body::empty()).unwrap(), &()).await;
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 1 << 16).await.unwrap();
        (parts.status, parts.headers, serde_json::from_slice(&body).unwrap_or_default())
    }

    #[tokio::test]
    async fn a_clients_own_request_id_comes_back_and_a_bad_one_is_replaced() {
        for (sent, kept) in [("abc-123", true), ("", false), ("a b", false), (&*"x".repeat(129), false)] {
            let (_, headers, _) = ask(app(None), Request::get("/fine").header("X-Request-Id", sent)).await;
            assert_eq!(headers[REQUEST_ID] == sent, kept, "{sent}");
            assert!(!headers[REQUEST_ID].is_empty());
        }
    }

    #[tokio::test]
    async fn generated_request_ids_differ() {
        let (_, first, _) = ask(app(None), Request::get("/fine")).await;
        let (_, second, _) = ask(app(None), Request::get("/fine")).await;
        assert_ne!(first[REQUEST_ID], second[REQUEST_ID]);
    }

    #[tokio::test]
    async fn a_problem_carries_the_request_id_of_its_header() {
        let (status, headers, body) =
            ask(app(None), Request::get("/bad").header("x-request-id", "mine")).await;
        assert_eq!(status, 404);
        assert_eq!(headers["content-type"], "application/problem+json");
        assert_eq!(headers[REQUEST_ID], "mine");
        assert_eq!(body["request_id"], "mine");
        assert_eq!(body["code"], "not_found");
    }

    #[tokio::test]
    async fn a_panic_is_answered_with_an_internal_problem() {
        let (status, headers, body) = ask(app(None), Request::get("/panic")).await;
        assert_eq!(status, 500);
        assert!(headers.contains_key(REQUEST_ID));
        assert_eq!(body["code"], "internal");
        assert!(!body.to_string().contains("on purpose"));
    }

    #[tokio::test]
    async fn an_error_that_nobody_worded_becomes_a_problem() {
        let (status, _, body) = ask(app(None), Request::get("/bare")).await;
        assert_eq!(status, 400);
        assert_eq!(body["code"], "invalid_request");
    }

    #[tokio::test]
    async fn a_wrong_method_is_405_with_the_methods_that_are_right() {
        let (status, headers, body) = ask(app(None), Request::get("/post")).await;
        assert_eq!(status, 405);
        assert_eq!(headers["allow"], "POST");
        assert_eq!(body["code"], "method_not_allowed");
        let (_, headers, _) = ask(app(None), Request::put("/fine")).await;
        assert_eq!(headers["allow"], "GET,HEAD");
    }

    #[tokio::test]
    async fn head_is_answered_with_the_head_that_get_has() {
        let (status, headers, _) = ask(app(None), Request::head("/fine")).await;
        assert_eq!((status, &headers["content-length"]), (StatusCode::OK, &"4".parse().unwrap()));
        let response = app(None).answer(Request::head("/bad").body(Body::empty()).unwrap(), &()).await;
        assert_eq!(response.status(), 404);
        assert!(to_bytes(response.into_body(), 1).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_page_of_another_site_changes_nothing_where_no_key_is_asked_for() {
        let from = |request: axum::http::request::Builder, site| request.header("Sec-Fetch-Site", site);
        let (status, headers, body) = ask(app(None), from(Request::post("/post"), "cross-site")).await;
        assert_eq!((status, &body["code"]), (StatusCode::FORBIDDEN, &"forbidden".into()));
        assert!(!headers.contains_key("www-authenticate"), "no key would help");
        for harmless in [
            from(Request::get("/fine"), "cross-site"),
            from(Request::head("/fine"), "cross-site"),
            from(Request::post("/post"), "same-origin"),
            from(Request::post("/post"), "none"),
            Request::post("/post"),
        ] {
            let (status, ..) = ask(app(None), harmless).await;
            assert_eq!(status, 200);
        }
        // A browser adds no key by itself.
        let (secret, entry) = super::super::auth::new_key("k", &["lock".to_owned()], &[]).unwrap();
        let keys = Some(Arc::new(KeyRing::parse(&entry).unwrap()));
        let keyed = Request::post("/post").header("authorization", format!("Bearer {secret}"));
        let (status, ..) = ask(app(keys), from(keyed, "cross-site")).await;
        assert_eq!(status, 200);
    }

    #[tokio::test]
    async fn a_route_with_keys_asks_for_one_with_the_scope_of_the_method() {
        let (secret, entry) = super::super::auth::new_key("k", &["read".to_owned()], &[]).unwrap();
        let keys = Some(Arc::new(KeyRing::parse(&entry).unwrap()));
        let bearer = format!("Bearer {secret}");
        let (status, headers, body) = ask(app(keys.clone()), Request::get("/fine")).await;
        assert_eq!((status, &body["code"]), (StatusCode::UNAUTHORIZED, &"unauthenticated".into()));
        assert_eq!(headers["www-authenticate"], r#"Bearer realm="quorate""#);
        let (status, _, _) =
            ask(app(keys.clone()), Request::get("/fine").header("authorization", &bearer)).await;
        assert_eq!(status, 200);
        let (status, _, body) = ask(app(keys), Request::post("/post").header("authorization", &bearer)).await;
        assert_eq!((status, &body["code"]), (StatusCode::FORBIDDEN, &"forbidden".into()));
    }
}
