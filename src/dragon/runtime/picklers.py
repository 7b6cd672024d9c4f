"""What pickling needs: its state, array types, picklers of a program, and why an object cannot be sent."""

from __future__ import annotations

import functools
import io
import operator
import pickle
import reprlib
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, cast

Send = Callable[[], None]
Mention = tuple[Any, Send]


class _State(threading.local):
    names: list[Mention] | None = None  # the handles pickled in this attempt: a failed one announces none
    attachments: Callable[[Any, Send], None] | None = None
    is_for_another_node = False


state = _State()


def is_nameless(obj: type) -> bool:
    """Return whether `obj` is an array type that its module does not have under its name."""
    is_array = type(obj).__name__ == "PyCArrayType"
    return is_array and getattr(sys.modules.get(obj.__module__), obj.__qualname__, None) is not obj


def reduce_type(kind: type[Any]) -> tuple[object, ...]:
    """Return the __reduce__() value of an array type."""
    return operator.mul, (kind._type_, kind._length_)


class Pickler(Protocol):
    """A pickler of a program."""

    def dumps(self, value: object, /) -> bytes: ...
    def loads(self, data: bytes, /) -> object: ...


class _OfFiles:
    """A pickler with dumps() and loads(), from one that writes to and reads from files."""

    def __init__(self, pickler: Any) -> None:
        self._pickler = pickler

    def dumps(self, value: object) -> bytes:
        file = io.BytesIO()
        self._pickler.dump(value, file)
        return file.getvalue()

    def loads(self, data: bytes) -> object:
        return self._pickler.load(_ToRead(data))


class _ToRead(io.BytesIO):
    """A value as a file: at its end the first read is empty, and the next ones raise EOFError, as with dragonhpc."""

    _ended = False

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if not found and size != 0:
            if self._ended:
                raise EOFError("the value has been read to its end")
            self._ended = True
        return found


def pickler_of(given: object) -> Pickler | None:
    """Return an object with `dumps` and `loads`: the given one, or an adapter if it has `dump` and `load`."""
    if given is None or (hasattr(given, "dumps") and hasattr(given, "loads")):
        return cast("Pickler | None", given)
    if hasattr(given, "dump") and hasattr(given, "load"):
        return _OfFiles(given)
    raise TypeError(f"a pickler has dumps and loads, or dump and load, and {given!r} has neither pair")


def strip_pickled_bytes(byte_str: bytes) -> bytes:
    """Return a pickle without the marks at its start and end that are the same for every object (PEP 3154)."""
    return byte_str.removeprefix(b"\x80\x05\x95").removesuffix(b".").removesuffix(b"\x94")


_DEEPEST = 12
UNSENDABLE: tuple[type[Exception], ...] = (pickle.PicklingError, TypeError, AttributeError, ValueError)
"""The exceptions of pickling."""

_ADVICE: tuple[tuple[Any, str], ...] = (
    (io.IOBase, "open it in the process that uses it"),
    (socket.socket, "connect in the process that uses it"),
    ((type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event), "use multiprocessing's"),
    (types.GeneratorType, "send a list of what it yields, or make it in the process that uses it"),
    (threading.Thread, "start it in the process that uses it"),
)


def explained(
    obj: object, error: Exception, dump: Callable[[Any], object], parts: dict[str, Any] | None = None
) -> Exception:
    """Return the error with the part of `obj` that cannot be sent, for other errors the error itself."""
    kind = next((kind for kind in UNSENDABLE if isinstance(error, kind)), None)
    if kind is None:
        return error
    path, culprit = _find(obj, dump, parts)
    advice = next((f"; {what}" for kind, what in _ADVICE if isinstance(culprit, kind)), "")
    return kind(f"{path or 'the object'} cannot be sent to another process: {_short(culprit)}: {error}{advice}")


def _short(obj: object) -> str:
    try:
        return reprlib.repr(obj)
    except Exception:
        return f"a {type(obj).__name__}"


def _find(obj: object, dump: Callable[[Any], object], parts: dict[str, Any] | None) -> tuple[str, Any]:
    path, seen = "", {id(obj)}
    found = iter(parts.items()) if parts is not None else _parts(obj, path)
    for _ in range(_DEEPEST):
        for name, part in found:
            if id(part) not in seen and _fails(part, dump):
                seen.add(id(part))
                path, obj = name, part
                break
        else:
            return path, obj
        found = _parts(obj, path)
    return path, obj


def _fails(part: object, dump: Callable[[Any], object]) -> bool:
    try:
        dump(part)
    except Exception:
        return True
    return False


def _parts(obj: object, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object, with the expressions by which a user would refer to them."""
    if isinstance(obj, BaseProcess):
        fields = vars(obj)
        yield from ((name.lstrip("_"), fields[name]) for name in ("_target", "_args", "_kwargs") if name in fields)
        yield from ((f"{type(obj).__name__}.{name}", value) for name, value in fields.items() if name[:1] != "_")
    elif isinstance(obj, (tuple, list)):
        yield from ((f"{path}[{index}]" if path else f"element {index}", part) for index, part in enumerate(obj))
    elif isinstance(obj, dict):
        yield from ((f"{path}[{_short(key)}]", part) for key, part in obj.items())
    elif isinstance(obj, (set, frozenset)):
        yield from ((f"an element of {path or 'the set'}", part) for part in obj)
    elif isinstance(obj, functools.partial):
        yield from ((f"{path}.func", obj.func), (f"{path}.args", obj.args), (f"{path}.keywords", obj.keywords))
    elif isinstance(obj, types.MethodType):
        yield f"{path}.__self__" if path else "the method's object", obj.__self__
    elif isinstance(obj, types.FunctionType):
        for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=False):
            yield f"the variable {name} that {obj.__name__}() uses", cell.cell_contents
        for name in obj.__code__.co_names:
            if name in obj.__globals__:
                yield f"the global {name} that {obj.__name__}() uses", obj.__globals__[name]
        yield from ((f"a default of {obj.__name__}()", part) for part in obj.__defaults__ or ())
    elif hasattr(obj, "__dict__") and not isinstance(obj, (type, types.ModuleType)):
        yield from ((f"{path or type(obj).__name__}.{name}", part) for name, part in vars(obj).items())
