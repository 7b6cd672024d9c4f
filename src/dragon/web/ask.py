"""How a server here gets answers from a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["Ask"]

# An operation of the agents and its arguments, to what they answer. Raises RunEndedError where the run is at its end.
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
