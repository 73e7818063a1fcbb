"""Rules of a request that JSON Schema cannot express: requests that are meant to be right keep them."""
import json
import uuid

import schemathesis

METADATA_BYTES_MAX = 1024
TTL_MS_DEFAULT = 30_000


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is not None and case.meta.generation.mode.is_negative or not isinstance(case.body, dict):
        return
    fields = case.body
    # How two fields go together, and what several strings may have in all.
    if isinstance(fields.get("permits"), (int, float)):
        fields["permits"] = min(fields["permits"], fields["limit"])
    if isinstance(fields.get("max_hold_ms"), (int, float)):
        fields["max_hold_ms"] = max(fields["max_hold_ms"], fields.get("ttl_ms") or TTL_MS_DEFAULT)
    metadata = fields.get("metadata") or {}
    if sum(len((key + value).encode(errors="replace")) for key, value in metadata.items()) > METADATA_BYTES_MAX:
        del fields["metadata"]
    # A request id stands for one request: the same only where all else is the same.
    if isinstance(fields.get("request_id"), str):
        others = {name: value for name, value in fields.items() if name != "request_id"}
        fields["request_id"] = str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(others, sort_keys=True)))
    # A release names the lease in one of two ways.
    if case.path.endswith(("/release", "/resign")) and "leases" not in fields:
        if isinstance(fields.get("lease_id"), str):
            fields.pop("request_id", None)
        elif not isinstance(fields.get("request_id"), str):
            fields["request_id"] = "no-such-request"
    # A multilock has names, all else has a name.
    for lease in fields.get("leases", []):
        if lease.get("primitive") == "multilock":
            lease.pop("name", None)
            lease["names"] = lease.get("names") or ["a", "b"]
        else:
            lease.pop("names", None)
            lease["name"] = lease.get("name") or "a"
