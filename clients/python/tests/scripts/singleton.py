"""Says when it is the one that runs."""

from __future__ import annotations

import sys
import threading

import quorate


def run(lease: quorate.Lease, lost: threading.Event) -> None:
    print("runs", flush=True)
    lost.wait()


quorate.Client(sys.argv[1]).singleton(sys.argv[2], run, ttl=1)
