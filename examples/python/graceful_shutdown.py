"""Shutdown: give back all that is held, in parallel, within 5 seconds, and then end."""
import concurrent.futures
import secrets
import signal
import subprocess
import sys
import threading
import time

from quorate import acquire, call, check

GIVE_BACK_S = 5.0


class Held:
    """All leases of this process."""

    def __init__(self):
        self.leases = []

    def acquire(self, what, **ask):
        self.leases.append(acquire(what, **ask))

    def give_back(self):
        """True if all of them are given back; what is not in time ends with its ttl."""
        pool = concurrent.futures.ThreadPoolExecutor(max(1, len(self.leases)))
        releases = [pool.submit(lease.release, GIVE_BACK_S) for lease in self.leases]
        done, late = concurrent.futures.wait(releases, timeout=GIVE_BACK_S)
        return not late and all(release.exception() is None for release in done)


def service(run):
    stop = threading.Event()
    # The handler only sets a flag: requests do not belong into a signal handler.
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    held = Held()
    for i in range(10):
        held.acquire(f"locks/demo:shutdown:{run}:{i}", ttl_ms=60_000)
    held.acquire(f"semaphores/demo:shutdown:{run}", limit=2, ttl_ms=60_000)
    held.acquire(f"elections/demo:shutdown:{run}", candidate="service", ttl_ms=60_000)
    print("ready", flush=True)
    stop.wait()  # the work; then: no new work, what is begun is finished
    sys.exit(0 if held.give_back() else 1)


def demonstrate():
    run = secrets.token_hex(4)

    def in_use():
        locks = call("GET", f"/v1/locks?prefix=demo:shutdown:{run}:")["locks"]
        permits = call("GET", f"/v1/semaphores/demo:shutdown:{run}")["in_use"]
        leads = "leader" in call("GET", f"/v1/elections/demo:shutdown:{run}")
        return sum(lock["held"] for lock in locks) + permits + leads

    process = subprocess.Popen([sys.executable, __file__, run], stdout=subprocess.PIPE, text=True)
    check(process.stdout.readline() == "ready\n", "a service holds locks, a permit and a leadership")
    check(in_use() == 12, "twelve leases in all")
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    check(process.wait(timeout=20) == 0, "told to end, it ends well")
    check(time.monotonic() - begun < GIVE_BACK_S, f"within 5 s: after {time.monotonic() - begun:.2f} s")
    check(in_use() == 0, "and holds nothing any more, a minute before its leases would have ended")


if __name__ == "__main__":
    service(sys.argv[1]) if len(sys.argv) > 1 else demonstrate()
