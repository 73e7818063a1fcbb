//! Event streams (`text/event-stream`): a lease held while the connection lives, an election observed.
//!
//! The body of an observed election pulls the service's stream when the connection can take more. What
//! holds has a task of its own instead: hyper does not ask a body for more while its client does not
//! read, and whoever is next in a queue must go on all the same, for those behind it. Dropping the body,
//! which hyper does when the client goes away, ends the task and drops the service's stream, and that
//! releases the lease. So does a client that stops reading, after a while.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use futures_util::{Stream, StreamExt as _};
use http_body::Frame;
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use utoipa::{PartialSchema as _, ToSchema};

use super::Shared;
use super::delivery;
use super::elections::ElectionState;
use super::front::REQUEST_ID;
use super::leases::Shows;
use super::problem::Problem;
use crate::domain::Name;
use crate::service::{HoldEvent, LeaderView, Primitive};
use crate::telemetry::{self, Acquisition};

/// Proxies close connections that are silent for longer, and a dead peer shows when written to.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Events of a hold that wait for their reader. What has no room was out of date soon: an `extended` has
/// the next one behind it.
const UNREAD_MAX: usize = 4;

/// A hold whose events nobody takes for so long ends, or for as long as its lease lasts if that is shorter.
const UNREAD_FOR: Duration = Duration::from_secs(20);

/// How many streams are open, and how many may be.
pub(super) struct Streams {
    open: AtomicUsize,
    max: usize,
}

impl Streams {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { open: AtomicUsize::new(0), max })
    }

    /// Room for one more stream. `acquires`: what it would acquire.
    pub(super) fn open(self: &Arc<Self>, acquires: Option<Primitive>) -> Result<Slot, Problem> {
        let one_more = |open: usize| (open < self.max).then_some(open + 1);
        if self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            if let Some(primitive) = acquires {
                telemetry::metrics().acquisition(primitive, Acquisition::Rejected);
            }
            return Err(Problem::too_many_streams());
        }
        telemetry::metrics().streams.increment(1.0);
        Ok(Slot(Arc::clone(self)))
    }
}

/// One open stream; dropping it makes room.
pub(super) struct Slot(Arc<Streams>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        telemetry::metrics().streams.decrement(1.0);
    }
}

/// What a stream sends.
pub(super) enum Line {
    Event(Event),
    /// A line that clients skip.
    Comment(&'static str),
}

/// An event. Without an `id` of its own it is numbered.
pub(super) struct Event {
    name: &'static str,
    id: Option<String>,
    data: Vec<u8>,
    /// Nothing follows it.
    last: bool,
}

impl Event {
    fn new(name: &'static str, data: &impl Serialize) -> Self {
        // Only a map with keys that are no strings could fail, and no event has one.
        let data = serde_json::to_vec(data).unwrap_or_default();
        Self { name, id: None, data, last: false }
    }

    fn last(name: &'static str, data: &impl Serialize) -> Self {
        Self { last: true, ..Self::new(name, data) }
    }

    fn problem(name: &'static str, problem: &Problem, request_id: &str) -> Self {
        Self { name, id: None, data: problem.to_json(request_id), last: true }
    }

    fn write(&self, number: u64) -> Bytes {
        let Self { name, id, data, .. } = self;
        let mut head = String::with_capacity(64 + data.len());
        // Writing into a String cannot fail.
        let _ = match id {
            Some(id) => write!(head, "id: {id}\nevent: {name}\ndata: "),
            None => write!(head, "id: {number}\nevent: {name}\ndata: "),
        };
        let mut text = head.into_bytes();
        // JSON has no line breaks outside of strings, and none unescaped in them.
        text.extend_from_slice(data);
        text.extend_from_slice(b"\n\n");
        text.into()
    }
}

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

/// Names and schemas of the events of an observed election.
pub(super) fn observe_events_doc() -> serde_json::Value {
    let data = json!({ "$ref": "#/components/schemas/ElectionState" });
    json!({ "leader": data, "vacant": data })
}

/// How the events of a held lease are written.
pub(super) fn held_events<W: Shows>(
    ctx: &Shared,
    headers: &HeaderMap,
    what: W,
) -> impl FnMut(HoldEvent) -> Line + Send + Unpin + use<W> {
    let ctx = Arc::clone(ctx);
    let request_id = headers.get(REQUEST_ID).cloned();
    move |event| {
        let id = request_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
        Line::Event(match event {
            HoldEvent::Waiting { position } => Event::new("waiting", &WaitingEvent { position }),
            HoldEvent::Acquired(lease) => Event::new("acquired", &what.show(&lease, ctx.wall_ms())),
            HoldEvent::Extended(lease) => Event::new("extended", &what.show(&lease, ctx.wall_ms())),
            HoldEvent::Denied(error) => Event::problem("denied", &error.into(), id),
            HoldEvent::Lost { nodes } => Event::problem("lost", &Problem::lease_lost(nodes), id),
            HoldEvent::Released { reason } => Event::last("released", &ReleasedEvent { reason }),
        })
    }
}

/// An observed election.
pub(super) fn observed(
    slot: Slot,
    changes: impl Stream<Item = LeaderView> + Send + 'static,
    name: Name,
) -> Response {
    answer(slot, changes, move |view| {
        let state = ElectionState::new(&name, view);
        let name = if state.is_vacant() { "vacant" } else { "leader" };
        Line::Event(Event { id: Some(state.revision().to_owned()), ..Event::new(name, &state) })
    })
}

/// A lease held while its client reads.
pub(super) fn held<R>(
    ctx: &Shared,
    slot: Slot,
    events: impl Stream<Item = HoldEvent> + Send + 'static,
    render: R,
) -> Response
where
    R: FnMut(HoldEvent) -> Line + Send + Unpin + 'static,
{
    // Boxed once, since a future is moved about on its way into a task, and leaves room for itself there.
    let events = Box::pin(events);
    // A server does not end before the lease of a client that is gone is given back.
    let underway = ctx.service.engine.underway();
    // Boxed, since it makes room for many events at once.
    let (tell, mut told) = mpsc::channel::<Box<HoldEvent>>(UNREAD_MAX + 1);
    tokio::spawn(async move {
        drive(events, tell).await;
        drop(underway);
    });
    answer(
        slot,
        futures_util::stream::poll_fn(move |cx| told.poll_recv(cx).map(|event| Some(*event?))),
        render,
    )
}

/// Passes events on until the last one, or until they are not taken any more.
async fn drive(mut events: impl Stream<Item = HoldEvent> + Unpin, tell: mpsc::Sender<Box<HoldEvent>>) {
    // Whatever else waits, there is room for the last one.
    let Ok(last) = tell.clone().try_reserve_owned() else { return };
    let (mut unread, mut since, mut patience, mut holds) = (0, Instant::now(), UNREAD_FOR, false);
    let left = || UNREAD_MAX - tell.capacity();
    loop {
        if left() < unread {
            (unread, since) = (left(), Instant::now());
        }
        let event = tokio::select! {
            biased;
            () = tell.closed() => return,
            event = events.next() => event,
            () = tokio::time::sleep_until(since + patience), if unread > 0 => {
                if left() < unread {
                    continue;
                }
                // What gives it back goes out before it is called so.
                drop(events);
                if holds {
                    last.send(Box::new(HoldEvent::Released { reason: "unread" }));
                }
                return;
            }
        };
        let Some(event) = event else { return };
        if let HoldEvent::Acquired(lease) | HoldEvent::Extended(lease) = &event {
            (patience, holds) = (UNREAD_FOR.min(Duration::from_millis(lease.ttl_ms)), true);
        }
        if matches!(event, HoldEvent::Denied(_) | HoldEvent::Lost { .. } | HoldEvent::Released { .. }) {
            last.send(Box::new(event));
            return;
        }
        if unread == 0 {
            since = Instant::now();
        }
        if tell.try_send(Box::new(event)).is_ok() {
            unread += 1;
        }
    }
}

/// 200 with `events` as they come.
pub(super) fn answer<S, R>(slot: Slot, events: S, render: R) -> Response
where
    S: Stream + Send + 'static,
    R: FnMut(S::Item) -> Line + Send + Unpin + 'static,
{
    let mut heartbeat = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let body = Events { events: Some(Box::pin(events)), render, heartbeat, number: 0, _slot: slot };
    let mut response = delivery::of_type(Body::new(body), "text/event-stream");
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx would keep events back to fill its buffers.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

struct Events<S, R> {
    /// `None` after the last event.
    events: Option<Pin<Box<S>>>,
    render: R,
    heartbeat: Interval,
    number: u64,
    _slot: Slot,
}

impl<S, R> HttpBody for Events<S, R>
where
    S: Stream,
    R: FnMut(S::Item) -> Line + Unpin,
{
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let Some(events) = &mut this.events else { return Poll::Ready(None) };
        let line = match events.as_mut().poll_next(cx) {
            Poll::Ready(Some(event)) => (this.render)(event),
            Poll::Ready(None) => {
                this.events = None;
                return Poll::Ready(None);
            }
            Poll::Pending if this.heartbeat.poll_tick(cx).is_ready() => Line::Comment("heartbeat"),
            Poll::Pending => return Poll::Pending,
        };
        let text = match line {
            Line::Comment(text) => Bytes::from(format!(": {text}\n\n")),
            Line::Event(event) => {
                this.number += 1;
                this.heartbeat.reset();
                if event.last {
                    this.events = None;
                }
                event.write(this.number)
            }
        };
        Poll::Ready(Some(Ok(Frame::data(text))))
    }

    fn is_end_stream(&self) -> bool {
        self.events.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{LeaseHandle, LeaseId, Token};
    use crate::service::{Lease, Nodes, Note, ServiceError};
    use futures_util::stream;

    fn numbers(number: u64) -> Line {
        Line::Event(Event { last: number == 2, ..Event::new("number", &number) })
    }

    async fn next(body: &mut Body) -> Option<String> {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        let data = frame.unwrap().into_data().ok()?;
        Some(String::from_utf8(data.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn events_are_numbered_and_nothing_follows_the_last() {
        let streams = Streams::new(1);
        let answer = answer(streams.open(None).unwrap(), stream::iter([1, 2, 3]), numbers);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        assert_eq!(answer.headers()["cache-control"], "no-store");
        assert_eq!(answer.headers()["x-accel-buffering"], "no");
        let mut body = answer.into_body();
        assert_eq!(next(&mut body).await.unwrap(), "id: 1\nevent: number\ndata: 1\n\n");
        assert_eq!(next(&mut body).await.unwrap(), "id: 2\nevent: number\ndata: 2\n\n");
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_sends_a_comment_every_ten_seconds() {
        let streams = Streams::new(1);
        let mut body = answer(streams.open(None).unwrap(), stream::pending(), numbers).into_body();
        for seconds in [10, 20, 30] {
            let started = Instant::now();
            assert_eq!(next(&mut body).await.unwrap(), ": heartbeat\n\n", "{seconds}");
            assert_eq!(started.elapsed().as_secs(), 10);
        }
    }

    #[tokio::test]
    async fn there_are_never_more_streams_than_allowed_and_a_dropped_body_makes_room() {
        let streams = Streams::new(1);
        let body = answer(streams.open(None).unwrap(), stream::pending(), numbers).into_body();
        assert!(streams.open(None).is_err());
        drop(body);
        assert!(streams.open(None).is_ok());
    }

    fn waiting(count: usize) -> impl Stream<Item = HoldEvent> {
        stream::iter((1..=count).map(|position| HoldEvent::Waiting { position }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_ends_when_nobody_takes_its_events_and_not_before() {
        let (tell, _told) = mpsc::channel(UNREAD_MAX + 1);
        let started = Instant::now();
        drive(waiting(2).chain(stream::pending()), tell).await;
        assert_eq!(started.elapsed(), UNREAD_FOR);

        let (tell, mut told) = mpsc::channel(UNREAD_MAX + 1);
        let driven = tokio::spawn(drive(waiting(2).chain(stream::pending()), tell));
        tokio::time::sleep(UNREAD_FOR / 2).await;
        assert!(told.recv().await.is_some());
        // From here on its time counts anew, and as nothing is left unread it has no end.
        tokio::time::sleep(UNREAD_FOR * 3 / 4).await;
        assert!(told.recv().await.is_some());
        tokio::time::sleep(UNREAD_FOR * 100).await;
        assert!(!driven.is_finished());
        drop(told);
        driven.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_of_which_nobody_hears_is_given_back_when_its_ttl_has_passed() {
        let lease = Lease {
            handle: LeaseHandle { id: LeaseId::from_bits(1), token: Token::new(1).unwrap() },
            ttl_ms: 3_000,
            valid_until: Instant::now(),
            note: Note::default(),
            slots: Vec::new(),
            waited_ms: 0,
            attempts: 1,
            nodes: Nodes::default(),
        };
        let held = Arc::new(());
        let holds = Arc::downgrade(&held);
        let extended = stream::unfold((lease.clone(), held), |(lease, held)| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((HoldEvent::Extended(lease.clone()), (lease, held)))
        });
        let (tell, mut told) = mpsc::channel(UNREAD_MAX + 1);
        let started = Instant::now();
        drive(Box::pin(stream::iter([HoldEvent::Acquired(lease)]).chain(extended)), tell).await;
        assert_eq!(started.elapsed().as_secs(), 3);
        assert!(holds.upgrade().is_none());
        let mut events = Vec::new();
        while let Some(event) = told.recv().await {
            events.push(event);
        }
        assert!(matches!(**events.last().unwrap(), HoldEvent::Released { reason: "unread" }));
    }

    #[tokio::test]
    async fn the_last_event_has_room_however_many_wait() {
        let (tell, mut told) = mpsc::channel(UNREAD_MAX + 1);
        let last = stream::iter([HoldEvent::Denied(ServiceError::ShuttingDown)]);
        drive(waiting(100).chain(last), tell).await;
        for position in 1..=UNREAD_MAX {
            let event = told.recv().await.unwrap();
            assert!(matches!(*event, HoldEvent::Waiting { position: p } if p == position));
        }
        assert!(matches!(*told.recv().await.unwrap(), HoldEvent::Denied(_)));
        assert!(told.recv().await.is_none());
    }

    #[tokio::test]
    async fn dropping_the_body_drops_the_stream_of_the_service() {
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        let events = stream::pending::<u64>().map(move |number| {
            let _ = &held;
            number
        });
        let body = answer(Streams::new(1).open(None).unwrap(), events, numbers).into_body();
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(body);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
