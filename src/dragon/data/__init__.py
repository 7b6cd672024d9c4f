"""Data in the memory of the run."""

from __future__ import annotations

from types import ModuleType

from dragon.data.ddict.ddict import DDict
from dragon.lazy_modules import submodule

__all__ = ["DDict"]


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)
