//! The listening socket: accepts, sets socket options, turns away what is too many.
//!
//! Beyond `max_connections` a client is told so (503 and a `Retry-After`) and closed, rather
//! than left in the kernel's queue: a client in the queue looks served and is not. A probe is
//! answered there, too. What is beyond the places kept for that is closed without a word.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use super::connection::Connections;
use super::socket::{Socket, set_user_timeout};
use super::tls::{Tls, agreed};
use crate::api::UserTimeout;
use crate::telemetry::{Refusal, metrics};

/// Clients that the kernel may keep until they are accepted.
const BACKLOG: u32 = 4_096;

/// The silence after which a client is asked whether it is still there, how often, and how
/// many times. A holder that lost its power is noticed within half a minute.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);

/// How long a client may leave what was sent to it unacknowledged, unless it holds a shorter lease.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// Binds `address`.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    // A restarted server must not wait for its predecessor's connections to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts until dropped. Connections that it accepted go on without it.
pub async fn accept(listener: TcpListener, connections: Arc<Connections>, tls: Option<Arc<Tls>>) {
    let mut failing = false;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(cause) if is_of_one_client(&cause) => continue,
            Err(cause) => {
                // Out of file descriptors, mostly. Said once, or the log would fill too.
                if !failing {
                    tracing::error!(%cause, "cannot accept connections");
                }
                failing = true;
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        failing = false;
        set_options(&stream);
        let Some(place) = connections.admit() else {
            metrics().refused(Refusal::Connections);
            continue;
        };
        let connections = Arc::clone(&connections);
        let user_timeout = UserTimeout::new(UNACKNOWLEDGED_MAX);
        match &tls {
            None => tokio::spawn(connections.serve_plain(stream, user_timeout, place)),
            Some(tls) => {
                let socket = Socket::new(stream, user_timeout.clone());
                let handshake = timeout(connections.config.header_timeout.0, tls.acceptor().accept(socket));
                tokio::spawn(async move {
                    match handshake.await {
                        Ok(Ok(stream)) => {
                            let version = agreed(&stream);
                            connections.serve(stream, version, user_timeout, place).await;
                        }
                        Ok(Err(cause)) => tracing::debug!(%cause, "connection did not begin"),
                        Err(_) => metrics().refused(Refusal::HeaderTimeout),
                    }
                })
            }
        };
    }
}

/// Whether accepting failed because of the client that was next, not because of us.
fn is_of_one_client(cause: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(cause.kind(), K::ConnectionRefused | K::ConnectionAborted | K::ConnectionReset | K::Interrupted)
}

fn set_options(stream: &TcpStream) {
    let (time, interval, retries) = KEEPALIVE;
    let keepalive = TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(retries);
    let socket = SockRef::from(stream);
    let set = || -> io::Result<()> {
        // Answers are small and whole: nothing to gain from waiting for more.
        stream.set_nodelay(true)?;
        socket.set_tcp_keepalive(&keepalive)
    };
    if let Err(cause) = set() {
        // The client is gone already, which the next read will say.
        tracing::debug!(%cause, "cannot set socket options");
    }
    set_user_timeout(stream, UNACKNOWLEDGED_MAX);
}
