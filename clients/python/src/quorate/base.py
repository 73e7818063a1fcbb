"""What `Client` and `AsyncClient` have in common: settings, the end of the process, and forks."""

from __future__ import annotations

import atexit
import os
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Union

from .background import Background
from .core import Core
from .errors import invalid
from .held import Target
from .transport import Servers, Transport, tls_context

__all__ = ["BaseClient", "Wanted", "limit_of_rate"]

_clients: weakref.WeakSet[BaseClient] = weakref.WeakSet()
_cores: weakref.WeakSet[Core] = weakref.WeakSet()
"""Those of leases whose client is gone, too."""
_of_parents: list[Core] = []
"""In a forked child: its parent's, kept so that nothing closes the sockets that both have."""


@dataclass(frozen=True)
class Wanted:
    """What a guard acquires, each time it does."""

    target: Target
    body: dict[str, Any]
    wait: Optional[float]
    max_hold: Optional[float]


def milliseconds(field: str, seconds: float) -> int:
    """Of a length that the server is to keep to: a fraction of a millisecond would be another length."""
    try:
        exact = seconds * 1000
        whole = round(exact)
    except (TypeError, ValueError, OverflowError):
        raise invalid(field, f"{seconds!r} is not a number of seconds") from None
    if abs(exact - whole) > 1e-6 or whole < 0:
        raise invalid(field, f"{seconds!r} s is not a whole number of milliseconds")
    return whole


class BaseClient:
    def __init__(
        self,
        servers: Union[str, Sequence[str], None] = None,
        *,
        api_key: Optional[str] = None,
        owner: Optional[str] = None,
        ca: Optional[str] = None,
        client_cert: Optional[str] = None,
        proxy: Optional[str] = None,
    ) -> None:
        """
        Nothing is sent yet.

        servers: a URL, or several (also separated by commas); otherwise `QUORATE_SERVER`, otherwise
            http://127.0.0.1:8080. The client stays with one while it answers.
        api_key: otherwise `QUORATE_API_KEY`.
        owner: the label that others see, for all leases that have no other.
        ca: a file of CA certificates to trust besides the usual ones; otherwise `QUORATE_CA`.
        client_cert: a file with certificate and key, where the server demands one; otherwise
            `QUORATE_CLIENT_CERT`.
        proxy: the URL of a proxy; otherwise `HTTPS_PROXY` and its like.
        """
        chosen, tls = Servers(servers), tls_context(ca, client_cert)
        self._owner = owner
        self._make: Callable[[], Core] = lambda: Core(chosen, Transport(api_key, tls, proxy), Background())
        self._core = self._new_core()
        _clients.add(self)
        # A client that nobody uses any more needs no thread; what its leases need keeps it alive.
        weakref.finalize(self, _ended, self._core).atexit = False

    def _new_core(self) -> Core:
        core = self._make()
        _cores.add(core)
        return core

    def _forked(self) -> None:
        self._core = self._new_core()

    def _wanted(
        self,
        target: Target,
        ttl: Optional[float],
        wait: Optional[float],
        owner: Optional[str] = None,
        metadata: Optional[dict[str, str]] = None,
        max_hold: Optional[float] = None,
        lock_delay: Optional[float] = None,
        **more: Any,
    ) -> Wanted:
        if wait is not None and not wait >= 0:
            raise invalid("wait", f"{wait!r} is not 0 or a number of seconds, or None for as long as it takes")
        body = {
            "ttl_ms": None if ttl is None else milliseconds("ttl", ttl),
            "owner": owner if owner is not None or target.primitive == "election" else self._owner,
            "metadata": metadata,
            "max_hold_ms": None if max_hold is None else milliseconds("max_hold", max_hold),
            "lock_delay_ms": None if lock_delay is None else milliseconds("lock_delay", lock_delay),
            **more,
        }
        given = {field: value for field, value in body.items() if value is not None}
        return Wanted(target, given, wait, max_hold)

    def _wanted_lock(self, names: Sequence[str], *common: Any, shared: bool = False) -> Wanted:
        """One lock is no multilock: those have at least two names."""
        target = Target("lock", *names) if len(names) == 1 else Target("multilock", *names)
        return self._wanted(target, *common, mode="shared" if shared else None)

    def _wanted_election(
        self,
        name: str,
        candidate: str,
        value: Optional[str],
        ttl: Optional[float],
        wait: Optional[float],
        max_hold: Optional[float],
    ) -> Wanted:
        return self._wanted(
            Target("election", name), ttl, wait, max_hold=max_hold, candidate=candidate, value=value
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._core.servers.urls)!r})"


async def limit_of_rate(core: Core, wanted: Wanted) -> None:
    """A permit that nobody renews or releases, so that it counts for its ttl."""
    core.keeper.forget(await core.acquire(wanted.target, wanted.body, wanted.wait, None))


def _ended(core: Core) -> None:
    if not core.keeper.all():
        core.background.stop()


@atexit.register
def _release_all() -> None:
    for core in list(_cores):
        if core.background.running:
            core.release_at_exit()
            core.background.stop()
            core.background.join(1)


def _after_fork() -> None:
    _of_parents.extend(_cores)
    _cores.clear()
    for client in list(_clients):
        client._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
