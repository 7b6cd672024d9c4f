"""Sets the random state of Python, NumPy and PyTorch for a batch, and restores the program's own."""

from __future__ import annotations

import _random
import ctypes
import hashlib
import operator
import random
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

_MASK = (1 << 64) - 1
_NUMPY_MASK = (1 << 32) - 1


def mix(*parts: int, after: int = 0) -> int:
    """Return a 64-bit number that depends on every part and its position (SplitMix64, Steele et al. 2014), and on those
    of which the number `after` was made."""
    state = after
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


base: int | None = None  # made of the seed and the epoch of the batch that is being made


def sample_seed(index: object) -> int:
    """Return a seed that depends on the loader's seed, the epoch and this index, for a dataset that gives each sample a
    generator of its own. With a sampler of the program, which may give an index again, it depends on the batch, too.

    Raises RuntimeError where no ElasticDataLoader makes a batch.

    Examples:
        >>> import random
        >>> from torchloader import ElasticDataLoader, sample_seed
        >>> class Rolls:
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         return random.Random(sample_seed(index)).randint(1, 6)
        >>> pairs = list(ElasticDataLoader(Rolls(), batch_size=2, seed=1, collate_fn=list))
        >>> sum(pairs, []) == next(iter(ElasticDataLoader(Rolls(), batch_size=4, seed=1, collate_fn=list)))
        True
    """
    if base is None:
        raise RuntimeError("sample_seed() is for a dataset or collate_fn while an ElasticDataLoader makes a batch")
    return mix(base, number_of(index), 1) >> 1


def _memory(value: object, start: int, size: int) -> memoryview:
    """Return bytes of an object in C. The object must live as long as they are used."""
    return memoryview((ctypes.c_char * size).from_address(id(value) + start)).cast("B")


# The global generator of Python. To read its state takes 15 µs, as 625 numbers are made of it; to copy the bytes behind
# the header of the object, which are the words and the index of the next, takes a quarter of one.
_python = random.seed.__self__  # type: ignore[attr-defined]
_seed_python = _random.Random.seed  # without the checks of random.seed()
_words = _memory(_python, object.__basicsize__, _random.Random.__basicsize__ - object.__basicsize__)


def _copied() -> tuple[bytes, float | None]:
    return bytes(_words), _python.gauss_next


def _put_back(state: tuple[bytes, float | None]) -> None:
    _words[:], _python.gauss_next = state


def _accesses() -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return what reads and writes the state of Python's generator: copies of its bytes where these are all of it."""
    if sys.implementation.name == "cpython":
        before, copy = random.getstate(), _copied()
        drawn = [random.random() for _ in range(400)]  # more than there are words
        _put_back(copy)
        found = random.getstate() == before and [random.random() for _ in range(400)] == drawn
        random.setstate(before)
        if found:
            return _copied, _put_back
    return random.getstate, random.setstate


_read, _write = _accesses()


@cache
def _gauss() -> memoryview | None:
    """Return where NumPy's global generator keeps the second of two normal numbers that it makes at once, and whether
    it has one; None if it is not found. To exchange its bit generator drops that number."""
    random = sys.modules["numpy"].random
    trial, size = random.RandomState(0), random.RandomState.__basicsize__
    trial.standard_normal()
    # Of the words of the object only the pointer before them leads into the object itself.
    words = _memory(trial, 0, size // 8 * 8).cast("Q")
    places = [8 * place + 8 for place, word in enumerate(words) if id(trial) <= word < id(trial) + size]
    expected = struct.pack("=qd", 1, trial.get_state()[4])
    found = [place for place in places if bytes(_memory(trial, place, 16)) == expected]
    return _memory(random.mtrand._rand, found[0], 16) if len(found) == 1 else None


def seed_all(value: int) -> None:
    """Seed the global generators of Python and, if imported, of NumPy and PyTorch; those of GPUs are not touched."""
    _seed_python(_python, value)
    _python.gauss_next = None
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value & _NUMPY_MASK)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(value)


class KeptRandomState:
    """A block in which the generators may be used and seeded; afterwards the program's own are as before. NumPy gets
    another one meanwhile: reading and writing the state of its own takes 70 µs."""

    _other: object = None

    def __enter__(self) -> None:
        self._state, self._torch, self._numpy = _read(), None, None
        if (torch := sys.modules.get("torch")) is not None:
            self._torch = torch.default_generator, torch.default_generator.get_state()
        if (numpy := sys.modules.get("numpy")) is not None:
            gauss = _gauss()
            kept = b"" if gauss is None else bytes(gauss)
            self._numpy = numpy.random, numpy.random.get_bit_generator(), gauss, kept
            self._other = self._other or numpy.random.MT19937()
            numpy.random.set_bit_generator(self._other)

    def __exit__(self, *exc_info: object) -> None:
        _write(self._state)
        if self._torch is not None:
            self._torch[0].set_state(self._torch[1])
        if self._numpy is not None:
            random, own, gauss, kept = self._numpy
            random.set_bit_generator(own)
            if gauss is not None:
                gauss[:] = kept


class SamplerRandomState(KeptRandomState):
    """A `KeptRandomState` block that seeds the generators the first time, and in which they continue afterwards."""

    _own: tuple[object, object] | None = None

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        super().__enter__()
        if self._own is None:
            seed_all(self._seed)
            return
        _write(self._own[0])
        if self._own[1] is not None:
            sys.modules["torch"].default_generator.set_state(self._own[1])

    def __exit__(self, *exc_info: object) -> None:
        torch = sys.modules.get("torch")
        self._own = _read(), None if torch is None else torch.default_generator.get_state()
        super().__exit__()
