"""A singleton worker with standbys: one works, the others take over: at once after a shutdown,
within the ttl after a crash."""
import signal
import subprocess
import sys
import threading
import time

import quorate
from demo import check, unique, until


def main(lock, worker_id):
    """Works in steps that are short against the ttl, until it is told to stop. Where its lease is lost it stands by
    again."""
    stop = threading.Event()
    # The handler only sets a flag: requests do not belong into a signal handler.
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def work(lease, lost):
        print("working", flush=True)
        while not (stop.is_set() or lost.is_set()):
            lease.check()  # nothing is begun without a lease
            time.sleep(0.05)  # a step

    with quorate.Client(owner=worker_id) as client:
        try:
            client.singleton(lock, work, ttl=5, stop=stop)
        except quorate.Unavailable:
            pass  # told to stop while it stood by


def demonstrate():
    client, lock, workers = quorate.Client(), unique("scheduler"), {}

    def start(worker_id):
        workers[worker_id] = subprocess.Popen([sys.executable, __file__, lock, worker_id], stdout=subprocess.PIPE, text=True)

    def takes_over(worker_id, within_s):
        return until(lambda: client.api.get_lock(lock).get("owner") == worker_id, within_s)

    def stands_by():
        return until(lambda: client.api.get_lock(lock)["waiters"] == 1)

    start("worker-a")
    check(takes_over("worker-a", 20), "the first worker works, and is seen as the lock's owner")
    start("worker-b")
    check(stands_by(), "the second one stands by")
    workers["worker-a"].send_signal(signal.SIGKILL)
    check(takes_over("worker-b", 5 + 2), "after a crash it works within the ttl")
    start("worker-c")
    stands_by()
    workers["worker-b"].send_signal(signal.SIGTERM)
    check(takes_over("worker-c", 2.5), "after a shutdown the next one works at once")
    start("worker-d")
    stands_by()
    workers["worker-d"].send_signal(signal.SIGTERM)  # while it stands by
    workers["worker-d"].wait(timeout=20)
    workers["worker-c"].send_signal(signal.SIGTERM)
    said = {worker_id: process.communicate(timeout=20)[0] for worker_id, process in workers.items()}
    check([workers[f"worker-{one}"].returncode for one in "bcd"] == [0, 0, 0], "told to end, they end well")
    check(said["worker-c"] == "working\n" and said["worker-d"] == "", "only who holds the lock has worked")
    check(not client.api.get_lock(lock)["held"], "and nothing is left behind")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else demonstrate()
