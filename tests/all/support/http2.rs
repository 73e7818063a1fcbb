//! Just enough HTTP/2 for a client that asks and then does not read: hyper's own does what it should.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
/// `END_STREAM` of data; `ACK` of settings and pings.
const END: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Sends a POST and takes no more than `window` bytes of the answer's body, for as long as the result lives.
/// Pings are answered, so that the connection lives too.
pub async fn post_unread(address: SocketAddr, path: &str, body: &str, window: u32) -> io::Result<Unread> {
    let mut stream = TcpStream::connect(address).await?;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE
    bytes.extend(frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat()));
    let mut head = Vec::new();
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "quorate"),
        (":path", path),
        ("content-type", "application/json"),
    ];
    for (name, value) in headers {
        // A literal that is not indexed, its name and value as they are.
        head.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "longer texts have longer lengths");
            head.push(text.len() as u8);
            head.extend(text.as_bytes());
        }
    }
    bytes.extend(frame(HEADERS, END_HEADERS, 1, &head));
    bytes.extend(frame(DATA, END, 1, body.as_bytes()));
    stream.write_all(&bytes).await?;
    let ended = Arc::new(Notify::new());
    let end = Arc::clone(&ended);
    let reading = tokio::spawn(async move {
        while let Ok(is_end) = answer_one(&mut stream).await {
            if is_end {
                end.notify_one();
            }
        }
    });
    Ok(Unread { reading, ended })
}

/// Reads a frame and answers what must be answered. Whether it is the end of the answer.
async fn answer_one(stream: &mut TcpStream) -> io::Result<bool> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload).await?;
    match (head[3], head[4]) {
        (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, END, 0, &[])).await?,
        (PING, 0) => stream.write_all(&frame(PING, END, 0, &payload)).await?,
        _ => {}
    }
    Ok(head[3] == DATA && head[4] & END != 0)
}

/// A connection that is alive and not read; dropping it closes it.
pub struct Unread {
    reading: tokio::task::JoinHandle<()>,
    ended: Arc<Notify>,
}

impl Unread {
    /// Waits until the server closes it.
    pub async fn closed(mut self) {
        let _ = (&mut self.reading).await;
    }

    /// Waits until all of the answer has come: once.
    pub async fn answered(&self) {
        self.ended.notified().await;
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.reading.abort();
    }
}
