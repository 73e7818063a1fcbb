"""Several resources at once: a transfer between two accounts, by one lease over both."""
import random
import threading
import time

import quorate
from demo import check, unique

client = quorate.Client()


def transfer(accounts, source, target, amount):
    # All or nothing, and the order of names does not matter: two transfers in opposite
    # directions cannot wait for each other for ever.
    with client.locks(source, target, wait=30) as lease:
        assert set(lease.fencing_tokens) == {source, target}  # one for each resource
        balances = accounts[source], accounts[target]
        time.sleep(0.005)
        accounts[source], accounts[target] = balances[0] - amount, balances[1] + amount


if __name__ == "__main__":
    run = unique("account")
    names = [f"{run}:{person}" for person in ("ann", "bob", "eve")]
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

    with client.lock(names[0], owner="auditor"):  # its members are ordinary locks
        refused = client.locks(*names[:2]).try_acquire() is None
        check(refused, "a multilock keeps out of a lock that is held")
        with client.lock(names[1], wait=0):
            check(True, "and has taken none of the others")
