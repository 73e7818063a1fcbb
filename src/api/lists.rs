//! A page of a list: the same for all lists of names.

use garde::Validate;
use serde::Deserialize;
use utoipa::IntoParams;

use super::auth::permit_listing;
use super::fields::{Field, Given, digits, within};
use super::problem::Problem;
use super::request::Asked;
use super::state::{AppState, Limits};
use crate::access::Key;
use crate::domain::{Invalid, Name};
use crate::service::{Resource, View};

/// How many entries a page has where nobody says.
const LIMIT_DEFAULT: usize = 100;

/// Which names to list.
#[derive(Default, Deserialize, Validate, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
#[garde(context(Limits))]
pub struct ListQuery {
    /// Only names that begin with this.
    #[garde(dive)]
    #[param(value_type = Option<String>, max_length = 200, pattern = "^[A-Za-z0-9._~:@-]*$", example = "orders:")]
    prefix: Option<Given<Prefix>>,
    /// How many names to return at most.
    #[serde(deserialize_with = "digits")]
    #[garde(dive, custom(within(1..=1000)))]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 100, example = 100)]
    limit: Option<Given<u64>>,
    /// `next_cursor` of the previous page, with the same prefix.
    #[garde(dive)]
    #[param(value_type = Option<String>, pattern = "^(2[de]|3[0-9a]|4[0-9a-f]|5[0-9af]|6[1-9a-f]|7[0-9ae]){1,200}$", example = "6f72646572733a3432")]
    cursor: Option<Given<Cursor>>,
}

impl Asked for ListQuery {
    fn permit(&self, key: &Key) -> Result<(), Problem> {
        permit_listing(key, prefix(self.prefix.as_ref()))
    }
}

/// What the names of a page begin with.
pub fn prefix(given: Option<&Given<Prefix>>) -> &str {
    given.and_then(Given::get).map_or("", |prefix| prefix.0.as_str())
}

/// How many entries a page has at most.
pub fn limit(given: Option<&Given<u64>>) -> usize {
    given.and_then(Given::get).map_or(LIMIT_DEFAULT, |&limit| limit as usize)
}

/// What is held of a resource, page by page: as `show` has it, and the cursor of the next page.
pub async fn page<V>(
    app: &AppState,
    resource: Resource,
    asked: &ListQuery,
    show: impl Fn(Name, View) -> V,
) -> Result<(Vec<V>, Option<String>), Problem> {
    let after = asked.cursor.as_ref().and_then(Given::get).map(|cursor| cursor.0.as_str());
    let (prefix, limit) = (prefix(asked.prefix.as_ref()), limit(asked.limit.as_ref()));
    let page = app.service.list(resource, prefix, after, limit).await?;
    let shown = page.held.into_iter().map(|(name, view)| show(name, view)).collect();
    Ok((shown, page.next_after.as_deref().map(Cursor::text)))
}

/// The beginning of names.
#[derive(Debug)]
pub struct Prefix(String);

impl Field for Prefix {
    fn from_text(text: &str) -> Result<Self, Invalid> {
        match Name::is_prefix(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(Invalid::new("is not the beginning of a name")),
        }
    }
}

/// The name after which a page begins. Hex, so that nobody builds one by hand and relies on it.
#[derive(Debug)]
pub struct Cursor(String);

impl Cursor {
    fn text(after: &str) -> String {
        hex::encode(after)
    }
}

impl Field for Cursor {
    fn from_text(text: &str) -> Result<Self, Invalid> {
        let bytes = hex::decode(text).ok().filter(|_| !text.bytes().any(|byte| byte.is_ascii_uppercase()));
        match bytes.and_then(|bytes| String::from_utf8(bytes).ok()) {
            Some(name) if !name.is_empty() && Name::is_prefix(&name) => Ok(Self(name)),
            _ => Err(Invalid::new("is not a next_cursor of this list")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_text_form_and_nothing_else_is_one() {
        assert_eq!(Cursor::from_text(&Cursor::text("orders:42")).unwrap().0, "orders:42");
        for bad in ["", "x", "orders:42", "6f7", "ff", "2f", "00"] {
            assert!(Cursor::from_text(bad).is_err(), "{bad}");
        }
    }
}
