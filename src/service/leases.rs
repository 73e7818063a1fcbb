//! The one mechanism under all primitives: acquire (by a [`Contender`]), extend, release.
//!
//! What differs between a lock, a multilock, a semaphore and an election is which
//! records a lease covers ([`Target::scope`]).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::contender::Contender;
use super::requests::request_of;
use super::{
    AcquireOptions, Granted, Held, Lease, Nodes, Note, Primitive, Service, ServiceError, Target, read_note,
    retry_after, unavailable, write_note,
};
use crate::domain::{Ask, Keys, LeaseHandle, LeaseId, Mode, Name, Renewal, RequestId, Scope, Token};
use crate::quorum::{Extension, Grant, Order, Round};
use crate::telemetry::{Acquisition, Extension as ExtensionOutcome, Release, metrics};

fn records<'a>(keys: impl IntoIterator<Item = &'a Name>, key: impl Fn(&Name) -> String) -> Scope {
    Scope::Records(keys.into_iter().map(|name| Arc::from(key(name))).collect())
}

impl Target {
    /// The records that a lease on this covers.
    pub(crate) fn scope(&self, keys: &Keys) -> Scope {
        self.held().scope(keys)
    }

    /// As a holder speaks of it.
    pub fn held(&self) -> Held {
        match self {
            Self::Lock(name) => Held::Lock(name.clone()),
            Self::Multilock(names) => Held::Multilock(names.clone()),
            Self::Semaphore { name, .. } => Held::Semaphore(name.clone()),
            Self::Election(name) => Held::Election(name.clone()),
        }
    }
}

impl Held {
    /// The records that the lease covers.
    pub(crate) fn scope(&self, keys: &Keys) -> Scope {
        match self {
            Self::Lock(name) => records([name], |name| keys.lock(name)),
            Self::Multilock(names) => {
                // One order for all, so that equal sets have one primary.
                let mut sorted: Vec<_> = names.iter().collect();
                sorted.sort_unstable();
                records(sorted, |name| keys.lock(name))
            }
            Self::Semaphore(name) => Scope::Slots(keys.semaphore(name).into()),
            Self::Election(name) => records([name], |name| keys.election(name)),
        }
    }
}

/// Counts the acquisition when it ends, also when its future is dropped.
struct Outcome {
    primitive: Primitive,
    started: Instant,
    outcome: Acquisition,
}

impl Drop for Outcome {
    fn drop(&mut self) {
        metrics().acquisition(self.primitive, self.outcome);
        if self.outcome == Acquisition::Granted {
            metrics().acquired_in(self.primitive, self.started.elapsed());
        }
    }
}

impl Service {
    /// Acquires a lease, waiting up to `options.wait_ms`.
    ///
    /// The result is undone unless [`Granted::deliver`] is called, and so is everything that
    /// was begun when this future is dropped.
    ///
    /// # Errors
    /// See [`ServiceError`].
    pub async fn acquire(&self, target: &Target, options: &AcquireOptions) -> Result<Granted, ServiceError> {
        let started = self.engine.clock().now();
        let primitive = target.primitive();
        let mut outcome = Outcome { primitive, started, outcome: Acquisition::Cancelled };
        let mut contender = Contender::new(self, target, options, started);
        let run = contender.run().await;
        let mut result = run.unwrap_or_else(|| Err(self.ended(primitive)));
        if let Ok(granted) = &mut result {
            let joined = granted.grant.is_joined();
            granted.booking = Some(self.ledger.granted(|| target.held(), primitive, &granted.lease, joined));
            if primitive == Primitive::Election {
                self.engine.publish(contender.channels());
            }
            self.watches.look_again(contender.channels());
        }
        outcome.outcome = match &result {
            Ok(_) => Acquisition::Granted,
            Err(ServiceError::Ended { .. }) => Acquisition::Cancelled,
            Err(ServiceError::Contended { waited: true, .. }) => Acquisition::Timeout,
            Err(ServiceError::Contended { .. }) => Acquisition::Held,
            Err(ServiceError::QuorumUnavailable { .. }) => Acquisition::NoQuorum,
            Err(_) => Acquisition::Rejected,
        };
        result
    }

    fn ended(&self, primitive: Primitive) -> ServiceError {
        let nodes = Nodes { granted: 0, held: 0, failed: 0, ..self.engine.tally() };
        ServiceError::Ended { primitive, retry_after_ms: retry_after(None), nodes }
    }

    /// Sets the remaining time of a held lease, to its own ttl without `ttl_ms`.
    ///
    /// # Errors
    /// [`ServiceError::LeaseLost`], [`ServiceError::HoldLimitReached`], [`ServiceError::QuorumUnavailable`].
    pub async fn extend(
        &self,
        held: &Held,
        handle: LeaseHandle,
        ttl_ms: Option<u64>,
    ) -> Result<Lease, ServiceError> {
        let renewal = ttl_ms.map_or(Renewal::Own, Renewal::Ttl);
        let renewed = self.renew(held, handle, renewal, None).await;
        count_extension(held.primitive(), &renewed);
        renewed
    }

    /// One round. Whoever asks counts: several may be one extension, and one may take too long.
    pub(crate) async fn renew(
        &self,
        held: &Held,
        handle: LeaseHandle,
        renewal: Renewal,
        note: Option<&Note>,
    ) -> Result<Lease, ServiceError> {
        let scope = held.scope(self.engine.keys());
        let data = note.map(write_note);
        let data = note.map(|note| note.version).zip(data.as_deref());
        match self.engine.extend(&scope, handle, renewal, data, false).await {
            Extension::Extended { stored, valid_until, nodes } => {
                let note = read_note(&stored.data, stored.version);
                let (ttl_ms, slots) = (stored.ttl_ms, stored.slots);
                self.ledger.extended(&handle.id, valid_until);
                Ok(Lease { handle, ttl_ms, valid_until, note, slots, waited_ms: 0, attempts: 1, nodes })
            }
            Extension::Lost(nodes) => {
                self.ledger.lost(held, handle);
                Err(ServiceError::LeaseLost { nodes })
            }
            Extension::AtLimit(nodes) => Err(ServiceError::HoldLimitReached { nodes }),
            Extension::NoQuorum(nodes) => Err(unavailable(nodes)),
        }
    }

    /// Gives a lease back. `false` where it is not held any more.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`]; the release goes on in the background.
    pub async fn release(&self, held: &Held, handle: LeaseHandle) -> Result<bool, ServiceError> {
        let scope = held.scope(self.engine.keys());
        self.released.add(handle.id);
        let released = self.engine.release(&scope, &handle.id).await;
        let released = count_release(held.primitive(), released).map_err(unavailable)?;
        if released {
            self.ledger.released(held, handle);
            self.count_held(held.primitive(), handle.token);
        }
        Ok(released)
    }

    /// Ends a request: its attempts at this server are told that it is not granted, its place in the queue goes,
    /// and the lease that it got, at whatever server, is given back. `false` where there was nothing to end.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`]: what waited here has ended all the same.
    pub async fn release_request(&self, held: &Held, request: &RequestId) -> Result<bool, ServiceError> {
        let scope = held.scope(self.engine.keys());
        let request = request_of(request, &scope);
        let ended = self.requests.end(&scope, &request).await;
        let released = Box::pin(self.release_leases_of(&scope, &request)).await;
        count_release(held.primitive(), released.map(|released| ended || released)).map_err(unavailable)
    }

    /// Gives back what the nodes say that the request has.
    async fn release_leases_of(&self, scope: &Scope, request: &str) -> Result<bool, Nodes> {
        let look = Ask {
            scope,
            // At any slot the nodes know the lease of a request.
            slots: &[0],
            mode: Mode::Exclusive,
            ttl_ms: 1,
            max_hold_ms: 0,
            lock_delay_ms: 0,
            request: Some(request),
            params: "-",
            data: "",
            look_only: true,
            limit: 1,
            standing: None,
        };
        let holdings = match self.engine.grant(&look, Order::Parallel).await {
            Round::Refused(refusal) => refusal.holdings,
            Round::NoQuorum(nodes) => return Err(nodes),
            // Who only looks is granted nothing.
            Round::Granted(_) => return Ok(false),
        };
        let mut leases: Vec<LeaseId> =
            holdings.iter().filter(|holding| holding.same_request).map(|holding| holding.lease).collect();
        leases.sort_unstable();
        leases.dedup();
        let mut released = false;
        for lease in leases {
            self.released.add(lease);
            if self.engine.release(scope, &lease).await? {
                self.ledger.ended(&lease);
                released = true;
            }
        }
        Ok(released)
    }

    /// Gives back what `grant` holds, unless an earlier attempt has it, too (§1.9).
    pub(crate) async fn release_grant(&self, primitive: Primitive, grant: &Grant, token: Token) {
        if let Ok(true) = count_release(primitive, grant.release().await) {
            self.count_held(primitive, token);
        }
    }

    /// Counts for how long a lease was held that is given back now.
    pub(crate) fn count_held(&self, primitive: Primitive, token: Token) {
        // A token is about the time of the grant in µs.
        let held_us = self.engine.clock().wall_us().saturating_sub(token.get());
        metrics().held(primitive, Duration::from_micros(held_us));
    }
}

/// Counts a release by how it ended.
pub(crate) fn count_release(primitive: Primitive, released: Result<bool, Nodes>) -> Result<bool, Nodes> {
    let outcome = match released {
        Ok(true) => Release::Released,
        Ok(false) => Release::NotHeld,
        Err(_) => Release::NoQuorum,
    };
    metrics().release(primitive, outcome);
    released
}

/// Counts an extension by how it ended.
pub(crate) fn count_extension(primitive: Primitive, extended: &Result<Lease, ServiceError>) {
    let outcome = match extended {
        Ok(_) => ExtensionOutcome::Extended,
        Err(ServiceError::LeaseLost { .. } | ServiceError::HoldLimitReached { .. }) => ExtensionOutcome::Lost,
        Err(_) => ExtensionOutcome::NoQuorum,
    };
    metrics().extension(primitive, outcome);
}
