"""Plain data that all layers share: policies, node descriptions, messages, parameters, errors."""

from __future__ import annotations

from types import ModuleType

from dragon.infrastructure.signals import hold_signals, release_signals
from dragon.lazy_modules import submodule

# An interrupt while msgspec is imported is lost, and later a decoder made by it crashes (0.22).
_held = hold_signals()
try:
    import msgspec  # noqa: F401
finally:
    release_signals(_held)


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)
