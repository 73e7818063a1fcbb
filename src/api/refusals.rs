//! Problems that come from no route: too many clients at once, and what never became a request.
//!
//! The server answers these at the connection, where no [`super::front`] has named the request
//! yet. They are problems with a request id all the same.

use axum::http::{HeaderMap, HeaderValue, Response};

use super::front::{REQUEST_ID, new_request_id, request_id};
use super::problem::{Kind, Problem};
use crate::telemetry::{Refusal, metrics};

/// Probes and scrapes are answered under any load: a server that is busy must not be
/// taken for a dead one.
pub fn is_probe(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/metrics")
}

/// As many requests as may be are being served.
pub fn overloaded(headers: &HeaderMap) -> Response<axum::body::Body> {
    answer(&Problem::overloaded(), request_id(headers))
}

/// The request's head is larger than it may be.
pub fn head_too_large(headers: &HeaderMap) -> Response<axum::body::Body> {
    answer(&Problem::head_too_large(), request_id(headers))
}

/// The whole answer to send in place of `bare`, if that is one that hyper made by itself: to what
/// is no HTTP, or has too large a head, it answers with a status and nothing more. Its own other
/// headers, among them the date, are kept.
pub fn instead_of(bare: &[u8]) -> Option<Vec<u8>> {
    const NO_BODY: &str = "content-length: 0\r\n";
    if !bare.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let (status, headers) = std::str::from_utf8(bare).ok()?.split_once("\r\n")?;
    // A problem always has a body, and so nothing that a route answers gets past this.
    if !headers.contains(NO_BODY) {
        return None;
    }
    let (problem, reason) = match status.get(9..12)? {
        "400" => (Problem::no_request(), Refusal::Malformed),
        "414" | "431" => (Problem::head_too_large(), Refusal::HeaderBytes),
        _ => return None,
    };
    metrics().refused(reason);
    Some(bytes(&problem, headers.replace(NO_BODY, "").trim_end_matches("\r\n\r\n")))
}

fn answer(problem: &Problem, id: HeaderValue) -> Response<axum::body::Body> {
    let shown = id.to_str().unwrap_or_default();
    log(problem.kind(), shown);
    let mut response = problem.render(shown);
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// An answer as it goes over an HTTP/1.1 connection, with `more` headers.
fn bytes(problem: &Problem, more: &str) -> Vec<u8> {
    let id = new_request_id();
    let shown = id.to_str().unwrap_or_default();
    log(problem.kind(), shown);
    let body = problem.to_json(shown);
    let mut text = format!("HTTP/1.1 {}\r\n", problem.kind().status());
    for (name, value) in problem.render(shown).headers() {
        text += &format!("{name}: {}\r\n", value.to_str().unwrap_or_default());
    }
    let (name, more) = (REQUEST_ID, more.trim_end());
    text += &format!("{name}: {shown}\r\ncontent-length: {}\r\n{more}\r\n\r\n", body.len());
    [text.into_bytes(), body].concat()
}

/// At `debug`: whoever sends too much, or garbage, shall not fill the log as well.
fn log(kind: Kind, request_id: &str) {
    tracing::debug!(status = kind.status().as_u16(), code = kind.code(), request_id, "turned away");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_hyper_said_by_itself_is_replaced_and_its_date_is_kept() {
        let bare =
            "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: today\r\n\r\n";
        let said = String::from_utf8(instead_of(bare.as_bytes()).unwrap()).unwrap();
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{said}");
        for line in ["connection: close", "date: today", "content-type: application/problem+json"] {
            assert!(head.lines().any(|given| given == line), "{line} in {said}");
        }
        assert!(head.contains(&format!("content-length: {}", body.len())), "{said}");
        let problem: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(problem["code"], "invalid_request");
        assert!(head.contains(&format!("x-request-id: {}", problem["request_id"].as_str().unwrap())));
        for ours in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: 9\r\n\r\n",
            b"HTTP/1.1 4",
            b"\xff",
        ] {
            assert_eq!(instead_of(ours), None);
        }
    }
}
