//! Where the README's figures come from: whole processes, driven over HTTP.
//!
//! `cargo bench --bench end_to_end` starts redis-servers, an axum server that only
//! echoes JSON (what HTTP alone costs), and Quorate, and drives them in turn with the
//! same load generator, a process of its own. One cycle is an acquire and a release of
//! a key of its own; for the echo, two POSTs. It prints cycles/s, latencies, CPU per
//! cycle, and the ratios between them: absolute figures depend on the machine, ratios
//! within one run much less.
//!
//! `cargo bench --bench end_to_end -- handover`, `-- semaphores`, `-- nodes-down`, `-- scale`,
//! `-- crowd`, `-- held`, `-- heartbeats`, `-- servers` and `-- peers` run the other parts. `QUORATE_BENCH_SECONDS` sets
//! the length of one measurement (3), `QUORATE_BENCH_BINARY` another server than the one that
//! `cargo build --release` builds. The peers are measured as far as they are there: `webdis` and `node` on
//! the PATH, and the npm package `redlock` in the folder that `NODE_PATH` names.
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.first().map(String::as_str) {
        Some("echo-server") => single_thread().block_on(echo_server()),
        Some("load") => single_thread().block_on(load(&args[1..])),
        Some("handover") => handover(),
        Some("nodes-down") => nodes_down(),
        Some("scale") => scale(),
        Some("semaphores") => semaphores(),
        Some("crowd") => crowd(),
        Some("crowd-client") => crowd_client(&args[1..]),
        Some("held") => held(),
        Some("heartbeats") => heartbeats(),
        Some("servers") => servers(),
        Some("peers") => peers(),
        Some("train") => train(),
        Some("--list") => Ok(()),
        _ => throughput(),
    }
}

fn single_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn seconds() -> u64 {
    std::env::var("QUORATE_BENCH_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

// ---- processes -------------------------------------------------------------

struct Process {
    child: Child,
    _output: Option<BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it and waits until it has.
    fn end(mut self) {
        self.signal(Signal::SIGTERM);
        let _ = self.child.wait();
    }

    fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ = nix::sys::signal::kill(Pid::from_raw(self.pid().cast_signed()), signal);
    }

    /// User and system time so far, s.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks = |i: usize| fields.get(i).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / 100.0
    }

    /// Resident memory, KiB.
    fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map(|a| a.port()).expect("a port")
}

fn redis() -> (Process, String) {
    let port = free_port();
    let child = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .args(["--maxmemory-policy", "noeviction", "--daemonize", "no"])
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed (scripts/test installs it)");
    let process = Process { child, _output: None };
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    (process, format!("redis://127.0.0.1:{port}"))
}

/// Starts a program whose first line of output ends with its address.
fn listening(command: &mut Command) -> (Process, SocketAddr) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    let address = line.trim().rsplit("//").next().and_then(|text| text.parse().ok());
    let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
    (Process { child, _output: Some(output) }, address)
}

struct Deployment {
    nodes: Vec<Process>,
    urls: Vec<String>,
    servers: Vec<(Process, SocketAddr)>,
}

/// The server as its users build it. The one that cargo builds beside this program has what only tests need in its
/// libraries.
fn binary() -> &'static Path {
    static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(binary) = std::env::var_os("QUORATE_BENCH_BINARY") {
            return binary.into();
        }
        let target =
            Path::new(env!("CARGO_BIN_EXE_quorate")).ancestors().nth(2).expect("TARGET/PROFILE/quorate");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--release", "--bin", "quorate", "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(built.is_ok_and(|status| status.success()), "cargo build failed");
        target.join("release/quorate")
    });
    &BINARY
}

fn quorate() -> Command {
    let mut command = Command::new(binary());
    command.env("QUORATE_LOG_LEVEL", "error").stderr(Stdio::null());
    command
}

fn deployment(nodes: usize, servers: usize) -> Deployment {
    let (nodes, urls): (Vec<_>, Vec<_>) = (0..nodes).map(|_| redis()).unzip();
    let list = urls.join(",");
    let done = quorate().args(["init", "--redis", &list]).stdout(Stdio::null()).status().expect("init");
    assert!(done.success(), "init failed");
    let servers: Vec<_> = (0..servers)
        .map(|_| listening(quorate().args(["serve", "--redis", &list, "--listen", "127.0.0.1:0"])))
        .collect();
    for (_, address) in &servers {
        while !request(*address, "GET", "/readyz", "").0.contains(" 200 ") {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Deployment { nodes, urls, servers }
}

/// One request on a connection of its own: status line and body.
fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> (String, String) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = String::new();
    let sent = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(head.as_bytes())?;
        stream.read_to_string(&mut answer)
    });
    if sent.is_err() {
        return (String::new(), String::new());
    }
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

// ---- the echo --------------------------------------------------------------

#[derive(serde::Deserialize, serde::Serialize)]
struct Echo {
    ttl_ms: Option<u64>,
    owner: Option<String>,
    lease_id: Option<String>,
}

async fn echo_server() -> Result<(), Error> {
    let router =
        axum::Router::new().route("/echo", axum::routing::post(|body: axum::Json<Echo>| async move { body }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    use axum::serve::ListenerExt;
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    Ok(axum::serve(listener, router).await?)
}

// ---- the load generator ----------------------------------------------------

/// A keep-alive connection that reads just enough HTTP.
struct Client {
    stream: tokio::net::TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    async fn connect(address: SocketAddr) -> Result<Self, Error> {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(4096) })
    }

    /// Posts and returns the status and the body.
    async fn post(&mut self, path: &str, body: &str) -> Result<(u16, String), Error> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(head.as_bytes()).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("closed".into());
            }
            let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.buffer[..end])?;
            let length = head
                .lines()
                .find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
                })
                .ok_or("no length")?;
            if self.buffer.len() < end + 4 + length {
                continue;
            }
            let status = head.get(9..12).and_then(|text| text.parse().ok()).ok_or("no status")?;
            return Ok((status, String::from_utf8_lossy(&self.buffer[end + 4..]).into_owned()));
        }
    }
}

/// How many wait for a lock at one server.
fn waiters_of(address: SocketAddr, name: &str) -> usize {
    let body = request(address, "GET", &format!("/v1/locks/{name}"), "").1;
    let text = body.split("\"waiters\":").nth(1).unwrap_or("0");
    text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

/// What `load` printed.
fn load_figures(output: &std::process::Output) -> Vec<f64> {
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(figures.len(), 6, "{text} {}", String::from_utf8_lossy(&output.stderr));
    figures
}

fn field<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let start = body.find(&format!("\"{name}\":\""))? + name.len() + 4;
    body[start..].split('"').next()
}

/// What one cycle of the load is.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Echo,
    Lock,
    /// Only acquired, each another one.
    Held,
    Webdis,
}

/// `load KIND ADDRESS CONNECTIONS SECONDS` prints `cycles p50_us p99_us p999_us failures elapsed_s`.
/// For `held`, instead of the seconds, how many.
async fn load(args: &[String]) -> Result<(), Error> {
    let [kind, address, connections, seconds] = args else { return Err("load: four arguments".into()) };
    let address: SocketAddr = address.parse()?;
    let connections: usize = connections.parse()?;
    let (mut length, mut most) = (Duration::from_secs(seconds.parse()?), u64::MAX);
    let kind = match kind.as_str() {
        "echo" => Kind::Echo,
        "lock" => Kind::Lock,
        "webdis" => Kind::Webdis,
        "held" => {
            (length, most) = (Duration::MAX, seconds.parse::<u64>()? / connections as u64);
            Kind::Held
        }
        other => return Err(format!("load: no kind {other}").into()),
    };
    let started = Instant::now();
    let mut workers = Vec::new();
    for worker in 0..connections {
        workers.push(tokio::spawn(async move {
            let mut client = Client::connect(address).await?;
            let mut latencies_us: Vec<u32> = Vec::with_capacity(100_000);
            let mut failures = 0_u64;
            let mut cycle = 0_u64;
            while cycle < most && started.elapsed() < length {
                let begun = Instant::now();
                if kind == Kind::Held {
                    let key = format!("/v1/locks/held:{worker}:{cycle}/acquire");
                    let (status, _) = client.post(&key, "{\"ttl_ms\":300000}").await?;
                    failures += u64::from(status != 200);
                } else if kind == Kind::Webdis {
                    let key = format!("bench:{worker}:{}", cycle % 16);
                    let (_, body) = client.post("/", &format!("SET/{key}/{worker}/NX/PX/10000")).await?;
                    let release = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0";
                    let released = client.post("/", &format!("EVAL/{release}/1/{key}/{worker}")).await?.1;
                    failures += u64::from(!body.contains("OK") || !released.contains(":1"));
                } else if kind == Kind::Lock {
                    let key = format!("/v1/locks/bench:{worker}:{}", cycle % 16);
                    let (status, body) = client.post(&format!("{key}/acquire"), "{\"ttl_ms\":10000}").await?;
                    match field(&body, "lease_id") {
                        Some(lease) if status == 200 => {
                            let body = format!("{{\"lease_id\":\"{lease}\"}}");
                            let (status, _) = client.post(&format!("{key}/release"), &body).await?;
                            failures += u64::from(status != 200);
                        }
                        _ => failures += 1,
                    }
                } else {
                    client.post("/echo", "{\"ttl_ms\":10000}").await?;
                    let lease = "{\"lease_id\":\"0123456789abcdef0123456789abcdef0000000000002a\"}";
                    client.post("/echo", lease).await?;
                }
                latencies_us.push(begun.elapsed().as_micros() as u32);
                cycle += 1;
            }
            Ok::<_, Error>((latencies_us, failures))
        }));
    }
    let mut all = Vec::new();
    let mut failures = 0;
    for worker in workers {
        let (latencies, failed) = worker.await??;
        all.extend(latencies);
        failures += failed;
    }
    let elapsed = started.elapsed().as_secs_f64();
    all.sort_unstable();
    let at = |share: f64| all.get(((all.len() as f64 - 1.0) * share) as usize).copied().unwrap_or(0);
    println!("{} {} {} {} {failures} {elapsed:.3}", all.len(), at(0.5), at(0.99), at(0.999));
    Ok(())
}

#[derive(Clone, Copy)]
struct Measured {
    cycles_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    failures: f64,
    server_us: f64,
    redis_us: f64,
}

fn measure(
    kind: &str,
    server: &Process,
    address: SocketAddr,
    nodes: &[Process],
    connections: usize,
) -> Measured {
    let me = std::env::current_exe().expect("this program");
    let run = |length: u64| -> Vec<f64> {
        let output = Command::new(&me)
            .args(["load", kind, &address.to_string(), &connections.to_string(), &length.to_string()])
            .output()
            .expect("the load generator");
        load_figures(&output)
    };
    run(1);
    let cpu = |processes: &[Process]| processes.iter().map(Process::cpu).sum::<f64>();
    let (server_before, redis_before) = (server.cpu(), cpu(nodes));
    let words = run(seconds());
    let per_cycle = |used: f64| used * 1e6 / words[0];
    Measured {
        cycles_per_s: words[0] / words[5],
        p50_us: words[1],
        p99_us: words[2],
        p999_us: words[3],
        failures: words[4],
        server_us: per_cycle(server.cpu() - server_before),
        redis_us: per_cycle(cpu(nodes) - redis_before) / nodes.len().max(1) as f64,
    }
}

fn median(mut runs: Vec<Measured>) -> Measured {
    runs.sort_by(|a, b| a.cycles_per_s.total_cmp(&b.cycles_per_s));
    runs.swap_remove(runs.len() / 2)
}

fn row(what: &str, nodes: usize, connections: usize, m: &Measured, echo: &Measured) {
    println!(
        "{what:<8} {nodes:>2} {connections:>5} {:>9.0} {:>7.0} {:>7.0} {:>8.0} {:>9.1} {:>9.1} {:>7.2} {:>7.2} {:>5.0}",
        m.cycles_per_s,
        m.p50_us,
        m.p99_us,
        m.p999_us,
        m.server_us,
        m.redis_us,
        m.cycles_per_s / echo.cycles_per_s,
        m.server_us / echo.server_us,
        m.failures
    );
}

/// Uncontended cycles.
fn throughput() -> Result<(), Error> {
    for nodes in [1, 3, 5] {
        beside_echo(nodes, &[32, 256])?;
    }
    Ok(())
}

/// Medians of uncontended cycles and of the echo, which takes turns with them: such a machine is not
/// equally fast at all times.
fn beside_echo(nodes: usize, crowds: &[usize]) -> Result<(), Error> {
    const RUNS: usize = 3;
    println!(
        "{:<8} {:>2} {:>5} {:>9} {:>7} {:>7} {:>8} {:>9} {:>9} {:>7} {:>7} {:>5}",
        "what",
        "N",
        "C",
        "cycles/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "server µs",
        "redis µs",
        "x echo",
        "cpu x",
        "fail"
    );
    let me = std::env::current_exe()?;
    let (echo_process, echo_address) = listening(Command::new(me).arg("echo-server"));
    let deployment = deployment(nodes, 1);
    let (server, address) = &deployment.servers[0];
    for &connections in crowds {
        let (echoes, cycles) = (0..RUNS)
            .map(|_| {
                let echo = measure("echo", &echo_process, echo_address, &[], connections);
                (echo, measure("lock", server, *address, &deployment.nodes, connections))
            })
            .unzip();
        let echo = median(echoes);
        row("echo", 0, connections, &echo, &echo);
        row("quorate", nodes, connections, &median(cycles), &echo);
    }
    Ok(())
}

/// Throughput with one of three nodes stopped, in turns with another deployment whose nodes are well;
/// memory of the server meanwhile.
fn nodes_down() -> Result<(), Error> {
    let (well, stopped) = (deployment(3, 1), deployment(3, 1));
    stopped.nodes[2].signal(Signal::SIGSTOP);
    let cycles = |deployment: &Deployment, nodes: usize| {
        let (server, address) = &deployment.servers[0];
        measure("lock", server, *address, &deployment.nodes[..nodes], 32)
    };
    let memory_kib = || stopped.servers[0].0.memory_kib();
    let before = memory_kib();
    for round in 0..4 {
        let healthy = cycles(&well, 3);
        row("healthy", 3, 32, &healthy, &healthy);
        row("stopped", 3, 32, &cycles(&stopped, 2), &healthy);
        println!("  round {round}: server memory {} KiB (before {before} KiB)", memory_kib());
    }
    Ok(())
}

/// One lock passed through many waiters, each holding it for 1 ms; p50 beside a bare round trip.
fn handover() -> Result<(), Error> {
    println!(
        "{:>7} {:>8} {:>10} {:>8} {:>8} {:>9} {:>12}",
        "servers", "waiters", "handover/s", "p50 µs", "p99 µs", "bare µs", "evals/handover"
    );
    for servers in [1, 2] {
        for waiters in [1, 10, 100, 1000] {
            let deployment = deployment(3, servers);
            let addresses: Vec<_> = deployment.servers.iter().map(|(_, address)| *address).collect();
            single_thread().block_on(handover_run(&deployment, &addresses, waiters))?;
        }
    }
    Ok(())
}

fn evals(url: &str) -> u64 {
    let address = url.trim_start_matches("redis://");
    let mut stream = TcpStream::connect(address).expect("redis");
    stream.write_all(b"INFO commandstats\r\nQUIT\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("read");
    let line = text.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    line.split(['=', ',']).nth(1).and_then(|calls| calls.parse().ok()).unwrap_or(0)
}

async fn handover_run(
    deployment: &Deployment,
    addresses: &[SocketAddr],
    waiters: usize,
) -> Result<(), Error> {
    // A bare round trip: a cycle of two requests on an idle server.
    let mut client = Client::connect(addresses[0]).await?;
    let mut bare: Vec<u128> = Vec::new();
    for _ in 0..300 {
        let begun = Instant::now();
        client.post("/v1/locks/bare/acquire", "{}").await.map(drop)?;
        bare.push(begun.elapsed().as_micros());
    }
    bare.sort_unstable();

    // A few waiters are through so soon that one pass says little.
    let passes = (1000 / waiters).clamp(1, 300);
    let (mut took, mut runs, mut hops) = (Duration::ZERO, 0, Vec::new());
    for pass in 0..passes {
        let (pass_took, pass_runs) =
            handover_pass(deployment, addresses, waiters, &format!("hand-{pass}"), &mut hops).await?;
        took += pass_took;
        runs += pass_runs;
    }
    hops.sort_unstable();
    let at = |share: f64| hops.get(((hops.len() as f64 - 1.0) * share) as usize).copied().unwrap_or(0);
    let handovers = (passes * waiters) as f64;
    println!(
        "{:>7} {waiters:>8} {:>10.0} {:>8} {:>8} {:>9} {:>12.2}",
        addresses.len(),
        handovers / took.as_secs_f64(),
        at(0.5),
        at(0.99),
        bare[bare.len() / 2],
        runs as f64 / handovers
    );
    Ok(())
}

/// Passes the lock through all waiters once. Adds the µs from each release to the next holder to `hops`;
/// says how long all of it took and how many scripts the first node ran.
async fn handover_pass(
    deployment: &Deployment,
    addresses: &[SocketAddr],
    waiters: usize,
    name: &str,
    hops: &mut Vec<u128>,
) -> Result<(Duration, u64), Error> {
    use std::sync::{Arc, Mutex};
    let mut client = Client::connect(addresses[0]).await?;
    let released: Arc<Mutex<Option<Instant>>> = Arc::default();
    let (acquire, release) = (format!("/v1/locks/{name}/acquire"), format!("/v1/locks/{name}/release"));
    let (status, body) = client.post(&acquire, "{\"ttl_ms\":60000}").await?;
    assert_eq!(status, 200, "{body}");
    let first = field(&body, "lease_id").ok_or("no lease")?.to_owned();
    let mut tasks = Vec::new();
    for i in 0..waiters {
        let address = addresses[i % addresses.len()];
        let (released, acquire, release) = (Arc::clone(&released), acquire.clone(), release.clone());
        tasks.push(tokio::spawn(async move {
            let mut client = Client::connect(address).await?;
            let (status, body) = client.post(&acquire, "{\"ttl_ms\":60000,\"wait_ms\":60000}").await?;
            let got = Instant::now();
            if status != 200 {
                return Err(format!("{status} {body}").into());
            }
            let hop = released.lock().map_err(|_| "poisoned")?.take().map(|at| (got - at).as_micros());
            // The timer wheel counts in whole milliseconds, and a thread that slept wakes late: the
            // last of it is waited out awake, by the only client that has anything to do.
            let hold = Duration::from_millis(1);
            let rest = hold.saturating_sub(got.elapsed() + Duration::from_micros(250));
            tokio::task::spawn_blocking(move || std::thread::sleep(rest)).await?;
            while got.elapsed() < hold {
                tokio::task::yield_now().await;
            }
            let lease = field(&body, "lease_id").ok_or("no lease")?;
            *released.lock().map_err(|_| "poisoned")? = Some(Instant::now());
            client.post(&release, &format!("{{\"lease_id\":\"{lease}\"}}")).await?;
            Ok::<_, Error>(hop)
        }));
    }
    // All in the queue before the first release.
    let queued = || addresses.iter().map(|&address| waiters_of(address, name)).sum::<usize>();
    let deadline = Instant::now() + Duration::from_secs(30);
    while queued() < waiters && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = evals(&deployment.urls[0]);
    let begun = Instant::now();
    *released.lock().map_err(|_| "poisoned")? = Some(begun);
    client.post(&release, &format!("{{\"lease_id\":\"{first}\"}}")).await?;
    for task in tasks {
        hops.extend(task.await??);
    }
    let took = begun.elapsed();
    Ok((took, evals(&deployment.urls[0]) - before))
}

/// What a permit costs in semaphores of three sizes, empty, half full and nearly full; and how
/// fast 20 clients fill 20 slots over five nodes.
fn semaphores() -> Result<(), Error> {
    let deployment = deployment(3, 1);
    let address = deployment.servers[0].1;
    println!("{:>7} {:>6} {:>10} {:>10} {:>16}", "limit", "full", "p50 µs", "p99 µs", "redis µs/acquire");
    for limit in [10_u32, 1000, 10_000] {
        for percent in [0_u32, 50, 99] {
            // Of ten, nine are the most that leave one free.
            let taken = (limit * percent / 100).min(limit - 1);
            single_thread().block_on(permits(&deployment, address, limit, percent, taken))?;
        }
    }
    drop(deployment);
    let deployment = crate::deployment(5, 1);
    let address = deployment.servers[0].1;
    let mut all: Vec<u128> = Vec::new();
    for round in 0..50 {
        let path = format!("/v1/semaphores/fill:{round}/acquire");
        all.extend(single_thread().block_on(fill(address, &path))?);
    }
    all.sort_unstable();
    let at = |share: f64| all[((all.len() as f64 - 1.0) * share) as usize];
    println!(
        "20 clients fill 20 slots over 5 nodes, 50 times: all filled, p50 {} µs, p99 {} µs",
        at(0.5),
        at(0.99)
    );
    Ok(())
}

async fn fill(address: SocketAddr, path: &str) -> Result<Vec<u128>, Error> {
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let path = path.to_owned();
        let mut client = Client::connect(address).await?;
        tasks.push(tokio::spawn(async move {
            let begun = Instant::now();
            let (status, body) = client.post(&path, "{\"limit\":20}").await?;
            if status == 200 { Ok(begun.elapsed().as_micros()) } else { Err::<_, Error>(body.into()) }
        }));
    }
    let mut took = Vec::new();
    for task in tasks {
        took.push(task.await??);
    }
    Ok(took)
}

async fn permits(
    deployment: &Deployment,
    address: SocketAddr,
    limit: u32,
    percent: u32,
    taken: u32,
) -> Result<(), Error> {
    const ACQUIRES: usize = 200;
    let mut client = Client::connect(address).await?;
    let path = format!("/v1/semaphores/size:{limit}:{percent}");
    let mut left = taken;
    while left > 0 {
        let permits = left.min(500);
        let body = format!("{{\"limit\":{limit},\"permits\":{permits},\"ttl_ms\":300000}}");
        let (status, body) = client.post(&format!("{path}/acquire"), &body).await?;
        assert_eq!(status, 200, "{body}");
        left -= permits;
    }
    let mut took: Vec<u128> = Vec::new();
    let mut redis_s = 0.0;
    for _ in 0..ACQUIRES {
        let before = deployment.nodes[0].cpu();
        let begun = Instant::now();
        let (status, body) =
            client.post(&format!("{path}/acquire"), &format!("{{\"limit\":{limit}}}")).await?;
        took.push(begun.elapsed().as_micros());
        redis_s += deployment.nodes[0].cpu() - before;
        assert_eq!(status, 200, "{body}");
        let lease = field(&body, "lease_id").ok_or("no lease")?;
        let body = format!("{{\"lease_id\":\"{lease}\"}}");
        client.post(&format!("{path}/release"), &body).await?;
    }
    took.sort_unstable();
    println!(
        "{limit:>7} {percent:>5}% {:>10} {:>10} {:>16.0}",
        took[ACQUIRES / 2],
        took[ACQUIRES * 99 / 100],
        redis_s * 1e6 / ACQUIRES as f64
    );
    Ok(())
}

/// Throughput from 1 to 1,024 connections; memory per waiter and per held stream.
fn scale() -> Result<(), Error> {
    beside_echo(3, &[1, 4, 16, 64, 256, 1024])?;
    for (what, path, body, count) in [
        ("silent connection", "", "", 2000_usize),
        (
            "idle connection",
            "/v1/locks/idle/release",
            "{\"lease_id\":\"0123456789abcdef0123456789abcdef0000000000002a\"}",
            2000,
        ),
        ("waiter", "/v1/locks/crowd/acquire", "{\"wait_ms\":60000}", 2000),
        ("held stream", "/v1/locks/held:N/hold", "{\"ttl_ms\":30000}", 2000),
    ] {
        // A server of its own, whose memory nobody has used before.
        let deployment = crate::deployment(3, 1);
        let (server, address) = &deployment.servers[0];
        if what == "waiter" {
            request(*address, "POST", path, "{\"ttl_ms\":300000}");
        }
        let before = server.memory_kib();
        let mut open = Vec::with_capacity(count);
        for i in 0..count {
            let mut stream = TcpStream::connect(address)?;
            if !path.is_empty() {
                let path = path.replace('N', &i.to_string());
                let head = format!(
                    "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(head.as_bytes())?;
            }
            open.push(stream);
        }
        std::thread::sleep(Duration::from_secs(3));
        let each = (server.memory_kib().saturating_sub(before)) as f64 / count as f64;
        println!("{what:<16} {count:>6} open: {each:.1} KiB each");
    }
    Ok(())
}

// ---- many at once ----------------------------------------------------------

/// Long polls and hold streams by the thousand on one server, and how fast it is beside them.
fn crowd() -> Result<(), Error> {
    // Both ends of this machine may be allowed few files; each kind has a process of its own.
    let (limit, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    let count = (10_000).min((limit as usize).saturating_sub(300) / 2);
    let deployment = deployment(3, 1);
    let (server, address) = &deployment.servers[0];
    let alone = measure("lock", server, *address, &deployment.nodes, 32);
    for i in 0..CROWD_NAMES {
        let taken = request(*address, "POST", &format!("/v1/locks/crowd:{i}/acquire"), "{\"ttl_ms\":300000}");
        assert!(taken.0.contains(" 200 "), "{taken:?}");
    }
    let before = server.memory_kib();
    let me = std::env::current_exe()?;
    let clients: Vec<_> = ["wait", "hold"]
        .iter()
        .map(|kind| {
            let child = Command::new(&me)
                .args(["crowd-client", kind, &address.to_string(), &count.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn();
            let mut child = child.expect("this program");
            let mut output = BufReader::new(child.stdout.take().expect("piped"));
            let mut line = String::new();
            output.read_line(&mut line).expect("a line");
            println!("{}", line.trim());
            Process { child, _output: Some(output) }
        })
        .collect();
    let each = server.memory_kib().saturating_sub(before) as f64 / (2 * count) as f64;
    println!("{count} long polls and {count} hold streams at once: {each:.1} KiB each, connection included");
    row("alone", 3, 32, &alone, &alone);
    let beside = measure("lock", server, *address, &deployment.nodes, 32);
    row("beside", 3, 32, &beside, &alone);
    drop(clients);
    Ok(())
}

/// Locks that the long polls of [`crowd`] wait for.
const CROWD_NAMES: usize = 100;

/// `crowd-client KIND ADDRESS COUNT` opens so many, says so, and keeps them until it is killed.
fn crowd_client(args: &[String]) -> Result<(), Error> {
    let [kind, address, count] = args else { return Err("crowd-client: three arguments".into()) };
    let (address, count): (SocketAddr, usize) = (address.parse()?, count.parse()?);
    let mut open = Vec::with_capacity(count);
    for i in 0..count {
        let (path, body) = match kind.as_str() {
            "wait" => (format!("/v1/locks/crowd:{}/acquire", i % CROWD_NAMES), "{\"wait_ms\":60000}"),
            _ => (format!("/v1/locks/held:{i}/hold"), "{\"ttl_ms\":30000}"),
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(head.as_bytes())?;
        if kind == "hold" {
            let mut seen = Vec::new();
            let mut piece = [0; 2048];
            while !seen.windows(8).any(|eight| eight == b"acquired") {
                let length = stream.read(&mut piece)?;
                assert!(length > 0, "{}", String::from_utf8_lossy(&seen));
                seen.extend(&piece[..length]);
            }
        }
        open.push(stream);
    }
    if kind == "wait" {
        let waiting = |i: usize| waiters_of(address, &format!("crowd:{i}"));
        while (0..CROWD_NAMES).map(waiting).sum::<usize>() < count {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    println!("{count} of {kind} are open");
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// What so many held locks cost a node, and whether all of it expires by itself.
fn held() -> Result<(), Error> {
    let count: u64 =
        std::env::var("QUORATE_BENCH_HELD").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let deployment = deployment(3, 1);
    let info = |name: &str| -> u64 {
        let client = redis::Client::open(deployment.urls[0].as_str()).expect("an address");
        let mut connection = client.get_connection().expect("redis");
        let info: String = redis::cmd("INFO").arg("everything").query(&mut connection).expect("info");
        let value = info.split(['\n', ',', ':']).find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        let value =
            value.or_else(|| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')));
        value.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    let before = info("used_memory");
    let me = std::env::current_exe()?;
    let address = deployment.servers[0].1.to_string();
    let output = Command::new(me).args(["load", "held", &address, "64", &count.to_string()]).output()?;
    let words = load_figures(&output);
    let bytes = (info("used_memory") - before) as f64 / words[0];
    println!(
        "{} locks held, {} refused, {:.0} acquired/s: {bytes:.0} bytes each on a node; {} keys, {} of them expire by themselves",
        words[0],
        words[4],
        words[0] / words[5],
        info("keys"),
        info("expires")
    );
    Ok(())
}

/// What it costs a worker to extend 500 leases by one request, beside a request for each: by one connection, and by 32.
fn heartbeats() -> Result<(), Error> {
    const LEASES: usize = 500;
    const ROUNDS: u32 = 3;
    let deployment = deployment(3, 1);
    let (server, address) = &deployment.servers[0];
    let mut used = [(0_u32, [0.0; 3], 0_u64); 3];
    single_thread().block_on(async {
        let mut clients = Vec::new();
        for _ in 0..32 {
            clients.push(Client::connect(*address).await?);
        }
        let mut each = Vec::new();
        let mut many = Vec::new();
        for i in 0..LEASES {
            let (path, name) = (format!("/v1/locks/worker:{i}"), format!("worker:{i}"));
            let (status, body) = clients[0].post(&format!("{path}/acquire"), "{\"ttl_ms\":300000}").await?;
            let lease = field(&body, "lease_id").ok_or_else(|| format!("{status} {body}"))?;
            each.push((format!("{path}/extend"), format!("{{\"lease_id\":\"{lease}\"}}")));
            many.push(format!("{{\"primitive\":\"lock\",\"name\":\"{name}\",\"lease_id\":\"{lease}\"}}"));
        }
        let many = format!("{{\"leases\":[{}]}}", many.join(","));
        let redis_cpu = || deployment.nodes.iter().map(Process::cpu).sum::<f64>() / 3.0;
        for kind in (0..ROUNDS).flat_map(|_| 0..3) {
            let (began, cpu, redis, runs) =
                (Instant::now(), server.cpu(), redis_cpu(), evals(&deployment.urls[0]));
            let (beats, taken, sums) = &mut used[kind];
            while began.elapsed() < Duration::from_secs(seconds()) {
                match kind {
                    0 => {
                        let (status, body) = clients[0].post("/v1/leases/extend", &many).await?;
                        assert!(
                            status == 200 && body.matches("lease_id").count() == LEASES,
                            "{status} {body}"
                        );
                    }
                    1 => extend_all(&mut clients[..1], &each).await?,
                    _ => extend_all(&mut clients, &each).await?,
                }
                *beats += 1;
            }
            let spent = [began.elapsed().as_secs_f64(), server.cpu() - cpu, redis_cpu() - redis];
            taken.iter_mut().zip(spent).for_each(|(sum, spent)| *sum += spent);
            *sums += evals(&deployment.urls[0]) - runs;
        }
        Ok::<_, Error>(())
    })?;
    println!(
        "{:<16} {:>8} {:>11} {:>11} {:>9} {:>8} {:>8} {:>8}",
        "500 leases by", "ms", "server ms", "redis ms", "runs", "x time", "x server", "x redis"
    );
    let per_beat = |kind: usize| used[kind].1.map(|sum| sum * 1e3 / f64::from(used[kind].0));
    for (kind, what) in ["one request", "500 in a row", "500, 32 at once"].iter().enumerate() {
        let ([time, server, redis], one) = (per_beat(kind), per_beat(0));
        println!(
            "{what:<16} {time:>8.2} {server:>11.2} {redis:>11.2} {:>9.1} {:>8.1} {:>8.1} {:>8.1}",
            used[kind].2 as f64 / f64::from(used[kind].0),
            time / one[0],
            server / one[1],
            redis / one[2],
        );
    }
    Ok(())
}

/// Makes these requests, each connection its share, one after the other.
async fn extend_all(clients: &mut [Client], requests: &[(String, String)]) -> Result<(), Error> {
    let share = requests.len().div_ceil(clients.len());
    let shares = clients.iter_mut().zip(requests.chunks(share)).map(|(client, requests)| async move {
        for (path, body) in requests {
            let (status, answer) = client.post(path, body).await?;
            if status != 200 {
                return Err(Error::from(answer));
            }
        }
        Ok(())
    });
    futures_util::future::try_join_all(shares).await.map(drop)
}

/// Two servers over the same nodes beside one, with the same connections in all.
fn servers() -> Result<(), Error> {
    let deployment = deployment(3, 2);
    let me = std::env::current_exe()?;
    let run = |among: &[(Process, SocketAddr)], connections: usize| -> (f64, f64) {
        let cpu = || deployment.servers.iter().map(|(server, _)| server.cpu()).sum::<f64>();
        let before = cpu();
        let loads: Vec<_> = among
            .iter()
            .map(|(_, address)| {
                Command::new(&me)
                    .args(["load", "lock", &address.to_string(), &(connections / among.len()).to_string()])
                    .arg(seconds().to_string())
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("the load generator")
            })
            .collect();
        let mut cycles = 0.0;
        let mut per_s = 0.0;
        for load in loads {
            let output = load.wait_with_output().expect("its output");
            let words = load_figures(&output);
            cycles += words[0];
            per_s += words[0] / words[5];
        }
        (per_s, (cpu() - before) * 1e6 / cycles)
    };
    run(&deployment.servers, 32);
    println!("{:>7} {:>5} {:>9} {:>9} {:>9}", "servers", "C", "cycles/s", "x one", "server µs");
    for connections in [32, 256] {
        let (one, one_us) = run(&deployment.servers[..1], connections);
        let (two, two_us) = run(&deployment.servers, connections);
        println!("{:>7} {connections:>5} {one:>9.0} {:>9.2} {one_us:>9.1}", 1, 1.0);
        println!("{:>7} {connections:>5} {two:>9.0} {:>9.2} {two_us:>9.1}", 2, two / one);
    }
    Ok(())
}

/// What `scripts/profile` learns from: everything that servers do often. The server ends by itself, so
/// that it writes down what it did.
fn train() -> Result<(), Error> {
    let mut deployment = deployment(3, 1);
    let (server, address) = &deployment.servers[0];
    let address = *address;
    for connections in [32, 256, 1] {
        measure("lock", server, address, &deployment.nodes, connections);
    }
    single_thread().block_on(async {
        handover_run(&deployment, &[address], 200).await?;
        permits(&deployment, address, 10, 50, 5).await?;
        everything_else(address, 2000).await
    })?;
    deployment.servers.drain(..).for_each(|(server, _)| server.end());
    Ok(())
}

/// What is asked beside locks that are free, so often.
async fn everything_else(address: SocketAddr, times: usize) -> Result<(), Error> {
    let mut client = Client::connect(address).await?;
    for i in 0..times {
        let name = format!("train:{}", i % 16);
        let names = format!("\"names\":[\"{name}:a\",\"{name}:b\"],");
        for (path, take, give_back, names, asked) in [
            (&*format!("/v1/locks/{name}"), "acquire", "release", "", "\"owner\":\"bench\""),
            (&format!("/v1/semaphores/{name}"), "acquire", "release", "", "\"limit\":5"),
            (&format!("/v1/elections/{name}"), "campaign", "resign", "", "\"candidate\":\"a\""),
            ("/v1/multilocks", "acquire", "release", &names, "\"ttl_ms\":10000"),
        ] {
            let (take, asked) = (format!("{path}/{take}"), format!("{{{names}{asked}}}"));
            let (status, body) = client.post(&take, &asked).await?;
            let lease = field(&body, "lease_id").ok_or_else(|| format!("{status} {body}"))?;
            // Refused, as it is held; a semaphore is full after the fifth.
            client.post(&take, &asked).await?;
            let held = format!("{{{names}\"lease_id\":\"{lease}\"}}");
            for what in ["extend", give_back] {
                let (status, body) = client.post(&format!("{path}/{what}"), &held).await?;
                assert_eq!(status, 200, "{body}");
            }
            if i % 16 == 0 {
                request(address, "GET", path, "");
            }
        }
        client.post(&format!("/v1/fencing/{name}/issue"), "").await?;
    }
    for path in ["/readyz", "/metrics", "/v1/nodes", "/v1/locks"] {
        request(address, "GET", path, "");
    }
    Ok(())
}

// ---- peers -----------------------------------------------------------------

/// The same cycles on others, each beside Quorate in the same run.
fn peers() -> Result<(), Error> {
    let deployments = [deployment(1, 1), deployment(3, 1)];
    println!("{:<14} {:>2} {:>5} {:>9} {:>9} {:>9}", "peer", "N", "C", "cycles/s", "quorate's", "ratio");
    let port = free_port();
    let config = tempfile::NamedTempFile::new()?;
    let redis_port = deployments[0].urls[0].rsplit(':').next().unwrap_or_default();
    std::fs::write(
        config.path(),
        format!(
            "{{\"redis_host\":\"127.0.0.1\",\"redis_port\":{redis_port},\"http_host\":\"127.0.0.1\",\"http_port\":{port},\
             \"threads\":2,\"pool_size\":8,\"daemonize\":false,\"verbosity\":0,\"logfile\":\"/dev/null\"}}"
        ),
    )?;
    match Command::new("webdis").arg(config.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Err(why) => println!("webdis: {why}"),
        Ok(child) => {
            let webdis = Process { child, _output: None };
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            while TcpStream::connect(address).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
            for connections in [32, 256] {
                beside_peer("webdis", &deployments[0], connections, || {
                    let theirs = measure("webdis", &webdis, address, &[], connections);
                    assert_eq!(theirs.failures, 0.0);
                    Ok(theirs.cycles_per_s)
                })?;
            }
        }
    }
    for connections in [32, 256] {
        let redlock = || {
            let output = Command::new("node")
                .args(["-e", REDLOCK, &connections.to_string(), &seconds().to_string()])
                .args(&deployments[1].urls)
                .output()?;
            match output.status.success() {
                true => Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?),
                false => Err(String::from_utf8_lossy(&output.stderr).into()),
            }
        };
        if let Err(why) = beside_peer("node-redlock", &deployments[1], connections, redlock) {
            println!("node-redlock: {why}");
        }
    }
    Ok(())
}

/// A peer's cycles a second and Quorate's, in turns: medians, and that of the ratios.
fn beside_peer(
    peer: &str,
    ours: &Deployment,
    connections: usize,
    mut theirs: impl FnMut() -> Result<f64, Error>,
) -> Result<(), Error> {
    let Deployment { nodes, servers, .. } = ours;
    let (server, address) = &servers[0];
    let mut figures = [const { Vec::new() }; 3];
    for _ in 0..5 {
        let theirs = theirs()?;
        let ours = measure("lock", server, *address, nodes, connections).cycles_per_s;
        figures.iter_mut().zip([theirs, ours, ours / theirs]).for_each(|(all, one)| all.push(one));
    }
    let [theirs, ours, ratio] = figures.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    });
    let nodes = nodes.len();
    println!("{peer:<14} {nodes:>2} {connections:>5} {theirs:>9.0} {ours:>9.0} {ratio:>9.2}");
    Ok(())
}

/// Cycles a second of node-redlock in one process, without HTTP.
const REDLOCK: &str = r"
const { default: Redlock } = require('redlock');
const Redis = require('ioredis');
const [connections, seconds, ...urls] = process.argv.slice(1);
const redlock = new Redlock(urls.map((url) => new Redis(url)), { retryCount: 0 });
const end = Date.now() + seconds * 1000;
let cycles = 0;
async function work(worker) {
  for (let i = 0; Date.now() < end; i++) {
    const lock = await redlock.acquire([`bench:${worker}:${i % 16}`], 10000);
    await lock.release();
    cycles++;
  }
}
const begun = Date.now();
Promise.all(Array.from({ length: connections }, (_, worker) => work(worker))).then(() => {
  console.log(cycles / ((Date.now() - begun) / 1000));
  process.exit(0);
});
";
