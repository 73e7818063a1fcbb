//! The real binary as a child process.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::http::Api;
use super::redis::{leashed, signal};

/// The program under test.
pub const QUORATE: &str = env!("CARGO_BIN_EXE_quorate");

/// The same, or a copy of it that later builds leave alone.
fn program() -> String {
    std::env::var("QUORATE_PROGRAM").unwrap_or_else(|_| QUORATE.to_owned())
}

/// How long starting, or ending, may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A `quorate serve` that listens on a free port of loopback.
pub struct Server {
    child: Child,
    api: Api,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// Why a server did not start.
#[derive(Debug)]
pub struct NotStarted {
    pub status: ExitStatus,
    pub stderr: String,
}

/// What a server is to be started with.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    pub urls: Vec<String>,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl ServerOptions {
    /// Over the nodes with these URLs.
    pub fn over(urls: impl IntoIterator<Item = String>) -> Self {
        Self { urls: urls.into_iter().collect(), ..Self::default() }
    }

    /// With these arguments too.
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// With its wall clock this far off, e.g. `-30s`; the monotonic clock stays right. `None`
    /// where libfaketime is not installed.
    pub fn with_clock(mut self, offset: &str) -> Option<Self> {
        let preload = libfaketime()?.display().to_string();
        let pairs =
            [("LD_PRELOAD", preload.as_str()), ("FAKETIME_DONT_FAKE_MONOTONIC", "1"), ("FAKETIME", offset)];
        self.environment.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        Some(self)
    }
}

/// The library that lends a process a wrong clock (Debian's package `faketime`).
pub fn libfaketime() -> Option<PathBuf> {
    let directories = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let found = directories
        .flat_map(|directory| [directory.join("faketime"), directory])
        .map(|directory| directory.join("libfaketime.so.1"))
        .find(|path| path.exists());
    if found.is_none() {
        super::skip("no libfaketime, so no clock can be set wrong (apt-get install faketime)");
    }
    found
}

/// A command line of the program with a clean environment.
pub fn quorate() -> std::process::Command {
    let mut command = leashed(&program());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("QUORATE_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub fn run_quorate(arguments: &[&str]) -> Output {
    quorate().args(arguments).output().expect("quorate runs")
}

/// `--redis URL` for each.
pub fn redis_arguments(urls: &[String]) -> Vec<String> {
    urls.iter().flat_map(|url| ["--redis".to_owned(), url.clone()]).collect()
}

/// Runs `quorate init` over the nodes with these URLs.
pub fn init(urls: &[String], arguments: &[&str]) -> Output {
    let mut words = vec!["init".to_owned()];
    words.extend(redis_arguments(urls));
    words.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    run_quorate(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

impl Server {
    /// Starts one that must start.
    #[track_caller]
    pub fn start(options: &ServerOptions) -> Self {
        Self::try_start(options).unwrap_or_else(|why| panic!("the server does not start: {why:?}"))
    }

    /// Starts one, or says why it did not.
    pub fn try_start(options: &ServerOptions) -> Result<Self, NotStarted> {
        let mut arguments = vec!["serve".to_owned()];
        arguments.extend(redis_arguments(&options.urls));
        if !options.arguments.iter().any(|argument| argument == "--listen") {
            arguments.extend(["--listen", "127.0.0.1:0"].map(str::to_owned));
        }
        arguments.extend(options.arguments.iter().cloned());
        Self::launch(&arguments, &options.environment)
    }

    /// Starts `quorate` with these arguments, which must make it a server.
    pub fn launch(arguments: &[String], environment: &[(String, String)]) -> Result<Self, NotStarted> {
        let mut child = quorate()
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("quorate runs");
        let log: Arc<Mutex<String>> = Arc::default();
        let stderr = BufReader::new(child.stderr.take().expect("its stderr"));
        let reader = {
            let log = Arc::clone(&log);
            std::thread::spawn(move || {
                for line in stderr.lines().map_while(Result::ok) {
                    let _ = writeln!(log.lock().unwrap(), "{line}");
                }
            })
        };
        let stdout = BufReader::new(child.stdout.take().expect("its stdout"));
        let (first, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Only the first is waited for; the rest must be read so that nobody blocks.
                let _ = first.send(line);
            }
        });
        match told.recv_timeout(PATIENCE) {
            Ok(line) => {
                let address = line.split_once("listening on http://").map(|(_, address)| address.trim());
                let address: Option<SocketAddr> = address.and_then(|address| address.parse().ok());
                let address = address.unwrap_or_else(|| panic!("not an address: {line}"));
                Ok(Self { child, api: Api::new(address), log, reader: Some(reader) })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait().expect("its status");
                reader.join().expect("its log");
                let stderr = log.lock().unwrap().clone();
                Err(NotStarted { status, stderr })
            }
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                panic!("neither listening nor ended after {PATIENCE:?}: {}", log.lock().unwrap());
            }
        }
    }

    /// A client of this server.
    pub fn api(&self) -> Api {
        self.api.clone()
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until a quorum of nodes votes.
    pub async fn ready(self) -> Self {
        let api = self.api();
        super::eventually("/readyz is 200", || async { api.get("/readyz").await.status == 200 }).await;
        self
    }

    /// Waits until every node votes.
    pub async fn all_voting(&self) {
        let api = self.api();
        super::eventually("all nodes vote", || async {
            let nodes = api.get("/v1/nodes").await.ok();
            nodes["nodes"].as_array().unwrap().iter().all(|node| node["state"] == "voting")
        })
        .await;
    }

    /// Ends the process at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        signal(self.pid(), Signal::SIGTERM);
    }

    /// Waits until it has ended.
    pub async fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                if let Some(reader) = self.reader.take() {
                    reader.join().expect("its log");
                }
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end: {}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines = std::env::var("QUORATE_TEST_LOG_LINES").ok().and_then(|count| count.parse().ok());
            let last: Vec<&str> = log.lines().rev().take(lines.unwrap_or(30)).collect();
            println!("last lines of the server's log ({}):", self.api.address());
            last.iter().rev().for_each(|line| println!("  {line}"));
        }
    }
}
