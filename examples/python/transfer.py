"""Several resources at once: a transfer between two accounts, by one lease over both."""
import random
import secrets
import threading
import time

from quorate import Refused, acquire, check


def transfer(accounts, source, target, amount):
    # All or nothing, and the order of names does not matter: two transfers in opposite
    # directions cannot wait for each other for ever.
    with acquire("multilocks", names=[source, target], ttl_ms=10_000, wait_ms=30_000) as lease:
        assert set(lease.answer["fencing_tokens"]) == {source, target}  # one for each resource
        balances = accounts[source], accounts[target]
        time.sleep(0.005)
        accounts[source], accounts[target] = balances[0] - amount, balances[1] + amount


if __name__ == "__main__":
    run = secrets.token_hex(4)
    names = [f"demo:account:{run}:{person}" for person in ("ann", "bob", "eve")]
    accounts = dict.fromkeys(names, 100)

    def clerk():
        for _ in range(3):
            transfer(accounts, *random.sample(names, 2), random.randint(1, 20))

    clerks = [threading.Thread(target=clerk, daemon=True) for _ in range(4)]
    for thread in clerks:
        thread.start()
    for thread in clerks:
        thread.join(timeout=60)
    check(not any(thread.is_alive() for thread in clerks), "transfers in all directions do not block each other")
    check(sum(accounts.values()) == 300, "no money is lost or made")

    with acquire(f"locks/{names[0]}", owner="auditor"):  # its members are ordinary locks
        try:
            acquire("multilocks", names=names[:2]).release()
            check(False, "a multilock keeps out of a lock that is held")
        except Refused as refusal:
            check(refusal.code == "lock_held", "a multilock keeps out of a lock that is held")
        with acquire(f"locks/{names[1]}"):
            check(True, "and has taken none of the others")
