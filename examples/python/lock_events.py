"""Events and counters of lock use: what this process does, and what the server counts for all."""
import collections
import contextlib
import json
import os
import re
import sys
import time
import urllib.request

import quorate
from demo import check, unique

client = quorate.Client()
counters = collections.Counter()


def event(kind, name, **more):
    """A line for the log, and one more in a counter: hand both to whatever you monitor with. Never
    the lease_id: whoever has it is the holder."""
    counters[kind] += 1
    print(json.dumps({"event": kind, "name": name, **more}), file=sys.stderr)


@contextlib.contextmanager
def observed(name, **options):
    begun = time.monotonic()

    def since():
        return round((time.monotonic() - begun) * 1000)

    try:
        lease = client.lock(name, **options).acquire()
    except quorate.QuorateError as refused:
        event("refused", name, code=refused.code, after_ms=since())
        raise
    event("acquired", name, token=lease.fencing_token, waited_ms=lease.answer["waited_ms"])
    begun = time.monotonic()
    try:
        with lease:
            yield lease
    finally:
        # A loss is the one to alert on.
        event("lost" if lease.lost else "released", name, token=lease.fencing_token, held_ms=since())


def server_counts(primitive, outcome):
    """The server's own counters, for Prometheus. They have no lock names: see the list for those."""
    server = os.environ.get("QUORATE_SERVER", "http://127.0.0.1:8080").split(",")[0]
    with urllib.request.urlopen(f"{server}/metrics") as answer:
        text = answer.read().decode()
    labels = {f'primitive="{primitive}"', f'outcome="{outcome}"'}
    for found, value in re.findall(r"^quorate_acquisitions_total\{(.*)\} (\S+)$", text, re.MULTILINE):
        if set(found.split(",")) == labels:
            return float(value)
    return 0


if __name__ == "__main__":
    name = unique("observed")
    granted, held = server_counts("lock", "granted"), server_counts("lock", "held")

    with observed(name, owner="importer"):
        [shown] = client.api.list_locks(prefix=name)["locks"]
        check(shown["owner"] == "importer" and shown["remaining_ms"] > 0, "who holds what, and for how long, is listed")
        with contextlib.suppress(quorate.NotAcquired), observed(name, owner="second", wait=0):
            pass
    try:
        with observed(name, ttl=1) as lease:
            client.api.force_release_lock(name)  # taken away by an administrator
            check(lease.wait_lost(10), "the loss is told during the work")
        check(False, "and where it ends")
    except quorate.LeaseLost:
        check(True, "and where it ends")

    check(counters == {"acquired": 2, "refused": 1, "released": 1, "lost": 1}, f"counted here: {dict(counters)}")
    check(server_counts("lock", "granted") >= granted + 2, "the server counts what it grants")
    check(server_counts("lock", "held") >= held + 1, "and what it refuses")
