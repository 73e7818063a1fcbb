//! The socket of a client, whose user time-out follows what the client asks for.
//!
//! A client that vanishes without a FIN is noticed by what it does not acknowledge. For how long that may be depends
//! on the lease that it holds, which is known only once its request is read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::api::UserTimeout;

/// A connected socket.
pub(super) struct Socket {
    stream: TcpStream,
    /// What the socket shall have, and has.
    wanted: UserTimeout,
    set: Duration,
}

impl Socket {
    /// A socket that has the user time-out `wanted` so far.
    pub(super) fn new(stream: TcpStream, wanted: UserTimeout) -> Self {
        let set = wanted.get();
        Self { stream, wanted, set }
    }

    /// Before what the time-out is to hold for.
    fn follow(&mut self) {
        let wanted = self.wanted.get();
        if wanted != self.set {
            self.set = wanted;
            set_user_timeout(&self.stream, wanted);
        }
    }
}

/// How long what was sent may stay unacknowledged (`TCP_USER_TIMEOUT`), where the system has that.
pub(super) fn set_user_timeout(stream: &TcpStream, timeout: Duration) {
    #[cfg(target_os = "linux")]
    if let Err(cause) = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(timeout)) {
        // The client is gone already, which the next read will say.
        tracing::debug!(%cause, "cannot set the user time-out");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, timeout);
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.follow();
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.follow();
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
