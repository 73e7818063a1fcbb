//! What all tests stand on: nodes, servers, a network that breaks, a client that misbehaves.

pub mod cluster;
pub mod http;
pub mod http2;
pub mod proxy;
pub mod redis;
pub mod server;

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

pub use self::cluster::Cluster;
pub use self::http::{Answer, Api, EventStream};
pub use self::redis::{Redis, RedisOptions};
pub use self::server::{Server, ServerOptions};

/// How long a machine with other things to do may take for what should take a moment.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A name that no other test uses.
pub fn unique(stem: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{stem}:{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Waits until `holds`, which must happen in time.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + PATIENCE;
        while !holds().await {
            assert!(Instant::now() < deadline, "never: {what} ({caller})");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Says that a test cannot be made here, and why. Straight to the output, which shows it although the test passes, on a line
/// of its own, which `scripts/test` counts.
pub fn skip(why: &str) {
    let _ = std::io::stdout().write_all(format!("\nskipped: {why}\n").as_bytes());
}

/// A field that is a whole number.
#[track_caller]
pub fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("no whole number {field} in {value}"))
}

/// The fencing token of a lease.
#[track_caller]
pub fn token(lease: &Value) -> u64 {
    number(lease, "fencing_token")
}

/// The secret of a lease.
#[track_caller]
pub fn secret(lease: &Value) -> &str {
    lease["lease_id"].as_str().unwrap_or_else(|| panic!("no lease_id in {lease}"))
}

/// The value in the middle.
pub fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Three nodes with two servers, for tests that break nothing and use names of their own.
pub struct Shared {
    pub cluster: Cluster,
    pub first: Server,
    pub second: Server,
}

impl Shared {
    /// The deployment of `n` nodes; started by whoever needs it first.
    pub fn nodes(n: usize) -> &'static Self {
        static SHARED: [OnceLock<Shared>; 6] = [const { OnceLock::new() }; 6];
        SHARED[n].get_or_init(|| {
            // On a thread that never ends: processes end with the thread that started them.
            let (told, shared) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let shared = runtime.block_on(async {
                    let cluster = Cluster::new(n);
                    let (first, second) = (cluster.server(&[]).await, cluster.server(&[]).await);
                    Self { cluster, first, second }
                });
                told.send(shared).ok();
                loop {
                    std::thread::park();
                }
            });
            shared.recv().expect("the shared deployment starts")
        })
    }

    /// A client of the first server, with connections of its own.
    pub fn api(&self) -> Api {
        Api::new(self.first.api().address())
    }

    /// A client of the second server.
    pub fn other_api(&self) -> Api {
        Api::new(self.second.api().address())
    }
}

/// The memory that a process has now.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Lets this process have that many files open, if it may.
pub fn allow_open_files(count: u64) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit of open files");
    if soft < count {
        let raised = setrlimit(Resource::RLIMIT_NOFILE, count.min(hard), hard);
        assert!(raised.is_ok() && hard >= count, "this test needs {count} open files, but may have {hard}");
    }
}
