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
            if waits(path, operation, schemas) {
                add_heartbeats(operation, method);
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

/// Whether the answer of an operation can be long in coming.
fn waits(path: &str, operation: &Value, schemas: &Value) -> bool {
    let body = schema_name(&operation["requestBody"]["content"]["application/json"]);
    let in_body = body.is_some_and(|name| schemas[name]["properties"].get("wait_ms").is_some());
    let mut parameters = operation["parameters"].as_array().into_iter().flatten();
    !path.ends_with("/hold") && (in_body || parameters.any(|parameter| parameter["name"] == "wait_ms"))
}

/// What an operation that waits answers those who ask for heartbeats. In words: of two kinds of answer, generated clients
/// make one type of either.
fn add_heartbeats(operation: &mut Value, method: &str) {
    let mut text = operation["description"].as_str().unwrap_or_default().to_owned();
    text += "\n\nWith `Accept: text/event-stream` and without `application/json` in it, the answer is an event `answer` with the same data, after comments as heartbeats, one every 10 s; a problem that comes after the first heartbeat is an event `problem`.";
    if method == "get" {
        text += " With `Prefer: wait` heartbeats are white space before the JSON, and in place of a problem that comes after the first of them the connection breaks. `Prefer: wait=N` waits for N seconds at most.";
    }
    operation["description"] = json!(text);
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
    for (applies, status, name) in [
        (true, "400", "InvalidRequest"),
        (true, "500", "Internal"),
        (limited, "503", "Overloaded"),
        (keyed, "401", "Unauthenticated"),
        (keyed, "403", "Forbidden"),
        (body, "413", "PayloadTooLarge"),
        (body, "415", "UnsupportedMediaType"),
        (named, "404", "NotFound"),
    ] {
        if applies {
            let reference = json!({ "$ref": format!("#/components/responses/{name}") });
            responses.entry(status).or_insert(reference);
        }
    }
}

macro_rules! problems {
    ($($type:ident: $($status:literal $name:literal),+;)+) => { $(
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

// The problems of operations, besides those that all of their kind have.
problems! {
    ReadinessProblems: "503" "NotReady";
    NodeProblems: "503" "Unavailable";
    LeaseProblems: "409" "LeaseLost", "503" "Unavailable";
    LockProblems: "409" "LockHeld", "429" "TooManyWaiters", "503" "Unavailable";
    SemaphoreProblems: "409" "SemaphoreFull", "429" "TooManyWaiters", "503" "Unavailable";
    ElectionProblems: "409" "ElectionLost", "429" "TooManyWaiters", "503" "Unavailable";
    StaleProblems: "409" "StaleToken", "503" "Unavailable";
    MemberProblems: "409" "ChangeRefused", "503" "Unavailable";
    StreamProblems: "429" "TooManyWaiters", "503" "Unavailable";
}

#[cfg(test)]
mod tests;
