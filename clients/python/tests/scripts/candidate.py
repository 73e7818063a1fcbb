"""Writes for each moment at which it believed to lead: the term, and the time by the clock that all processes share."""

from __future__ import annotations

import sys
import threading

import quorate
from quorate.clock import now

url, election, candidate = sys.argv[1:]
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
client = quorate.Client(url)
guard = client.election(election, candidate=candidate, ttl=1)
while not stop.is_set():
    try:
        with guard as leadership:
            while not stop.wait(0.005):
                checked = now()
                leadership.check()
                print(leadership.term, checked, flush=True)
    except quorate.LeaseLost:
        pass
