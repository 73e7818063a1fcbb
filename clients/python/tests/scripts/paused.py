"""Holds a lock, and says when it is lost: by the callback, and by a check in the thread that works."""

from __future__ import annotations

import sys
import threading

import quorate
from quorate.clock import now

urls, name, ttl = sys.argv[1:]
told = threading.Lock()


def say(word: str) -> None:
    with told:
        print(word, now(), flush=True)


def main() -> None:
    ends = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ends.set()), daemon=True).start()
    client = quorate.Client(urls)
    called = threading.Event()
    try:
        with client.lock(name, ttl=float(ttl)) as lease:
            lease.on_lost(lambda: (say("callback"), called.set()))
            print("held", flush=True)
            while not ends.wait(0.001):
                begun = now()
                try:
                    lease.check()
                except quorate.LeaseLost:
                    say("check")
                    break
                # The clock stood still for a check that passed: no pause past the end hid in it.
                if begun >= lease._held.valid_until:
                    sys.exit(3)
            else:
                print("kept", flush=True)
                return
    except quorate.LeaseLost:
        sys.exit(0 if called.wait(5) else 4)
    if not ends.is_set():
        sys.exit(5)


main()
