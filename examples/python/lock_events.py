"""Events and counters of lock use: what this process does, and what the server counts for all."""
import collections
import contextlib
import json
import re
import secrets
import sys
import time
import urllib.request

import quorate
from quorate import Refused, acquire, call, check

counters = collections.Counter()


def event(kind, what, **more):
    """A line for the log, and one more in a counter: hand both to whatever you monitor with. Never
    the lease_id: whoever has it is the holder."""
    counters[kind] += 1
    print(json.dumps({"event": kind, "what": what, **more}), file=sys.stderr)


@contextlib.contextmanager
def observed(what, **ask):
    begun = time.monotonic()
    try:
        lease = acquire(what, **ask)
    except Refused as refusal:
        event("refused", what, code=refusal.code, after_ms=round((time.monotonic() - begun) * 1000))
        raise
    event("acquired", what, token=lease.token, waited_ms=lease.answer["waited_ms"])
    begun = time.monotonic()
    try:
        yield lease
    finally:
        kind = "released" if lease.release() else "lost"  # false: it was not held any more
        event(kind, what, token=lease.token, held_ms=round((time.monotonic() - begun) * 1000))


def server_counts(primitive, outcome):
    """The server's own counters, for Prometheus. They have no lock names: see the list for those."""
    with urllib.request.urlopen(f"{quorate.URL}/metrics") as answer:
        text = answer.read().decode()
    labels = {f'primitive="{primitive}"', f'outcome="{outcome}"'}
    for found, value in re.findall(r"^quorate_acquisitions_total\{(.*)\} (\S+)$", text, re.MULTILINE):
        if set(found.split(",")) == labels:
            return float(value)
    return 0


if __name__ == "__main__":
    name = f"demo:observed:{secrets.token_hex(4)}"
    granted, held = server_counts("lock", "granted"), server_counts("lock", "held")

    with observed(f"locks/{name}", owner="importer"):
        [shown] = call("GET", f"/v1/locks?prefix={name}")["locks"]
        check(shown["owner"] == "importer" and shown["remaining_ms"] > 0, "who holds what, and for how long, is listed")
        with contextlib.suppress(Refused), observed(f"locks/{name}", owner="second"):
            pass
    with observed(f"locks/{name}", ttl_ms=100):
        time.sleep(0.3)  # works longer than its lease lasts

    check(counters == {"acquired": 2, "refused": 1, "released": 1, "lost": 1}, f"counted here: {dict(counters)}")
    check(server_counts("lock", "granted") >= granted + 2, "the server counts what it grants")
    check(server_counts("lock", "held") >= held + 1, "and what it refuses")
