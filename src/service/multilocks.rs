//! Multilocks: several locks under one lease, all or nothing.
//!
//! There is nothing here to run: a multilock is a lease over several records, and
//! each node grants all of them or none in one script. Nobody ever holds one lock
//! while waiting for another, so no order of names can deadlock.

/// The fewest names of a multilock.
pub const NAMES_MIN: usize = 2;
/// The most names of a multilock.
pub const NAMES_MAX: usize = 64;
