//! After the faults: a server that stood in the queue of a name and is gone keeps it from nobody for long, and one who
//! wants a name alone is not starved by those who share it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use quorate::domain::{Mode, STANDING_LIFE_MS};
use quorate::service::{AcquireOptions, Note, Target};
use tokio::time::{Instant, sleep, timeout};

use crate::clients::Town;

fn options(wait_ms: u64) -> AcquireOptions {
    AcquireOptions { ttl_ms: 500, wait_ms, note: Note::default(), request: None }
}

/// Takes `target` at one server and gives it back; how long that took, ms.
async fn take(town: &Arc<Town>, server: usize, target: &Target, wait_ms: u64) -> Option<u64> {
    let (process, began, asked) = (town.process(server), town.checkers.begin(), Instant::now());
    let lease = match process.service.acquire(target, &options(wait_ms)).await {
        Ok(granted) => granted.deliver(),
        Err(why) => {
            town.checkers.violate(format!("{target:?} is free and not granted after {wait_ms} ms: {why:?}"));
            return None;
        }
    };
    let took_ms = asked.elapsed().as_millis() as u64;
    let index = town.checkers.granted(
        &began,
        98,
        lease.handle,
        &town.names.of(target, &lease.slots),
        Mode::Exclusive,
    );
    town.checkers.told(index, lease.valid_until);
    town.checkers.give_up(index);
    match process.service.release(&target.held(), lease.handle).await {
        Ok(_) => town.checkers.released(index),
        Err(why) => town.checkers.violate(format!("a release of {target:?} in calm said {why:?}")),
    }
    Some(took_ms)
}

/// A waiter of the second server is refused while the first one holds it, and leaves unserved.
async fn leave_an_entry(town: &Arc<Town>, held: &Target, wanted: &Target) {
    let (first, second) = (town.process(0), town.process(1));
    let began = town.checkers.begin();
    let long = AcquireOptions { ttl_ms: town.max_ttl_ms, ..options(2000) };
    let Ok(granted) = first.service.acquire(held, &long).await else { return };
    let lease = granted.deliver();
    let index =
        town.checkers.granted(&began, 98, lease.handle, &town.names.of(held, &lease.slots), Mode::Exclusive);
    town.checkers.give_up(index);
    let patience = Duration::from_millis(100);
    let early = timeout(patience, second.service.acquire(wanted, &options(60_000))).await;
    drop(early);
    if let Ok(true) = first.service.release(&held.held(), lease.handle).await {
        town.checkers.released(index);
    }
}

/// Three take turns in sharing a lock, so that it is never free, until one at another server who wants it alone has it.
async fn outlast_readers(town: &Arc<Town>, target: &Target) {
    let over = Cell::new(false);
    let read = async |ms: u64| {
        sleep(Duration::from_millis(ms)).await;
        let note = Note { mode: Mode::Shared, ..Note::default() };
        while !over.get() {
            let shared = AcquireOptions { note: note.clone(), ..options(500) };
            let process = town.process(0);
            if let Ok(granted) = process.service.acquire(target, &shared).await {
                let lease = granted.deliver();
                sleep(Duration::from_millis(150)).await;
                // What cannot be given back ends by itself.
                let _ = process.service.release(&target.held(), lease.handle).await;
            }
        }
    };
    let write = async {
        sleep(Duration::from_millis(200)).await;
        take(town, 1, target, 10_000).await;
        over.set(true);
    };
    tokio::join!(read(0), read(50), read(100), write);
}

/// Checks that who is gone costs the others a moment, or the life of its entry where it wanted several names.
pub async fn check(town: &Arc<Town>) {
    let [first, ..] = &*town.names.locks else { return };
    let single = Target::Lock(first.clone());
    leave_an_entry(town, &single, &single).await;
    // Votes may be split, or messages take long.
    let soon_ms = 4 * town.node_timeout_ms + 500;
    if let Some(took_ms) = take(town, 0, &single, STANDING_LIFE_MS).await
        && took_ms > soon_ms
    {
        town.checkers.violate(format!("a head that is gone kept {first} for {took_ms} ms"));
    }
    outlast_readers(town, &single).await;
    if town.names.locks.len() > 1 {
        leave_an_entry(town, &single, &Target::Multilock(town.names.locks.clone())).await;
        sleep(Duration::from_millis(STANDING_LIFE_MS)).await;
        take(town, 0, &single, 0).await;
    }
}
