"""What became of an event that `Client.idempotent` was called for."""

from typing import Literal

__all__ = ["Outcome"]

Outcome = Literal["processed", "already_processed", "duplicate"]
"""By this call; before; somebody else is at it just now."""
