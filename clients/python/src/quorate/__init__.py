"""
Quorate: locks, semaphores and elections that a majority of Redis nodes grants.

    client = quorate.Client()
    with client.lock("orders:42", wait=10) as lease:
        ...
"""

from .aio import AsyncClient
from .aio_guards import AsyncGuard, AsyncLeadership, AsyncLease
from .errors import Forbidden, InvalidRequest, LeaseLost, NotAcquired, QuorateError, StaleToken, Unavailable
from .client import Client
from .guards import Guard, Leadership, Lease
from .idempotence import Outcome
from .types import VERSION as __version__

__all__ = [
    "AsyncClient",
    "AsyncGuard",
    "AsyncLeadership",
    "AsyncLease",
    "Client",
    "Forbidden",
    "Guard",
    "InvalidRequest",
    "Leadership",
    "Lease",
    "LeaseLost",
    "NotAcquired",
    "Outcome",
    "QuorateError",
    "StaleToken",
    "Unavailable",
    "__version__",
]
