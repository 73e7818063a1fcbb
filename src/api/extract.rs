//! From a request to what it asks for: the name in the path, then the body or the query.
//!
//! One extractor for named resources, [`Call`], one for the rest, [`Plain`]; what they carry
//! implements [`Ask`]. Both check what the API key may touch, so that no handler can forget to.

use std::sync::Arc;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody as _};
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Uri};
use bytes::BytesMut;
use futures_util::StreamExt as _;

use super::auth::Key;
use super::fields::{Fields, Source};
use super::problem::Problem;
use super::{Limits, Shared};
use crate::domain::{Invalid, Name, RequestId};

/// Header with the same meaning as the field `request_id`.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// What a request may ask for.
pub trait Ask: Sized + Send {
    /// Where its fields are.
    const SOURCE: Source;

    /// Reads its fields. `None` only when something was wrong and is noted in `fields`.
    fn read(fields: &mut Fields<'_>, context: &Context<'_>) -> Option<Self>;

    /// Whether `key` may ask for this, beyond the name in the path.
    ///
    /// # Errors
    /// When it may not.
    fn permit(&self, _key: &Key) -> Result<(), Problem> {
        Ok(())
    }
}

/// What reading fields may need to know besides them.
pub struct Context<'a> {
    /// Bounds of durations.
    pub limits: &'a Limits,
    /// The request's headers.
    pub headers: &'a HeaderMap,
}

impl Context<'_> {
    /// The request id of a body field or of the header `Idempotency-Key`, which mean the same.
    pub fn request_id(&self, fields: &mut Fields<'_>) -> Option<RequestId> {
        let in_body = fields.text("request_id", RequestId::new);
        let mut given = self.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(header) = given.next() else { return in_body };
        let in_header = match given.next() {
            None => request_id_of_header(header),
            Some(_) => Err(Invalid("is given twice".into())),
        };
        match in_header {
            Ok(in_header) => match in_body {
                Some(in_body) if in_body != in_header => {
                    fields.wrong("request_id", "differs from the header Idempotency-Key");
                    None
                }
                _ => Some(in_header),
            },
            Err(Invalid(why)) => {
                fields.wrong("Idempotency-Key", why);
                None
            }
        }
    }
}

/// The header is a structured-field string in its draft, with quotes, and bare in practice.
fn request_id_of_header(header: &HeaderValue) -> Result<RequestId, Invalid> {
    let text = header.to_str().unwrap_or_default();
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    RequestId::new(bare)
}

/// Nothing is asked for but what the path says.
impl Ask for () {
    const SOURCE: Source = Source::Query;

    fn read(_: &mut Fields<'_>, _: &Context<'_>) -> Option<Self> {
        Some(())
    }
}

/// A request about the resource named in its path, `/v1/KIND/NAME/…`.
pub struct Call<T>(pub Name, pub T);

impl<T: Ask> FromRequest<Shared> for Call<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, ctx: &Shared) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let body = body_of::<T>(&parts, body, ctx).await?;
        let mut fields = fields_of::<T>(&parts, &body);
        let name = name_in_path(&parts.uri)
            .and_then(|name| Name::new(&name))
            .map_err(|Invalid(why)| fields.wrong("name", why))
            .ok();
        let asked = ask::<T>(&parts, &mut fields, ctx);
        let (name, asked) = fields.finish(name.zip(asked))?;
        if let Some(key) = key_of(&parts) {
            key.permit(&name)?;
            asked.permit(key)?;
        }
        Ok(Self(name, asked))
    }
}

/// A request about no single name.
pub struct Plain<T>(pub T);

impl<T: Ask> FromRequest<Shared> for Plain<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, ctx: &Shared) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let body = body_of::<T>(&parts, body, ctx).await?;
        let mut fields = fields_of::<T>(&parts, &body);
        let asked = ask::<T>(&parts, &mut fields, ctx);
        let asked = fields.finish(asked)?;
        if let Some(key) = key_of(&parts) {
            asked.permit(key)?;
        }
        Ok(Self(asked))
    }
}

/// The key that [`super::front`] let the request in with; `None` where no keys are asked for.
fn key_of(parts: &Parts) -> Option<&Arc<Key>> {
    parts.extensions.get()
}

fn ask<T: Ask>(parts: &Parts, fields: &mut Fields<'_>, ctx: &Shared) -> Option<T> {
    T::read(fields, &Context { limits: &ctx.limits, headers: &parts.headers })
}

async fn body_of<T: Ask>(parts: &Parts, body: Body, ctx: &Shared) -> Result<Bytes, Problem> {
    match T::SOURCE {
        Source::Body => read_body(&parts.headers, body, ctx.limits.body_bytes_max).await,
        Source::Query => Ok(Bytes::new()),
    }
}

fn fields_of<'a, T: Ask>(parts: &'a Parts, body: &'a [u8]) -> Fields<'a> {
    match T::SOURCE {
        Source::Query => Fields::of_query(parts.uri.query()),
        Source::Body => {
            let mut fields = Fields::of_body(body);
            if let Some(query) = parts.uri.query().filter(|query| !query.is_empty()) {
                let name = query.split(['=', '&']).next().unwrap_or_default();
                let name: String = name.chars().take(64).collect();
                fields.wrong(name, "is not a known query parameter; the fields go into the body");
            }
            fields
        }
    }
}

/// Refuses a body, and reads past it where that is not too far: a client that is still sending
/// would see its connection reset and not the answer.
async fn too_large(mut rest: BodyDataStream, size: u64, bytes_max: usize) -> Problem {
    const READ_PAST_MAX: u64 = 4 << 20;
    let mut passed = 0;
    while size + passed <= READ_PAST_MAX {
        match rest.next().await {
            Some(Ok(chunk)) => passed += chunk.len() as u64,
            _ => break,
        }
    }
    Problem::payload_too_large(bytes_max)
}

/// The whole body, if it is JSON or empty and not longer than `bytes_max`.
async fn read_body(headers: &HeaderMap, body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let announced = body.size_hint().lower();
    let mut chunks = body.into_data_stream();
    if announced > bytes_max as u64 {
        return Err(match headers.get(EXPECT) {
            // Waits for a word before it sends any.
            Some(_) => Problem::payload_too_large(bytes_max),
            None => too_large(chunks, announced, bytes_max).await,
        });
    }
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    // What is known to be whole is not asked for its end: hyper would have to be polled for that.
    while !chunks.is_end_stream() {
        let Some(chunk) = chunks.next().await else { break };
        let Ok(chunk) = chunk else { return Err(Problem::broken_body()) };
        let read = first.len() + more.len() + chunk.len();
        if read > bytes_max {
            return Err(too_large(chunks, read as u64, bytes_max).await);
        }
        // Nearly every body comes in one piece, which is then not copied.
        if first.is_empty() {
            first = chunk;
        } else {
            more.extend_from_slice(&chunk);
        }
    }
    if !more.is_empty() {
        let mut whole = BytesMut::with_capacity(first.len() + more.len());
        whole.extend_from_slice(&first);
        whole.extend_from_slice(&more);
        first = whole.freeze();
    }
    if first.is_empty() {
        return Ok(first);
    }
    // Else compressed JSON would be called malformed, which its sender knows it is not.
    if headers.get_all(CONTENT_ENCODING).iter().any(|coding| !is_identity(coding)) {
        return Err(Problem::unsupported_content_coding());
    }
    if !headers.get_all(CONTENT_TYPE).iter().all(is_json) {
        return Err(Problem::unsupported_media_type());
    }
    Ok(first)
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

/// The third segment of the path, percent-decoded.
///
/// Taken from the path itself, since all named routes have it in the same place and the router's
/// own parameters would cost an allocation or two per request.
fn name_in_path(uri: &Uri) -> Result<std::borrow::Cow<'_, str>, Invalid> {
    const WHY: Invalid = Invalid(std::borrow::Cow::Borrowed("has a percent-encoding that is not valid"));
    // By bytes: a search by characters costs several times as much on such short texts.
    let segment = uri.path().as_bytes().split(|&byte| byte == b'/').nth(3).unwrap_or_default();
    // A part of a text between ASCII characters is text.
    let segment = std::str::from_utf8(segment).map_err(|_| WHY)?;
    if !segment.as_bytes().contains(&b'%') {
        return Ok(segment.into());
    }
    let mut decoded = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'%' {
            decoded.push(first);
            rest = tail;
            continue;
        }
        let mut byte = [0];
        let digits = tail.get(..2).ok_or(WHY)?;
        hex::decode_to_slice(digits, &mut byte).map_err(|_| WHY)?;
        decoded.push(byte[0]);
        rest = &tail[2..];
    }
    String::from_utf8(decoded).map(Into::into).map_err(|_| WHY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::problem::Kind;

    fn name(path: &str) -> Result<String, Invalid> {
        let uri: Uri = path.parse().unwrap();
        name_in_path(&uri).and_then(|name| Name::new(&name)).map(|name| name.to_string())
    }

    #[test]
    fn a_percent_encoded_name_is_the_same_name() {
        assert_eq!(name("/v1/locks/orders:42/acquire").unwrap(), "orders:42");
        assert_eq!(name("/v1/locks/orders%3A42/acquire").unwrap(), "orders:42");
        assert_eq!(name("/v1/locks/%6f%72ders%3a42").unwrap(), "orders:42");
    }

    #[test]
    fn bad_names_and_bad_encodings_are_refused() {
        let long = format!("/v1/locks/{}", "x".repeat(201));
        for path in [
            "/v1/locks/a%2Fb",
            "/v1/locks/a%",
            "/v1/locks/a%2",
            "/v1/locks/a%zz",
            "/v1/locks/%ff",
            "/v1/locks/%2e%2e",
            "/v1/locks/.",
            "/v1/locks/a%00",
            "/v1/locks/a+b",
            &long,
        ] {
            assert!(name(path).is_err(), "{path}");
        }
    }

    async fn read(content_type: Option<&'static str>, body: Body) -> Result<Bytes, Kind> {
        let mut headers = HeaderMap::new();
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        read_body(&headers, body, 16).await.map_err(|problem| problem.kind())
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

    #[test]
    fn the_idempotency_key_is_the_request_id() {
        let limits = Limits::default();
        let read = |header: Option<&'static str>, body: &'static str| {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_static(header));
            }
            let mut fields = Fields::of_body(body.as_bytes());
            let id = Context { limits: &limits, headers: &headers }.request_id(&mut fields);
            fields.finish(Some(id)).map(|id| id.map(|id| id.as_str().to_owned())).map_err(|p| p.kind())
        };
        assert_eq!(read(None, "{}"), Ok(None));
        assert_eq!(read(Some("abcdefgh"), "{}"), Ok(Some("abcdefgh".to_owned())));
        assert_eq!(read(Some("\"abcdefgh\""), ""), Ok(Some("abcdefgh".to_owned())));
        assert_eq!(read(None, r#"{"request_id":"abcdefgh"}"#), Ok(Some("abcdefgh".to_owned())));
        assert_eq!(read(Some("abcdefgh"), r#"{"request_id":"abcdefgh"}"#), Ok(Some("abcdefgh".to_owned())));
        assert_eq!(read(Some("abcdefgh"), r#"{"request_id":"12345678"}"#), Err(Kind::InvalidRequest));
        assert_eq!(read(Some("short"), "{}"), Err(Kind::InvalidRequest));
        assert_eq!(read(Some("spaces in it"), "{}"), Err(Kind::InvalidRequest));
    }

    #[test]
    fn of_two_idempotency_keys_neither_is_taken() {
        let limits = Limits::default();
        let mut headers = HeaderMap::new();
        for id in ["abcdefgh", "12345678"] {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static(id));
        }
        let mut fields = Fields::of_body(b"{}");
        let id = Context { limits: &limits, headers: &headers }.request_id(&mut fields);
        assert_eq!(fields.finish(Some(id)).unwrap_err().kind(), Kind::InvalidRequest);
    }
}
