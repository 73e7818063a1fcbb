//! The only place that turns an error into HTTP: status, `code`, title, extra members, headers.
//!
//! A [`Problem`] is answered as `application/problem+json` (RFC 9457). A handler returns it
//! without its `request_id`; [`super::front`], which knows the id, writes it out. Texts here are
//! for the caller: what happened and what to do, never what broke inside.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::views::{HolderView, NodesView};
use crate::service::{Primitive, ServiceError};

/// Media type of every answer that is not 2xx.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// What a request without a key is asked for. RFC 6750 demands one parameter at least.
pub(super) const CHALLENGE: &str = r#"Bearer realm="quorate""#;

const HEAD_TOO_LARGE: &str = "Fewer or shorter headers, or a shorter target, would do.";
const OVERLOADED: &str =
    "As many clients as configured are being served. Try again, here or at another server.";

/// What went wrong, as the contract names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Malformed JSON, a bad name, a value out of range, an unknown field.
    InvalidRequest,
    /// Missing or unknown key.
    Unauthenticated,
    /// The key lacks the scope or the name, or another site's page asks.
    Forbidden,
    /// No such route.
    NotFound,
    /// The route has other methods.
    MethodNotAllowed,
    /// The body is too long.
    PayloadTooLarge,
    /// The head is too large.
    HeadTooLarge,
    /// The body is not declared as JSON.
    UnsupportedMediaType,
    /// A lock, or one of several, is held by someone else.
    LockHeld,
    /// Too few permits are free.
    SemaphoreFull,
    /// Someone else leads.
    ElectionLost,
    /// The lease is not held any more.
    LeaseLost,
    /// A later token has been issued.
    StaleToken,
    /// The waiting room, or the room for streams, is full.
    TooManyWaiters,
    /// Fewer than a quorum of nodes answered.
    QuorumUnavailable,
    /// The server drains.
    ShuttingDown,
    /// The server serves as many as it may.
    Overloaded,
    /// A bug.
    Internal,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::InvalidRequest,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::PayloadTooLarge,
        Self::HeadTooLarge,
        Self::UnsupportedMediaType,
        Self::LockHeld,
        Self::SemaphoreFull,
        Self::ElectionLost,
        Self::LeaseLost,
        Self::StaleToken,
        Self::TooManyWaiters,
        Self::QuorumUnavailable,
        Self::ShuttingDown,
        Self::Overloaded,
        Self::Internal,
    ];

    /// Status, `type` and title. The `code` is the last segment of the `type`.
    const fn row(self) -> (StatusCode, &'static str, &'static str) {
        use StatusCode as S;
        match self {
            Self::InvalidRequest => (S::BAD_REQUEST, "/problems/invalid_request", "The request is not valid"),
            Self::Unauthenticated => (S::UNAUTHORIZED, "/problems/unauthenticated", "An API key is needed"),
            Self::Forbidden => (S::FORBIDDEN, "/problems/forbidden", "This is not allowed"),
            Self::NotFound => (S::NOT_FOUND, "/problems/not_found", "There is no such route"),
            Self::MethodNotAllowed => {
                (S::METHOD_NOT_ALLOWED, "/problems/method_not_allowed", "The route does not have this method")
            }
            Self::PayloadTooLarge => {
                (S::PAYLOAD_TOO_LARGE, "/problems/payload_too_large", "The body is too long")
            }
            Self::HeadTooLarge => (
                S::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "/problems/head_too_large",
                "The head of the request is too large",
            ),
            Self::UnsupportedMediaType => (
                S::UNSUPPORTED_MEDIA_TYPE,
                "/problems/unsupported_media_type",
                "The body must be application/json",
            ),
            Self::LockHeld => (S::CONFLICT, "/problems/lock_held", "The lock is held by someone else"),
            Self::SemaphoreFull => (S::CONFLICT, "/problems/semaphore_full", "Too few permits are free"),
            Self::ElectionLost => (S::CONFLICT, "/problems/election_lost", "Someone else leads"),
            Self::LeaseLost => (S::CONFLICT, "/problems/lease_lost", "The lease is not held any more"),
            Self::StaleToken => (S::CONFLICT, "/problems/stale_token", "A later token has been issued"),
            Self::TooManyWaiters => {
                (S::TOO_MANY_REQUESTS, "/problems/too_many_waiters", "Too many are waiting already")
            }
            Self::QuorumUnavailable => (
                S::SERVICE_UNAVAILABLE,
                "/problems/quorum_unavailable",
                "Fewer than a quorum of nodes answered",
            ),
            Self::ShuttingDown => {
                (S::SERVICE_UNAVAILABLE, "/problems/shutting_down", "The server is shutting down")
            }
            Self::Overloaded => {
                (S::SERVICE_UNAVAILABLE, "/problems/overloaded", "The server serves as many as it may")
            }
            Self::Internal => (S::INTERNAL_SERVER_ERROR, "/problems/internal", "The server made a mistake"),
        }
    }

    /// The status it is answered with.
    pub const fn status(self) -> StatusCode {
        self.row().0
    }

    /// The `code`, by which programs tell problems apart.
    pub fn code(self) -> &'static str {
        let about = self.row().1;
        about.strip_prefix("/problems/").unwrap_or(about)
    }

    /// For a status that something below the handlers answered with.
    fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::NotFound,
            StatusCode::METHOD_NOT_ALLOWED => Self::MethodNotAllowed,
            StatusCode::PAYLOAD_TOO_LARGE => Self::PayloadTooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::UnsupportedMediaType,
            status if status.is_client_error() => Self::InvalidRequest,
            _ => Self::Internal,
        }
    }
}

/// One thing that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// What is wrong: a field (`ttl_ms`, `names[1]`, `metadata.team`), `name` for the name in the path, a query parameter, a header, or `head` or `body` as a whole.
    #[schema(example = "ttl_ms")]
    pub field: Cow<'static, str>,
    /// Why it is wrong.
    #[schema(example = "must be between 100 and 300000")]
    pub message: Cow<'static, str>,
}

/// A failure on its way to the client.
#[derive(Debug, Clone)]
pub struct Problem(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    kind: Kind,
    detail: Cow<'static, str>,
    more: More,
}

/// The members beyond those that every problem has.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
struct More {
    /// `invalid_request`: all errors that can be found at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<FieldError>,
    /// `lock_held`, `election_lost`: who holds it. Left out if no single lease has a quorum.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<HolderView>,
    /// `semaphore_full`: who holds the permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<Vec<HolderView>>,
    /// When to try again, in milliseconds. The header `Retry-After` has the same in whole seconds, rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    retry_after_ms: Option<u64>,
    /// `stale_token`: the highest token known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9007199254740991_i64)]
    highest_token: Option<u64>,
    /// The answers of the nodes, counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<NodesView>,
    /// The header of that name.
    #[serde(skip)]
    allow: Option<HeaderValue>,
    /// The header `WWW-Authenticate`.
    #[serde(skip)]
    challenge: Option<&'static str>,
}

/// Every answer that is not 2xx (RFC 9457). Which of the members after `request_id` are present depends on `code`.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem, example = json!(example(Kind::LockHeld)))]
pub(super) struct ProblemView<'a> {
    /// URI reference of this kind of problem.
    #[serde(rename = "type")]
    #[schema(example = "/problems/lock_held")]
    kind: &'a str,
    /// Short text, the same for every problem of this kind.
    #[schema(example = "The lock is held by someone else")]
    title: &'a str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599, example = 409)]
    status: u16,
    /// What happened in this case, for people.
    detail: &'a str,
    /// The kind of problem, for programs: `invalid_request`, `unauthenticated`, `forbidden`, `not_found`, `method_not_allowed`, `payload_too_large`, `head_too_large`, `unsupported_media_type`, `lock_held`, `semaphore_full`, `election_lost`, `lease_lost`, `stale_token`, `too_many_waiters`, `quorum_unavailable`, `shutting_down`, `overloaded` or `internal`.
    #[schema(example = "lock_held")]
    code: &'a str,
    /// The request's `X-Request-Id`, which is also in the server's log.
    request_id: &'a str,
    #[serde(flatten)]
    more: &'a More,
}

impl Problem {
    fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::with(kind, detail, More::default())
    }

    fn with(kind: Kind, detail: impl Into<Cow<'static, str>>, more: More) -> Self {
        Self(Box::new(Inner { kind, detail: detail.into(), more }))
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
        Self::with(Kind::InvalidRequest, detail, More { errors, ..More::default() })
    }

    /// The body ended too early, or took too long. Often nobody is there any more to read this.
    pub fn broken_body() -> Self {
        let message = "did not arrive as a whole, or not in time".into();
        Self::invalid(vec![FieldError { field: "body".into(), message }])
    }

    /// No key. What is asked for is told in the words of RFC 6750 §3, here and below.
    pub fn unauthenticated(detail: &'static str) -> Self {
        Self::challenged(Kind::Unauthenticated, detail.into(), CHALLENGE)
    }

    /// A key that the server does not know: whoever has it need not try again with it.
    pub fn unknown_key() -> Self {
        let detail = "The server does not know this key.".into();
        Self::challenged(Kind::Unauthenticated, detail, r#"Bearer realm="quorate", error="invalid_token""#)
    }

    /// The key does not allow this.
    pub fn forbidden(detail: impl Into<Cow<'static, str>>) -> Self {
        let challenge = r#"Bearer realm="quorate", error="insufficient_scope""#;
        Self::challenged(Kind::Forbidden, detail.into(), challenge)
    }

    /// A browser asks for a page of another site, where no key would tell whether its user wants that.
    pub fn of_another_site() -> Self {
        Self::new(
            Kind::Forbidden,
            "A page of another site had a browser send this, and there are no API keys.",
        )
    }

    fn challenged(kind: Kind, detail: Cow<'static, str>, challenge: &'static str) -> Self {
        Self::with(kind, detail, More { challenge: Some(challenge), ..More::default() })
    }

    /// No such route.
    pub fn not_found() -> Self {
        Self::new(Kind::NotFound, "No route has this path; /openapi.json lists all of them.")
    }

    /// The route has other methods: the header `Allow` lists them.
    pub fn method_not_allowed(allow: HeaderValue) -> Self {
        let detail = "The header Allow lists the methods that this route has.";
        let more = More { allow: Some(allow), ..More::default() };
        Self::with(Kind::MethodNotAllowed, detail, more)
    }

    /// The body is longer than `bytes_max`.
    pub fn payload_too_large(bytes_max: usize) -> Self {
        Self::new(Kind::PayloadTooLarge, format!("A body may have at most {bytes_max} bytes."))
    }

    /// The head, or the target in it, is larger than it may be.
    pub(super) fn head_too_large() -> Self {
        Self::new(Kind::HeadTooLarge, HEAD_TOO_LARGE)
    }

    /// What arrived is no HTTP request.
    pub(super) fn no_request() -> Self {
        let message = "is not an HTTP request that could be read".into();
        Self::invalid(vec![FieldError { field: "head".into(), message }])
    }

    /// As many connections are open, or requests in flight, as may be.
    pub(super) fn overloaded() -> Self {
        let more = More { retry_after_ms: Some(1000), ..More::default() };
        Self::with(Kind::Overloaded, OVERLOADED, more)
    }

    /// The body is declared as something else than JSON.
    pub fn unsupported_media_type() -> Self {
        Self::new(Kind::UnsupportedMediaType, "Send the header Content-Type: application/json.")
    }

    /// The body is compressed.
    pub fn unsupported_content_coding() -> Self {
        Self::new(Kind::UnsupportedMediaType, "Send the body as it is, without a Content-Encoding.")
    }

    /// No room for another event stream.
    pub fn too_many_streams() -> Self {
        let more = More { retry_after_ms: Some(1000), ..More::default() };
        Self::with(Kind::TooManyWaiters, "The server has as many event streams open as it may.", more)
    }

    /// A lease was lost while it was held for a stream.
    pub fn lease_lost(nodes: crate::service::Nodes) -> Self {
        ServiceError::LeaseLost { nodes }.into()
    }

    /// Fewer than a quorum of nodes vote, in the words of `detail`.
    pub fn not_ready(detail: String, nodes: crate::service::Nodes, retry_after_ms: u64) -> Self {
        let more =
            More { nodes: Some(nodes.into()), retry_after_ms: Some(retry_after_ms), ..More::default() };
        Self::with(Kind::QuorumUnavailable, detail, more)
    }

    /// A bug. What it is goes to the log, not to the client.
    pub fn internal() -> Self {
        Self::new(Kind::Internal, "This is a bug in the server; its log has more under the request id.")
    }

    /// For an answer of `status` that nobody here made.
    pub(super) fn of_status(status: StatusCode) -> Self {
        match Kind::of_status(status) {
            Kind::NotFound => Self::not_found(),
            Kind::UnsupportedMediaType => Self::unsupported_media_type(),
            Kind::Internal => Self::internal(),
            kind => Self::new(kind, kind.row().2),
        }
    }

    /// What went wrong.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The problem as JSON.
    pub(super) fn to_json(&self, request_id: &str) -> Vec<u8> {
        let Inner { kind, detail, more } = &*self.0;
        let (status, type_, title) = kind.row();
        let view = ProblemView {
            kind: type_,
            title,
            status: status.as_u16(),
            detail,
            code: kind.code(),
            request_id,
            more,
        };
        // Only a map with keys that are no strings could fail, and there is none.
        serde_json::to_vec(&view).unwrap_or_default()
    }

    /// The problem as an answer.
    pub(super) fn render(&self, request_id: &str) -> Response {
        let mut response = Response::new(Body::from(self.to_json(request_id)));
        *response.status_mut() = self.0.kind.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if let Some(ms) = self.0.more.retry_after_ms {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
        }
        if let Some(allow) = &self.0.more.allow {
            headers.insert(ALLOW, allow.clone());
        }
        if let Some(challenge) = self.0.more.challenge {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Contended { primitive, holders, retry_after_ms, nodes, waited } => {
                let kind = match primitive {
                    Primitive::Lock | Primitive::Multilock => Kind::LockHeld,
                    Primitive::Semaphore => Kind::SemaphoreFull,
                    Primitive::Election => Kind::ElectionLost,
                };
                let detail = match (primitive, waited) {
                    (Primitive::Lock, false) => "The lock is held by someone else.",
                    (Primitive::Lock, true) => "The lock was not released within wait_ms.",
                    (Primitive::Multilock, false) => "At least one of the locks is held by someone else.",
                    (Primitive::Multilock, true) => "The locks were not all free within wait_ms.",
                    (Primitive::Semaphore, false) => {
                        "Too few permits are free for this request and those that wait before it."
                    }
                    (Primitive::Semaphore, true) => {
                        "Too few permits became free within wait_ms for this request and those before it."
                    }
                    (Primitive::Election, false) => "Someone else leads.",
                    (Primitive::Election, true) => "The leader did not go within wait_ms.",
                };
                let mut holders = holders.into_iter().map(|holder| HolderView::new(primitive, holder));
                let (holder, holders) = match primitive {
                    Primitive::Semaphore => (None, Some(holders.collect())),
                    _ => (holders.next(), None),
                };
                let more = More {
                    holder,
                    holders,
                    retry_after_ms: Some(retry_after_ms),
                    nodes: Some(nodes.into()),
                    ..More::default()
                };
                Self::with(kind, detail, more)
            }
            ServiceError::RequestIdReused { parameters } => Self::invalid(
                parameters
                    .into_iter()
                    .map(|parameter| FieldError {
                        field: parameter.into(),
                        message: "is another one than in the earlier request with this request_id, which holds a lease"
                            .into(),
                    })
                    .collect(),
            ),
            ServiceError::LeaseLost { nodes } => Self::with(
                Kind::LeaseLost,
                "The lease expired, was released, or its nodes lost it: stop what it protects.",
                More { nodes: Some(nodes.into()), ..More::default() },
            ),
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
            ServiceError::StaleToken { highest } => Self::with(
                Kind::StaleToken,
                "A later token has been issued: the holder of this one must not write any more.",
                More { highest_token: Some(highest.get()), ..More::default() },
            ),
            ServiceError::TooManyWaiters { retry_after_ms } => Self::with(
                Kind::TooManyWaiters,
                "The queue is full; come back later.",
                More { retry_after_ms: Some(retry_after_ms), ..More::default() },
            ),
            ServiceError::ShuttingDown => Self::with(
                Kind::ShuttingDown,
                "This server takes no new work; another one, or this one after its restart, will.",
                More { retry_after_ms: Some(1000), ..More::default() },
            ),
        }
    }
}

impl IntoResponse for Problem {
    /// Status only: [`super::front`] takes the problem out and writes it with the request id.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.0.kind.status();
        response.extensions_mut().insert(self);
        response
    }
}

/// What the problem looks like, for the OpenAPI document.
pub(super) fn example(kind: Kind) -> serde_json::Value {
    let (status, type_, title) = kind.row();
    let nodes = |granted: u32, held: u32, failed: u32| json!({"total": 3, "quorum": 2, "granted": granted, "held": held, "failed": failed});
    let mut problem = json!({
        "type": type_, "title": title, "status": status.as_u16(), "code": kind.code(),
        "request_id": "7f3a9c21-0000002a",
    });
    let (detail, more) = match kind {
        Kind::InvalidRequest => (
            "ttl_ms must be between 100 and 300000",
            json!({"errors": [{"field": "ttl_ms", "message": "must be between 100 and 300000"}]}),
        ),
        Kind::Unauthenticated => ("Send the header Authorization: Bearer SECRET.", json!({})),
        Kind::Forbidden => ("The key lacks the scope lock.", json!({})),
        Kind::NotFound => ("No route has this path; /openapi.json lists all of them.", json!({})),
        Kind::MethodNotAllowed => ("The header Allow lists the methods that this route has.", json!({})),
        Kind::PayloadTooLarge => ("A body may have at most 65536 bytes.", json!({})),
        Kind::HeadTooLarge => (HEAD_TOO_LARGE, json!({})),
        Kind::UnsupportedMediaType => ("Send the header Content-Type: application/json.", json!({})),
        Kind::LockHeld => (
            "The lock is held by someone else.",
            json!({
                "holder": {"owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64, "remaining_ms": 12_345},
                "retry_after_ms": 1000, "nodes": nodes(0, 3, 0),
            }),
        ),
        Kind::SemaphoreFull => (
            "Too few permits are free for this request and those that wait before it.",
            json!({
                "holders": [{"slots": [0, 3], "owner": "worker-7", "fencing_token": 1_790_000_000_000_000_u64, "remaining_ms": 12_345}],
                "retry_after_ms": 1000, "nodes": nodes(0, 3, 0),
            }),
        ),
        Kind::ElectionLost => (
            "Someone else leads.",
            json!({
                "holder": {"candidate": "host-2", "value": "10.0.0.2:7000", "term": 1_790_000_000_000_000_u64, "remaining_ms": 12_345},
                "retry_after_ms": 1000, "nodes": nodes(0, 3, 0),
            }),
        ),
        Kind::LeaseLost => (
            "The lease expired, was released, or its nodes lost it: stop what it protects.",
            json!({"nodes": nodes(1, 0, 2)}),
        ),
        Kind::StaleToken => (
            "A later token has been issued: the holder of this one must not write any more.",
            json!({"highest_token": 1_790_000_000_000_042_u64}),
        ),
        Kind::TooManyWaiters => ("The queue is full; come back later.", json!({"retry_after_ms": 1000})),
        Kind::QuorumUnavailable => (
            "Too few of the 3 nodes voted to reach a quorum of 2; GET /v1/nodes may tell why.",
            json!({"retry_after_ms": 1000, "nodes": nodes(1, 0, 2)}),
        ),
        Kind::ShuttingDown => (
            "This server takes no new work; another one, or this one after its restart, will.",
            json!({"retry_after_ms": 1000}),
        ),
        Kind::Overloaded => (OVERLOADED, json!({"retry_after_ms": 1000})),
        Kind::Internal => ("This is a bug in the server; its log has more under the request id.", json!({})),
    };
    problem["detail"] = detail.into();
    if let (Some(problem), serde_json::Value::Object(more)) = (problem.as_object_mut(), more) {
        problem.extend(more);
    }
    problem
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Candidate, Owner, Token, Value};
    use crate::service::{Holder, Nodes, Note};

    fn json(problem: &Problem) -> serde_json::Value {
        serde_json::from_slice(&problem.to_json("r-1")).unwrap()
    }

    fn contended(primitive: Primitive, holders: Vec<Holder>) -> ServiceError {
        let nodes = Nodes { total: 5, quorum: 3, granted: 2, held: 2, failed: 1 };
        ServiceError::Contended { primitive, holders, retry_after_ms: 1001, nodes, waited: false }
    }

    fn holder(slots: &[u32]) -> Holder {
        let note = Note {
            owner: Some(Owner::new("w").unwrap()),
            candidate: Some(Candidate::new("c").unwrap()),
            value: Some(Value::new("v").unwrap()),
            ..Note::default()
        };
        Holder { token: Token::new(7).unwrap(), remaining_ms: 40, note, slots: slots.to_vec() }
    }

    #[test]
    fn every_problem_has_the_members_of_rfc_9457_and_a_code() {
        for kind in Kind::ALL {
            let problem = json(&Problem::new(kind, "x"));
            for member in ["type", "title", "status", "detail", "code", "request_id"] {
                assert!(!problem[member].is_null(), "{kind:?} {member}");
            }
            assert_eq!(problem["type"], format!("/problems/{}", kind.code()));
            assert_eq!(problem.as_object().unwrap().len(), 6);
        }
    }

    #[test]
    fn a_held_lock_names_its_holder_and_when_to_come_back() {
        let problem = Problem::from(contended(Primitive::Lock, vec![holder(&[])]));
        let response = problem.render("r-1");
        assert_eq!(response.status(), 409);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        assert_eq!(response.headers()[CONTENT_TYPE], MEDIA_TYPE);
        let shown = json(&problem);
        assert_eq!(shown["code"], "lock_held");
        assert_eq!(
            shown["holder"],
            serde_json::json!({"owner": "w", "fencing_token": 7, "remaining_ms": 40})
        );
        assert_eq!(shown["retry_after_ms"], 1001);
        assert_eq!(
            shown["nodes"],
            serde_json::json!({"total": 5, "quorum": 3, "granted": 2, "held": 2, "failed": 1})
        );
    }

    #[test]
    fn a_holder_without_a_quorum_is_left_out() {
        let problem = Problem::from(contended(Primitive::Multilock, vec![]));
        assert_eq!(problem.kind(), Kind::LockHeld);
        assert!(json(&problem).get("holder").is_none());
    }

    #[test]
    fn a_full_semaphore_lists_its_holders_with_their_slots() {
        let problem = json(&Problem::from(contended(Primitive::Semaphore, vec![holder(&[1, 2])])));
        assert_eq!(problem["code"], "semaphore_full");
        assert_eq!(
            problem["holders"],
            serde_json::json!([{"slots": [1, 2], "owner": "w", "fencing_token": 7, "remaining_ms": 40}])
        );
    }

    #[test]
    fn a_lost_election_names_the_leader_by_candidate_and_term() {
        let problem = json(&Problem::from(contended(Primitive::Election, vec![holder(&[])])));
        assert_eq!(problem["code"], "election_lost");
        assert_eq!(
            problem["holder"],
            serde_json::json!({"candidate": "c", "value": "v", "term": 7, "remaining_ms": 40})
        );
    }

    #[test]
    fn a_missing_quorum_is_503_and_never_looks_like_contention() {
        let nodes = Nodes { total: 3, quorum: 2, granted: 1, held: 0, failed: 2 };
        let problem = Problem::from(ServiceError::QuorumUnavailable { nodes, retry_after_ms: 10 });
        assert_eq!(problem.render("r").status(), 503);
        assert_eq!(problem.render("r").headers()[RETRY_AFTER], "1");
        assert_eq!(json(&problem)["code"], "quorum_unavailable");
    }

    #[test]
    fn the_examples_have_the_same_members_as_real_problems() {
        let real = json(&Problem::from(contended(Primitive::Lock, vec![holder(&[])])));
        let shown = example(Kind::LockHeld);
        let keys = |value: &serde_json::Value| {
            let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(&real), keys(&shown));
    }
}
