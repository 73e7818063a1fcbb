//! Whatever is wrong with a request gets the documented problem, never a 5xx, and nothing is stored.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::support::http::{Connection, encode};
use crate::support::{Answer, Api, Cluster, Server};

const LEASE_ID: &str = "0123456789abcdef0123456789abcdef0000000000002a";

/// A deployment that must be as it was when the test is over.
struct Untouched {
    cluster: Cluster,
    server: Server,
    before: Vec<BTreeMap<String, Option<String>>>,
}

impl Untouched {
    async fn start() -> Self {
        let cluster = Cluster::new(3);
        let server = cluster.server(&[]).await;
        let before = cluster.nodes.iter().map(|node| node.dump()).collect();
        Self { cluster, server, before }
    }

    /// Nothing was stored, nothing went wrong inside, and it still answers.
    async fn check(self) {
        let after: Vec<_> = self.cluster.nodes.iter().map(|node| node.dump()).collect();
        assert_eq!(after, self.before, "something was stored");
        let api = self.server.api();
        let metrics = api.get("/metrics").await.text();
        let failures: Vec<&str> =
            metrics.lines().filter(|line| line.contains("status=\"5") && !line.ends_with(" 0")).collect();
        assert_eq!(failures, Vec::<&str>::new());
        let log = self.server.log();
        assert!(!log.contains("panic"), "{log}");
        let lease = api.acquire("still:here", json!({})).await.ok();
        assert_eq!(api.release("still:here", &lease).await.ok(), json!({"released": true}));
    }
}

/// A lease as a batch names it.
fn a_lease() -> Value {
    json!({"primitive": "lock", "name": "bad", "lease_id": LEASE_ID})
}

/// Every operation with a body: path, and the fields that it must have.
fn operations() -> Vec<(&'static str, Value)> {
    vec![
        ("/v1/locks/bad/acquire", json!({})),
        ("/v1/locks/bad/hold", json!({})),
        ("/v1/locks/bad/extend", json!({"lease_id": LEASE_ID})),
        ("/v1/locks/bad/release", json!({"lease_id": LEASE_ID})),
        ("/v1/multilocks/acquire", json!({"names": ["bad", "worse"]})),
        ("/v1/multilocks/extend", json!({"names": ["bad", "worse"], "lease_id": LEASE_ID})),
        ("/v1/multilocks/release", json!({"names": ["bad", "worse"], "lease_id": LEASE_ID})),
        ("/v1/semaphores/bad/acquire", json!({"limit": 3})),
        ("/v1/semaphores/bad/hold", json!({"limit": 3})),
        ("/v1/semaphores/bad/extend", json!({"lease_id": LEASE_ID})),
        ("/v1/semaphores/bad/release", json!({"lease_id": LEASE_ID})),
        ("/v1/elections/bad/campaign", json!({"candidate": "c"})),
        ("/v1/elections/bad/hold", json!({"candidate": "c"})),
        ("/v1/elections/bad/extend", json!({"lease_id": LEASE_ID})),
        ("/v1/elections/bad/proclaim", json!({"lease_id": LEASE_ID, "value": "v"})),
        ("/v1/elections/bad/resign", json!({"lease_id": LEASE_ID})),
        ("/v1/fencing/bad/check", json!({"fencing_token": 1})),
        ("/v1/fencing/bad/issue", json!({})),
        ("/v1/leases/extend", json!({"leases": [a_lease()]})),
        ("/v1/leases/release", json!({"leases": [a_lease()]})),
        ("/v1/members", json!({"url": "redis://127.0.0.1:1"})),
        ("/v1/members/n1/replace", json!({"url": "redis://127.0.0.1:1"})),
        ("/v1/members/n1/close", json!({})),
    ]
}

/// The optional fields of an operation.
fn optional(path: &str) -> &'static [&'static str] {
    match path.rsplit('/').next() {
        Some("acquire" | "hold") if path.contains("/elections/") => {
            &["value", "ttl_ms", "wait_ms", "max_hold_ms", "lock_delay_ms", "request_id"]
        }
        Some("campaign") => &["value", "ttl_ms", "wait_ms", "max_hold_ms", "lock_delay_ms", "request_id"],
        Some("acquire" | "hold") if path.contains("/semaphores/") => &[
            "permits",
            "ttl_ms",
            "wait_ms",
            "max_hold_ms",
            "lock_delay_ms",
            "owner",
            "metadata",
            "request_id",
        ],
        Some("acquire" | "hold") if path.contains("/locks/") => {
            &["mode", "ttl_ms", "wait_ms", "max_hold_ms", "lock_delay_ms", "owner", "metadata", "request_id"]
        }
        Some("acquire" | "hold") => {
            &["ttl_ms", "wait_ms", "max_hold_ms", "lock_delay_ms", "owner", "metadata", "request_id"]
        }
        Some("extend") => &["ttl_ms"],
        _ => &[],
    }
}

/// Values that are wrong for a field, whatever operation it is of.
fn wrong_values(field: &str) -> Vec<Value> {
    let integers = |out_of_range: &[Value]| {
        let mut values = vec![
            json!("1000"),
            json!(1000.5),
            json!(-1),
            json!(true),
            json!([1000]),
            json!({"ms": 1000}),
            json!(1e300),
            json!(u64::MAX),
            serde_json::from_str("123456789012345678901234567890").unwrap(),
        ];
        values.extend(out_of_range.iter().cloned());
        values
    };
    let texts = |bad: Vec<Value>| {
        let mut values = vec![json!(5), json!(1.5), json!(false), json!([]), json!({}), json!(["text"])];
        values.extend(bad);
        values
    };
    let many: Map<String, Value> = (0..17).map(|i| (i.to_string(), json!(""))).collect();
    match field {
        "ttl_ms" => integers(&[json!(0), json!(99), json!(300_001)]),
        "wait_ms" => integers(&[json!(60_001)]),
        // The ttl where none is given is 30 s.
        "max_hold_ms" => integers(&[json!(0), json!(29_999), json!(2_592_000_001_u64)]),
        "lock_delay_ms" => integers(&[json!(60_001)]),
        "limit" | "permits" => integers(&[json!(0), json!(10_001)]),
        "fencing_token" => integers(&[json!(0), json!(1_u64 << 53)]),
        "mode" => texts(vec![json!(""), json!("Shared"), json!("read"), json!("exclusive ")]),
        "owner" => texts(vec![json!("x".repeat(129)), json!("ü".repeat(129))]),
        "candidate" => texts(vec![json!(""), json!("ü".repeat(129))]),
        "value" => texts(vec![json!("x".repeat(20_000))]),
        "metadata" => vec![
            json!(5),
            json!("text"),
            json!([]),
            json!([["key", "value"]]),
            json!({"key": 5}),
            json!({"key": null}),
            json!({"key": {"nested": "value"}}),
            json!({"key": ["value"]}),
            json!({"key": true}),
            json!({"key": "x".repeat(1_025)}),
            json!({"k".repeat(1_025): ""}),
            Value::Object(many),
        ],
        "request_id" => texts(vec![
            json!("short-1"),
            json!("x".repeat(129)),
            json!("white space"),
            json!("slash/slash"),
            json!("ümlaut-ümlaut"),
            json!("nul\0nul\0"),
            json!(""),
        ]),
        "lease_id" => texts(vec![
            json!(""),
            json!("x"),
            json!(&LEASE_ID[1..]),
            json!(format!("{LEASE_ID}0")),
            json!(LEASE_ID.replace('a', "g")),
            json!("*".repeat(LEASE_ID.len())),
            json!("ü".repeat(LEASE_ID.len() / 2)),
            json!("\0".repeat(LEASE_ID.len())),
        ]),
        "names" => {
            let too_many: Vec<String> = (0..65).map(|i| format!("n{i}")).collect();
            vec![
                json!(5),
                json!("bad,worse"),
                json!({"bad": "worse"}),
                json!([]),
                json!(["alone"]),
                json!(["same", "same"]),
                json!(["fine", ""]),
                json!(["fine", "."]),
                json!(["fine", "white space"]),
                json!(["fine", 5]),
                json!(["fine", null]),
                json!(["fine", ["nested", "names"]]),
                json!(["fine", "x".repeat(201)]),
                json!(too_many),
            ]
        }
        "leases" => vec![
            json!(5),
            json!("bad"),
            json!({}),
            json!([]),
            json!([5]),
            json!([null]),
            json!([{}]),
            json!([a_lease(), {"primitive": "lock"}]),
            json!(vec![a_lease(); 501]),
        ],
        "url" => texts(vec![
            json!(""),
            json!("redis"),
            json!("redis://"),
            json!("://127.0.0.1"),
            json!("Redis://127.0.0.1"),
            json!("redis://white space"),
            json!("redis://ümlaut"),
            json!(format!("redis://{}", "x".repeat(493))),
        ]),
        other => panic!("no wrong values for {other}"),
    }
}

async fn send(api: &Api, path: &str, body: &[u8]) -> Answer {
    api.send("POST", path, &[("content-type", "application/json")], body).await
}

/// Asserts an `invalid_request` that says which field and why.
fn blames(answer: &Answer, field: &str, what: &str) {
    if answer.status != 400 {
        panic!("{what}: {} {}", answer.status, answer.text());
    }
    let problem = answer.problem(400, "invalid_request");
    let errors = problem["errors"].as_array().unwrap_or_else(|| panic!("{what}: no errors in {problem}"));
    let named = errors.iter().any(|error| {
        let place = error["field"].as_str().unwrap();
        let inside =
            place.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        inside && !error["message"].as_str().unwrap().is_empty()
    });
    assert!(named, "{what}: {field} is not named in {problem}");
}

#[tokio::test]
async fn every_field_that_is_wrong_in_any_way_is_named() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    for (path, good) in operations() {
        let good = good.as_object().unwrap();
        let required: Vec<&str> = good.keys().map(String::as_str).collect();
        for &field in required.iter().chain(optional(path)) {
            for wrong in wrong_values(field) {
                let mut body = good.clone();
                body.insert(field.to_owned(), wrong.clone());
                let shown = wrong.to_string();
                let what = format!("{path} {field} = {}", shown.get(..60).unwrap_or(&shown));
                blames(&send(&api, path, Value::Object(body).to_string().as_bytes()).await, field, &what);
            }
        }
    }
    deployment.check().await;
}

#[tokio::test]
async fn a_field_that_must_be_there_is_missed_and_null_is_the_same_as_absent() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    for (path, good) in operations() {
        let good = good.as_object().unwrap();
        for field in good.keys() {
            let mut body = good.clone();
            body.remove(field);
            blames(
                &api.post(path, Value::Object(body.clone())).await,
                field,
                &format!("{path} without {field}"),
            );
            body.insert(field.clone(), Value::Null);
            blames(&api.post(path, Value::Object(body)).await, field, &format!("{path} {field} = null"));
        }
        if !good.is_empty() {
            let empty = api.send("POST", path, &[], b"").await;
            blames(&empty, good.keys().next().unwrap(), &format!("{path} with an empty body"));
        }
    }
    deployment.check().await;
}

#[tokio::test]
async fn a_field_that_is_unknown_is_an_error() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    for (path, good) in operations() {
        for field in ["ttl", "TTL_MS", "ttl_ms ", "name", "__proto__", "fencing-token", "ü", ""] {
            for value in [json!(1), json!(null), json!({"deep": [1, 2, 3]})] {
                let mut body = good.clone();
                body[field] = value;
                blames(&api.post(path, body).await, field, &format!("{path} with the field {field:?}"));
            }
        }
    }
    deployment.check().await;
}

#[tokio::test]
async fn several_mistakes_are_told_at_once() {
    let deployment = Untouched::start().await;
    let body = json!({"ttl_ms": 1, "wait_ms": "x", "owner": 7, "request_id": "!"});
    let answer = deployment.server.api().acquire("bad", body).await;
    for field in ["ttl_ms", "wait_ms", "owner", "request_id"] {
        blames(&answer, field, "four mistakes");
    }
    deployment.check().await;
}

#[tokio::test]
async fn a_body_that_is_no_json_object_is_refused() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    let deep = "[".repeat(20_000);
    let deep_object = r#"{"a":"#.repeat(5_000);
    let bodies: Vec<&[u8]> = vec![
        b"{",
        b"}",
        b"{}}",
        b"{} {}",
        b"[]",
        b"[{}]",
        b"5",
        b"\"text\"",
        b"true",
        b"nonsense",
        b"{ttl_ms: 1000}",
        b"{'ttl_ms': 1000}",
        br#"{"ttl_ms": 1000,}"#,
        br#"{"ttl_ms": 01000}"#,
        br#"{"ttl_ms": NaN}"#,
        br#"{"ttl_ms": 1e}"#,
        br#"{"owner": "unterminated"#,
        br#"{"owner": "\ud800"}"#,
        b"{\"owner\": \"raw\ncontrol\"}",
        b"{\"owner\": \"\xff\xfe\"}",
        b"\xff\xfe\x00{\x00}",
        b"\xef\xbb\xbf{}",
        b"\0\0\0\0",
        b"ttl_ms=1000",
        b"<xml/>",
        deep.as_bytes(),
        deep_object.as_bytes(),
    ];
    for (path, _) in operations() {
        for body in &bodies {
            let answer = send(&api, path, body).await;
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            assert_eq!(answer.status, 400, "{path} {shown}: {}", answer.text());
            answer.problem(400, "invalid_request");
        }
    }
    deployment.check().await;
}

#[tokio::test]
async fn random_bytes_as_a_body_are_refused() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    let mut random = SmallRng::seed_from_u64(7);
    let operations = operations();
    for round in 0..1_000 {
        let (path, good) = &operations[round % operations.len()];
        let bytes: Vec<u8> = if round % 2 == 0 {
            let length = random.random_range(1..200);
            (0..length).map(|_| random.random()).collect()
        } else {
            // A good body with some bytes turned. What happens to be good still is made unknown.
            let mut bytes =
                good.to_string().replacen('{', r#"{"unknown":1,"#, 1).replace(",}", "}").into_bytes();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            bytes
        };
        let answer = send(&api, path, &bytes).await;
        assert_eq!(answer.status, 400, "{path} {:?}: {}", String::from_utf8_lossy(&bytes), answer.text());
        answer.problem(400, "invalid_request");
    }
    deployment.check().await;
}

/// A request to an operation that the document has, with one thing wrong about it: method, path, headers, body.
fn malformed(
    operations: &[(String, String)],
    random: &mut SmallRng,
) -> (String, String, Vec<(&'static str, String)>, Vec<u8>) {
    let noise = |random: &mut SmallRng| -> Vec<u8> {
        let length = random.random_range(1..60);
        (0..length).map(|_| random.random()).collect()
    };
    let (method, path) = &operations[random.random_range(0..operations.len())];
    let (mut method, mut path) = (method.clone(), path.replace("{name}", "bad").replace("{id}", "bad"));
    let mut headers = Vec::new();
    let mut body = if method == "POST" { b"{}".to_vec() } else { Vec::new() };
    let escaped = |bytes: &[u8]| bytes.iter().map(|byte| format!("%{byte:02x}")).collect::<String>();
    match random.random_range(0..if method == "POST" { 7 } else { 3 }) {
        0 => path += &format!("?{}={}", escaped(&noise(random)), escaped(&noise(random))),
        1 => path += &format!("/%ff{}", escaped(&noise(random))),
        2 => method = format!("X{:X}", random.random::<u32>()),
        3 => body = noise(random),
        4 => {
            let mut fields = Map::new();
            fields
                .insert(String::from_utf8_lossy(&noise(random)).into_owned(), json!(random.random::<f64>()));
            body = Value::Object(fields).to_string().into_bytes();
        }
        5 => headers.push(("content-type", format!("text/x{}", random.random::<u32>()))),
        _ => headers.push(("content-encoding", format!("x{}", random.random::<u32>()))),
    }
    (method, path, headers, body)
}

#[tokio::test]
async fn ten_thousand_malformed_requests_get_4xx() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    let document = api.get("/openapi.json").await.ok();
    let operations: Vec<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone()))
        })
        .collect();
    assert!(operations.len() > 35);
    let clients = (0..8).map(|seed| {
        let (api, operations) = (Api::new(api.address()), &operations);
        async move {
            let mut random = SmallRng::seed_from_u64(seed);
            for _ in 0..1250 {
                let (method, path, headers, body) = malformed(operations, &mut random);
                let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
                let answer = api.send(&method, &path, &headers, &body).await;
                let what = || format!("{method} {path} {headers:?} {}", String::from_utf8_lossy(&body));
                assert!((400..500).contains(&answer.status), "{}: {}", what(), answer.text());
                answer.problem(answer.status, &answer.code());
            }
        }
    });
    futures_util::future::join_all(clients).await;
    deployment.check().await;
}

#[tokio::test]
async fn a_body_of_another_content_type_is_refused() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    for (path, good) in operations() {
        let body = if good == json!({}) { json!({"ttl": 1}) } else { good };
        for content_type in
            ["text/plain", "application/x-www-form-urlencoded", "application/xml", "nonsense", "json"]
        {
            let answer =
                api.send("POST", path, &[("content-type", content_type)], body.to_string().as_bytes()).await;
            assert_eq!(answer.status, 415, "{path} as {content_type}: {}", answer.text());
            answer.problem(415, "unsupported_media_type");
        }
        for types in [["application/json", "text/plain"], ["text/plain", "application/json"]] {
            let headers = types.map(|content_type| ("content-type", content_type));
            let answer = api.send("POST", path, &headers, body.to_string().as_bytes()).await;
            answer.problem(415, "unsupported_media_type");
        }
    }
    deployment.check().await;
}

#[tokio::test]
async fn of_two_idempotency_keys_neither_counts() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    for (path, body) in [
        ("/v1/locks/bad/acquire", json!({})),
        ("/v1/multilocks/acquire", json!({"names": ["bad", "worse"]})),
        ("/v1/semaphores/bad/acquire", json!({"limit": 2})),
        ("/v1/elections/bad/campaign", json!({"candidate": "c"})),
    ] {
        let headers = [("idempotency-key", "first-key"), ("idempotency-key", "second-key")];
        let answer = api.send("POST", path, &headers, body.to_string().as_bytes()).await;
        blames(&answer, "Idempotency-Key", path);
    }
    deployment.check().await;
}

#[tokio::test]
async fn a_compressed_body_is_refused_as_that_and_not_as_malformed() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    // What gzip makes of `{}`; also one whose sender compresses and forgot to.
    let compressed = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\xae\x05\0\x43\xbf\xa6\xa3\x02\0\0\0";
    for (path, _) in operations() {
        for body in [&compressed[..], b"{}"] {
            let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
            let answer = api.send("POST", path, &headers, body).await;
            let problem = answer.problem(415, "unsupported_media_type");
            assert!(problem["detail"].as_str().unwrap().contains("Content-Encoding"), "{path}: {problem}");
        }
    }
    // Nothing was done to these.
    let identity = [("content-type", "application/json"), ("content-encoding", "Identity")];
    api.send("POST", "/v1/fencing/a/check", &identity, br#"{"fencing_token": 1}"#).await.ok();
    let empty = [("content-encoding", "gzip")];
    api.send("POST", "/v1/locks/a/release", &empty, b"").await.problem(400, "invalid_request");
    deployment.check().await;
}

#[tokio::test]
async fn a_body_beyond_64_kib_is_too_large_however_it_is_sent() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    let padded = |size: usize| {
        let (head, tail) = (r#"{"owner":""#, r#""}"#);
        format!("{head}{}{tail}", "x".repeat(size - head.len() - tail.len())).into_bytes()
    };
    for (path, _) in operations() {
        let max = if path.contains("/leases/") { 256 * 1024 } else { 64 * 1024 };
        for size in [max + 1, 1024 * 1024] {
            // The server may answer and close before it has read all.
            match api.try_send("POST", path, &[("content-type", "application/json")], &padded(size)).await {
                Ok(answer) => drop(answer.problem(413, "payload_too_large")),
                Err(why) => assert!(size > 100_000, "{path}: {why}"),
            }
        }
        let largest = send(&api, path, &padded(max)).await;
        largest.problem(400, "invalid_request");
    }
    // In chunks, so that no length is told.
    let mut connection = api.connect().await.unwrap();
    let head = format!(
        "POST /v1/locks/bad/acquire HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n",
        api.address()
    );
    connection.send(head.as_bytes()).await.unwrap();
    let piece = vec![b' '; 8 * 1024];
    for _ in 0..128 {
        let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat();
        if connection.send(&chunk).await.is_err() {
            break;
        }
    }
    if let Ok(answer) = connection.answer().await {
        answer.problem(413, "payload_too_large");
    }
    // An announcement alone is enough.
    let mut connection = api.connect().await.unwrap();
    let head = format!(
        "POST /v1/locks/bad/acquire HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         content-length: 999999999999\r\n\r\n",
        api.address()
    );
    connection.send(head.as_bytes()).await.unwrap();
    connection.answer().await.unwrap().problem(413, "payload_too_large");
    // Who asks before it sends is told at once, and not to go on.
    let mut connection = api.connect().await.unwrap();
    let head = head.replace("999999999999\r\n", "65537\r\nexpect: 100-continue\r\n");
    connection.send(head.as_bytes()).await.unwrap();
    let answer = connection.piece().await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    deployment.check().await;
}

#[tokio::test]
async fn a_name_that_is_none_is_refused() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    let too_long = "x".repeat(201);
    let names = [
        ".",
        "..",
        "%2E",
        "%2e%2E",
        "a%20b",
        "a+b",
        "a%2Fb",
        "a%5Cb",
        "a%00b",
        "a%0Ab",
        "a%0D%0Ab",
        "%FF",
        "%C3%28",
        "%zz",
        "%",
        "%4",
        "a*",
        "a%3Fb",
        "a[b]",
        "a{b}",
        "a;b",
        "a,b",
        "a=b",
        "a$b",
        "a!b",
        "a'b",
        "a(b)",
        "%22",
        "%C3%BC",
        "%F0%9F%94%92",
        "%E2%80%AE",
        &too_long,
        &encode("ｆｕｌｌ"),
    ];
    for name in names {
        for (method, path) in [
            ("POST", format!("/v1/locks/{name}/acquire")),
            ("POST", format!("/v1/locks/{name}/hold")),
            ("GET", format!("/v1/locks/{name}")),
            ("DELETE", format!("/v1/locks/{name}")),
            ("GET", format!("/v1/locks/{name}/observe")),
            ("GET", format!("/v1/semaphores/{name}")),
            ("GET", format!("/v1/semaphores/{name}/observe")),
            ("DELETE", format!("/v1/semaphores/{name}")),
            ("GET", format!("/v1/elections/{name}")),
            ("GET", format!("/v1/elections/{name}/observe")),
            ("DELETE", format!("/v1/elections/{name}")),
            ("POST", format!("/v1/fencing/{name}/issue")),
            ("GET", format!("/v1/fencing/{name}")),
        ] {
            let answer = api.send(method, &path, &[], b"").await;
            blames(&answer, "name", &format!("{method} {path}"));
        }
        let body = json!({"lease_id": LEASE_ID});
        blames(&api.post(&format!("/v1/locks/{name}/release"), body).await, "name", name);
    }
    for id in ["%20", "a%00b", "%C3%BC", "%FF", &"x".repeat(501)] {
        for (method, path) in [
            ("DELETE", format!("/v1/members/{id}")),
            ("POST", format!("/v1/members/{id}/close")),
            ("POST", format!("/v1/members/{id}/replace")),
        ] {
            blames(&api.send(method, &path, &[], b"").await, "id", &format!("{method} {path}"));
        }
    }
    for path in ["/v1/locks//acquire", "/v1/locks//", "/v1/locks/", "/v1/locks/a//", "/v1/locks/a/b/acquire"]
    {
        let answer = api.send("POST", path, &[], b"").await;
        assert!((400..500).contains(&answer.status), "{path}: {}", answer.text());
        answer.problem(answer.status, &answer.code());
    }
    deployment.check().await;
}

#[tokio::test]
async fn query_parameters_that_nobody_asked_for_are_refused() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    for path in [
        "/v1/locks/bad",
        "/v1/semaphores/bad",
        "/v1/elections/bad",
        "/v1/locks/bad/observe",
        "/v1/semaphores/bad/observe",
        "/v1/elections/bad/observe",
        "/v1/fencing/bad",
        "/v1/locks",
        "/v1/semaphores",
        "/v1/elections",
        "/v1/waiters",
        "/v1/members",
        "/v1/key",
        "/v1/nodes",
        "/livez",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/openapi-3.0.json",
        "/docs",
        "/console",
    ] {
        for query in ["verbose=1", "wait=5", "x", "%00=1", "=1", "ttl_ms=5&x=y"] {
            let answer = api.get(&format!("{path}?{query}")).await;
            assert_eq!(answer.status, 400, "{path}?{query}: {}", answer.text());
            answer.problem(400, "invalid_request");
        }
    }
    for (path, good) in operations() {
        let answer = api.post(&format!("{path}?ttl_ms=1000"), good).await;
        blames(&answer, "ttl_ms", &format!("{path}?ttl_ms=1000"));
    }
    for query in ["wait_ms=-1", "wait_ms=60001", "wait_ms=soon", "after=x&wait_ms=1.5"] {
        let answer = api.get(&format!("/v1/elections/bad?{query}")).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.text());
    }
    deployment.check().await;
}

#[tokio::test]
async fn routes_and_methods_that_do_not_exist_are_refused() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    for path in [
        "/consoles",
        "/v1",
        "/v1/",
        "/v2/locks/a",
        "/v1/lock/a",
        "/v1/locks/a/steal",
        "/v1/locks/a/observe/b",
        "/v1/leases",
        "/v1/leases/acquire",
        "/v1/members/n1/steal",
        "/v1/nodes/1",
        "/metrics/",
        "/..",
    ] {
        api.get(path).await.problem(404, "not_found");
        api.send("POST", path, &[], b"").await.problem(404, "not_found");
    }
    for (method, path, allowed) in [
        ("GET", "/v1/locks/a/acquire", "POST"),
        ("PUT", "/v1/locks/a/acquire", "POST"),
        ("DELETE", "/v1/locks/a/release", "POST"),
        ("POST", "/v1/locks/a", "GET"),
        ("POST", "/v1/locks/a", "DELETE"),
        ("DELETE", "/v1/locks", "GET"),
        ("PATCH", "/v1/semaphores/a", "GET"),
        ("PUT", "/v1/semaphores/a", "DELETE"),
        ("POST", "/v1/elections/a", "DELETE"),
        ("POST", "/v1/elections", "GET"),
        ("POST", "/v1/locks/a/observe", "GET"),
        ("GET", "/v1/leases/extend", "POST"),
        ("DELETE", "/v1/leases/release", "POST"),
        ("POST", "/v1/waiters", "GET"),
        ("PUT", "/v1/members", "POST"),
        ("GET", "/v1/members/n1", "DELETE"),
        ("GET", "/v1/members/n1/close", "POST"),
        ("POST", "/metrics", "GET"),
        ("POST", "/livez", "GET"),
        ("BREW", "/v1/locks/a/acquire", "POST"),
    ] {
        let answer = api.send(method, path, &[], b"").await;
        answer.problem(405, "method_not_allowed");
        let allow = answer.header("allow").unwrap_or_default();
        assert!(allow.contains(allowed), "{method} {path}: Allow is {allow:?}");
    }
    deployment.check().await;
}

/// What the server sends back before it closes, at most for a while.
async fn converse(api: &Api, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(api.address()).await.unwrap();
    let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, bytes).await;
    let _ = tokio::io::AsyncWriteExt::shutdown(&mut stream).await;
    let mut said = Vec::new();
    let read = stream.read_to_end(&mut said);
    let _ = tokio::time::timeout(crate::support::PATIENCE, read).await.expect("the connection stays open");
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test]
async fn bytes_that_are_no_http_are_answered_with_4xx_or_not_at_all() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    let mut random = SmallRng::seed_from_u64(11);
    let mut conversations: Vec<Vec<u8>> = [
        "GET\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET  /  HTTP/1.1\r\n\r\n",
        "\r\n\r\n\r\n",
        "GET /livez HTTP/1.1\r\nhost\r\n\r\n",
        "GET /livez HTTP/1.1\r\n: x\r\n\r\n",
        "GET /livez HTTP/1.1\r\nhost: a\r\nx: \x01\r\n\r\n",
        "POST /v1/locks/bad/acquire HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n{}",
        "POST /v1/locks/bad/acquire HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n{}",
        "POST /v1/locks/bad/acquire HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        "POST /v1/locks/bad/acquire HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        "POST /v1/locks/bad/acquire HTTP/1.1\r\nhost: a\r\ntransfer-encoding: nonsense\r\n\r\n{}",
        "POST /v1/locks/bad/acquire HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense",
        "\x16\x03\x01\x02\x00\x01\x00\x01\u{fc}",
        "*1\r\n$4\r\nPING\r\n",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    conversations.push(format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "x".repeat(100_000)).into_bytes());
    conversations
        .push(format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(100_000)).into_bytes());
    conversations.push(format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "a: b\r\n".repeat(5_000)).into_bytes());
    for _ in 0..100 {
        let length = random.random_range(1..500);
        conversations.push((0..length).map(|_| random.random()).collect());
    }
    for bytes in &conversations {
        let said = converse(&api, bytes).await;
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
        // Nothing, or frames of HTTP/2 for who began that way, or a refusal.
        let fine = !said.starts_with("HTTP/1") || said.as_bytes()[9] == b'4';
        assert!(fine, "{shown:?}: {}", &said[..said.len().min(200)]);
    }
    deployment.check().await;
}

#[tokio::test]
async fn a_problem_has_its_form_on_a_connection_that_goes_on() {
    let deployment = Untouched::start().await;
    let api = deployment.server.api();
    let mut connection: Connection = api.connect().await.unwrap();
    let headers = [("content-type", "application/json")];
    for _ in 0..3 {
        connection
            .send(&api.request("POST", "/v1/locks/bad/acquire", &headers, b"{\"ttl\":1}"))
            .await
            .unwrap();
        connection.answer().await.unwrap().problem(400, "invalid_request");
        connection.send(&api.request("GET", "/v1/nothing", &[], b"")).await.unwrap();
        connection.answer().await.unwrap().problem(404, "not_found");
    }
    deployment.check().await;
}
