//! Client connections: hyper-util serves them, HTTP/1.1 or HTTP/2; limits and deadlines are kept around it.
//!
//! A connection has one timer, which looks at it now and then: has the first request come in time, is it idle
//! for too long, does its client leave answers unread? A request costs a few atomic operations and no timer.
//!
//! Half-closing stays off, as is hyper's default: a client that closes its side is gone, hyper drops the handler,
//! and what the handler was doing is undone (docs/protocol.md §1.5).

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CONNECTION, HeaderName};
use axum::http::{HeaderValue, Request, Response, Version};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tower::Service as _;

use super::socket::Socket;
use crate::api::{self, UserTimeout};
use crate::config::Config;
use crate::telemetry::{Refusal, metrics};

/// How many streams one HTTP/2 connection may have open: long polls, mostly.
const HTTP2_STREAMS_MAX: u32 = 4_096;

/// Connections accepted past the limit, so that each can get a 503 or have a probe answered.
const SPARE_MAX: usize = 256;

/// A client that leaves what was answered unread for so long is cut off.
const UNREAD_FOR: Duration = Duration::from_secs(20);

/// How long a connection that has asked nothing yet may stay when the server drains: a probe may be on its way.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// Tells a client, or a proxy, for how long it may keep the connection for its next request.
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// All connections: the routes that they lead to, their limits, and the end of them.
pub struct Connections {
    router: Router,
    pub(super) config: Arc<Config>,
    /// For either version of HTTP, and for each.
    http: auto::Builder<TokioExecutor>,
    http1: auto::Builder<TokioExecutor>,
    http2: auto::Builder<TokioExecutor>,
    places: Arc<Semaphore>,
    spare_places: Arc<Semaphore>,
    in_flight: AtomicUsize,
    /// What HTTP/1.1 clients are told of `idle_timeout`.
    keep_alive: HeaderValue,
    /// Set when the server drains. Each connection has a receiver as long as it is open.
    draining: watch::Sender<bool>,
}

/// A connection's place among those that may be open.
pub struct Place {
    _permit: OwnedSemaphorePermit,
    /// Beyond the limit: only probes are answered.
    spare: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        metrics().http_connections.decrement(1.0);
    }
}

impl Connections {
    /// Serves `router`, at most so many connections at once.
    pub fn new(router: Router, connections_max: usize, config: Arc<Config>) -> Arc<Self> {
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1().max_buf_size(config.max_header_bytes);
        http.http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(15))
            .keep_alive_timeout(Duration::from_secs(10))
            .max_concurrent_streams(HTTP2_STREAMS_MAX)
            .max_header_list_size(u32::try_from(config.max_header_bytes).unwrap_or(u32::MAX))
            .max_send_buf_size(64 * 1024)
            .initial_stream_window_size(64 * 1024)
            .initial_connection_window_size(1024 * 1024);
        Arc::new(Self {
            router,
            http1: http.clone().http1_only(),
            http2: http.clone().http2_only(),
            http,
            places: Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS))),
            spare_places: Arc::new(Semaphore::new(SPARE_MAX)),
            in_flight: AtomicUsize::new(0),
            // Digits and letters always make a header value.
            keep_alive: HeaderValue::try_from(format!("timeout={}", config.idle_timeout.0.as_secs()))
                .unwrap_or(HeaderValue::from_static("timeout=1")),
            draining: watch::Sender::new(false),
            config,
        })
    }

    /// A place for one more connection, unless there are as many as may be and those to be told so.
    pub(super) fn admit(&self) -> Option<Place> {
        let usual = Arc::clone(&self.places).try_acquire_owned().map(|permit| (permit, false));
        let spare = || Arc::clone(&self.spare_places).try_acquire_owned().map(|permit| (permit, true));
        let (permit, spare) = usual.or_else(|_| spare()).ok()?;
        metrics().http_connections.increment(1.0);
        Some(Place { _permit: permit, spare })
    }

    /// Connections that are served now.
    pub fn count(&self) -> usize {
        self.draining.receiver_count()
    }

    /// Requests and streams in flight now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Every connection ends with its present requests, idle ones at once. New ones get one request answered
    /// each, so that a probe can still read "not ready".
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Waits until no connection is open.
    pub async fn emptied(&self) {
        self.draining.closed().await;
    }

    /// Serves a connection without TLS to its end.
    pub(super) async fn serve_plain(
        self: Arc<Self>,
        stream: TcpStream,
        user_timeout: UserTimeout,
        place: Place,
    ) {
        let mut first = [0; 3];
        let mut draining = self.draining.subscribe();
        let last_chance = async {
            // It fails only when the server is gone.
            let _ = draining.wait_for(|draining| *draining).await;
            sleep(LAST_CHANCE).await;
        };
        let version = tokio::select! {
            peeked = stream.peek(&mut first) => match peeked {
                Ok(3) if first == *b"PRI" => Some(Version::HTTP_2),
                Ok(3) => Some(Version::HTTP_11),
                _ => None,
            },
            () = last_chance => return,
            () = sleep(self.config.header_timeout.0) => return metrics().refused(Refusal::HeaderTimeout),
        };
        let socket = Socket::new(stream, user_timeout.clone());
        self.serve(socket, version, user_timeout, place).await;
    }

    /// Serves a connection to its end. Where it is not known what the client speaks, hyper-util finds out; that
    /// costs 8 KiB, since hyper gets the first bytes alone and then wants room for more beside them.
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        version: Option<Version>,
        user_timeout: UserTimeout,
        place: Place,
    ) {
        let mut draining = self.draining.subscribe();
        let http = match version {
            Some(Version::HTTP_2) => &self.http2,
            Some(_) => &self.http1,
            None => &self.http,
        };
        let (connections, using) = (Arc::clone(&self), Mutex::default());
        let conn = Arc::new(Conn { connections, spare: place.spare, user_timeout, using });
        let service = {
            let conn = Arc::clone(&conn);
            service_fn(move |request| answer(Arc::clone(&conn), request))
        };
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let mut look_at = Instant::now() + self.config.header_timeout.0;
        let mut told = false;
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if let Err(cause) = ended {
                        note(&*cause);
                    }
                    return;
                }
                _ = draining.wait_for(|draining| *draining), if !told => {
                    told = true;
                    if conn.using.lock().last.is_none() {
                        look_at = look_at.min(Instant::now() + LAST_CHANCE);
                    } else {
                        connection.as_mut().graceful_shutdown();
                    }
                }
                () = sleep_until(look_at) => match conn.look(told) {
                    Look::Again(at) => look_at = at,
                    Look::End(again_in) => {
                        connection.as_mut().graceful_shutdown();
                        look_at = Instant::now() + again_in;
                    }
                    Look::CutOff => return,
                },
            }
        }
    }
}

/// Counts what hyper has refused by itself.
fn note(cause: &(dyn std::error::Error + Send + Sync + 'static)) {
    match cause.downcast_ref::<hyper::Error>() {
        Some(cause) if cause.is_parse_too_large() => metrics().refused(Refusal::HeaderBytes),
        Some(cause) if cause.is_parse() => metrics().refused(Refusal::Malformed),
        _ => {}
    }
    tracing::debug!(%cause, "connection broke");
}

/// What is to become of a connection.
enum Look {
    /// Nothing: look again then.
    Again(Instant),
    /// It ends when its present requests do, and is cut off if it is still idle after that time.
    End(Duration),
    CutOff,
}

/// One connection, and what it does.
struct Conn {
    connections: Arc<Connections>,
    spare: bool,
    user_timeout: UserTimeout,
    using: Mutex<Use>,
}

#[derive(Default)]
struct Use {
    in_flight: u32,
    /// Pieces of answers that hyper has taken and not come back from: mostly it waits for its client to read.
    handed_out: u32,
    /// When anything of this last changed; `None` before the first request.
    last: Option<Instant>,
}

impl Conn {
    fn note(&self, change: impl FnOnce(&mut Use)) {
        let mut now = self.using.lock();
        change(&mut now);
        now.last = Some(Instant::now());
    }

    fn look(&self, draining: bool) -> Look {
        let (state, now) = (self.using.lock(), Instant::now());
        let Some(last) = state.last else {
            metrics().refused(Refusal::HeaderTimeout);
            return Look::CutOff;
        };
        if state.in_flight > 0 {
            let unread = state.handed_out > 0 && now >= last + UNREAD_FOR;
            return if unread { Look::CutOff } else { Look::Again(now + UNREAD_FOR) };
        }
        let one_only = self.spare || draining;
        let patience = if one_only { Duration::ZERO } else { self.connections.config.idle_timeout.0 };
        if now >= last + patience { Look::End(LAST_CHANCE) } else { Look::Again(last + patience) }
    }
}

/// The answer to a request, by the routes unless there is no room.
async fn answer(conn: Arc<Conn>, mut request: Request<Incoming>) -> Result<Response<Tracked>, Infallible> {
    let connections = Arc::clone(&conn.connections);
    request.extensions_mut().insert(conn.user_timeout.clone());
    let flight = Flight::begin(conn);
    let spare = flight.conn.spare;
    let old_http = request.version() < Version::HTTP_2;
    let asks_to_close = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"close");
    let kept = request.version() == Version::HTTP_11
        && !request.headers().get(CONNECTION).is_some_and(asks_to_close);
    let crowded = spare || flight.all > connections.config.max_in_flight;
    let mut response = if crowded && !api::is_probe(request.uri().path()) {
        metrics().refused(if spare { Refusal::Connections } else { Refusal::InFlight });
        api::overloaded(request.headers())
    } else {
        let Ok(response) = connections.router.clone().call(request).await;
        response
    };
    if old_http && (spare || *connections.draining.borrow()) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    } else if kept {
        response.headers_mut().insert(KEEP_ALIVE, connections.keep_alive.clone());
    }
    Ok(response.map(|body| Tracked { body, handed_out: false, flight }))
}

/// One request in flight, until the last byte of its answer is taken or the client is gone.
struct Flight {
    conn: Arc<Conn>,
    /// How many are in flight at this server, this one counted.
    all: usize,
}

impl Flight {
    fn begin(conn: Arc<Conn>) -> Self {
        conn.note(|now| now.in_flight += 1);
        metrics().http_in_flight.increment(1.0);
        let all = conn.connections.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        Self { conn, all }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.conn.connections.in_flight.fetch_sub(1, Ordering::Relaxed);
        metrics().http_in_flight.decrement(1.0);
        self.conn.note(|now| now.in_flight -= 1);
    }
}

/// The body of an answer, with its request's place in the count.
///
/// hyper asks for a piece when it has none, and over HTTP/2 keeps it until its client makes room.
struct Tracked {
    body: Body,
    /// hyper has a piece and has not come back.
    handed_out: bool,
    flight: Flight,
}

impl Tracked {
    fn set_handed_out(&mut self, handed_out: bool) {
        if self.handed_out != handed_out {
            self.handed_out = handed_out;
            self.flight.conn.note(|now| {
                now.handed_out = if handed_out { now.handed_out + 1 } else { now.handed_out - 1 };
            });
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.set_handed_out(false);
    }
}

impl HttpBody for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.set_handed_out(false);
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.set_handed_out(frame.is_some());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
