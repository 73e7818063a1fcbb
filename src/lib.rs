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

// What tests and benchmarks use is public.
mod access;
pub mod api;
pub mod cli;
mod client;
pub mod clock;
mod config;
pub mod domain;
pub mod node;
pub mod quorum;
mod server;
pub mod service;
mod telemetry;
