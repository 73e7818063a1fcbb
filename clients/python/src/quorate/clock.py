"""The clock of leases: monotonic, and it counts the time in suspend where the system has such a clock."""

from __future__ import annotations

import sys
import time
from typing import Callable

__all__ = ["now"]


def _clock() -> Callable[[], float]:
    """time.monotonic stands still in suspend on Linux and macOS: a lease would seem valid after a long sleep."""
    if sys.platform == "linux":
        kind: int = time.CLOCK_BOOTTIME
    elif sys.platform == "darwin":
        kind = time.CLOCK_MONOTONIC
    else:
        return time.monotonic
    try:
        time.clock_gettime(kind)
    except OSError:  # an old kernel, or a sandbox
        return time.monotonic
    return lambda: time.clock_gettime(kind)


now = _clock()
