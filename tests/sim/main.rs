//! Whole deployments in one thread under virtual time; one seed replays all.
//!
//! See `docs/testing.md` for what each checker sees and how to replay a failure.
#![allow(clippy::disallowed_methods, reason = "how long the run takes is real time")]

mod checkers;
mod clients;
mod deployment;
mod faults;
mod history;
mod machines;
mod members;
mod moves;
mod queues;
mod world;

use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use checkers::Counts;
use deployment::Kind;

/// The one of the server: a fifth of a simulation's time went to the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[derive(Default)]
struct Total {
    seeds: u64,
    faults: u64,
    events: u64,
    scripts: u64,
    virtual_ms: u64,
    counts: Counts,
    failed: Vec<(u64, Vec<String>)>,
}

/// Runs seeds from `first` on, on both cores, until `count` are done or the time is up.
fn run_seeds(kind: Kind, first: u64, count: u64, limit: Duration) -> Total {
    let (next, stop, started) = (AtomicU64::new(first), AtomicBool::new(false), Instant::now());
    let total = Mutex::new(Total::default());
    let threads = setting("QUORATE_SIM_THREADS")
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && started.elapsed() < limit {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let outcome = std::panic::catch_unwind(|| deployment::run(kind, seed, false));
                    let mut total = total.lock().expect("no thread panics here");
                    total.seeds += 1;
                    match outcome {
                        Ok(outcome) => {
                            total.faults += u64::from(outcome.faults);
                            total.events += outcome.events;
                            total.scripts += outcome.scripts;
                            total.virtual_ms += outcome.virtual_ms;
                            total.counts.add(&outcome.counts);
                            if !outcome.violations.is_empty() {
                                total.failed.push((seed, outcome.violations));
                            }
                        }
                        Err(_) => total.failed.push((seed, vec!["panicked".to_owned()])),
                    }
                    if total.failed.len() as u64 >= setting("QUORATE_SIM_FAILURES").unwrap_or(1) {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    total.into_inner().expect("no thread panics here")
}

/// Runs the seeds that the environment names, or else 10,000 of a kind or as many as fit into so many seconds. `test` begins the
/// name of the test.
fn simulate(test: &str, kind: Kind, most_seconds: u64) {
    if let Some(seed) = setting("QUORATE_SIM_SEED") {
        let outcome = deployment::run(kind, seed, true);
        println!("seed {seed}: {:#?}", outcome.counts);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:#?}", outcome.violations);
        return;
    }
    let first = setting("QUORATE_SIM_FIRST").unwrap_or(0);
    let seconds = setting("QUORATE_SIM_SECONDS");
    let count =
        setting("QUORATE_SIM_SEEDS").unwrap_or(if seconds.is_some() { u64::MAX - first } else { 10_000 });
    let started = Instant::now();
    let mut total = run_seeds(kind, first, count, Duration::from_secs(seconds.unwrap_or(most_seconds)));
    let took = started.elapsed();
    // Straight to the output, which shows it although the test passes.
    let mut out = std::io::stdout();
    let _ = writeln!(
        out,
        "simulated {} seeds in {:.1} s ({:.0} s of virtual time): {} faults, {} scripts run, {} events",
        total.seeds,
        took.as_secs_f64(),
        total.virtual_ms as f64 / 1000.0,
        total.faults,
        total.scripts,
        total.events,
    );
    let _ = writeln!(out, "{:?}", total.counts);
    total.failed.sort();
    for (seed, violations) in &total.failed {
        println!("seed {seed}: {}", violations[0]);
        println!("  replay: QUORATE_SIM_SEED={seed} cargo test --test sim {test} -- --nocapture");
    }
    assert!(total.failed.is_empty(), "{} of {} seeds failed", total.failed.len(), total.seeds);
}

#[test]
fn deployments_keep_their_promises_under_faults() {
    simulate("deployments", Kind::Any, 120);
}

#[test]
fn mixes_of_shared_exclusive_and_several_locks_keep_their_promises_under_faults() {
    simulate("mixes", Kind::Locks, 15);
}

#[test]
fn members_that_change_all_the_time_keep_their_promises() {
    simulate("members", Kind::Members, 15);
}

#[test]
fn a_seed_replays_the_same_history() {
    for (kind, seeds) in [(Kind::Any, 20), (Kind::Members, 3)] {
        for seed in 0..seeds {
            let [first, second] = [(); 2].map(|()| deployment::run(kind, seed, false));
            assert_eq!((first.hash, first.events), (second.hash, second.events), "seed {seed}");
        }
    }
}
