//! A server that stood still, as a virtual machine does that is paused or moved: its monotonic clock does not count
//! the time, and the clocks of all nodes seem to have stepped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::support::redis::new_directory;
use crate::support::{Cluster, RedisOptions, Server, eventually, skip};

/// Is loaded into the server: its monotonic clock stands still for as long as the file says, from then on when it does.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
/* ns by CLOCK_MONOTONIC: from when on, and for how long; whether CLOCK_BOOTTIME stands still, too. */
static volatile long long *stop;
__attribute__((constructor)) static void open_file(void) {
    int file = open(getenv("STAND_STILL"), O_RDONLY);
    stop = mmap(0, 24, PROT_READ, MAP_SHARED, file, 0);
}
int clock_gettime(clockid_t id, struct timespec *to) {
    long failed = syscall(SYS_clock_gettime, id, to);
    int stands = id == CLOCK_MONOTONIC || (id == CLOCK_BOOTTIME && stop && stop[2]);
    if (failed || !stands || !stop || !stop[1]) return failed;
    long long now = to->tv_sec * 1000000000LL + to->tv_nsec;
    if (now < stop[0]) return 0;
    now = now < stop[0] + stop[1] ? stop[0] : now - stop[1];
    to->tv_sec = now / 1000000000LL;
    to->tv_nsec = now % 1000000000LL;
    return 0;
}
"#;

/// What makes the clock of a server stand still.
struct Stop {
    directory: PathBuf,
}

impl Stop {
    /// None where there is no C compiler.
    fn new() -> Option<Self> {
        let directory = new_directory();
        fs::write(directory.join("still.c"), LIBRARY).unwrap();
        fs::write(directory.join("still"), [0; 24]).unwrap();
        let build = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o", "still.so", "still.c"])
            .current_dir(&directory)
            .output();
        match build {
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                Some(Self { directory })
            }
            Err(_) => {
                skip("no C compiler: no server stands still");
                None
            }
        }
    }

    async fn server(&self, cluster: &Cluster) -> Server {
        let path = |name: &str| self.directory.join(name).to_str().unwrap().to_owned();
        let mut options = cluster.options();
        options.environment.push(("LD_PRELOAD".to_owned(), path("still.so")));
        options.environment.push(("STAND_STILL".to_owned(), path("still")));
        Server::start(&options).ready().await
    }

    /// From now on, for so long.
    async fn stand_still(&self, time: Duration, boot_time_too: bool) {
        use nix::time::{ClockId, clock_gettime};
        let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
        let words = [now.as_nanos() as i64, time.as_nanos() as i64, i64::from(boot_time_too)];
        // The length last: until then nothing stands still. In place, since the file is mapped.
        let mut file = fs::OpenOptions::new().write(true).open(self.directory.join("still")).unwrap();
        write_at(&mut file, 16, words[2]);
        write_at(&mut file, 0, words[0]);
        write_at(&mut file, 8, words[1]);
        tokio::time::sleep(time).await;
    }
}

fn write_at(file: &mut fs::File, at: u64, word: i64) {
    use std::os::unix::fs::FileExt as _;
    file.write_all_at(&word.to_le_bytes(), at).unwrap();
}

impl Drop for Stop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.directory));
    }
}

/// Seen before: 503 for 303 s.
#[tokio::test]
async fn a_server_that_stood_still_blames_no_node() {
    for boot_time_too in [true, false] {
        let cluster = Cluster::with(3, &RedisOptions::default(), &[]);
        let Some(stop) = Stop::new() else { return };
        let server = stop.server(&cluster).await;
        let api = server.api();
        api.acquire("before", json!({"ttl_ms": 60_000})).await.ok();
        stop.stand_still(Duration::from_millis(800), boot_time_too).await;
        eventually("it grants again", || async {
            api.acquire("after", json!({"ttl_ms": 100})).await.status == 200
        })
        .await;
        server.all_voting().await;
        for node in &cluster.nodes {
            let marker: String = node.command(&["GET", "quorate:member"]);
            assert!(marker.starts_with("2 member 1 "), "{marker}");
        }
        let log = server.log();
        assert!(!log.contains("clock stepped\""), "{log}");
        api.acquire("before", json!({})).await.problem(409, "lock_held");
    }
}

/// What it believes of its leases is over that much sooner.
#[tokio::test]
async fn a_stream_is_not_believed_to_hold_what_ran_out_while_the_server_stood_still() {
    let cluster = Cluster::with(3, &RedisOptions::default(), &[]);
    let Some(stop) = Stop::new() else { return };
    let server = stop.server(&cluster).await;
    let other = cluster.server(&[]).await;
    let stream = server.api().stream("POST", "/v1/locks/still/hold", json!({"ttl_ms": 1_500})).await;
    let mut stream = stream.unwrap_or_else(|answer| panic!("no stream: {}", answer.text()));
    stream.expect("acquired").await;
    stop.stand_still(Duration::from_secs(3), true).await;
    eventually("somebody else has it", || async {
        other.api().acquire("still", json!({"ttl_ms": 5_000})).await.status == 200
    })
    .await;
    loop {
        let event = stream.next().await.name;
        if event == "lost" {
            break;
        }
        assert_eq!(event, "extended");
    }
}
