"""A lease as its holder has it: what both faces of the client share."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Mapping, Optional

from .core import Core
from .held import Held

__all__ = ["BaseLease", "give_back"]


class BaseLease:
    """
    Renewed in the background until it is released, lost, or forgotten: a lease that nothing refers
    to any more is released, since nobody could.
    """

    def __init__(self, core: Core, held: Held) -> None:
        self._core = core
        self._held = held
        self._finalizer = weakref.finalize(self, core.let_go, held)
        self._finalizer.atexit = False  # At exit the client does it.

    @property
    def name(self) -> str:
        """The name; of several locks the first."""
        return self._held.target.names[0]

    @property
    def names(self) -> list[str]:
        """All names: several only for a lease of several locks."""
        return list(self._held.target.names)

    @property
    def fencing_token(self) -> int:
        """
        Greater than the token of every earlier lease of the name. Send it to what the lock protects.
        For several locks each has its own: see `fencing_tokens`.
        """
        token = self._held.answer.get("fencing_token")
        if token is None:
            raise AttributeError("a lease of several locks has a token for each: see fencing_tokens")
        return int(token)

    @property
    def fencing_tokens(self) -> dict[str, int]:
        """The token of each name."""
        tokens = self._held.answer.get("fencing_tokens")
        return dict(tokens) if tokens else {self.name: self.fencing_token}

    @property
    def answer(self) -> Mapping[str, Any]:
        """All that the server said when it granted the lease: `slots` and `permits`, `waited_ms`, `nodes` and so on."""
        return self._held.answer

    def remaining(self) -> float:
        """How long it is valid for certain unless it is renewed, in seconds; 0 when it is lost."""
        return self._held.remaining()

    def check(self) -> None:
        """Raises `LeaseLost` where it is lost or over: for before a step that must not be done without it."""
        self._held.check()

    @property
    def lost(self) -> bool:
        """Whether it was lost. False after a release in time."""
        return self._held.lost is not None

    def on_lost(self, callback: Callable[[], Any]) -> None:
        """
        Calls it once, in a thread of its own, as soon as the lease is lost: now, if it is already.
        A lease that is released is not lost.
        """
        self._held.on_lost(callback)

    def _let_go(self) -> bool:
        """Whether it is this call that has to release it."""
        return self._finalizer.detach() is not None and self._held.mine() and not self._held.released

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._held.target}, {self.remaining():.3f} s left>"


def give_back(lease: BaseLease) -> None:
    """Releases one that its caller did not wait for to the end."""
    if lease._let_go():
        lease._core.let_go(lease._held)
