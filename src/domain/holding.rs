//! Leases as a node stores them.

use super::{LeaseId, Token, Version};

/// A lease as one node stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Its id. Stays inside the server.
    pub lease: LeaseId,
    /// Its token, as this node knows it.
    pub token: Token,
    /// Until it expires here, ms.
    pub remaining_ms: u64,
    /// Life without extension, ms.
    pub ttl_ms: u64,
    /// The version of its data.
    pub version: Version,
    /// What is stored with it.
    pub data: String,
    /// Of shared leases, for all of which this one stands, with the time that the last of them has.
    pub sharing: Option<Sharing>,
    /// Whether it was granted to the request id that asks now.
    pub same_request: bool,
    /// In a refusal: what its request asked for, or `-`.
    pub params: String,
    /// Of a semaphore, where the request is the same: its slots.
    pub slots: Vec<u32>,
}

/// The shared leases of a name as one node stores them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharing {
    /// How many they are.
    pub total: u32,
    /// Those that last longest.
    pub longest: Vec<Holding>,
}

/// What one node stores under one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The lease, where one is held.
    pub holding: Option<Holding>,
    /// The fence: the highest token known here.
    pub fence: u64,
}

/// What one node knows of a semaphore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// How many slots are taken here.
    pub taken: u32,
    /// Which of them: all, or a few where fewer are left than were asked for.
    pub named: Vec<u32>,
    /// Until the first of them expires, ms; `None` where none is taken.
    pub first_expiry_ms: Option<u64>,
}
