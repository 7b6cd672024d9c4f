"""The outcome of a task, as it is sent between processes.

A value stays pickled, as the worker wrote it, until it is needed: the scheduler does not deserialize what it forwards.
Arrays are in separate buffers, in the memory in which they were received.
"""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any, NoReturn, TypeVar

from dragon.native.workers import of_users
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.serialization import dumps, loads, mentions
from dragon.workflows.batch.errors import BatchError

T = TypeVar("T")
Sent = tuple[bytes | None, list[Any], Any]
"""A value in a message: its bytes, the buffers beside them, and whether it refers to shared objects; without bytes, the
value itself."""

PLAIN = frozenset({type(None), bool, int, float, str, bytes})


def pack(value: object) -> Sent:
    """Serialize a value for a message. Raises what pickling raises.

    It may be read several times, also after its worker has ended; so tensors in shared memory or on a GPU are copied.
    """
    if type(value) in PLAIN:
        return None, [], value
    buffers: list[Any] = []
    with mentions() as handles:
        data = dumps(value, buffers.append, lasting=True)
    if handles:
        buffers = []
        # Again, so that its handles keep their objects until it is read.
        data = dumps(value, buffers.append, lasting=True)
    return data, buffers, bool(handles)


def unpack(sent: Sent) -> Any:
    """Deserialize what pack() wrote. Raises what unpickling raises."""
    data, buffers, value = sent
    return value if data is None else loads(data, buffers)


def received(sent: Sent) -> Outcome:
    """Return the outcome of a task that returned this value."""
    data, _, has_handles = sent
    if data is None or not has_handles:
        return Value(sent)
    # Each deserialization of a handle releases one reference that a message holds. So it is deserialized once, here.
    try:
        return Value((None, [], unpack(sent)))
    except Exception as error:
        return Failure.of(error)


class Value:
    """The outcome of a task that returned a value."""

    __slots__ = ("_cache", "_sent")

    def __init__(self, sent: Sent) -> None:
        self._sent = sent
        self._cache: object = sent[2] if sent[0] is None else None

    def get(self) -> object:
        """Return the value. Raises what unpickling raises."""
        if self._cache is None:
            self._cache = unpack(self._sent)
        return self._cache

    def plain(self) -> Sent | None:
        """Return the value as it was received, for a later run; None for one with handles, which end with this run."""
        data, _, value = self._sent
        return self._sent if data is not None or type(value) in PLAIN else None

    def sent(self) -> Sent:
        """Return the value in a form for another message."""
        data, buffers, value = self._sent
        return pack(value) if data is None else (data, [pickle.PickleBuffer(buffer) for buffer in buffers], value)

    def __reduce__(self) -> tuple[object, ...]:
        return received, (self.sent(),)


class Failure:
    """The outcome of a task that raised an exception, or was ended. `text` describes it, `notes` how it affected other
    tasks."""

    __slots__ = ("data", "notes", "text")

    def __init__(self, data: bytes, text: str, notes: tuple[str, ...] = ()) -> None:
        self.data, self.text, self.notes = data, text, notes

    @classmethod
    def of(cls, error: BaseException, with_traceback: bool = False) -> Failure:
        """Make a failure from an exception; with `with_traceback` it includes the worker's traceback."""
        text = worded(error)
        if with_traceback:
            text = "".join(traceback.format_exception(error))
        try:
            raised = ExceptionWithTraceback(error, of_users(error.__traceback__)) if with_traceback else error
            return cls(dumps(raised, lasting=True), text)
        except Exception:
            return cls(b"", text)

    @property
    def brief(self) -> str:
        """The exception in one line."""
        return self.text.strip().rpartition("\n")[2]

    def get(self) -> NoReturn:
        """Raise the exception."""
        raise self.error()

    def error(self) -> BaseException:
        """Return the exception, a new object each time."""
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
        """Return the failure with a further note, for a task that depends on this one."""
        return Failure(self.data, self.text, (*self.notes[:3], note))

    def __reduce__(self) -> tuple[object, ...]:
        return Failure, (self.data, self.text, self.notes)


Outcome = Value | Failure


def worded(error: BaseException) -> str:
    """Return an exception as one line."""
    return f"{type(error).__name__}: {error}"


class Input:
    """A placeholder, in the arguments of a task, for the result of another."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[object, ...]:
        return Input, (self.index,)


_DEPTH = 4


def contained(obj: Any, kind: type[T], depth: int = _DEPTH) -> Iterator[T]:
    """Yield all objects of type `kind` in an object: itself, or in its lists, tuples and dicts, nested at most `depth`
    deep."""
    own = type(obj)
    if own is list or own is tuple or own is dict:
        if depth:
            for item in obj.values() if own is dict else obj:
                yield from contained(item, kind, depth - 1)
    elif isinstance(obj, kind):
        yield obj


def replaced(obj: Any, kind: type, replace: Callable[[Any], Any], depth: int = _DEPTH) -> Any:
    """Return a copy of the object in which the objects that contained() finds are replaced."""
    own = type(obj)
    if own is list or own is tuple or own is dict:
        if not depth:
            return obj
        if own is dict:
            return {key: replaced(item, kind, replace, depth - 1) for key, item in obj.items()}
        return own(replaced(item, kind, replace, depth - 1) for item in obj)
    return replace(obj) if isinstance(obj, kind) else obj


Key = tuple[int, int]
"""The name of a task in its batch: the number of the client that submitted it, and its number within that client."""


class Promise:
    """The future outcome of one task. It is set once, by one thread."""

    __slots__ = ("__weakref__", "_listeners", "digest", "fetched", "key", "outcome")

    _lock = threading.Lock()

    def __init__(self, key: Key) -> None:
        self.key = key
        self.outcome: Outcome | None = None
        self.digest = b""  # what the task is called in a journal
        self.fetched = False  # whether get() has returned it in this process
        self._listeners: tuple[Callable[[], object], ...] = ()

    def fulfil(self, outcome: Outcome, wake: bool = True) -> None:
        """Set the outcome; with `wake` call the listeners, in this thread."""
        with Promise._lock:
            self.outcome = outcome
            listeners, self._listeners = self._listeners, ()
        if wake:
            for listener in listeners:
                listener()

    def listen(self, listener: Callable[[], object]) -> None:
        """Have a function called once, when the outcome is set, or at once if it is. It must not block or raise."""
        with Promise._lock:
            if self.outcome is None:
                self._listeners += (listener,)
                return
        listener()

    def unlisten(self, listener: Callable[[], object]) -> None:
        """Have a function no longer called."""
        with Promise._lock:
            self._listeners = tuple(each for each in self._listeners if each != listener)

    def wait(self, timeout: float | None) -> bool:
        """Wait for the outcome. Returns whether there is one within `timeout` seconds."""
        timeout = checked_seconds("timeout", timeout)
        if self.outcome is not None:
            return True
        is_set = threading.Event()
        self.listen(is_set.set)
        try:
            # A lock accepts no longer timeout.
            return is_set.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        finally:
            self.unlisten(is_set.set)
