//! All routes, and what stands around them, on one page.
//!
//! A new endpoint is a handler with its `utoipa::path` in the file of its resource, a struct for what it asks
//! ([`super::request::Asked`]) if it asks for anything, and a line in [`routes`].

use std::sync::Arc;

use axum::Router;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tower::ServiceBuilder;
use tower_http::ServiceBuilderExt as _;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::trace::TraceLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::{Kind, Problem};
use super::request_id::{self, NewRequestId};
use super::slots::Streams;
use super::state::{App, AppState, Limits, Shared};
use super::{
    auth, batches, console, document, elections, fencing, locks, members, multilocks, observe, semaphores,
    service, waiters,
};
use crate::access::KeyRing;

/// Every documented route. Those below `/v1` ask for a key, where keys are asked for.
pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(document::base())
        .routes(routes!(locks::acquire_lock))
        .routes(routes!(locks::extend_lock))
        .routes(routes!(locks::release_lock))
        .routes(routes!(locks::get_lock, locks::force_release_lock))
        .routes(routes!(locks::list_locks))
        .routes(routes!(locks::observe_lock))
        .routes(routes!(locks::hold_lock))
        .routes(routes!(multilocks::acquire_multilock))
        .routes(routes!(multilocks::extend_multilock))
        .routes(routes!(multilocks::release_multilock))
        .routes(routes!(semaphores::acquire_semaphore))
        .routes(routes!(semaphores::extend_semaphore))
        .routes(routes!(semaphores::release_semaphore))
        .routes(routes!(semaphores::get_semaphore, semaphores::force_release_semaphore))
        .routes(routes!(semaphores::list_semaphores))
        .routes(routes!(semaphores::observe_semaphore))
        .routes(routes!(semaphores::hold_semaphore))
        .routes(routes!(elections::campaign))
        .routes(routes!(elections::extend_election))
        .routes(routes!(elections::resign))
        .routes(routes!(elections::proclaim))
        .routes(routes!(elections::get_leader, elections::force_resign))
        .routes(routes!(elections::list_elections))
        .routes(routes!(elections::observe_election))
        .routes(routes!(elections::hold_election))
        .routes(routes!(batches::extend_leases))
        .routes(routes!(batches::release_leases))
        .routes(routes!(fencing::issue_token))
        .routes(routes!(fencing::check_token))
        .routes(routes!(fencing::get_fence))
        .routes(routes!(members::list_members, members::add_member))
        .routes(routes!(members::remove_member))
        .routes(routes!(members::replace_member))
        .routes(routes!(members::close_member))
        .routes(routes!(waiters::list_waiters))
        .routes(routes!(service::get_key))
        .routes(routes!(service::list_nodes))
        .routes(routes!(service::get_livez))
        .routes(routes!(service::get_readyz))
        .routes(routes!(service::get_metrics))
        .routes(routes!(service::get_openapi))
        .routes(routes!(service::get_openapi_3_0))
}

/// Routes that are not in the document: pages for people, and their files.
fn pages() -> Router<AppState> {
    Router::new()
        .route("/", get(console::to_console))
        .route("/console", get(console::get_console))
        .route("/console/", get(console::to_console))
        .route("/console/{*file}", get(console::get_console))
        .route("/docs", get(service::get_docs))
        .route("/docs/", get(service::get_docs))
        .route("/docs/{*file}", get(service::get_docs))
}

/// The document, OpenAPI 3.1, with line breaks and the bounds of a server that has none of its own.
pub fn openapi_json() -> String {
    document::rendered(routes().into_openapi(), &Limits::default()).0
}

/// The same in OpenAPI 3.0.3, for older tools.
pub fn openapi_3_0_json() -> String {
    document::rendered(routes().into_openapi(), &Limits::default()).1
}

/// The API.
pub fn router(app: App) -> Router {
    let (routes, document) = routes().split_for_parts();
    let (document, document_3_0) = document::rendered(document, &app.limits);
    let keys = app.keys.clone();
    let streams = Streams::new(app.limits.streams_max);
    let shared = Shared { streams, document: document.into(), document_3_0: document_3_0.into(), app };
    layered(routes.merge(pages()), keys).with_state(Arc::new(shared))
}

/// Puts everything around `routes` that is the same for all of them. From the outside in:
///
/// - the request has an id before anything speaks of it, and every answer carries it;
/// - the key is marked as secret before anything could log it;
/// - the span, disabled unless traces are on, is entered while all that follows works;
/// - metrics, log line and problems (ours) are outside of what may fail, so that they tell how it ended;
/// - a panic becomes an answer inside of them, and is counted like one;
/// - the key (ours) is checked last; the handlers' extractors check which names it may touch.
///
/// A body's limit and time are kept where it is read (`request.rs`): tower-http's layers for that would reset the
/// connection of a client that still sends, and arm a timer for every request.
fn layered<S: Clone + Send + Sync + 'static>(routes: Router<S>, keys: Option<Arc<KeyRing>>) -> Router<S> {
    let trace = TraceLayer::new_for_http().make_span_with(observe::span).on_request(()).on_response(());
    let trace = trace.on_body_chunk(()).on_eos(()).on_failure(());
    let layers = ServiceBuilder::new()
        .map_request(request_id::drop_unusable)
        .set_x_request_id(NewRequestId)
        .propagate_x_request_id()
        .sensitive_request_headers([AUTHORIZATION].into())
        .layer(trace)
        .layer(observe::observe())
        .layer(CatchPanicLayer::custom(|_| Problem::from(Kind::Internal).into_response()))
        .layer(auth::authentication(keys));
    routes
        .fallback(async || Problem::from(Kind::NotFound))
        .method_not_allowed_fallback(async || Problem::from(Kind::MethodNotAllowed))
        .layer(layers)
}

/// The answer to a request for which the server has no room.
pub fn overloaded(headers: &HeaderMap) -> Response {
    let id = request_id::of_client(headers).cloned().unwrap_or_else(NewRequestId::make);
    let mut response = Problem::from(Kind::Overloaded).render(id.to_str().unwrap_or_default());
    response.headers_mut().insert("x-request-id", id);
    response
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::{Request, StatusCode};
    use axum::routing::post;
    use serde_json::Value;
    use tower::ServiceExt as _;

    use super::*;
    use crate::access;

    fn app(keys: Option<Arc<KeyRing>>) -> Router {
        let routes = Router::new()
            .route("/v1/fine", get(async || "fine"))
            .route("/v1/panic", get(async || -> () { panic!("on purpose") }))
            .route("/v1/bad", get(async || Problem::from(Kind::NotFound)))
            .route("/v1/bare", get(async || StatusCode::IM_A_TEAPOT))
            .route("/v1/post", post(async || "done"));
        layered(routes, keys)
    }

    async fn ask(app: &Router, request: axum::http::request::Builder) -> (StatusCode, HeaderMap, Value) {
        let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 1 << 16).await.unwrap();
        (parts.status, parts.headers, serde_json::from_slice(&body).unwrap_or_default())
    }

    #[tokio::test]
    async fn a_clients_own_request_id_comes_back_and_a_bad_one_is_replaced() {
        for (sent, kept) in [("abc-123", true), ("", false), ("a b", false), (&*"x".repeat(129), false)] {
            let (_, headers, _) =
                ask(&app(None), Request::get("/v1/fine").header("X-Request-Id", sent)).await;
            assert_eq!(headers["x-request-id"] == sent, kept, "{sent}");
            assert!(!headers["x-request-id"].is_empty());
        }
    }

    #[tokio::test]
    async fn generated_request_ids_differ() {
        let (_, first, _) = ask(&app(None), Request::get("/v1/fine")).await;
        let (_, second, _) = ask(&app(None), Request::get("/v1/fine")).await;
        assert_ne!(first["x-request-id"], second["x-request-id"]);
    }

    #[tokio::test]
    async fn a_problem_carries_the_request_id_of_its_header() {
        let (status, headers, body) =
            ask(&app(None), Request::get("/v1/bad").header("x-request-id", "mine")).await;
        assert_eq!(status, 404);
        assert_eq!(headers["content-type"], "application/problem+json");
        assert_eq!(headers["x-request-id"], "mine");
        assert_eq!(body["request_id"], "mine");
        assert_eq!(body["code"], "not_found");
    }

    #[tokio::test]
    async fn a_panic_is_answered_with_an_internal_problem() {
        let (status, headers, body) = ask(&app(None), Request::get("/v1/panic")).await;
        assert_eq!(status, 500);
        assert!(headers.contains_key("x-request-id"));
        assert_eq!(body["code"], "internal");
        assert!(!body.to_string().contains("on purpose"));
    }

    #[tokio::test]
    async fn an_error_that_nobody_worded_becomes_a_problem() {
        let (status, _, body) = ask(&app(None), Request::get("/v1/bare")).await;
        assert_eq!(status, 400);
        assert_eq!(body["code"], "invalid_request");
    }

    #[tokio::test]
    async fn a_wrong_method_is_405_with_the_methods_that_are_right() {
        let (status, headers, body) = ask(&app(None), Request::get("/v1/post")).await;
        assert_eq!(status, 405);
        assert_eq!(headers["allow"], "POST");
        assert_eq!(body["code"], "method_not_allowed");
        let (_, headers, _) = ask(&app(None), Request::put("/v1/fine")).await;
        assert_eq!(headers["allow"], "GET,HEAD");
    }

    #[tokio::test]
    async fn head_is_answered_with_the_head_that_get_has() {
        let (status, headers, _) = ask(&app(None), Request::head("/v1/fine")).await;
        assert_eq!((status, &headers["content-length"]), (StatusCode::OK, &"4".parse().unwrap()));
        let (status, _, body) = ask(&app(None), Request::head("/v1/bad")).await;
        assert_eq!((status, body), (StatusCode::NOT_FOUND, Value::Null));
    }

    #[tokio::test]
    async fn a_page_of_another_site_changes_nothing_where_no_key_is_asked_for() {
        let from = |request: axum::http::request::Builder, site| request.header("Sec-Fetch-Site", site);
        let (status, headers, body) = ask(&app(None), from(Request::post("/v1/post"), "cross-site")).await;
        assert_eq!((status, &body["code"]), (StatusCode::FORBIDDEN, &"forbidden".into()));
        assert!(!headers.contains_key("www-authenticate"), "no key would help");
        for harmless in [
            from(Request::get("/v1/fine"), "cross-site"),
            from(Request::head("/v1/fine"), "cross-site"),
            from(Request::post("/v1/post"), "same-origin"),
            from(Request::post("/v1/post"), "none"),
            Request::post("/v1/post"),
        ] {
            let (status, ..) = ask(&app(None), harmless).await;
            assert_eq!(status, 200);
        }
        // A browser adds no key by itself.
        let (secret, entry) = access::new_key("k", &["lock".to_owned()], &[]).unwrap();
        let keys = Some(Arc::new(KeyRing::parse(&entry).unwrap()));
        let keyed = Request::post("/v1/post").header("authorization", format!("Bearer {secret}"));
        let (status, ..) = ask(&app(keys), from(keyed, "cross-site")).await;
        assert_eq!(status, 200);
    }

    #[tokio::test]
    async fn a_route_with_keys_asks_for_one_with_the_scope_of_the_method() {
        let (secret, entry) = access::new_key("k", &["read".to_owned()], &[]).unwrap();
        let keys = Some(Arc::new(KeyRing::parse(&entry).unwrap()));
        let bearer = format!("Bearer {secret}");
        let (status, headers, body) = ask(&app(keys.clone()), Request::get("/v1/fine")).await;
        assert_eq!((status, &body["code"]), (StatusCode::UNAUTHORIZED, &"unauthenticated".into()));
        assert_eq!(headers["www-authenticate"], r#"Bearer realm="quorate""#);
        let (status, _, _) =
            ask(&app(keys.clone()), Request::get("/v1/fine").header("authorization", &bearer)).await;
        assert_eq!(status, 200);
        let (status, _, body) =
            ask(&app(keys), Request::post("/v1/post").header("authorization", &bearer)).await;
        assert_eq!((status, &body["code"]), (StatusCode::FORBIDDEN, &"forbidden".into()));
    }
}
