"""multiprocessing's Value and Array in the arena, which can be sent to any process of the run at any time."""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing import sharedctypes as mp_sharedctypes
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

from dragon import cpython
from dragon.infrastructure.plain_number import plain_number
from dragon.native.value import described, in_words, kind_of, undescribed, with_views, words_for
from dragon.runtime.handle import Words

_Reduced = tuple[Callable[..., Any], tuple[Any, ...]]

# One reducer is registered for all objects of a type, including the standard library's; the module that made the last
# object of the type has registered it.
_standard_reduce: Callable[[Any], _Reduced] = mp_sharedctypes.reduce_ctype  # type: ignore[attr-defined]


def _new(kind: type[Any]) -> Any:
    return _rebuild(kind, words_for(kind))


def _rebuild(kind: type[Any], words: Words) -> Any:
    obj = in_words(kind, words)
    obj._wrapper = words
    if cpython.type_reducers().get(type(obj)) is not _reduce:
        ForkingPickler.register(type(obj), _reduce)
    return obj


def _rebuild_raw(words: Words, kind: type[Any]) -> object:
    return with_views(_rebuild(undescribed(kind), words))


def _rebuild_synchronized(lock: Any, words: Words, kind: type[Any]) -> object:
    obj = _rebuild(undescribed(kind), words)
    result = mp_sharedctypes.synchronized(obj, lock)
    result.get_obj = functools.partial(with_views, obj)
    return result


def _words_and_kind(obj: Any) -> tuple[object, ...]:
    return obj._wrapper, described(kind_of(obj))


def _reduce(obj: Any) -> _Reduced:
    if not isinstance(obj._wrapper, Words):
        return _standard_reduce(obj)
    return _rebuild_raw, _words_and_kind(obj)


mp_sharedctypes.reduce_ctype = _reduce  # type: ignore[attr-defined]


def _reduce_synchronized(obj: Any) -> _Reduced:
    # The standard library's objects can be sent only to processes that it starts.
    shared = isinstance(getattr(obj._obj, "_wrapper", None), Words)
    return (_rebuild_synchronized, (obj._lock, *_words_and_kind(obj._obj))) if shared else obj.__reduce__()


def _type_of(typecode_or_type: object) -> Any:
    known: dict[Any, object] = mp_sharedctypes.typecode_to_type  # type: ignore[attr-defined]
    if isinstance(typecode_or_type, str) and typecode_or_type not in known:
        raise TypeError(f"bad typecode {typecode_or_type!r} (must be a ctypes type or one of {', '.join(known)})")
    return known.get(typecode_or_type, typecode_or_type)


def RawValue(typecode_or_type: object, *args: object, ctx: object = None) -> Any:
    """Return a ctypes object in shared memory, without a lock."""
    kind = _type_of(typecode_or_type)
    obj = _new(kind)
    obj.__init__(*args)
    return obj


def RawArray(typecode_or_type: object, size_or_initializer: object, *, ctx: object = None) -> Any:
    """Return a ctypes array in shared memory, without a lock."""
    kind = _type_of(typecode_or_type)
    given = plain_number(size_or_initializer)
    if isinstance(given, int):
        return _new(kind * given)
    result = _new(kind * len(given))
    result.__init__(*given)
    return result


def Value(typecode_or_type: object, *args: object, lock: object = True, ctx: BaseContext | None = None) -> Any:
    """Return a ctypes object in shared memory, with a lock unless `lock` is False."""
    return _with_lock(RawValue(typecode_or_type, *args), lock, ctx)


def Array(
    typecode_or_type: object, size_or_initializer: object, *, lock: object = True, ctx: BaseContext | None = None
) -> Any:
    """Return a ctypes array in shared memory, with a lock unless `lock` is False."""
    return _with_lock(RawArray(typecode_or_type, size_or_initializer), lock, ctx)


def _with_lock(obj: Any, lock: Any, ctx: BaseContext | None) -> Any:
    if lock is False:
        return obj
    if lock in (True, None):
        lock = (ctx or get_context("dragon")).RLock()
    if not hasattr(lock, "acquire"):
        raise AttributeError(f"{lock!r} has no method 'acquire'")
    result = mp_sharedctypes.synchronized(obj, lock, ctx=ctx)
    copyreg.pickle(type(result), _reduce_synchronized)  # for any pickler
    return result


# dragonhpc's names.
DragonArray = Array
DragonRawArray = RawArray
DragonRawValue = RawValue
DragonValue = Value
