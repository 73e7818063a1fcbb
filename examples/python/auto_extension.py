"""A task longer than the ttl: extended at a third of it, the loss noticed, the work stopped."""
import secrets
import threading
import time

import quorate
from quorate import Refused, acquire, call, check


class Keeper:
    """Extends a lease in the background. `lost` is set when it is lost, and at the latest a tenth of
    the ttl before it ends without an extension, so that the work has time to stop."""

    def __init__(self, lease):
        self.lease, self.lost, self._done = lease, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            self._extend()
        finally:  # whatever goes wrong here: work that nobody extends a lease for has lost it
            if not self._done.is_set():
                self.lost.set()

    def _extend(self):
        lease, pause = self.lease, self.lease.ttl / 3
        while True:
            left = lease.valid_until - lease.ttl / 10 - time.monotonic()
            if self._done.wait(max(0, min(pause, left))):
                return
            if left <= pause:
                return  # time is up
            try:
                # A server that hangs must leave time for another try.
                lease.extend(timeout=min(left - pause, lease.ttl / 4))
                pause = lease.ttl / 3
            except (Refused, OSError) as error:
                if isinstance(error, Refused) and error.code == "lease_lost":
                    return
                pause = lease.ttl / 30  # no quorum or no server: as long as there is time, again

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()  # no extension may overtake the release
        if not self.lost.is_set():
            self.lease.__exit__()


def long_task(keeper, steps):
    """Looks at `lost` between steps that are short against the ttl. What cannot be cut into such
    steps goes into a process of its own, which can be ended."""
    for done in range(steps):
        if keeper.lost.is_set():
            return done
        time.sleep(0.1)
    return steps


if __name__ == "__main__":
    lock = f"locks/demo:import:{secrets.token_hex(4)}"

    with Keeper(acquire(lock, ttl_ms=3000)) as keeper:
        check(long_task(keeper, 50) == 50, "a task of 5 s ends under a lease of 3 s")
    check(not call("GET", f"/v1/{lock}")["held"], "and the lock is free after it")

    with Keeper(acquire(lock, ttl_ms=3000)) as keeper:
        threading.Timer(0.5, call, ("DELETE", f"/v1/{lock}")).start()  # an administrator takes it away
        check(long_task(keeper, 50) < 25, "a lease that is taken away stops the work")

    with Keeper(acquire(lock, ttl_ms=4000)) as keeper:
        quorate.URL = "http://127.0.0.1:9"  # the server is out of reach from now on
        check(long_task(keeper, 50) < 50, "a server that is out of reach stops the work")
        check(time.monotonic() < keeper.lease.valid_until, "before the lease has ended")
