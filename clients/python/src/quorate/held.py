"""What the client knows of a lease that it was granted."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import threading
from typing import Any, Callable, Optional
from urllib.parse import quote

from .clock import now
from .errors import LeaseLost, invalid
from .types import NAME

__all__ = ["Held", "Target"]

log = logging.getLogger("quorate")


class Target:
    """What a lease is for: a primitive and its name, or names; and the paths of its calls."""

    def __init__(self, primitive: str, *names: str) -> None:
        for name in names:
            if not (isinstance(name, str) and len(name) <= 200 and re.fullmatch(NAME, name)):
                raise invalid("name", f"{name!r} is not 1 to 200 characters of A–Z a–z 0–9 . _ ~ : @ -")
        if primitive == "multilock" and not (2 <= len(names) <= 64 and len(set(names)) == len(names)):
            raise invalid("names", "2 to 64, all different")
        self.primitive = primitive
        self.names = list(names)
        self.label: dict[str, Any] = {"names": self.names} if primitive == "multilock" else {"name": names[0]}
        # A body has the names where the path has none.
        self.body: dict[str, Any] = {"names": self.names} if primitive == "multilock" else {}
        self._path = "/v1/multilocks" if primitive == "multilock" else f"/v1/{primitive}s/{quote(names[0], safe='')}"

    def path(self, verb: str) -> str:
        if self.primitive == "election":
            verb = {"acquire": "campaign", "release": "resign"}.get(verb, verb)
        return f"{self._path}/{verb}"

    def __str__(self) -> str:
        return f"{self.primitive} {', '.join(self.names)}"


class Held:
    """
    A lease until it is released or lost. The renewals change it in the client's thread; everybody
    reads it, so what changes together is changed under the lock.
    """

    def __init__(
        self, target: Target, answer: dict[str, Any], sent: float, received: float, max_hold: Optional[float]
    ) -> None:
        self.target = target
        self.answer = answer
        self.lease_id: str = answer["lease_id"]
        self.ttl: float = answer["ttl_ms"] / 1000
        # Counted from when it can have been granted at the earliest: the answer took time, too.
        granted = min(sent + answer["waited_ms"] / 1000, received)
        self.valid_until: float = granted + answer["validity_ms"] / 1000
        self.renew_at = granted + self._pause(self.valid_until - granted)
        self.limit_at = math.inf if max_hold is None else granted + max_hold
        self.limit_reached = False
        self.released = False
        self.renewal: Optional[asyncio.Task[Any]] = None
        self.lost: Optional[LeaseLost] = None
        self.lost_event = threading.Event()
        self.pid = os.getpid()
        self._callbacks: list[Callable[[], Any]] = []
        self._lock = threading.Lock()

    def _pause(self, validity: float) -> float:
        """A third of the ttl; where it ends sooner, since `max_hold` does, a third of what is left."""
        return max(min(self.ttl, validity) / 3, self.ttl / 30)

    def extended(self, sent: float, answer: dict[str, Any]) -> None:
        until = sent + answer["validity_ms"] / 1000
        with self._lock:
            if self.lost is None:
                self.valid_until = until
        self.renew_at = sent + self._pause(until - sent)

    def mine(self) -> bool:
        """False in a child process that was forked with it."""
        return self.pid == os.getpid()

    def remaining(self) -> float:
        if self.lost is not None or not self.mine():
            return 0.0
        return max(0.0, self.valid_until - now())

    def check(self) -> None:
        if not self.mine():
            raise LeaseLost("lease_lost", f"{self.target}: the lease is the parent process's")
        if self.lost is None and now() >= self.valid_until:
            self.expire()
        if self.lost is not None:
            raise self.lost

    def expire(self) -> None:
        """Its validity is over."""
        # What clocks may drift apart is taken off the validity, so it ends a little before the limit.
        if self.limit_reached or now() >= self.limit_at - self.ttl / 20:
            self.lose("hold_limit_reached", "it was held for as long as max_hold allows")
        else:
            self.lose("lease_expired", "its validity ended before a server extended it")

    def lose(self, code: str, detail: str, problem: Optional[dict[str, Any]] = None) -> None:
        """Signals the loss, once."""
        with self._lock:
            if self.lost is not None:
                return
            self.lost = LeaseLost(code, f"{self.target}: {detail}", problem)
            callbacks, self._callbacks = self._callbacks, []
        self.lost_event.set()
        for callback in callbacks:
            self._start(callback)

    def on_lost(self, callback: Callable[[], Any]) -> None:
        with self._lock:
            if self.lost is None:
                self._callbacks.append(callback)
                return
        self._start(callback)

    def forget_callbacks(self) -> None:
        with self._lock:
            self._callbacks = []

    def _start(self, callback: Callable[[], Any]) -> None:
        """In a thread of its own: a callback that takes its time must not keep other leases from being renewed."""

        def run() -> None:
            try:
                callback()
            except Exception:
                log.exception("a callback for the loss of %s failed", self.target)

        threading.Thread(target=run, name="quorate-lost", daemon=True).start()
