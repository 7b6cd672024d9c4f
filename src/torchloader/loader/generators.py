"""Detects cheaply whether anything was drawn from the global random generators of Python, NumPy and PyTorch.

Their states have about 2.5 KB each, and reading one takes 10 to 40 µs, many times as long as reading a small sample. So
a state is recognized by a *mark*, a copy of the memory of the generator object, which is only compared. Where the
memory layout of this interpreter or NumPy is unknown, every mark is different, as if something was drawn.
"""

from __future__ import annotations

import _random
import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Watch", "numpy_mark", "python_mark"]

_INSTANCE: Any = random._inst  # whose methods the functions of the module are
_HEADER = object.__basicsize__
_MT19937 = 2500  # bytes of NumPy's state: 624 words and the place among them

Bytes = Callable[[], bytes]


def _bytes_at(address: int, size: int) -> Bytes:
    view = (ctypes.c_char * size).from_address(address)
    return lambda: view.raw


def _bytes_of(generator: Any, kind: type) -> Bytes:
    """Return a function that reads an object's memory after its header, up to the end of the part of class `kind`."""
    return _bytes_at(id(generator) + _HEADER, kind.__basicsize__ - _HEADER)


def _tells_draws() -> bool:
    if sys.implementation.name != "cpython":
        return False
    probe = random.Random(1)
    memory = _bytes_of(probe, _random.Random)
    marks = [memory()]
    for _ in range(3):
        probe.random()
        marks.append(memory())
    return len(set(marks)) == len(marks)


_python_memory = _bytes_of(_INSTANCE, _random.Random) if _tells_draws() else None


def python_mark() -> object:
    """Return a mark that changes when a function of `random` draws a number."""
    return object() if _python_memory is None else (_python_memory(), _INSTANCE.gauss_next)


class _Numpy:
    """The memory of NumPy's global generator and of its bit generator; the former keeps one number that was drawn
    ahead."""

    def __init__(self, generator: Any) -> None:
        self.generator, self.bits = generator, generator._bit_generator
        self._object = _bytes_of(generator, type(generator))
        self._state = _bytes_at(self.bits.ctypes.state_address, _MT19937)

    def mark(self) -> tuple[bytes, bytes]:
        return self._object(), self._state()


def _numpy_tells_draws(module: Any) -> bool:
    probe = module.RandomState(1)
    if sys.implementation.name != "cpython" or type(probe._bit_generator).__name__ != "MT19937":
        return False
    memory = _Numpy(probe)
    marks = [memory.mark()]
    for draw in (probe.standard_normal, probe.standard_normal, probe.rand):
        draw()
        marks.append(memory.mark())
    return len(set(marks)) == len(marks)


_numpy: _Numpy | None = None
_numpy_is_known: bool | None = None


def numpy_mark() -> object:
    """Return a mark that changes when a function of `numpy.random` draws a number; None if NumPy is not imported."""
    global _numpy, _numpy_is_known
    module: Any = sys.modules.get("numpy.random.mtrand")
    generator = getattr(module, "_rand", None)
    if generator is None:
        return None
    if _numpy is None or _numpy.generator is not generator or _numpy.bits is not generator._bit_generator:
        if _numpy_is_known is None:
            _numpy_is_known = _numpy_tells_draws(module)
        if not _numpy_is_known or type(generator._bit_generator).__name__ != "MT19937":
            return object()
        _numpy = _Numpy(generator)
    return _numpy.mark()


class _Torch:
    """The state of PyTorch's generator right after seeding, which is reused for batches with the same seed."""

    def __init__(self, torch: Any, seed: int) -> None:
        self.seed, self._generator = seed, torch.default_generator
        self._generator.manual_seed(seed)
        self._state = self._generator.get_state()
        self._bytes = self._now()

    def set(self) -> None:
        self._generator.set_state(self._state)

    def _now(self) -> Any:
        state = self._generator.get_state()
        return state.numpy().tobytes() if "numpy" in sys.modules else state.tolist()

    def drew(self) -> bool:
        return bool(self._now() != self._bytes)


_torch: _Torch | None = None


def _begin_torch(seed: int) -> _Torch | None:
    global _torch
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if _torch is None or _torch.seed != seed:
        _torch = _Torch(torch, seed)
    else:
        _torch.set()
    return _torch


class Watch:
    """Detects which generators were used since it was made.

    It seeds PyTorch's generator with `seed`, since programs read torch.initial_seed() without drawing anything.
    """

    def __init__(self, seed: int) -> None:
        self._python, self._numpy, self._torch = python_mark(), numpy_mark(), _begin_torch(seed)

    def drawn(self) -> set[str]:
        """Return the modules whose generators were used, including those imported since."""
        drawn = set()
        if python_mark() != self._python:
            drawn.add("random")
        if numpy_mark() != self._numpy:
            drawn.add("numpy")
        if "torch" in sys.modules if self._torch is None else self._torch.drew():
            drawn.add("torch")
        return drawn
