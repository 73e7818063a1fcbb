"""Holds three locks until it is told to end."""

from __future__ import annotations

import sys

import quorate

client = quorate.Client(sys.argv[1])
leases = [client.lock(f"{sys.argv[2]}:{number}", ttl=60).acquire() for number in range(3)]
print("held", flush=True)
if sys.stdin.readline() == "raise\n":
    sys.stderr.close()
    raise KeyError("uncaught")
