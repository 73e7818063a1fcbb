//! The authentication layer: which key a request carries, and what it may do.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName, Method};
use axum::response::{IntoResponse, Response};
use futures_util::future::Either;
use tower::layer::layer_fn;
use tower::{Layer, Service, service_fn};

use super::problem::{Kind, Problem};
use crate::access::{Key, KeyRing, Scope};
use crate::domain::Name;

/// Where browsers say whose page had them send a request.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Which scope a request needs; any key may ask what it may do.
fn needed(method: &Method, path: &str) -> Option<Scope> {
    match *method {
        Method::GET | Method::HEAD => (path != "/v1/key").then_some(Scope::Read),
        Method::DELETE => Some(Scope::Admin),
        _ if path.starts_with("/v1/members") => Some(Scope::Admin),
        _ => Some(Scope::Lock),
    }
}

fn forbidden(detail: impl Into<Cow<'static, str>>) -> Problem {
    Problem::new(Kind::Forbidden, detail)
}

fn allow(key: &Key, scope: Scope) -> Result<(), Problem> {
    let lacks = || forbidden(format!("The key lacks the scope {}.", scope.name()));
    key.has(scope).then_some(()).ok_or_else(lacks)
}

/// Whether `key` may touch `name`.
pub(super) fn permit(key: &Key, name: &Name) -> Result<(), Problem> {
    let strange = || forbidden(format!("The key may not touch the name {name}."));
    key.covers(name.as_str()).then_some(()).ok_or_else(strange)
}

/// Whether `key` may list all names that begin with `prefix`.
pub(super) fn permit_listing(key: &Key, prefix: &str) -> Result<(), Problem> {
    let strange = || forbidden("The key may list only with a prefix that begins with one of its own.");
    key.covers(prefix).then_some(()).ok_or_else(strange)
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
fn admit(keys: Option<&KeyRing>, request: &mut Request) -> Result<(), Problem> {
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let scope = needed(request.method(), path);
    if let Some(keys) = keys.filter(|_| path.starts_with("/v1/")) {
        let key = authenticate(keys, request.headers())?;
        scope.map_or(Ok(()), |scope| allow(&key, scope))?;
        if scope == Some(Scope::Admin) && path.starts_with("/v1/members") && !key.covers("") {
            return Err(forbidden(
                "A key that is limited to prefixes may not change the members: all names rest on them.",
            ));
        }
        request.extensions_mut().insert(key);
        return Ok(());
    }
    // A page of any site can have its visitors' browsers send this to servers that only they reach.
    let site = request.headers().get(SEC_FETCH_SITE);
    let is_safe = matches!(scope, None | Some(Scope::Read)) || site.is_none_or(|site| site != "cross-site");
    if is_safe { Ok(()) } else { Err(Problem::of_another_site()) }
}

/// Answers in place of the routes where a request is not let in.
pub(super) fn authentication<S>(
    keys: Option<Arc<KeyRing>>,
) -> impl Layer<
    S,
    Service = impl Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + Sync,
> + Clone
+ Send
+ Sync
where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + Sync,
{
    layer_fn(move |mut inner: S| {
        let keys = keys.clone();
        service_fn(move |mut request| match admit(keys.as_deref(), &mut request) {
            Ok(()) => Either::Left(inner.call(request)),
            Err(problem) => Either::Right(ready(Ok(problem.into_response()))),
        })
    })
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
