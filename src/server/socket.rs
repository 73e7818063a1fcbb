//! A client's socket that others may look at while hyper does not read it.
//!
//! While a request is being served and bytes of the next one are buffered, hyper reads no
//! further and so does not see the client leave. The sweeper asks the kernel.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::http::Version;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Linux tells an end that stands behind unread bytes; elsewhere only a reset is seen.
#[cfg(target_os = "linux")]
const CLOSED_BY_PEER: PollFlags = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);
#[cfg(not(target_os = "linux"))]
const CLOSED_BY_PEER: PollFlags = PollFlags::empty();

/// What a client that speaks HTTP/2 sends first (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Waits until it is clear what the client speaks, and leaves what it has sent to be read.
///
/// hyper-util's look at it takes the first bytes away and hands them on one by one: hyper then makes a buffer
/// of twice the size, and each read and write of the connection goes through one layer more.
///
/// # Errors
/// The connection broke.
pub(super) async fn speaks(socket: &TcpStream) -> io::Result<Version> {
    let mut first = [0; PREFACE.len()];
    loop {
        socket.readable().await?;
        let looked = socket.try_io(Interest::READABLE, || {
            let length = recv(socket.as_raw_fd(), &mut first, MsgFlags::MSG_PEEK)?;
            if &first[..length] == PREFACE {
                Ok(Version::HTTP_2)
            } else if PREFACE.starts_with(&first[..length]) && !has_left(socket) {
                // The rest is on its way, and the socket readable only when more of it has come.
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                Ok(Version::HTTP_11)
            }
        });
        match looked {
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// What is found of a client that sends these pieces and then, perhaps, leaves.
    async fn found(pieces: &[&[u8]], leaves: bool) -> Version {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (mut socket, _) = listener.accept().await.unwrap();
        let version = {
            let mut looking = Box::pin(speaks(&socket));
            for piece in pieces {
                assert!(futures_util::poll!(&mut looking).is_pending(), "before all has come");
                client.write_all(piece).await.unwrap();
            }
            if leaves {
                client.shutdown().await.unwrap();
            }
            looking.await.unwrap()
        };
        let sent = pieces.concat();
        let mut left = vec![0; sent.len()];
        socket.read_exact(&mut left).await.unwrap();
        assert_eq!(left, sent, "what was looked at is still to be read");
        version
    }

    #[tokio::test]
    async fn http2_is_told_by_its_preface_whole_or_in_pieces() {
        let more = [PREFACE, b"and more"].concat();
        for pieces in [&[PREFACE][..], &[&more], &[b"PRI", b" * HTTP/2.0\r\n", b"\r\nSM\r\n\r\n"]] {
            assert_eq!(found(pieces, false).await, Version::HTTP_2);
        }
    }

    #[tokio::test]
    async fn all_else_is_http1_and_so_is_a_preface_that_ends_early() {
        for pieces in
            [&[b"GET / HTTP/1.1\r\n".as_slice()][..], &[b"P", b"OST /"], &[b"PRI * HTTP/1.1\r\n\r\n"]]
        {
            assert_eq!(found(pieces, false).await, Version::HTTP_11);
        }
        for pieces in [&[][..], &[b"PRI * ".as_slice()]] {
            assert_eq!(found(pieces, true).await, Version::HTTP_11);
        }
    }
}
