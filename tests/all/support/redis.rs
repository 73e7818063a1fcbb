//! Real `redis-server` processes, and everything that can happen to them. The binary is the one in
//! the path, or `REDIS_SERVER`.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::{ConnectionLike, FromRedisValue};

/// A `redis-server` on a port of its own.
pub struct Redis {
    child: Option<Child>,
    port: u16,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    directory: PathBuf,
    password: Option<String>,
}

/// How a node is to be started.
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    /// Password of the default user.
    pub password: Option<String>,
    /// Keep an append-only file, written through at once.
    pub persistent: bool,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// What its environment has besides ours.
    pub environment: Vec<(String, String)>,
}

/// Ports below the range from which the system takes them for outgoing connections: a node that
/// was killed must find its port free when it comes back, and nobody may connect to himself there.
static NEXT_PORT: AtomicU16 = AtomicU16::new(0);
static NEXT_DIRECTORY: AtomicU64 = AtomicU64::new(0);

/// A port on which nothing listens now.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_240;
    const COUNT: u16 = 20_000;
    let start = (std::process::id() as u16).wrapping_mul(97);
    loop {
        let next = NEXT_PORT.fetch_add(1, Ordering::Relaxed).wrapping_add(start);
        let port = FIRST + next % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// A directory for files of this test run.
pub fn new_directory() -> PathBuf {
    let number = NEXT_DIRECTORY.fetch_add(1, Ordering::Relaxed);
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a directory for a test");
    path
}

/// A command whose process ends with this one, however this one ends.
pub fn leashed(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}

/// Sends a signal to a process.
pub fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal)
        .unwrap_or_else(|why| panic!("cannot send {signal} to {pid}: {why}"));
}

impl Redis {
    /// Starts one as told.
    pub fn with(options: RedisOptions) -> Self {
        let mut arguments: Vec<String> =
            ["--bind", "127.0.0.1", "--save", "", "--daemonize", "no"].map(str::to_owned).to_vec();
        if options.persistent {
            arguments.extend(["--appendonly", "yes", "--appendfsync", "always"].map(str::to_owned));
        }
        if let Some(password) = &options.password {
            arguments.extend(["--requirepass".to_owned(), password.clone()]);
        }
        arguments.extend(options.arguments);
        let mut redis = Self {
            child: None,
            port: 0,
            options: arguments,
            environment: options.environment,
            directory: new_directory(),
            password: options.password,
        };
        for _ in 0..20 {
            redis.port = free_port();
            if redis.launch() {
                return redis;
            }
        }
        panic!("redis-server does not start");
    }

    /// Starts the process; false where its port was taken meanwhile.
    fn launch(&mut self) -> bool {
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut child = leashed(&binary)
            .arg("--port")
            .arg(self.port.to_string())
            .arg("--dir")
            .arg(&self.directory)
            .args(&self.options)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server and setpriv are installed");
        let pid = child.id();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if child.try_wait().expect("its status").is_some() {
                return false;
            }
            let is_ours = self.info_of("server").is_some_and(|info| info["process_id"] == pid.to_string());
            // While it loads its data it answers nothing else.
            if is_ours && self.try_command::<String>(&["PING"]).is_ok() {
                self.child = Some(child);
                return true;
            }
            assert!(Instant::now() < deadline, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Whether the process runs.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// The URL, password included.
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// Ends the process at once, as a power failure would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks the process to end, and waits until it has.
    pub fn terminate(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal(child.id(), Signal::SIGTERM);
            let _ = child.wait();
        }
    }

    /// Starts it again on the same port: with its data if it keeps any on disk.
    pub fn restart(&mut self) {
        self.kill();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.launch() {
            assert!(Instant::now() < deadline, "port {} stays taken", self.port);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Freezes the process.
    pub fn stop(&self) {
        signal(self.pid(), Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        signal(self.pid(), Signal::SIGCONT);
    }

    fn connect(&self) -> redis::RedisResult<redis::Connection> {
        let timeout = Duration::from_secs(10);
        let connection = redis::Client::open(self.url())?.get_connection_with_timeout(timeout)?;
        connection.set_read_timeout(Some(timeout))?;
        Ok(connection)
    }

    /// A connection of one's own.
    pub fn connection(&self) -> redis::Connection {
        self.connect().unwrap_or_else(|why| panic!("redis on port {}: {why}", self.port))
    }

    /// Runs one command.
    pub fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_command(words).unwrap_or_else(|why| panic!("{words:?}: {why}"))
    }

    /// Runs one command on a server that may refuse it, or be gone.
    pub fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(word);
        }
        let reply = self.connect()?.req_command(&command)?;
        Ok(T::from_redis_value(reply)?)
    }

    fn info_of(&self, section: &str) -> Option<HashMap<String, String>> {
        let text: String = self.try_command(&["INFO", section]).ok()?;
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Some(pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect())
    }

    /// `INFO section` as a map.
    pub fn info(&self, section: &str) -> HashMap<String, String> {
        self.info_of(section).expect("INFO")
    }

    /// How often each command was called, by name.
    pub fn commandstats(&self) -> BTreeMap<String, u64> {
        let calls = |value: &str| value.strip_prefix("calls=")?.split(',').next()?.parse().ok();
        let stats = self.info("commandstats");
        let named = stats
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix("cmdstat_")?.to_owned(), calls(value)?)));
        named.collect()
    }

    /// All keys with what is stored there, as far as it is a string; but not what every look at the node changes.
    pub fn dump(&self) -> BTreeMap<String, Option<String>> {
        let mut keys: Vec<String> = self.command(&["KEYS", "*"]);
        keys.retain(|key| {
            !key.ends_with(":looks") && !key.ends_with(":addresses") && !key.contains("semaphore:.")
        });
        let value = |key: &str| self.try_command(&["GET", key]).ok().flatten();
        keys.into_iter().map(|key| (key.clone(), value(&key))).collect()
    }

    /// The keys that contain `name` and store a lease which is not over: the first field of its line in the record
    /// (`src/node/scripts/record.lua`) is when it ends.
    pub fn leases(&self, name: &str) -> Vec<String> {
        let (seconds, micros): (u64, u64) = self.command(&["TIME"]);
        let now_ms = seconds * 1000 + micros / 1000;
        let is_held = |record: &str| {
            let ends = |line: &str| line.split(' ').next()?.parse::<u64>().ok();
            let leases = record.lines().skip(1);
            record.starts_with("2 ") && leases.filter_map(ends).any(|at| at > now_ms)
        };
        let held = self
            .dump()
            .into_iter()
            .filter(|(key, value)| key.contains(name) && value.as_deref().is_some_and(is_held));
        held.map(|(key, _)| key).collect()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
