"""Shutdown: give back all that is held, in parallel, within 5 seconds, and then end."""
import signal
import subprocess
import sys
import threading
import time

import quorate
from demo import check, unique


def service(run):
    stop = threading.Event()
    # The handler only sets a flag: requests do not belong into a signal handler.
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with quorate.Client() as client:
        held = [client.lock(f"{run}:{i}", ttl=60).acquire() for i in range(10)]
        held.append(client.semaphore(run, limit=2, ttl=60).acquire())
        held.append(client.election(run, candidate="service", ttl=60).acquire())
        print("ready", flush=True)
        stop.wait()  # the work under what is held; then: no new work, what is begun is finished
    # The client is closed: leases go back, and those for which that takes longer than 5 s end with their ttl.


def demonstrate():
    client, run = quorate.Client(), unique("shutdown")

    def in_use():
        locks = client.api.list_locks(prefix=f"{run}:")["locks"]
        permits = client.api.get_semaphore(run)["in_use"]
        leads = "leader" in client.api.get_leader(run)
        return sum(lock["held"] for lock in locks) + permits + leads

    process = subprocess.Popen([sys.executable, __file__, run], stdout=subprocess.PIPE, text=True)
    check(process.stdout.readline() == "ready\n", "a service holds locks, a permit and a leadership")
    check(in_use() == 12, "twelve leases in all")
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    check(process.wait(timeout=20) == 0, "told to end, it ends well")
    check(time.monotonic() - begun < 5, f"within 5 s: after {time.monotonic() - begun:.2f} s")
    check(in_use() == 0, "and holds nothing any more, a minute before its leases would have ended")


if __name__ == "__main__":
    service(sys.argv[1]) if len(sys.argv) > 1 else demonstrate()
