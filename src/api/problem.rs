//! Problems: one table says which kinds there are, and answers, OpenAPI responses and examples come from it.
//!
//! A [`Problem`] is answered as `application/problem+json` (RFC 9457). A handler returns it without its
//! `request_id`; [`super::observe`], which knows the id, writes it out. Texts are for the caller: they say what
//! happened and what to do, never what broke inside.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::views::{HolderView, NodesView};
use crate::domain::Mode;
use crate::service::members::ChangeError;
use crate::service::{Nodes, Primitive, ServiceError};

/// Media type of every answer that is not 2xx.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// What a request without a key is asked for. RFC 6750 demands one parameter at least.
pub(super) const CHALLENGE: &str = r#"Bearer realm="quorate""#;

/// When to come back after a refusal that knows nothing better.
const RETRY_AFTER_MS: u64 = 1000;

/// One kind of problem.
struct Row {
    status: u16,
    code: &'static str,
    title: &'static str,
    /// For the document: when it is answered.
    meaning: &'static str,
    /// The `detail` where there is nothing to say of the case at hand, and in the example.
    detail: &'static str,
}

/// The table: kind, status, code, title; its meaning; its usual detail; the members that its example has more.
macro_rules! kinds {
    ($($kind:ident $status:literal $code:literal $title:literal: $meaning:literal, $detail:literal, $more:tt;)+) => {
        /// What went wrong, as the contract names it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind { $(#[doc = $meaning] $kind),+ }

        impl Kind {
            /// All of them.
            #[cfg(test)]
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            const fn row(self) -> Row {
                match self {
                    $(Self::$kind => Row {
                        status: $status,
                        code: $code,
                        title: $title,
                        meaning: $meaning,
                        detail: $detail,
                    }),+
                }
            }

            /// What an example has besides the members of every problem.
            fn example_members(self) -> Value {
                match self { $(Self::$kind => json!($more)),+ }
            }
        }
    };
}

kinds! {
    InvalidRequest 400 "invalid_request" "The request is not valid":
        "malformed JSON, a bad name, a value out of range, an unknown field. `errors` tells which and why.",
        "ttl_ms must be between 100 and 300000",
        {"errors": [{"field": "ttl_ms", "message": "must be between 100 and 300000"}]};
    Unauthenticated 401 "unauthenticated" "An API key is needed":
        "the server requires an API key, and none or an unknown one was sent.",
        "Send the header Authorization: Bearer SECRET.", {};
    Forbidden 403 "forbidden" "This is not allowed":
        "the API key lacks the scope, or may not touch the name. Or, where no key is asked for, a browser sent this for a page of another site.",
        "The key lacks the scope lock.", {};
    NotFound 404 "not_found" "There is no such route":
        "there is no such route, e.g. because the name has an unescaped slash. A lock or other resource that nobody uses is not a 404.",
        "No route has this path; /openapi.json lists all of them.", {};
    MethodNotAllowed 405 "method_not_allowed" "The route does not have this method":
        "the route has other methods, which the header `Allow` lists.",
        "The header Allow lists the methods that this route has.", {};
    PayloadTooLarge 413 "payload_too_large" "The body is too long":
        "the body is longer than the server takes (64 KiB unless set otherwise).",
        "A body may have at most 65536 bytes.", {};
    UnsupportedMediaType 415 "unsupported_media_type" "The body must be application/json":
        "the body is declared as something other than JSON, or as compressed.",
        "Send the header Content-Type: application/json.", {};
    LockHeld 409 "lock_held" "The lock is held by someone else":
        "not granted within `wait_ms`. `holder` is left out if no single lease has a quorum.",
        "The lock is held by someone else.",
        {"mode": "exclusive",
         "holder": {"owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64, "remaining_ms": 12_345},
         "retry_after_ms": 1000, "nodes": {"total": 3, "quorum": 2, "granted": 0, "held": 3, "failed": 0}};
    SemaphoreFull 409 "semaphore_full" "Too few permits are free":
        "not granted within `wait_ms`.",
        "Too few permits are free for this request and those that wait before it.",
        {"holders": [{"slots": [0, 3], "owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64, "remaining_ms": 12_345}],
         "retry_after_ms": 1000, "nodes": {"total": 3, "quorum": 2, "granted": 0, "held": 3, "failed": 0}};
    ElectionLost 409 "election_lost" "Someone else leads":
        "not elected within `wait_ms`. `holder` is left out if no single lease has a quorum.",
        "Someone else leads.",
        {"holder": {"candidate": "host-2", "value": "10.0.0.2:7000", "term": 1_790_000_000_000_000_u64, "remaining_ms": 12_345},
         "retry_after_ms": 1000, "nodes": {"total": 3, "quorum": 2, "granted": 0, "held": 3, "failed": 0}};
    LeaseLost 409 "lease_lost" "The lease is not held any more":
        "the lease is not held any more.",
        "The lease expired, was released, or its nodes lost it: stop what it protects.",
        {"nodes": {"total": 3, "quorum": 2, "granted": 1, "held": 0, "failed": 2}};
    HoldLimitReached 409 "hold_limit_reached" "The lease may not be held for longer":
        "the lease has been held for its `max_hold_ms`, or reaches to the end of it already; it ends by itself.",
        "No extension reaches beyond max_hold_ms after the lease was acquired: it ends by itself then.",
        {"nodes": {"total": 3, "quorum": 2, "granted": 3, "held": 0, "failed": 0}};
    StaleToken 409 "stale_token" "A later token has been issued":
        "a later token has been issued.",
        "A later token has been issued: the holder of this one must not write any more.",
        {"highest_token": 1_790_000_000_000_042_u64};
    ChangeInProgress 409 "change_in_progress" "Another change is under way":
        "another change of the members is under way.",
        "Another change of the membership is under way: epoch 4, 1 members do not vote yet.", {};
    UnsafeChange 409 "unsafe_change" "The change is not safe":
        "the change would leave no quorum, or nothing is known of the node.",
        "1 of 3 members would vote, which is no quorum.", {};
    TooManyWaiters 429 "too_many_waiters" "Too many are waiting already":
        "the queue is full, or the limit of event streams is reached.",
        "The queue is full; come back later.", {};
    QuorumUnavailable 503 "quorum_unavailable" "Fewer than a quorum of nodes answered":
        "fewer than a quorum of nodes answered; nothing was granted and nothing is left behind.",
        "Too few of the 3 nodes voted to reach a quorum of 2; GET /v1/nodes may tell why.",
        {"retry_after_ms": 1000, "nodes": {"total": 3, "quorum": 2, "granted": 1, "held": 0, "failed": 2}};
    ShuttingDown 503 "shutting_down" "The server is shutting down":
        "this server drains.",
        "This server takes no new work; another one, or this one after its restart, will.", {};
    Overloaded 503 "overloaded" "The server serves as many as it may":
        "the server has reached its limit of clients.",
        "As many clients as configured are being served. Try again, here or at another server.", {};
    Internal 500 "internal" "The server made a mistake":
        "a bug.",
        "This is a bug in the server; its log has more under the request id.", {};
}

impl Kind {
    /// The status it is answered with.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The `code`, by which programs tell problems apart.
    pub const fn code(self) -> &'static str {
        self.row().code
    }

    /// When it is answered, for the document.
    pub(super) const fn meaning(self) -> &'static str {
        self.row().meaning
    }

    /// For a status that something below the handlers answered with.
    fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::NotFound,
            StatusCode::METHOD_NOT_ALLOWED => Self::MethodNotAllowed,
            status if status.is_client_error() => Self::InvalidRequest,
            _ => Self::Internal,
        }
    }

    /// What the problem looks like, for the document.
    pub(super) fn example(self) -> Value {
        let problem = Problem::new(self, self.row().detail);
        // Written by us a line ago.
        let mut example: Value =
            serde_json::from_slice(&problem.to_json("7f3a9c21-0000002a")).unwrap_or_default();
        if let (Some(example), Value::Object(more)) = (example.as_object_mut(), self.example_members()) {
            example.extend(more);
        }
        example
    }
}

/// One thing that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// What is wrong: a field (`ttl_ms`, `names[1]`, `metadata.team`), `name` for the name in the path, a query parameter, a header, or `body` as a whole.
    #[schema(example = "ttl_ms")]
    pub field: Cow<'static, str>,
    /// Why it is wrong.
    #[schema(example = "must be between 100 and 300000")]
    pub message: Cow<'static, str>,
}

impl FieldError {
    /// `field` is wrong, and why.
    pub fn new(field: impl Into<Cow<'static, str>>, message: impl Into<Cow<'static, str>>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// A failure on its way to the client.
#[derive(Debug, Clone)]
pub struct Problem(Box<ProblemView>);

/// Every answer that is not 2xx (RFC 9457). Which of the members after `request_id` are present depends on `code`.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Problem, example = json!(Kind::LockHeld.example()))]
pub(super) struct ProblemView {
    #[serde(skip)]
    of: Kind,
    /// URI reference of this kind of problem.
    #[serde(rename = "type")]
    #[schema(example = "/problems/lock_held")]
    kind: String,
    /// Short text, the same for every problem of this kind.
    #[schema(example = "The lock is held by someone else")]
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599, example = 409)]
    status: u16,
    /// What happened in this case, for people.
    detail: Cow<'static, str>,
    /// The kind of problem, for programs: `invalid_request`, `unauthenticated`, `forbidden`, `not_found`, `method_not_allowed`, `payload_too_large`, `unsupported_media_type`, `lock_held`, `semaphore_full`, `election_lost`, `lease_lost`, `hold_limit_reached`, `stale_token`, `change_in_progress`, `unsafe_change`, `too_many_waiters`, `quorum_unavailable`, `shutting_down`, `overloaded` or `internal`.
    #[schema(example = "lock_held")]
    code: &'static str,
    /// The request's `X-Request-Id`, which is also in the server's log.
    request_id: String,
    /// `invalid_request`: all errors that can be found at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<FieldError>,
    /// `lock_held`, `election_lost`: who holds it. Left out if no single lease has a quorum.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<HolderView>,
    /// `lock_held`: the mode of what holds it, `exclusive` or `shared`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^(exclusive|shared)$")]
    mode: Option<Mode>,
    /// `lock_held`, where shared leases hold it: how many they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    holders_total: Option<u32>,
    /// `semaphore_full`: who holds the permits. `lock_held`: who holds shared leases, up to 16 of those that last longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<Vec<HolderView>>,
    /// When to try again, in milliseconds. The header `Retry-After` has the same in whole seconds, rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// `stale_token`: the highest token known.
    #[serde(skip_serializing_if = "Option::is_none")]
    highest_token: Option<u64>,
    /// The answers of the nodes, counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<NodesView>,
    /// The header `WWW-Authenticate`.
    #[serde(skip)]
    challenge: Option<&'static str>,
}

impl Problem {
    /// A problem of this kind, with what happened in this case.
    pub(super) fn new(of: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        let Row { status, code, title, .. } = of.row();
        let again = matches!(of, Kind::TooManyWaiters | Kind::ShuttingDown | Kind::Overloaded);
        Self(Box::new(ProblemView {
            of,
            kind: format!("/problems/{code}"),
            title,
            status,
            detail: detail.into(),
            code,
            request_id: String::new(),
            errors: Vec::new(),
            holder: None,
            holders: None,
            mode: None,
            holders_total: None,
            retry_after_ms: again.then_some(RETRY_AFTER_MS),
            highest_token: None,
            nodes: None,
            challenge: match of {
                Kind::Unauthenticated => Some(CHALLENGE),
                Kind::Forbidden => Some(r#"Bearer realm="quorate", error="insufficient_scope""#),
                _ => None,
            },
        }))
    }

    fn with(mut self, set: impl FnOnce(&mut ProblemView)) -> Self {
        set(&mut self.0);
        self
    }

    fn with_nodes(self, nodes: Nodes) -> Self {
        self.with(|problem| problem.nodes = Some(nodes.into()))
    }

    /// The request is wrong in these ways.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [] => Cow::Borrowed("The request is not valid."),
            [only] => Cow::Owned(format!("{} {}", only.field, only.message)),
            [first, rest @ ..] => {
                Cow::Owned(format!("{} {} (and {} more, see errors)", first.field, first.message, rest.len()))
            }
        };
        Self::new(Kind::InvalidRequest, detail).with(|problem| problem.errors = errors)
    }

    /// One field is wrong, and why.
    pub fn field(field: impl Into<Cow<'static, str>>, message: impl Into<Cow<'static, str>>) -> Self {
        Self::invalid(vec![FieldError::new(field, message)])
    }

    /// The body ended too early, or took too long. Often nobody is there any more to read this.
    pub fn broken_body() -> Self {
        Self::field("body", "did not arrive as a whole, or not in time")
    }

    /// A key that the server does not know: whoever has it need not try again with it.
    pub fn unknown_key() -> Self {
        let challenge = Some(r#"Bearer realm="quorate", error="invalid_token""#);
        Self::new(Kind::Unauthenticated, "The server does not know this key.")
            .with(|problem| problem.challenge = challenge)
    }

    /// A browser asks for a page of another site, where no key would tell whether its user wants that.
    pub fn of_another_site() -> Self {
        let detail = "A page of another site had a browser send this, and there are no API keys.";
        Self::new(Kind::Forbidden, detail).with(|problem| problem.challenge = None)
    }

    /// Fewer than a quorum of nodes vote, in the words of `detail`.
    pub fn not_ready(detail: String, nodes: Nodes, retry_after_ms: u64) -> Self {
        Self::new(Kind::QuorumUnavailable, detail)
            .with_nodes(nodes)
            .with(|problem| problem.retry_after_ms = Some(retry_after_ms))
    }

    /// For an answer of `status` that nobody here made.
    pub(super) fn of_status(status: StatusCode) -> Self {
        let kind = Kind::of_status(status);
        if kind == Kind::InvalidRequest { Self::new(kind, kind.row().title) } else { Self::from(kind) }
    }

    /// What happened in this case, for people.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// What went wrong.
    pub fn kind(&self) -> Kind {
        self.0.of
    }

    /// The problem as JSON.
    pub(super) fn to_json(&self, request_id: &str) -> Vec<u8> {
        let view = ProblemView { request_id: request_id.to_owned(), ..(*self.0).clone() };
        // Only a map with keys that are no strings could fail, and there is none.
        serde_json::to_vec(&view).unwrap_or_default()
    }

    /// The problem as an answer.
    pub(super) fn render(&self, request_id: &str) -> Response {
        let mut response = Response::new(Body::from(self.to_json(request_id)));
        *response.status_mut() = self.0.of.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if let Some(ms) = self.0.retry_after_ms {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
        }
        if let Some(challenge) = self.0.challenge {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}

impl IntoResponse for Problem {
    /// Status only: [`super::observe`] takes the problem out and writes it with the request id.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.0.of.status();
        response.extensions_mut().insert(self);
        response
    }
}

/// The usual case of a kind.
impl From<Kind> for Problem {
    fn from(kind: Kind) -> Self {
        Self::new(kind, kind.row().detail)
    }
}

impl From<ChangeError> for Problem {
    fn from(cause: ChangeError) -> Self {
        let kind = match cause {
            ChangeError::InProgress(_) => Kind::ChangeInProgress,
            ChangeError::Unsafe(_) => Kind::UnsafeChange,
            ChangeError::NoQuorum(nodes) => {
                return Self::from(ServiceError::QuorumUnavailable { nodes, retry_after_ms: RETRY_AFTER_MS });
            }
        };
        Self::new(kind, cause.to_string())
    }
}

/// The problem of a caller who is refused since others hold what it asked for.
fn refusal_of(primitive: Primitive) -> Kind {
    match primitive {
        Primitive::Lock | Primitive::Multilock => Kind::LockHeld,
        Primitive::Semaphore => Kind::SemaphoreFull,
        Primitive::Election => Kind::ElectionLost,
    }
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Contended { primitive, holders, sharers, retry_after_ms, nodes, waited } => {
                let kind = refusal_of(primitive);
                let detail = match (primitive, waited) {
                    (Primitive::Semaphore, true) => {
                        "Too few permits became free within wait_ms for this request and those before it."
                    }
                    (Primitive::Multilock, false) => "At least one of the locks is held by someone else.",
                    (_, true) => "It did not become free within wait_ms.",
                    (_, false) => kind.row().detail,
                };
                let is_lock = kind == Kind::LockHeld;
                let mode = holders.first().map(|holder| holder.note.mode).filter(|_| is_lock);
                let mode = sharers.as_ref().map(|_| Mode::Shared).or(mode);
                let total = sharers.as_ref().map(|sharers| sharers.total);
                let (holder, holders) = match (primitive, sharers) {
                    (Primitive::Semaphore, _) => (None, Some(HolderView::all(primitive, holders))),
                    (_, Some(sharers)) => (None, Some(HolderView::all(primitive, sharers.holders))),
                    (_, None) => (HolderView::all(primitive, holders).into_iter().next(), None),
                };
                Self::new(kind, detail).with_nodes(nodes).with(|problem| {
                    (problem.holder, problem.holders) = (holder, holders);
                    (problem.mode, problem.holders_total) = (mode, total);
                    problem.retry_after_ms = Some(retry_after_ms);
                })
            }
            ServiceError::Ended { primitive, retry_after_ms, nodes } => {
                Self::new(refusal_of(primitive), "A release with this request_id ended the request.")
                    .with_nodes(nodes)
                    .with(|problem| problem.retry_after_ms = Some(retry_after_ms))
            }
            ServiceError::LeaseLost { nodes } => Self::from(Kind::LeaseLost).with_nodes(nodes),
            ServiceError::HoldLimitReached { nodes } => Self::from(Kind::HoldLimitReached).with_nodes(nodes),
            ServiceError::RequestIdReused { parameters } => {
                let why =
                    "is another one than in the earlier request with this request_id, which holds a lease";
                Self::invalid(parameters.into_iter().map(|name| FieldError::new(name, why)).collect())
            }
            ServiceError::QuorumUnavailable { nodes, retry_after_ms } => {
                // Who is told that nodes are silent looks for a network that is cut.
                let detail = if nodes.total.saturating_sub(nodes.failed) < nodes.quorum {
                    format!(
                        "Too few of the {} nodes voted to reach a quorum of {}; GET /v1/nodes may tell why.",
                        nodes.total, nodes.quorum
                    )
                } else {
                    format!(
                        "Enough of the {} nodes answered, but only when the ttl was over, or no {} that agree.",
                        nodes.total, nodes.quorum
                    )
                };
                Self::not_ready(detail, nodes, retry_after_ms)
            }
            ServiceError::StaleToken { highest } => {
                Self::from(Kind::StaleToken).with(|problem| problem.highest_token = Some(highest.get()))
            }
            ServiceError::TooManyWaiters { retry_after_ms } => {
                Self::from(Kind::TooManyWaiters).with(|problem| problem.retry_after_ms = Some(retry_after_ms))
            }
            ServiceError::ShuttingDown => Self::from(Kind::ShuttingDown),
        }
    }
}

#[cfg(test)]
mod tests;
