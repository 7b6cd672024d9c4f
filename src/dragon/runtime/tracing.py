"""Records the tasks of pools and batches for `dragon trace` and the dashboard; `_core` records what processes wait
for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from multiprocessing.pool import mapstar, starmapstar  # type: ignore[attr-defined]
from typing import Any

from dragon import _core

_numbers: dict[str, int] = {}


def begin_task(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[int, int] | None:
    """Record that this thread begins a task. Returns what end_task() takes; None if the run is not traced."""
    if not _core.tracing():
        return None
    # Not imported before: every module here makes every fork dearer.
    from dragon.infrastructure.metrics import task_word
    from dragon.runtime.agent_client import ask
    from dragon.runtime.protocol.telemetry import NameTask

    if function in (mapstar, starmapstar):
        function = arguments[0][0]
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if name not in _numbers:
        _numbers[name] = ask(NameTask(name))
    number = _numbers[name]
    return number, _core.begin_task(task_word(number, failed=False))


def end_task(begun: tuple[int, int] | None, failed: bool) -> None:
    """Record that this thread has ended the task for which begin_task() returned `begun`."""
    if begun is not None:
        from dragon.infrastructure.metrics import task_word

        number, start = begun
        _core.end_task(task_word(number, failed), start)
