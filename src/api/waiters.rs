//! Who waits at this server: `/v1/waiters`.

use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::caller::Caller;
use super::fields::{Field, Given, digits, within};
use super::lists::{self, Prefix};
use super::request::{Answer, Asked, Json, Query};
use super::state::{Context, Limits};
use crate::domain::{Invalid, Metadata, Name, Primitive};
use crate::service::Waiter;

/// One who waits.
#[derive(Serialize, ToSchema)]
#[schema(as = Waiter, example = json!({
    "primitive": "lock", "name": "orders:42", "owner": "worker-7", "position": 1, "waited_ms": 1200, "wait_ms": 5000,
}))]
pub struct WaiterView {
    /// `lock`, `multilock`, `semaphore` or `election`.
    #[schema(value_type = String, example = "lock")]
    primitive: &'static str,
    /// For what; left out for a multilock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "orders:42")]
    name: Option<Name>,
    /// The locks of a multilock.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, required = false)]
    names: Vec<Name>,
    /// The label of the request; in an election, the candidate.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    owner: Option<Box<str>>,
    /// What the request attached.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    metadata: Metadata,
    /// The position in this server's queue; 1 is next. That of a multilock is the last of its positions in the queues of its locks.
    #[schema(value_type = u64, minimum = 1)]
    position: usize,
    /// How long it has waited, in milliseconds.
    waited_ms: u64,
    /// How long it waits at most, in milliseconds.
    #[schema(maximum = 86_400_000)]
    wait_ms: u64,
}

impl From<Waiter> for WaiterView {
    fn from(Waiter { visitor, position, waited_ms, .. }: Waiter) -> Self {
        let mut names = visitor.names;
        let name = if visitor.primitive == Primitive::Multilock { None } else { names.pop() };
        let (primitive, owner, metadata) = (visitor.primitive.name(), visitor.owner, visitor.metadata);
        Self { primitive, name, names, owner, metadata, position, waited_ms, wait_ms: visitor.wait_ms }
    }
}

/// A page of those who wait.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "waiters": [
        {"primitive": "lock", "name": "orders:42", "owner": "worker-7", "position": 1, "waited_ms": 1200, "wait_ms": 5000},
        {"primitive": "multilock", "names": ["orders:42", "stock:7"], "position": 2, "waited_ms": 300, "wait_ms": 60_000},
    ],
    "next_cursor": "000000000000002a",
}))]
pub struct WaiterList {
    /// Those who wait, in the order of arrival.
    waiters: Vec<WaiterView>,
    /// Cursor of the next page; left out on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Which of those who wait to list.
#[derive(Default, Deserialize, Validate, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
#[garde(context(Limits))]
pub struct ListWaiters {
    /// Only those who wait for a `lock`, `multilock`, `semaphore` or `election`.
    #[garde(dive)]
    #[param(value_type = Option<String>, pattern = "^(lock|multilock|semaphore|election)$", example = "lock")]
    primitive: Option<Given<Primitive>>,
    /// Only those who wait for a name that begins with this.
    #[garde(dive)]
    #[param(value_type = Option<String>, max_length = 200, pattern = "^[A-Za-z0-9._~:@-]*$", example = "orders:")]
    prefix: Option<Given<Prefix>>,
    /// How many to return at most.
    #[serde(deserialize_with = "digits")]
    #[garde(dive, custom(within(1..=1000)))]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 100, example = 100)]
    limit: Option<Given<u64>>,
    /// `next_cursor` of the previous page, with the same parameters.
    #[garde(dive)]
    #[param(value_type = Option<String>, pattern = "^[0-9a-f]{16}$", example = "000000000000002a")]
    cursor: Option<Given<Arrival>>,
}

impl Asked for ListWaiters {}

/// The number of an arrival, after which a page begins.
#[derive(Debug, Clone, Copy)]
struct Arrival(u64);

impl Field for Arrival {
    fn from_text(text: &str) -> Result<Self, Invalid> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match u64::from_str_radix(text, 16) {
            Ok(number) if is_hex => Ok(Self(number)),
            _ => Err(Invalid::new("is not a next_cursor of this list")),
        }
    }
}

/// List who waits at this server.
///
/// In the order of arrival, and only for names that the key may touch. Those who wait at other servers are not listed. What it tells is over soon: nothing should depend on it.
#[utoipa::path(get, path = "/v1/waiters", params(ListWaiters),
    responses((status = 200, description = "A page of those who wait.", body = WaiterList)))]
pub async fn list_waiters(
    app: Context,
    caller: Caller,
    Query(asked): Query<ListWaiters>,
) -> Answer<WaiterList> {
    let primitive = asked.primitive.as_ref().and_then(Given::get);
    let prefix = lists::prefix(asked.prefix.as_ref());
    let after = asked.cursor.as_ref().and_then(Given::get).map_or(0, |arrival| arrival.0);
    let limit = lists::limit(asked.limit.as_ref());
    let mut found = app.service.waiters(after, limit + 1, |visitor| {
        primitive.is_none_or(|primitive| *primitive == visitor.primitive)
            && visitor.names.iter().any(|name| name.as_str().starts_with(prefix))
            && caller.covers(&visitor.names)
    });
    let has_more = found.len() > limit;
    found.truncate(limit);
    let last = found.last().filter(|_| has_more);
    let next_cursor = last.map(|waiter| format!("{:016x}", waiter.number));
    Ok(Json(WaiterList { waiters: found.into_iter().map(WaiterView::from).collect(), next_cursor }))
}
