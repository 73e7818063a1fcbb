//! Holding: a lease bound to a stream. Dropping the stream gives the lease back.
//!
//! The stream is pulled by whoever writes it to the client, so that a held lease costs
//! no task, and a client that is gone takes its lease with it.

use std::time::Duration;

use futures_util::Stream;

use super::leases::count_extension;
use super::ledger::Booking;
use super::{AcquireOptions, Granted, Held, Lease, Primitive, Service, ServiceError, Target, unavailable};
use crate::domain::{Renewal, Token};
use crate::telemetry::{Release, metrics};

/// What happens to a held lease.
#[derive(Debug)]
pub enum HoldEvent {
    /// In the queue, at this place (1 = next).
    Waiting {
        /// The place.
        position: usize,
    },
    /// Granted.
    Acquired(Lease),
    /// Not granted; the end.
    Denied(ServiceError),
    /// Extended.
    Extended(Lease),
    /// Not held any more; the end.
    Lost(ServiceError),
    /// Given back because the server drains; the end.
    Released {
        /// Why.
        reason: &'static str,
    },
}

/// Counts the release of a lease whose stream is dropped: what it holds is given back then.
struct Ended {
    service: Service,
    primitive: Primitive,
    token: Token,
    counts: bool,
    /// Ends with the stream, as the lease does.
    booking: Option<Booking>,
}

impl Ended {
    /// The lease has run out: nothing is given back.
    fn ran_out(&mut self) {
        self.counts = false;
        self.booking.take().into_iter().for_each(Booking::keep);
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if self.counts {
            metrics().release(self.primitive, Release::Released);
            self.service.count_held(self.primitive, self.token);
        }
    }
}

impl Service {
    /// Waits for a lease, then holds it.
    pub fn hold(
        &self,
        target: Target,
        options: AcquireOptions,
    ) -> impl Stream<Item = HoldEvent> + Send + 'static {
        let service = self.clone();
        async_stream::stream! {
            let held = target.held();
            yield HoldEvent::Waiting { position: service.waiting(&held) + 1 };
            // Boxed, since a stream that holds has no use for the room that waiting takes.
            match Box::pin(service.acquire(&target, &options)).await {
                Err(why) => yield HoldEvent::Denied(why),
                Ok(granted) => {
                    for await event in service.hold_granted(held, granted) {
                        yield event;
                    }
                }
            }
        }
    }

    /// Holds a lease: extends it at a third of its ttl, tells when it is lost.
    pub fn hold_granted(
        &self,
        held: Held,
        granted: Granted,
    ) -> impl Stream<Item = HoldEvent> + Send + 'static {
        let service = self.clone();
        async_stream::stream! {
            let Granted { lease, mut grant, booking } = granted;
            let handle = lease.handle;
            let (primitive, token) = (held.primitive(), handle.token);
            let counts = !grant.is_joined();
            let mut ended = Ended { service: service.clone(), primitive, token, counts, booking };
            let mut ttl_ms = lease.ttl_ms;
            let mut valid_until = lease.valid_until;
            let mut at_limit = None;
            let mut stood_still = service.engine.stood_still();
            let mut next = service.engine.clock().now() + Duration::from_millis(ttl_ms / 3);
            yield HoldEvent::Acquired(lease);
            loop {
                let drained = tokio::select! {
                    biased;
                    () = service.rooms.closing() => true,
                    () = tokio::time::sleep_until(next.min(valid_until)) => false,
                };
                if drained {
                    ended.counts = false;
                    Box::pin(service.release_grant(primitive, &grant, token)).await;
                    // What a node does not confirm is tried again all the same.
                    grant.keep();
                    yield HoldEvent::Released { reason: "shutting_down" };
                    return;
                }
                if let Some(why) = at_limit {
                    ended.ran_out();
                    yield HoldEvent::Lost(why);
                    return;
                }
                // The nodes counted on while this server stood still.
                let before = std::mem::replace(&mut stood_still, service.engine.stood_still());
                valid_until = valid_until.checked_sub(stood_still - before).unwrap_or(next);
                let renewal = Box::pin(service.renew(&held, handle, Renewal::Own, None));
                let renewed = tokio::time::timeout_at(valid_until, renewal).await;
                let renewed = renewed.unwrap_or_else(|_| Err(unavailable(service.engine.tally())));
                count_extension(primitive, &renewed);
                match renewed {
                    Ok(lease) => {
                        ttl_ms = lease.ttl_ms;
                        valid_until = lease.valid_until;
                        next = service.engine.clock().now() + Duration::from_millis(ttl_ms / 3);
                        grant.extended(ttl_ms);
                        yield HoldEvent::Extended(lease);
                    }
                    // It is valid to its end, and no extension reaches any further.
                    Err(why @ ServiceError::HoldLimitReached { .. }) => {
                        next = valid_until;
                        at_limit = Some(why);
                    }
                    Err(why @ ServiceError::LeaseLost { .. }) => {
                        ended.counts = false;
                        yield HoldEvent::Lost(why);
                        return;
                    }
                    // It may still be valid: try again while it is.
                    Err(_) if service.engine.clock().now() < valid_until => {
                        let pause = Duration::from_millis((ttl_ms / 20).clamp(10, 500));
                        next = service.engine.clock().now() + pause;
                    }
                    Err(_) => {
                        ended.ran_out();
                        yield HoldEvent::Lost(ServiceError::LeaseLost { nodes: service.engine.tally() });
                        return;
                    }
                }
            }
        }
    }

    /// How many wait for this on this API server.
    pub fn waiting(&self, held: &Held) -> usize {
        let scope = held.scope(self.engine.keys());
        scope.channels().iter().map(|key| self.rooms.waiting(key)).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;

    use futures_util::StreamExt as _;
    use futures_util::stream::BoxStream;

    use super::*;
    use crate::domain::{LeaseHandle, Name, RequestId};
    use crate::node::Script;
    use crate::quorum::fixture::Api;
    use crate::service::{Note, WaitLimits};

    fn service(api: &Api) -> Service {
        Service::new(Arc::clone(&api.engine), WaitLimits { waiters_max: 1, waiters_per_name_max: 1 })
    }

    #[tokio::test(start_paused = true)]
    async fn an_extension_that_nobody_answers_while_the_lease_is_valid_is_counted() {
        let [api, _] = Api::pair().await;
        let service = service(&api);
        let target = Target::Multilock(["a", "b"].map(|name| Name::new(name).unwrap()).into());
        let options = AcquireOptions { ttl_ms: 1000, wait_ms: 0, note: Note::default(), request: None };
        let counted = || {
            let series = r#"quorate_extensions_total{primitive="multilock",outcome="no_quorum"} "#;
            let text = metrics().render();
            text.lines().find_map(|line| line.strip_prefix(series)?.parse::<u64>().ok()).unwrap()
        };
        let before = counted();
        let mut held = pin!(service.hold(target, options));
        assert!(matches!(held.next().await, Some(HoldEvent::Waiting { .. })));
        assert!(matches!(held.next().await, Some(HoldEvent::Acquired(_))));
        api.nodes.iter().for_each(|node| node.hang_with(Script::Extend));
        assert!(matches!(held.next().await, Some(HoldEvent::Lost(_))));
        assert_eq!(counted(), before + 1);
    }

    /// A stream of one attempt of the same request at this server, and the lease that it got.
    async fn attempt(api: &Api) -> (BoxStream<'static, HoldEvent>, LeaseHandle) {
        let request = RequestId::new("retried:1").ok();
        let options = AcquireOptions { ttl_ms: 30_000, wait_ms: 0, note: Note::default(), request };
        let mut stream = service(api).hold(Target::Lock(Name::new("a").unwrap()), options).boxed();
        assert!(matches!(stream.next().await, Some(HoldEvent::Waiting { .. })));
        match stream.next().await {
            Some(HoldEvent::Acquired(lease)) => (stream, lease.handle),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_several_attempts_have_nobody_gives_back_by_leaving() {
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0], [2, 0, 1]] {
            let [api, other] = Api::pair().await;
            let (first, lease) = attempt(&api).await;
            let (second, third) = (attempt(&other).await.0, attempt(&api).await.0);
            let mut streams = [Some(first), Some(second), Some(third)];
            for i in order {
                streams[i] = None;
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert_eq!(api.holders(&lease), [true; 3], "{order:?} {i}");
            }
            assert!(api.release(&lease).await, "whoever says so does");
            assert_eq!(api.holders(&lease), [false; 3]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_leaves_before_it_is_answered_takes_nothing_from_the_first() {
        let [api, other] = Api::pair().await;
        let (first, lease) = attempt(&api).await;
        other.nodes.iter().for_each(|node| node.hang_with(Script::Extend));
        assert!(tokio::time::timeout(Duration::from_millis(1), attempt(&other)).await.is_err());
        other.nodes.iter().for_each(|node| node.go_on());
        assert_eq!(api.holders(&lease), [true; 3]);
        drop(first);
        assert_eq!(api.holders(&lease), [true; 3], "the retry may have been answered, as far as nodes know");
    }

    /// The retry's server did not reach a node, which an extension tells later.
    #[tokio::test(start_paused = true)]
    async fn a_node_that_missed_that_a_lease_was_joined_learns_it_by_the_next_extension() {
        let [api, other] = Api::pair().await;
        let (first, lease) = attempt(&api).await;
        other.nodes[0].refuse(Some(Script::Extend));
        let (second, _) = attempt(&other).await;
        api.extend(lease).await;
        drop(first);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(api.holders(&lease), [true; 3]);
        drop(second);
    }
}
