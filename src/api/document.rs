//! The OpenAPI document: assembled from the handlers, finished by a few pure functions over JSON.
//!
//! What the derive macros cannot say, or say in a way that generators of clients stumble over, is
//! put right here: schemas that flatten others become flat, optional fields are absent and never
//! null, request objects are closed, every operation has examples and all its problems.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::openapi::{OpenApi, Ref, RefOr, Response};
use utoipa::{IntoResponses, OpenApi as _};

use super::problem::{CHALLENGE, Kind, MEDIA_TYPE, ProblemView};
use super::state::{Limits, NAME_PATTERN, is_probe};
use crate::domain::Token;

const SCHEMAS: &str = "#/components/schemas/";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Quorate",
        description = "Locks, fencing tokens, counting semaphores and leader election over HTTP, granted by a majority of plain Redis servers.\n\nDurations are integer milliseconds. Tokens are integers below 2^53. A field that does not apply is left out, never null; a field that the server does not know is an error. Every answer that is not 2xx is `application/problem+json` with a `code`. A method that a path does not support is answered with 405 `method_not_allowed`.",
        license(name = "MIT", identifier = "MIT")
    ),
    servers((url = "/", description = "The server that serves this document.")),
    tags(
        (name = "locks", description = "Exclusive locks with fencing tokens."),
        (name = "multilocks", description = "Several locks at once, all or nothing, under one lease."),
        (name = "semaphores", description = "Counting semaphores: at most `limit` permits held at a time."),
        (name = "elections", description = "Leader election: campaign, proclaim, resign, observe."),
        (name = "leases", description = "Many leases of any kind in one request."),
        (name = "fencing", description = "Fencing tokens without a lease."),
        (name = "members", description = "The nodes that the deployment is made of."),
        (name = "service", description = "The server itself."),
    ),
    components(schemas(ProblemView))
)]
struct Base;

/// What the handlers' documents are added to.
pub(super) fn base() -> OpenApi {
    Base::openapi()
}

/// The document in 3.1 and in 3.0.3, with the bounds of a server.
pub(super) fn rendered(generated: OpenApi, limits: &Limits) -> (String, String) {
    let document = finish(generated, limits);
    (pretty(&document), pretty(&to_3_0(document)))
}

fn pretty(document: &Value) -> String {
    format!("{document:#}\n")
}

fn finish(generated: OpenApi, limits: &Limits) -> Value {
    // The document is made of strings, numbers and maps with string keys, so this cannot fail.
    let mut document = serde_json::to_value(generated).unwrap_or_default();
    clean(&mut document);
    set_bounds(&mut document, limits);
    bound_numbers(&mut document["components"]["schemas"]);
    document["security"] = json!([{ "bearer": [] }, {}]);
    document["components"]["securitySchemes"] = json!({ "bearer": {
        "type": "http", "scheme": "bearer",
        "description": "An API key, made by `quorate keys new`. Not needed if the server runs without `--api-keys`.",
    }});
    document["components"]["responses"] = responses();
    document["components"]["headers"] = headers();
    finish_operations(&mut document);
    document
}

/// This server's bounds in place of the defaults.
fn set_bounds(value: &mut Value, limits: &Limits) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| set_bounds(value, limits)),
        Value::Object(map) => {
            let bounds = [("ttl_ms", limits.max_ttl_ms), ("wait_ms", limits.max_wait_ms)];
            for (name, maximum) in bounds {
                // A property of a schema; a parameter has a schema beside its name.
                let property = map.get_mut(name).filter(|property| property.is_object());
                if let Some(bound) = property.and_then(|property| property.get_mut("maximum")) {
                    *bound = json!(maximum);
                }
                if map.get("name").is_some_and(|own| own == name) {
                    map["schema"]["maximum"] = json!(maximum);
                }
            }
            map.values_mut().for_each(|value| set_bounds(value, limits));
        }
        _ => {}
    }
}

/// What is known of every token, and every number that counts something.
fn bound_numbers(schemas: &mut Value) {
    let properties =
        schemas.as_object_mut().into_iter().flat_map(Map::values_mut).map(|schema| &mut schema["properties"]);
    for (name, property) in properties.filter_map(Value::as_object_mut).flatten() {
        let types = property["type"].to_string();
        if (types.contains("integer") || types.contains("number")) && property.get("minimum").is_none() {
            let is_token = matches!(name.as_str(), "fencing_token" | "term" | "highest_token");
            property["minimum"] = json!(u8::from(is_token));
            if is_token {
                property["maximum"] = json!(Token::MAX);
            }
        }
    }
}

/// Absent instead of null, but in requests, where null means absent; and no keyword that says nothing.
fn clean(value: &mut Value) {
    let Value::Object(map) = value else {
        return value.as_array_mut().into_iter().flatten().for_each(clean);
    };
    if let Some(Value::Array(choices)) = map.get_mut("oneOf") {
        choices.retain(|choice| choice["type"] != "null");
        if let [only] = choices.as_slice() {
            let only = only.as_object().cloned().unwrap_or_default();
            map.remove("oneOf");
            map.extend(only);
        }
    }
    // Keys of JSON objects are strings anyway.
    map.remove("propertyNames");
    if map.get("required").is_some_and(|required| required.as_array().is_some_and(Vec::is_empty)) {
        map.remove("required");
    }
    without_null(map);
    let is_request = map.get("additionalProperties") == Some(&Value::Bool(false));
    map.iter_mut()
        .filter(|(name, _)| !(is_request && *name == "properties"))
        .for_each(|(_, inner)| clean(inner));
}

fn without_null(map: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            map.insert("type".to_owned(), only);
        }
    }
}

/// Name, tag, problems, headers, examples and security of every operation.
fn finish_operations(document: &mut Value) {
    let Value::Object(mut paths) = document["paths"].take() else { return };
    let schemas = &mut document["components"]["schemas"];
    // One of its two fields, neither of which is required.
    schemas["Release"]["minProperties"] = json!(1);
    for (path, item) in &mut paths {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            let keyed = path.starts_with("/v1/");
            // As the handler's function is called, in the spelling of JSON.
            operation["operationId"] =
                json!(camel_case(operation["operationId"].as_str().unwrap_or_default()));
            operation["tags"] = json!([tag(path)]);
            if path.contains("{name}") {
                let more = operation["parameters"].as_array().cloned().unwrap_or_default();
                operation["parameters"] = [vec![name_parameter()], more].concat().into();
            }
            let body = operation.get("requestBody").is_some();
            if !keyed {
                operation["security"] = json!([]);
            }
            if let Some(content) = operation["requestBody"].get_mut("content") {
                add_examples(content, schemas);
                let needed = content.as_object().into_iter().flat_map(Map::values).any(|media| {
                    let says = |name: &str, keyword| schemas[name].get(keyword).is_some();
                    schema_name(media)
                        .is_none_or(|name| says(name, "required") || says(name, "minProperties"))
                });
                operation["requestBody"]["required"] = json!(needed);
            }
            let Some(responses) = operation["responses"].as_object_mut() else { continue };
            for response in responses.values_mut().filter(|response| response.get("content").is_some()) {
                response["headers"] = json!({ "X-Request-Id": header_ref("X-Request-Id") });
                add_examples(&mut response["content"], schemas);
            }
            // A POST may send a body where none is asked for, and then it is read.
            let limited = !is_probe(path);
            add_common(responses, limited, keyed, method == "post", path.contains("{name}"));
            if !body && let Some(operation) = operation.as_object_mut() {
                // Looking into it above has made it null.
                operation.remove("requestBody");
            }
        }
    }
    document["paths"] = Value::Object(paths);
}

fn camel_case(text: &str) -> String {
    let mut words = text.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| text + &word[..1].to_ascii_uppercase() + &word[1..])
}

/// The resource that the path is of.
fn tag(path: &str) -> &str {
    let resource = path.strip_prefix("/v1/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    if matches!(resource, "" | "nodes" | "waiters" | "key") { "service" } else { resource }
}

fn name_parameter() -> Value {
    json!({
        "name": "name", "in": "path", "required": true, "example": "orders:42",
        "description": "1 to 200 characters of `A–Z a–z 0–9 . _ ~ : @ -`, but not `.` or `..`. Hierarchy by `:`.",
        "schema": { "type": "string", "minLength": 1, "maxLength": 200, "pattern": NAME_PATTERN },
    })
}

fn schema_name(media: &Value) -> Option<&str> {
    media["schema"]["$ref"].as_str()?.strip_prefix(SCHEMAS)
}

fn add_examples(content: &mut Value, schemas: &Value) {
    for media in content.as_object_mut().into_iter().flat_map(Map::values_mut) {
        if let Some(example) = schema_name(media).and_then(|name| schemas[name].get("example")) {
            media["example"] = example.clone();
        }
    }
}

/// What 3.1 says otherwise than 3.0.3, as far as this document uses it.
fn to_3_0(mut document: Value) -> Value {
    document["openapi"] = json!("3.0.3");
    if let Some(license) = document["info"]["license"].as_object_mut() {
        license.remove("identifier");
        license.insert("url".to_owned(), json!("https://spdx.org/licenses/MIT.html"));
    }
    simplify(&mut document);
    document
}

/// In 3.0 nothing may stand beside a `$ref`, and there are no lists of types.
fn simplify(value: &mut Value) {
    let Value::Object(map) = value else {
        return value.as_array_mut().into_iter().flatten().for_each(simplify);
    };
    if map.get("$ref").is_some_and(Value::is_string) {
        map.retain(|name, _| name == "$ref");
    }
    without_null(map);
    map.values_mut().for_each(simplify);
}

/// The reusable responses: a name, and the kinds of problem that are answered so.
const RESPONSES: &[(&str, &[Kind])] = &[
    ("InvalidRequest", &[Kind::InvalidRequest]),
    ("Unauthenticated", &[Kind::Unauthenticated]),
    ("Forbidden", &[Kind::Forbidden]),
    ("NotFound", &[Kind::NotFound]),
    ("PayloadTooLarge", &[Kind::PayloadTooLarge]),
    ("UnsupportedMediaType", &[Kind::UnsupportedMediaType]),
    ("LockHeld", &[Kind::LockHeld]),
    ("SemaphoreFull", &[Kind::SemaphoreFull]),
    ("ElectionLost", &[Kind::ElectionLost]),
    ("LeaseLost", &[Kind::LeaseLost, Kind::HoldLimitReached]),
    ("StaleToken", &[Kind::StaleToken]),
    ("ChangeRefused", &[Kind::ChangeInProgress, Kind::UnsafeChange]),
    ("TooManyWaiters", &[Kind::TooManyWaiters]),
    ("Internal", &[Kind::Internal]),
    ("Unavailable", &[Kind::QuorumUnavailable, Kind::ShuttingDown, Kind::Overloaded]),
    ("NotReady", &[Kind::QuorumUnavailable, Kind::ShuttingDown]),
    ("Overloaded", &[Kind::Overloaded]),
];

/// What any operation can answer.
const ALWAYS: [(&str, &str); 2] = [("400", "InvalidRequest"), ("500", "Internal")];
/// What an operation that is not answered under any load can answer.
const LIMITED: [(&str, &str); 1] = [("503", "Overloaded")];
/// What an operation that asks for a key can answer.
const KEYED: [(&str, &str); 2] = [("401", "Unauthenticated"), ("403", "Forbidden")];
/// What an operation with a body can answer.
const WITH_BODY: [(&str, &str); 2] = [("413", "PayloadTooLarge"), ("415", "UnsupportedMediaType")];
/// What an operation with a name in its path can answer.
const NAMED: [(&str, &str); 1] = [("404", "NotFound")];

/// All reusable responses, for `components.responses`.
fn responses() -> Value {
    let response = |(name, kinds): &(&str, &[Kind])| {
        let told = kinds.iter().map(|kind| format!("`{}`: {}", kind.code(), kind.meaning()));
        let description = told.collect::<Vec<_>>().join(" Or ");
        let example = kinds[0].example();
        let mut content = json!({ "schema": { "$ref": "#/components/schemas/Problem" } });
        if kinds.len() == 1 {
            content["example"] = example.clone();
        } else {
            let examples =
                kinds.iter().map(|kind| (kind.code().to_owned(), json!({ "value": kind.example() })));
            content["examples"] = examples.collect::<Map<_, _>>().into();
        }
        let mut headers = json!({ "X-Request-Id": header_ref("X-Request-Id") });
        if example.get("retry_after_ms").is_some() {
            headers["Retry-After"] = header_ref("Retry-After");
        }
        if matches!(kinds[0], Kind::Unauthenticated | Kind::Forbidden) {
            headers["WWW-Authenticate"] = header_ref("WWW-Authenticate");
        }
        let response =
            json!({ "description": description, "headers": headers, "content": { MEDIA_TYPE: content } });
        ((*name).to_owned(), response)
    };
    RESPONSES.iter().map(response).collect::<Map<_, _>>().into()
}

/// A header of `components.headers`.
fn header_ref(name: &str) -> Value {
    json!({ "$ref": format!("#/components/headers/{name}") })
}

/// All headers of answers, for `components.headers`.
fn headers() -> Value {
    json!({
        "X-Request-Id": {
            "description": "The id of the request: the client's own if it sent one, else the server's. The log has it too.",
            "schema": { "type": "string" }, "example": "7f3a9c21-0000002a",
        },
        "Retry-After": {
            "description": "`retry_after_ms` in whole seconds, rounded up.",
            "schema": { "type": "integer", "minimum": 0 }, "example": 1,
        },
        "WWW-Authenticate": {
            "description": "How to authenticate (RFC 6750): without `error` no key was sent, with `invalid_token` the key is not known, with `insufficient_scope` it does not allow this.",
            "schema": { "type": "string" }, "example": CHALLENGE,
        },
    })
}

/// Adds what an operation can answer because of its nature.
fn add_common(responses: &mut Map<String, Value>, limited: bool, keyed: bool, body: bool, named: bool) {
    let groups: [(bool, &[(&str, &str)]); 5] =
        [(true, &ALWAYS), (limited, &LIMITED), (keyed, &KEYED), (body, &WITH_BODY), (named, &NAMED)];
    for (status, name) in groups.iter().filter(|(applies, _)| *applies).flat_map(|(_, group)| *group) {
        let reference = json!({ "$ref": format!("#/components/responses/{name}") });
        responses.entry(*status).or_insert(reference);
    }
}

macro_rules! problems {
    ($($(#[$doc:meta])* $type:ident: $($status:literal $name:literal),+;)+) => { $(
        $(#[$doc])*
        pub(super) struct $type;

        impl IntoResponses for $type {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                [$(($status, $name)),+]
                    .map(|(status, name)| (status.to_owned(), RefOr::Ref(Ref::from_response_name(name))))
                    .into()
            }
        }
    )+ };
}

problems! {
    /// Of asking whether the nodes can be asked.
    ReadinessProblems: "503" "NotReady";
    /// Of operations that ask the nodes.
    NodeProblems: "503" "Unavailable";
    /// Of operations that need the lease to be held.
    LeaseProblems: "409" "LeaseLost", "503" "Unavailable";
    /// Of acquiring a lock, or several.
    LockProblems: "409" "LockHeld", "429" "TooManyWaiters", "503" "Unavailable";
    /// Of acquiring permits.
    SemaphoreProblems: "409" "SemaphoreFull", "429" "TooManyWaiters", "503" "Unavailable";
    /// Of campaigning.
    ElectionProblems: "409" "ElectionLost", "429" "TooManyWaiters", "503" "Unavailable";
    /// Of checking a token.
    StaleProblems: "409" "StaleToken", "503" "Unavailable";
    /// Of changing the members.
    MemberProblems: "409" "ChangeRefused", "503" "Unavailable";
    /// Of watching.
    StreamProblems: "429" "TooManyWaiters", "503" "Unavailable";
}

#[cfg(test)]
mod tests {
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
                let nullable =
                    property["type"].as_array().is_some_and(|types| types.contains(&json!("null")));
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
            let parameter =
                parameters.as_array().unwrap().iter().find(|one| one["name"] == "wait_ms").unwrap();
            assert_eq!(parameter["schema"]["maximum"], wait);
        }
    }

    #[test]
    fn the_names_of_a_multilock_are_names_like_those_in_paths() {
        let document = document();
        let in_path = &document["paths"]["/v1/locks/{name}"]["get"]["parameters"][0]["schema"];
        let in_body = &document["components"]["schemas"]["AcquireMultilock"]["properties"]["names"]["items"];
        for keyword in ["type", "pattern", "minLength", "maxLength"] {
            assert!(in_path.get(keyword).is_some(), "{keyword}");
            assert_eq!(in_path[keyword], in_body[keyword]);
        }
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
}
