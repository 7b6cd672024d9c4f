"""The outcome of a pool's task, as the worker sends it to the pool.

A value or error that is not plain is pickled separately from its message, so that one that cannot be deserialized
fails its own task and no other.
"""

from __future__ import annotations

import time
from multiprocessing.pool import ExceptionWithTraceback, MaybeEncodingError  # type: ignore[attr-defined]
from types import TracebackType
from typing import Any

from dragon import _core, cpython
from dragon.runtime.handle import Channel
from dragon.runtime.run import this_run
from dragon.runtime.serialization import dumps, loads

_MOST_MEBIBYTES = 128
_SHARE = 8  # at most one part of so many of the run's memory
MOST_WITHOUT_MEMORY_S = 5.0  # seconds after which a task or result for which there is no memory becomes an error
MEMORY_PAUSE_S = 0.05  # seconds between two attempts to put one


def most_mebibytes() -> int:
    """Return the MiB that the results of a pool, or the results and the waiting tasks of a batch each, may take in the
    run's memory: 128, and at most an eighth of it."""
    this_run()
    return min(_MOST_MEBIBYTES, max(1, int(_core.usage()["limit"]) // _SHARE >> 20))


def channel_of_results() -> Channel:
    """Return a channel for results, at which workers wait while it has as many bytes as it may have."""
    return Channel(mebibytes=most_mebibytes())


def put_result(results: Channel, message: object) -> None:
    """Put a result; if the run's memory is full, retry while results that are collected free some.

    Raises MemoryError after five seconds: the result is too large, or the memory is full of something else.
    """
    deadline: float | None = None
    while True:
        try:
            results.put(message)
            return
        except MemoryError:
            if deadline is None:
                deadline = time.monotonic() + MOST_WITHOUT_MEMORY_S
            if time.monotonic() > deadline:
                raise
            time.sleep(MEMORY_PAUSE_S)


Outcome = tuple[bool, Any, list[Any] | None]
"""(whether the task returned, value or error, buffers): the value itself with None, or pickled with its buffers."""

_POOLS = ("dragon.native.", "dragon.workflows.", "multiprocessing.pool", "concurrent.futures.")  # names of modules
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


def returned(value: Any, offered: set[int], lasting: bool) -> Outcome:
    """Return the outcome of a task that returned `value`. Raises MaybeEncodingError if it cannot be pickled.

    Args:
        offered: gets the keys of the descriptors that the outcome shares; see cpython.offered_descriptors().
        lasting: whether shared tensors are to be copied.
    """
    kind = type(value)
    if kind in _PLAIN or (kind is list and _PLAIN.issuperset(map(type, value))):
        return True, value, None
    before = cpython.offered_descriptors()
    try:
        packed = _packed(value, lasting)
    except Exception as error:
        raise MaybeEncodingError(error, value) from error
    if now := cpython.offered_descriptors():
        offered &= now
        offered |= now - before
    return True, *packed


def failed(error: BaseException, with_traceback: bool) -> Outcome:
    """Return the outcome of a task that raised `error`. An error that cannot be pickled and loaded is replaced by a
    MaybeEncodingError with its text."""
    try:  # the outcome is loaded twice, and what is shared can be received once
        packed = _packed(_traced(error, error) if with_traceback else error, lasting=True)
        loads(*packed)
    except Exception as reason:
        packed = _packed(_traced(MaybeEncodingError(reason, error), error), lasting=True)
    return False, *packed


def outcome_of(success: bool, value: Any, buffers: list[Any]) -> tuple[bool, Any]:
    """Return whether the task returned, and its deserialized value or error."""
    try:
        return success, loads(value, _kept(buffers))
    except Exception as error:
        error.add_note(f"while the {'result' if success else 'error'} of a task of a pool was read")
        return False, error


def _kept(buffers: list[Any]) -> list[Any]:
    """Return a value's buffers, copied into this process's memory if more than half of the run's memory is in use."""
    if buffers:
        usage = _core.usage()
        if usage["in_use"] * 2 > usage["limit"]:
            return [bytearray(buffer) for buffer in buffers]
    return buffers


def _packed(value: object, lasting: bool) -> tuple[bytes, list[Any]]:
    buffers: list[Any] = []
    return dumps(value, buffers.append, lasting=lasting), buffers


def _traced(error: BaseException, origin: BaseException) -> object:
    return ExceptionWithTraceback(error, of_users(origin.__traceback__))


def of_users(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the calls of pools at its beginning; all of it if it has no others."""
    first = trace
    while first is not None and first.tb_frame.f_globals.get("__name__", "").startswith(_POOLS):
        first = first.tb_next
    return first or trace
