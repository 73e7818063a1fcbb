"""Try once and go on otherwise: for work that somebody else is doing already."""
import quorate
from demo import check, unique

client = quorate.Client()


def refresh_cache(lock):
    try:
        with client.lock(lock, wait=0, owner="try_once.py"):
            return "refreshed"
    except quorate.NotAcquired as refused:  # Unavailable (no quorum, no server) is not "somebody else does it"
        # There is no holder in the answer while the nodes have not agreed on one.
        return f"left to {(refused.holder or {}).get('owner', 'someone')}"


if __name__ == "__main__":
    lock = unique("cache")
    with client.lock(lock, owner="worker-1"):
        check(refresh_cache(lock) == "left to worker-1", "while another holds it, it goes on and knows who")
    check(refresh_cache(lock) == "refreshed", "once it is free, it does the work")
    # Where nobody asks who does it, there is a shorter way.
    check(client.try_with_lock(lock, lambda lease: "refreshed") == (True, "refreshed"), "try_with_lock does the same")
