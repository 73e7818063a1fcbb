"""At most N calls per minute: permits that are never given back but left to expire.

In any window of `per` seconds there are at most `limit` grants, at whatever moment it begins.
"""
import time

import quorate
from demo import check, unique

client = quorate.Client()

if __name__ == "__main__":
    name, limit, per = unique("sms"), 4, 2  # for a minute: 60
    calls = []  # (granted at the earliest, at the latest)

    def call_now(wait):
        begun = time.monotonic()
        client.rate_limit(name, limit=limit, per=per, wait=wait)
        calls.append((begun, time.monotonic()))

    for _ in range(limit):
        call_now(wait=0)
    try:
        call_now(wait=0)
        check(False, "the fifth call within the window is refused")
    except quorate.NotAcquired as refused:
        check(refused.code == "semaphore_full", "the fifth call within the window is refused")
        check(refused.retry_after is not None, "and told when to try again")
    for _ in range(limit + 1):
        call_now(wait=20)
    gaps = [later[1] - earlier[0] for earlier, later in zip(calls, calls[limit:])]
    check(min(gaps) >= per, f"{len(calls)} calls, never more than {limit} in {per} s")
