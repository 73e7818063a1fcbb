"""What a document cannot say, so that schemathesis does not take it for a mistake of the server."""
import schemathesis

TTL_MS_MAX = 300_000  # the server's setting, not the document's
WAIT_MS_MAX = 50  # waiting is for the server's own tests; here it would only take time
METADATA_BYTES_MAX = 1024


@schemathesis.hook
def before_call(context, case, kwargs):
    negative = case.meta is not None and case.meta.generation.mode.is_negative
    for fields in (case.body, case.query):
        if isinstance(fields, dict):
            (spoil if negative else mend)(fields)


def mend(fields):
    """Fields that are right as far as the document can tell."""
    # Opaque: only what the server gave out is any good.
    for name in ("cursor", "after"):
        fields.pop(name, None)
    # 1.0 is an integer to JSON Schema, and to hardly anybody else.
    fields.update({name: int(value) for name, value in fields.items() if isinstance(value, float)})
    # Too long a wait or a ttl is no mistake that the document knows of. Only here: where it does know of it,
    # a value that is cut down is right, and the whole request with it, unmended.
    for name, most in (("ttl_ms", TTL_MS_MAX), ("wait_ms", WAIT_MS_MAX)):
        # Those of a query can be strings already.
        if str(fields.get(name)).isdecimal() and int(fields[name]) > most:
            fields[name] = most
    # How two fields go together, and what several strings may have in all.
    if "limit" in fields and "permits" in fields:
        fields["permits"] = min(fields["permits"], fields["limit"])
    metadata = fields.get("metadata", {})
    if sum(len((key + value).encode(errors="replace")) for key, value in metadata.items()) > METADATA_BYTES_MAX:
        del fields["metadata"]


def spoil(fields):
    """Fields one of which is to be refused."""
    # null means absent, which is more than the document promises: as a wrong value, take another.
    fields.update({name: [] for name, value in fields.items() if value is None})
