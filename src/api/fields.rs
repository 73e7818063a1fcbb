//! Fields of a body or a query: read by serde, checked by garde, and every mistake told at once.
//!
//! serde stops at the first value of a wrong type. A [`Given`] does not: it keeps what is wrong with it
//! until garde, which checks all fields, collects that too.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use garde::Validate;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::problem::{FieldError, Kind, Problem};
use super::state::Limits;
use crate::domain::{
    Candidate, Invalid, LeaseHandle, Metadata, Mode, Name, Owner, Primitive, Reason, RequestId, Token, Value,
};

/// Unknown names are repeated to the caller up to this length.
const ECHO_MAX: usize = 64;

/// A field as it came: its value, or what is wrong with it.
#[derive(Debug)]
pub struct Given<T>(Result<T, Invalid>);

impl<T> Given<T> {
    /// The value.
    pub fn take(self) -> Result<T, Problem> {
        self.0.map_err(|_| Problem::from(Kind::Internal))
    }

    /// The value, if it is right.
    pub fn get(&self) -> Option<&T> {
        self.0.as_ref().ok()
    }
}

/// The value of a field that may be left out.
pub fn optional<T>(given: Option<Given<T>>) -> Result<Option<T>, Problem> {
    given.map(Given::take).transpose()
}

/// The values of a list.
pub fn all<T>(given: Vec<Given<T>>) -> Result<Vec<T>, Problem> {
    given.into_iter().map(Given::take).collect()
}

impl<T> From<T> for Given<T> {
    fn from(value: T) -> Self {
        Self(Ok(value))
    }
}

/// A field that must be there and is not.
impl<T> Default for Given<T> {
    fn default() -> Self {
        Self(Err(Invalid::new("is required")))
    }
}

impl<T> Validate for Given<T> {
    type Context = Limits;

    fn validate_into(
        &self,
        _: &Limits,
        path: &mut dyn FnMut() -> garde::Path,
        report: &mut garde::error::Report,
    ) {
        if let Err(why) = &self.0 {
            report.append(path(), garde::Error::new(why));
        }
    }
}

/// What a [`Given`] can hold: made of a JSON string, number or object.
pub trait Field: Sized {
    /// What is said of a value of another type.
    const WANTED: &'static str = "must be a string";

    /// From a string.
    fn from_text(_: &str) -> Result<Self, Invalid> {
        Err(Invalid::new(Self::WANTED))
    }

    /// From a number: an integer, or why it is none of ours.
    fn from_number(_: Result<u64, &'static str>) -> Result<Self, Invalid> {
        Err(Invalid::new(Self::WANTED))
    }

    /// From an object, which has to be read to its end.
    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Result<Self, Invalid>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Err(Invalid::new(Self::WANTED)))
    }
}

macro_rules! text_fields {
    ($($type:ty: $make:path),+) => { $(
        impl Field for $type {
            fn from_text(text: &str) -> Result<Self, Invalid> {
                $make(text)
            }
        }
    )+ };
}

text_fields! {
    Name: Name::new, Owner: Owner::new, Candidate: Candidate::new, Value: Value::new,
    RequestId: RequestId::new, LeaseHandle: LeaseHandle::parse, Reason: Reason::new, Primitive: Primitive::new,
    Mode: Mode::parse
}

const INTEGER: &str = "must be an integer";

impl Field for u64 {
    const WANTED: &'static str = INTEGER;

    fn from_text(_: &str) -> Result<Self, Invalid> {
        Err(Invalid::new("must be an integer, not a string"))
    }

    fn from_number(number: Result<u64, &'static str>) -> Result<Self, Invalid> {
        number.map_err(Invalid::new)
    }
}

impl Field for Token {
    const WANTED: &'static str = INTEGER;

    fn from_number(number: Result<u64, &'static str>) -> Result<Self, Invalid> {
        Self::new(u64::from_number(number)?)
    }
}

impl Field for Metadata {
    const WANTED: &'static str = "must be an object of strings";

    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Result<Self, Invalid>, A::Error> {
        let (mut entries, mut wrong) = (BTreeMap::new(), None);
        while let Some((key, value)) = map.next_entry::<String, Given<String>>()? {
            match value.0 {
                Err(why) => wrong = Some(format!("{} {why}", echo(&key))),
                Ok(_) if entries.contains_key(&key) => {
                    wrong = Some(format!("has the key {} twice", echo(&key)))
                }
                Ok(value) => drop(entries.insert(key, value)),
            }
        }
        Ok(match wrong {
            Some(why) => Err(Invalid(why.into())),
            None => Self::new(entries),
        })
    }
}

impl Field for String {
    fn from_text(text: &str) -> Result<Self, Invalid> {
        Ok(text.to_owned())
    }
}

impl<'de, T: Field> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(GivenVisitor(PhantomData))
    }
}

struct GivenVisitor<T>(PhantomData<T>);

impl<'de, T: Field> Visitor<'de> for GivenVisitor<T> {
    type Value = Given<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Given<T>, E> {
        Ok(Given::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Given<T>, E> {
        Ok(Given(Err(Invalid::new(T::WANTED))))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Given<T>, E> {
        Ok(Given(T::from_number(Ok(number))))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Given<T>, E> {
        let number = u64::try_from(number).map_err(|_| "must not be negative");
        Ok(Given(T::from_number(number)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Given<T>, E> {
        let number = match number {
            // serde_json hands integers beyond 64 bits over as floats.
            _ if number.abs() >= u64::MAX as f64 => Err("is out of range"),
            _ if number.fract() != 0.0 => Err(INTEGER),
            _ if number < 0.0 => Err("must not be negative"),
            // 1000.0 is an integer to JSON Schema.
            _ => Ok(number as u64),
        };
        Ok(Given(T::from_number(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Given<T>, E> {
        Ok(Given(T::from_text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Given<T>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Given(Err(Invalid::new(T::WANTED))))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Given<T>, A::Error> {
        Ok(Given(T::from_map(map)?))
    }
}

/// For serde, of an integer in a query, where all is text: as JSON writes it, without a sign or leading zeros.
pub fn digits<'de, D: Deserializer<'de>, T: Field>(deserializer: D) -> Result<Option<Given<T>>, D::Error> {
    let text = Cow::<str>::deserialize(deserializer)?;
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let number = if plain && !text.is_empty() { Ok(text.parse().unwrap_or(u64::MAX)) } else { Err(INTEGER) };
    Ok(Some(Given(T::from_number(number))))
}

/// A rule for garde: an integer that is there lies within `range`.
pub fn within<G: Number>(range: RangeInclusive<u64>) -> impl FnOnce(&G, &Limits) -> garde::Result {
    move |given, _| match given.number() {
        Some(number) if !range.contains(&number) => {
            Err(garde::Error::new(format!("must be between {} and {}", range.start(), range.end())))
        }
        _ => Ok(()),
    }
}

/// What [`within`] looks at.
pub trait Number {
    /// The number, if it is there and is one.
    fn number(&self) -> Option<u64>;
}

impl Number for Given<u64> {
    fn number(&self) -> Option<u64> {
        self.get().copied()
    }
}

impl Number for Option<Given<u64>> {
    fn number(&self) -> Option<u64> {
        self.as_ref()?.number()
    }
}

/// A request made of a JSON object; of an empty one where the body is empty.
pub fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let body = if body.is_empty() { b"{}" } else { body };
    // serde would take a list for the fields in their order.
    let is_object = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    if !is_object {
        return Err(Problem::field("body", "must be a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = T::deserialize(&mut json).and_then(|asked| json.end().map(|()| asked));
    read.map_err(|error| {
        if !error.is_data() {
            return Problem::field("body", format!("is not valid JSON: {error}"));
        }
        // Once more, for the place: to note it on the way would cost the requests that are right.
        let mut json = serde_json::Deserializer::from_slice(body);
        let place = serde_path_to_error::deserialize::<_, T>(&mut json).err();
        let place = place.map(|error| error.path().to_string()).unwrap_or_default();
        let text = error.to_string();
        let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
        Problem::invalid(vec![explain(&place, text, "field")])
    })
}

/// A request made of a query string.
pub fn from_query<T: DeserializeOwned>(query: Option<&str>) -> Result<T, Problem> {
    let read: Result<T, serde_urlencoded::de::Error> = serde_urlencoded::from_str(query.unwrap_or_default());
    read.map_err(|error| Problem::invalid(vec![explain("", &error.to_string(), "query parameter")]))
}

/// Checks a request by its rules and those of this server.
pub fn check<T: Validate<Context = Limits>>(asked: &T, limits: &Limits) -> Result<(), Problem> {
    asked.validate_with(limits).map_err(|report| {
        let errors = report.iter().map(|(path, error)| FieldError::new(path.to_string(), error.to_string()));
        Problem::invalid(errors.collect())
    })
}

/// What serde has to say of a field, in the words of an API. `place`: of the field, or of the object that it is in.
fn explain(place: &str, error: &str, member: &str) -> FieldError {
    let told = |name: &str| match place.strip_suffix(name).unwrap_or(place).trim_end_matches('.') {
        "" => echo(name),
        object => format!("{object}.{}", echo(name)),
    };
    if let Some(rest) = error.strip_prefix("unknown field `") {
        let (name, known) = rest.rsplit_once("`, ").unwrap_or((rest, ""));
        // "expected one of `a`, `b`" has the separator in it.
        let (name, known) = rest.rsplit_once("`, expected ").unwrap_or((name, known));
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        let known = if known.is_empty() { "there are none".to_owned() } else { known.join(", ") };
        return FieldError::new(told(name), format!("is not a known {member}; known here: {known}"));
    }
    if let Some(name) = error.strip_prefix("duplicate field `") {
        return FieldError::new(told(name.trim_end_matches('`')), "is given twice");
    }
    let wanted = error.rsplit_once("expected ").map_or("of another type", |(_, wanted)| wanted);
    let wanted = if wanted == "a sequence" { "an array" } else { wanted };
    FieldError::new(place.to_owned(), format!("must be {wanted}"))
}

/// An unknown name as it is told back: cut, so that nobody has kilobytes mirrored.
fn echo(name: &str) -> String {
    match name.char_indices().nth(ECHO_MAX) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
