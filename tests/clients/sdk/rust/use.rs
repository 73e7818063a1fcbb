//! The client that openapi-generator makes for Rust, at work.

use quorate_client::apis::configuration::Configuration;
use quorate_client::apis::{Error, elections_api, locks_api, multilocks_api, semaphores_api, service_api};
use quorate_client::models::{
    AcquireLock, AcquireMultilock, AcquireSemaphore, Campaign, Extend, Problem, Proclaim, Release, ReleaseMultilock,
};

/// The problem that a call is refused with.
fn refusal<T: std::fmt::Debug, E: std::fmt::Debug>(answer: Result<T, Error<E>>, code: &str) -> Problem {
    match answer {
        Err(Error::ResponseError(refused)) => {
            let problem: Problem = serde_json::from_str(&refused.content).expect("a problem");
            assert_eq!(problem.code, code);
            assert_eq!(problem.status, i32::from(refused.status.as_u16()));
            assert!(refused.entity.is_some(), "the client knows this status");
            problem
        }
        other => panic!("not refused as {code}: {other:?}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = Configuration {
        base_path: std::env::var("QUORATE_SERVER").expect("QUORATE_SERVER"),
        bearer_access_token: std::env::var("QUORATE_API_KEY").ok(),
        ..Configuration::new()
    };
    let name = format!("sdk:rust:{}", std::process::id());
    let name = name.as_str();

    let ask = AcquireLock { owner: Some("first".into()), ttl_ms: Some(10_000), ..AcquireLock::new() };
    let lease = locks_api::acquire_lock(&server, name, Some(ask)).await.expect("a lease");
    assert_eq!(lease.owner.as_deref(), Some("first"));
    let problem = refusal(locks_api::acquire_lock(&server, name, Some(AcquireLock::new())).await, "lock_held");
    let holder = problem.holder.expect("a holder");
    assert_eq!((holder.owner.as_deref(), holder.fencing_token), (Some("first"), Some(lease.fencing_token)));
    assert_eq!(problem.nodes.expect("a tally").total, 3);
    let wrong = AcquireLock { ttl_ms: Some(1_000_000_000), ..AcquireLock::new() };
    let problem = refusal(locks_api::acquire_lock(&server, name, Some(wrong)).await, "invalid_request");
    assert_eq!(problem.errors.expect("what was wrong")[0].field, "ttl_ms");
    let extend = || Extend { ttl_ms: Some(20_000), ..Extend::new(lease.lease_id.clone()) };
    let extended = locks_api::extend_lock(&server, name, extend()).await.expect("an extension");
    assert!(extended.validity_ms > 10_000);
    let release = Release { lease_id: Some(lease.lease_id.clone()), ..Release::new() };
    assert!(locks_api::release_lock(&server, name, release).await.expect("a release").released);
    refusal(locks_api::extend_lock(&server, name, extend()).await, "lease_lost");

    let names = vec![name.to_owned(), format!("{name}:b")];
    let ask = AcquireMultilock::new(names.clone());
    let several = multilocks_api::acquire_multilock(&server, ask).await.expect("several");
    assert!(several.fencing_tokens[name] > lease.fencing_token);
    let release = ReleaseMultilock { lease_id: Some(several.lease_id), ..ReleaseMultilock::new(names) };
    assert!(multilocks_api::release_multilock(&server, release).await.expect("a release").released);

    let two = || AcquireSemaphore { permits: Some(2), ..AcquireSemaphore::new(3) };
    let permits = semaphores_api::acquire_semaphore(&server, name, two()).await.expect("permits");
    assert_eq!(permits.slots.len(), 2);
    let problem = refusal(semaphores_api::acquire_semaphore(&server, name, two()).await, "semaphore_full");
    assert_eq!(problem.holders.expect("holders")[0].slots.as_ref().map(Vec::len), Some(2));
    let release = Release { lease_id: Some(permits.lease_id), ..Release::new() };
    assert!(semaphores_api::release_semaphore(&server, name, release).await.expect("a release").released);

    let campaign = |candidate: &str| Campaign::new(candidate.to_owned());
    let leadership = elections_api::campaign(&server, name, campaign("host-1")).await.expect("leadership");
    let problem = refusal(elections_api::campaign(&server, name, campaign("host-2")).await, "election_lost");
    assert_eq!(problem.holder.expect("a leader").candidate.as_deref(), Some("host-1"));
    let proclaim = Proclaim::new(leadership.lease_id.clone(), "10.0.0.1".to_owned());
    elections_api::proclaim(&server, name, proclaim).await.expect("proclaimed");
    let state = elections_api::get_leader(&server, name, None, None).await.expect("a state");
    assert_eq!((state.leader.as_deref(), state.value.as_deref()), (Some("host-1"), Some("10.0.0.1")));
    assert_eq!(state.term, Some(leadership.term));
    let resign = Release { lease_id: Some(leadership.lease_id), ..Release::new() };
    assert!(elections_api::resign(&server, name, resign).await.expect("resigned").released);
    let state = elections_api::get_leader(&server, name, Some(&state.revision), Some(1000)).await.expect("a state");
    assert_eq!(state.leader, None);

    assert_eq!(service_api::list_nodes(&server).await.expect("nodes").nodes.len(), 3);
    println!("ok");
}
