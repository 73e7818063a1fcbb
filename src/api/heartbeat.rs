//! Heartbeats of a request that waits: many proxies cut off what is silent for a minute.
//!
//! A client asks for them by `Accept: text/event-stream`, and gets comments before the one event that is the answer; or,
//! of a read, by `Prefer: wait`, and gets white space before the JSON. An answer that is there before the first of
//! them is due has its own status, as without heartbeats; afterwards the status has been sent, and is 200.

use std::convert::Infallible;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::extract::FromRequestParts;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::caller;
use super::problem::{Kind, Problem};
use super::stream::{HEARTBEAT, UNBUFFERED};

/// The heartbeats that a request asks for.
pub struct Heartbeats(Option<Asked>);

struct Asked {
    form: Form,
    /// For how long the client likes to wait, in milliseconds.
    wait_ms_max: u64,
    request_id: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `text/event-stream`: comments, and the answer as an event.
    Events,
    /// JSON after white space.
    Spaces,
}

impl<S: Sync> FromRequestParts<S> for Heartbeats {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let wanted = wanted(&parts.method, &parts.headers);
        Ok(Self(wanted.map(|(form, wait_ms_max)| {
            let request_id = caller::request_id(parts);
            Asked { form, wait_ms_max, request_id }
        })))
    }
}

/// Of which form they are to be, and how long the client likes to wait.
fn wanted(method: &Method, headers: &HeaderMap) -> Option<(Form, u64)> {
    let accepts = |media: &str| items(headers, ACCEPT.as_str()).any(|item| item.eq_ignore_ascii_case(media));
    // Generated clients name all types that an operation may answer with, and expect the first of them.
    if accepts("text/event-stream") && !accepts("application/json") {
        return Some((Form::Events, u64::MAX));
    }
    let wait = |item: &str| {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        let seconds = value.trim().trim_matches('"').parse::<u64>();
        let ms = seconds.map_or(u64::MAX, |seconds| seconds.saturating_mul(1000));
        name.trim().eq_ignore_ascii_case("wait").then_some(ms)
    };
    // Whether a lease was granted must not be told by a connection that breaks.
    let wait = items(headers, "prefer").find_map(wait).filter(|_| method == Method::GET);
    wait.map(|ms| (Form::Spaces, ms))
}

/// The items of a header that is a list, without their parameters.
fn items<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|item| item.split(';').next().unwrap_or_default().trim())
}

impl Heartbeats {
    /// Whether the request asks for any; its work is then a task of its own.
    pub fn are_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// How long to wait, of `wait_ms` at most.
    pub fn wait_ms(&self, wait_ms: u64) -> u64 {
        self.0.as_ref().map_or(wait_ms, |asked| wait_ms.min(asked.wait_ms_max))
    }

    /// The answer that `work` ends with, after the heartbeats that it takes.
    ///
    /// # Errors
    /// The problem that `work` ends with before the first heartbeat. A later one is an event, or breaks the
    /// connection where the answer is to be JSON.
    pub async fn answer<A: IntoResponse + Send + 'static>(
        self,
        work: impl Future<Output = Result<A, Problem>> + Send + 'static,
    ) -> Result<Response, Problem> {
        let Some(Asked { form, request_id, .. }) = self.0 else {
            return work.await.map(IntoResponse::into_response);
        };
        // hyper asks for nothing while its client does not read, and who is next in a queue must go on all the same.
        let mut task = JoinSet::new();
        task.spawn(work);
        let mut done = match done_soon(&mut task).await {
            Some(Err(problem)) => return Err(problem),
            Some(Ok(answer)) if form == Form::Spaces => return Ok(answer.into_response()),
            done => done,
        };
        let (media, beat) = match form {
            Form::Events => ("text/event-stream", ": heartbeat\n\n"),
            Form::Spaces => ("application/json", "\n"),
        };
        let body = async_stream::stream! {
            while done.is_none() {
                yield Ok(Bytes::from(beat));
                done = done_soon(&mut task).await;
            }
            let (event, body) = match done {
                Some(Ok(answer)) => ("answer", answer.into_response().into_body()),
                Some(Err(problem)) if form == Form::Events => ("problem", problem.to_json(&request_id).into()),
                _ => {
                    yield Err(BoxError::from("a problem, when 200 had been sent"));
                    return;
                }
            };
            if form == Form::Events {
                yield Ok(format!("id: 1\nevent: {event}\ndata: ").into());
            }
            for await piece in body.into_data_stream() {
                yield piece.map_err(BoxError::from);
            }
            if form == Form::Events {
                yield Ok("\n\n".into());
            }
        };
        Ok((UNBUFFERED, [(CONTENT_TYPE, media)], Body::from_stream(body)).into_response())
    }
}

/// What the task ends with, if it does before a heartbeat is due.
async fn done_soon<A: 'static>(task: &mut JoinSet<Result<A, Problem>>) -> Option<Result<A, Problem>> {
    let ended = timeout(HEARTBEAT, task.join_next()).await.ok()?;
    Some(ended.and_then(Result::ok).unwrap_or_else(|| Err(Kind::Internal.into())))
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use axum::http::{HeaderName, HeaderValue};
    use futures_util::StreamExt as _;
    use tokio::time::{Duration, sleep};

    use super::super::request::Json;
    use super::*;

    fn of(method: Method, headers: &[(&'static str, &'static str)]) -> Option<(Form, u64)> {
        let header = |(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        wanted(&method, &headers.iter().copied().map(header).collect())
    }

    #[test]
    fn who_asks_for_events_gets_events_and_who_can_take_json_gets_that() {
        for (accept, events) in [
            ("text/event-stream", true),
            ("Text/Event-Stream; q=0.9, */*", true),
            ("application/json", false),
            ("application/json, text/event-stream", false),
            ("*/*", false),
        ] {
            let found = of(Method::POST, &[("accept", accept)]).map(|(form, _)| form);
            assert_eq!(found == Some(Form::Events), events, "{accept}");
        }
    }

    #[test]
    fn a_read_that_prefers_to_wait_gets_spaces_for_as_long_as_it_says() {
        for (prefer, ms) in [
            ("wait=5", Some(5000)),
            ("respond-async, Wait = \"7\"; foo=bar", Some(7000)),
            ("wait", Some(u64::MAX)),
            ("wait=long", Some(u64::MAX)),
            ("wait=99999999999999999999", Some(u64::MAX)),
            ("waiting=5", None),
            ("return=minimal", None),
        ] {
            assert_eq!(of(Method::GET, &[("prefer", prefer)]), ms.map(|ms| (Form::Spaces, ms)), "{prefer}");
            assert_eq!(of(Method::POST, &[("prefer", prefer)]), None, "{prefer}");
        }
    }

    async fn answer(
        form: Form,
        seconds: u64,
        done: Result<&'static str, Kind>,
    ) -> Result<(HeaderMap, Result<String, String>), Problem> {
        let asked = Asked { form, wait_ms_max: u64::MAX, request_id: "r-1".to_owned() };
        let work = async move {
            sleep(Duration::from_secs(seconds)).await;
            done.map(Json).map_err(Problem::from)
        };
        let (head, body) = Heartbeats(Some(asked)).answer(work).await?.into_parts();
        let read = to_bytes(body, 1 << 16).await.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
        Ok((head.headers, read.map_err(|error| error.to_string())))
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeats_come_every_ten_seconds_until_the_answer_does() {
        let (headers, events) = answer(Form::Events, 25, Ok("done")).await.unwrap();
        assert_eq!(headers["content-type"], "text/event-stream");
        assert_eq!(headers["x-accel-buffering"], "no");
        let beat = ": heartbeat\n\n";
        assert_eq!(events.unwrap(), format!("{beat}{beat}id: 1\nevent: answer\ndata: \"done\"\n\n"));
        let (headers, json) = answer(Form::Spaces, 25, Ok("done")).await.unwrap();
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(json.unwrap(), "\n\n\"done\"");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_needs_no_heartbeat_is_as_ever() {
        let (headers, json) = answer(Form::Spaces, 9, Ok("done")).await.unwrap();
        assert!(!headers.contains_key("x-accel-buffering"));
        assert_eq!(json.unwrap(), "\"done\"");
        let (_, events) = answer(Form::Events, 9, Ok("done")).await.unwrap();
        assert_eq!(events.unwrap(), "id: 1\nevent: answer\ndata: \"done\"\n\n");
        for form in [Form::Events, Form::Spaces] {
            let problem = answer(form, 9, Err(Kind::ShuttingDown)).await.unwrap_err();
            assert_eq!(problem.kind(), Kind::ShuttingDown);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_problem_is_an_event_and_never_passes_for_the_json_of_a_success() {
        let (_, events) = answer(Form::Events, 11, Err(Kind::ShuttingDown)).await.unwrap();
        let events = events.unwrap();
        let data = events.split_once("event: problem\ndata: ").unwrap().1;
        let problem: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!((&problem["code"], &problem["request_id"]), (&"shutting_down".into(), &"r-1".into()));
        let (_, json) = answer(Form::Spaces, 11, Err(Kind::ShuttingDown)).await.unwrap();
        assert!(json.is_err(), "the connection breaks");
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_ends_the_work_and_who_does_not_read_keeps_nobody_from_it() {
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel::<()>();
        let work = async move {
            let _tell = tell;
            sleep(HEARTBEAT * 2).await;
            begun.send(()).unwrap();
            std::future::pending::<Result<Json<()>, Problem>>().await
        };
        let asked = Asked { form: Form::Events, wait_ms_max: u64::MAX, request_id: String::new() };
        let mut body = Heartbeats(Some(asked)).answer(work).await.unwrap().into_body().into_data_stream();
        has_begun.await.unwrap();
        assert!(body.next().await.is_some());
        drop(body);
        told.await.unwrap_err();
    }
}
