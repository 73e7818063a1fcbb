//! The id of a request: the client's own if it is one, else one of ours.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue, Request};
use tower_http::request_id::{MakeRequestId, RequestId};

/// The header that names a request.
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A client's own request id is kept up to this length.
const LEN_MAX: usize = 128;

/// Takes away what no answer could carry, so that it is replaced.
pub(super) fn drop_unusable<B>(mut request: Request<B>) -> Request<B> {
    if request.headers().contains_key(X_REQUEST_ID) && of_client(request.headers()).is_none() {
        request.headers_mut().remove(X_REQUEST_ID);
    }
    request
}

/// The client's own.
pub(super) fn of_client(headers: &HeaderMap) -> Option<&HeaderValue> {
    let usable = |id: &&HeaderValue| {
        (1..=LEN_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(X_REQUEST_ID).filter(usable)
}

/// Makes ids that are unique enough to find a log line by: this process's random number, and a count.
#[derive(Clone, Copy)]
pub(super) struct NewRequestId;

impl NewRequestId {
    pub(super) fn make() -> HeaderValue {
        static PROCESS: LazyLock<u32> = LazyLock::new(rand::random);
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let count = COUNT.fetch_add(1, Ordering::Relaxed) as u32;
        // Hex digits and a hyphen always make a header value.
        HeaderValue::try_from(format!("{:08x}-{count:08x}", *PROCESS))
            .unwrap_or(HeaderValue::from_static("-"))
    }
}

impl MakeRequestId for NewRequestId {
    fn make_request_id<B>(&mut self, _: &Request<B>) -> Option<RequestId> {
        Some(RequestId::new(Self::make()))
    }
}
