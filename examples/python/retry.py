"""Retry: the client does it. It keeps one request id, goes on to the next server, and heeds retry_after_ms;
the wait bounds all of it."""
import os
import threading
import time

import quorate
from demo import check, unique

client = quorate.Client()


def outcome(seconds, servers=None):
    """The error of an attempt with this wait, and how long it took."""
    begun = time.monotonic()
    try:
        with quorate.Client(servers).lock(lock, wait=seconds):
            return None, time.monotonic() - begun
    except quorate.QuorateError as error:
        return error, time.monotonic() - begun


if __name__ == "__main__":
    lock = unique("report")

    holder = client.lock(lock).acquire()
    threading.Timer(0.5, holder.release).start()
    error, took = outcome(20)
    check(error is None and took >= 0.3, "granted as soon as it is free")

    with client.lock(lock, owner="the holder"):
        error, took = outcome(1.5)
        check(isinstance(error, quorate.NotAcquired), "bounded by the wait, with the last refusal")
        check((error.holder or {}).get("owner") == "the holder", "which says who holds it")
        check(took < 6, "and kept")

    # The first server does not exist: each attempt goes on to the next one at once.
    nobody, servers = "http://127.0.0.1:1", os.environ.get("QUORATE_SERVER", "http://127.0.0.1:8080")
    check(outcome(10, f"{nobody},{servers}")[0] is None, "a server that is down costs nothing where there is another")
    check(isinstance(outcome(0.5, nobody)[0], quorate.Unavailable), 'and without any, that is no "held"')
