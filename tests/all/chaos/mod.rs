//! Real processes under real faults: five `redis-server`, three API servers, a network that delays,
//! cuts, swallows and answers one way only; everything killed, stopped, flushed and starved at
//! random while clients take locks, permits and offices. What they were told is recorded and
//! checked: tokens rise in real-time order, no two leases are valid at once, nobody is let in
//! beyond a limit, and afterwards every name can be taken again and nothing is left.
//!
//! Half a minute by default, an hour with `QUORATE_CHAOS_SECONDS=3600`. The order of faults follows
//! from `QUORATE_CHAOS_SEED`; what they meet does not, since processes keep their own time.
//! `QUORATE_CHAOS_HISTORY=FILE` keeps every call and its answer for the checker in `tests/history`;
//! `scripts/chaos` runs both.

mod client;
mod history;
mod theatre;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::task::JoinSet;

use self::client::{Client, LIMIT, LOCKS};
use self::history::{History, Told, violations};
use self::theatre::Theatre;
use crate::support::Server;

#[test]
fn under_every_fault_tokens_rise_and_no_two_leases_are_valid_at_once() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let span = Duration::from_secs(setting("QUORATE_CHAOS_SECONDS").unwrap_or(30));
    let seed = setting("QUORATE_CHAOS_SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    println!("chaos: {span:?} with QUORATE_CHAOS_SEED={seed}");
    let file = std::env::var("QUORATE_CHAOS_HISTORY").ok();
    let mut theatre = Theatre::new(seed);
    let (history, over) = (Arc::new(History::new(file.as_deref())), Arc::new(AtomicBool::new(false)));
    // On a thread of their own, since faults are made by calls that block.
    let clients = {
        let (history, over, addresses) =
            (Arc::clone(&history), Arc::clone(&over), Arc::clone(&theatre.addresses));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut clients = JoinSet::new();
                for number in 0..24 {
                    let random = StdRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(number));
                    let (addresses, history) = (Arc::clone(&addresses), Arc::clone(&history));
                    let client = Client { number, random, addresses, history };
                    clients.spawn(client.live(Arc::clone(&over)));
                }
                clients.join_all().await;
            });
        })
    };
    theatre.play(span);
    over.store(true, Ordering::Relaxed);
    clients.join().expect("no client panics");
    history.flush();

    // The faults are over: everything can be had again, through every server, and in full.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let healed = Instant::now();
    runtime.block_on(async {
        for server in theatre.servers.iter().flatten() {
            server.all_voting().await;
            let api = server.api();
            for i in 0..LOCKS {
                crate::support::eventually("a lock can be taken", || async {
                    let answer =
                        api.acquire(&format!("chaos:{i}"), json!({"ttl_ms": 1_000, "wait_ms": 3_000})).await;
                    answer.status == 200
                        && api.release(&format!("chaos:{i}"), &answer.json()).await.status == 200
                })
                .await;
            }
            let all = json!({"limit": LIMIT, "permits": LIMIT, "ttl_ms": 1_000, "wait_ms": 3_000});
            crate::support::eventually("all permits can be taken", || async {
                let answer = api.post("/v1/semaphores/chaos/acquire", all.clone()).await;
                let body = json!({"lease_id": answer.json()["lease_id"]});
                answer.status == 200 && api.post("/v1/semaphores/chaos/release", body).await.status == 200
            })
            .await;
            crate::support::eventually("the office can be had", || async {
                let body = json!({"candidate": "last", "ttl_ms": 1_000, "wait_ms": 3_000});
                let answer = api.post("/v1/elections/chaos/campaign", body).await;
                let body = json!({"lease_id": answer.json()["lease_id"]});
                answer.status == 200 && api.post("/v1/elections/chaos/resign", body).await.status == 200
            })
            .await;
        }
        crate::support::eventually("nothing is left", || async {
            theatre.cluster.leases("chaos").is_empty()
        })
        .await;
    });

    let told = history.told.lock().unwrap().clone();
    let mut wrong = violations(&told);
    wrong.extend(history.wrong.lock().unwrap().iter().cloned());
    let logs =
        theatre.servers.iter().flatten().map(Server::log).chain([theatre.logs.clone()]).collect::<String>();
    wrong.extend(logs.lines().filter(|line| line.contains("panic")).map(str::to_owned));
    let faults: u64 = theatre.faults.values().sum();
    let mut report = format!(
        "chaos: {faults} faults in {span:?}; {} leases and tokens granted; all well again {:?} after the last fault\n",
        told.len(),
        healed.elapsed()
    );
    for (name, count) in &theatre.faults {
        let _ = writeln!(report, "  {count:>6} × {name}");
    }
    for (answer, count) in history.answers.lock().unwrap().iter() {
        let _ = writeln!(report, "  {count:>6} answers {answer}");
    }
    // Straight to the output, which shows it although the test passes.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), report.as_bytes());
    assert!(wrong.is_empty(), "{} violations with seed {seed}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(told.len() as u64 > span.as_secs(), "too little happened: {} grants", told.len());
}

#[test]
fn the_checkers_see_what_they_are_for() {
    let now = Instant::now();
    let at = |ms: u64| now + Duration::from_millis(ms);
    let told = |token, asked, answered, until| Told {
        what: "lock:a".to_owned(),
        token,
        asked: at(asked),
        answered: at(answered),
        until: at(until),
        bare: false,
    };
    let fine = vec![told(5, 0, 10, 100), told(6, 20, 100, 200), told(7, 150, 201, 300)];
    assert_eq!(violations(&fine), Vec::<String>::new());
    let overlapping = vec![told(5, 0, 10, 100), told(6, 20, 90, 200)];
    assert_eq!(violations(&overlapping).len(), 1);
    let repeated = vec![told(5, 0, 10, 20), told(5, 30, 40, 50)];
    assert_eq!(violations(&repeated).len(), 1);
    let back = vec![told(5, 0, 10, 20), told(9, 21, 22, 23), told(8, 30, 40, 50)];
    assert_eq!(violations(&back).len(), 1);
    // Asked for at the same time, either order is right.
    assert_eq!(violations(&[told(6, 0, 10, 11), told(5, 5, 20, 30)]), Vec::<String>::new());
    let mut other = told(1, 50, 60, 90);
    other.what = "lock:b".to_owned();
    assert_eq!(violations(&[told(5, 0, 10, 100), other]), Vec::<String>::new());
}
