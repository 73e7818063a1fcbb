"""The client without a face: how to acquire, hold and release. `Client` and `AsyncClient` put theirs on it."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from typing import Any, Callable, Mapping, Optional, TypeVar
from urllib.parse import quote

from .background import Background
from .clock import now
from .errors import InvalidRequest, LeaseLost, NotAcquired, QuorateError, Unavailable
from .held import Held, Target
from .keeper import Keeper
from .transport import ANSWER_TIMEOUT, Servers, Tour, Transport

__all__ = ["Core"]

T = TypeVar("T")

PIECE = 20.0
"""A longer wait is made of pieces: proxies cut long requests off, and servers have a `max_wait`."""
PATIENCE = 30.0
"""A wait without limit ends after so long without a verdict, of whatever kind."""
GRACE = 1.0
"""How much later than the wait an answer may come that says how it ended."""
RELEASE_TIMEOUT = 5.0
EXIT_TIMEOUT = 3.0


class Core:
    """All coroutines run in the background thread."""

    def __init__(self, servers: Servers, transport: Transport, background: Background) -> None:
        self.background = background
        self.servers = servers
        self.transport = transport
        self.keeper = Keeper(background, servers, transport)
        self.piece = PIECE

    async def call(
        self,
        method: str,
        path: str,
        names: Mapping[str, str],
        query: Mapping[str, Any],
        body: Any,
        timeout: float = ANSWER_TIMEOUT,
    ) -> Any:
        """One call, at one server after the other until one answers."""
        for name, value in names.items():
            Target("lock", value)  # raises where it is no name
            path = path.replace("{" + name + "}", quote(value, safe=""))
        given = {key: value for key, value in query.items() if value is not None}
        waits = given.get("wait_ms", 0) or (body or {}).get("wait_ms", 0)
        return await self._anywhere(method, path, body, given, now() + timeout + waits / 1000)

    async def _anywhere(self, method: str, path: str, body: Any, query: Any, deadline: float) -> Any:
        tour = Tour(self.servers)
        while True:
            url = self.servers.current
            try:
                return await self.transport.send(url, method, path, body, query, timeout=deadline - now())
            except Unavailable as error:
                if not tour.goes_on(url, error) or now() >= deadline:
                    raise

    async def acquire(
        self, target: Target, body: dict[str, Any], wait: Optional[float], max_hold: Optional[float]
    ) -> Held:
        """Waits for as long as `wait` says. However it ends but by a lease, nothing is left behind."""
        deadline = math.inf if wait is None else now() + wait
        while True:
            held = await self._acquire_once(target, body, deadline, wait, max_hold)
            if now() < held.valid_until:
                self.keeper.add(held)
                return held
            # This process was paused, or the network slow: by now somebody else may have it.
            self.background.spawn(self.release(held))
            if now() >= deadline:
                raise Unavailable("lease_expired", f"{target}: it was over when its answer was read")

    async def _acquire_once(
        self, target: Target, body: dict[str, Any], deadline: float, wait: Optional[float], max_hold: Optional[float]
    ) -> Held:
        # The same at every attempt: whichever was granted, the next one gets that lease.
        request_id = secrets.token_hex(16)
        attempts = Attempts(self, target, {**body, **target.body, "request_id": request_id}, deadline, wait)
        try:
            sent, answer = await attempts.run()
            return Held(target, answer, sent, now(), max_hold)
        except BaseException as error:
            if attempts.may_have_left_something(error):
                self.background.spawn(self._give_up(target, request_id, attempts.asked))
            raise

    async def _give_up(self, target: Target, request_id: str, asked: set[str]) -> None:
        """Ends the wait of a request at each server that was asked, and gives back what it may have got."""
        path, body, deadline = target.path("release"), {**target.body, "request_id": request_id}, now() + RELEASE_TIMEOUT

        async def told(url: str) -> bool:
            try:
                await self.transport.send(url, "POST", path, body, timeout=RELEASE_TIMEOUT / 2)
                return True
            except QuorateError:
                return False

        if not any(await asyncio.gather(*(told(url) for url in asked))):
            try:  # What a server granted that is gone, another one gives back.
                await self._anywhere("POST", path, body, None, deadline)
            except QuorateError:
                pass  # What a server was left with, it undoes when it sees that nobody waits for the answer.

    async def release(self, held: Held) -> None:
        """Gives it back. That it was not held any more is a loss; that no server answers is none."""
        held.released = True
        await self.keeper.remove(held)
        deadline = now() + RELEASE_TIMEOUT
        if held.lost is None and now() >= held.valid_until:
            held.expire()
        tour, again = Tour(self.servers), False
        while True:
            url = self.servers.current
            body = {**held.target.body, "lease_id": held.lease_id}
            try:
                path, timeout = held.target.path("release"), deadline - now()
                answer = await self.transport.send(url, "POST", path, body, timeout=timeout)
                # Where an earlier try got no answer, it may have been that one that released it.
                if not (answer.get("released") or again):
                    held.lose("lease_lost", "it was not held any more when it was released")
                return
            except Unavailable as error:
                again = True
                if not tour.goes_on(url, error):
                    await asyncio.sleep(0.1)
                if now() >= min(deadline, held.valid_until):
                    break
            except QuorateError:
                break
        if held.lost is None and now() >= held.valid_until:
            held.expire()

    def let_go(self, held: Held) -> None:
        """Releases without waiting for it, from any thread."""
        if held.mine() and not held.released:
            self.background.post(lambda: self.background.spawn(self.release(held)))

    async def change(self, path: str, after: Optional[str]) -> dict[str, Any]:
        """The state there, as soon as its revision is not `after`. Rides through whatever passes."""
        delay = 0.1
        while True:
            query = {} if after is None else {"after": after, "wait_ms": round(self.piece * 1000)}
            try:
                deadline = now() + ANSWER_TIMEOUT + self.piece
                state: dict[str, Any] = await self._anywhere("GET", path, None, query, deadline)
                if state.get("revision") != after:
                    return state
                delay = 0.1
            except InvalidRequest as error:
                if not self.shorten(error):
                    raise
            except Unavailable as error:
                await asyncio.sleep(max(error.retry_after or 0.0, delay) * random.uniform(1, 1.5))
                delay = min(2.0, delay * 2)

    def shorten(self, error: InvalidRequest) -> bool:
        """Whether the server refused the length of a wait, so that shorter pieces may do."""
        if self.piece < 0.1 or not any(one.get("field") == "wait_ms" for one in error.errors):
            return False
        self.piece /= 2
        return True

    def release_at_exit(self) -> None:
        """Gives back all that is held, when the process ends and its threads cannot be relied on."""
        try:
            self.background.pending().result(EXIT_TIMEOUT)
        except Exception:
            pass
        deadline = now() + EXIT_TIMEOUT
        for held in self.keeper.all():
            body = {**held.target.body, "lease_id": held.lease_id}
            for url in [self.servers.current, *self.servers.urls]:
                try:
                    path = held.target.path("release")
                    self.transport.send_at_exit(url, "POST", path, body, max(0.1, deadline - now()))
                    break
                except QuorateError:
                    if now() >= deadline:
                        return

    def close(self) -> None:
        """Ends all waits, releases all that is held, and ends the thread."""

        async def all_released() -> None:
            await self.background.wind_up()
            await asyncio.gather(*(self.release(held) for held in self.keeper.all()))
            await self.transport.close()

        if self.background.running:
            self.background.submit(all_released, shielded=True).result()
            self.background.stop()


class Attempts:
    """The attempts of one acquisition, at one server or several, until one is granted or the time is up."""

    def __init__(
        self, core: Core, target: Target, body: dict[str, Any], deadline: float, wait: Optional[float]
    ) -> None:
        self._core = core
        self._path = target.path("acquire")
        self._body = body
        self._deadline = deadline
        self._once = wait == 0
        self._count = 0
        self.asked: set[str] = set()
        self._verdict_at = now()
        self._delay = 0.1
        # By server: the earliest moment of the next attempt, and whether the server asked for it.
        self._after: dict[str, tuple[float, bool]] = {}

    def may_have_left_something(self, error: BaseException) -> bool:
        """Not a single attempt that was refused; all others may have a place in a queue, or a lease."""
        refused = isinstance(error, QuorateError) and not isinstance(error, Unavailable)
        return not refused or (self._count > 1 or not self._once)

    async def run(self) -> tuple[float, dict[str, Any]]:
        """When the attempt was sent that was granted, and its answer."""
        tour = Tour(self._core.servers)
        while True:
            left = self._deadline - now()
            wait = 0.0 if self._once else max(0.0, min(self._core.piece, left))
            limit = ANSWER_TIMEOUT + wait if self._once else min(ANSWER_TIMEOUT + wait, left + GRACE)
            body = {**self._body, "wait_ms": int(wait * 1000)}
            url, sent = self._core.servers.current, now()
            self._count += 1
            self.asked.add(url)
            try:
                answer = await self._core.transport.send(url, "POST", self._path, body, timeout=limit)
                if "lease_id" not in answer:
                    raise Unavailable("no_server", f"{url}: the answer is not that of a server")
                return sent, answer
            except NotAcquired as error:
                tour.answered()
                self._verdict_at = now()
                if self._once or now() >= self._deadline - 0.001:
                    raise
                if now() - sent >= wait * 0.9:
                    self._delay = 0.1
                    continue  # A piece is over. The server keeps the place in the queue, but not for long.
                self._postpone(url, error)
                await self._pause(url, error)
            except InvalidRequest as error:
                if self._once or not self._core.shorten(error):
                    raise
            except Unavailable as error:
                if now() >= self._deadline and not self._once:
                    raise
                goes_on, following = tour.goes_on(url, error), self._core.servers.current
                if goes_on and following == url:
                    continue  # A connection that broke.
                self._postpone(url, error)
                if goes_on and self._after.get(following, (0.0, False))[0] <= now():
                    continue
                if self._once or now() - self._verdict_at >= PATIENCE and self._deadline == math.inf:
                    raise
                if error._elsewhere:
                    url = min(self._after, key=lambda server: self._after[server][0])
                    self._core.servers.current = url
                await self._pause(url, error)

    def _postpone(self, url: str, error: QuorateError) -> None:
        """Leaves the server alone for as long as it asks for, or a little longer each time."""
        delay = error.retry_after
        if delay is None:
            delay, self._delay = self._delay, min(2.0, self._delay * 2)
        self._after[url] = now() + delay * random.uniform(1, 1.5), error.retry_after is not None

    async def _pause(self, url: str, error: QuorateError) -> None:
        """Waits until the server may be asked again; raises where there is no time for it."""
        moment, asked = self._after[url]
        if asked and moment >= self._deadline:
            raise error
        await asyncio.sleep(max(0.0, min(moment, self._deadline) - now()))
