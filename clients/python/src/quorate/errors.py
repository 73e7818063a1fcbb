"""What can go wrong: each kind that calls for something else to be done is a class."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from .types import FieldError, Holder, Nodes

__all__ = [
    "Forbidden",
    "InvalidRequest",
    "LeaseLost",
    "NotAcquired",
    "QuorateError",
    "StaleToken",
    "Unavailable",
]


class QuorateError(Exception):
    """Any refusal. `code` is the API's, and `problem` all that the server said."""

    def __init__(self, code: str, detail: str = "", problem: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code
        self.detail = detail
        self.problem: Mapping[str, Any] = problem or {}

    @property
    def nodes(self) -> Optional[Nodes]:
        """The tally of the nodes' answers, where the server gave one."""
        return self.problem.get("nodes")

    @property
    def retry_after(self) -> Optional[float]:
        """When to try again, in seconds, where the server said it."""
        after = self.problem.get("retry_after_ms")
        return after / 1000 if isinstance(after, (int, float)) and after >= 0 else None

    def __reduce__(self) -> Any:
        return type(self), (self.code, self.detail, dict(self.problem))


class NotAcquired(QuorateError):
    """Somebody else holds it, and did for as long as was waited: `lock_held`, `semaphore_full`, `election_lost`."""

    @property
    def holder(self) -> Optional[Holder]:
        """Who holds it. None for shared leases and semaphores, and while no single lease has a quorum."""
        return self.problem.get("holder")

    @property
    def holders(self) -> list[Holder]:
        """All that are known to hold it."""
        holder = self.holder
        return list(self.problem.get("holders", [holder] if holder else []))


class Unavailable(QuorateError):
    """It cannot be known or had at the moment: no server, no quorum of nodes, or too many wait."""

    def __init__(
        self,
        code: str,
        detail: str = "",
        problem: Optional[Mapping[str, Any]] = None,
        *,
        broken: bool = False,
        elsewhere: bool = True,
    ) -> None:
        super().__init__(code, detail, problem)
        self._broken = broken  # The connection broke: it may be an idle one that the server closed.
        self._elsewhere = elsewhere  # Another server may do better.


class LeaseLost(QuorateError):
    """
    The lease has ended before its block: `lease_lost` (a server said it), `lease_expired` (its
    validity was over before a server extended it), `hold_limit_reached` (its `max_hold` was over).
    """


class StaleToken(QuorateError):
    """A later token has been issued: do not write."""

    @property
    def highest_token(self) -> Optional[int]:
        """The latest token known."""
        return self.problem.get("highest_token")


class InvalidRequest(QuorateError, ValueError):
    """A value that the API does not take; `errors` names the fields."""

    @property
    def errors(self) -> list[FieldError]:
        """Which fields, and why."""
        return list(self.problem.get("errors", ()))


class Forbidden(QuorateError):
    """The key is missing, unknown, or may not do this: `unauthenticated`, `forbidden`."""


_KINDS: dict[str, type[QuorateError]] = {
    "lock_held": NotAcquired,
    "semaphore_full": NotAcquired,
    "election_lost": NotAcquired,
    "lease_lost": LeaseLost,
    "hold_limit_reached": LeaseLost,
    "stale_token": StaleToken,
    "invalid_request": InvalidRequest,
    "unauthenticated": Forbidden,
    "forbidden": Forbidden,
}


def of_problem(status: int, problem: Mapping[str, Any]) -> QuorateError:
    """The error of an answer that is not 2xx. `problem` is empty where the body was none (a proxy's page)."""
    code = str(problem.get("code", f"http_{status}"))
    detail = str(problem.get("detail", ""))
    if code in _KINDS:
        return _KINDS[code](code, detail, problem)
    if status in (401, 403):
        return Forbidden(code, detail, problem)
    if status == 429:
        return Unavailable(code, detail, problem, elsewhere=False)
    if status in (502, 503, 504):
        return Unavailable(code, detail, problem)
    return QuorateError(code, detail, problem)


def invalid(field: str, message: str) -> InvalidRequest:
    """An InvalidRequest that is found before anything is sent."""
    problem = {"code": "invalid_request", "errors": [{"field": field, "message": message}]}
    return InvalidRequest("invalid_request", f"{field}: {message}", problem)
