//! The leases that were granted by this server and are neither released nor over, as far as it knows.
//!
//! It feeds `quorate_leases` and `quorate_leases_expired_total`. A lease that is extended or released at another
//! server is over here when its last known end has come.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Held, Lease, Primitive};
use crate::domain::{LeaseHandle, LeaseId, Name, Token};
use crate::telemetry::{audit, metrics};

/// How many are remembered; of more, the end is not told.
const LEASES_MAX: usize = 1_000_000;

#[derive(Default)]
struct Leases {
    known: HashMap<LeaseId, Known>,
    /// By when they end.
    ends: BTreeSet<(Instant, LeaseId)>,
}

struct Known {
    primitive: Primitive,
    until: Instant,
    /// A retry was told of it, too: whoever leaves gives nothing back.
    is_joined: bool,
    /// For the audit of leases.
    named: Option<Box<(Held, Token, String)>>,
}

/// All of one server.
#[derive(Default)]
pub(crate) struct Ledger {
    leases: Mutex<Leases>,
}

/// A lease on its way to its holder, or of a stream. Dropped, it was given back, unless a retry has joined it.
pub(crate) struct Booking {
    ledger: Arc<Ledger>,
    lease: LeaseId,
    is_kept: bool,
}

impl Drop for Booking {
    fn drop(&mut self) {
        if !self.is_kept {
            self.ledger.end(&self.lease, |known| !known.is_joined);
        }
    }
}

impl Booking {
    /// The holder has it, or it has run out: the sweep tells its end.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Ledger {
    /// A lease was granted, or told once more to a retry that has `joined` it.
    pub(crate) fn granted(
        self: &Arc<Self>,
        held: impl FnOnce() -> Held,
        primitive: Primitive,
        lease: &Lease,
        joined: bool,
    ) -> Booking {
        let id = lease.handle.id;
        let named = audit::of_leases().then(|| {
            let owner = lease.note.label().unwrap_or_default().to_owned();
            Box::new((held(), lease.handle.token, owner))
        });
        if let Some(named) = &named {
            record("granted", named);
        }
        let mut leases = self.leases.lock();
        let Leases { known, ends } = &mut *leases;
        if known.len() < LEASES_MAX || known.contains_key(&id) {
            let until = lease.valid_until;
            let before = known.remove(&id);
            match &before {
                Some(before) => drop(ends.remove(&(before.until, id))),
                None => metrics().leases(primitive).increment(1.0),
            }
            let is_joined = joined || before.is_some_and(|before| before.is_joined);
            known.insert(id, Known { primitive, until, is_joined, named });
            ends.insert((until, id));
        }
        Booking { ledger: Arc::clone(self), lease: id, is_kept: false }
    }

    /// A lease was extended, whoever granted it.
    pub(crate) fn extended(&self, lease: &LeaseId, until: Instant) {
        let mut leases = self.leases.lock();
        let Leases { known, ends } = &mut *leases;
        if let Some(one) = known.get_mut(lease) {
            ends.remove(&(one.until, *lease));
            one.until = until;
            ends.insert((until, *lease));
        }
    }

    /// A lease was given back, whichever server granted it.
    pub(crate) fn released(&self, held: &Held, handle: LeaseHandle) {
        let known = self.leases.lock().forget(&handle.id, |_| true);
        record_end("released", held, handle, known);
    }

    /// One of this server was given back or taken away.
    pub(crate) fn ended(&self, lease: &LeaseId) {
        self.end(lease, |_| true);
    }

    /// An extension found that a lease is not held any more, whichever server granted it.
    pub(crate) fn lost(&self, held: &Held, handle: LeaseHandle) {
        let mut leases = self.leases.lock();
        // Somebody mixed up the names: the lease is held, under another one.
        if leases.named(&handle.id).is_some_and(|known| known.names() != held.names()) {
            return;
        }
        let known = leases.forget(&handle.id, |_| true);
        drop(leases);
        if let Some(known) = &known {
            metrics().expired(known.primitive);
        }
        record_end("lost", held, handle, known);
    }

    fn end(&self, lease: &LeaseId, fits: impl Fn(&Known) -> bool) {
        let known = self.leases.lock().forget(lease, fits);
        if let Some(named) = known.and_then(|known| known.named) {
            record("released", &named);
        }
    }

    /// Counts those that are over. Called every second.
    pub(crate) fn sweep(&self, now: Instant) {
        let over = |leases: &mut Leases| {
            leases.ends.first().filter(|(until, _)| *until <= now)?;
            let (_, lease) = leases.ends.pop_first()?;
            leases.forget(&lease, |_| true)
        };
        let next = || over(&mut self.leases.lock());
        for known in std::iter::from_fn(next) {
            metrics().expired(known.primitive);
            if let Some(named) = known.named {
                record("expired", &named);
            }
        }
    }
}

impl Leases {
    /// What a lease is of, where that is known.
    fn named(&self, lease: &LeaseId) -> Option<&Held> {
        Some(&self.known.get(lease)?.named.as_ref()?.0)
    }

    /// It is over for this server, if it was known and `fits`.
    fn forget(&mut self, lease: &LeaseId, fits: impl Fn(&Known) -> bool) -> Option<Known> {
        self.known.get(lease).filter(|known| fits(known))?;
        let known = self.known.remove(lease)?;
        self.ends.remove(&(known.until, *lease));
        metrics().leases(known.primitive).decrement(1.0);
        Some(known)
    }
}

/// Of a lease that another server granted, the owner is not known.
fn record_end(event: &'static str, held: &Held, handle: LeaseHandle, known: Option<Known>) {
    if audit::of_leases() {
        let owner = known.and_then(|known| known.named).map(|named| named.2).unwrap_or_default();
        record(event, &(held.clone(), handle.token, owner));
    }
}

fn record(event: &'static str, (held, token, owner): &(Held, Token, String)) {
    let names: Vec<&str> = held.names().iter().map(Name::as_str).collect();
    audit::lease(event, held.primitive(), &names, token.get(), owner);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::RequestId;
    use crate::quorum::fixture::Api;
    use crate::service::{AcquireOptions, Granted, Note, Service, Target, WaitLimits};

    async fn service() -> Service {
        let [api, _] = Api::pair().await;
        Service::new(Arc::clone(&api.engine), WaitLimits { waiters_max: 1, waiters_per_name_max: 1 })
    }

    async fn attempt(service: &Service) -> Granted {
        let request = RequestId::new("retried:1").ok();
        let options = AcquireOptions { ttl_ms: 30_000, wait_ms: 0, note: Note::default(), request };
        let granted = service.acquire(&Target::Lock(Name::new("a").unwrap()), &options).await;
        granted.ok().unwrap()
    }

    impl Ledger {
        fn len(&self) -> usize {
            let leases = self.leases.lock();
            assert_eq!(leases.known.len(), leases.ends.len());
            leases.known.len()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_was_told_of_is_not_remembered() {
        let service = service().await;
        drop(attempt(&service).await);
        assert_eq!(service.ledger.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_a_retry_has_joined_stays_whichever_of_the_two_leaves() {
        for first_leaves in [true, false] {
            let service = service().await;
            let (first, retry) = (attempt(&service).await, attempt(&service).await);
            assert_eq!(first.lease.handle, retry.lease.handle);
            let (leaves, stays) = if first_leaves { (first, retry) } else { (retry, first) };
            drop(leaves);
            assert_eq!(service.ledger.len(), 1, "{first_leaves}");
            let lease = stays.deliver();
            assert_eq!(service.ledger.len(), 1, "{first_leaves}");
            assert!(service.release(&Held::Lock(Name::new("a").unwrap()), lease.handle).await.unwrap());
            assert_eq!(service.ledger.len(), 0, "{first_leaves}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_over_at_its_last_known_end_and_no_sooner() {
        let service = service().await;
        let lease = attempt(&service).await.deliver();
        let held = Held::Lock(Name::new("a").unwrap());
        tokio::time::advance(std::time::Duration::from_secs(20)).await;
        let extended = service.extend(&held, lease.handle, None).await.unwrap();
        service.ledger.sweep(lease.valid_until);
        assert_eq!(service.ledger.len(), 1);
        service.ledger.sweep(extended.valid_until);
        assert_eq!(service.ledger.len(), 0);
    }
}
