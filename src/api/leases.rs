//! Acquire, extend, release and hold: written once, for locks, multilocks, semaphores and elections.
//!
//! A resource says what is asked for ([`Asked`]) and what its lease looks like ([`Show`]); the way there and back is
//! the same. The fields that all acquisitions, and all leases, have are declared once, by the macros
//! below: serde cannot both flatten a struct into others and refuse unknown fields.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use garde::Validate;
use hyper::body::{Frame, SizeHint};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, SchemaType, Type};

use super::caller::Caller;
use super::fields::{self, Given, within};
use super::heartbeat::Heartbeats;
use super::problem::{Kind, Problem};
use super::request::{Answer, Asked, Json};
use super::state::{AppState, Limits};
use super::stream;
use super::views::{Released, Show};
use crate::domain::{self, LeaseHandle, MAX_HOLD_MS_MAX};
use crate::service::{AcquireOptions, Granted, Held, Target};

/// The shortest ttl, in milliseconds.
pub const TTL_MS_MIN: u64 = 100;
/// The ttl where none is given, unless the server's longest is shorter.
const TTL_MS_DEFAULT: u64 = 30_000;

/// The ttl where none is given.
pub(super) fn ttl_default(limits: &Limits) -> u64 {
    TTL_MS_DEFAULT.min(limits.max_ttl_ms)
}

/// The rule of `max_hold_ms`: no shorter than the ttl that it goes with.
pub(super) fn max_hold(
    ttl: &Option<Given<u64>>,
    limits: &Limits,
) -> impl FnOnce(&Option<Given<u64>>, &Limits) -> garde::Result + use<> {
    let ttl_ms = ttl.as_ref().map_or(Some(ttl_default(limits)), |ttl| ttl.get().copied());
    within(ttl_ms.unwrap_or(TTL_MS_MIN).min(MAX_HOLD_MS_MAX)..=MAX_HOLD_MS_MAX)
}

/// Declares the body of an acquisition: its own fields, and those that every acquisition has. `asked`: more of [`Asked`].
macro_rules! acquisition {
    (
        $(#[$meta:meta])* pub struct $name:ident { $($(#[$own:meta])* $field:ident: $type:ty,)* }
        $(asked { $($asked:tt)* })?
    ) => {
        #[derive(serde::Deserialize, garde::Validate, utoipa::ToSchema)]
        $(#[$meta])*
        #[serde(deny_unknown_fields)]
        #[garde(context($crate::api::state::Limits as limits))]
        pub struct $name {
            $($(#[$own])* $field: $type,)*
            /// Life of the lease without extension, in milliseconds: at most the server's `max_ttl`. Left out: 30 000, or `max_ttl` where that is shorter.
            #[garde(dive, custom($crate::api::fields::within($crate::api::leases::TTL_MS_MIN..=limits.max_ttl_ms)))]
            #[schema(value_type = Option<u64>, minimum = 100, maximum = 300_000, example = 30_000)]
            ttl_ms: Option<$crate::api::fields::Given<u64>>,
            /// How long to wait, in milliseconds: at most the server's `max_wait`. 0 or left out: one attempt.
            #[garde(dive, custom($crate::api::fields::within(0..=limits.max_wait_ms)))]
            #[schema(value_type = Option<u64>, minimum = 0, maximum = 60_000, example = 5000)]
            wait_ms: Option<$crate::api::fields::Given<u64>>,
            /// However often the lease is extended, it ends this long after it was acquired, in milliseconds: from `ttl_ms` to 30 days. Left out: there is no such limit.
            #[garde(dive, custom($crate::api::leases::max_hold(&self.ttl_ms, limits)))]
            #[schema(value_type = Option<u64>, minimum = 100, maximum = 2_592_000_000_u64, example = 3_600_000)]
            max_hold_ms: Option<$crate::api::fields::Given<u64>>,
            /// If the lease expires instead of being released, the name stays taken for this much longer, in milliseconds, so that a holder that was paused can notice. Left out: 0.
            #[garde(dive, custom($crate::api::fields::within(0..=$crate::domain::LOCK_DELAY_MS_MAX)))]
            #[schema(value_type = Option<u64>, minimum = 0, maximum = 60_000, example = 0)]
            lock_delay_ms: Option<$crate::api::fields::Given<u64>>,
            /// Makes a retry safe: the same `request_id` gets the same lease and token back while it is held. A request that waits and ends without the lease keeps its place in the queue of the server for 10 s, for the next one with its `request_id`. The header `Idempotency-Key` means the same.
            #[garde(dive)]
            #[schema(value_type = Option<String>, min_length = 8, max_length = 128, pattern = "^[A-Za-z0-9._~:@-]+$")]
            request_id: Option<$crate::api::fields::Given<$crate::domain::RequestId>>,
        }

        impl $crate::api::request::Asked for $name {
            fn request_id(
                &mut self,
            ) -> Option<&mut Option<$crate::api::fields::Given<$crate::domain::RequestId>>> {
                Some(&mut self.request_id)
            }

            $($($asked)*)?
        }

        impl $name {
            /// What is asked for, with `note` to be stored beside the lease.
            fn options(
                self,
                limits: &$crate::api::state::Limits,
                note: $crate::service::Note,
            ) -> Result<$crate::service::AcquireOptions, $crate::api::problem::Problem> {
                use $crate::api::{fields::optional, leases::ttl_default};
                Ok($crate::service::AcquireOptions {
                    ttl_ms: optional(self.ttl_ms)?.unwrap_or_else(|| ttl_default(limits)),
                    wait_ms: optional(self.wait_ms)?.unwrap_or(0),
                    note: $crate::service::Note {
                        max_hold_ms: optional(self.max_hold_ms)?,
                        lock_delay_ms: optional(self.lock_delay_ms)?.filter(|&delay_ms| delay_ms > 0),
                        ..note
                    },
                    request: optional(self.request_id)?,
                })
            }
        }
    };
}
pub(super) use acquisition;

/// The same for what has an owner: locks, multilocks and semaphores.
macro_rules! owned_acquisition {
    (
        $(#[$meta:meta])* pub struct $name:ident { $($(#[$own:meta])* $field:ident: $type:ty,)* }
        $(asked { $($asked:tt)* })?
    ) => {
        $crate::api::leases::acquisition! {
            $(#[$meta])*
            pub struct $name {
                $($(#[$own])* $field: $type,)*
                /// Free label of the holder, shown to everyone who may read the lock or semaphore.
                #[garde(dive)]
                #[schema(value_type = Option<String>, max_length = 128)]
                owner: Option<$crate::api::fields::Given<$crate::domain::Owner>>,
                #[garde(dive)]
                #[schema(schema_with = $crate::api::leases::metadata_schema, required = false)]
                metadata: Option<$crate::api::fields::Given<$crate::domain::Metadata>>,
            }
            $(asked { $($asked)* })?
        }

        impl $name {
            /// What is asked for.
            fn owned_options(
                mut self,
                limits: &$crate::api::state::Limits,
            ) -> Result<$crate::service::AcquireOptions, $crate::api::problem::Problem> {
                use $crate::api::fields::optional;
                let owner = optional(self.owner.take())?;
                let metadata = optional(self.metadata.take())?.unwrap_or_default();
                self.options(limits, $crate::service::Note { owner, metadata, ..Default::default() })
            }
        }
    };
}
pub(super) use owned_acquisition;

/// Declares an answer that is a lease: its own fields, and those that every lease has.
macro_rules! lease_answer {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$own:meta])* $field:ident: $type:ty,)* }) => {
        #[derive(serde::Serialize, utoipa::ToSchema)]
        $(#[$meta])*
        pub struct $name {
            $($(#[$own])* $field: $type,)*
            /// The secret that extends and releases the lease. Whoever has it is the holder; it is never shown again.
            #[schema(min_length = 46, max_length = 46)]
            lease_id: String,
            /// The holder's label.
            #[serde(skip_serializing_if = "Option::is_none")]
            #[schema(value_type = Option<String>)]
            owner: Option<$crate::domain::Owner>,
            /// Life of the lease without extension, in milliseconds.
            #[schema(minimum = 100)]
            ttl_ms: u64,
            /// How long the holder may rely on the lease, in milliseconds from when the answer was written: the remaining time less an allowance for clock drift.
            validity_ms: u64,
            /// When it was acquired. For display only.
            #[schema(value_type = String, format = DateTime)]
            acquired_at: $crate::api::views::Timestamp,
            /// When its validity ends. For display only.
            #[schema(value_type = String, format = DateTime)]
            expires_at: $crate::api::views::Timestamp,
            /// With `max_hold_ms`: no extension reaches further than this. For display only.
            #[serde(skip_serializing_if = "Option::is_none")]
            #[schema(value_type = Option<String>, format = DateTime)]
            hold_until: Option<$crate::api::views::Timestamp>,
            /// How long the caller waited for it, in milliseconds.
            waited_ms: u64,
            /// How many granting rounds were needed.
            attempts: u32,
            /// The votes.
            nodes: $crate::api::views::NodesView,
        }

        impl $name {
            /// `lease` as it is now; `wall_ms` is what the wall clock shows.
            #[allow(clippy::too_many_arguments, reason = "one for each field")]
            fn new($($field: $type,)* lease: &$crate::service::Lease, wall_ms: u64) -> Self {
                use $crate::api::views::Timestamp;
                let validity_ms = lease.validity_ms(tokio::time::Instant::now());
                Self {
                    $($field,)*
                    lease_id: lease.handle.expose(),
                    owner: lease.note.owner.clone(),
                    ttl_ms: lease.ttl_ms,
                    validity_ms,
                    acquired_at: Timestamp(lease.note.acquired_at_ms),
                    expires_at: Timestamp(wall_ms.saturating_add(validity_ms)),
                    hold_until: lease.hold_until_ms().map(Timestamp),
                    waited_ms: lease.waited_ms,
                    attempts: lease.attempts,
                    nodes: lease.nodes.into(),
                }
            }
        }
    };
}
pub(super) use lease_answer;

/// The derive macro cannot say how many entries there may be.
pub(super) fn metadata_schema() -> Object {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Object, Type::Null]))
        .additional_properties(Some(ObjectBuilder::new().schema_type(Type::String)))
        .max_properties(Some(16))
        .description(Some(
            "Flat map of strings, shown with the owner: at most 16 entries and 1024 bytes in all.",
        ))
        .build()
}

/// The fields that the example of every lease has.
pub(super) fn lease_example(own: serde_json::Value) -> serde_json::Value {
    let mut lease = serde_json::json!({
        "lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000",
        "ttl_ms": 30_000, "validity_ms": 29_696,
        "acquired_at": "2026-09-21T14:13:20.000Z", "expires_at": "2026-09-21T14:13:49.696Z",
        "waited_ms": 0, "attempts": 1,
        "nodes": {"total": 3, "quorum": 2, "granted": 2, "held": 0, "failed": 0},
    });
    if let (Some(lease), serde_json::Value::Object(own)) = (lease.as_object_mut(), own) {
        lease.extend(own);
    }
    lease
}

/// Body of `extend`.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits as limits))]
#[schema(example = json!({"lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000", "ttl_ms": 30_000}))]
pub struct Extend {
    /// The secret of the lease.
    #[serde(default)]
    #[garde(dive)]
    #[schema(value_type = String, required = true, min_length = 46, max_length = 46, pattern = "^[0-9a-f]{46}$")]
    pub(super) lease_id: Given<LeaseHandle>,
    /// The new remaining time, in milliseconds: at most the server's `max_ttl`. It replaces what remains and is not added to it. Left out: the lease's own ttl.
    #[garde(dive, custom(within(TTL_MS_MIN..=limits.max_ttl_ms)))]
    #[schema(value_type = Option<u64>, minimum = 100, maximum = 300_000, example = 30_000)]
    pub(super) ttl_ms: Option<Given<u64>>,
}

impl Asked for Extend {}

/// Body of `release` and `resign`: one of the two.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
#[garde(context(Limits))]
#[schema(example = json!({"lease_id": "8c7e6f1d2b3a49508c7e6f1d2b3a4950065bfeda25e000"}))]
pub struct Release {
    /// The secret of the lease.
    #[garde(dive, custom(one_of_two(self.request_id.is_some())))]
    #[schema(value_type = Option<String>, min_length = 46, max_length = 46, pattern = "^[0-9a-f]{46}$")]
    pub(super) lease_id: Option<Given<LeaseHandle>>,
    /// In place of `lease_id`: what the request of this id has. Its wait at this server ends, with its place in the queue, and the lease that it got at any server is given back.
    #[garde(dive)]
    #[schema(value_type = Option<String>, min_length = 8, max_length = 128, pattern = "^[A-Za-z0-9._~:@-]+$")]
    pub(super) request_id: Option<Given<domain::RequestId>>,
}

/// A release says whose lease it means in one of two ways.
pub(super) fn one_of_two(
    has_request_id: bool,
) -> impl FnOnce(&Option<Given<LeaseHandle>>, &Limits) -> garde::Result {
    move |lease_id, _| match (lease_id, has_request_id) {
        (Some(_), true) => Err(garde::Error::new("cannot be given together with request_id")),
        (None, false) => Err(garde::Error::new("is required, or request_id in its place")),
        _ => Ok(()),
    }
}

impl Asked for Release {}

/// One try or a wait, and the lease.
pub async fn acquire<V: Serialize>(
    app: &AppState,
    heartbeats: Heartbeats,
    target: Target,
    options: AcquireOptions,
    show: impl Show<V>,
) -> Result<Response, Problem> {
    let app = AppState::clone(app);
    // In a task of its own it may outlive its client: the server does not end before that lease is given back.
    let underway = heartbeats.are_wanted().then(|| app.service.engine.underway());
    let acquire = async move {
        let _underway = underway;
        let granted = app.service.acquire(&target, &options).await?;
        // Only a map with keys that are no strings could fail, and no answer has one.
        let body = serde_json::to_vec(&show(&granted.lease, app.service.wall_ms()))
            .map_err(|_| Problem::from(Kind::Internal))?;
        Ok(NewLease { body: body.into(), granted: Some(granted) })
    };
    heartbeats.answer(acquire).await
}

/// A lease bound to the connection. Without waiting, a refusal is the plain 409.
pub async fn hold<V: Serialize + 'static>(
    app: &AppState,
    caller: Caller,
    target: Target,
    options: AcquireOptions,
    show: impl Show<V>,
) -> Result<Response, Problem> {
    let slot = app.streams.open(Some(target.primitive()))?;
    let ttl = Duration::from_millis(options.ttl_ms);
    caller.user_timeout.iter().for_each(|timeout| timeout.lower_to(ttl));
    let render = stream::held_events(app, caller.request_id, show);
    if options.wait_ms > 0 {
        return Ok(stream::held(app, slot, ttl, app.service.hold(target, options), render));
    }
    let granted = app.service.acquire(&target, &options).await?;
    Ok(stream::held(app, slot, ttl, app.service.hold_granted(target.held(), granted), render))
}

/// The remaining time set anew.
pub async fn extend<V>(app: &AppState, held: Held, asked: Extend, show: impl Show<V>) -> Answer<V> {
    let lease = app.service.extend(&held, asked.lease_id.take()?, fields::optional(asked.ttl_ms)?).await?;
    Ok(Json(show(&lease, app.service.wall_ms())))
}

/// Given back.
pub async fn release(app: &AppState, held: Held, asked: Release) -> Answer<Released> {
    let released = match fields::optional(asked.request_id)? {
        Some(request) => app.service.release_request(&held, &request).await?,
        None => app.service.release(&held, asked.lease_id.unwrap_or_default().take()?).await?,
    };
    Ok(Json(Released { released }))
}

/// The answer that must not get lost: a new lease. It is kept once the HTTP server has taken the data, and
/// undone when it is dropped before (docs/protocol.md §1.5).
struct NewLease {
    body: Bytes,
    /// `None` from when the data is taken.
    granted: Option<Granted>,
}

impl IntoResponse for NewLease {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], Body::new(self)).into_response()
    }
}

impl HttpBody for NewLease {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // hyper does not ask for the end of a body whose length it knows, so this is the moment.
        Poll::Ready(self.granted.take().map(|granted| {
            granted.deliver();
            Ok(Frame::data(std::mem::take(&mut self.body)))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.granted.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.body.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_id_of_the_examples_has_a_possible_shape() {
        let lease = lease_example(serde_json::json!({}));
        assert!(LeaseHandle::parse(lease["lease_id"].as_str().unwrap()).is_ok());
    }
}
