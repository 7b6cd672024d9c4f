"""multiprocessing.Process for the start method "dragon"."""

from __future__ import annotations

import importlib
import sys
from multiprocessing import process as mp_process
from typing import Any

__all__ = ["NAME", "DragonPopen", "DragonProcess", "show_heap"]  # noqa: F822

NAME = "dragon"


def show_heap() -> None:
    """Import `multiprocessing.heap` for programs that use it without importing it."""
    if "multiprocessing.heap" not in sys.modules:
        importlib.import_module("multiprocessing.heap")


class DragonProcess(mp_process.BaseProcess):
    """multiprocessing.Process, started by the run's zygote."""

    _start_method = NAME

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        from dragon.mpbridge.popen import Popen

        show_heap()
        if "concurrent.futures.process" in sys.modules:
            from dragon.mpbridge.standard_executors import watch_executor

            watch_executor(process_obj._target)
        return Popen(process_obj)

    @property
    def puid(self) -> int | None:
        """The number of the process, unique in the run; None before the start."""
        popen = self._popen  # type: ignore[attr-defined]
        return None if popen is None else popen.puid

    @staticmethod
    def _after_fork() -> None:
        return None


def __getattr__(name: str) -> Any:
    if name == "DragonPopen":  # imported late: `import dragon` alone does not need its modules
        from dragon.mpbridge.popen import Popen

        return Popen
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
