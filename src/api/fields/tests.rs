//! What is said of fields that are wrong.

use super::*;

#[derive(Debug, Default, Deserialize, Validate)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits as limits))]
struct Sample {
    #[garde(dive, custom(within(100..=limits.max_ttl_ms)))]
    ttl_ms: Option<Given<u64>>,
    #[garde(dive)]
    owner: Option<Given<Owner>>,
    #[garde(dive)]
    metadata: Option<Given<Metadata>>,
    #[serde(default)]
    #[garde(dive)]
    lease_id: Given<LeaseHandle>,
    #[serde(default)]
    #[garde(dive)]
    names: Vec<Given<Name>>,
}

#[derive(Debug, Default, Deserialize, Validate)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits))]
struct Page {
    #[serde(default, deserialize_with = "digits")]
    #[garde(dive, custom(within(1..=1000)))]
    limit: Option<Given<u64>>,
}

const LEASE_ID: &str = "0123456789abcdef0123456789abcdef0000000000002a";

fn errors<T: Validate<Context = Limits> + fmt::Debug>(read: Result<T, Problem>) -> Vec<(String, String)> {
    let problem = match read {
        Ok(asked) => check(&asked, &Limits::default()).expect_err("nothing was found wrong"),
        Err(problem) => problem,
    };
    let json: serde_json::Value = serde_json::from_slice(&problem.to_json("r")).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let errors = json["errors"].as_array().unwrap().iter();
    errors.map(|error| (text(&error["field"]), text(&error["message"]))).collect()
}

/// What is said of a body that is right but for these fields.
fn said(more: &str) -> Vec<(String, String)> {
    errors(from_json::<Sample>(format!(r#"{{"lease_id":"{LEASE_ID}",{more}}}"#).as_bytes()))
}

fn one(field: &str, message: &str) -> Vec<(String, String)> {
    vec![(field.to_owned(), message.to_owned())]
}

#[test]
fn absent_and_null_are_the_same() {
    for more in ["", r#","ttl_ms":null,"owner":null,"metadata":null"#] {
        let body = format!(r#" {{"lease_id":"{LEASE_ID}"{more}}} "#);
        let asked: Sample = from_json(body.as_bytes()).unwrap();
        check(&asked, &Limits::default()).unwrap();
        assert!(asked.ttl_ms.is_none() && asked.owner.is_none() && asked.metadata.is_none());
    }
    for body in ["", "{}", r#"{"lease_id":null}"#] {
        assert_eq!(errors(from_json::<Sample>(body.as_bytes())), one("lease_id", "is required"), "{body}");
    }
}

#[test]
fn a_number_that_is_no_integer_in_range_is_refused_with_the_reason() {
    for (value, why) in [
        ("1.5", "must be an integer"),
        ("-1", "must not be negative"),
        ("-1.0", "must not be negative"),
        ("99", "must be between 100 and 300000"),
        ("300001", "must be between 100 and 300000"),
        ("18446744073709551615", "must be between 100 and 300000"),
        ("18446744073709551616", "is out of range"),
        ("99999999999999999999999999", "is out of range"),
        (r#""1000""#, "must be an integer, not a string"),
        ("true", "must be an integer"),
        ("[1000]", "must be an integer"),
        (r#"{"ms":1000}"#, "must be an integer"),
    ] {
        assert_eq!(said(&format!(r#""ttl_ms":{value}"#)), one("ttl_ms", why), "{value}");
    }
    for value in ["1000", "1000.0", "1e3", "100", "300000"] {
        let body = format!(r#"{{"lease_id":"{LEASE_ID}","ttl_ms":{value}}}"#);
        check(&from_json::<Sample>(body.as_bytes()).unwrap(), &Limits::default()).unwrap();
    }
}

#[test]
fn what_is_no_json_object_is_refused_as_a_whole() {
    for body in
        [&b"{"[..], b"null", b"[]", b"1", b"\"x\"", b"{}{}", b"{'a':1}", b"\xef\xbb\xbf{}", b"\xff\xfe{}"]
    {
        assert_eq!(errors(from_json::<Sample>(body))[0].0, "body", "{body:?}");
    }
    assert_eq!(errors(from_json::<Sample>(b"[]"))[0].1, "must be a JSON object");
    assert_eq!(said(r#""ttl_ms":1e999"#)[0].0, "body");
}

#[test]
fn a_field_given_twice_is_refused() {
    assert_eq!(said(r#""ttl_ms":1000,"ttl_ms":1000"#), one("ttl_ms", "is given twice"));
    assert_eq!(said(r#""metadata":{"a":"1","a":"1"}"#), one("metadata", "has the key a twice"));
}

#[test]
fn an_unknown_field_is_refused_and_the_known_ones_are_named() {
    let why = "is not a known field; known here: ttl_ms, owner, metadata, lease_id, names";
    assert_eq!(said(r#""ttl":1000"#), one("ttl", why));
    let long = format!(r#""{}":1"#, "ü".repeat(1000));
    assert_eq!(said(&long)[0].0.chars().count(), ECHO_MAX + 1);
}

#[test]
fn all_mistakes_are_told_at_once() {
    let body = br#"{"ttl_ms":1,"owner":7,"metadata":{"a":1},"names":["a","b/c",7]}"#;
    let found = errors(from_json::<Sample>(body));
    let mut told: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
    told.sort_unstable();
    assert_eq!(told, ["lease_id", "metadata", "names[1]", "names[2]", "owner", "ttl_ms"]);
}

#[test]
fn a_list_that_is_none_is_named() {
    assert_eq!(said(r#""names":"a""#), one("names", "must be an array"));
    assert_eq!(said(r#""names":{}"#)[0].0, "names");
}

#[test]
fn metadata_beyond_its_bounds_is_refused() {
    let many: BTreeMap<String, String> = (0..17).map(|i| (format!("k{i}"), String::new())).collect();
    let long = BTreeMap::from([("k".to_owned(), "x".repeat(1024))]);
    for map in [many, long] {
        let found = said(&format!(r#""metadata":{}"#, serde_json::to_string(&map).unwrap()));
        assert_eq!(found[0].0, "metadata");
    }
}

#[test]
fn a_lease_id_of_impossible_shape_is_not_repeated() {
    for body in [r#"{"lease_id":"hunter2"}"#, r#"{"lease_id":["hunter2"]}"#] {
        let found = errors(from_json::<Sample>(body.as_bytes()));
        assert_eq!(found[0].0, "lease_id");
        assert!(!found[0].1.contains("hunter2"), "{found:?}");
    }
}

#[test]
fn deeply_nested_json_is_refused_and_does_no_harm() {
    let more = format!(r#""ttl_ms":{}{}"#, "[".repeat(20_000), "]".repeat(20_000));
    assert!(["ttl_ms", "body"].contains(&said(&more)[0].0.as_str()));
}

#[test]
fn integers_of_a_query_are_digits() {
    let read = |query: &str| from_query::<Page>(Some(query));
    for (query, limit) in [("limit=10", Some(10)), ("", None)] {
        let page = read(query).unwrap();
        check(&page, &Limits::default()).unwrap();
        assert_eq!(optional(page.limit).unwrap(), limit);
    }
    for bad in ["", "+1", "-1", "1.0", "0", "1001", "x", "01", "99999999999999999999999"] {
        assert_eq!(errors(read(&format!("limit={bad}")))[0].0, "limit", "{bad}");
    }
    assert_eq!(errors(read("lmit=1")), one("lmit", "is not a known query parameter; known here: limit"));
    assert_eq!(errors(read("limit=1&limit=2")), one("limit", "is given twice"));
}
