"""Sets the random state of Python, NumPy and PyTorch for a sample, and restores the program's own."""

from __future__ import annotations

import _random
import ctypes
import hashlib
import operator
import random
import sys
from types import TracebackType
from typing import Any

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


# The global generator of Python. To read its state takes 15 µs, as 625 numbers are made of it; to copy the bytes behind
# the header of the object, which are the words and the index of the next, takes a quarter of one.
_python: Any = random.seed.__self__  # type: ignore[attr-defined]
_seed_python = _random.Random.seed  # without the checks of random.seed()
_address = id(_python) + object.__basicsize__
_size = _random.Random.__basicsize__ - object.__basicsize__


def _copies_bytes() -> bool:
    """Return whether a copy of the bytes brings all of a state back. Leaves the generator as it was."""
    if sys.implementation.name != "cpython":
        return False
    before = random.getstate()
    copy = ctypes.string_at(_address, _size)
    drawn = [random.random() for _ in range(400)]  # more than there are words
    ctypes.memmove(_address, copy, _size)
    found = random.getstate() == before and [random.random() for _ in range(400)] == drawn
    random.setstate(before)
    return found


_is_copied = _copies_bytes()


def seed_all(value: int) -> None:
    """Seed the global generators of Python and of NumPy and PyTorch if they are imported; those of GPUs are not
    touched."""
    _seed_python(_python, value)
    _python.gauss_next = None
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value & _NUMPY_MASK)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(value)


class Kept:
    """A block in which the generators may be used and seeded; afterwards the program's own are as before.

    NumPy gets another generator meanwhile: reading and writing the state of its own takes 70 µs.
    """

    def __init__(self) -> None:
        self._numpy: Any = None
        self._words = ctypes.create_string_buffer(_size)

    def __enter__(self) -> None:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if _is_copied:
            ctypes.memmove(self._words, _address, _size)
            self._random = _python.gauss_next
        else:
            self._random = random.getstate()
        self._torch = None if torch is None else torch.default_generator.get_state()
        self._replaced = None if numpy is None else numpy.random.get_bit_generator()
        if numpy is not None:
            self._numpy = numpy.random.MT19937() if self._numpy is None else self._numpy
            numpy.random.set_bit_generator(self._numpy)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _is_copied:
            ctypes.memmove(_address, self._words, _size)
            _python.gauss_next = self._random
        else:
            random.setstate(self._random)
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)
        if self._replaced is not None:
            sys.modules["numpy"].random.set_bit_generator(self._replaced)


class Stream(Kept):
    """A `Kept` block in which the generators continue where the previous block of this object ended. They are seeded in
    the first."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._own: tuple[Any, Any] | None = None

    def __enter__(self) -> None:
        super().__enter__()
        if self._own is None:
            seed_all(self._seed)
            return
        random.setstate(self._own[0])
        if self._own[1] is not None:
            sys.modules["torch"].default_generator.set_state(self._own[1])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        torch = sys.modules.get("torch")
        self._own = random.getstate(), None if torch is None else torch.default_generator.get_state()
        super().__exit__(kind, error, traceback)
