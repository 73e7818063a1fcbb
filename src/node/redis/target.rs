//! Where a node is, how to get in, and the making of a connection.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::aio::MultiplexedConnection;
use bb8_redis::redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::{ConfigError, RedisOptions};
use crate::domain::of_connecting;

/// Where a node is and how to get in.
pub(super) struct Target {
    place: Place,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    pub(super) connect_timeout: Duration,
}

enum Place {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16, name: ServerName<'static>, connector: TlsConnector },
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
            },
            _ => return Err(ConfigError("an address of an unknown kind".into())),
        };
        let settings = info.redis_settings();
        Ok(Self {
            place,
            username: options.username_override.clone().or_else(|| settings.username().map(str::to_owned)),
            password: options.password_override.clone().or_else(|| settings.password().map(str::to_owned)),
            database: settings.db(),
            connect_timeout: options.connect_timeout,
        })
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

    /// Opens the socket, without a limit of time.
    pub(super) async fn open(&self) -> Result<(Box<dyn Socket>, Unread), ConnectError> {
        Ok(match &self.place {
            Place::Tcp { host, port } => {
                let tcp = open_tcp(host, *port).await?;
                let unread = Unread(tcp.as_fd().try_clone_to_owned()?);
                (Box::new(tcp), unread)
            }
            Place::Tls { host, port, name, connector } => {
                let tcp = open_tcp(host, *port).await?;
                let unread = Unread(tcp.as_fd().try_clone_to_owned()?);
                (Box::new(connector.connect(name.clone(), tcp).await?), unread)
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
    pub(super) async fn connect(&self, in_flight: usize) -> Result<RawConnection, ConnectError> {
        let (socket, unread) = self.open().await?;
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config =
            AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(in_flight);
        let (commands, io) = MultiplexedConnection::new_with_config(&info, socket, config).await?;
        Ok(RawConnection { commands, io: Box::pin(io), unread })
    }
}

async fn open_tcp(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
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

fn tls_connector(options: &RedisOptions) -> Result<TlsConnector, ConfigError> {
    let mut roots = RootCertStore::empty();
    match &options.ca_file {
        Some(path) => {
            let error = |error: &dyn fmt::Display| ConfigError(format!("{}: {error}", path.display()));
            let certificates = CertificateDer::pem_file_iter(path).map_err(|e| error(&e))?;
            for certificate in certificates {
                roots.add(certificate.map_err(|e| error(&e))?).map_err(|e| error(&e))?;
            }
            if roots.is_empty() {
                return Err(error(&"no certificate in it"));
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
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
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
