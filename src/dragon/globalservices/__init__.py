"""Look-ups and control by id: processes and nodes of the run."""

from __future__ import annotations

from types import ModuleType

from dragon.infrastructure.lazy_modules import submodule


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)
