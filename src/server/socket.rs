//! A client's socket that others may look at while hyper does not read it.
//!
//! While a request is being served and bytes of the next one are buffered, hyper reads no
//! further and so does not see the client leave. The sweeper asks the kernel.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Linux tells an end that stands behind unread bytes; elsewhere only a reset is seen.
#[cfg(target_os = "linux")]
const CLOSED_BY_PEER: PollFlags = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);
#[cfg(not(target_os = "linux"))]
const CLOSED_BY_PEER: PollFlags = PollFlags::empty();

/// Whether the other side has closed the connection, or it broke.
pub(super) fn has_left(socket: &TcpStream) -> bool {
    let left = PollFlags::POLLHUP | PollFlags::POLLERR | CLOSED_BY_PEER;
    let mut asked = [PollFd::new(socket.as_fd(), left)];
    // Only these were asked for, so any that came is one of them.
    poll(&mut asked, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// The socket as hyper uses it.
pub(super) struct Socket(pub(super) Arc<TcpStream>);

impl Socket {
    /// Writes as soon as the socket takes it.
    fn write(
        &self,
        context: &mut Context<'_>,
        attempt: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match attempt(&self.0) {
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            let room = buffer.remaining();
            let mut read = None;
            let outcome = self.0.try_io(Interest::READABLE, || {
                // Into memory that is not cleared before: hyper's buffers are large, requests small.
                let length = self.0.try_read_buf(buffer)?;
                read = Some(length);
                // Less than there is room for: the socket is empty. To say so spares hyper the
                // look that it takes for another request after each.
                if (1..room).contains(&length) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match outcome {
                _ if read.is_some() => return Poll::Ready(Ok(())),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream| stream.try_write_vectored(pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}
