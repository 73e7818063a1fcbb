//! A deployment that only works, with names that never come again: after a while it needs no more
//! memory, files and threads than before. `scripts/soak` runs it for hours.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Api, Cluster, RedisOptions, resident_bytes};

/// Nodes forget a name soon, so that the memory they need for names has an end within the run.
const FORGETFUL: [&str; 6] = ["--max-ttl", "1s", "--fence-retention", "2s", "--clock-bound", "1s"];
const CLIENTS: u64 = 8;

/// What a process may have more in the last third of the run than in the middle one.
struct Leeway {
    name: &'static str,
    part: f64,
    plus: f64,
}

const LEEWAY: [Leeway; 4] = [
    Leeway { name: "resident memory of a server, MiB", part: 0.1, plus: 6.0 },
    Leeway { name: "open files of a server", part: 0.1, plus: 16.0 },
    Leeway { name: "threads of a server", part: 0.0, plus: 4.0 },
    Leeway { name: "used_memory of a node, MiB", part: 0.1, plus: 1.0 },
];

/// How many leases were granted, and how many requests were refused.
#[derive(Default)]
struct Count {
    granted: AtomicU64,
    refused: AtomicU64,
}

impl Count {
    fn add(&self, is_granted: bool) {
        let of = if is_granted { &self.granted } else { &self.refused };
        of.fetch_add(1, Ordering::Relaxed);
    }
}

async fn use_and_leave(api: Api, client: u64, over: Arc<AtomicBool>, count: Arc<Count>) {
    for number in 0.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let name = format!("steady:{client}:{number}");
        let (take, give, mut body) = match number % 5 {
            0 => (format!("locks/{name}/acquire"), format!("locks/{name}/release"), json!({"wait_ms": 100})),
            1 => (
                format!("semaphores/{name}/acquire"),
                format!("semaphores/{name}/release"),
                json!({"limit": 4, "permits": 2}),
            ),
            2 => (
                format!("elections/{name}/campaign"),
                format!("elections/{name}/resign"),
                json!({"candidate": "c", "value": "v"}),
            ),
            // Ends by itself.
            3 => (format!("locks/{name}/acquire"), String::new(), json!({})),
            _ => {
                let stream =
                    api.stream("POST", &format!("/v1/locks/{name}/hold"), json!({"ttl_ms": 500})).await;
                count.add(stream.is_ok());
                if let Ok(mut stream) = stream {
                    stream.expect("acquired").await;
                }
                continue;
            }
        };
        body["ttl_ms"] = json!(500);
        let answer = api.post(&format!("/v1/{take}"), body).await;
        if answer.status == 200 && !give.is_empty() {
            let lease: Value = answer.json();
            api.post(&format!("/v1/{give}"), json!({"lease_id": lease["lease_id"]})).await.ok();
        }
        count.add(answer.status == 200);
    }
}

fn entries(path: String) -> f64 {
    std::fs::read_dir(path).map_or(0.0, |entries| entries.count() as f64)
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::test]
async fn memory_files_and_threads_are_flat_after_a_while() {
    let seconds = std::env::var("QUORATE_STEADY_SECONDS").ok().and_then(|value| value.parse().ok());
    let span = Duration::from_secs(seconds.unwrap_or(18));
    let cluster = Cluster::with(3, &RedisOptions::default(), &FORGETFUL[..2]);
    let servers = [cluster.server(&FORGETFUL).await, cluster.server(&FORGETFUL).await];
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(Count::default()));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let api = servers[client as usize % servers.len()].api();
        clients.spawn(use_and_leave(api, client, Arc::clone(&over), Arc::clone(&count)));
    }
    let (began, mut samples) = (Instant::now(), Vec::new());
    while began.elapsed() < span {
        tokio::time::sleep(span / 90).await;
        let worst =
            |of: &dyn Fn(u32) -> f64| servers.iter().map(|server| of(server.pid())).fold(0.0, f64::max);
        let used =
            cluster.nodes.iter().map(|node| node.info("memory")["used_memory"].parse::<f64>().unwrap());
        samples.push([
            worst(&|pid| resident_bytes(pid) as f64 / 1048576.0),
            worst(&|pid| entries(format!("/proc/{pid}/fd"))),
            worst(&|pid| entries(format!("/proc/{pid}/task"))),
            used.fold(0.0, f64::max) / 1048576.0,
        ]);
    }
    over.store(true, Ordering::Relaxed);
    clients.join_all().await;

    let third = samples.len() / 3;
    let [granted, refused] = [&count.granted, &count.refused].map(|of| of.load(Ordering::Relaxed));
    let mut report = format!(
        "steady: {granted} leases of as many names in {span:?}, {refused} refused; middle third, last third\n"
    );
    let mut grown = Vec::new();
    for (index, Leeway { name, part, plus }) in LEEWAY.iter().enumerate() {
        let of = |samples: &[[f64; 4]]| middle(samples.iter().map(|sample| sample[index]).collect());
        let (before, after) = (of(&samples[third..2 * third]), of(&samples[2 * third..]));
        report += &format!("  {name}: {before:.1}, {after:.1}\n");
        if after > before * (1.0 + part) + plus {
            grown.push(*name);
        }
    }
    // Straight to the output, which shows it although the test passes.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), report.as_bytes());
    assert!(grown.is_empty(), "grows: {grown:?}\n{report}");
    assert!(granted > span.as_secs(), "too little happened: {granted} leases");
    // Each name is new and nothing is broken: what is refused is refused by a machine that is very busy.
    assert!(refused <= granted / 20, "{refused} refused of {granted}");
}
