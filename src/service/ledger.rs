//! The leases that were granted by this server and are neither released nor over, as far as it knows.
//!
//! It feeds `quorate_leases` and `quorate_leases_expired_total`. A lease that is extended or released at another
//! server is over here when its last known end has come.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Held, Lease, Primitive};
use crate::domain::{LeaseId, Name, Token};
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
    /// For the audit of leases.
    named: Option<Box<(Held, Token, String)>>,
}

/// All of one server.
#[derive(Default)]
pub(crate) struct Ledger {
    leases: Mutex<Leases>,
}

/// A lease on its way to its holder, or of a stream: forgotten when dropped.
pub(crate) struct Entry {
    ledger: Arc<Ledger>,
    lease: LeaseId,
    is_kept: bool,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_kept {
            self.ledger.ended(&self.lease);
        }
    }
}

impl Entry {
    /// The holder has it.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Ledger {
    /// A lease was granted.
    pub(crate) fn granted(
        self: &Arc<Self>,
        held: impl FnOnce() -> Held,
        primitive: Primitive,
        lease: &Lease,
    ) -> Entry {
        let id = lease.handle.id;
        let named = audit::of_leases().then(|| {
            let note = &lease.note;
            let owner = note.owner.as_ref().map(|owner| owner.as_str().to_owned());
            let owner = owner.or_else(|| note.candidate.as_ref().map(|name| name.as_str().to_owned()));
            Box::new((held(), lease.handle.token, owner.unwrap_or_default()))
        });
        if let Some(named) = &named {
            record("granted", named);
        }
        let mut leases = self.leases.lock();
        let Leases { known, ends } = &mut *leases;
        if known.len() < LEASES_MAX || known.contains_key(&id) {
            let until = lease.valid_until;
            match known.insert(id, Known { primitive, until, named }) {
                // A retry that got the same lease.
                Some(before) => drop(ends.remove(&(before.until, id))),
                None => metrics().leases(primitive).increment(1.0),
            }
            ends.insert((until, id));
        }
        Entry { ledger: Arc::clone(self), lease: id, is_kept: false }
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

    /// A lease was given back, taken away or undone.
    pub(crate) fn ended(&self, lease: &LeaseId) {
        let mut leases = self.leases.lock();
        if let Some(one) = leases.known.remove(lease) {
            leases.ends.remove(&(one.until, *lease));
            metrics().leases(one.primitive).decrement(1.0);
            if let Some(named) = &one.named {
                record("released", named);
            }
        }
    }

    /// Counts those that are over. Called every second.
    pub(crate) fn sweep(&self, now: Instant) {
        let mut leases = self.leases.lock();
        let Leases { known, ends } = &mut *leases;
        while let Some(&(until, lease)) = ends.first().filter(|(until, _)| *until <= now) {
            ends.remove(&(until, lease));
            let Some(one) = known.remove(&lease) else { continue };
            metrics().leases(one.primitive).decrement(1.0);
            metrics().expired(one.primitive);
            if let Some(named) = &one.named {
                record("expired", named);
            }
        }
    }
}

fn record(event: &'static str, (held, token, owner): &(Held, Token, String)) {
    audit::lease(event, held.primitive(), &names(held), token.get(), owner);
}

/// The names that a lease covers.
pub(crate) fn names(held: &Held) -> Vec<&str> {
    match held {
        Held::Lock(name) | Held::Semaphore(name) | Held::Election(name) => vec![name.as_str()],
        Held::Multilock(names) => names.iter().map(Name::as_str).collect(),
    }
}
