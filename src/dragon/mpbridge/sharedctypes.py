"""multiprocessing's Value and Array over the arena, which any process of the run can be given at any time."""

from __future__ import annotations

import ctypes
from multiprocessing import sharedctypes as mp_sharedctypes
from typing import Any

from dragon.runtime.handle import Words

__all__ = ["Array", "RawArray", "RawValue", "Value"]


class _Memory:
    """Shared memory as multiprocessing.heap.BufferWrapper gives it."""

    def __init__(self, size: int) -> None:
        self._words = Words(max(1, -(-size // 8)))
        self._size = size

    def create_memoryview(self) -> memoryview:
        """The memory, writable."""
        return memoryview(self._words)[: self._size]


def _new(kind: Any) -> Any:
    return mp_sharedctypes.rebuild_ctype(kind, _Memory(ctypes.sizeof(kind)), None)  # type: ignore[attr-defined]


def RawValue(typecode_or_type: Any, *args: Any) -> Any:
    """A ctypes object in shared memory."""
    kind = mp_sharedctypes.typecode_to_type.get(typecode_or_type, typecode_or_type)  # type: ignore[attr-defined]
    obj = _new(kind)
    obj.__init__(*args)
    return obj


def RawArray(typecode_or_type: Any, size_or_initializer: Any) -> Any:
    """A ctypes array in shared memory."""
    kind = mp_sharedctypes.typecode_to_type.get(typecode_or_type, typecode_or_type)  # type: ignore[attr-defined]
    if isinstance(size_or_initializer, int):
        return _new(kind * size_or_initializer)
    result = _new(kind * len(size_or_initializer))
    result.__init__(*size_or_initializer)
    return result


def Value(typecode_or_type: Any, *args: Any, lock: Any = True, ctx: Any = None) -> Any:
    """A ctypes object in shared memory, with a lock unless `lock` is False."""
    obj = RawValue(typecode_or_type, *args)
    return _with_lock(obj, lock, ctx)


def Array(typecode_or_type: Any, size_or_initializer: Any, *, lock: Any = True, ctx: Any = None) -> Any:
    """A ctypes array in shared memory, with a lock unless `lock` is False."""
    obj = RawArray(typecode_or_type, size_or_initializer)
    return _with_lock(obj, lock, ctx)


def _with_lock(obj: Any, lock: Any, ctx: Any) -> Any:
    if lock is False:
        return obj
    if lock in (True, None):
        lock = ctx.RLock()
    if not hasattr(lock, "acquire"):
        raise AttributeError(f"{lock!r} has no method 'acquire'")
    return mp_sharedctypes.synchronized(obj, lock, ctx=ctx)
