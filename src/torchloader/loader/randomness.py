"""Sets the random state of Python, NumPy and PyTorch for a sample, and restores the program's own."""

from __future__ import annotations

import hashlib
import operator
import random
import sys
from types import TracebackType
from typing import Any

__all__ = ["Kept", "Stream", "mix", "number_of", "seed_all"]

_MASK = (1 << 64) - 1
_NUMPY_MASK = (1 << 32) - 1


def mix(*parts: int) -> int:
    """Return a 64-bit number that depends on every part and its position (SplitMix64, Steele et al. 2014)."""
    state = 0
    for part in parts:
        state = (state ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def number_of(index: Any) -> int:
    """Return a number for a sample's index. Keys that are not numbers have one too, the same in every process."""
    try:
        return operator.index(index)
    except TypeError:
        return int.from_bytes(hashlib.blake2b(repr(index).encode(), digest_size=8).digest(), "little")


def seed_all(value: int) -> None:
    """Seed the global generators of Python and of NumPy and PyTorch if they are imported; those of GPUs are not
    touched."""
    random.seed(value)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value & _NUMPY_MASK)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(value)


_State = tuple[Any, Any, Any]


def _state() -> _State:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        random.getstate(),
        None if numpy is None else numpy.random.get_state(),
        None if torch is None else torch.default_generator.get_state(),
    )


def _set_state(state: _State) -> None:
    random.setstate(state[0])
    if state[1] is not None:
        sys.modules["numpy"].random.set_state(state[1])
    if state[2] is not None:
        sys.modules["torch"].default_generator.set_state(state[2])


class Kept:
    """A block in which the generators may be used and seeded; afterwards their states are restored."""

    def __enter__(self) -> None:
        self._before = _state()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _set_state(self._before)


class Stream(Kept):
    """A `Kept` block in which the generators continue where the previous block of this object ended. They are seeded in
    the first."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._own: _State | None = None

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
