//! How problems stand in the OpenAPI document: every refusal once, referred to by name.
//!
//! A handler lists only what is special to it, by one of the types here; what every operation can
//! answer is added by [`super::openapi`] to all of them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use utoipa::IntoResponses;
use utoipa::openapi::{Ref, RefOr, Response};

use super::problem::{CHALLENGE, Kind, MEDIA_TYPE, example};

/// Name, description and kinds of each reusable response.
const RESPONSES: [(&str, &str, &[Kind]); 17] = [
    (
        "InvalidRequest",
        "`invalid_request`: malformed JSON, a bad name, a value out of range, an unknown field. `errors` tells which and why.",
        &[Kind::InvalidRequest],
    ),
    (
        "Unauthenticated",
        "`unauthenticated`: the server requires an API key, and none or an unknown one was sent.",
        &[Kind::Unauthenticated],
    ),
    (
        "Forbidden",
        "`forbidden`: the API key lacks the scope, or may not touch the name. Or, where no key is asked for, a browser sent this for a page of another site.",
        &[Kind::Forbidden],
    ),
    (
        "NotFound",
        "`not_found`: there is no such route, e.g. because the name has an unescaped slash. A lock or other resource that nobody uses is not a 404.",
        &[Kind::NotFound],
    ),
    (
        "PayloadTooLarge",
        "`payload_too_large`: the body is longer than the server takes (64 KiB unless set otherwise).",
        &[Kind::PayloadTooLarge],
    ),
    (
        "HeadTooLarge",
        "`head_too_large`: the headers, or the target, are longer than the server takes (16 KiB unless set otherwise).",
        &[Kind::HeadTooLarge],
    ),
    (
        "UnsupportedMediaType",
        "`unsupported_media_type`: the body is declared as something other than JSON, or as compressed.",
        &[Kind::UnsupportedMediaType],
    ),
    (
        "LockHeld",
        "`lock_held`: not granted within `wait_ms`. `holder` is left out if no single lease has a quorum.",
        &[Kind::LockHeld],
    ),
    ("SemaphoreFull", "`semaphore_full`: not granted within `wait_ms`.", &[Kind::SemaphoreFull]),
    (
        "ElectionLost",
        "`election_lost`: not elected within `wait_ms`. `holder` is left out if no single lease has a quorum.",
        &[Kind::ElectionLost],
    ),
    ("LeaseLost", "`lease_lost`: the lease is not held any more.", &[Kind::LeaseLost]),
    ("StaleToken", "`stale_token`: a later token has been issued.", &[Kind::StaleToken]),
    (
        "TooManyWaiters",
        "`too_many_waiters`: the queue is full, or the limit of event streams is reached.",
        &[Kind::TooManyWaiters],
    ),
    ("Internal", "`internal`: a bug.", &[Kind::Internal]),
    (
        "Unavailable",
        "`quorum_unavailable`: fewer than a quorum of nodes answered; nothing was granted and nothing is left behind. Or `shutting_down`: this server drains. Or `overloaded`: it has reached its limit of clients.",
        &[Kind::QuorumUnavailable, Kind::ShuttingDown, Kind::Overloaded],
    ),
    (
        "NotReady",
        "`quorum_unavailable`: fewer than a quorum of nodes vote. Or `shutting_down`: this server drains.",
        &[Kind::QuorumUnavailable, Kind::ShuttingDown],
    ),
    ("Overloaded", "`overloaded`: the server has reached its limit of clients.", &[Kind::Overloaded]),
];

/// What any operation can answer.
const ALWAYS: [(&str, &str); 3] = [("400", "InvalidRequest"), ("431", "HeadTooLarge"), ("500", "Internal")];
/// What an operation that is not answered under any load can answer.
const LIMITED: [(&str, &str); 1] = [("503", "Overloaded")];
/// What an operation that asks for a key can answer.
const KEYED: [(&str, &str); 2] = [("401", "Unauthenticated"), ("403", "Forbidden")];
/// What an operation with a body can answer.
const WITH_BODY: [(&str, &str); 2] = [("413", "PayloadTooLarge"), ("415", "UnsupportedMediaType")];
/// What an operation with a name in its path can answer.
const NAMED: [(&str, &str); 1] = [("404", "NotFound")];

/// All reusable responses, for `components.responses`.
pub(super) fn responses() -> Value {
    let response = |(name, description, kinds): &(&str, &str, &[Kind])| {
        let mut content = json!({ "schema": { "$ref": "#/components/schemas/Problem" } });
        match kinds {
            [kind] => content["example"] = example(*kind),
            kinds => {
                let examples =
                    kinds.iter().map(|kind| (kind.code().to_owned(), json!({ "value": example(*kind) })));
                content["examples"] = examples.collect::<serde_json::Map<_, _>>().into();
            }
        }
        let mut headers = json!({ "X-Request-Id": header_ref("X-Request-Id") });
        let example = example(kinds[0]);
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
    RESPONSES.iter().map(response).collect::<serde_json::Map<_, _>>().into()
}

/// A header of `components.headers`.
pub(super) fn header_ref(name: &str) -> Value {
    json!({ "$ref": format!("#/components/headers/{name}") })
}

/// All headers of answers, for `components.headers`.
pub(super) fn headers() -> Value {
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
pub(super) fn add_common(
    responses: &mut serde_json::Map<String, Value>,
    limited: bool,
    keyed: bool,
    body: bool,
    named: bool,
) {
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
    /// Of watching.
    StreamProblems: "429" "TooManyWaiters", "503" "Unavailable";
}
