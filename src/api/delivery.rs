//! Answers with a body, and the one answer that must not get lost: a new lease.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use serde::Serialize;

use super::problem::Problem;
use crate::service::{Granted, Lease};

/// 200 with `answer` as JSON.
pub(super) fn json(answer: &impl Serialize) -> Result<Response, Problem> {
    to_bytes(answer).map(|bytes| of_type(bytes.into(), "application/json"))
}

/// 200 with a new lease as JSON, the way `show` shows it. If the client leaves before the server
/// has taken the body, the grant is undone (docs/protocol.md §1.5).
pub(super) fn lease(
    granted: Granted,
    show: impl FnOnce(&Lease) -> Result<Vec<u8>, Problem>,
) -> Result<Response, Problem> {
    let data = show(&granted.lease)?.into();
    let body = Delivery { data: Some(data), granted: Some(granted) };
    Ok(of_type(Body::new(body), "application/json"))
}

/// 200 with `body` of a media type.
pub(super) fn of_type(body: Body, media_type: &'static str) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// `answer` as JSON.
pub(super) fn to_bytes(answer: &impl Serialize) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::with_capacity(512);
    // Only a map with keys that are no strings could fail, and no answer has one.
    serde_json::to_writer(&mut bytes, answer).map_err(|_| Problem::internal())?;
    Ok(bytes)
}

/// A body that keeps the grant once its data is taken, and undoes it when dropped before. The data is
/// taken when the end is asked for: to be asked for the data says only that somebody would send it.
struct Delivery {
    data: Option<Bytes>,
    granted: Option<Granted>,
}

impl HttpBody for Delivery {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = self.data.take();
        if data.is_none()
            && let Some(granted) = self.granted.take()
        {
            granted.deliver();
        }
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.granted.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.as_ref().map_or(0, |data| data.len() as u64))
    }
}
