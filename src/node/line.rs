//! A lease as a line of a record (`scripts/record.lua` documents it).

use crate::domain::{LeaseId, Mode, Version};

/// The line of a lease in a record, as record.lua documents it.
pub(super) struct Line<'a> {
    pub(super) lease: &'a LeaseId,
    pub(super) ends_ms: u64,
    pub(super) mark: &'a str,
    pub(super) mode: Mode,
    pub(super) token: u64,
    pub(super) ttl_ms: u64,
    /// Of a lease that is acquired, ms from then on; of one that is healed, a time by the node's clock; or 0.
    pub(super) hold_until_ms: u64,
    pub(super) lock_delay_ms: u64,
    pub(super) version: Version,
    pub(super) request: &'a str,
    pub(super) params: &'a str,
    pub(super) data: &'a str,
}

impl Line<'_> {
    /// As a node stores it, without the line break.
    pub(super) fn text(&self) -> String {
        let Self { lease, ends_ms, mark, mode, token, ttl_ms, hold_until_ms, lock_delay_ms, .. } = self;
        let Self { version, request, params, data, .. } = self;
        let (lease, mode, version) = (lease.expose(), mode.letter(), version.get());
        format!(
            "{lease} {ends_ms:013} {mark} {mode} {token:016} {ttl_ms} {hold_until_ms} {lock_delay_ms} {version} \
             {request} {params} {data}"
        )
    }
}
