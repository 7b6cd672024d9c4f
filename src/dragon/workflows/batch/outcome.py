"""How a task ended, as it goes from one process to others.

A value stays packed, as the worker wrote it, until somebody wants it: the process that keeps the order of the tasks
does not read what it hands on. Arrays lie beside the bytes, in the memory in which they were received.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any

from dragon.runtime.announcing import attachments
from dragon.runtime.serialization import dumps, loads
from dragon.workflows.batch.errors import BatchError

__all__ = [
    "Failure",
    "Input",
    "Outcome",
    "Sent",
    "Value",
    "contained",
    "pack",
    "received",
    "replaced",
    "unpack",
    "worded",
]

Sent = tuple[bytes | None, list[Any], Any]
"""A value in a message: its bytes, the buffers beside them, and whether it refers to shared objects; without bytes, the
value itself."""

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


def pack(value: Any) -> Sent:
    """A value for a message. Raises what its pickling raises."""
    if type(value) in _PLAIN:
        return None, [], value
    buffers: list[Any] = []
    with attachments() as handles:
        data = dumps(value, buffers.append)
    if handles:
        buffers = []
        data = dumps(value, buffers.append)  # again, so that its handles keep their objects until it is read
    return data, buffers, bool(handles)


def unpack(sent: Sent) -> Any:
    """The value that pack() wrote. Raises what its unpickling raises."""
    data, buffers, value = sent
    return value if data is None else loads(data, buffers)


def received(sent: Sent) -> Outcome:
    """The outcome of a task that returned this."""
    data, _, has_handles = sent
    if data is None or not has_handles:
        return Value(sent)
    # Each reading of a handle would count as one message less that keeps its object. So it is read once, here.
    try:
        return Value((None, [], unpack(sent)))
    except Exception as error:
        return Failure.of(error)


class Value:
    """A task returned this."""

    __slots__ = ("_cache", "_sent")

    def __init__(self, sent: Sent) -> None:
        self._sent = sent
        self._cache: Any = sent[2] if sent[0] is None else None

    def get(self) -> Any:
        """The value. Raises what its unpickling raises."""
        if self._cache is None:
            self._cache = unpack(self._sent)
        return self._cache

    def sent(self) -> Sent:
        """For another message."""
        data, buffers, value = self._sent
        return pack(value) if data is None else (data, [pickle.PickleBuffer(buffer) for buffer in buffers], value)

    def __reduce__(self) -> Any:
        return received, (self.sent(),)


class Failure:
    """A task raised this, or was ended. `text` says it in words, `notes` how it came to others."""

    __slots__ = ("data", "notes", "text")

    def __init__(self, data: bytes, text: str, notes: tuple[str, ...] = ()) -> None:
        self.data, self.text, self.notes = data, text, notes

    @classmethod
    def of(cls, error: BaseException, with_traceback: bool = False) -> Failure:
        """An exception as it is, or as whoever gets it sees where in the worker it was raised."""
        text = worded(error)
        if with_traceback:
            text = "".join(traceback.format_exception(error))
        try:
            return cls(dumps(ExceptionWithTraceback(error, error.__traceback__) if with_traceback else error), text)
        except Exception:
            return cls(b"", text)

    @property
    def brief(self) -> str:
        """The exception in one line."""
        return self.text.strip().rpartition("\n")[2]

    def get(self) -> Any:
        """Raises the exception."""
        raise self.error()

    def error(self) -> BaseException:
        """The exception, a new one each time."""
        try:
            error: BaseException = loads(self.data) if self.data else BatchError(self._unreadable())
        except Exception:
            error = BatchError(self._unreadable())
        for note in self.notes:
            error.add_note(note)
        return error

    def _unreadable(self) -> str:
        return f"the task raised an exception that cannot be sent to another process:\n{self.text}"

    def noted(self, note: str) -> Failure:
        """The same, for a task that depends on this one."""
        return Failure(self.data, self.text, (*self.notes[:3], note))

    def __reduce__(self) -> Any:
        return Failure, (self.data, self.text, self.notes)


Outcome = Value | Failure


def worded(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"


class Input:
    """Stands, among the arguments of a task, for the result of another."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> Any:
        return Input, (self.index,)


_DEPTH = 4


def contained(obj: Any, kind: type, depth: int = _DEPTH) -> Iterator[Any]:
    """Everything of that kind in an object: itself, or in its lists, tuples and dicts, a few within each other."""
    own = type(obj)
    if own is list or own is tuple or own is dict:
        if depth:
            for item in obj.values() if own is dict else obj:
                yield from contained(item, kind, depth - 1)
    elif isinstance(obj, kind):
        yield obj


def replaced(obj: Any, kind: type, replace: Callable[[Any], Any], depth: int = _DEPTH) -> Any:
    """The object with what contained() finds replaced."""
    own = type(obj)
    if own is list or own is tuple or own is dict:
        if not depth:
            return obj
        if own is dict:
            return {key: replaced(item, kind, replace, depth - 1) for key, item in obj.items()}
        return own(replaced(item, kind, replace, depth - 1) for item in obj)
    return replace(obj) if isinstance(obj, kind) else obj
