"""Renews what is held, in one heartbeat for all, and sees to it that a loss is noticed in time."""

from __future__ import annotations

import asyncio
from typing import Any, Iterator, Optional

from .background import Background
from .clock import now
from .errors import LeaseLost, QuorateError, Unavailable
from .held import Held
from .transport import Servers, Transport

__all__ = ["Keeper"]

BATCH = 500
BATCH_BYTES = 200_000
"""A request may name so many leases, and its body have 256 KiB."""
LONGEST_SLEEP = 1.0
"""The event loop's own clock stands still in suspend; so it looks at the other one at least this often."""


def batches(due: list[Held]) -> Iterator[list[Held]]:
    """As few requests as can be."""
    batch: list[Held] = []
    size = 0
    for held in due:
        # Some bytes of a body: names are ASCII.
        own = 150 + sum(len(name) + 4 for name in held.target.names)
        if batch and (len(batch) == BATCH or size + own > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(held)
        size += own
    if batch:
        yield batch


def is_lease(answer: Any) -> bool:
    return isinstance(answer, dict) and isinstance(answer.get("validity_ms"), int)


class Keeper:
    """Everything here runs in the background thread."""

    def __init__(self, background: Background, servers: Servers, transport: Transport) -> None:
        self._background = background
        self._servers = servers
        self._transport = transport
        self._held: set[Held] = set()
        self._changed: Optional[asyncio.Event] = None
        self._at_once = True  # until a server says that it does not know how

    def add(self, held: Held) -> None:
        self._held.add(held)
        if self._changed is None:
            self._changed = asyncio.Event()
            self._background.spawn_endless(self._keep(self._changed))
        self._changed.set()

    async def remove(self, held: Held) -> None:
        """No renewal of it is under way afterwards: one that arrives after a release would look like a loss."""
        self.forget(held)
        if held.renewal is not None:
            await asyncio.wait([held.renewal])

    def forget(self, held: Held) -> None:
        """It is left to its ttl."""
        self._held.discard(held)
        if self._changed is not None:
            self._changed.set()

    def all(self) -> list[Held]:
        return list(self._held)

    async def _keep(self, changed: asyncio.Event) -> None:
        """Ends when nothing is held, so that a client whom nobody refers to any more leaves no work behind."""
        while self._held:
            changed.clear()
            time = now()
            for held in self.all():
                if time >= held.valid_until:
                    self._held.discard(held)
                    held.expire()
            waiting = [held for held in self._held if held.renewal is None and not held.limit_reached]
            if any(held.renew_at <= time for held in waiting):
                # All that are due soon go along, so that leases of one client come to be renewed together.
                due = [held for held in waiting if held.renew_at - held.ttl / 6 <= time]
                for batch in batches(due):
                    renewal = self._background.spawn(self._renew(batch))
                    for held in batch:
                        held.renewal = renewal
                waiting = [held for held in waiting if held.renewal is None]
            ends = [held.valid_until for held in self._held] + [held.renew_at for held in waiting]
            if not ends:
                break
            try:
                await asyncio.wait_for(changed.wait(), min(max(0.0, min(ends) - now()), LONGEST_SLEEP))
            except asyncio.TimeoutError:
                pass
        self._changed = None

    async def _renew(self, batch: list[Held]) -> None:
        try:
            if self._at_once and len(batch) > 1:
                await self._extend_at_once(batch)
            else:
                await asyncio.gather(*(self._extend(held) for held in batch))
        finally:
            for held in batch:
                held.renewal = None
            if self._changed is not None:
                self._changed.set()

    def _timeout(self, batch: list[Held]) -> float:
        return max(0.25, min(held.ttl for held in batch) / 4)

    async def _extend_at_once(self, batch: list[Held]) -> None:
        sent, url = now(), self._servers.current
        leases = [
            {"primitive": held.target.primitive, **held.target.label, "lease_id": held.lease_id} for held in batch
        ]
        try:
            answer = await self._transport.send(
                url, "POST", "/v1/leases/extend", {"leases": leases}, timeout=self._timeout(batch)
            )
            results = answer.get("results")
            if not isinstance(results, list):
                raise Unavailable("no_server", f"{url}: the answer has no results")
        except Unavailable as error:
            self._servers.leave(url) if error._elsewhere else None
            results = []
        except QuorateError as error:
            if error.code in ("not_found", "method_not_allowed", "http_404", "http_405"):
                self._at_once = False
            # Refused as a whole, like a body that is too long: each may still be extended by itself.
            await asyncio.gather(*(self._extend(held) for held in batch))
            return
        missing = len(batch) - len(results)
        for held, result in zip(batch, results + [None] * missing):
            given: dict[str, Any] = result if isinstance(result, dict) else {}
            lease, problem = given.get("lease"), given.get("problem")
            if lease is not None and is_lease(lease):
                held.extended(sent, lease)
                continue
            if not isinstance(problem, dict):
                problem = {}
            if problem.get("code") not in ("lease_lost", "hold_limit_reached"):
                self._servers.leave(url)
            self._failed(held, problem)

    async def _extend(self, held: Held) -> None:
        sent, url = now(), self._servers.current
        body = {**held.target.body, "lease_id": held.lease_id}
        try:
            answer = await self._transport.send(
                url, "POST", held.target.path("extend"), body, timeout=self._timeout([held])
            )
            if not is_lease(answer):
                raise Unavailable("no_server", f"{url}: the answer is no lease")
            held.extended(sent, answer)
        except LeaseLost as error:
            self._failed(held, {**error.problem, "code": error.code})
        except QuorateError as error:
            if isinstance(error, Unavailable) and error._elsewhere:
                self._servers.leave(url)
            self._failed(held, {})

    def _failed(self, held: Held, problem: dict[str, Any]) -> None:
        """While there is time, it is tried again; only `lease_lost` is the end."""
        if problem.get("code") == "lease_lost":
            self._held.discard(held)
            held.lose("lease_lost", str(problem.get("detail", "a server says so")), problem)
        elif problem.get("code") == "hold_limit_reached":
            held.limit_reached = True
        held.renew_at = now() + held.ttl / 30
