//! One client connection: HTTP/1.1 or HTTP/2, its deadlines and its share of the limits.
//!
//! hyper alone cannot tell a client that dawdles over a request's head from one that
//! keeps a connection for its next request (one timer covers both), so the deadlines are
//! kept here: a connection notes in which [`Phase`] it is and since when, and one sweeper
//! for all of them ends what is overdue. No connection has a timer of its own, and a
//! request costs two atomic stores.
//!
//! Half-closing stays off: a client that closes its side is gone, hyper drops the handler,
//! and what the handler was doing is undone (docs/protocol.md §1.5).

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, Version};
use bytes::{Buf as _, Bytes};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, futures::Notified};
use tokio::time::Sleep;

use super::socket;
use crate::api::{Belated, Router, refusals};
use crate::telemetry::{Refusal, metrics};

/// How often overdue connections are looked for, and so how late a deadline may be.
const SWEEP_EVERY: Duration = Duration::from_millis(500);

/// For how long, in sweeps, an answer over HTTP/2 may wait for its client to make room, and up to twice as
/// long. Over HTTP/1.1 the kernel sees to that.
const UNREAD_TICKS: u32 = 40;

/// For how long, in sweeps, a connection is new, or its last answer may still be on its way.
const FRESH_TICKS: u32 = 2;

/// How often, in sweeps, a connection that serves a request is looked at: mostly hyper sees a
/// client leave at once, but not behind a second request that it has not read yet.
const BUSY_LOOK_TICKS: u32 = 2;

/// How many streams one HTTP/2 connection may have open: long polls, mostly.
const HTTP2_STREAMS_MAX: u32 = 4_096;

/// The most that is copied of an answer at once. The buffer for it stays with its connection.
const PIECE_BYTES: usize = 16 * 1024;

/// Connections beyond those that may be, each to be told so, or to have a probe answered.
const SPARE_MAX: usize = 256;

/// How many bytes of a refused client are still read, so that it gets to see the refusal.
const UNREAD_MAX: usize = 1024 * 1024;

/// What a connection may do.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Connections at once.
    pub connections_max: usize,
    /// Requests and streams at once.
    pub in_flight_max: usize,
    /// Size of a head.
    pub header_bytes_max: usize,
    /// Time for a head, and for a TLS handshake.
    pub header_timeout: Duration,
    /// Time for a body.
    pub body_timeout: Duration,
    /// Time between requests.
    pub idle_timeout: Duration,
}

/// Where all connections come together: the routes, the limits, the count.
pub struct Hub {
    router: Router,
    rules: Rules,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    conns: Mutex<HashMap<u64, Arc<Conn>>>,
    next_id: AtomicU64,
    in_flight: AtomicUsize,
    draining: AtomicBool,
    /// Told when the last connection has gone.
    empty: Notify,
    /// Sweeps since the start: the coarse clock of all conns.
    now: AtomicU32,
}

/// In which phase a connection is that serves no request; decides which deadline it has.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// A head, or the handshake before it, is awaited or under way.
    Head,
    /// Between two requests.
    Idle,
}

/// What the hub knows of one connection.
struct Conn {
    phase: AtomicU8,
    since: AtomicU32,
    requests: AtomicU32,
    /// Everything that arrived has been taken, and hyper waits for more: it hears of a client that leaves.
    /// What a client sends ahead it leaves alone, and then it does not.
    listening: AtomicBool,
    /// One more than may be: answered once, and nothing but a probe.
    spare: bool,
    /// Set before `called` is told.
    thrown_out: AtomicBool,
    called: Notify,
    /// Pieces of answers over HTTP/2 that hyper has taken and found no room for yet, by whether the time
    /// of [`UNREAD_TICKS`] in which that was had an even number.
    unread: [AtomicU32; 2],
    /// For the sweeper; it goes when hyper lets go of it.
    socket: OnceLock<Weak<TcpStream>>,
}

impl Conn {
    fn enter(&self, phase: Phase, now: u32) {
        self.since.store(now, Ordering::Relaxed);
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    fn has_left(&self) -> bool {
        self.socket.get().and_then(Weak::upgrade).is_some_and(|socket| socket::has_left(&socket))
    }

    /// Serves `connection` to its end, or to that of its present request where it is called.
    async fn see_to(&self, mut connection: Pin<&mut impl GracefulConnection<Error = hyper::Error>>) {
        let mut told = false;
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if let Err(cause) = ended {
                        tracing::debug!(%cause, "connection broke");
                    }
                    return;
                }
                () = self.called.notified() => {
                    // A client that was asked to end and is still not busy has nothing to lose.
                    if self.thrown_out.load(Ordering::Relaxed) || (told && !self.is_busy()) {
                        return;
                    }
                    told = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }

    /// Whether it serves a request: it has no deadline then.
    fn is_busy(&self) -> bool {
        self.requests.load(Ordering::Relaxed) != 0
    }

    /// Whether pieces are left unread that were taken before the present time of [`UNREAD_TICKS`] began. To
    /// be asked at its end, or they may have been taken a moment ago.
    fn is_unread(&self, now: u32) -> bool {
        now % UNREAD_TICKS == UNREAD_TICKS - 1
            && self.unread[1 - generation(now)].load(Ordering::Relaxed) != 0
    }

    /// Whether it has only just come, or its last answer gone.
    fn is_fresh(&self, now: u32) -> bool {
        !self.is_busy() && now.saturating_sub(self.since.load(Ordering::Relaxed)) < FRESH_TICKS
    }

    fn is(&self, phase: Phase) -> bool {
        !self.is_busy() && self.phase.load(Ordering::Relaxed) == phase as u8
    }
}

/// Which of [`Conn::unread`] counts what is taken now.
fn generation(now: u32) -> usize {
    (now / UNREAD_TICKS % 2) as usize
}

impl Hub {
    /// Serves `router` under `rules`.
    pub fn new(router: Router, rules: Rules) -> Arc<Self> {
        let mut http1 = http1::Builder::new();
        // No header_read_timeout: the sweeper's job.
        // An answer is short: to copy it behind its head costs less than to have the kernel gather both.
        http1.half_close(false).writev(false).max_buf_size(rules.header_bytes_max);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        // The timer is for pings.
        http2
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(15))
            .keep_alive_timeout(Duration::from_secs(10))
            .max_concurrent_streams(HTTP2_STREAMS_MAX)
            // Beyond this h2 answers 431 without a body, and nothing can be said in its place; up
            // to here `Handler` does.
            .max_header_list_size(u32::try_from(rules.header_bytes_max * 4).unwrap_or(u32::MAX))
            .max_send_buf_size(64 * 1024)
            .initial_stream_window_size(64 * 1024)
            .initial_connection_window_size(1024 * 1024);
        Arc::new(Self {
            router,
            rules,
            http1,
            http2,
            conns: Mutex::default(),
            next_id: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            empty: Notify::new(),
            now: AtomicU32::new(0),
        })
    }

    /// A place for one more connection, unless there are as many as may be and those to be told so.
    pub(super) fn admit(self: &Arc<Self>) -> Option<Place> {
        let mut conns = self.conns.lock();
        let beyond = conns.len().checked_sub(self.rules.connections_max);
        if beyond.is_some_and(|beyond| beyond >= SPARE_MAX) {
            return None;
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let conn = Arc::new(Conn {
            phase: AtomicU8::new(Phase::Head as u8),
            since: AtomicU32::new(self.now.load(Ordering::Relaxed)),
            requests: AtomicU32::new(0),
            listening: AtomicBool::new(false),
            spare: beyond.is_some(),
            thrown_out: AtomicBool::new(false),
            called: Notify::new(),
            unread: Default::default(),
            socket: OnceLock::new(),
        });
        conns.insert(id, Arc::clone(&conn));
        Some(Place { hub: Arc::clone(self), conn, id })
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.conns.lock().len()
    }

    /// Requests and streams in flight now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Every connection ends with its present request; idle ones at once. New ones get one
    /// request answered each, so that a probe can still read "not ready". To be called again until no
    /// connection is left.
    pub fn drain(&self) {
        let again = self.draining.swap(true, Ordering::Relaxed);
        let now = self.now.load(Ordering::Relaxed);
        for conn in self.conns.lock().values() {
            // Whoever is told a second time is cut off.
            if !(conn.is_fresh(now) && (again || conn.is(Phase::Head))) {
                conn.called.notify_one();
            }
        }
    }

    /// Waits until no connection is open.
    pub async fn emptied(&self) {
        loop {
            let told: Notified<'_> = self.empty.notified();
            if self.conns.lock().is_empty() {
                return;
            }
            told.await;
        }
    }

    /// Ends connections that are overdue. Runs until dropped.
    pub async fn sweep(&self) {
        let ticks = |timeout: Duration| (timeout.as_millis() / SWEEP_EVERY.as_millis()) as u32 + 1;
        let (head, idle) = (ticks(self.rules.header_timeout), ticks(self.rules.idle_timeout));
        let mut every = tokio::time::interval(SWEEP_EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
            for conn in self.conns.lock().values() {
                let waited = now.saturating_sub(conn.since.load(Ordering::Relaxed));
                if conn.is(Phase::Head) && waited > head {
                    conn.thrown_out.store(true, Ordering::Relaxed);
                    conn.called.notify_one();
                    metrics().refused(Refusal::HeaderTimeout);
                } else if conn.is(Phase::Idle) && waited > idle {
                    conn.called.notify_one();
                } else if conn.is_unread(now)
                    || (conn.is_busy() && waited % BUSY_LOOK_TICKS == 1 && conn.has_left())
                {
                    conn.thrown_out.store(true, Ordering::Relaxed);
                    conn.called.notify_one();
                }
            }
        }
    }
}

/// One connection's place in the hub; given back on drop.
pub(super) struct Place {
    hub: Arc<Hub>,
    conn: Arc<Conn>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut conns = self.hub.conns.lock();
        conns.remove(&self.id);
        if conns.is_empty() {
            // A map that was large once stays so otherwise.
            conns.shrink_to(64);
            self.hub.empty.notify_waiters();
        }
    }
}

impl Place {
    /// Waits for what comes before the first request, unless it takes too long or the server drains.
    pub(super) async fn begin<T>(&self, beginning: impl Future<Output = io::Result<T>>) -> Option<T> {
        tokio::select! {
            biased;
            begun = beginning => match begun {
                Ok(begun) => Some(begun),
                Err(cause) => {
                    tracing::debug!(%cause, "connection did not begin");
                    None
                }
            },
            () = self.conn.called.notified() => None,
        }
    }

    /// Lets the sweeper look at the socket.
    pub(super) fn watch(&self, socket: &Arc<TcpStream>) {
        // Called once, before the connection is served.
        let _ = self.conn.socket.set(Arc::downgrade(socket));
    }

    /// Serves the connection to its end.
    pub(super) async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        version: Version,
    ) {
        let Self { hub, conn, .. } = &self;
        let old_http = version < Version::HTTP_2;
        let watched = TokioIo::new(Watched::new(stream, Arc::clone(hub), Arc::clone(conn), old_http));
        let handler = Handler { hub: Arc::clone(hub), conn: Arc::clone(conn) };
        let service = service_fn(move |request| {
            let handler = handler.clone();
            async move { handler.answer(request).await }
        });
        if old_http {
            conn.see_to(pin!(hub.http1.serve_connection(watched, service))).await;
        } else {
            // HTTP/2's pings and settings look like heads from here. Its own limits and
            // pings see to slow heads; a connection without requests is an idle one. But one more than
            // may be is there for one request, and others want its place for theirs.
            if !conn.spare {
                conn.enter(Phase::Idle, hub.now.load(Ordering::Relaxed));
            }
            conn.see_to(Box::pin(hub.http2.serve_connection(watched, service)).as_mut()).await;
        }
    }
}

/// A connection's way into the router.
#[derive(Clone)]
struct Handler {
    hub: Arc<Hub>,
    conn: Arc<Conn>,
}

impl Handler {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Counted>, ClientLeft> {
        let Self { hub, conn } = self;
        let flight = Flight::begin(&hub, &conn);
        let old_http = request.version() < Version::HTTP_2;

        let crowded = conn.spare || flight.beyond > hub.rules.in_flight_max;
        let mut response = if crowded && !refusals::is_probe(request.uri().path()) {
            metrics().refused(if conn.spare { Refusal::Connections } else { Refusal::InFlight });
            refusals::overloaded(request.headers())
        } else if !old_http && size(&request) > hub.rules.header_bytes_max {
            metrics().refused(Refusal::HeaderBytes);
            refusals::head_too_large(request.headers())
        } else {
            let timeout = hub.rules.body_timeout;
            let request = request.map(|body| match http_body::Body::is_end_stream(&body) {
                true => Body::empty(),
                false => Body::new(Timed { body, timeout, sleep: None }),
            });
            let answering = hub.router.answer(request);
            let turns = !old_http && answering.acquires();
            let response = answering.await;
            if turns {
                // Over HTTP/1.1 hyper reads before it writes. Here, a task of its own answers, and the connection
                // may have to read yet that its client has left: it gets to do so before a lease is told.
                tokio::task::yield_now().await;
            }
            response
        };

        // To find out with the next sweep would be late for a lease that has just been granted: with the
        // body, unread, that goes too (docs/protocol.md §1.5).
        let unsure =
            || !conn.listening.load(Ordering::Relaxed) || response.extensions().get::<Belated>().is_some();
        if old_http && unsure() && conn.has_left() {
            return Err(ClientLeft);
        }
        if conn.spare {
            conn.called.notify_one();
        }
        if old_http && (conn.spare || hub.draining.load(Ordering::Relaxed)) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| Counted { body, rest: Bytes::new(), old_http, unread: None, flight }))
    }
}

/// Closes the connection, with nothing written: one that has only closed its half must not be told
/// of a lease that is taken back.
#[derive(Debug, thiserror::Error)]
#[error("the client left before it was answered")]
struct ClientLeft;

/// Bytes of the head, as HTTP/2 counts them.
fn size<B>(request: &Request<B>) -> usize {
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32);
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    headers.sum::<usize>() + target + request.uri().authority().map_or(0, |host| host.as_str().len())
}

/// One request in flight, until the last byte of its answer or the client is gone.
struct Flight {
    hub: Arc<Hub>,
    conn: Arc<Conn>,
    /// How many are in flight, this one counted.
    beyond: usize,
}

impl Flight {
    fn begin(hub: &Arc<Hub>, conn: &Arc<Conn>) -> Self {
        conn.requests.fetch_add(1, Ordering::Relaxed);
        let beyond = hub.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        Self { hub: Arc::clone(hub), conn: Arc::clone(conn), beyond }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.hub.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.conn.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.conn.enter(Phase::Idle, self.hub.now.load(Ordering::Relaxed));
        }
    }
}

/// The body of an answer, with the request's place in the count.
///
/// Over HTTP/2, hyper asks for a piece before there is room for it, and for more only when it was sent. So
/// who wants to know whether a piece was taken waits to be asked for the next one, or for the end.
/// Over HTTP/1.1 there is always room, and hyper does not ask for an end that it knows: that is done here.
struct Counted {
    body: Body,
    /// What is left of a piece that was too large.
    rest: Bytes,
    old_http: bool,
    /// Where the piece that was asked for last counts as unread.
    unread: Option<usize>,
    flight: Flight,
}

impl Counted {
    /// The piece that was asked for last has been taken.
    fn is_taken(&mut self) {
        if let Some(generation) = self.unread.take() {
            self.flight.conn.unread[generation].fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A piece goes out.
    fn hands_out(&mut self, cx: &mut Context<'_>) {
        let body = &mut self.body;
        if !self.old_http {
            let generation = generation(self.flight.hub.now.load(Ordering::Relaxed));
            self.flight.conn.unread[generation].fetch_add(1, Ordering::Relaxed);
            self.unread = Some(generation);
        } else if self.rest.is_empty() && !body.is_end_stream() && body.size_hint().exact() == Some(0) {
            // Nothing comes.
            let _ = Pin::new(body).poll_frame(cx);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.is_taken();
    }
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.is_taken();
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => self.rest = data,
                Some(Err(frame)) => return Poll::Ready(Some(Ok(frame))),
                None => return Poll::Ready(None),
            }
        }
        let piece = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(piece);
        self.hands_out(cx);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        body.upper().into_iter().for_each(|upper| hint.set_upper(upper + rest));
        hint
    }
}

/// The body of a request, which has to arrive in time.
struct Timed {
    body: Incoming,
    timeout: Duration,
    /// Only made when the body has not arrived with the head.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// The body of a request did not arrive in time.
#[derive(Debug, thiserror::Error)]
#[error("the body did not arrive in time")]
pub struct BodyTimeout;

impl http_body::Body for Timed {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timeout = self.timeout;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        match sleep.as_mut().poll(cx) {
            Poll::Ready(()) => {
                metrics().refused(Refusal::BodyTimeout);
                Poll::Ready(Some(Err(Box::new(BodyTimeout))))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that notes when a head begins to arrive, and puts words to hyper's own refusals.
struct Watched<S> {
    stream: S,
    hub: Arc<Hub>,
    conn: Arc<Conn>,
    old_http: bool,
    /// What is being written in place of a refusal of hyper's.
    instead: Option<Bytes>,
    /// Bytes to read and forget before the connection is closed.
    unread: usize,
}

impl<S> Watched<S> {
    fn new(stream: S, hub: Arc<Hub>, conn: Arc<Conn>, old_http: bool) -> Self {
        Self { stream, hub, conn, old_http, instead: None, unread: 0 }
    }
}

impl<S: AsyncWrite + Unpin> Watched<S> {
    /// hyper is about to write `bytes`. What it says while no request is served is either the rest
    /// of an answer or a refusal of its own, instead of which a problem is written.
    fn poll_instead(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Option<Poll<io::Result<()>>> {
        if self.instead.is_none() && !self.conn.is_busy() {
            self.instead = refusals::instead_of(bytes).map(Bytes::from);
        }
        let left = self.instead.as_mut()?;
        while left.has_remaining() {
            match Pin::new(&mut self.stream).poll_write(cx, left) {
                Poll::Ready(Ok(0)) => return Some(Poll::Ready(Err(io::ErrorKind::WriteZero.into()))),
                Poll::Ready(Ok(written)) => left.advance(written),
                Poll::Ready(Err(cause)) => return Some(Poll::Ready(Err(cause))),
                Poll::Pending => return Some(Poll::Pending),
            }
        }
        self.instead = None;
        self.unread = UNREAD_MAX;
        Some(Poll::Ready(Ok(())))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let conn = &self.conn;
        conn.listening.store(polled.is_pending(), Ordering::Relaxed);
        if self.old_http && conn.is(Phase::Idle) && buf.filled().len() > before {
            conn.enter(Phase::Head, self.hub.now.load(Ordering::Relaxed));
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.poll_instead(cx, buf) {
            Some(said) => said.map_ok(|()| buf.len()),
            None => Pin::new(&mut self.stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        // Closing on unread bytes resets the connection, and the client would not see why. Whoever
        // goes on sending is overdue at some time, and thrown out.
        let mut forgotten = [MaybeUninit::uninit(); 4096];
        while self.unread > 0 {
            let mut buf = ReadBuf::uninit(&mut forgotten);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf))?;
            let read = buf.filled().len();
            self.unread = if read == 0 { 0 } else { self.unread.saturating_sub(read) };
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A refusal stands whole in the first piece.
        match self.poll_instead(cx, bufs.first().map_or(&[], |first| first)) {
            Some(said) => said.map_ok(|()| bufs.iter().map(|buf| buf.len()).sum()),
            None => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::api::{App, Limits, router};
    use crate::quorum::fixture::Api;
    use crate::service::{Service, WaitLimits};

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A frame of HTTP/2.
    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_of_http2_gave_up_before_the_votes_were_read_is_undone() {
        for resets in [true, false] {
            let [api, _] = Api::pair().await;
            let waits = WaitLimits { waiters_max: 1, waiters_per_name_max: 1 };
            let router = router(Arc::new(App {
                service: Service::new(Arc::clone(&api.engine), waits),
                limits: Limits::default(),
                keys: None,
                render_metrics: Arc::new(String::new),
            }));
            let rules = Rules {
                connections_max: 1,
                in_flight_max: 1,
                header_bytes_max: 8 * 1024,
                header_timeout: MILLISECOND,
                body_timeout: MILLISECOND,
                idle_timeout: MILLISECOND,
            };
            let (mut client, served) = tokio::io::duplex(64 * 1024);
            let place = Hub::new(router, rules).admit().expect("a place");
            tokio::spawn(place.serve(served, Version::HTTP_2));
            let mut head = Vec::new();
            let path = "/v1/locks/a/acquire";
            for (name, value) in [(":method", "POST"), (":scheme", "http"), (":path", path)] {
                // A literal that is not indexed.
                head.push(0);
                for text in [name, value] {
                    head.push(text.len() as u8);
                    head.extend(text.as_bytes());
                }
            }
            // Settings, and headers that are whole and all of the request.
            let request =
                [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[]), frame(1, 5, 1, &head)];
            api.nodes.iter().for_each(|node| node.hang());
            client.write_all(&request.concat()).await.unwrap();
            tokio::time::sleep(MILLISECOND).await;
            assert_eq!(api.acquires()[0], 1);

            api.nodes.iter().for_each(|node| node.go_on());
            assert!(api.is_held_at(0));
            if resets {
                client.write_all(&frame(3, 0, 1, &[0, 0, 0, 8])).await.unwrap();
            } else {
                client.shutdown().await.unwrap();
            }
            tokio::time::sleep(MILLISECOND).await;
            assert_eq!([0, 1, 2].map(|i| api.is_held_at(i)), [false; 3], "resets: {resets}");
        }
    }
}
