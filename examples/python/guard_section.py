"""Guard a section: take the lock, work, give it back, whatever happens in between."""
import secrets
import threading
import time

from quorate import acquire, call, check


def add(account, amount, lock):
    # wait_ms: ask once and wait in the server's queue, instead of asking again and again.
    with acquire(lock, ttl_ms=10_000, wait_ms=30_000, owner="guard_section.py"):
        balance = account["balance"]  # read, compute, write: not atomic by itself
        time.sleep(0.01)
        account["balance"] = balance + amount


if __name__ == "__main__":
    lock = f"locks/demo:account:{secrets.token_hex(4)}"
    account = {"balance": 0}
    clerks = [threading.Thread(target=add, args=(account, 10, lock)) for _ in range(8)]
    for clerk in clerks:
        clerk.start()
    for clerk in clerks:
        clerk.join()
    check(account["balance"] == 80, "eight clerks at once lose no booking")

    try:
        with acquire(lock):
            raise ValueError("the work fails")
    except ValueError:
        pass
    check(not call("GET", f"/v1/{lock}")["held"], "a section that fails gives the lock back")
