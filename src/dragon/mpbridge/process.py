"""multiprocessing.Process for the start method "dragon"."""

from __future__ import annotations

import importlib
import signal
import sys
from multiprocessing import process as mp_process

from dragon import cpython

TYPE_CHECKING = False  # see dragon/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NAME = "dragon"


def show_heap() -> None:
    """Import `multiprocessing.heap` for programs that use it without importing it."""
    if "multiprocessing.heap" not in sys.modules:
        importlib.import_module("multiprocessing.heap")


def begin() -> None:
    """Start the run, if there is none: while its agent starts, this process imports what uses it."""
    if "dragon.runtime.run" not in sys.modules:
        from dragon.runtime.agent_start import start_first

        start_first()
    from dragon.runtime.run import this_run

    this_run()


class DragonProcess(mp_process.BaseProcess):
    """multiprocessing.Process, started by the run's zygote."""

    _start_method = NAME
    _target: Callable[..., object] | None
    _args: tuple[object, ...]
    _kwargs: dict[str, object]
    _popen: Any  # a Popen; None before the start

    @staticmethod
    def _Popen(process_obj: DragonProcess) -> object:
        begin()
        from dragon.mpbridge.popen import Popen, correct_executors

        show_heap()
        if "concurrent.futures.process" in sys.modules:
            correct_executors(process_obj._target)
        return Popen(process_obj)

    @property
    def puid(self) -> int | None:
        """The number of the process, unique in the run; None before the start."""
        return None if self._popen is None else self._popen.puid

    @staticmethod
    def _after_fork() -> None:
        return None


class PoolWorker(DragonProcess):
    """A worker of mpbridge.pool, which ends with the process that made the pool, and may make pools of its own.

    The standard library forbids daemons to start processes, because these would be left behind; in a run the processes
    that a process started end with it. (It is here, as the zygote would have to import all of mpbridge.pool for it.)
    """

    def start(self) -> None:
        """Start the worker, as every process, but also if its parent is a daemon."""
        cpython.forget_ended_children()
        self._popen = self._Popen(self)
        self._sentinel = self._popen.sentinel
        del self._target, self._args, self._kwargs
        cpython.note_child(self)

    def _bootstrap(self, parent_sentinel: int | None = None) -> int:
        """Run the worker. An interrupt waits until run() ends the worker quietly for it."""
        self._signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return super()._bootstrap(parent_sentinel=parent_sentinel)  # type: ignore[misc,no-any-return]

    def run(self) -> None:
        """Call the worker's function."""
        from dragon.native.workers import quietly

        with quietly():
            signal.pthread_sigmask(signal.SIG_SETMASK, self._signals)
            super().run()


def __getattr__(name: str) -> type:
    if name == "DragonPopen":  # imported late: `import dragon` alone does not need its modules
        from dragon.mpbridge.popen import Popen

        return Popen
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
