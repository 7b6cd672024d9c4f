"""Tasks that depend on each other, and executors on which other libraries run theirs."""

from __future__ import annotations

from types import ModuleType

from dragon.infrastructure.lazy_modules import submodule


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)
