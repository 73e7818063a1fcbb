//! When a node may vote.
