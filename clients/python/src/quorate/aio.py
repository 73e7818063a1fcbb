"""The client for asyncio."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any, AsyncIterator, Awaitable, Callable, Optional, Sequence, TypeVar, cast

from . import types
from .aio_guards import AsyncGuard, AsyncGuards, AsyncLeadership, AsyncLease, result_of
from .errors import LeaseLost, Unavailable
from .held import Target
from .idempotence import Outcome

__all__ = ["AsyncClient"]

log = logging.getLogger("quorate")
T = TypeVar("T")
L = TypeVar("L", bound=AsyncLease)


class AsyncClient(AsyncGuards):
    """The twin of `Client` for asyncio: the same methods with the same meaning, to be awaited."""

    async def with_lock(
        self,
        name: str,
        run: Callable[[AsyncLease], Awaitable[T]],
        *,
        ttl: Optional[float] = 30.0,
        wait: Optional[float] = None,
    ) -> T:
        """Awaits `run(lease)` under a lock, and returns what it returns."""
        async with self.lock(name, ttl=ttl, wait=wait) as lease:
            return await run(lease)

    async def with_locks(
        self,
        names: Sequence[str],
        run: Callable[[AsyncLease], Awaitable[T]],
        *,
        ttl: Optional[float] = 30.0,
        wait: Optional[float] = None,
    ) -> T:
        """The same under all of these locks."""
        async with self.locks(*names, ttl=ttl, wait=wait) as lease:
            return await run(lease)

    async def try_with_lock(
        self, name: str, run: Callable[[AsyncLease], Awaitable[T]], *, ttl: Optional[float] = 30.0
    ) -> tuple[bool, Optional[T]]:
        """Whether nobody else had the lock, and what `run(lease)` returned then. `Unavailable` is still an error."""
        lease = await self.lock(name, ttl=ttl).try_acquire()
        if lease is None:
            return False, None
        async with lease:
            return True, await run(lease)

    async def idempotent(
        self,
        event: str,
        *,
        done: Callable[[], Awaitable[bool]],
        process: Callable[[AsyncLease], Awaitable[Any]],
        ttl: Optional[float] = 30.0,
    ) -> Outcome:
        """Processes an event once, however often it is delivered; see `Client.idempotent`."""

        async def once(lease: AsyncLease) -> Outcome:
            if await done():
                return "already_processed"
            await process(lease)
            return "processed"

        _, outcome = await self.try_with_lock(event, once, ttl=ttl)
        return outcome or "duplicate"

    async def singleton(
        self,
        name: str,
        run: Callable[[AsyncLease, asyncio.Event], Awaitable[Any]],
        *,
        ttl: Optional[float] = 10.0,
    ) -> None:
        """Awaits `run(lease, lost)` in one process at a time; see `Client.singleton`. To stop it, cancel it."""
        await self._stand(self.lock(name, ttl=ttl), run)

    async def lead(
        self,
        name: str,
        *,
        candidate: str,
        run: Callable[[int, asyncio.Event], Awaitable[Any]],
        value: Optional[str] = None,
        ttl: Optional[float] = 10.0,
    ) -> None:
        """
        Awaits `run(term, lost)` whenever this candidate is elected. When the leadership is lost,
        `lost` is set and `run` is cancelled, and the candidate stands again. When `run` returns by
        itself, the candidate resigns, and `lead` returns. To stop it, cancel it.
        """

        async def leads(leadership: AsyncLeadership, lost: asyncio.Event) -> None:
            await run(leadership.term, lost)

        await self._stand(self.election(name, candidate=candidate, value=value, ttl=ttl), leads)

    async def lead_with_hooks(
        self,
        name: str,
        *,
        candidate: str,
        became: Callable[[int], Any],
        lost: Callable[[int], Any],
        value: Optional[str] = None,
        ttl: Optional[float] = 10.0,
    ) -> None:
        """Calls `became(term)` and `lost(term)` in turn; see `Client.lead_with_hooks`. To stop it, cancel it."""

        async def leads(term: int, ended: asyncio.Event) -> None:
            became(term)
            try:
                await ended.wait()
            finally:
                lost(term)

        await self.lead(name, candidate=candidate, run=leads, value=value, ttl=ttl)

    async def _stand(self, guard: AsyncGuard[L], run: Callable[[L, asyncio.Event], Awaitable[Any]]) -> None:
        """Waits without limit, runs, releases, and begins anew after a loss."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                lease = await guard._acquire(None)
            except Unavailable:
                continue  # After 30 s of trying; there is nothing else that could be done.
            lost = asyncio.Event()
            lease.on_lost(functools.partial(loop.call_soon_threadsafe, lost.set))
            try:
                async with lease:
                    await run(lease, lost)
                return
            except LeaseLost as error:
                if error is not lease._held.lost:
                    raise
                log.warning("%s", error)

    async def observe_election(self, name: str) -> AsyncIterator[types.ElectionState]:
        """The present state of an election, then each change: leader, term, value and vacancy."""
        path, after = Target("election", name).path("")[:-1], None
        while True:
            state = await result_of(self._core.background.submit(functools.partial(self._core.change, path, after)))
            after = state["revision"]
            yield cast(types.ElectionState, state)
