"""Records the tasks of pools for `dragon trace`; `_core` records what processes wait for."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.pool import mapstar, starmapstar  # type: ignore[attr-defined]
from typing import Any

from dragon import _core
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.telemetry import NameTask

__all__ = ["note_task"]

_numbers: dict[str, int] = {}


def note_task(function: Callable[..., Any], arguments: tuple[Any, ...], begun: int) -> None:
    """Record a task of this thread that began at `begun`, the value of _core.begin_span()."""
    if function in (mapstar, starmapstar):
        function = arguments[0][0]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if name not in _numbers:
        _numbers[name] = ask(NameTask(name))
    _core.note_task(_numbers[name], begun)
