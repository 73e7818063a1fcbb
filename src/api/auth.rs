//! The authentication layer: which key a request carries, and what it may do.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::MatchedPath;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName, Method, Request};
use axum::response::{IntoResponse, Response};
use futures_util::future::Either;
use tower::{Layer, Service};

use super::problem::{Kind, Problem};
use crate::access::{Key, KeyRing, Scope};
use crate::domain::Name;

/// Where browsers say whose page had them send a request.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Which scope a request needs.
fn needed(method: &Method, path: &str) -> Scope {
    match *method {
        Method::GET | Method::HEAD => Scope::Read,
        Method::DELETE => Scope::Admin,
        _ if path.starts_with("/v1/members") => Scope::Admin,
        _ => Scope::Lock,
    }
}

fn allow(key: &Key, scope: Scope) -> Result<(), Problem> {
    match key.has(scope) {
        true => Ok(()),
        false => Err(Problem::new(Kind::Forbidden, format!("The key lacks the scope {}.", scope.name()))),
    }
}

/// Whether `key` may touch `name`.
pub(super) fn permit(key: &Key, name: &Name) -> Result<(), Problem> {
    match key.covers(name.as_str()) {
        true => Ok(()),
        false => Err(Problem::new(Kind::Forbidden, format!("The key may not touch the name {name}."))),
    }
}

/// Whether `key` may list all names that begin with `prefix`.
pub(super) fn permit_listing(key: &Key, prefix: &str) -> Result<(), Problem> {
    match key.covers(prefix) {
        true => Ok(()),
        false => Err(Problem::new(
            Kind::Forbidden,
            "The key may list only with a prefix that begins with one of its own.",
        )),
    }
}

/// The key that a request carries.
fn authenticate(keys: &KeyRing, headers: &HeaderMap) -> Result<Arc<Key>, Problem> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let Some(header) = given.next() else {
        return Err(Problem::from(Kind::Unauthenticated));
    };
    // A proxy may have checked the other one.
    if given.next().is_some() {
        return Err(Problem::field("Authorization", "is given twice"));
    }
    let secret = header.to_str().ok().and_then(|text| {
        let (scheme, secret) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
    });
    let Some(secret) = secret else {
        return Err(Problem::new(Kind::Unauthenticated, "The header Authorization must be: Bearer SECRET."));
    };
    keys.find(secret).ok_or_else(Problem::unknown_key)
}

/// Lets a request in, to the routes below `/v1`, if its key has the scope of the method. The extractors find the
/// key among the extensions, and check the names.
#[derive(Clone)]
pub(super) struct AuthLayer(pub(super) Option<Arc<KeyRing>>);

impl<S> Layer<S> for AuthLayer {
    type Service = Auth<S>;

    fn layer(&self, inner: S) -> Auth<S> {
        Auth { inner, keys: self.0.clone() }
    }
}

/// See [`AuthLayer`].
#[derive(Clone)]
pub(super) struct Auth<S> {
    inner: S,
    keys: Option<Arc<KeyRing>>,
}

impl<S> Auth<S> {
    fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Problem> {
        let path = request.extensions().get::<MatchedPath>();
        let scope = needed(request.method(), path.map_or("", MatchedPath::as_str));
        let asks_for_keys = path.is_some_and(|path| path.as_str().starts_with("/v1/"));
        match &self.keys {
            Some(keys) if asks_for_keys => {
                let key = authenticate(keys, request.headers())?;
                // Any key may ask what it may do.
                if path.is_none_or(|path| path.as_str() != "/v1/key") {
                    allow(&key, scope)?;
                }
                request.extensions_mut().insert(key);
                Ok(())
            }
            // A page of any site can have its visitors' browsers send this to servers that only they reach.
            _ if scope != Scope::Read
                && request.headers().get(SEC_FETCH_SITE).is_some_and(|site| site == "cross-site") =>
            {
                Err(Problem::of_another_site())
            }
            _ => Ok(()),
        }
    }
}

impl<S, B> Service<Request<B>> for Auth<S>
where
    S: Service<Request<B>, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.admit(&mut request) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(problem) => Either::Right(ready(Ok(problem.into_response()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::new_key;
    use crate::api::problem::Kind;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn headers(authorization: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, authorization.parse().unwrap())])
    }

    #[test]
    fn a_missing_malformed_or_unknown_key_is_unauthenticated() {
        let (secret, entry) = new_key("k", &words(&["read"]), &[]).unwrap();
        let ring = KeyRing::parse(&entry).unwrap();
        assert!(authenticate(&ring, &headers(&format!("Bearer {secret}"))).is_ok());
        assert!(authenticate(&ring, &headers(&format!("bearer   {secret}"))).is_ok());
        let asked = |problem: &Problem| problem.render("r").headers()["www-authenticate"].clone();
        for bad in ["", "Bearer", "Basic eDp5", &secret] {
            let problem = authenticate(&ring, &headers(bad)).unwrap_err();
            assert_eq!(problem.kind(), Kind::Unauthenticated, "{bad}");
            assert_eq!(asked(&problem), r#"Bearer realm="quorate""#, "{bad}");
        }
        for unknown in ["Bearer ", &format!("Bearer {secret}x")] {
            let problem = authenticate(&ring, &headers(unknown)).unwrap_err();
            assert_eq!(problem.kind(), Kind::Unauthenticated, "{unknown}");
            assert_eq!(asked(&problem), r#"Bearer realm="quorate", error="invalid_token""#, "{unknown}");
        }
        assert!(authenticate(&ring, &HeaderMap::new()).is_err());
        let problem = allow(&ring.find(&secret).unwrap(), Scope::Lock).unwrap_err();
        assert_eq!(asked(&problem), r#"Bearer realm="quorate", error="insufficient_scope""#);
    }

    #[test]
    fn of_two_keys_in_a_request_neither_is_taken() {
        let (secret, entry) = new_key("k", &words(&["read"]), &[]).unwrap();
        let ring = KeyRing::parse(&entry).unwrap();
        for (first, second) in [(secret.as_str(), "other"), ("other", &secret), (&secret, &secret)] {
            let mut both = headers(&format!("Bearer {first}"));
            both.append(AUTHORIZATION, format!("Bearer {second}").parse().unwrap());
            assert_eq!(authenticate(&ring, &both).unwrap_err().kind(), Kind::InvalidRequest);
        }
    }
}
