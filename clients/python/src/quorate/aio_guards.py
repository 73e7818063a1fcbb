"""What a client for asyncio can acquire. Renewals go on in a thread, so that a blocked event loop loses no lease."""

from __future__ import annotations

import asyncio
import logging
import sys
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Callable, Generic, Optional, TypeVar

from .api import AsyncApi
from .background import abandon
from .base import BaseClient, Wanted, limit_of_rate
from .errors import LeaseLost, NotAcquired
from .held import Target
from .lease import BaseLease, give_back

__all__ = ["AsyncGuard", "AsyncGuards", "AsyncLeadership", "AsyncLease"]

log = logging.getLogger("quorate")
T = TypeVar("T")


async def result_of(started: Future[T], undo: Callable[[T], None] = lambda _: None) -> T:
    """Waits for work in the client's thread. A caller that is cancelled meanwhile cancels it."""
    try:
        return await asyncio.wrap_future(started)
    except BaseException:
        abandon(started, undo)
        raise


class AsyncLease(BaseLease):
    """Held until its block ends, or `release`. The task that is in the block is cancelled when it is lost."""

    _task: Optional[asyncio.Task[Any]] = None
    _cancelled = False

    async def release(self) -> None:
        """
        Gives it back. Raises `LeaseLost` where it had been lost: others may have had it meanwhile.
        That no server can be reached is no error: the lease ends with its ttl.
        """
        if self._let_go():
            core, held = self._core, self._held
            await asyncio.wrap_future(core.background.submit(lambda: core.release(held), shielded=True))
            held.forget_callbacks()
        if self._held.lost is not None and self._held.mine():
            raise self._held.lost

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    async def __aenter__(self: L) -> L:
        loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

        def lost() -> None:
            try:
                loop.call_soon_threadsafe(self._cancel)
            except RuntimeError:  # the loop has ended, and the task with it
                pass

        self._held.on_lost(lost)
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        task, self._task = self._task, None  # From here on nothing is cancelled any more.
        if self._cancelled and task is not None:
            others = sys.version_info >= (3, 11) and task.uncancel() > 0
            if isinstance(error, asyncio.CancelledError) and not others:
                error = None  # It was ours: what leaves the block is the loss.
        try:
            await self.release()
        except LeaseLost as lost:
            if error is None:
                raise
            log.warning("%s: the block that held it failed, too, with %r", lost, error)


class AsyncLeadership(AsyncLease):
    """The lease of a leader."""

    @property
    def term(self) -> int:
        """The fencing token: greater than every earlier leader's."""
        return int(self._held.answer["term"])

    @property
    def fencing_token(self) -> int:
        """The term."""
        return self.term

    async def proclaim(self, value: str) -> None:
        """Tells all observers another value."""
        body = {"lease_id": self._held.lease_id, "value": value}
        path = self._held.target.path("proclaim")
        await result_of(self._core.background.submit(lambda: self._core.call("POST", path, {}, {}, body)))


L = TypeVar("L", bound=AsyncLease)
G = TypeVar("G", bound="AsyncGuards")


class AsyncGuard(Generic[L]):
    """
    Something to be acquired: by an `async with` block, or by `acquire`. It can be used again and
    again, and by several tasks, each of which gets a lease of its own.
    """

    def __init__(self, client: AsyncGuards, wanted: Wanted, kind: type[L]) -> None:
        self._client = client
        self._wanted = wanted
        self._kind = kind
        self._entered: dict[Optional[asyncio.Task[Any]], list[L]] = {}

    async def _acquire(self, wait: Optional[float]) -> L:
        core, wanted, kind = self._client._core, self._wanted, self._kind

        async def acquire() -> L:
            return kind(core, await core.acquire(wanted.target, wanted.body, wait, wanted.max_hold))

        return await result_of(core.background.submit(acquire, give_back), give_back)

    async def acquire(self) -> L:
        """The lease. Raises `NotAcquired` where somebody else had it all the time, `Unavailable` if none can tell."""
        return await self._acquire(self._wanted.wait)

    async def try_acquire(self) -> Optional[L]:
        """One attempt: the lease, or None where somebody else has it."""
        try:
            return await self._acquire(0)
        except NotAcquired:
            return None

    async def __aenter__(self) -> L:
        lease = await self.acquire()
        self._entered.setdefault(asyncio.current_task(), []).append(lease)
        return await lease.__aenter__()

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        task = asyncio.current_task()
        lease = self._entered[task].pop()
        if not self._entered[task]:
            del self._entered[task]
        await lease.__aexit__(kind, error, trace)


class AsyncGuards(BaseClient):
    """The part of `AsyncClient` that acquires and closes."""

    @property
    def api(self) -> AsyncApi:
        """Every call of the API as it is: to look at locks, issue tokens, list nodes and so on."""
        core = self._core
        return AsyncApi(lambda *call: result_of(core.background.submit(lambda: core.call(*call))))

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
    ) -> AsyncGuard[AsyncLease]:
        """A lock; see `Client.lock`."""
        wanted = self._wanted_lock((name,), ttl, wait, owner, metadata, max_hold, lock_delay, shared=shared)
        return AsyncGuard(self, wanted, AsyncLease)

    def locks(
        self,
        *names: str,
        ttl: Optional[float] = 30.0,
        wait: Optional[float] = None,
        owner: Optional[str] = None,
        metadata: Optional[dict[str, str]] = None,
        max_hold: Optional[float] = None,
        lock_delay: Optional[float] = None,
    ) -> AsyncGuard[AsyncLease]:
        """All of these locks or none; see `Client.locks`."""
        wanted = self._wanted_lock(names, ttl, wait, owner, metadata, max_hold, lock_delay)
        return AsyncGuard(self, wanted, AsyncLease)

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
    ) -> AsyncGuard[AsyncLease]:
        """`permits` of `limit`; see `Client.semaphore`."""
        target, counts = Target("semaphore", name), {"limit": limit, "permits": permits}
        wanted = self._wanted(target, ttl, wait, owner, metadata, max_hold, lock_delay, **counts)
        return AsyncGuard(self, wanted, AsyncLease)

    async def rate_limit(
        self, name: str, *, limit: int, per: float, wait: Optional[float] = None, owner: Optional[str] = None
    ) -> None:
        """Returns when this call is one of at most `limit` in any window of `per` seconds."""
        wanted = self._wanted(Target("semaphore", name), per, wait, owner, limit=limit)
        await result_of(self._core.background.submit(lambda: limit_of_rate(self._core, wanted)))

    def election(
        self,
        name: str,
        *,
        candidate: str,
        value: Optional[str] = None,
        ttl: Optional[float] = 10.0,
        wait: Optional[float] = None,
        max_hold: Optional[float] = None,
    ) -> AsyncGuard[AsyncLeadership]:
        """Leadership as a block; `lead` is the same as a loop."""
        return AsyncGuard(self, self._wanted_election(name, candidate, value, ttl, wait, max_hold), AsyncLeadership)

    async def close(self) -> None:
        """Releases what is still held. The client can be used again afterwards."""
        core, self._core = self._core, self._new_core()
        await asyncio.get_running_loop().run_in_executor(None, core.close)

    async def __aenter__(self: G) -> G:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
