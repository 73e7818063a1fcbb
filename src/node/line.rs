//! A lease as a line of a record (`scripts/record.lua` documents it).

use crate::domain::{LeaseId, Version};

/// The line of a lease in a record, as record.lua documents it.
pub(super) struct Line<'a> {
    pub(super) lease: &'a LeaseId,
    pub(super) ends_ms: u64,
    pub(super) mark: &'a str,
    pub(super) token: u64,
    pub(super) ttl_ms: u64,
    pub(super) version: Version,
    pub(super) request: &'a str,
    pub(super) params: &'a str,
    pub(super) data: &'a str,
}

impl Line<'_> {
    /// As a node stores it, without the line break.
    pub(super) fn text(&self) -> String {
        let Self { ends_ms, mark, token, ttl_ms, version, request, params, data, .. } = self;
        let (lease, version) = (self.lease.expose(), version.get());
        format!("{lease} {ends_ms:013} {mark} x {token:016} {ttl_ms} 0 0 {version} {request} {params} {data}")
    }
}
