//! Where a node is, how to get in, and the making of a connection.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::aio::MultiplexedConnection;
use bb8_redis::redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::{ConfigError, RedisOptions};
use crate::domain::{of_connecting, password_of};

/// Where a node is and how to get in.
pub(super) struct Target {
    place: Place,
    pub(super) username: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
    pub(super) database: i64,
    pub(super) connect_timeout: Duration,
}

enum Place {
    Tcp {
        host: String,
        port: u16,
    },
    Tls {
        host: String,
        port: u16,
        name: ServerName<'static>,
        connector: TlsConnector,
        shows_certificate: bool,
    },
    Unix(PathBuf),
}

/// A byte stream to a node: TCP, TLS or a Unix socket.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// Why there is no connection. The text is for people and holds no secret: it is either the
/// operating system's or the answer of the node.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct ConnectError(pub(super) Arc<str>);

impl ConnectError {
    pub(super) fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }
}

impl From<std::io::Error> for ConnectError {
    fn from(error: std::io::Error) -> Self {
        Self::new(of_connecting(&error.to_string()))
    }
}

impl From<RedisError> for ConnectError {
    fn from(error: RedisError) -> Self {
        Self::new(reason(&error))
    }
}

/// What the redis crate says of a connection, in the words of the log.
pub(super) fn reason(error: &RedisError) -> String {
    match error.kind() {
        ErrorKind::Parse => format!("protocol error: {error}"),
        _ if error.is_connection_dropped() => "closed by the node".to_owned(),
        _ => error.to_string(),
    }
}

/// A connection of the redis crate, on which nothing was sent yet.
pub(super) struct RawConnection {
    pub(super) commands: MultiplexedConnection,
    /// Reads and writes the socket; ends when the connection has ended.
    pub(super) io: Pin<Box<dyn Future<Output = ()> + Send>>,
    pub(super) unread: Unread,
}

/// Asks the kernel whether bytes have arrived that nobody has read.
pub(super) struct Unread(OwnedFd);

impl Unread {
    pub(super) fn any(&self) -> bool {
        let mut asked = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        // The end of the stream counts too: to read it tells more than the time does.
        poll(&mut asked, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}

impl Target {
    /// Reads the URL of a node and the options beside it.
    pub(super) fn read(url: &str, options: &RedisOptions) -> Result<Self, ConfigError> {
        let info = url.into_connection_info().map_err(|_| {
            ConfigError("not the URL of a Redis server (redis://, rediss:// or unix://)".into())
        })?;
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Place::Tcp { host: host.clone(), port: *port },
            ConnectionAddr::Unix(path) => Place::Unix(path.clone()),
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                return Err(ConfigError("#insecure is not supported: name the certificates to trust".into()));
            }
            ConnectionAddr::TcpTls { host, port, .. } => Place::Tls {
                host: host.clone(),
                port: *port,
                name: ServerName::try_from(host.clone())
                    .map_err(|_| ConfigError("the host is not a name that a certificate can have".into()))?,
                connector: tls_connector(options)?,
                shows_certificate: options.identity_files.is_some(),
            },
            _ => return Err(ConfigError("an address of an unknown kind".into())),
        };
        let settings = info.redis_settings();
        Ok(Self {
            place,
            username: settings.username().map(str::to_owned),
            password: settings.password().map(str::to_owned),
            password_file: options.password_file.clone(),
            database: settings.db(),
            connect_timeout: options.connect_timeout,
        })
    }

    /// The password of now.
    pub(super) async fn password(&self) -> Result<Option<String>, ConnectError> {
        let Some(path) = self.password_file.as_ref().filter(|_| self.password.is_none()) else {
            return Ok(self.password.clone());
        };
        let read = tokio::fs::read_to_string(path).await.map_err(|error| error.to_string());
        let password = read.and_then(|text| password_of(&text).map(str::to_owned).ok_or("empty".to_owned()));
        password.map(Some).map_err(|why| ConnectError::new(format!("{}: {why}", path.display())))
    }

    /// Why a node may have closed what was just opened.
    pub(super) fn of_silence(&self) -> &'static str {
        match self.place {
            // With TLS 1.3 a client learns of it only when it reads.
            Place::Tls { shows_certificate: false, .. } => {
                "closed before it answered, or a protocol error; perhaps it asks for a certificate (redis_cert)"
            }
            _ => "closed before it answered, or a protocol error",
        }
    }

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

    /// Opens the socket.
    pub(super) async fn open(&self, deadline: Instant) -> Result<(Box<dyn Socket>, Unread), ConnectError> {
        Ok(match &self.place {
            Place::Tcp { host, port } => {
                let tcp = open_tcp(host, *port, deadline).await?;
                let unread = Unread(tcp.as_fd().try_clone_to_owned()?);
                (Box::new(tcp), unread)
            }
            Place::Tls { host, port, name, connector, .. } => {
                let tcp = open_tcp(host, *port, deadline).await?;
                let unread = Unread(tcp.as_fd().try_clone_to_owned()?);
                let greeted = async { Ok(connector.connect(name.clone(), tcp).await?) };
                (Box::new(in_time(deadline, greeted).await?), unread)
            }
            Place::Unix(path) => {
                let unix = UnixStream::connect(path).await?;
                let unread = Unread(unix.as_fd().try_clone_to_owned()?);
                (Box::new(unix), unread)
            }
        })
    }

    /// Opens a connection of the redis crate. It sends nothing by itself, so that a refusal
    /// keeps the words of the node, and holds `in_flight` commands before a sender has to wait.
    pub(super) async fn connect(
        &self,
        in_flight: usize,
        deadline: Instant,
    ) -> Result<RawConnection, ConnectError> {
        let (socket, unread) = self.open(deadline).await?;
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config =
            AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(in_flight);
        let (commands, io) = MultiplexedConnection::new_with_config(&info, socket, config).await?;
        Ok(RawConnection { commands, io: Box::pin(io), unread })
    }
}

/// Does `work`, or fails at the deadline with "did not answer in time".
pub(super) async fn in_time<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let late = || Err(ConnectError::new("the node did not answer in time"));
    tokio::time::timeout_at(deadline, work).await.unwrap_or_else(|_| late())
}

/// What an address gets before the next one is tried beside it (RFC 8305).
const HEAD_START: Duration = Duration::from_millis(100);

/// Connects to whichever address of the name answers first. The reason tells what became of each.
async fn open_tcp(host: &str, port: u16, deadline: Instant) -> Result<TcpStream, ConnectError> {
    let found = in_time(deadline, async { Ok(tokio::net::lookup_host((host, port)).await?.collect()) });
    let stream = race(host, found.await?, deadline).await?;
    // A run is one write: nothing is gained by holding the last segment of it back.
    stream.set_nodelay(true)?;
    // For a connection without traffic; one with traffic is judged by its answers.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(3))
        .with_retries(3);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

async fn race(host: &str, addresses: Vec<SocketAddr>, deadline: Instant) -> Result<TcpStream, ConnectError> {
    let mut addresses = interleaved(addresses).into_iter();
    let connect = async |address: SocketAddr| (address, TcpStream::connect(address).await);
    let (mut tried, mut attempts) = (Vec::new(), FuturesUnordered::new());
    loop {
        if let Some(address) = addresses.next() {
            tried.push((address, "no answer in time".to_owned()));
            attempts.push(connect(address));
        }
        if attempts.is_empty() {
            return Err(of_attempts(host, &tried));
        }
        tokio::select! {
            biased;
            Some((address, outcome)) = attempts.next() => match outcome {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    let its_own = tried.iter_mut().filter(|(of, _)| *of == address);
                    its_own.for_each(|(_, why)| *why = error.to_string());
                }
            },
            () = tokio::time::sleep(HEAD_START), if addresses.len() > 0 => {}
            () = tokio::time::sleep_until(deadline) => return Err(of_attempts(host, &tried)),
        }
    }
}

/// The families in turn, the first address first: one of them may lead nowhere.
fn interleaved(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_first = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|a| a.is_ipv6() == is_first);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(first.next());
        all.extend(second.next());
        if all.len() == before {
            return all;
        }
    }
}

fn of_attempts(host: &str, tried: &[(SocketAddr, String)]) -> ConnectError {
    match tried {
        [] => ConnectError::new("the name has no address"),
        // The URL says which one.
        [(address, why)] if address.ip().to_string() == host => ConnectError::new(why.as_str()),
        _ => {
            let each: Vec<String> = tried.iter().map(|(address, why)| format!("{address}: {why}")).collect();
            ConnectError::new(each.join("; "))
        }
    }
}

fn tls_connector(options: &RedisOptions) -> Result<TlsConnector, ConfigError> {
    let mut roots = RootCertStore::empty();
    match &options.ca_file {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| of_file(path, &error))?;
            }
            if roots.is_empty() {
                return Err(of_file(path, &"no certificate in it"));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    // The provider is named, so that nothing depends on who installed a default one.
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ConfigError(error.to_string()))?
        .with_root_certificates(roots);
    let config = match &options.identity_files {
        Some((cert, key)) => {
            let private = PrivateKeyDer::from_pem_file(key).map_err(|error| of_file(key, &error))?;
            let shown = config.with_client_auth_cert(certificates(cert)?, private);
            shown.map_err(|error| of_file(cert, &error))?
        }
        None => config.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn of_file(path: &Path, error: &dyn fmt::Display) -> ConfigError {
    ConfigError(format!("{}: {error}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|error| of_file(path, &error))
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

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_families_of_addresses_take_turns() {
        let given = addresses(&["[::1]:1", "[::2]:1", "127.0.0.1:1", "[::3]:1"]);
        let turns = addresses(&["[::1]:1", "127.0.0.1:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(interleaved(given), turns);
    }

    /// Where connections are neither accepted nor refused, for as long as this lives.
    fn swallowing() -> (SocketAddr, Vec<Socket>) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        // The first waits to be accepted, and there is no room for more.
        let waiting = (0..2).map(|_| {
            let waits = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            waits.set_nonblocking(true).unwrap();
            let _ = waits.connect(&address.into());
            waits
        });
        let kept = waiting.chain([socket]).collect();
        (address, kept)
    }

    #[tokio::test]
    async fn an_address_that_swallows_packets_does_not_keep_from_the_next_one() {
        let (silent, _kept) = swallowing();
        let sound = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let sound = (sound.local_addr().unwrap(), sound);
        let long = Instant::now() + Duration::from_secs(60);
        let stream = race("node", vec![silent, sound.0], long).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), sound.0);
        drop(sound.1);
        let soon = Instant::now() + 15 * HEAD_START;
        let why = race("node", vec![silent, sound.0], soon).await.unwrap_err().to_string();
        let of_second = format!("{}: Connection refused", sound.0);
        assert!(why.starts_with(&format!("{silent}: no answer in time; {of_second}")), "{why}");
    }

    #[test]
    fn the_reason_tells_what_became_of_each_address() {
        let tried = |texts: &[&str]| -> Vec<_> {
            addresses(texts).into_iter().map(|address| (address, "refused".to_owned())).collect()
        };
        assert_eq!(of_attempts("127.0.0.1", &tried(&["127.0.0.1:1"])).to_string(), "refused");
        assert_eq!(of_attempts("node", &tried(&["127.0.0.1:1"])).to_string(), "127.0.0.1:1: refused");
        let both = of_attempts("node", &tried(&["[::1]:1", "127.0.0.1:1"])).to_string();
        assert_eq!(both, "[::1]:1: refused; 127.0.0.1:1: refused");
    }
}
