"""What a client for threads can acquire, each to be used as a block."""

from __future__ import annotations

import logging
import threading
from typing import Generic, Optional, TypeVar
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType

from .api import Api
from .background import abandon
from .base import BaseClient, Wanted, limit_of_rate
from .errors import LeaseLost, NotAcquired, Unavailable
from .held import Target
from .lease import BaseLease, give_back

__all__ = ["Guard", "Guards", "Leadership", "Lease"]

log = logging.getLogger("quorate")


class Lease(BaseLease):
    """Held until its block ends, or `release`."""

    def wait_lost(self, timeout: Optional[float] = None) -> bool:
        """Waits until the lease is lost; False where it is not by then. After a release it waits in vain."""
        return self._held.lost_event.wait(timeout)

    def release(self) -> None:
        """
        Gives it back. Raises `LeaseLost` where it had been lost: others may have had it meanwhile.
        That no server can be reached is no error: the lease ends with its ttl.
        """
        if self._let_go():
            self._core.background.submit(lambda: self._core.release(self._held), shielded=True).result()
            self._held.forget_callbacks()
        if self._held.lost is not None and self._held.mine():
            raise self._held.lost

    def __enter__(self: L) -> L:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self.release()
        except LeaseLost as lost:
            if error is None:
                raise
            log.warning("%s: the block that held it failed, too, with %r", lost, error)


class Leadership(Lease):
    """The lease of a leader."""

    @property
    def term(self) -> int:
        """The fencing token: greater than every earlier leader's."""
        return int(self._held.answer["term"])

    @property
    def fencing_token(self) -> int:
        """The term."""
        return self.term

    def proclaim(self, value: str) -> None:
        """Tells all observers another value."""
        body = {"lease_id": self._held.lease_id, "value": value}
        path = self._held.target.path("proclaim")
        self._core.background.submit(lambda: self._core.call("POST", path, {}, {}, body)).result()


L = TypeVar("L", bound=Lease)
G = TypeVar("G", bound="Guards")


class Guard(Generic[L]):
    """
    Something to be acquired: by a `with` block, or by `acquire`. It can be used again and again,
    and by several threads, each of which gets a lease of its own.
    """

    def __init__(self, client: Guards, wanted: Wanted, kind: type[L]) -> None:
        self._client = client
        self._wanted = wanted
        self._kind = kind
        self._entered = threading.local()

    def _start(self, wait: Optional[float]) -> Future[L]:
        core, wanted, kind = self._client._core, self._wanted, self._kind

        async def acquire() -> L:
            return kind(core, await core.acquire(wanted.target, wanted.body, wait, wanted.max_hold))

        return core.background.submit(acquire, give_back)

    def _finish(self, started: Future[L], stop: Optional[threading.Event] = None) -> L:
        """The lease; whoever is interrupted while waiting, by a signal's exception, leaves none behind."""
        try:
            while True:
                try:
                    return started.result(None if stop is None else 0.1)
                except FutureTimeout:
                    if started.done() or stop is None:
                        raise
                    if stop.is_set():
                        raise Unavailable("stopped", f"{self._wanted.target}: told to stop") from None
        except BaseException:
            abandon(started, give_back)
            raise

    def acquire(self) -> L:
        """The lease. Raises `NotAcquired` where somebody else had it all the time, `Unavailable` if none can tell."""
        return self._finish(self._start(self._wanted.wait))

    def try_acquire(self) -> Optional[L]:
        """One attempt: the lease, or None where somebody else has it."""
        try:
            return self._finish(self._start(0))
        except NotAcquired:
            return None

    def __enter__(self) -> L:
        lease = self.acquire()
        stack = self._entered.__dict__.setdefault("leases", [])
        stack.append(lease)
        return lease

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._entered.leases.pop().__exit__(kind, error, trace)


class Guards(BaseClient):
    """The part of `Client` that acquires and closes."""

    @property
    def api(self) -> Api:
        """Every call of the API as it is: to look at locks, issue tokens, list nodes and so on."""
        core = self._core
        return Api(lambda *call: core.background.submit(lambda: core.call(*call)).result())

    def lock(
        self,
        name: str,
        *,
        ttl: Optional[float] = 30.0,
        wait: Optional[float] = None,
        owner: Optional[str] = None,
        metadata: Optional[dict[str, str]] = None,
        shared: bool = False,
        max_hold: Optional[float] = None,
        lock_delay: Optional[float] = None,
    ) -> Guard[Lease]:
        """
        A lock. Any number can hold it at once if all of them ask for `shared`.

        max_hold: it ends that long after it was acquired, however often it is renewed.
        lock_delay: if it is not released but expires, it stays taken for that much longer.
        """
        wanted = self._wanted_lock((name,), ttl, wait, owner, metadata, max_hold, lock_delay, shared=shared)
        return Guard(self, wanted, Lease)

    def locks(
        self,
        *names: str,
        ttl: Optional[float] = 30.0,
        wait: Optional[float] = None,
        owner: Optional[str] = None,
        metadata: Optional[dict[str, str]] = None,
        max_hold: Optional[float] = None,
        lock_delay: Optional[float] = None,
    ) -> Guard[Lease]:
        """All of these locks or none, by one lease; the order of names does not matter."""
        wanted = self._wanted_lock(names, ttl, wait, owner, metadata, max_hold, lock_delay)
        return Guard(self, wanted, Lease)

    def semaphore(
        self,
        name: str,
        *,
        limit: int,
        permits: int = 1,
        ttl: Optional[float] = 30.0,
        wait: Optional[float] = None,
        owner: Optional[str] = None,
        metadata: Optional[dict[str, str]] = None,
        max_hold: Optional[float] = None,
        lock_delay: Optional[float] = None,
    ) -> Guard[Lease]:
        """`permits` of the `limit` that may be held at once. All who use it should say the same limit."""
        target, counts = Target("semaphore", name), {"limit": limit, "permits": permits}
        wanted = self._wanted(target, ttl, wait, owner, metadata, max_hold, lock_delay, **counts)
        return Guard(self, wanted, Lease)

    def rate_limit(
        self, name: str, *, limit: int, per: float, wait: Optional[float] = None, owner: Optional[str] = None
    ) -> None:
        """Returns when this call is one of at most `limit` in any window of `per` seconds."""
        wanted = self._wanted(Target("semaphore", name), per, wait, owner, limit=limit)
        started = self._core.background.submit(lambda: limit_of_rate(self._core, wanted))
        try:
            started.result()
        finally:
            started.cancel()

    def election(
        self,
        name: str,
        *,
        candidate: str,
        value: Optional[str] = None,
        ttl: Optional[float] = 10.0,
        wait: Optional[float] = None,
        max_hold: Optional[float] = None,
    ) -> Guard[Leadership]:
        """Leadership as a block; `lead` is the same as a loop."""
        return Guard(self, self._wanted_election(name, candidate, value, ttl, wait, max_hold), Leadership)

    def close(self) -> None:
        """Releases what is still held. The client can be used again afterwards."""
        core, self._core = self._core, self._new_core()
        core.close()

    def __enter__(self: G) -> G:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
