//! Event streams (`text/event-stream`): a lease held while the connection lives, changes observed.
//!
//! The body of an observer pulls the service's stream when the connection can take more. A hold has a
//! task of its own instead: hyper does not ask a body for more while its client does not read, and a waiter that
//! is next in a queue must go on all the same, for those behind it. Dropping the body, which hyper does when the
//! client goes away or stops reading for long, ends the task, drops the service's stream, and so releases the lease.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderName;
use axum::http::header::CACHE_CONTROL;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt as _};
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;
use utoipa::{PartialSchema as _, ToSchema};

use super::problem::Problem;
use super::slots::Slot;
use super::state::AppState;
use super::views::Show;
use crate::service::{HoldEvent, View};

/// Proxies close connections that are silent for longer, and a dead peer shows when written to: the longest silence.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(10);

/// Of answers that come piece by piece: nginx would keep pieces back to fill its buffers.
pub(super) const UNBUFFERED: [(HeaderName, &str); 2] =
    [(CACHE_CONTROL, "no-store"), (HeaderName::from_static("x-accel-buffering"), "no")];

/// The shortest silence after which a heartbeat is sent, however short the lease is.
const HEARTBEAT_MIN: Duration = Duration::from_secs(1);

/// Events of a hold that wait for their reader.
const UNREAD_MAX: usize = 4;

/// Data of the event `waiting`.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"position": 1}))]
pub struct WaitingEvent {
    /// The position in this server's queue on arrival; 1 is next.
    #[schema(value_type = u64, minimum = 0)]
    position: usize,
}

/// Data of the event `released`.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"reason": "shutting_down"}))]
pub struct ReleasedEvent {
    /// Why the server released the lease.
    #[schema(value_type = String, example = "shutting_down")]
    reason: &'static str,
}

/// Names and schemas of the events of a hold stream whose leases look like `lease`.
///
/// Schemas that only events have stand here whole: linters call a component that only an
/// extension refers to unused.
pub(super) fn hold_events_doc(lease: &str) -> serde_json::Value {
    let data = |schema: &str| json!({ "$ref": format!("#/components/schemas/{schema}") });
    json!({
        "waiting": WaitingEvent::schema(), "acquired": data(lease), "denied": data("Problem"),
        "extended": data(lease), "lost": data("Problem"), "released": ReleasedEvent::schema(),
    })
}

/// Names and schemas of the events of an observed resource that looks like `state`.
pub(super) fn observe_events_doc(state: &str, events: &[&str]) -> serde_json::Value {
    let data = json!({ "$ref": format!("#/components/schemas/{state}") });
    events.iter().map(|&event| (event.to_owned(), data.clone())).collect::<serde_json::Map<_, _>>().into()
}

/// An event with its name and data.
fn event(name: &str, data: &impl Serialize) -> Event {
    // Only a map with keys that are no strings could fail, and no event has one.
    Event::default().event(name).json_data(data).unwrap_or_default()
}

fn problem(name: &str, problem: &Problem, request_id: &str) -> Event {
    Event::default().event(name).data(String::from_utf8_lossy(&problem.to_json(request_id)))
}

/// How the events of a held lease are written.
pub(super) fn held_events<V: Serialize + 'static, S: Show<V>>(
    app: &AppState,
    request_id: String,
    show: S,
) -> impl FnMut(HoldEvent) -> Event + Send + use<V, S> {
    let app = AppState::clone(app);
    let mut number = 0_u64;
    move |held| {
        number += 1;
        let event = match held {
            HoldEvent::Waiting { position } => event("waiting", &WaitingEvent { position }),
            HoldEvent::Acquired(lease) => event("acquired", &show(&lease, app.service.wall_ms())),
            HoldEvent::Extended(lease) => event("extended", &show(&lease, app.service.wall_ms())),
            HoldEvent::Denied(error) => problem("denied", &error.into(), &request_id),
            HoldEvent::Lost(why) => problem("lost", &why.into(), &request_id),
            HoldEvent::Released { reason } => event("released", &ReleasedEvent { reason }),
        };
        event.id(number.to_string())
    }
}

/// What becomes of a lock, a semaphore or an election. The id of an event is its revision.
pub(super) fn observed<V: Serialize>(
    slot: Slot,
    changes: impl Stream<Item = View> + Send + 'static,
    name: impl Fn(&View) -> &'static str + Send + 'static,
    show: impl Fn(View) -> V + Send + 'static,
) -> Response {
    answer(slot, HEARTBEAT, changes, move |view| {
        let (name, revision) = (name(&view), view.revision.clone());
        event(name, &show(view)).id(revision)
    })
}

/// A lease held while its client reads.
pub(super) fn held(
    app: &AppState,
    slot: Slot,
    ttl: Duration,
    events: impl Stream<Item = HoldEvent> + Send + 'static,
    mut render: impl FnMut(HoldEvent) -> Event + Send + 'static,
) -> Response {
    // Boxed, since a future is moved about on its way into a task, and so are its many possible events.
    let mut events = Box::pin(events.map(Box::new));
    // A server does not end before the lease of a client that is gone is given back.
    let underway = app.service.engine.underway();
    let (tell, mut told) = mpsc::channel(UNREAD_MAX);
    tokio::spawn(async move {
        let tell_all = async {
            while let Some(event) = events.next().await {
                // While there is no room the lease is not extended, and ends by itself.
                if tell.send(event).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            () = tell_all => {}
            () = tell.closed() => {}
        }
        // What gives the lease back goes out before the server may end.
        drop((events, underway));
    });
    let events = futures_util::stream::poll_fn(move |cx| told.poll_recv(cx));
    answer(slot, (ttl / 3).clamp(HEARTBEAT_MIN, HEARTBEAT), events, move |event: Box<HoldEvent>| {
        render(*event)
    })
}

/// 200 with `events` as they come, and comments between those that are farther apart than a heartbeat.
pub(super) fn answer<S>(
    slot: Slot,
    heartbeat: Duration,
    events: S,
    mut render: impl FnMut(S::Item) -> Event + Send + 'static,
) -> Response
where
    S: Stream + Send + 'static,
{
    let events = events.map(move |event| {
        // The slot is free when the stream is dropped.
        let _slot = &slot;
        Ok::<_, Infallible>(render(event))
    });
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(heartbeat).text("heartbeat"));
    (UNBUFFERED, sse).into_response()
}

#[cfg(test)]
mod tests {
    use super::super::slots::Streams;
    use super::*;
    use axum::body::{Body, HttpBody as _};
    use futures_util::stream;
    use std::pin::Pin;
    use std::sync::Arc;
    use tokio::time::Instant;

    fn numbers(number: u64) -> Event {
        event("number", &number).id(number.to_string())
    }

    async fn next(body: &mut Body) -> Option<String> {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        let data = frame.unwrap().into_data().ok()?;
        Some(String::from_utf8(data.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn events_have_an_id_a_name_and_data_and_end_with_their_stream() {
        let streams = Streams::new(1);
        let answer = answer(streams.open(None).unwrap(), HEARTBEAT, stream::iter([1, 2]), numbers);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        assert_eq!(answer.headers()["cache-control"], "no-store");
        assert_eq!(answer.headers()["x-accel-buffering"], "no");
        let mut body = answer.into_body();
        assert_eq!(next(&mut body).await.unwrap(), "event: number\ndata: 1\nid: 1\n\n");
        assert_eq!(next(&mut body).await.unwrap(), "event: number\ndata: 2\nid: 2\n\n");
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_sends_a_comment_every_ten_seconds() {
        let streams = Streams::new(1);
        let mut body = answer(streams.open(None).unwrap(), HEARTBEAT, stream::pending(), numbers).into_body();
        for seconds in [10, 20, 30] {
            let started = Instant::now();
            assert_eq!(next(&mut body).await.unwrap(), ": heartbeat\n\n", "{seconds}");
            assert_eq!(started.elapsed().as_secs(), 10);
        }
    }

    #[tokio::test]
    async fn there_are_never_more_streams_than_allowed_and_a_dropped_body_makes_room() {
        let streams = Streams::new(1);
        let body = answer(streams.open(None).unwrap(), HEARTBEAT, stream::pending(), numbers).into_body();
        assert!(streams.open(None).is_err());
        drop(body);
        assert!(streams.open(None).is_ok());
    }

    #[tokio::test]
    async fn dropping_the_body_drops_the_stream_of_the_service() {
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        let events = stream::pending::<u64>().map(move |number| {
            let _ = &held;
            number
        });
        let body = answer(Streams::new(1).open(None).unwrap(), HEARTBEAT, events, numbers).into_body();
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(body);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
