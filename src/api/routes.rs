//! From a request to its handler: a path, a method, a function.
//!
//! matchit finds the path, as it does for axum. axum's own router would also note what stands in the
//! path for each `{name}`, which [`super::extract`] reads for itself, and box, clone and poll each
//! route once more per request.

use std::sync::Arc;

use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderValue, Method};
use axum::response::IntoResponse;

use super::front::{Answer, Answering, REQUEST_ID, Route};
use super::problem::Problem;

/// Answers a request; the last argument is its id.
pub(super) type Endpoint<S> = Box<dyn Fn(Request, S, &HeaderValue) -> Answer + Send + Sync>;

/// `handler` as an endpoint.
///
/// Its future has some two thousand bytes, most of which one request never uses. As its place is there before it
/// is, it is made right there; `Box::pin`, as in axum's own handlers, makes it elsewhere and copies all of it.
pub(super) fn endpoint<S, A, M, F>(
    handler: impl Fn(State<S>, A) -> F + Copy + Send + Sync + 'static,
) -> Endpoint<S>
where
    S: Send + Sync + 'static,
    A: FromRequest<S, M> + Send + 'static,
    F: Future<Output: IntoResponse> + Send + 'static,
{
    Box::new(move |request, state, _| {
        let place = Box::new_uninit();
        let answer = Box::write(place, async move {
            let asked = match A::from_request(request, &state).await {
                Ok(asked) => asked,
                Err(problem) => return problem.into_response(),
            };
            handler(State(state), asked).await.into_response()
        });
        Box::into_pin(answer)
    })
}

/// `endpoint` for one that answers with problems inside a stream, and so has to know the request's id:
/// it finds it among the headers, also where the client sent none.
pub(super) fn streaming<S: 'static>(endpoint: Endpoint<S>) -> Endpoint<S> {
    Box::new(move |mut request, state, id| {
        request.headers_mut().insert(REQUEST_ID, id.clone());
        endpoint(request, state, id)
    })
}

struct Path<S> {
    route: Arc<Route>,
    methods: Vec<(Method, Endpoint<S>)>,
}

impl<S> Path<S> {
    fn endpoint(&self, method: &Method) -> Result<&Endpoint<S>, Problem> {
        let asked = if method == Method::HEAD { &Method::GET } else { method };
        let found = self.methods.iter().find(|(method, _)| method == asked);
        found.map(|(_, endpoint)| endpoint).ok_or_else(|| Problem::method_not_allowed(self.allow()))
    }

    fn allow(&self) -> HeaderValue {
        let allowed = |(method, _): &(Method, _)| match method.as_str() {
            "GET" => "GET,HEAD".to_owned(),
            method => method.to_owned(),
        };
        let allow: Vec<_> = self.methods.iter().map(allowed).collect();
        HeaderValue::try_from(allow.join(",")).unwrap_or(HeaderValue::from_static(""))
    }
}

/// Endpoints by path and method, for handlers with the state `S`.
pub(super) struct Routes<S> {
    paths: matchit::Router<Path<S>>,
    unmatched: Arc<Route>,
}

impl<S: Clone> Routes<S> {
    /// None yet.
    pub(super) fn new() -> Self {
        let unmatched = Arc::new(Route::new("unmatched", None, None));
        Self { paths: matchit::Router::new(), unmatched }
    }

    /// Serves the path of `route` by these methods; `HEAD` comes with `GET`.
    ///
    /// # Panics
    /// When there is a route for such paths already.
    pub(super) fn add(&mut self, route: Route, methods: Vec<(Method, Endpoint<S>)>) {
        let template = route.template().to_owned();
        if let Err(conflict) = self.paths.insert(template, Path { route: Arc::new(route), methods }) {
            panic!("{conflict}");
        }
    }

    /// The answer to any request.
    pub(super) fn answer(&self, request: Request, state: &S) -> Answering {
        match self.paths.at(request.uri().path()).ok().map(|found| found.value) {
            Some(path) => path.route.answer(request, |request, id| {
                path.endpoint(request.method()).map(|endpoint| endpoint(request, state.clone(), id))
            }),
            None => self.unmatched.answer(request, |_, _| Err(Problem::not_found())),
        }
    }
}
