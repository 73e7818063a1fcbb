//! The OpenAPI document: assembled from the handlers, finished by a few pure functions over JSON.
//!
//! What the derive macros cannot say, or say in a way that generators of clients stumble over, is
//! put right here: schemas that flatten others become flat, optional fields are absent and never
//! null, request objects are closed, every operation has examples and all its problems.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::problem::ProblemView;
use super::{problem_docs, refusals, table};

const SCHEMAS: &str = "#/components/schemas/";

#[derive(OpenApi)]
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
        (name = "fencing", description = "Fencing tokens without a lease."),
        (name = "service", description = "The server itself."),
    ),
    components(schemas(ProblemView))
)]
struct Base;

/// What the handlers' documents are added to.
pub(super) fn base() -> utoipa::openapi::OpenApi {
    Base::openapi()
}

/// The document, OpenAPI 3.1, with line breaks.
pub fn openapi_json() -> String {
    pretty(document())
}

/// The same in OpenAPI 3.0.3, for older tools, with line breaks.
pub fn openapi_3_0_json() -> String {
    pretty(to_3_0(document()))
}

/// The members in the order in which people read them; serde_json would sort them.
#[derive(Serialize)]
struct Ordered {
    openapi: Value,
    info: Value,
    servers: Value,
    security: Value,
    tags: Value,
    paths: Value,
    components: Value,
}

fn pretty(mut document: Value) -> String {
    let mut take = |name: &str| document[name].take();
    let ordered = Ordered {
        openapi: take("openapi"),
        info: take("info"),
        servers: take("servers"),
        security: take("security"),
        tags: take("tags"),
        paths: take("paths"),
        components: take("components"),
    };
    // Only a map with keys that are no strings could fail.
    let mut text = serde_json::to_string_pretty(&ordered).unwrap_or_default();
    text.push('\n');
    text
}

fn document() -> Value {
    // The document is made of strings, numbers and maps with string keys, so this cannot fail.
    let mut document = serde_json::to_value(table(None).document.into_openapi()).unwrap_or_default();
    flatten_schemas(&mut document["components"]["schemas"]);
    clean(&mut document);
    document["security"] = json!([{ "bearer": [] }, {}]);
    document["components"]["securitySchemes"] = json!({ "bearer": {
        "type": "http", "scheme": "bearer",
        "description": "An API key, made by `quorate keys new`. Not needed if the server runs without `--api-keys`.",
    }});
    document["components"]["responses"] = problem_docs::responses();
    document["components"]["headers"] = problem_docs::headers();
    finish_operations(&mut document);
    drop_unused_schemas(&mut document);
    document
}

/// `allOf` of references and objects, which is what flattening makes, as one object.
fn flatten_schemas(schemas: &mut Value) {
    let all = schemas.clone();
    for schema in schemas.as_object_mut().into_iter().flat_map(Map::values_mut) {
        if schema.get("allOf").is_some() {
            let mut flat = json!({ "type": "object", "properties": {}, "required": [] });
            merge_into(&mut flat, schema, &all);
            *schema = flat;
        }
    }
}

fn merge_into(flat: &mut Value, part: &Value, all: &Value) {
    if let Some(name) = part["$ref"].as_str().and_then(|path| path.strip_prefix(SCHEMAS)) {
        let properties_only = json!({
            "properties": all[name]["properties"], "required": all[name]["required"], "allOf": all[name]["allOf"],
        });
        return merge_into(flat, &properties_only, all);
    }
    for inner in part["allOf"].as_array().into_iter().flatten() {
        merge_into(flat, inner, all);
    }
    for member in ["description", "example"] {
        if let Some(value) = part.get(member) {
            flat[member] = value.clone();
        }
    }
    if let (Some(flat), Some(part)) = (flat["properties"].as_object_mut(), part["properties"].as_object()) {
        flat.extend(part.clone());
    }
    if let (Some(flat), Some(part)) = (flat["required"].as_array_mut(), part["required"].as_array()) {
        flat.extend(part.iter().cloned());
    }
}

/// Absent instead of null, and no keyword that says nothing.
fn clean(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(clean),
        Value::Object(map) => {
            if let Some(Value::Array(types)) = map.get_mut("type") {
                types.retain(|kind| kind != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    map.insert("type".to_owned(), only);
                }
            }
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
            map.values_mut().for_each(clean);
        }
        _ => {}
    }
}

/// Problems, headers, examples and security of every operation; closed request objects.
fn finish_operations(document: &mut Value) {
    let Value::Object(mut paths) = document["paths"].take() else { return };
    let schemas = &mut document["components"]["schemas"];
    for (path, item) in &mut paths {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            let keyed = path.starts_with("/v1/");
            let body = operation.get("requestBody").is_some();
            if !keyed {
                operation["security"] = json!([]);
            }
            if let Some(content) = operation["requestBody"].get_mut("content") {
                close_request_objects(content, schemas);
                add_examples(content, schemas);
                let needed = content.as_object().into_iter().flat_map(Map::values).any(|media| {
                    schema_name(media).is_none_or(|name| schemas[name].get("required").is_some())
                });
                operation["requestBody"]["required"] = json!(needed);
            }
            let Some(responses) = operation["responses"].as_object_mut() else { continue };
            for response in responses.values_mut().filter(|response| response.get("content").is_some()) {
                response["headers"] = json!({ "X-Request-Id": problem_docs::header_ref("X-Request-Id") });
                add_examples(&mut response["content"], schemas);
            }
            // A POST may send a body where none is asked for, and then it is read.
            let limited = !refusals::is_probe(path);
            problem_docs::add_common(responses, limited, keyed, method == "post", path.contains("{name}"));
            if !body && let Some(operation) = operation.as_object_mut() {
                // Looking into it above has made it null.
                operation.remove("requestBody");
            }
        }
    }
    document["paths"] = Value::Object(paths);
}

fn schema_name(media: &Value) -> Option<&str> {
    media["schema"]["$ref"].as_str()?.strip_prefix(SCHEMAS)
}

fn close_request_objects(content: &Value, schemas: &mut Value) {
    for name in content.as_object().into_iter().flat_map(Map::values).filter_map(schema_name) {
        schemas[name]["additionalProperties"] = json!(false);
    }
}

fn add_examples(content: &mut Value, schemas: &Value) {
    for media in content.as_object_mut().into_iter().flat_map(Map::values_mut) {
        if let Some(example) = schema_name(media).and_then(|name| schemas[name].get("example")) {
            media["example"] = example.clone();
        }
    }
}

/// Schemas that were only flattened into others are in nobody's way, but in nobody's use either.
fn drop_unused_schemas(document: &mut Value) {
    let mut used = BTreeSet::new();
    let mut found = BTreeSet::new();
    find_references(&document["paths"], &mut found);
    find_references(&document["components"]["responses"], &mut found);
    while let Some(name) = found.pop_first() {
        if used.insert(name.clone()) {
            find_references(&document["components"]["schemas"][&name], &mut found);
        }
    }
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.retain(|name, _| used.contains(name));
    }
}

fn find_references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(list) => list.iter().for_each(|value| find_references(value, found)),
        Value::Object(map) => {
            let name = map.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix(SCHEMAS));
            found.extend(name.map(str::to_owned));
            map.values().for_each(|value| find_references(value, found));
        }
        _ => {}
    }
}

/// What 3.1 says otherwise than 3.0.3, as far as this document uses it.
fn to_3_0(mut document: Value) -> Value {
    document["openapi"] = json!("3.0.3");
    if let Some(license) = document["info"]["license"].as_object_mut() {
        license.remove("identifier");
        license.insert("url".to_owned(), json!("https://spdx.org/licenses/MIT.html"));
    }
    references_alone(&mut document);
    document
}

/// In 3.0 nothing may stand beside a `$ref`.
fn references_alone(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(references_alone),
        Value::Object(map) => {
            if map.get("$ref").is_some_and(Value::is_string) {
                map.retain(|name, _| name == "$ref");
            }
            map.values_mut().for_each(references_alone);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::super::Limits;
    use super::super::elections::{Campaign, Election, GetLeader, Proclaim};
    use super::super::extract::{Ask, Context};
    use super::super::fencing::CheckToken;
    use super::super::fields::{Fields, Source};
    use super::super::leases::{Extend, Release, Shows as _};
    use super::super::locks::{AcquireLock, ListLocks, Lock};
    use super::super::multilocks::{AcquireMultilock, ExtendMultilock, Multilock, ReleaseMultilock};
    use super::super::semaphores::{AcquireSemaphore, Permits};
    use super::*;
    use crate::domain::{self, Candidate, LeaseHandle, LeaseId, Name, Owner, Token};
    use crate::service::{Lease, Nodes, Note};

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
            "forceReleaseLock",
            "holdLock",
            "acquireMultilock",
            "extendMultilock",
            "releaseMultilock",
            "acquireSemaphore",
            "extendSemaphore",
            "releaseSemaphore",
            "getSemaphore",
            "holdSemaphore",
            "campaign",
            "extendElection",
            "resign",
            "proclaim",
            "getLeader",
            "observeElection",
            "holdElection",
            "issueToken",
            "checkToken",
            "getFence",
            "getLivez",
            "getReadyz",
            "listNodes",
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
    fn nothing_is_nullable_and_nothing_is_a_choice() {
        for text in [openapi_json(), openapi_3_0_json()] {
            for keyword in ["\"null\"", "\"nullable\"", "\"oneOf\"", "\"anyOf\"", "\"allOf\"", "\"enum\""] {
                assert!(!text.contains(keyword), "{keyword}");
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

    /// What `T` asks for when it is read.
    fn asked<T: Ask>() -> BTreeSet<&'static str> {
        let (limits, headers) = (Limits::default(), HeaderMap::new());
        let mut fields = match T::SOURCE {
            Source::Body => Fields::of_body(b""),
            Source::Query => Fields::of_query(None),
        };
        let _ = T::read(&mut fields, &Context { limits: &limits, headers: &headers });
        fields.asked().iter().copied().collect()
    }

    #[test]
    fn request_schemas_have_exactly_the_fields_that_are_read() {
        let document = document();
        for (name, asked) in [
            ("AcquireLock", asked::<AcquireLock>()),
            ("AcquireMultilock", asked::<AcquireMultilock>()),
            ("AcquireSemaphore", asked::<AcquireSemaphore>()),
            ("Campaign", asked::<Campaign>()),
            ("CheckToken", asked::<CheckToken>()),
            ("Extend", asked::<Extend>()),
            ("ExtendMultilock", asked::<ExtendMultilock>()),
            ("Proclaim", asked::<Proclaim>()),
            ("Release", asked::<Release>()),
            ("ReleaseMultilock", asked::<ReleaseMultilock>()),
        ] {
            let schema = &document["components"]["schemas"][name];
            let shown: BTreeSet<_> =
                schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(shown, asked, "{name}");
            assert_eq!(schema["additionalProperties"], false, "{name}");
        }
        for (path, asked) in
            [("/v1/locks", asked::<ListLocks>()), ("/v1/elections/{name}", asked::<GetLeader>())]
        {
            let parameters = document["paths"][path]["get"]["parameters"].as_array().unwrap().iter();
            let shown: BTreeSet<_> = parameters
                .filter(|parameter| parameter["in"] == "query")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            assert_eq!(shown, asked, "{path}");
        }
    }

    #[test]
    fn required_request_fields_are_those_that_are_missed() {
        let (limits, headers) = (Limits::default(), HeaderMap::new());
        let context = Context { limits: &limits, headers: &headers };
        let mut fields = Fields::of_body(b"{}");
        let asked = AcquireSemaphore::read(&mut fields, &context);
        let problem = fields.finish(asked.map(|_| ())).unwrap_err().to_json("r");
        let problem: Value = serde_json::from_slice(&problem).unwrap();
        let missed: Vec<_> =
            problem["errors"].as_array().unwrap().iter().map(|error| &error["field"]).collect();
        let schema = &document()["components"]["schemas"]["AcquireSemaphore"];
        assert_eq!(schema["required"], json!(missed));
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
        let (lock, multilock) = (Lock(name("a")), Multilock(vec![name("a"), name("b")]));
        let (permits, election) = (Permits::new(name("a"), 5, 2), Election(name("a")));
        let lease_id = handle.expose();
        let document = document();
        for (schema, answer) in [
            ("Lease", serde_json::to_value(lock.show(&lease, 0)).unwrap()),
            ("MultilockLease", serde_json::to_value(multilock.show(&lease, 0)).unwrap()),
            ("SemaphoreLease", serde_json::to_value(permits.show(&lease, 0)).unwrap()),
            ("Leadership", serde_json::to_value(election.show(&lease, 0)).unwrap()),
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
