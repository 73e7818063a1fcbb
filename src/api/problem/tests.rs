//! What problems look like to clients.

use super::*;
use crate::domain::{Candidate, Owner, Token, Value};
use crate::service::{Holder, Nodes, Note};

fn json(problem: &Problem) -> serde_json::Value {
    serde_json::from_slice(&problem.to_json("r-1")).unwrap()
}

fn contended(primitive: Primitive, holders: Vec<Holder>) -> ServiceError {
    let nodes = Nodes { total: 5, quorum: 3, granted: 2, held: 2, failed: 1 };
    ServiceError::Contended { primitive, holders, sharers: None, retry_after_ms: 1001, nodes, waited: false }
}

fn holder(slots: &[u32]) -> Holder {
    let note = Note {
        owner: Some(Owner::new("w").unwrap()),
        candidate: Some(Candidate::new("c").unwrap()),
        value: Some(Value::new("v").unwrap()),
        ..Note::default()
    };
    Holder { token: Token::new(7).unwrap(), remaining_ms: 40, note, slots: slots.to_vec() }
}

#[test]
fn every_problem_has_the_members_of_rfc_9457_and_a_code() {
    for &kind in Kind::ALL {
        let problem = json(&Problem::new(kind, "x"));
        for member in ["type", "title", "status", "detail", "code", "request_id"] {
            assert!(!problem[member].is_null(), "{kind:?} {member}");
        }
        assert_eq!(problem["type"], format!("/problems/{}", kind.code()));
        let comes_back = matches!(kind, Kind::TooManyWaiters | Kind::ShuttingDown | Kind::Overloaded);
        assert_eq!(problem.get("retry_after_ms").is_some(), comes_back, "{kind:?}");
        assert_eq!(problem.as_object().unwrap().len(), if comes_back { 7 } else { 6 }, "{kind:?}");
    }
}

#[test]
fn a_held_lock_names_its_holder_and_when_to_come_back() {
    let problem = Problem::from(contended(Primitive::Lock, vec![holder(&[])]));
    let response = problem.render("r-1");
    assert_eq!(response.status(), 409);
    assert_eq!(response.headers()[RETRY_AFTER], "2");
    assert_eq!(response.headers()[CONTENT_TYPE], MEDIA_TYPE);
    let shown = json(&problem);
    assert_eq!(shown["code"], "lock_held");
    assert_eq!(shown["holder"], serde_json::json!({"owner": "w", "fencing_token": 7, "remaining_ms": 40}));
    assert_eq!(shown["retry_after_ms"], 1001);
    assert_eq!(
        shown["nodes"],
        serde_json::json!({"total": 5, "quorum": 3, "granted": 2, "held": 2, "failed": 1})
    );
}

#[test]
fn a_holder_without_a_quorum_is_left_out() {
    let problem = Problem::from(contended(Primitive::Multilock, vec![]));
    assert_eq!(problem.kind(), Kind::LockHeld);
    assert!(json(&problem).get("holder").is_none());
}

#[test]
fn a_full_semaphore_lists_its_holders_with_their_slots() {
    let problem = json(&Problem::from(contended(Primitive::Semaphore, vec![holder(&[1, 2])])));
    assert_eq!(problem["code"], "semaphore_full");
    assert_eq!(
        problem["holders"],
        serde_json::json!([{"slots": [1, 2], "owner": "w", "fencing_token": 7, "remaining_ms": 40}])
    );
}

#[test]
fn a_lost_election_names_the_leader_by_candidate_and_term() {
    let problem = json(&Problem::from(contended(Primitive::Election, vec![holder(&[])])));
    assert_eq!(problem["code"], "election_lost");
    assert_eq!(
        problem["holder"],
        serde_json::json!({"candidate": "c", "value": "v", "term": 7, "remaining_ms": 40})
    );
}

#[test]
fn a_missing_quorum_is_503_and_never_looks_like_contention() {
    let nodes = Nodes { total: 3, quorum: 2, granted: 1, held: 0, failed: 2 };
    let problem = Problem::from(ServiceError::QuorumUnavailable { nodes, retry_after_ms: 10 });
    assert_eq!(problem.render("r").status(), 503);
    assert_eq!(problem.render("r").headers()[RETRY_AFTER], "1");
    assert_eq!(json(&problem)["code"], "quorum_unavailable");
}

#[test]
fn the_examples_have_the_same_members_as_real_problems() {
    let real = json(&Problem::from(contended(Primitive::Lock, vec![holder(&[])])));
    let shown = Kind::LockHeld.example();
    let keys = |value: &serde_json::Value| {
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(&real), keys(&shown));
}
