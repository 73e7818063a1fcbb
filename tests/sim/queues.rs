//! After the faults: a server that stood in the queue of a name and is gone keeps it from nobody for long, one who
//! wants a name alone is not starved by those who share it, and a request that comes back has the place that it had.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quorate::domain::{Mode, RequestId, STANDING_LIFE_MS};
use quorate::service::{AcquireOptions, Granted, Lease, Note, ServiceError, Target};
use tokio::time::{Instant, sleep, timeout};

use crate::checkers::Began;
use crate::clients::{Process, Town};

fn options(wait_ms: u64) -> AcquireOptions {
    AcquireOptions { ttl_ms: 500, wait_ms, note: Note::default(), request: None }
}

/// Takes `target` at one server and gives it back; how long that took, ms.
async fn take(town: &Arc<Town>, server: usize, target: &Target, wait_ms: u64) -> Option<u64> {
    let (process, began, asked) = (town.process(server), town.checkers.begin(), Instant::now());
    let granted = match process.service.acquire(target, &options(wait_ms)).await {
        Ok(granted) => granted,
        Err(why) => {
            town.checkers.violate(format!("{target:?} is free and not granted after {wait_ms} ms: {why:?}"));
            return None;
        }
    };
    let took_ms = asked.elapsed().as_millis() as u64;
    let (index, lease) = deliver(town, &began, target, granted);
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
    // Votes may be split, messages take long, and the right to grant such a lease may have to be written first.
    let soon_ms = 6 * town.node_timeout_ms + 1000;
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
    keep_places(town, &single).await;
}

fn requested(id: &str, wait_ms: u64) -> AcquireOptions {
    AcquireOptions { request: RequestId::new(id).ok(), ..options(wait_ms) }
}

/// A lease in hand, whose holder believes in it no more than it takes to give it back.
fn deliver(town: &Town, began: &Began, target: &Target, granted: Granted) -> (usize, Lease) {
    let lease = granted.deliver();
    let index =
        town.checkers.granted(began, 98, lease.handle, &town.names.of(target, &lease.slots), Mode::Exclusive);
    town.checkers.told(index, lease.valid_until);
    town.checkers.give_up(index);
    (index, lease)
}

/// Waits as a request, and gives back what it gets; which place it was served at.
async fn serve(
    town: &Town,
    process: &Process,
    target: &Target,
    asked: &AcquireOptions,
    served: &AtomicU32,
) -> Option<u32> {
    let began = town.checkers.begin();
    let granted = process.service.acquire(target, asked).await.ok()?;
    let place = served.fetch_add(1, Ordering::Relaxed);
    let (index, lease) = deliver(town, &began, target, granted);
    if process.service.release(&target.held(), lease.handle).await.is_ok() {
        town.checkers.released(index);
    }
    Some(place)
}

/// A request whose wait was over comes back behind another one, and is served before it. A release by request id
/// ends a wait, and gives back at one server what was granted at another.
async fn keep_places(town: &Arc<Town>, target: &Target) {
    let (here, there, held) = (town.process(0), town.process(1), target.held());
    let ttl_ms = town.max_ttl_ms.min(30_000);
    let asked = |id, wait_ms| AcquireOptions { ttl_ms, ..requested(id, wait_ms) };
    let (first, second, third) =
        (asked("place:first", 60_000), asked("place:second", 60_000), asked("place:third", 60_000));
    let began = town.checkers.begin();
    let Ok(granted) = there.service.acquire(target, &asked("place:holder", 2000)).await else { return };
    let (index, lease) = deliver(town, &began, target, granted);
    let early = here.service.acquire(target, &asked("place:first", 50)).await;
    if !matches!(early, Err(ServiceError::Contended { .. })) {
        // The lease is over already.
        return;
    }
    let served = AtomicU32::new(0);
    let pause = |ms| sleep(Duration::from_millis(ms));
    let (second, first, ended, judged) = tokio::join!(
        serve(town, &here, target, &second, &served),
        async {
            pause(5).await;
            serve(town, &here, target, &first, &served).await
        },
        async {
            pause(10).await;
            here.service.acquire(target, &third).await.map(Granted::deliver)
        },
        async {
            // Each looks for an earlier lease of its request before it sits down.
            for _ in 0..300 {
                if here.service.waiting(&held) == 3 {
                    break;
                }
                pause(1).await;
            }
            // Who stood first until another one came back may be in the middle of its rounds.
            pause(50).await;
            let all_wait = here.service.waiting(&held) == 3;
            let request = third.request.as_ref().expect("a request id");
            let ended = here.service.release_request(&held, request).await;
            if all_wait && !matches!(ended, Ok(true)) {
                town.checkers.violate(format!("the end of a wait said {ended:?}"));
            }
            let released = there.service.release(&held, lease.handle).await;
            if released.is_ok() {
                town.checkers.released(index);
            }
            all_wait && released.is_ok_and(|held| held)
        },
    );
    // Otherwise the lease ended by itself, and somebody was served before all of them waited.
    if judged && (first, second) != (Some(0), Some(1)) {
        town.checkers
            .violate(format!("who came back was served as {first:?}, and who came later as {second:?}"));
    }
    if judged && !matches!(ended, Err(ServiceError::Ended { .. })) {
        town.checkers.violate(format!("a wait that was ended said {ended:?}"));
    }
    let began = town.checkers.begin();
    let asked = asked("place:given-back", 2000);
    let Ok(granted) = here.service.acquire(target, &asked).await else { return };
    let (index, _) = deliver(town, &began, target, granted);
    let request = asked.request.as_ref().expect("a request id");
    match there.service.release_request(&held, request).await {
        Ok(true) => town.checkers.released(index),
        other => town.checkers.violate(format!("a release by request id in calm said {other:?}")),
    }
    take(town, 0, target, 0).await;
}
