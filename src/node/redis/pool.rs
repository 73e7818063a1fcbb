//! Making connections, and the bb8 pool that holds the one of a node.
//!
//! A connection handed out is ready: authenticated, on its database, with all
//! scripts loaded, and with the identity of the node read over itself.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bb8::{ErrorSink, ManageConnection, Pool, PooledConnection, QueueStrategy, RunError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::resp::{self, Reply, ScriptBytes};
use crate::domain::of_connecting;
use crate::node::{Identity, Script, Value};

/// Where a node is and how to get in.
pub(super) struct Target {
    pub(super) place: Place,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    pub(super) connect_timeout: Duration,
}

pub(super) enum Place {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16, name: ServerName<'static>, connector: TlsConnector },
    Unix(PathBuf),
}

/// A socket of any of the three kinds.
pub(super) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Stream {
    /// Whether bytes have arrived that nobody has read, by the kernel's word.
    pub(super) fn has_unread(&self) -> bool {
        let socket = match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.get_ref().0.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        };
        let mut asked = [PollFd::new(socket, PollFlags::POLLIN)];
        // The end of the stream counts too: to read it tells more than the time does.
        poll(&mut asked, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}

/// Why there is no connection. Its text is for people and holds no secret: it is
/// either the operating system's or what the node itself answered.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct ConnectError(pub(super) Arc<str>);

impl ConnectError {
    fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }
}

impl From<std::io::Error> for ConnectError {
    fn from(error: std::io::Error) -> Self {
        Self::new(of_connecting(&error.to_string()))
    }
}

impl Target {
    /// For people: the URL without user and password.
    pub(super) fn address(&self) -> String {
        let (scheme, host, port) = match &self.place {
            Place::Tcp { host, port } => ("redis", host, port),
            Place::Tls { host, port, .. } => ("rediss", host, port),
            Place::Unix(path) => return format!("unix://{}", path.display()),
        };
        let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
        let database = if self.database == 0 { String::new() } else { format!("/{}", self.database) };
        format!("{scheme}://{open}{host}{close}:{port}{database}")
    }

    /// Only the socket, in any time.
    pub(super) async fn open(&self) -> Result<Stream, ConnectError> {
        Ok(match &self.place {
            Place::Tcp { host, port } => Stream::Tcp(open_tcp(host, *port).await?),
            Place::Tls { host, port, name, connector } => {
                let tcp = open_tcp(host, *port).await?;
                Stream::Tls(Box::new(connector.connect(name.clone(), tcp).await?))
            }
            Place::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
        })
    }
}

async fn open_tcp(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // A batch is one write: nothing is gained by holding the last segment of it back.
    stream.set_nodelay(true)?;
    // For a connection without traffic; one with traffic is judged by its answers.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(3))
        .with_retries(3);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A connection that is ready for calls.
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) identity: Identity,
    /// Set by the driver, which alone can know.
    pub(super) broken: bool,
}

/// Makes connections for bb8.
pub(super) struct Manager {
    target: Arc<Target>,
    scripts: Arc<ScriptBytes>,
}

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = ConnectError;

    async fn connect(&self) -> Result<Connection, ConnectError> {
        let limit = self.target.connect_timeout;
        let connecting = async {
            let mut stream = self.target.open().await?;
            let identity = greet(&mut stream, &self.target, &self.scripts).await?;
            Ok(Connection { stream, identity, broken: false })
        };
        match tokio::time::timeout(limit, connecting).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::new("the node did not answer in time")),
        }
    }

    /// Never asked (`test_on_check_out` is off): it would cost a round trip and prove nothing
    /// about the moment after.
    async fn is_valid(&self, connection: &mut Connection) -> Result<(), ConnectError> {
        if connection.broken { Err(ConnectError::new("broken")) } else { Ok(()) }
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.broken
    }
}

/// Everything that comes before the first call, in one write.
async fn greet(
    stream: &mut Stream,
    target: &Target,
    scripts: &ScriptBytes,
) -> Result<Identity, ConnectError> {
    let mut request = Vec::new();
    // What each reply is to, and whether the connection can do without.
    let mut steps: Vec<Step> = Vec::new();
    if let Some(password) = &target.password {
        match &target.username {
            Some(username) => resp::put_command(&mut request, &["AUTH", username, password]),
            None => resp::put_command(&mut request, &["AUTH", password]),
        }
        steps.push(Step::Must("AUTH"));
    }
    if target.database != 0 {
        resp::put_command(&mut request, &["SELECT", &target.database.to_string()]);
        steps.push(Step::Must("SELECT"));
    }
    scripts.put_load(&mut request);
    steps.extend(Script::texts().map(Step::Load));
    let parts = put_info(&mut request);
    steps.extend((0..parts).map(|_| Step::Info));
    // For CLIENT LIST, for people; an ACL may well forbid it. It comes last, since a node that
    // refuses whoever connects (`DENIED`, too many clients) says so as the answer to the first.
    resp::put_command(&mut request, &["CLIENT", "SETNAME", "quorate"]);
    steps.push(Step::May);

    stream.write_all(&request).await?;
    stream.flush().await?;

    let mut input = Vec::new();
    let mut info = String::new();
    for step in steps {
        let reply = next_reply(stream, &mut input).await?;
        match (step, reply) {
            (Step::Must(_), Reply::Value(_)) | (Step::May, _) => {}
            (Step::Load(script), Reply::Value(Value::Text(hash))) if hash == scripts.hash(script) => {}
            (Step::Info, Reply::Value(Value::Text(part))) => info.push_str(&part),
            (step, Reply::Error(text)) => {
                return Err(ConnectError::new(format!("{}: {text}", step.name())));
            }
            (step, _) => return Err(ConnectError::new(format!("{}: an answer without sense", step.name()))),
        }
    }
    read_identity(&info).ok_or_else(|| ConnectError::new("INFO: an answer without sense"))
}

#[derive(Clone, Copy)]
enum Step {
    Must(&'static str),
    May,
    Load(Script),
    Info,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Must(name) => name,
            Self::May => "CLIENT",
            Self::Load(_) => "SCRIPT LOAD",
            Self::Info => "INFO",
        }
    }
}

async fn next_reply(stream: &mut Stream, input: &mut Vec<u8>) -> Result<Reply, ConnectError> {
    loop {
        match resp::parse(input) {
            Ok(Some((reply, length))) => {
                input.drain(..length);
                return Ok(reply);
            }
            Ok(None) => {}
            Err(malformed) => return Err(ConnectError::new(malformed.to_string())),
        }
        if stream.read_buf(input).await? == 0 {
            return Err(ConnectError::new("closed by the node"));
        }
    }
}

/// Asks who the node is; says in how many replies. One section each: older servers take no more.
pub(super) fn put_info(out: &mut Vec<u8>) -> usize {
    const SECTIONS: [&str; 3] = ["server", "replication", "memory"];
    for section in SECTIONS {
        resp::put_command(out, &["INFO", section]);
    }
    SECTIONS.len()
}

/// Reads the replies to [`put_info`], put together.
pub(super) fn read_identity(info: &str) -> Option<Identity> {
    let field = |name: &str| {
        info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':')).map(str::to_owned)
    };
    Some(Identity {
        run_id: field("run_id").filter(|run_id| !run_id.is_empty())?,
        role: field("role")?,
        eviction: field("maxmemory_policy")?,
        version: field("redis_version")?,
    })
}

/// The connection of a node, made anew whenever it broke.
pub(super) struct Connections {
    pool: Pool<Manager>,
    failures: Arc<Failures>,
}

impl Connections {
    pub(super) fn new(target: Arc<Target>, scripts: Arc<ScriptBytes>) -> Self {
        let failures = Arc::new(Failures::default());
        let connect_timeout = target.connect_timeout;
        let pool = Pool::builder()
            // Redis runs scripts on one core, and one pipelined connection keeps that core busy;
            // with one, calls are trivially in order.
            .max_size(1)
            .min_idle(0)
            .test_on_check_out(false)
            // A lock service that replaces its connections for their age would time out for it.
            .max_lifetime(None)
            .idle_timeout(None)
            // Never reached: connecting has its own limit.
            .connection_timeout(connect_timeout * 2)
            // bb8 would wait 200 ms, then twice that …; see `Backoff`.
            .retry_connection(false)
            .reaper_rate(Duration::from_secs(30))
            .queue_strategy(QueueStrategy::Fifo)
            .error_sink(Box::new(Sink(failures.clone())))
            .build_unchecked(Manager { target, scripts });
        Self { pool, failures }
    }

    /// Connects once, and fails as soon as that has failed. (bb8's `get` goes on waiting for
    /// another connection until its timeout.)
    pub(super) async fn get(&self) -> Result<PooledConnection<'_, Manager>, ConnectError> {
        self.failures.take();
        tokio::select! {
            biased;
            connection = self.pool.get() => connection.map_err(|error| match error {
                RunError::User(error) => error,
                RunError::TimedOut => ConnectError::new("connecting took too long"),
            }),
            error = self.failures.next() => Err(error),
        }
    }
}

/// The last failure to connect.
#[derive(Debug, Default)]
struct Failures {
    last: Mutex<Option<ConnectError>>,
    another: Notify,
}

impl Failures {
    fn take(&self) -> Option<ConnectError> {
        self.last.lock().take()
    }

    async fn next(&self) -> ConnectError {
        loop {
            if let Some(error) = self.take() {
                return error;
            }
            self.another.notified().await;
        }
    }
}

#[derive(Debug)]
struct Sink(Arc<Failures>);

impl ErrorSink<ConnectError> for Sink {
    fn sink(&self, error: ConnectError) {
        *self.0.last.lock() = Some(error);
        self.0.another.notify_one();
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<ConnectError>> {
        Box::new(Self(self.0.clone()))
    }
}

/// How long to wait before connecting again: at once, then 50 ms up to 250 ms, so that a node
/// that is back is in use within half a second.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LAST: Duration = Duration::from_millis(250);

    /// A connection was lost after `lived`. One that broke at once counts as a failure, or a
    /// node that accepts and closes would be connected to in a tight loop.
    pub(super) async fn lost(&mut self, lived: Duration) {
        self.failures = 0;
        if lived < Self::FIRST {
            self.failed().await;
        }
    }

    /// Connecting failed.
    pub(super) async fn failed(&mut self) {
        let pause = Self::FIRST * 2_u32.pow(self.failures.min(8));
        self.failures += 1;
        tokio::time::sleep(pause.min(Self::LAST)).await;
    }
}
