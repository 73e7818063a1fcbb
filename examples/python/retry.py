"""Retry: let the server wait (wait_ms), or ask again with delay and jitter; bounded either way."""
import random
import secrets
import threading
import time

from quorate import Refused, acquire, check

WORTH_RETRYING = {
    "lock_held", "semaphore_full", "election_lost",
    "quorum_unavailable", "shutting_down", "too_many_waiters", "overloaded",
}


def acquire_with_retry(what, *, attempts, deadline_s, base_s=0.05, cap_s=5.0, **ask):
    """Ends after so many attempts or so many seconds, whatever comes first, with the last refusal."""
    ends = time.monotonic() + deadline_s
    # The same id at every attempt: had the answer to one that was granted got lost, the next
    # one gets that very lease instead of being locked out by it.
    ask["request_id"] = secrets.token_hex(16)
    for attempt in range(attempts):
        try:
            return acquire(what, **ask)
        except (Refused, OSError) as error:  # OSError: no server answers
            if isinstance(error, Refused) and error.code not in WORTH_RETRYING:
                raise
            # Full jitter: those who were refused together do not come back together.
            delay = random.uniform(0, min(cap_s, base_s * 2**attempt))
            if isinstance(error, Refused):
                delay += error.problem.get("retry_after_ms", 0) / 1000
            if attempt + 1 == attempts or time.monotonic() + delay > ends:
                raise
            time.sleep(delay)


def refused(attempt):
    try:
        attempt().release()
        return False
    except Refused as refusal:
        return refusal.code == "lock_held"


if __name__ == "__main__":
    lock = f"locks/demo:report:{secrets.token_hex(4)}"

    holder = acquire(lock, ttl_ms=30_000)
    threading.Timer(0.5, holder.release).start()
    with acquire(lock, wait_ms=10_000) as lease:
        check(lease.answer["waited_ms"] >= 300, "wait_ms: one request, granted as soon as it is free")

    holder = acquire(lock, ttl_ms=30_000)
    threading.Timer(0.5, holder.release).start()
    with acquire_with_retry(lock, attempts=50, deadline_s=20, cap_s=0.2):
        check(True, "with delay and jitter: granted at some attempt after it is free")

    with acquire(lock, ttl_ms=30_000):
        check(refused(lambda: acquire_with_retry(lock, attempts=3, deadline_s=20)), "bounded by attempts")
        begun = time.monotonic()
        check(refused(lambda: acquire_with_retry(lock, attempts=10**6, deadline_s=1)), "bounded by a deadline")
        check(time.monotonic() - begun < 4, "which is kept")
