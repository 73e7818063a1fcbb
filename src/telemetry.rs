//! What the process tells of itself: metrics, traces, and log lines that must not flood a log.

pub mod audit;
mod families;
mod outcomes;
pub mod seldom;
pub mod trace;

pub use self::families::{HTTP_REQUESTS, HTTP_SECONDS, TLS_CERTIFICATE_EXPIRY, metrics};
pub(crate) use self::families::{NODE_REQUESTS, NODE_SECONDS, NODE_STATE, POOL_CONNECTIONS};
pub use self::outcomes::{Acquisition, Extension, Refusal, Release, Reloaded, Undo};
