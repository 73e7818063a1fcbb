"""The client for threads."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any, Callable, Iterator, Optional, Sequence, TypeVar, cast

from . import types
from .errors import LeaseLost, Unavailable
from .guards import Guard, Guards, Leadership, Lease
from .held import Target
from .idempotence import Outcome

__all__ = ["Client"]

log = logging.getLogger("quorate")
T = TypeVar("T")
L = TypeVar("L", bound=Lease)


class Client(Guards):
    """
    A client for threads; any number of them can use one. Durations are in seconds.

    `wait` is how long to wait for a lease: None for as long as it takes, 0 for one attempt. `ttl` is
    how long a lease lasts when its process dies; while it lives, the lease is renewed.
    """

    def with_lock(
        self, name: str, run: Callable[[Lease], T], *, ttl: Optional[float] = 30.0, wait: Optional[float] = None
    ) -> T:
        """Calls `run(lease)` under a lock, and returns what it returns."""
        with self.lock(name, ttl=ttl, wait=wait) as lease:
            return run(lease)

    def with_locks(
        self,
        names: Sequence[str],
        run: Callable[[Lease], T],
        *,
        ttl: Optional[float] = 30.0,
        wait: Optional[float] = None,
    ) -> T:
        """The same under all of these locks."""
        with self.locks(*names, ttl=ttl, wait=wait) as lease:
            return run(lease)

    def try_with_lock(
        self, name: str, run: Callable[[Lease], T], *, ttl: Optional[float] = 30.0
    ) -> tuple[bool, Optional[T]]:
        """Whether nobody else had the lock, and what `run(lease)` returned then. `Unavailable` is still an error."""
        lease = self.lock(name, ttl=ttl).try_acquire()
        if lease is None:
            return False, None
        with lease:
            return True, run(lease)

    def idempotent(
        self, event: str, *, done: Callable[[], bool], process: Callable[[Lease], Any], ttl: Optional[float] = 30.0
    ) -> Outcome:
        """
        Processes an event once, however often it is delivered, such as a webhook. The mark of what was
        processed lives where its effect lives: `process(lease)` should write both in one transaction, and
        `done` looks for the mark. A failure leaves no mark, so that the next delivery processes the event.
        """

        def once(lease: Lease) -> Outcome:
            if done():
                return "already_processed"
            process(lease)
            return "processed"

        _, outcome = self.try_with_lock(event, once, ttl=ttl)
        return outcome or "duplicate"

    def singleton(
        self,
        name: str,
        run: Callable[[Lease, threading.Event], Any],
        *,
        ttl: Optional[float] = 10.0,
        stop: Optional[threading.Event] = None,
    ) -> None:
        """
        Calls `run(lease, lost)` in one process at a time: the others stand by, and one of them takes over. It
        is called again after a loss, which sets `lost`. When it returns by itself, `singleton` returns.
        """
        self._stand(self.lock(name, ttl=ttl), lambda lease: run(lease, lease._held.lost_event), stop)

    def lead(
        self,
        name: str,
        *,
        candidate: str,
        run: Callable[[int, threading.Event], Any],
        value: Optional[str] = None,
        ttl: Optional[float] = 10.0,
        stop: Optional[threading.Event] = None,
    ) -> None:
        """
        Calls `run(term, lost)` whenever this candidate is elected. `lost` is set when the leadership
        is lost: `run` has to return soon then, and the candidate stands again. When `run` returns by
        itself, the candidate resigns, and `lead` returns; likewise if `stop` is set while it waits.
        """

        def leads(leadership: Leadership) -> None:
            run(leadership.term, leadership._held.lost_event)

        self._stand(self.election(name, candidate=candidate, value=value, ttl=ttl), leads, stop)

    def lead_with_hooks(
        self,
        name: str,
        *,
        candidate: str,
        became: Callable[[int], Any],
        lost: Callable[[int], Any],
        stop: threading.Event,
        value: Optional[str] = None,
        ttl: Optional[float] = 10.0,
    ) -> None:
        """
        For work that goes on elsewhere: calls `became(term)` when this candidate is elected, and `lost(term)`
        when that is over, before it resigns. Returns when `stop` is set.
        """

        def leads(term: int, ended: threading.Event) -> None:
            became(term)
            try:
                while not (stop.is_set() or ended.wait(0.1)):
                    pass
            finally:
                lost(term)

        self.lead(name, candidate=candidate, run=leads, value=value, ttl=ttl, stop=stop)

    def _stand(self, guard: Guard[L], run: Callable[[L], Any], stop: Optional[threading.Event]) -> None:
        """Waits without limit, calls, releases, and begins anew after a loss."""
        while not (stop is not None and stop.is_set()):
            try:
                lease = guard._finish(guard._start(None), stop)
            except Unavailable:
                continue  # After 30 s of trying; there is nothing else that could be done.
            try:
                with lease:
                    run(lease)
                return
            except LeaseLost as lost:
                if lost is not lease._held.lost:
                    raise
                log.warning("%s", lost)

    def observe_election(self, name: str) -> Iterator[types.ElectionState]:
        """The present state of an election, then each change: leader, term, value and vacancy."""
        path, after = Target("election", name).path("")[:-1], None
        while True:
            started = self._core.background.submit(functools.partial(self._core.change, path, after))
            try:
                state = started.result()
            finally:
                started.cancel()
            after = state["revision"]
            yield cast(types.ElectionState, state)
