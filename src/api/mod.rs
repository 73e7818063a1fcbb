//! HTTP only: the route table, what requests and answers look like, problems, keys, streams, the document.
//!
//! A handler parses, makes one call to the service, and maps the answer; nothing here decides what
//! a lock means. axum and utoipa appear nowhere else (but where the server is started).
//!
//! - [`table`](self): all routes on one page, below
//! - [`locks`], [`multilocks`], [`semaphores`], [`elections`], [`fencing`], [`service`]: a file per resource
//! - [`leases`]: acquire, extend, release and hold, once for all four primitives
//! - [`extract`], [`fields`]: from a request to what it asks for
//! - [`views`], [`delivery`], [`streams`]: from what the service says to an answer
//! - [`problem`]: the only place that knows status codes
//! - [`front`]: request id, key, metrics and log line around every route
//! - [`auth`]: keys, scopes, prefixes
//! - [`openapi`]: the document

pub mod auth;
mod delivery;
mod elections;
mod extract;
mod fencing;
mod fields;
mod front;
mod leases;
mod locks;
mod multilocks;
mod openapi;
mod problem;
mod problem_docs;
mod semaphores;
mod service;
mod streams;
mod views;

use std::sync::Arc;

use axum::Router;
use axum::routing::{MethodRouter, any, get};
use utoipa::IntoParams;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use self::auth::KeyRing;
use self::front::{Front, Route};
use self::problem::Problem;
use self::streams::Streams;
use crate::service::{Primitive, Service};

pub use self::openapi::{openapi_3_0_json, openapi_json};

/// All routes.
fn table(keys: Option<&Arc<KeyRing>>) -> OpenApiRouter<Shared> {
    use Primitive::{Election, Lock, Multilock, Semaphore};
    let t = Table { keys };
    OpenApiRouter::with_openapi(openapi::base())
        .routes(t.acquires(Lock, routes!(locks::acquire_lock)))
        .routes(t.keyed(routes!(locks::extend_lock)))
        .routes(t.keyed(routes!(locks::release_lock)))
        .routes(t.keyed(routes!(locks::get_lock, locks::force_release_lock)))
        .routes(t.keyed(routes!(locks::list_locks)))
        .routes(t.acquires(Lock, routes!(locks::hold_lock)))
        .routes(t.acquires(Multilock, routes!(multilocks::acquire_multilock)))
        .routes(t.keyed(routes!(multilocks::extend_multilock)))
        .routes(t.keyed(routes!(multilocks::release_multilock)))
        .routes(t.acquires(Semaphore, routes!(semaphores::acquire_semaphore)))
        .routes(t.keyed(routes!(semaphores::extend_semaphore)))
        .routes(t.keyed(routes!(semaphores::release_semaphore)))
        .routes(t.keyed(routes!(semaphores::get_semaphore)))
        .routes(t.acquires(Semaphore, routes!(semaphores::hold_semaphore)))
        .routes(t.acquires(Election, routes!(elections::campaign)))
        .routes(t.keyed(routes!(elections::extend_election)))
        .routes(t.keyed(routes!(elections::resign)))
        .routes(t.keyed(routes!(elections::proclaim)))
        .routes(t.keyed(routes!(elections::get_leader)))
        .routes(t.keyed(routes!(elections::observe_election)))
        .routes(t.acquires(Election, routes!(elections::hold_election)))
        .routes(t.keyed(routes!(fencing::issue_token)))
        .routes(t.keyed(routes!(fencing::check_token)))
        .routes(t.keyed(routes!(fencing::get_fence)))
        .routes(t.keyed(routes!(service::list_nodes)))
        .routes(t.open(routes!(service::get_livez)))
        .routes(t.open(routes!(service::get_readyz)))
        .routes(t.open(routes!(service::get_metrics)))
        .routes(t.open(routes!(service::get_openapi)))
        .routes(t.open(routes!(service::get_openapi_3_0)))
        .route("/docs", t.hidden("/docs", get(service::get_docs)))
        .route("/docs/{*file}", t.hidden("/docs/{*file}", get(service::get_docs)))
        .route("/docs/", t.hidden("/docs/", get(service::get_docs)))
}

/// What [`router`] serves.
pub struct App {
    /// What a request means.
    pub service: Service,
    /// What a request may ask for.
    pub limits: Limits,
    /// The keys that are asked for; `None`: none, everyone may do everything.
    pub keys: Option<Arc<KeyRing>>,
    /// Writes the metrics in Prometheus' text format.
    pub render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// What a request may ask for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest ttl, in milliseconds.
    pub max_ttl_ms: u64,
    /// The longest wait, in milliseconds.
    pub max_wait_ms: u64,
    /// The longest body, in bytes.
    pub body_bytes_max: usize,
    /// The most event streams at a time.
    pub streams_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_ttl_ms: 300_000, max_wait_ms: 60_000, body_bytes_max: 64 * 1024, streams_max: 10_000 }
    }
}

/// The API.
pub fn router(app: Arc<App>) -> Router {
    let server = Server {
        service: app.service.clone(),
        limits: app.limits,
        render_metrics: Arc::clone(&app.render_metrics),
        streams: Streams::new(app.limits.streams_max),
    };
    let unmatched = Front(Arc::new(Route::new("unmatched", None, None)));
    let not_found: MethodRouter = any(async || Problem::not_found()).layer(unmatched);
    let (routes, _) = table(app.keys.as_ref()).split_for_parts();
    routes.with_state(Arc::new(server)).fallback_service(not_found)
}

/// What handlers work with.
struct Server {
    service: Service,
    limits: Limits,
    render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
    streams: Arc<Streams>,
}

impl Server {
    /// Milliseconds since the epoch, for display only.
    fn wall_ms(&self) -> u64 {
        self.service.wall_ms()
    }
}

type Shared = Arc<Server>;

/// Puts the [`Front`] around routes.
struct Table<'a> {
    keys: Option<&'a Arc<KeyRing>>,
}

impl Table<'_> {
    /// Asks for a key with the scope of the method.
    fn keyed(&self, routes: UtoipaMethodRouter<Shared>) -> UtoipaMethodRouter<Shared> {
        self.with(routes, self.keys, None)
    }

    /// The same for a route that acquires, which is counted.
    fn acquires(
        &self,
        primitive: Primitive,
        routes: UtoipaMethodRouter<Shared>,
    ) -> UtoipaMethodRouter<Shared> {
        self.with(routes, self.keys, Some(primitive))
    }

    /// Asks for no key.
    fn open(&self, routes: UtoipaMethodRouter<Shared>) -> UtoipaMethodRouter<Shared> {
        self.with(routes, None, None)
    }

    /// Asks for no key and is not in the document.
    fn hidden(&self, path: &str, methods: MethodRouter<Shared>) -> MethodRouter<Shared> {
        fronted(methods, Route::new(path, None, None))
    }

    fn with(
        &self,
        (schemas, paths, methods): UtoipaMethodRouter<Shared>,
        keys: Option<&Arc<KeyRing>>,
        acquires: Option<Primitive>,
    ) -> UtoipaMethodRouter<Shared> {
        let template = paths.paths.keys().next().map_or("", String::as_str);
        let route = Route::new(template, keys.cloned(), acquires);
        let methods = fronted(methods, route);
        (schemas, paths, methods)
    }
}

fn fronted(methods: MethodRouter<Shared>, route: Route) -> MethodRouter<Shared> {
    methods.fallback(async || Problem::method_not_allowed()).layer(Front(Arc::new(route)))
}

/// The name in the path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code)] // For the document; `extract::Call` reads it.
struct NamePath {
    /// 1 to 200 characters of `A–Z a–z 0–9 . _ ~ : @ -`, but not `.` or `..`. Hierarchy by `:`.
    #[param(
        min_length = 1,
        max_length = 200,
        pattern = r"^(\.{0,2}[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*|\.{3}[A-Za-z0-9._~:@-]*)$",
        example = "orders:42"
    )]
    name: String,
}
