//! Extractors: the name in the path, a JSON body, a query. Each checks what the API key may touch, so that no
//! handler can forget to.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use garde::Validate;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::auth::permit;
use super::fields::{self, Field as _, Given};
use super::problem::{Kind, Problem};
use super::state::{AppState, Limits};
use crate::access::Key;
use crate::domain::{Invalid, Name, RequestId};
use crate::telemetry::{Refusal, metrics};

/// Header with the same meaning as the field `request_id`.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// How many bytes of a body that is too long are read before it is refused.
const READ_PAST_MAX: usize = 4 << 20;

/// A request: of which fields it is made and how they are checked.
pub trait Asked: DeserializeOwned + Validate<Context = Limits> + Send {
    /// Where the request may say its id, which the header `Idempotency-Key` can say as well.
    fn request_id(&mut self) -> Option<&mut Option<Given<RequestId>>> {
        None
    }

    /// How long its body may be.
    fn body_bytes_max(limits: &Limits) -> usize {
        limits.body_bytes_max
    }

    /// Whether `key` may ask for this, beyond the name in the path.
    fn permit(&self, _: &Key) -> Result<(), Problem> {
        Ok(())
    }
}

/// The name in the path, which the key may touch.
pub struct Named(pub Name);

impl FromRequestParts<AppState> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        let bad = |why| Problem::field("name", why);
        let Ok(params) = RawPathParams::from_request_parts(parts, app).await else {
            return Err(bad("has a percent-encoding that is not valid".into()));
        };
        let text = params.iter().next().map_or("", |(_, name)| name);
        let name = Name::from_text(text).map_err(|Invalid(why)| bad(why))?;
        if let Some(key) = key_of(parts) {
            permit(key, &name)?;
        }
        Ok(Self(name))
    }
}

/// What most handlers return.
pub type Answer<T> = Result<Json<T>, Problem>;

/// A JSON body: of a request, which has no query then, or of an answer.
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<T: Asked> FromRequest<AppState> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        refuse_query(parts.uri.query())?;
        let body =
            read_body(&parts.headers, body, T::body_bytes_max(&app.limits), app.limits.body_timeout).await?;
        let mut asked = fields::from_json::<T>(&body)?;
        if let Some(in_body) = asked.request_id() {
            take_idempotency_key(&parts.headers, in_body)?;
        }
        permitted(asked, &parts, app).map(Self)
    }
}

/// A query, all of whose parameters are known.
pub struct Query<T>(pub T);

impl<T: Asked> FromRequestParts<AppState> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        // What is meant to narrow a deletion must not be passed over.
        if parts.method == Method::DELETE && has_body(&parts.headers) {
            return Err(Problem::field("body", "is not taken: the fields go into the query"));
        }
        permitted(fields::from_query::<T>(parts.uri.query())?, parts, app).map(Self)
    }
}

/// Whether the head announces a body; over HTTP/2 one may come all the same, and is not read.
fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING) || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0")
}

/// Of an operation that takes no parameters: its query is empty.
#[derive(Deserialize, Validate)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits))]
pub struct Nothing {}

impl Asked for Nothing {}

fn permitted<T: Asked>(asked: T, parts: &Parts, app: &AppState) -> Result<T, Problem> {
    fields::check(&asked, &app.limits)?;
    if let Some(key) = key_of(parts) {
        asked.permit(key)?;
    }
    Ok(asked)
}

/// The key that [`super::auth`] let the request in with; `None` where no keys are asked for.
fn key_of(parts: &Parts) -> Option<&Arc<Key>> {
    parts.extensions.get()
}

fn refuse_query(query: Option<&str>) -> Result<(), Problem> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(()) };
    let name: String = query.split(['=', '&']).next().unwrap_or_default().chars().take(64).collect();
    let why = "is not a known query parameter; the fields go into the body";
    Err(Problem::field(name, why))
}

/// The header means the same as the field: where both are there, they say the same.
fn take_idempotency_key(headers: &HeaderMap, in_body: &mut Option<Given<RequestId>>) -> Result<(), Problem> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(header) = given.next() else { return Ok(()) };
    let bad = |field: &'static str, why| Problem::field(field, why);
    if given.next().is_some() {
        return Err(bad("Idempotency-Key", "is given twice".into()));
    }
    // A structured-field string in its draft, with quotes, and bare in practice.
    let text = header.to_str().unwrap_or_default();
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let id = RequestId::new(bare).map_err(|Invalid(why)| bad("Idempotency-Key", why))?;
    if in_body.as_ref().and_then(Given::get).is_some_and(|in_body| *in_body != id) {
        return Err(bad("request_id", "differs from the header Idempotency-Key".into()));
    }
    if in_body.is_none() {
        *in_body = Some(id.into());
    }
    Ok(())
}

/// The whole body, if it is JSON or empty, not too long, and in time.
async fn read_body(
    headers: &HeaderMap,
    mut body: Body,
    bytes_max: usize,
    patience: Duration,
) -> Result<Bytes, Problem> {
    let announced = body.size_hint().lower();
    let read = match announced <= bytes_max as u64 {
        // tokio arms this timer only if the body has not arrived with the head.
        true => Some(timeout(patience, Limited::new(&mut body, bytes_max).collect()).await),
        false => None,
    };
    let body = match read {
        Some(Ok(Ok(body))) => body.to_bytes(),
        Some(Ok(Err(cause))) if !cause.is::<LengthLimitError>() => return Err(Problem::broken_body()),
        Some(Err(_)) => {
            metrics().refused(Refusal::BodyTimeout);
            return Err(Problem::broken_body());
        }
        _ => {
            // A client that asked first waits for this answer. One that is still sending would see its connection
            // reset instead, so some of what it sends is read.
            if !headers.contains_key(EXPECT) && announced <= READ_PAST_MAX as u64 {
                let mut rest = Limited::new(body, READ_PAST_MAX);
                let _ = timeout(patience, async { while let Some(Ok(_)) = rest.frame().await {} }).await;
            }
            let detail = format!("A body may have at most {bytes_max} bytes.");
            return Err(Problem::new(Kind::PayloadTooLarge, detail));
        }
    };
    if body.is_empty() {
        return Ok(body);
    }
    // Else compressed JSON would be called malformed, which its sender knows it is not.
    if headers.get_all(CONTENT_ENCODING).iter().any(|coding| !is_identity(coding)) {
        let detail = "Send the body as it is, without a Content-Encoding.";
        return Err(Problem::new(Kind::UnsupportedMediaType, detail));
    }
    if !headers.get_all(CONTENT_TYPE).iter().all(is_json) {
        return Err(Problem::from(Kind::UnsupportedMediaType));
    }
    Ok(body)
}

/// Whether nothing was done to the body; some clients say so.
fn is_identity(coding: &HeaderValue) -> bool {
    coding.is_empty() || coding.as_bytes().eq_ignore_ascii_case(b"identity")
}

/// `application/json` or `application/…+json`, whatever the parameters.
fn is_json(content_type: &HeaderValue) -> bool {
    if content_type == "application/json" {
        return true;
    }
    let text = content_type.to_str().unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim();
    let Some((kind, subtype)) = essence.split_once('/') else { return false };
    let suffix = subtype.rsplit('+').next().unwrap_or_default();
    kind.eq_ignore_ascii_case("application") && suffix.eq_ignore_ascii_case("json")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(content_type: Option<&'static str>, body: Body) -> Result<Bytes, Kind> {
        let mut headers = HeaderMap::new();
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        read_body(&headers, body, 16, Limits::default().body_timeout).await.map_err(|problem| problem.kind())
    }

    #[tokio::test]
    async fn an_empty_body_is_fine_whatever_its_content_type() {
        for content_type in [None, Some("text/plain"), Some("application/json"), Some("x")] {
            assert_eq!(read(content_type, Body::empty()).await, Ok(Bytes::new()));
        }
    }

    #[tokio::test]
    async fn a_body_that_is_declared_as_something_else_is_415() {
        let bad =
            ["text/plain", "application/x-www-form-urlencoded", "json", "application/jsonp", "text/json"];
        for content_type in bad {
            let read = read(Some(content_type), Body::from("{}")).await;
            assert_eq!(read, Err(Kind::UnsupportedMediaType), "{content_type}");
        }
        let good =
            ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/a+json"];
        for content_type in good {
            assert!(read(Some(content_type), Body::from("{}")).await.is_ok(), "{content_type}");
        }
        assert!(read(None, Body::from("{}")).await.is_ok());
    }

    #[tokio::test]
    async fn a_long_body_is_413_whether_its_length_is_declared_or_not() {
        assert_eq!(read(None, Body::from(vec![b' '; 17])).await, Err(Kind::PayloadTooLarge));
        let pieces = |count| {
            let piece = |_| Ok::<_, std::io::Error>(Bytes::from_static(b"12345678"));
            Body::from_stream(futures_util::stream::iter((0..count).map(piece)))
        };
        assert_eq!(read(None, pieces(3)).await, Err(Kind::PayloadTooLarge));
        let short = pieces(2);
        assert_eq!(read(None, short).await, Ok(Bytes::from_static(b"1234567812345678")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up() {
        let silent = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(read(None, silent).await, Err(Kind::InvalidRequest));
    }

    #[test]
    fn the_idempotency_key_is_the_request_id() {
        let read = |headers: &[&'static str], in_body: Option<&str>| {
            let name = axum::http::HeaderName::from_static(IDEMPOTENCY_KEY);
            let values = headers.iter().map(|value| (name.clone(), HeaderValue::from_static(value)));
            let mut id = in_body.map(|id| RequestId::new(id).unwrap().into());
            take_idempotency_key(&values.collect(), &mut id).map_err(|problem| problem.kind())?;
            Ok(fields::optional(id).unwrap().map(|id| id.as_str().to_owned()))
        };
        let same = Ok(Some("abcdefgh".to_owned()));
        assert_eq!(read(&[], None), Ok(None));
        assert_eq!(read(&["abcdefgh"], None), same);
        assert_eq!(read(&["\"abcdefgh\""], None), same);
        assert_eq!(read(&[], Some("abcdefgh")), same);
        assert_eq!(read(&["abcdefgh"], Some("abcdefgh")), same);
        assert_eq!(read(&["abcdefgh"], Some("12345678")), Err(Kind::InvalidRequest));
        for bad in [&["short"][..], &["spaces in it"], &["abcdefgh", "12345678"], &["abcdefgh", "abcdefgh"]] {
            assert_eq!(read(bad, None), Err(Kind::InvalidRequest), "{bad:?}");
        }
    }
}
