"""Batches of tasks that depend on each other, executors for other libraries, and runs that several programs share."""

from __future__ import annotations

from types import ModuleType

from dragon.lazy_modules import submodule


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)
