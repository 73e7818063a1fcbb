//! A TCP proxy that breaks the network in all the ways that need no kernel.
//!
//! It runs on a thread of its own, so that a test that blocks does not stall the network too.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use super::redis::free_port;

/// What the network does to the bytes of both directions.
#[derive(Debug, Default)]
struct Faults {
    /// The port to which new connections lead.
    target: AtomicU16,
    /// Bytes arrive this much later.
    delay_ms: AtomicU64,
    /// Bytes to the node are swallowed.
    mute_requests: AtomicBool,
    /// Bytes from the node are swallowed.
    mute_answers: AtomicBool,
    /// Connections are refused: accepted and closed at once.
    cut: AtomicBool,
}

/// A proxy before one port of loopback.
pub struct Proxy {
    port: u16,
    faults: Arc<Faults>,
    /// Bumped to close all connections.
    epoch: watch::Sender<u64>,
    over: Arc<Notify>,
}

impl Proxy {
    /// Starts one before `target`.
    pub fn before(target: u16) -> Self {
        let faults = Arc::new(Faults { target: target.into(), ..Faults::default() });
        let over = Arc::new(Notify::new());
        let (epoch, epochs) = watch::channel(0);
        let (told, port) = std::sync::mpsc::channel();
        let (its_faults, its_over) = (Arc::clone(&faults), Arc::clone(&over));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = loop {
                    if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).await {
                        break listener;
                    }
                };
                told.send(listener.local_addr().unwrap().port()).unwrap();
                tokio::select! {
                    () = its_over.notified() => {}
                    () = accept(listener, its_faults, epochs) => {}
                }
            });
        });
        Self { port: port.recv().expect("the proxy listens"), faults, epoch, over }
    }

    /// As a node's URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on it stands before another port.
    pub fn turn_to(&self, target: u16) {
        self.faults.target.store(target, Ordering::Relaxed);
        self.drop_connections();
    }

    /// From now on bytes arrive this much later.
    pub fn delay(&self, delay: Duration) {
        self.faults.delay_ms.store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    /// Closes all connections and lets none through.
    pub fn cut(&self) {
        self.faults.cut.store(true, Ordering::Relaxed);
        self.drop_connections();
    }

    /// Swallows everything in both directions, and says nothing.
    pub fn black_hole(&self) {
        self.mute_requests();
        self.mute_answers();
    }

    /// Swallows what is sent to the node.
    pub fn mute_requests(&self) {
        self.faults.mute_requests.store(true, Ordering::Relaxed);
    }

    /// Swallows what the node answers: it hears all and does all.
    pub fn mute_answers(&self) {
        self.faults.mute_answers.store(true, Ordering::Relaxed);
    }

    /// Closes all connections; new ones pass.
    pub fn drop_connections(&self) {
        self.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// All is well again. Connections from which bytes were swallowed are closed, as they are
    /// of no use to anybody.
    pub fn heal(&self) {
        let muted = self.faults.mute_requests.swap(false, Ordering::Relaxed)
            | self.faults.mute_answers.swap(false, Ordering::Relaxed);
        self.faults.cut.store(false, Ordering::Relaxed);
        self.faults.delay_ms.store(0, Ordering::Relaxed);
        if muted {
            self.drop_connections();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.notify_one();
    }
}

async fn accept(listener: TcpListener, faults: Arc<Faults>, epochs: watch::Receiver<u64>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        if faults.cut.load(Ordering::Relaxed) {
            continue;
        }
        let (faults, mut epochs) = (Arc::clone(&faults), epochs.clone());
        epochs.mark_unchanged();
        tokio::spawn(async move {
            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, faults.target.load(Ordering::Relaxed)));
            let Ok(node) = TcpStream::connect(target).await else { return };
            let _ = (client.set_nodelay(true), node.set_nodelay(true));
            let (from_client, to_client) = client.into_split();
            let (from_node, to_node) = node.into_split();
            tokio::select! {
                () = carry(from_client, to_node, &faults, &faults.mute_requests) => {}
                () = carry(from_node, to_client, &faults, &faults.mute_answers) => {}
                _ = epochs.changed() => {}
            }
        });
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, faults: &Faults, mute: &AtomicBool) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(read) = from.read(&mut buffer).await else { return };
        if read == 0 {
            return;
        }
        let delay = faults.delay_ms.load(Ordering::Relaxed);
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        if mute.load(Ordering::Relaxed) {
            continue;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
