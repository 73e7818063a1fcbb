//! A contender over embedded nodes, in paused time.

use std::pin::pin;

use super::*;
use crate::domain::{Name, RequestId};
use crate::node::Script;
use crate::quorum::Round;
use crate::quorum::fixture::Api;
use crate::service::{Note, WaitLimits};

const MILLISECOND: Duration = Duration::from_millis(1);

/// All permits of a semaphore are asked for while each node has granted them to another contender; a
/// moment later these hear that they have lost.
async fn among_contenders(wait_ms: u64) -> (Result<Granted, ServiceError>, Duration) {
    let [api, other] = Api::pair().await;
    let service = service(&api);
    let name = Name::new("a").unwrap();
    let target = Target::Semaphore { name: name.clone(), limit: 2, permits: 2 };
    let scope = target.scope(api.engine.keys());
    let rounds =
        ["first", "second", "third"].map(|request| other.round_for(&scope, &[0, 1], Some(request), 30_000));
    let mut rounds = rounds.map(Box::pin);
    for (i, round) in rounds.iter_mut().enumerate() {
        other.nodes.iter().for_each(|node| node.hang());
        other.nodes[i].go_on_from_now();
        assert!(tokio::time::timeout(MILLISECOND, round).await.is_err());
    }
    let began = Instant::now();
    let options = options(wait_ms, None);
    let mut acquire = pin!(service.acquire(&target, &options));
    let early = tokio::time::timeout(MILLISECOND, &mut acquire).await;
    other.nodes.iter().for_each(|node| node.go_on());
    for round in rounds {
        assert!(matches!(round.await, Round::Refused(_)));
    }
    let result = match early {
        Ok(result) => result,
        Err(_) => acquire.await,
    };
    (result, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn what_only_contenders_take_of_a_semaphore_is_not_refused_as_held() {
    let (result, _) = among_contenders(0).await;
    assert!(result.is_ok(), "{:?}", result.err());
}

#[tokio::test(start_paused = true)]
async fn what_two_contenders_have_taken_is_not_refused_as_held_while_the_last_node_hangs() {
    let [api, other] = Api::pair().await;
    other.nodes[2].refuse(Some(Script::Acquire));
    let mut rounds = ["first", "second"].map(|request| Box::pin(other.round_of(Some(request), 30_000)));
    for (i, round) in rounds.iter_mut().enumerate() {
        other.nodes.iter().for_each(|node| node.hang());
        other.nodes[i].go_on_from_now();
        assert!(tokio::time::timeout(MILLISECOND, round).await.is_err());
    }
    api.nodes[2].hang();
    let (service, target) = (service(&api), Target::Lock(Name::new("a").unwrap()));
    let once = options(0, None);
    let mut acquire = pin!(service.acquire(&target, &once));
    let early = tokio::time::timeout(5 * MILLISECOND, &mut acquire).await;
    assert!(early.is_err(), "{:?}", early.map(|early| early.err()));
    other.nodes.iter().for_each(|node| node.go_on());
    for round in rounds {
        assert!(matches!(round.await, Round::Refused(_)));
    }
    let granted = acquire.await;
    assert!(granted.is_ok(), "{:?}", granted.err());
}

#[tokio::test(start_paused = true)]
async fn what_is_in_the_way_of_its_own_retry_is_held_to_all_others_who_wait() {
    let [api, other] = Api::pair().await;
    let Round::Granted(won) = other.round_of(Some("retried"), 30_000).await else { panic!("not granted") };
    won.grant.keep();
    let Round::Refused(refusal) = other.round_of(Some("retried"), 30_000).await else { panic!("granted") };
    assert!(refusal.holdings.iter().any(|holding| holding.same_request));
    let service = service(&api);
    let target = Target::Lock(Name::new("a").unwrap());
    let scope = target.scope(api.engine.keys());
    let visitor = Visitor::new(&target, &options(10, None));
    let wish = Wish { limit: 1, permits: 1, mode: Mode::Exclusive };
    let retry = service.rooms.enter(scope.channels(), wish, None, visitor).unwrap();
    retry.board().refused(&refusal);
    let options = options(10, None);
    let result = service.acquire(&target, &options).await;
    assert!(matches!(result, Err(ServiceError::Contended { .. })), "{:?}", result.err());
}

/// Remains of two earlier attempts of its request are in the way of the first round.
#[tokio::test(start_paused = true)]
async fn who_is_no_longer_first_asks_no_further_round() {
    let [api, other] = Api::pair().await;
    let (service, target) = (service(&api), Target::Lock(Name::new("a").unwrap()));
    let options = options(10_000, Some("retried:1"));
    let mut contender = Contender::new(&service, &target, &options, Instant::now());
    let request = contender.request.as_deref().map(str::to_owned);
    let mut remains = [(); 2].map(|()| Box::pin(other.round_of(request.as_deref(), 30_000)));
    for (i, round) in remains.iter_mut().enumerate() {
        other.nodes.iter().for_each(|node| node.hang());
        other.nodes[i].go_on_from_now();
        assert!(tokio::time::timeout(MILLISECOND, round).await.is_err());
    }
    let enter = |place| {
        let visitor = Visitor::new(&target, &options);
        service.rooms.enter(contender.scope.channels(), contender.wish, place, visitor).unwrap()
    };
    let place = enter(None).place();
    let ticket = enter(None);
    let earlier = enter(Some(place));
    contender.seated = true;
    assert!(matches!(contender.attempt(false, Some(&ticket)).await, Try::Split(_)));
    assert_eq!(contender.attempts, 1);
    drop(earlier);
    assert!(matches!(contender.attempt(false, Some(&ticket)).await, Try::Granted(_)));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_among_contenders_does_not_sleep_on_what_they_give_up() {
    let (result, took) = among_contenders(10_000).await;
    assert!(result.is_ok() && took < 200 * MILLISECOND, "{took:?} {:?}", result.err());
}

fn options(wait_ms: u64, request: Option<&str>) -> AcquireOptions {
    let request = request.map(|id| RequestId::new(id).unwrap());
    AcquireOptions { ttl_ms: 30_000, wait_ms, note: Note::default(), request }
}

fn service(api: &Api) -> Service {
    Service::new(Arc::clone(&api.engine), WaitLimits { waiters_max: 10, waiters_per_name_max: 10 })
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_behind_others_is_told_of_a_quorum_that_is_not_there_and_not_of_a_holder() {
    let [api, other] = Api::pair().await;
    other.acquire().await;
    let (service, target) = (service(&api), Target::Lock(Name::new("a").unwrap()));
    let (longer, shorter) = (options(20_000, None), options(10_000, None));
    let (first, second, ()) = tokio::join!(
        service.acquire(&target, &longer),
        async {
            tokio::time::sleep(MILLISECOND).await;
            service.acquire(&target, &shorter).await
        },
        async {
            tokio::time::sleep(100 * MILLISECOND).await;
            api.nodes[..2].iter().for_each(|node| node.refuse(Some(Script::Acquire)));
        }
    );
    for result in [first, second] {
        assert!(matches!(result, Err(ServiceError::QuorumUnavailable { .. })), "{:?}", result.err());
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_behind_others_after_a_hand_over_is_told_of_the_new_holder() {
    let [api, other] = Api::pair().await;
    let before = other.acquire().await;
    let (service, target) = (service(&api), Target::Lock(Name::new("a").unwrap()));
    let (next, waits, gives_up) = (options(20_000, None), options(10_000, None), options(500, None));
    let behind = |millis, options| {
        let (service, target) = (&service, &target);
        async move {
            tokio::time::sleep(millis * MILLISECOND).await;
            service.acquire(target, options).await
        }
    };
    let (first, second, third, released) =
        tokio::join!(service.acquire(&target, &next), behind(1, &waits), behind(2, &gives_up), async {
            tokio::time::sleep(100 * MILLISECOND).await;
            other.release(&before).await
        });
    let token = first.unwrap_or_else(|why| panic!("{why:?}")).lease.handle.token;
    let named = |result: Result<Granted, ServiceError>| match result {
        Err(ServiceError::Contended { holders, .. }) => holders.into_iter().map(|h| h.token).collect(),
        _ => Vec::new(),
    };
    assert!(released && named(third) == [token] && named(second) == [token]);
}

#[tokio::test(start_paused = true)]
async fn what_a_client_that_leaves_gives_back_goes_to_who_waits_here_also_without_hints() {
    let [api, _] = Api::pair().await;
    api.nodes.iter().for_each(|node| node.mute(true));
    let (service, target) = (service(&api), Target::Lock(Name::new("a").unwrap()));
    let (once, waits) = (options(0, None), options(10_000, None));
    let held = service.acquire(&target, &once).await.unwrap_or_else(|why| panic!("{why:?}"));
    let began = Instant::now();
    let (next, ()) = tokio::join!(service.acquire(&target, &waits), async {
        tokio::time::sleep(100 * MILLISECOND).await;
        drop(held);
    });
    assert!(next.is_ok(), "{:?}", next.err());
    assert!(began.elapsed() < 200 * MILLISECOND, "{:?}", began.elapsed());
    drop(next);
    assert!(api.engine.is_settled());
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_waits_behind_others_gets_what_its_earlier_attempt_was_granted_elsewhere() {
    let [api, other] = Api::pair().await;
    let before = other.acquire().await;
    let (here, there) = (service(&api), service(&other));
    let target = Target::Lock(Name::new("a").unwrap());
    let (waits, retry, once) =
        (options(10_000, None), options(5_000, Some("retried:1")), options(0, Some("retried:1")));
    let (first, retried, lease) = tokio::join!(
        here.acquire(&target, &waits),
        async {
            tokio::time::sleep(MILLISECOND).await;
            here.acquire(&target, &retry).await
        },
        async {
            tokio::time::sleep(100 * MILLISECOND).await;
            api.nodes.iter().for_each(|node| node.hang_with(Script::Acquire));
            assert!(other.release(&before).await);
            let granted = there.acquire(&target, &once).await.unwrap_or_else(|why| panic!("{why:?}"));
            api.nodes.iter().for_each(|node| node.go_on());
            let lease = granted.lease.handle;
            granted.deliver();
            lease
        }
    );
    assert_eq!(retried.map(|granted| granted.lease.handle.token).ok(), Some(lease.token));
    assert!(matches!(first, Err(ServiceError::Contended { .. })), "{:?}", first.err());
}

#[tokio::test(start_paused = true)]
async fn a_release_comes_before_a_later_acquire_of_the_same_request() {
    let [api, _] = Api::pair().await;
    let (service, target) = (service(&api), Target::Lock(Name::new("a").unwrap()));
    let once = options(0, Some("request:1"));
    let first = service.acquire(&target, &once).await.unwrap_or_else(|why| panic!("{why:?}")).deliver();
    // The acquire has found the lease when the release comes.
    api.nodes.iter().for_each(|node| node.hang_with(Script::Extend));
    let mut acquire = pin!(service.acquire(&target, &once));
    assert!(tokio::time::timeout(MILLISECOND, &mut acquire).await.is_err());
    let held = target.held();
    let (released, next) = tokio::join!(service.release(&held, first.handle), async {
        api.nodes.iter().for_each(|node| node.go_on());
        acquire.await
    });
    let next = next.unwrap_or_else(|why| panic!("{why:?}")).deliver();
    assert!(released.unwrap() && next.handle.token > first.handle.token);
    assert!(service.extend(&held, next.handle, None).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_request_id_stands_for_its_parameters() {
    let [api, _] = Api::pair().await;
    let service = service(&api);
    let target = |limit, permits| Target::Semaphore { name: Name::new("a").unwrap(), limit, permits };
    let once = options(0, Some("request:1"));
    let first = service.acquire(&target(5, 1), &once).await.unwrap_or_else(|why| panic!("{why:?}")).deliver();
    for (limit, permits, differs) in [(5, 2, vec!["permits"]), (4, 1, vec!["limit"]), (1, 1, vec!["limit"])] {
        match service.acquire(&target(limit, permits), &once).await {
            Err(ServiceError::RequestIdReused { parameters }) => assert_eq!(parameters, differs),
            other => panic!("{:?}", other.map(|granted| granted.lease.handle)),
        }
    }
    let again = service.acquire(&target(5, 1), &once).await.unwrap_or_else(|why| panic!("{why:?}")).deliver();
    assert_eq!(again.handle, first.handle);
}
