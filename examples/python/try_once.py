"""Try once and go on otherwise: for work that somebody else is doing already."""
import secrets

from quorate import Refused, acquire, check


def refresh_cache(lock):
    try:
        lease = acquire(lock, ttl_ms=10_000, owner="try_once.py")  # wait_ms 0: the answer comes at once
    except Refused as refusal:
        if refusal.code != "lock_held":
            raise  # no quorum, say, is not "somebody else does it"
        # No holder in the answer: the nodes have not agreed on one yet.
        return f"left to {refusal.problem.get('holder', {}).get('owner', 'someone')}"
    with lease:
        return "refreshed"


if __name__ == "__main__":
    lock = f"locks/demo:cache:{secrets.token_hex(4)}"
    with acquire(lock, owner="worker-1"):
        check(refresh_cache(lock) == "left to worker-1", "while another holds it, it goes on and knows who")
    check(refresh_cache(lock) == "refreshed", "once it is free, it does the work")
