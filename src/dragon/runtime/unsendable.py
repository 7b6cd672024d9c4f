"""Finds the part of an object that cannot be sent to another process, and suggests what to do."""

from __future__ import annotations

import functools
import io
import pickle
import reprlib
import socket
import threading
import types
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

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
