"""The random state of Python, NumPy and PyTorch: set for a sample, kept for the program that goes on."""

from __future__ import annotations

import random
import sys
from types import TracebackType
from typing import Any

__all__ = ["Kept", "Stream", "mix", "number_of", "seed_all"]

_MASK = (1 << 64) - 1
_NUMPY_MASK = (1 << 32) - 1


def mix(*parts: int) -> int:
    """A 64-bit number that depends on every part and its place (SplitMix64, Steele et al. 2014)."""
    state = 0
    for part in parts:
        state = (state ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def number_of(index: Any) -> int:
    """Of a sample; keys that are no numbers have one as well, the same in every process."""
    if isinstance(index, int):
        return index
    try:
        return int(index)
    except (TypeError, ValueError):
        return int.from_bytes(repr(index).encode(), "little")


def seed_all(value: int) -> None:
    """Seed the global generators of what is imported; those of GPUs are left alone."""
    random.seed(value)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value & _NUMPY_MASK)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(value)


def _state() -> tuple[Any, Any, Any]:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        random.getstate(),
        None if numpy is None else numpy.random.get_state(),
        None if torch is None else torch.get_rng_state(),
    )


def _set_state(state: tuple[Any, Any, Any]) -> None:
    python, numpy, torch = state
    random.setstate(python)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)
    if torch is not None:
        sys.modules["torch"].set_rng_state(torch)


class Kept:
    """In the block the generators may be used and seeded; after it they are as they were."""

    def __enter__(self) -> None:
        self._before = _state()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _set_state(self._before)


class Stream(Kept):
    """The same, and in each block the generators go on where the block before left them; at first they are seeded."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._own: tuple[Any, Any, Any] | None = None

    def __enter__(self) -> None:
        super().__enter__()
        if self._own is None:
            seed_all(self._seed)
        else:
            _set_state(self._own)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._own = _state()
        super().__exit__(kind, error, traceback)
