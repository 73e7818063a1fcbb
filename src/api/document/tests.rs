//! What must hold of the OpenAPI document.

use std::collections::BTreeSet;

use super::super::batches::ManyLeases;
use super::super::elections::{self, Campaign, Proclaim};
use super::super::fencing::CheckToken;
use super::super::fields;
use super::super::leases::{Extend, Release};
use super::super::locks::{self, AcquireLock};
use super::super::multilocks::{self, AcquireMultilock, ExtendMultilock, ReleaseMultilock};
use super::super::problem::Problem;
use super::super::request::Asked;
use super::super::router::{self, openapi_3_0_json, openapi_json};
use super::super::semaphores::{self, AcquireSemaphore};
use super::*;
use crate::domain::{self, Candidate, LeaseHandle, LeaseId, Name, Owner, Token};
use crate::service::{Lease, Nodes, Note};

fn document() -> Value {
    finish(router::routes().into_openapi(), &Limits::default())
}

fn operations(document: &Value) -> Vec<(String, &Value)> {
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            operations.push((format!("{method} {path}"), operation));
        }
    }
    operations
}

#[test]
fn the_committed_documents_are_the_generated_ones() {
    let committed = |name: &str| {
        let path = format!("{}/openapi/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap_or_default()
    };
    assert!(
        committed("quorate-v1.json") == openapi_json(),
        "run: cargo run -- openapi > openapi/quorate-v1.json"
    );
    assert!(
        committed("quorate-v1-3.0.json") == openapi_3_0_json(),
        "run: cargo run -- openapi --version 3.0 > openapi/quorate-v1-3.0.json"
    );
}

#[test]
fn every_operation_of_the_contract_is_there_under_its_name() {
    let document = document();
    let ids: BTreeSet<_> = operations(&document)
        .iter()
        .map(|(_, operation)| operation["operationId"].as_str().unwrap())
        .collect();
    let contract = [
        "acquireLock",
        "extendLock",
        "releaseLock",
        "getLock",
        "listLocks",
        "observeLock",
        "forceReleaseLock",
        "holdLock",
        "acquireMultilock",
        "extendMultilock",
        "releaseMultilock",
        "acquireSemaphore",
        "extendSemaphore",
        "releaseSemaphore",
        "getSemaphore",
        "listSemaphores",
        "observeSemaphore",
        "forceReleaseSemaphore",
        "holdSemaphore",
        "campaign",
        "extendElection",
        "resign",
        "proclaim",
        "getLeader",
        "observeElection",
        "listElections",
        "forceResign",
        "holdElection",
        "issueToken",
        "checkToken",
        "getFence",
        "extendLeases",
        "releaseLeases",
        "listMembers",
        "addMember",
        "replaceMember",
        "removeMember",
        "closeMember",
        "getLivez",
        "getReadyz",
        "listNodes",
        "listWaiters",
        "getKey",
        "getMetrics",
        "getOpenapi",
        "getOpenapi30",
    ];
    assert_eq!(ids, BTreeSet::from(contract));
    assert_eq!(operations(&document).len(), contract.len());
}

#[test]
fn every_operation_has_one_tag_a_summary_a_description_and_its_problems() {
    let document = document();
    for (at, operation) in operations(&document) {
        assert_eq!(operation["tags"].as_array().unwrap().len(), 1, "{at}");
        assert!(operation["summary"].is_string() && operation["description"].is_string(), "{at}");
        let responses = operation["responses"].as_object().unwrap();
        let mut expected = vec!["200", "400", "500"];
        if at.contains("/v1/") {
            expected.extend(["401", "403"]);
        }
        if at.starts_with("post ") {
            expected.extend(["413", "415"]);
        }
        for status in expected {
            assert!(responses.contains_key(status), "{at} {status}");
        }
    }
}

#[test]
fn probes_and_metrics_are_never_overloaded_and_only_readiness_is_unavailable() {
    let document = document();
    let unavailable = |at: &str| document["paths"][at]["get"]["responses"].get("503").cloned();
    assert_eq!(unavailable("/livez"), None);
    assert_eq!(unavailable("/metrics"), None);
    assert!(unavailable("/openapi.json").is_some());
    let name =
        unavailable("/readyz").unwrap()["$ref"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let response = &document["components"]["responses"][&name];
    assert!(!response.to_string().contains("overloaded"), "{response}");
    for code in ["quorum_unavailable", "shutting_down"] {
        assert!(response.to_string().contains(code), "{code}: {response}");
    }
}

#[test]
fn every_body_has_an_example() {
    let document = document();
    for (at, operation) in operations(&document) {
        let bodies = [&operation["requestBody"], &operation["responses"]["200"]];
        for content in bodies.into_iter().filter_map(|body| body["content"].as_object()) {
            for (media_type, media) in content {
                assert!(media.get("example").is_some(), "{at} {media_type}");
            }
        }
    }
}

#[test]
fn only_what_a_request_may_leave_out_is_nullable_and_nothing_is_a_choice() {
    for text in [openapi_json(), openapi_3_0_json()] {
        for keyword in ["\"nullable\"", "\"oneOf\"", "\"anyOf\"", "\"allOf\"", "\"enum\""] {
            assert!(!text.contains(keyword), "{keyword}");
        }
    }
    assert!(!openapi_3_0_json().contains("\"null\""));
    for (name, schema) in document()["components"]["schemas"].as_object().unwrap() {
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let is_request = schema["additionalProperties"] == false;
        for (field, property) in schema["properties"].as_object().unwrap() {
            let nullable = property["type"].as_array().is_some_and(|types| types.contains(&json!("null")));
            let optional = !required.contains(&json!(field));
            assert_eq!(nullable, is_request && optional, "{name}.{field}");
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    for document in [document(), to_3_0(document())] {
        fn check(value: &Value, document: &Value) {
            match value {
                Value::Array(list) => list.iter().for_each(|value| check(value, document)),
                Value::Object(map) => {
                    if let Some(path) = map.get("$ref").and_then(Value::as_str) {
                        let pointer = path.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{path}");
                    }
                    map.values().for_each(|value| check(value, document));
                }
                _ => {}
            }
        }
        check(&document, &document);
    }
}

#[test]
fn required_request_fields_are_those_that_are_missed() {
    let missed = |checked: Result<(), Problem>| {
        let problem: Value = serde_json::from_slice(&checked.unwrap_err().to_json("r")).unwrap();
        let errors = problem["errors"].as_array().unwrap().clone();
        errors.iter().map(|error| error["field"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    fn checked<T: Asked>() -> Result<(), Problem> {
        fields::check(&fields::from_json::<T>(b"")?, &Limits::default())
    }
    let document = document();
    for (name, checked) in [
        ("AcquireMultilock", checked::<AcquireMultilock>()),
        ("AcquireSemaphore", checked::<AcquireSemaphore>()),
        ("Campaign", checked::<Campaign>()),
        ("CheckToken", checked::<CheckToken>()),
        ("Extend", checked::<Extend>()),
        ("ExtendMultilock", checked::<ExtendMultilock>()),
        ("ManyLeases", checked::<ManyLeases>()),
        ("Proclaim", checked::<Proclaim>()),
    ] {
        let schema = &document["components"]["schemas"][name];
        let required = schema["required"].as_array().unwrap().iter();
        let required: BTreeSet<_> = required.map(|field| field.as_str().unwrap().to_owned()).collect();
        assert_eq!(required, missed(checked), "{name}");
        assert_eq!(schema["additionalProperties"], false, "{name}");
    }
    // One of two fields, of which the first is said to be missed.
    assert_eq!(missed(checked::<Release>()), BTreeSet::from(["lease_id".to_owned()]));
    let both = ["lease_id", "names"].map(str::to_owned);
    assert_eq!(missed(checked::<ReleaseMultilock>()), BTreeSet::from(both));
    assert!(checked::<AcquireLock>().is_ok());
    assert!(document["components"]["schemas"]["AcquireLock"].get("required").is_none());
}

#[test]
fn the_bounds_are_those_of_the_server() {
    let limits = Limits { max_ttl_ms: 1_234_000, max_wait_ms: 55_000, ..Limits::default() };
    for document in [document(), finish(router::routes().into_openapi(), &limits)] {
        let own = document != self::document();
        let (ttl, wait) = if own { (1_234_000, 55_000) } else { (300_000, 60_000) };
        for name in ["AcquireLock", "AcquireMultilock", "AcquireSemaphore", "Campaign"] {
            let properties = &document["components"]["schemas"][name]["properties"];
            assert_eq!(properties["ttl_ms"]["maximum"], ttl, "{name}");
            assert_eq!(properties["wait_ms"]["maximum"], wait, "{name}");
        }
        assert_eq!(document["components"]["schemas"]["Extend"]["properties"]["ttl_ms"]["maximum"], ttl);
        let parameters = &document["paths"]["/v1/elections/{name}"]["get"]["parameters"];
        let parameter = parameters.as_array().unwrap().iter().find(|one| one["name"] == "wait_ms").unwrap();
        assert_eq!(parameter["schema"]["maximum"], wait);
    }
}

#[test]
fn the_names_of_a_multilock_are_names_like_those_in_paths() {
    let document = document();
    let in_path = &document["paths"]["/v1/locks/{name}"]["get"]["parameters"][0]["schema"];
    let fields = |schema: &str| &document["components"]["schemas"][schema]["properties"];
    let (of_many, of_multilock) = (fields("LeaseOfMany"), fields("AcquireMultilock"));
    for keyword in ["pattern", "minLength", "maxLength"] {
        assert!(in_path.get(keyword).is_some(), "{keyword}");
        for in_body in [&of_multilock["names"]["items"], &of_many["names"]["items"], &of_many["name"]] {
            assert_eq!(in_path[keyword], in_body[keyword]);
        }
    }
}

#[test]
fn the_code_of_a_problem_is_described_by_all_kinds() {
    let document = document();
    let code = &document["components"]["schemas"]["Problem"]["properties"]["code"]["description"];
    let told: BTreeSet<&str> = code.as_str().unwrap().split('`').skip(1).step_by(2).collect();
    assert_eq!(told, Kind::ALL.iter().map(|kind| kind.code()).collect());
}

#[test]
fn answers_match_their_schemas() {
    let note = Note {
        acquired_at_ms: 1,
        owner: Some(Owner::new("o").unwrap()),
        candidate: Some(Candidate::new("c").unwrap()),
        value: Some(domain::Value::new("v").unwrap()),
        ..Note::default()
    };
    let handle = LeaseHandle { id: LeaseId::from_bits(7), token: Token::new(1 << 50).unwrap() };
    let lease = Lease {
        handle,
        ttl_ms: 30_000,
        valid_until: tokio::time::Instant::now(),
        note,
        slots: vec![1, 2],
        waited_ms: 0,
        attempts: 1,
        nodes: Nodes { total: 3, quorum: 2, granted: 3, held: 0, failed: 0 },
    };
    let name = |text| Name::new(text).unwrap();
    let lease_id = handle.expose();
    let document = document();
    for (schema, answer) in [
        ("Lease", serde_json::to_value(locks::show(name("a"))(&lease, 0)).unwrap()),
        (
            "MultilockLease",
            serde_json::to_value(multilocks::show(vec![name("a"), name("b")])(&lease, 0)).unwrap(),
        ),
        ("SemaphoreLease", serde_json::to_value(semaphores::show(name("a"))(&lease, 0)).unwrap()),
        ("Leadership", serde_json::to_value(elections::show(name("a"))(&lease, 0)).unwrap()),
    ] {
        assert_eq!(answer["lease_id"], lease_id);
        let schema = &document["components"]["schemas"][schema];
        let example = schema["example"].as_object().unwrap();
        for answer in [answer.as_object().unwrap(), example] {
            for field in answer.keys() {
                assert!(schema["properties"].get(field).is_some(), "{field} is not in the schema");
            }
            for field in schema["required"].as_array().unwrap() {
                assert!(answer.contains_key(field.as_str().unwrap()), "{field} is missing");
            }
        }
    }
}

#[test]
fn tokens_are_int64() {
    let document = document();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for token in ["fencing_token", "term", "highest_token"] {
            if let Some(property) = schema["properties"].get(token) {
                assert_eq!(property["type"], "integer", "{name}.{token}");
                assert_eq!(property["format"], "int64", "{name}.{token}");
            }
        }
    }
}

#[test]
fn the_3_0_rendering_has_nothing_of_3_1() {
    let document = to_3_0(document());
    assert_eq!(document["openapi"], "3.0.3");
    let text = document.to_string();
    for keyword in
        ["\"examples\":[", "\"const\"", "\"identifier\"", "\"contentMediaType\"", "\"exclusiveMinimum\""]
    {
        assert!(!text.contains(keyword), "{keyword}");
    }
}
