"""Guard a section: take the lock, work, give it back, whatever happens in between."""
import threading
import time

import quorate
from demo import check, unique

client = quorate.Client()


def add(account, amount, lock):
    with client.lock(lock, wait=30, owner="guard_section.py"):
        balance = account["balance"]  # read, compute, write: not atomic by itself
        time.sleep(0.01)
        account["balance"] = balance + amount


if __name__ == "__main__":
    lock = unique("account")
    account = {"balance": 0}
    clerks = [threading.Thread(target=add, args=(account, 10, lock)) for _ in range(8)]
    for clerk in clerks:
        clerk.start()
    for clerk in clerks:
        clerk.join()
    check(account["balance"] == 80, "eight clerks at once lose no booking")

    try:
        with client.lock(lock):
            raise ValueError("the work fails")
    except ValueError:
        check(True, "the error of a section is its caller's")
    check(not client.api.get_lock(lock)["held"], "and the lock is given back")
