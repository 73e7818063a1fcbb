"""Holds a lock while it forks. The child has no lease, and can acquire by the same client."""

from __future__ import annotations

import os
import sys
import time

import quorate

client = quorate.Client(sys.argv[1])
name, end = sys.argv[2:]
lease = client.lock(name, ttl=1).acquire()
child = os.fork()
if child == 0:
    assert lease.remaining() == 0
    lease.release()  # of the parent's: nothing
    with client.lock(f"{name}:child", ttl=1):
        print("child", flush=True)
        time.sleep(2.5)  # two ttls of the parent's lease
    os._exit(0)
if end == "release":
    time.sleep(1.5)
    lease.check()
    lease.release()
print("parent", flush=True)
os._exit(0)
