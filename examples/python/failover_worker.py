"""A singleton worker with standbys: one works, the others take over: at once after a shutdown,
within the ttl after a crash.

    idle ─▶ acquiring ─▶ working ⇄ renewing        renewing ─▶ idle      the lease is lost
                           │ ▲       │             pausing  ─▶ idle      it ends without a renewal
                  shutdown ▼ └──── pausing ◀┘      pausing: nothing new is begun, while the renewal
             idle ◀─ releasing ◀─────┘             is in doubt or the shutdown under way
"""
import json
import secrets
import signal
import subprocess
import sys
import threading
import time

from quorate import Refused, acquire, call, check


class Worker:
    def __init__(self, lock, worker_id, step, ttl_ms=5000):
        self.lock, self.id, self.step, self.ttl_ms = lock, worker_id, step, ttl_ms
        self.stop = threading.Event()
        self.lease = None

    def run(self):
        state = self.idle
        while state:
            print(json.dumps({"worker": self.id, "state": state.__name__}), flush=True)
            state = state()

    def idle(self):
        self.lease = None
        return None if self.stop.is_set() else self.acquiring

    def acquiring(self):
        while not self.stop.is_set():
            try:
                # In short waits, so that a standby that is to stop does not hang in a long one.
                self.lease = acquire(self.lock, ttl_ms=self.ttl_ms, wait_ms=1000, owner=self.id)
                self.renew_at = self.lease.since + self.lease.ttl / 3
                return self.working
            except Refused as refusal:
                if refusal.code != "lock_held":
                    self.stop.wait(0.2)  # no quorum: again, but not at full speed
            except OSError:
                self.stop.wait(0.2)
        return self.idle

    def working(self):
        while time.monotonic() < self.renew_at:
            if self.stop.is_set():
                return self.pausing
            self.step(self.lease)  # short against the ttl
        return self.renewing

    def renewing(self):
        try:
            self.renew_at = time.monotonic() + self.lease.ttl / 3
            self.lease.extend(timeout=self.lease.ttl / 4)
            return self.working
        except Refused as refusal:
            return self.idle if refusal.code == "lease_lost" else self.pausing
        except OSError:
            return self.pausing

    def pausing(self):
        if self.stop.is_set():
            return self.releasing
        self.stop.wait(self.lease.ttl / 30)
        return self.renewing if time.monotonic() < self.lease.valid_until else self.idle

    def releasing(self):
        try:
            self.lease.release(timeout=2)  # given back, not left to expire: the next one starts at once
        except (Refused, OSError):
            pass
        return self.idle


def main(lock, worker_id):
    worker = Worker(lock, worker_id, step=lambda lease: time.sleep(0.05))
    signal.signal(signal.SIGTERM, lambda *_: worker.stop.set())
    worker.run()


def demonstrate():
    lock = f"locks/demo:scheduler:{secrets.token_hex(4)}"
    workers = {}

    def start(worker_id):
        command = [sys.executable, __file__, lock, worker_id]
        workers[worker_id] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def takes_over(worker_id, within_s):
        """Whether the lock shows this owner in time, and how long it took."""
        begun = time.monotonic()
        while time.monotonic() < begun + within_s:
            if call("GET", f"/v1/{lock}").get("owner") == worker_id:
                return True, time.monotonic() - begun
            time.sleep(0.02)
        return False, within_s

    start("worker-a")
    check(takes_over("worker-a", 20)[0], "the first worker works, and is seen as the lock's owner")
    start("worker-b")
    time.sleep(1)
    workers["worker-a"].send_signal(signal.SIGKILL)
    taken, seconds = takes_over("worker-b", 5 + 2)
    check(taken, f"after a crash the standby works within the ttl (5 s): {seconds:.2f} s")
    start("worker-c")
    time.sleep(2.5)  # until worker-b has renewed its lease, too
    workers["worker-b"].send_signal(signal.SIGTERM)
    taken, seconds = takes_over("worker-c", 2.5)
    check(taken, f"after a shutdown the next one works at once: {seconds:.2f} s")
    workers["worker-c"].send_signal(signal.SIGTERM)

    states = {}
    for worker_id, process in workers.items():
        lines, _ = process.communicate(timeout=20)
        states[worker_id] = [json.loads(line)["state"] for line in lines.splitlines()]
    check(states["worker-c"][:3] == ["idle", "acquiring", "working"], "idle, acquiring, working …")
    check("renewing" in states["worker-b"], "… renewing …")
    check(states["worker-b"][-4:] == ["working", "pausing", "releasing", "idle"], "… pausing, releasing, idle")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else demonstrate()
