"""How a pool's task ended, as its worker tells whoever waits for it.

What is not plain is pickled apart from its message, so that one that cannot be read is an error of its own task and of
no other.
"""

from __future__ import annotations

from multiprocessing.pool import ExceptionWithTraceback, MaybeEncodingError  # type: ignore[attr-defined]
from typing import Any

from dragon import _core
from dragon.runtime.serialization import dumps, loads

__all__ = ["Outcome", "failed", "outcome_of", "returned"]

Outcome = tuple[bool, Any, list[Any] | None]
"""Whether the task returned, and its value or error: as it is, or pickled and with the buffers beside that."""

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


def returned(value: Any) -> Outcome:
    """The task returned this. Raises MaybeEncodingError where it cannot be pickled."""
    kind = type(value)
    if kind in _PLAIN or (kind is list and _PLAIN.issuperset(map(type, value))):
        return True, value, None
    try:
        return True, *_packed(value)
    except Exception as error:
        raise MaybeEncodingError(error, value) from error


def failed(error: BaseException, with_traceback: bool) -> Outcome:
    """The task raised this; where its class cannot be made again from what it pickles, it is told in words."""
    try:
        packed = _packed(_traced(error, error) if with_traceback else error)
        loads(*packed)
    except Exception as reason:
        packed = _packed(_traced(MaybeEncodingError(reason, error), error))
    return False, *packed


def outcome_of(success: bool, value: Any, buffers: list[Any]) -> tuple[bool, Any]:
    """Whether the task returned, and its value or error, of what was pickled."""
    try:
        return success, loads(value, _kept(buffers))
    except Exception as error:
        error.add_note(f"while the {'result' if success else 'error'} of a task of a pool was read")
        return False, error


def _kept(buffers: list[Any]) -> list[Any]:
    """The buffers of a value, copied into this process's memory where more than half of the run's is taken."""
    if buffers:
        usage = _core.usage()
        if usage["in_use"] * 2 > usage["limit"]:
            return [bytearray(buffer) for buffer in buffers]
    return buffers


def _packed(value: Any) -> tuple[bytes, list[Any]]:
    buffers: list[Any] = []
    return dumps(value, buffers.append), buffers


def _traced(error: BaseException, origin: BaseException) -> Any:
    return ExceptionWithTraceback(error, origin.__traceback__)
