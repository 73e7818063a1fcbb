//! A small HTTP/1.1 client that does exactly what it is told.
//!
//! The tests leave in the middle of requests, send garbage, keep half-open connections and count
//! bytes, none of which a well-behaved client library allows. Dropping the future of a request
//! closes its connection, as a client that crashes would.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than any answer may take; a test that runs into it has failed.
const PATIENCE: Duration = Duration::from_secs(100);

/// One server as a client sees it. Cheap to clone; clones share idle connections.
#[derive(Clone)]
pub struct Api {
    address: SocketAddr,
    headers: Arc<Vec<(String, String)>>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// The head of an answer.
#[derive(Debug)]
struct Head {
    status: u16,
    headers: Vec<(String, String)>,
}

/// A connection with what was read ahead.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// Percent-encodes all but unreserved characters.
pub fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Sends these bytes.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    async fn fill(&mut self) -> io::Result<()> {
        let mut chunk = [0; 16 * 1024];
        let read = self.stream.read(&mut chunk).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.buffer.extend_from_slice(&chunk[..read]);
        Ok(())
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.drain(..end + 2);
                return Ok(line);
            }
            self.fill().await?;
        }
    }

    async fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < count {
            self.fill().await?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    async fn head(&mut self) -> io::Result<Head> {
        loop {
            let line = self.line().await?;
            let status = line.strip_prefix("HTTP/1.1 ").or(line.strip_prefix("HTTP/1.0 "));
            let status = status.and_then(|rest| rest.get(..3)?.parse().ok());
            let status: u16 = status.ok_or_else(|| bad("no status line"))?;
            let mut headers = Vec::new();
            loop {
                let line = self.line().await?;
                if line.is_empty() {
                    break;
                }
                let (name, value) = line.split_once(':').ok_or_else(|| bad("no header"))?;
                headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            if status >= 200 {
                return Ok(Head { status, headers });
            }
        }
    }

    /// A piece of a chunked body; empty at the end.
    async fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let line = self.line().await?;
        let size = usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16);
        let size = size.map_err(|_| bad("no chunk size"))?;
        let piece = self.take(size).await?;
        self.line().await?;
        Ok(piece)
    }

    /// Reads one answer; `None` where the server closed instead.
    pub async fn answer(&mut self) -> io::Result<Answer> {
        let Head { status, headers } = self.head().await?;
        let mut answer = Answer { status, headers, body: Vec::new() };
        if status == 204 || status == 304 {
            return Ok(answer);
        }
        if answer.header("transfer-encoding").is_some() {
            loop {
                let piece = self.chunk().await?;
                if piece.is_empty() {
                    return Ok(answer);
                }
                answer.body.extend(piece);
            }
        }
        let length = answer.header("content-length").and_then(|length| length.parse().ok());
        answer.body = match length {
            Some(length) => self.take(length).await?,
            None => {
                while self.fill().await.is_ok() {}
                std::mem::take(&mut self.buffer)
            }
        };
        Ok(answer)
    }

    /// Whatever comes next, as text.
    pub async fn piece(&mut self) -> String {
        self.fill().await.expect("the connection goes on");
        String::from_utf8_lossy(&std::mem::take(&mut self.buffer)).into_owned()
    }

    /// Whether the server has said or closed something while nothing was asked.
    fn is_stale(&self) -> bool {
        let mut byte = [0];
        !self.buffer.is_empty()
            || !matches!(self.stream.try_read(&mut byte), Err(why) if why.kind() == io::ErrorKind::WouldBlock)
    }
}

impl Api {
    /// A client of the server at `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, headers: Arc::default(), idle: Arc::default() }
    }

    /// The same server, with one more header on every request.
    pub fn with_header(&self, name: &str, value: &str) -> Self {
        let mut headers = (*self.headers).clone();
        headers.push((name.to_owned(), value.to_owned()));
        Self { address: self.address, headers: Arc::new(headers), idle: Arc::default() }
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A connection of one's own.
    pub async fn connect(&self) -> io::Result<Connection> {
        Connection::open(self.address).await
    }

    fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap();
        while let Some(connection) = idle.pop() {
            if !connection.is_stale() {
                return Some(connection);
            }
        }
        None
    }

    /// The bytes of a request.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.address);
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain(headers.iter().copied()) {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || method == "POST" {
            head += &format!("content-length: {}\r\n", body.len());
        }
        let mut bytes = (head + "\r\n").into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }

    /// Sends a request and reads the answer; an error where there is none, e.g. because the
    /// server was killed. Never sends twice.
    pub async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        let mut connection = match self.idle() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        connection.send(&self.request(method, path, headers, body)).await?;
        let answer = connection.answer().await?;
        let closes = answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if !closes {
            self.idle.lock().unwrap().push(connection);
        }
        Ok(answer)
    }

    /// As [`Api::try_send`], of a server that must answer in time.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let sent = tokio::time::timeout(PATIENCE, self.try_send(method, path, headers, body)).await;
        let answer = sent.unwrap_or_else(|_| panic!("no answer to {method} {path} within {PATIENCE:?}"));
        answer.unwrap_or_else(|why| panic!("no answer to {method} {path}: {why}"))
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"").await
    }

    /// DELETE.
    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], b"").await
    }

    /// POST with JSON.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes()).await
    }

    /// POST with JSON; an error where there is no answer.
    pub async fn try_post(&self, path: &str, body: &Value) -> io::Result<Answer> {
        let headers = [("content-type", "application/json")];
        self.try_send("POST", path, &headers, body.to_string().as_bytes()).await
    }

    /// `POST /v1/locks/{name}/acquire`.
    pub async fn acquire(&self, name: &str, body: Value) -> Answer {
        self.post(&format!("/v1/locks/{name}/acquire"), body).await
    }

    /// `POST /v1/locks/{name}/extend`, with the ttl that the lease has.
    pub async fn extend(&self, name: &str, lease: &Value) -> Answer {
        self.post(&format!("/v1/locks/{name}/extend"), json!({"lease_id": lease["lease_id"]})).await
    }

    /// `POST /v1/locks/{name}/release`.
    pub async fn release(&self, name: &str, lease: &Value) -> Answer {
        self.post(&format!("/v1/locks/{name}/release"), json!({"lease_id": lease["lease_id"]})).await
    }

    /// `GET /v1/locks/{name}`.
    pub async fn lock(&self, name: &str) -> Value {
        self.get(&format!("/v1/locks/{name}")).await.ok()
    }

    /// The value of one series of `/metrics`, e.g. `quorate_waiters`; 0 where it is missing.
    pub async fn metric(&self, series: &str) -> f64 {
        let text = self.get("/metrics").await.text();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    }

    /// Opens an event stream; the plain answer where the server gives one instead.
    pub async fn stream(&self, method: &str, path: &str, body: Value) -> Result<EventStream, Answer> {
        let opened = tokio::time::timeout(PATIENCE, self.try_stream(method, path, &body)).await;
        opened
            .unwrap_or_else(|_| panic!("no answer to {method} {path} within {PATIENCE:?}"))
            .unwrap_or_else(|why| panic!("no answer to {method} {path}: {why}"))
    }

    /// As [`Api::stream`], of a server that may be gone.
    pub async fn try_stream(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> io::Result<Result<EventStream, Answer>> {
        let mut connection = self.connect().await?;
        let headers = [("content-type", "application/json"), ("accept", "text/event-stream")];
        let body = if method == "GET" { String::new() } else { body.to_string() };
        connection.send(&self.request(method, path, &headers, body.as_bytes())).await?;
        let Head { status, headers } = connection.head().await?;
        let mut answer = Answer { status, headers, body: Vec::new() };
        let is_stream =
            answer.header("content-type").is_some_and(|value| value.starts_with("text/event-stream"));
        if is_stream && status == 200 {
            return Ok(Ok(EventStream { connection, text: String::new() }));
        }
        let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        answer.body = connection.take(length).await?;
        Ok(Err(answer))
    }
}

impl Answer {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|why| panic!("not JSON ({why}): {}", self.text()))
    }

    /// The JSON of a success.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        assert!(self.header("x-request-id").is_some_and(|id| !id.is_empty()), "{:?}", self.headers);
        self.json()
    }

    /// The `code` of a problem, or nothing.
    pub fn code(&self) -> String {
        let problem: Option<Value> = serde_json::from_slice(&self.body).ok();
        problem.and_then(|problem| Some(problem["code"].as_str()?.to_owned())).unwrap_or_default()
    }

    /// The JSON of a problem of this status and code, whose form is checked.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        let text = self.text();
        assert_eq!(self.status, status, "{text}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{text}");
        let problem = self.json();
        assert_eq!(problem["code"], code, "{text}");
        assert_eq!(problem["status"], status, "{text}");
        for member in ["type", "title", "detail", "request_id"] {
            assert!(problem[member].as_str().is_some_and(|value| !value.is_empty()), "no {member}: {text}");
        }
        assert_eq!(self.header("x-request-id"), problem["request_id"].as_str(), "{text}");
        if let Some(ms) = problem.get("retry_after_ms").map(|ms| ms.as_u64().expect("retry_after_ms")) {
            let seconds = self.header("retry-after").expect("Retry-After").parse::<u64>().unwrap();
            assert!(seconds * 1000 >= ms && seconds <= ms / 1000 + 1, "{seconds} s: {text}");
        }
        problem
    }
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub name: String,
    pub id: String,
    pub data: Value,
}

/// A `text/event-stream`, read event by event.
pub struct EventStream {
    connection: Connection,
    text: String,
}

impl EventStream {
    /// The next event; `None` at the end of the stream, or when the server is gone.
    pub async fn try_next(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                let field = |name: &str| {
                    let lines = block.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                    lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
                };
                let (name, id, data) = (field("event"), field("id"), field("data"));
                if name.is_empty() && data.is_empty() {
                    // A comment: the heartbeat.
                    continue;
                }
                assert!(!id.is_empty(), "an event without an id: {block}");
                let data = serde_json::from_str(&data).unwrap_or_else(|why| panic!("{why}: {block}"));
                return Some(Event { name, id, data });
            }
            let piece = self.connection.chunk().await.ok().filter(|piece| !piece.is_empty())?;
            self.text.push_str(&String::from_utf8_lossy(&piece));
        }
    }

    /// The next event, which must come, and in time.
    pub async fn next(&mut self) -> Event {
        let event = tokio::time::timeout(PATIENCE, self.try_next()).await.expect("no event came");
        event.expect("the stream has ended")
    }

    /// The next event, which must be called this.
    #[track_caller]
    pub fn expect<'a>(&'a mut self, name: &'a str) -> impl Future<Output = Value> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let event = self.next().await;
            assert_eq!(event.name, name, "{:?} at {caller}", event.data);
            event.data
        }
    }

    /// Asserts that the stream ends here.
    pub async fn end(mut self) {
        let last = tokio::time::timeout(PATIENCE, self.try_next()).await.expect("the stream goes on");
        assert_eq!(last, None);
    }
}
