"""At most N calls per minute: permits that are never given back but left to expire.

In any window of `ttl_ms` there are at most `limit` grants, at whatever moment it begins.
"""
import secrets
import time

from quorate import Refused, acquire, check


def rate_limited(name, limit, window_ms, wait_ms=0):
    """Returns when the call may be made, or raises semaphore_full. For a minute: window_ms=60_000."""
    return acquire(f"semaphores/{name}", limit=limit, ttl_ms=window_ms, wait_ms=wait_ms)  # and no release


if __name__ == "__main__":
    name, limit, window_ms = f"demo:sms:{secrets.token_hex(4)}", 4, 2000
    calls = []  # (granted at the earliest, at the latest)

    def call_now(wait_ms):
        permit = rate_limited(name, limit, window_ms, wait_ms)
        calls.append((permit.since, time.monotonic()))

    for _ in range(limit):
        call_now(wait_ms=0)
    try:
        call_now(wait_ms=0)
        check(False, "the fifth call within the window is refused")
    except Refused as refusal:
        check(refusal.code == "semaphore_full", "the fifth call within the window is refused")
        check(refusal.problem["retry_after_ms"] >= 0, "and told when to try again")
    for _ in range(limit + 1):
        call_now(wait_ms=20_000)
    gaps = [later[1] - earlier[0] for earlier, later in zip(calls, calls[limit:])]
    check(min(gaps) >= window_ms / 1000, f"{len(calls)} calls, never more than {limit} in {window_ms} ms")
