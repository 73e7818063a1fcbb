//! Quorate: locks, fencing tokens, counting semaphores and leader election over
//! HTTP, granted by a majority of independent, plain Redis servers.
//!
//! The way of a request, one layer a module, never upward:
//!
//! [`api`] (parse, validate, one call, map) → [`service`] (what a lock, a
//! semaphore, an election *means*: waiting, holding, idempotency) → [`quorum`]
//! (fan out, count votes, validity, undo) → [`node`] (one script on one node,
//! one vote) → [`domain`] (types that cannot hold a bad value).
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod access;
pub mod api;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod domain;
pub mod node;
pub mod quorum;
pub mod server;
pub mod service;
pub mod telemetry;
