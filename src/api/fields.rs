//! Reading the fields of a body or a query: one pass, every mistake told at once.
//!
//! serde's derive stops at the first wrong field and words it for programmers. Here the object is
//! taken apart once, borrowing from the body, into at most a handful of [`Raw`] values; each
//! request then asks for its fields by name. What is wrong is collected, and what nobody asked
//! for is unknown, so that a typo never silently means a default.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use super::problem::{FieldError, Problem};
use crate::domain::{Invalid, Name};

/// More members than any request has. Beyond, the rest is not even kept: looking for
/// duplicates takes quadratic time.
const MEMBERS_MAX: usize = 64;
/// Unknown names are repeated to the caller up to this length.
const ECHO_MAX: usize = 64;

/// Where fields come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A JSON object in the body; a query is refused.
    Body,
    /// The query string; a body is ignored.
    Query,
}

impl Source {
    fn member(self) -> &'static str {
        match self {
            Self::Body => "field",
            Self::Query => "query parameter",
        }
    }
}

/// A value as it came, as much of it as any request needs.
#[derive(Debug)]
enum Raw<'a> {
    Null,
    Integer(u64),
    /// A number that is none of ours, and why.
    Number(&'static str),
    Text(Cow<'a, str>),
    List(Vec<Raw<'a>>),
    Map(Box<Members<'a>>),
    Bool,
}

/// Members of an object in the order given, without duplicates.
#[derive(Debug, Default)]
struct Members<'a> {
    list: SmallVec<[(Cow<'a, str>, Raw<'a>); 8]>,
    /// A name that came twice.
    twice: Option<Cow<'a, str>>,
    /// Whether there were more than [`MEMBERS_MAX`].
    overflow: bool,
}

/// Fields not asked for yet, and what was wrong so far.
#[derive(Debug)]
pub struct Fields<'a> {
    source: Source,
    members: Members<'a>,
    asked: SmallVec<[&'static str; 12]>,
    errors: Vec<FieldError>,
    /// The object could not be read at all: nothing is to be said about its fields.
    broken: bool,
}

impl<'a> Fields<'a> {
    fn new(source: Source) -> Self {
        let (members, asked, errors) = (Members::default(), SmallVec::new(), Vec::new());
        Self { source, members, asked, errors, broken: false }
    }

    /// The fields of a JSON object; of none where the body is empty.
    pub fn of_body(body: &'a [u8]) -> Self {
        let mut fields = Self::new(Source::Body);
        if body.is_empty() {
            return fields;
        }
        let mut json = serde_json::Deserializer::from_slice(body);
        let read = Object(&mut fields.members).deserialize(&mut json).and_then(|()| json.end());
        if let Err(error) = read {
            fields.members = Members::default();
            fields.broken = true;
            if error.is_data() {
                fields.wrong("body", "must be a JSON object");
            } else {
                fields.wrong("body", format!("is not valid JSON: {error}"));
            }
        }
        fields.check_members();
        fields
    }

    /// The fields of a query string.
    pub fn of_query(query: Option<&'a str>) -> Self {
        let mut fields = Self::new(Source::Query);
        for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            fields.members.push(name, Raw::Text(value));
        }
        fields.check_members();
        fields
    }

    fn check_members(&mut self) {
        if let Some(name) = self.members.twice.take() {
            self.wrong(echo(&name), "is given twice");
        }
        if self.members.overflow {
            self.broken = true;
            let whole = if self.source == Source::Body { "body" } else { "query" };
            self.wrong(whole, format!("has more than {MEMBERS_MAX} members"));
        }
    }

    /// Notes that `field` is wrong.
    pub fn wrong(&mut self, field: impl Into<Cow<'static, str>>, message: impl Into<Cow<'static, str>>) {
        self.errors.push(FieldError { field: field.into(), message: message.into() });
    }

    /// What `read` makes of a field; `None` when it is absent, null or wrong, which is noted.
    fn read<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(Raw<'a>) -> Result<T, Cow<'static, str>>,
    ) -> Option<T> {
        self.asked.push(field);
        let at = self.members.list.iter().position(|(name, _)| name == field)?;
        let (_, raw) = self.members.list.swap_remove(at);
        if matches!(raw, Raw::Null) {
            return None;
        }
        read(raw).map_err(|message| self.wrong(field, message)).ok()
    }

    /// An integer within `range`.
    pub fn integer(&mut self, field: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let in_query = self.source == Source::Query;
        self.read(field, |raw| {
            let number = match raw {
                Raw::Integer(number) => number,
                Raw::Text(digits) if in_query => {
                    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                        return Err("must be an integer".into());
                    }
                    digits.parse().unwrap_or(u64::MAX)
                }
                Raw::Number(why) => return Err(why.into()),
                Raw::Text(_) => return Err("must be an integer, not a string".into()),
                _ => return Err("must be an integer".into()),
            };
            if range.contains(&number) {
                Ok(number)
            } else {
                Err(format!("must be between {} and {}", range.start(), range.end()).into())
            }
        })
    }

    /// A text that makes a domain type.
    pub fn text<T>(
        &mut self,
        field: &'static str,
        make: impl FnOnce(&str) -> Result<T, Invalid>,
    ) -> Option<T> {
        self.read(field, |raw| match raw {
            Raw::Text(text) => make(&text).map_err(|Invalid(why)| why),
            _ => Err("must be a string".into()),
        })
    }

    /// A flat map of strings.
    pub fn map(&mut self, field: &'static str) -> Option<BTreeMap<String, String>> {
        let mut wrong = None;
        let map = self.read(field, |raw| {
            let Raw::Map(members) = raw else { return Err("must be an object of strings".into()) };
            if let Some(name) = members.twice {
                return Err(format!("has the key {} twice", echo(&name)).into());
            }
            if members.overflow {
                return Err("has too many entries".into());
            }
            let mut map = BTreeMap::new();
            for (key, value) in members.list {
                match value {
                    Raw::Text(value) => {
                        map.insert(key.into_owned(), value.into_owned());
                    }
                    _ => wrong = Some(format!("{field}.{}", echo(&key))),
                }
            }
            Ok(map)
        });
        match wrong {
            Some(at) => {
                self.wrong(at, "must be a string");
                None
            }
            None => map,
        }
    }

    /// A list of names, each of which is checked.
    pub fn names(&mut self, field: &'static str, count: RangeInclusive<usize>) -> Option<Vec<Name>> {
        let mut wrong = SmallVec::<[(usize, Cow<'static, str>); 4]>::new();
        let names = self.read(field, |raw| {
            let Raw::List(list) = raw else { return Err("must be an array of names".into()) };
            if !count.contains(&list.len()) {
                return Err(format!("must have {} to {} names", count.start(), count.end()).into());
            }
            let mut names: Vec<Name> = Vec::with_capacity(list.len());
            for (i, raw) in list.into_iter().enumerate() {
                let Raw::Text(text) = raw else {
                    wrong.push((i, "must be a string".into()));
                    continue;
                };
                match Name::new(&text) {
                    Ok(name) if names.contains(&name) => wrong.push((i, "is given twice".into())),
                    Ok(name) => names.push(name),
                    Err(Invalid(why)) => wrong.push((i, why)),
                }
            }
            Ok(names)
        });
        let names = if wrong.is_empty() { names } else { None };
        for (i, why) in wrong {
            self.wrong(format!("{field}[{i}]"), why);
        }
        names
    }

    /// `value`, read from `field`, may not be missing.
    pub fn require<T>(&mut self, field: &'static str, value: Option<T>) -> Option<T> {
        let told = |error: &FieldError| {
            error
                .field
                .strip_prefix(field)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['[', '.']))
        };
        if value.is_none() && !self.broken && !self.errors.iter().any(told) {
            self.wrong(field, "is required");
        }
        value
    }

    /// Whatever is left is unknown. `value` is `None` only when something was wrong.
    pub fn finish<T>(mut self, value: Option<T>) -> Result<T, Problem> {
        if !self.broken && !self.members.list.is_empty() {
            for (name, _) in std::mem::take(&mut self.members.list) {
                let known = match self.asked.as_slice() {
                    [] => "there are none".to_owned(),
                    asked => asked.join(", "),
                };
                let message = format!("is not a known {}; known here: {known}", self.source.member());
                self.wrong(echo(&name), message);
            }
        }
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            None if self.errors.is_empty() => Err(Problem::internal()),
            _ => Err(Problem::invalid(self.errors)),
        }
    }

    /// The names that were asked for, for the test that holds the document against the code.
    #[cfg(test)]
    pub fn asked(&self) -> &[&'static str] {
        &self.asked
    }
}

/// An unknown name as it is told back: cut, so that nobody has kilobytes mirrored.
fn echo(name: &str) -> String {
    match name.char_indices().nth(ECHO_MAX) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

impl<'a> Members<'a> {
    fn push(&mut self, name: Cow<'a, str>, raw: Raw<'a>) {
        if self.list.len() == MEMBERS_MAX {
            self.overflow = true;
        } else if self.list.iter().any(|(known, _)| *known == name) {
            self.twice = Some(name);
        } else {
            self.list.push((name, raw));
        }
    }

    fn fill<A: MapAccess<'a>>(&mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(name)) = map.next_key()? {
            if self.overflow {
                map.next_value::<IgnoredAny>()?;
            } else {
                self.push(name, map.next_value()?);
            }
        }
        Ok(())
    }
}

/// A JSON object and nothing else, read in place: members are half a kilobyte.
struct Object<'m, 'a>(&'m mut Members<'a>);

impl<'de> DeserializeSeed<'de> for Object<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Object<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        self.0.fill(map)
    }
}

/// A member's name, borrowed where it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Raw::deserialize(deserializer)? {
            Raw::Text(text) => Ok(Self(text)),
            _ => Err(D::Error::custom("key must be a string")),
        }
    }
}

impl<'de> Deserialize<'de> for Raw<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RawVisitor;
        impl<'de> Visitor<'de> for RawVisitor {
            type Value = Raw<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any JSON value")
            }
            fn visit_bool<E>(self, _: bool) -> Result<Raw<'de>, E> {
                Ok(Raw::Bool)
            }
            fn visit_u64<E>(self, number: u64) -> Result<Raw<'de>, E> {
                Ok(Raw::Integer(number))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Raw<'de>, E> {
                Ok(u64::try_from(number).map_or(Raw::Number("must not be negative"), Raw::Integer))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Raw<'de>, E> {
                // serde_json hands integers beyond 64 bits over as floats.
                let why =
                    if number.abs() >= u64::MAX as f64 { "is out of range" } else { "must be an integer" };
                Ok(Raw::Number(why))
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Raw<'de>, E> {
                Ok(Raw::Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Raw<'de>, E> {
                Ok(Raw::Text(Cow::Owned(text.to_owned())))
            }
            fn visit_unit<E>(self) -> Result<Raw<'de>, E> {
                Ok(Raw::Null)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw<'de>, A::Error> {
                let mut list = Vec::new();
                while let Some(raw) = seq.next_element()? {
                    list.push(raw);
                }
                Ok(Raw::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Raw<'de>, A::Error> {
                let mut members = Box::<Members<'de>>::default();
                members.fill(map)?;
                Ok(Raw::Map(members))
            }
        }
        deserializer.deserialize_any(RawVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Owner;

    fn errors<T: fmt::Debug>(result: Result<T, Problem>) -> Vec<(String, String)> {
        let problem = result.expect_err("nothing was found wrong");
        let json: serde_json::Value = serde_json::from_slice(&problem.to_json("r")).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        json["errors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|error| (text(&error["field"]), text(&error["message"])))
            .collect()
    }

    fn ttl(body: &str) -> Result<Option<u64>, Problem> {
        let mut fields = Fields::of_body(body.as_bytes());
        let ttl = fields.integer("ttl_ms", 100..=300_000);
        fields.finish(Some(ttl))
    }

    #[test]
    fn an_absent_a_null_and_an_empty_body_mean_absent() {
        for body in ["", "{}", r#"{"ttl_ms":null}"#, " {\n} "] {
            assert_eq!(ttl(body).unwrap(), None, "{body}");
        }
        assert_eq!(ttl(r#"{"ttl_ms":100}"#).unwrap(), Some(100));
    }

    #[test]
    fn a_number_that_is_no_integer_in_range_is_refused_with_the_reason() {
        for (value, why) in [
            ("1.5", "must be an integer"),
            ("1e3", "must be an integer"),
            ("1000.0", "must be an integer"),
            ("-1", "must not be negative"),
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
            let found = errors(ttl(&format!(r#"{{"ttl_ms":{value}}}"#)));
            assert_eq!(found, [("ttl_ms".to_owned(), why.to_owned())], "{value}");
        }
    }

    #[test]
    fn what_is_no_json_object_is_refused_as_a_whole() {
        for body in ["{", "null", "[]", "1", "\"x\"", "{}{}", "{'a':1}", "\u{feff}{}", "{\"ttl_ms\":1e999}"] {
            let found = errors(ttl(body));
            assert_eq!(found.len(), 1, "{body}");
            assert_eq!(found[0].0, "body", "{body}");
        }
        assert_eq!(errors(ttl("[]"))[0].1, "must be a JSON object");
        let mut fields = Fields::of_body(b"\xff\xfe{}");
        let ttl = fields.integer("ttl_ms", 1..=2);
        assert_eq!(errors(fields.finish(Some(ttl)))[0].0, "body");
    }

    #[test]
    fn a_field_given_twice_is_refused() {
        let found = errors(ttl(r#"{"ttl_ms":1000,"ttl_ms":1000}"#));
        assert_eq!(found, [("ttl_ms".to_owned(), "is given twice".to_owned())]);
    }

    #[test]
    fn an_unknown_field_is_refused_and_the_known_ones_are_named() {
        let found = errors(ttl(r#"{"ttl":1000}"#));
        let why = "is not a known field; known here: ttl_ms".to_owned();
        assert_eq!(found, [("ttl".to_owned(), why)]);
    }

    #[test]
    fn an_unknown_name_is_not_mirrored_at_length() {
        let found = errors(ttl(&format!(r#"{{"{}":1}}"#, "ü".repeat(1000))));
        assert_eq!(found[0].0.chars().count(), ECHO_MAX + 1);
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let body = br#"{"ttl_ms":1,"owner":7,"metadata":{"a":1},"tll":0}"#;
        let mut fields = Fields::of_body(body);
        let ttl = fields.integer("ttl_ms", 100..=200);
        fields.text("owner", Owner::new);
        fields.map("metadata");
        let id = fields.text("lease_id", Owner::new);
        fields.require("lease_id", id);
        let found = errors(fields.finish(ttl));
        let told: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(told, ["ttl_ms", "owner", "metadata.a", "lease_id", "tll"]);
    }

    #[test]
    fn a_wrong_field_is_not_called_missing_as_well() {
        let mut fields = Fields::of_body(br#"{"lease_id":7}"#);
        let id = fields.text("lease_id", Owner::new);
        let id = fields.require("lease_id", id);
        assert_eq!(errors(fields.finish(id)), [("lease_id".to_owned(), "must be a string".to_owned())]);
    }

    #[test]
    fn names_are_checked_one_by_one() {
        let mut fields = Fields::of_body(br#"{"names":["a","b/c","a",7]}"#);
        let names = fields.names("names", 2..=64);
        let names = fields.require("names", names);
        let found = errors(fields.finish(names));
        let told: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(told, ["names[1]", "names[2]", "names[3]"]);
        for bad in [r#"{"names":["a"]}"#, r#"{"names":"a"}"#, r#"{"names":{}}"#] {
            let mut fields = Fields::of_body(bad.as_bytes());
            let names = fields.names("names", 2..=64);
            let names = fields.require("names", names);
            assert_eq!(errors(fields.finish(names))[0].0, "names", "{bad}");
        }
    }

    #[test]
    fn escaped_text_is_unescaped() {
        let mut fields = Fields::of_body(br#"{"owner":"a\u0062\n"}"#);
        let owner = fields.text("owner", Owner::new);
        assert_eq!(fields.finish(owner).unwrap().as_str(), "ab\n");
    }

    #[test]
    fn a_body_of_very_many_members_is_refused_without_comparing_them_all() {
        let members: Vec<String> = (0..8000).map(|i| format!(r#""k{i}":0"#)).collect();
        let found = errors(ttl(&format!("{{{}}}", members.join(","))));
        assert_eq!(found, [("body".to_owned(), "has more than 64 members".to_owned())]);
    }

    #[test]
    fn deeply_nested_json_is_refused_and_does_no_harm() {
        let body = format!(r#"{{"ttl_ms":{}{}}}"#, "[".repeat(20_000), "]".repeat(20_000));
        assert_eq!(errors(ttl(&body))[0].0, "body");
    }

    #[test]
    fn integers_of_a_query_are_digits() {
        let limit = |query: &'static str| {
            let mut fields = Fields::of_query(Some(query));
            let limit = fields.integer("limit", 1..=1000);
            fields.finish(Some(limit))
        };
        assert_eq!(limit("limit=10").unwrap(), Some(10));
        assert_eq!(limit("").unwrap(), None);
        for bad in ["limit=", "limit=+1", "limit=-1", "limit=1.0", "limit=0", "limit=1001", "limit=x"] {
            assert_eq!(errors(limit(bad))[0].0, "limit", "{bad}");
        }
        let why = "is not a known query parameter; known here: limit".to_owned();
        assert_eq!(errors(limit("lmit=1")), [("lmit".to_owned(), why)]);
        assert_eq!(errors(limit("limit=1&limit=2"))[0].1, "is given twice");
    }
}
