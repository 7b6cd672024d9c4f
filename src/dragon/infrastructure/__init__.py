"""Plain data that all layers share: policies, node descriptions, messages, parameters, errors."""

from __future__ import annotations

from types import ModuleType

from dragon.lazy_modules import submodule


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)
