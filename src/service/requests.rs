//! Requests that have an id: those under way here, which a release can end, and the place in the queue that
//! outlives each of them for a while.
//!
//! A release by request id first ends the attempts of the request at this server, and goes on once their undo is
//! on its way to the nodes. Then it asks the nodes for the lease of the request, and gives that back. So at one
//! server the order of arrival counts: a release ends the acquire before it, and not the one after it.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::waiting::Place;
use crate::clock::Clock;
use crate::domain::{RequestId, Scope, digest_of_set};

/// How long a place waits for the next request with its id.
const PLACE_KEPT: Duration = Duration::from_secs(10);

/// The record or index that the request asks for first, and its id as it is stored.
type Key = (Arc<str>, Arc<str>);

/// All requests with an id that this server knows.
pub(crate) struct Requests {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    known: HashMap<Key, Known>,
    /// Places without a request under way, by when each is given up.
    left: BTreeSet<(Instant, Key)>,
    /// How many of these may be kept; the next one takes the room of the oldest.
    left_max: usize,
}

struct Known {
    /// Says true once a release ends the request. Each attempt under way has a receiver.
    end: watch::Sender<bool>,
    place: Option<Place>,
    /// Until when the place is kept, where no attempt is under way.
    kept_until: Option<Instant>,
}

/// An attempt of a request, until this is dropped. Then its place is kept for the next attempt.
pub(crate) struct Attempt {
    requests: Arc<Requests>,
    key: Key,
    end: watch::Receiver<bool>,
}

/// The request id as it is stored. Of several records it says of which: the same id for another set of
/// names, or for one of them, is another request, whose lease is not this one's to take over or undo.
pub(crate) fn request_of<'a>(request: &'a RequestId, scope: &Scope) -> Cow<'a, str> {
    match scope.channels() {
        [_] => request.as_str().into(),
        many => {
            let set = digest_of_set(many.iter().map(|key| &**key));
            // A slash is in no request id.
            format!("{}/{}", request.as_str(), hex::encode(&set[..16])).into()
        }
    }
}

fn key_of(scope: &Scope, request: &str) -> Key {
    let first = scope.channels().first().cloned().unwrap_or_else(|| "".into());
    (first, request.into())
}

impl State {
    /// Nobody comes back to the place of this key any more.
    fn forget(&mut self, key: &Key) -> Option<Known> {
        let known = self.known.remove(key)?;
        if let Some(until) = known.kept_until {
            self.left.remove(&(until, key.clone()));
        }
        Some(known)
    }

    /// Gives up the places that are over, and the oldest of too many.
    fn sweep(&mut self, now: Instant) {
        while (self.left.first().is_some_and(|(until, _)| *until <= now) || self.left.len() > self.left_max)
            && let Some((_, key)) = self.left.pop_first()
        {
            self.known.remove(&key);
        }
    }
}

impl Requests {
    pub(crate) fn new(clock: Arc<dyn Clock>, left_max: usize) -> Arc<Self> {
        let state = State { known: HashMap::new(), left: BTreeSet::new(), left_max };
        Arc::new(Self { clock, state: Mutex::new(state) })
    }

    /// An attempt begins.
    pub(crate) fn begin(self: &Arc<Self>, scope: &Scope, request: &str) -> Attempt {
        let key = key_of(scope, request);
        let mut state = self.state.lock();
        state.sweep(self.clock.now());
        let known = state.known.entry(key.clone()).or_insert_with(|| Known {
            end: watch::Sender::new(false),
            place: None,
            kept_until: None,
        });
        let end = known.end.subscribe();
        if let Some(until) = known.kept_until.take() {
            state.left.remove(&(until, key.clone()));
        }
        Attempt { requests: Arc::clone(self), key, end }
    }

    /// Ends all attempts of a request, and gives up its place. Resolves once they are gone, with whether there
    /// were any.
    pub(crate) async fn end(&self, scope: &Scope, request: &str) -> bool {
        let (end, ended) = {
            let mut state = self.state.lock();
            let Some(Known { end, .. }) = state.forget(&key_of(scope, request)) else { return false };
            let ended = end.send(true).is_ok();
            (end, ended)
        };
        end.closed().await;
        ended
    }

    /// Gives up the places that are over. To be called every second.
    pub(crate) fn sweep(&self) {
        self.state.lock().sweep(self.clock.now());
    }

    /// Gives up all places, and keeps none any more.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.left_max = 0;
        state.sweep(self.clock.now());
    }
}

impl Attempt {
    /// The place of the request, where it has one.
    pub(crate) fn place(&self) -> Option<Place> {
        self.requests.state.lock().known.get(&self.key)?.place
    }

    /// The request has this place now.
    pub(crate) fn seated(&self, place: Place) {
        if let Some(known) = self.requests.state.lock().known.get_mut(&self.key) {
            known.place = Some(place);
        }
    }

    /// It is granted, and needs its place no more. False where a release came before.
    pub(crate) fn granted(&self) -> bool {
        let mut state = self.requests.state.lock();
        if *self.end.borrow() {
            return false;
        }
        if let Some(known) = state.known.get_mut(&self.key) {
            known.place = None;
        }
        true
    }

    /// Resolves once a release ends it.
    pub(crate) async fn ended(&self) {
        // The sender goes only after it has said so.
        let _ = self.end.clone().wait_for(|ended| *ended).await;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut state = self.requests.state.lock();
        if *self.end.borrow() {
            return;
        }
        let now = self.requests.clock.now();
        let Some(known) = state.known.get_mut(&self.key) else { return };
        if known.end.receiver_count() > 1 {
            return;
        }
        if known.place.is_none() {
            state.known.remove(&self.key);
            return;
        }
        let until = now + PLACE_KEPT;
        known.kept_until = Some(until);
        state.left.insert((until, self.key.clone()));
        state.sweep(now);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::domain::Name;
    use crate::quorum::fixture::Api;
    use crate::service::{AcquireOptions, Granted, Note, Service, ServiceError, Target, WaitLimits};

    const SECOND: Duration = Duration::from_secs(1);

    /// A service whose only lock is held by somebody else.
    async fn contended() -> (Service, Target) {
        let [api, other] = Api::pair().await;
        other.acquire().await;
        let limits = WaitLimits { waiters_max: 2, waiters_per_name_max: 2 };
        (Service::new(Arc::clone(&api.engine), limits), Target::Lock(Name::new("a").unwrap()))
    }

    fn options(wait_ms: u64, request: &str) -> AcquireOptions {
        let request = RequestId::new(request).ok();
        AcquireOptions { ttl_ms: 30_000, wait_ms, note: Note::default(), request }
    }

    async fn place(service: &Service, target: &Target, request: &str) -> Option<Place> {
        service.requests.begin(&target.scope(service.engine.keys()), request).place()
    }

    async fn wait_in_vain(service: &Service, target: &Target, request: &str) {
        let refused = service.acquire(target, &options(100, request)).await.map(Granted::deliver);
        assert!(matches!(refused, Err(ServiceError::Contended { waited: true, .. })), "{refused:?}");
    }

    fn is_empty(service: &Service) -> bool {
        let state = service.requests.state.lock();
        state.known.is_empty() && state.left.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_outlives_its_request_for_ten_seconds() {
        let (service, target) = contended().await;
        wait_in_vain(&service, &target, "request:1").await;
        tokio::time::sleep(9 * SECOND).await;
        service.sweep();
        let first = place(&service, &target, "request:1").await.map(|place| format!("{place:?}"));
        assert!(first.is_some());
        tokio::time::sleep(9 * SECOND).await;
        wait_in_vain(&service, &target, "request:1").await;
        assert_eq!(place(&service, &target, "request:1").await.map(|place| format!("{place:?}")), first);
        tokio::time::sleep(10 * SECOND).await;
        service.sweep();
        assert!(is_empty(&service));
    }

    #[tokio::test(start_paused = true)]
    async fn of_more_places_than_waiters_the_oldest_go_and_a_drain_takes_all() {
        let (service, target) = contended().await;
        for request in ["request:1", "request:2", "request:3"] {
            wait_in_vain(&service, &target, request).await;
            tokio::time::sleep(SECOND).await;
        }
        assert!(place(&service, &target, "request:1").await.is_none());
        assert!(place(&service, &target, "request:2").await.is_some());
        assert!(place(&service, &target, "request:3").await.is_some());
        service.drain();
        assert!(is_empty(&service));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_does_not_wait_leaves_nothing_to_remember() {
        let (service, target) = contended().await;
        assert!(service.acquire(&target, &options(0, "request:1")).await.is_err());
        assert!(is_empty(&service));
        assert!(
            service.acquire(&Target::Lock(Name::new("b").unwrap()), &options(9, "request:1")).await.is_ok()
        );
        assert!(is_empty(&service));
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_ends_the_wait_of_each_attempt_and_its_place() {
        let (service, target) = contended().await;
        let options = options(60_000, "request:1");
        let (mut first, mut second) =
            (Box::pin(service.acquire(&target, &options)), Box::pin(service.acquire(&target, &options)));
        assert!(tokio::time::timeout(SECOND, first.as_mut()).await.is_err());
        assert!(tokio::time::timeout(SECOND, second.as_mut()).await.is_err());
        let request = RequestId::new("request:1").unwrap();
        let held = target.held();
        let mut release = Box::pin(service.release_request(&held, &request));
        assert!(release.as_mut().now_or_never().is_none(), "the attempts are there still");
        for attempt in [first, second] {
            let refused = attempt.await.map(Granted::deliver);
            assert!(matches!(refused, Err(ServiceError::Ended { .. })), "{refused:?}");
        }
        assert!(matches!(release.await, Ok(true)));
        assert!(is_empty(&service) && service.rooms.waiting("quorate:lock:a") == 0);
        assert!(matches!(service.release_request(&held, &request).await, Ok(false)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_granted_and_not_told_yet_is_given_back() {
        let [api, _] = Api::pair().await;
        let limits = WaitLimits { waiters_max: 2, waiters_per_name_max: 2 };
        let service = Service::new(Arc::clone(&api.engine), limits);
        let (target, request) = (Target::Lock(Name::new("a").unwrap()), RequestId::new("request:1").unwrap());
        let granted = service.acquire(&target, &options(0, "request:1")).await.ok().unwrap();
        assert!(matches!(service.release_request(&target.held(), &request).await, Ok(true)));
        assert_eq!(api.holders(&granted.lease.handle), [false; 3]);
        // The next one of the same id is another request.
        let again = service.acquire(&target, &options(0, "request:1")).await.ok().unwrap();
        assert!(again.lease.handle.token > granted.lease.handle.token);
    }
}
