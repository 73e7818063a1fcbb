"""A task longer than the ttl: the client extends the lease at a third of it. The loss is noticed, and the work stopped."""
import asyncio
import threading
import time

import quorate
from demo import check, unique

client = quorate.Client()


def long_task(lease, steps):
    """Looks at the lease between steps that are short against the ttl. What cannot be cut into such
    steps goes into a process of its own, which `lease.on_lost` can end."""
    for _ in range(steps):
        lease.check()  # raises LeaseLost
        time.sleep(0.1)
    return "done"


async def long_await():
    """With asyncio the task in the block is cancelled in the middle of a step."""
    async with quorate.AsyncClient() as client, client.lock(lock, ttl=3):
        threading.Timer(0.5, take_away).start()
        await asyncio.sleep(60)


def take_away():
    client.api.force_release_lock(lock)  # by an administrator


if __name__ == "__main__":
    lock = unique("import")

    with client.lock(lock, ttl=3) as lease:
        check(long_task(lease, 50) == "done", "a task of 5 s ends under a lease of 3 s")
    check(not client.api.get_lock(lock)["held"], "and the lock is free after it")

    begun = time.monotonic()
    try:
        with client.lock(lock, ttl=3) as lease:
            threading.Timer(0.5, take_away).start()
            long_task(lease, 50)
        check(False, "a lease that is taken away stops the work")
    except quorate.LeaseLost as lost:
        check(lost.code == "lease_lost", "a lease that is taken away stops the work")
    check(time.monotonic() - begun < 2.5, "soon")

    begun = time.monotonic()
    try:
        asyncio.run(long_await())
        check(False, "and cancels a task")
    except quorate.LeaseLost:
        check(time.monotonic() - begun < 10, "and cancels a task")
