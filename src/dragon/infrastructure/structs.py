"""msgspec, imported while no signal can interrupt that: an interrupt is lost then, and later a decoder made by msgspec
crashes (0.22). It is imported by what exchanges messages, and not by what a program needs to start its run."""

from __future__ import annotations

from dragon.infrastructure.signals import hold_signals, release_signals

_held = hold_signals()
try:
    import msgspec
finally:
    release_signals(_held)

__all__ = ["msgspec"]
