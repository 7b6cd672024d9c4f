"""Functions that look up and control processes, groups, nodes, channels and pools of the run by number or name."""

from __future__ import annotations

from types import ModuleType

from dragon.lazy_modules import submodule


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)
