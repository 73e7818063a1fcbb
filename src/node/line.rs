//! A lease as a line of a record (`scripts/record.lua` documents it).

use crate::domain::{LeaseId, Mode, Version};

/// The line of a lease in a record, as record.lua documents it.
pub(super) struct Line<'a> {
    pub(super) lease: &'a LeaseId,
    pub(super) mark: &'a str,
    pub(super) mode: Mode,
    pub(super) token: u64,
    pub(super) ttl_ms: u64,
    /// By the node's clock; or 0, which an acquire always says.
    pub(super) hold_until_ms: u64,
    pub(super) lock_delay_ms: u64,
    pub(super) version: Version,
    pub(super) request: &'a str,
    pub(super) params: &'a str,
    pub(super) data: &'a str,
}

impl Line<'_> {
    /// As a node stores it, from LEASE on and without the line break.
    pub(super) fn text(&self) -> String {
        let Self { lease, mark, mode, token, ttl_ms, hold_until_ms, lock_delay_ms, version, .. } = self;
        let Self { request, params, data, .. } = self;
        let (lease, mode, version) = (lease.expose(), mode.letter(), version.get());
        format!(
            "{lease} {mark} {mode} {token:016} {ttl_ms} {hold_until_ms} {lock_delay_ms} {version} {request} {params} {data}"
        )
    }
}
