"""Records the tasks of pools and batches for `dragon trace` and the dashboard; `_core` records what processes wait
for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from multiprocessing.pool import mapstar, starmapstar  # type: ignore[attr-defined]
from typing import Any

from dragon import _core
from dragon.infrastructure.spans import task_word
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.telemetry import NameTask

__all__ = ["note_task"]

_numbers: dict[str, int] = {}


def note_task(function: Callable[..., Any], arguments: tuple[Any, ...], begun: int, failed: bool) -> None:
    """Record a task of this thread that began at `begun`, the value of _core.begin_span()."""
    if function in (mapstar, starmapstar):
        function = arguments[0][0]
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if name not in _numbers:
        _numbers[name] = ask(NameTask(name))
    _core.note_task(task_word(_numbers[name], failed), begun)
