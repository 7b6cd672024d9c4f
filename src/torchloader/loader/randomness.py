"""Sets the random state of Python, NumPy and PyTorch for a sample, and restores the program's own."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Set
from types import TracebackType
from typing import Any

from torchloader.loader.generators import numpy_mark, python_mark

__all__ = ["ALL", "Kept", "Stream", "mix", "number_of", "seed_all"]

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
    if isinstance(index, int):
        return index
    try:
        return int(index)
    except (TypeError, ValueError):
        return int.from_bytes(repr(index).encode(), "little")


ALL = frozenset({"random", "numpy", "torch"})


def seed_all(value: int, told: int | None = None, which: Set[str] = ALL) -> None:
    """Seed the global generators of the imported modules in `which`; generators of GPUs are not touched.

    `told` is the seed that torch.initial_seed() then returns, if it is not `value`.
    """
    if "random" in which:
        random.seed(value)
    if "numpy" in which and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value & _NUMPY_MASK)
    if "torch" in which and (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(value)
        if told is not None:
            state = torch.default_generator.get_state()
            ctypes.c_uint64.from_address(state.data_ptr()).value = told  # its state begins with the seed
            torch.default_generator.set_state(state)


class _Cached:
    """The state of a generator, which is read again only if its mark has changed."""

    def __init__(self, mark: Callable[[], object], state: Callable[[], Any]) -> None:
        self._mark, self._state = mark, state
        self._last: tuple[object, Any] | None = None

    def get(self) -> tuple[object, Any]:
        mark = self._mark()
        if self._last is None or self._last[0] != mark:
            self._last = mark, self._state()
        return self._last


def _numpy_state() -> Any:
    return None if (numpy := sys.modules.get("numpy")) is None else numpy.random.get_state()


_python, _numpy = _Cached(python_mark, random.getstate), _Cached(numpy_mark, _numpy_state)
_State = tuple[tuple[object, Any], tuple[object, Any], Any]


def _state() -> _State:
    torch = sys.modules.get("torch")
    return _python.get(), _numpy.get(), None if torch is None else torch.default_generator.get_state()


def _set_state(state: _State) -> None:
    (python_was, python), (numpy_was, numpy), torch = state
    if python_mark() != python_was:
        random.setstate(python)
    if numpy is not None and numpy_mark() != numpy_was:
        sys.modules["numpy"].random.set_state(numpy)
    if torch is not None:
        sys.modules["torch"].default_generator.set_state(torch)


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
