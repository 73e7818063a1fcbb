//! Real `redis-server` processes, one a value, gone when it is dropped.
//!
//! The binary is taken from `REDIS_SERVER` or from the path. Every wait is for
//! something that can be seen (an answer, the state of the process), never for a
//! time. Works with blocking calls only, so that it serves any test.
#![allow(dead_code)] // Each test uses its part.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to start, or to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Between two looks at something that is awaited.
const LOOK: Duration = Duration::from_millis(2);

/// A `redis-server` on a free port of the loopback interface, with a folder of its own.
pub struct RedisProcess {
    child: Option<Child>,
    port: u16,
    dir: PathBuf,
    args: Vec<String>,
}

impl RedisProcess {
    /// Starts a server without persistence that never evicts.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more arguments, which win over the harness's own.
    pub fn start_with(args: &[&str]) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("quorate-redis-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder for redis-server");
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        let mut server = Self { child: None, port: 0, dir, args };
        // Somebody else may take the port before the server does.
        for attempt in 1.. {
            server.port = free_port();
            match server.spawn() {
                Ok(()) => break,
                Err(why) => assert!(attempt < 5, "redis-server does not start: {why}"),
            }
        }
        server
    }

    /// The port it listens on, the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// As clients write it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where it keeps its files; `redis.log` among them.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running redis-server").id()
    }

    /// Runs one command of plain words; a bulk reply is its text, any other its line with
    /// the sign (`+OK`, `:1`, `-ERR …`).
    pub fn command(&self, line: &str) -> String {
        ask(self.port, line).unwrap_or_else(|error| panic!("redis-server, {line}: {error}"))
    }

    /// Its `run_id`, another one after each start.
    pub fn run_id(&self) -> String {
        field(&self.command("INFO server"), "run_id").expect("a run_id").to_owned()
    }

    /// Kills it (SIGKILL). Connections break, the port refuses.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // An error only says that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Halts it (SIGSTOP): it is connected and mute, as a stalled or overloaded node is.
    pub fn stop(&self) {
        self.signal("STOP");
        self.wait_for_state(|state| state == 'T');
    }

    /// Lets it go on (SIGCONT).
    pub fn cont(&self) {
        self.signal("CONT");
        self.wait_for_state(|state| state != 'T');
    }

    /// Writes its data to its folder, to be there after a [`RedisProcess::restart`].
    pub fn save(&self) {
        assert_eq!(self.command("SAVE"), "+OK");
    }

    /// Kills it and starts it again on the same port: with the data of this moment (or, where
    /// it does not run, of its last [`RedisProcess::save`]), or with none.
    pub fn restart(&mut self, keep_data: bool) {
        if !keep_data {
            self.kill();
            // Most often there is none.
            let _ = fs::remove_file(self.dir.join("dump.rdb"));
        } else if self.child.is_some() {
            self.save();
            self.kill();
        }
        self.spawn().unwrap_or_else(|why| panic!("redis-server does not start again: {why}"));
    }

    fn spawn(&mut self) -> Result<(), String> {
        let log = self.dir.join("redis.log");
        let output = File::create(&log).map_err(|error| error.to_string())?;
        let binary = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let mut child = Command::new(&binary)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(&self.dir)
            .args(["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"])
            .args(&self.args)
            .stdin(Stdio::null())
            .stderr(output.try_clone().map_err(|error| error.to_string())?)
            .stdout(output)
            .spawn()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        let deadline = Instant::now() + PATIENCE;
        while !is_ready(self.port, child.id()) {
            let ended = matches!(child.try_wait(), Ok(Some(_)) | Err(_));
            if ended || Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return Err(fs::read_to_string(&log).unwrap_or_default());
            }
            thread::sleep(LOOK);
        }
        self.child = Some(child);
        Ok(())
    }

    fn signal(&self, name: &str) {
        // A command, since the signals of the standard library end at SIGKILL.
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -{name}");
    }

    fn wait_for_state(&self, reached: impl Fn(char) -> bool) {
        let path = format!("/proc/{}/stat", self.pid());
        let deadline = Instant::now() + PATIENCE;
        // Where there is no /proc, the signal will do its work soon enough.
        while let Ok(stat) = fs::read_to_string(&path) {
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
            if state.is_none_or(&reached) {
                return;
            }
            assert!(Instant::now() < deadline, "redis-server does not change its state");
            thread::sleep(LOOK);
        }
    }
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        self.kill();
        // What cannot be removed now goes with the temporary files.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// Whether the server on `port` answers, has loaded its data, and is the one meant.
fn is_ready(port: u16, pid: u32) -> bool {
    match ask(port, "INFO server") {
        Ok(reply) if reply.starts_with("-NOAUTH") => true,
        Ok(reply) => {
            field(&reply, "process_id") == Some(pid.to_string().as_str())
                && ask(port, "EXISTS x").is_ok_and(|reply| reply.starts_with(':'))
        }
        Err(_) => false,
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn ask(port: u16, line: &str) -> io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{line}\r\n").as_bytes())?;
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    stream.read_line(&mut head)?;
    let head = head.trim_end();
    match head.strip_prefix('$').and_then(|length| length.parse::<usize>().ok()) {
        None if head.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        None => Ok(head.to_owned()),
        Some(length) => {
            let mut text = vec![0; length];
            stream.read_exact(&mut text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
    }
}

#[test]
fn a_server_comes_back_on_its_port_with_or_without_its_data() {
    let mut server = RedisProcess::start();
    let (port, first) = (server.port(), server.run_id());
    assert_eq!(server.command("SET k v"), "+OK");
    server.restart(true);
    assert_eq!(server.command("GET k"), "v");
    assert_ne!(server.run_id(), first);
    server.kill();
    assert!(ask(port, "PING").is_err());
    server.restart(false);
    assert_eq!(server.command("GET k"), "$-1");
    assert_eq!(server.port(), port);
}

#[test]
fn a_stopped_server_takes_commands_and_answers_when_it_goes_on() {
    let server = RedisProcess::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    server.stop();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    stream.set_nonblocking(true).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    server.cont();
    stream.set_nonblocking(false).unwrap();
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}
