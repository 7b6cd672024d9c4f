"""Converts objects to bytes and back.

Uses pickle protocol 5 with large buffers outside of the pickle. Objects that pickle cannot send by reference (lambdas,
functions of a notebook or of a main program that other processes cannot import) are sent by value, through cloudpickle.
"""

from __future__ import annotations

import copyreg
import functools
import io
import os
import pickle
import sys
import types
import weakref
from collections import ChainMap
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import process as mp_process
from multiprocessing.pool import mapstar, starmapstar  # type: ignore[attr-defined]
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dragon import _core, cpython
from dragon.infrastructure.system import sendable
from dragon.runtime.by_value import MainSource, send_from, shared_reduction
from dragon.runtime.picklers import Mention, Send, explained, is_nameless, reduce_type, state

if TYPE_CHECKING:
    import torch
    from typing_extensions import Buffer


def reduce_of_torch(obj: object, lasting: bool, reducers: Mapping[type, Any]) -> object:
    """Return the reduction of a tensor or storage of torch; NotImplemented for another object, and if torch's own is to
    be used. `reducers` has torch's reducers by type."""
    torch = sys.modules.get("torch")
    if torch is None:
        return NotImplemented
    if isinstance(obj, torch.Tensor):
        return _reduce_tensor(obj, lasting)
    if isinstance(obj, torch.TypedStorage):
        memory = obj._untyped_storage  # the methods of TypedStorage issue a warning
        return NotImplemented if not lasting and _is_shared(memory) else obj.__reduce_ex__(5)
    if isinstance(obj, torch.UntypedStorage) and not lasting and type(obj) in reducers:
        return _receive, (os.getpid(), *reducers[type(obj)](obj))
    return NotImplemented


def _is_shared(memory: torch.Tensor | torch.UntypedStorage) -> bool:
    return memory.device.type != "cpu" or bool(memory.is_shared())


def _receive(sender: int, rebuild: Callable[..., Any], args: tuple[Any, ...]) -> object:
    """Return the shared memory that process `sender` offers."""
    try:
        return rebuild(*args)
    except (OSError, EOFError) as error:
        error.add_note(
            f"A tensor in shared memory could not be received from process {sender}: it must be on this node and must "
            "not end before the tensor has been received. Send a copy instead: tensor.clone()."
        )
        raise


def _reduce_tensor(tensor: Any, lasting: bool) -> object:
    import torch

    if tensor.requires_grad and not tensor.is_leaf:
        return NotImplemented  # torch raises an error with the reason
    has_storage = tensor.layout == torch.strided
    if has_storage and not lasting and _is_shared(tensor):
        return NotImplemented
    if type(tensor) is not torch.Tensor or not has_storage or tensor.device.type != "cpu" or tensor.is_quantized:
        return tensor.__reduce_ex__(5)
    whole: Any = tensor.detach().resolve_conj().resolve_neg().contiguous()
    data = pickle.PickleBuffer(whole.reshape(-1).view(torch.uint8).numpy()) if whole.numel() else b""
    return _rebuild_tensor, (data, str(whole.dtype), tuple(whole.shape), tensor.requires_grad)


def _rebuild_tensor(data: Buffer, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> object:
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    if len(memoryview(data)) == 0:
        return torch.empty(shape, dtype=kind, requires_grad=requires_grad)
    if memoryview(data).readonly:
        data = bytearray(data)
    flat = torch.frombuffer(data, dtype=kind)
    return flat.reshape(shape).requires_grad_(requires_grad)


# The reducers that are registered with multiprocessing; copyreg's and those when the table of picklers was made.
_EXTRA = cpython.type_reducers()
_registered: tuple[dict[type, Any], dict[type, Any]] = ({}, {})


# Python pickles methods of its own objects; those of ours, such as `wait` of an event, have another type.
_METHODS = {type(_core.Event.wait.__get__(object())): lambda method: (getattr, (method.__self__, method.__name__))}


def _reduce_special(obj: object, lasting: bool) -> object:
    if isinstance(obj, type):
        return reduce_type(obj) if is_nameless(obj) else NotImplemented
    return reduce_of_torch(obj, lasting, _Pickler.dispatch_table) if hasattr(type(obj), "is_shared") else NotImplemented


class _Pickler(pickle.Pickler):
    """A pickler by reference, which is quick and gives the same classes on both sides."""

    lasting = False
    dispatch_table: dict[type, Any] = {}

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, types.FunctionType) or (isinstance(obj, type) and not is_nameless(obj)):
            # Pickle finds these by name in this process, but the reader would not find them.
            if obj.__module__ in _MAIN and not _is_found_there(obj):
                raise pickle.PicklingError(f"{obj!r} cannot be imported by other processes")
            return NotImplemented
        return _reduce_special(obj, self.lasting)


class _LastingPickler(_Pickler):
    lasting = True


@functools.cache
def _value_pickler(lasting: bool) -> Callable[..., Any]:
    """Return a pickler by value for functions and classes that other processes cannot import."""
    import cloudpickle  # type: ignore[import-untyped]

    class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
        @property
        def dispatch_table(self) -> Mapping[type, Any]:
            own: dict[type, Any] = {io.TextIOWrapper: _reduce_text_file}
            return ChainMap(_Pickler.dispatch_table, own, cloudpickle.Pickler.dispatch_table)

        def reducer_override(self, obj: object) -> object:
            if obj is _CORE_METACLASS:  # of a subclass of a _core class that is sent by value
                return type, (_core.Channel,)
            if isinstance(obj, (types.FunctionType, type)) and (
                obj.__module__ in _READERS or (obj.__module__ in _MAIN and _is_found_there(obj))
            ):
                return NotImplemented
            special = _reduce_special(obj, lasting)
            if special is not NotImplemented:
                return special
            return shared_reduction(obj, super().reducer_override(obj))

    return ValuePickler


def _reduce_text_file(file: io.TextIOWrapper) -> object:
    """Reduce a standard stream to the reader's own."""
    for name in ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    raise TypeError("cannot pickle '_io.TextIOWrapper' object")


_MAIN = ("__main__", "__mp_main__")
_READERS = (
    "dragon.runtime.by_value",
    "cloudpickle.cloudpickle",
)  # used by objects sent by value: every reader has them
_FOLDER: str | None = mp_process.ORIGINAL_DIR  # type: ignore[attr-defined]  # in which Python was started
_CORE_METACLASS = type(_core.Channel)


def dumps(obj: object, buffers: Callable[[pickle.PickleBuffer], Any] | None = None, *, lasting: bool = False) -> bytes:
    """Return the object as bytes; large buffers are passed to `buffers` if that is given."""
    try:
        return _dump(_LastingPickler if lasting else _Pickler, obj, buffers)
    except (pickle.PicklingError, AttributeError, TypeError):
        try:
            return _dump(_value_pickler(lasting), obj, buffers)
        except Exception as error:
            raise explained(obj, error, lambda part: _dump(_value_pickler(lasting), part, None)) from None


def explained_call(
    function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> Exception:
    """Return the error of a call that cannot be sent, with the names of its parts as the caller knows them."""
    if function in (mapstar, starmapstar):
        ((function, elements),) = args
        parts = {"the function": function, "elements": elements}
    else:
        parts = {"the function": function, "args": args, "kwargs": kwargs}
    reason = error.__context__ if isinstance(error.__context__, Exception) else error
    return explained(parts, reason, dumps, parts)


def _dump(pickler: Callable[..., Any], obj: object, buffers: Callable[[pickle.PickleBuffer], Any] | None) -> bytes:
    global _registered
    if (copyreg.dispatch_table, _EXTRA) != _registered:
        _registered = copyreg.dispatch_table.copy(), _EXTRA.copy()
        _Pickler.dispatch_table = copyreg.dispatch_table | _EXTRA | _METHODS
    file = io.BytesIO()
    kept: list[pickle.PickleBuffer] = []
    names: list[Mention] = []
    outer, state.names = state.names, names
    try:
        pickler(file, protocol=5, buffer_callback=kept.append if buffers else None).dump(obj)
    finally:
        state.names = outer
    for name in names:
        _announce(*name)
    if buffers:
        for buffer in kept:
            buffers(buffer)
    return file.getvalue()


def loads(data: bytes | memoryview, buffers: list[Any] | None = None) -> Any:
    """Return the object that dumps() wrote."""
    return pickle.loads(data, buffers=buffers)


# Pickling a handle announces it, so that the object exists until the reader is attached. A new process is attached
# before it runs, so for it the names of the handles are collected instead.


class _Setting:
    """A context manager whose block has this value of an attribute of the state."""

    __slots__ = ("_outer",)
    _attribute: ClassVar[str]
    _value: ClassVar[object] = None

    def __enter__(self) -> None:
        self._outer = getattr(state, self._attribute)
        setattr(state, self._attribute, self._value)

    def __exit__(self, *raised: object) -> None:
        setattr(state, self._attribute, self._outer)


class to_another_node(_Setting):
    """A context manager whose block puts objects into a channel of another node: shared tensors are copied."""

    _attribute, _value = "is_for_another_node", True


class _announcing(_Setting):
    """A context manager whose block pickles for a message, even while an object is pickled for a new process."""

    _attribute = "attachments"


class mentions:
    """A context manager that collects the arguments of mention() each time the object pickled in the block is sent."""

    __slots__ = ("_outer",)

    def __enter__(self) -> list[Mention]:
        kept: list[Mention] = []
        self._outer, state.attachments = state.attachments, lambda name, send: kept.append((name, send))
        return kept

    def __exit__(self, *raised: object) -> None:
        state.attachments = self._outer


def _announce(name: object, send: Send) -> None:
    """Pass a handle that is sent to the collector of attachments; without one, keep its object alive by `send`."""
    take = state.attachments
    if take is None:
        send()
    else:
        take(name, send)


def mention(name: tuple[int, int, int], send: Send) -> None:
    """Note that a handle of this name is being pickled; `send` keeps its object alive until the reader is attached."""
    names = state.names
    if names is None:
        _announce(name, send)
    else:
        names.append((name, send))


def _serialize(obj: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle an object for a message. A finalizer may call this while another object is pickled for a new process."""
    buffers: list[pickle.PickleBuffer] = []
    with _announcing():
        return dumps(obj, buffers.append, lasting=state.is_for_another_node), buffers


_core.set_serializer(_serialize)


# The main program: other processes import it once, under another name, as multiprocessing's spawn does.


def _place_of(module: object) -> tuple[str, str] | None:
    """Return how to import the main program: ("name", module) or ("path", file); None if that is not possible."""
    name = getattr(getattr(module, "__spec__", None), "name", None)  # under pdb the module has no __spec__
    if name is not None:
        # multiprocessing imports no `__main__.py` of a package or a folder.
        return None if name.rpartition(".")[2] == "__main__" else ("name", name)
    path = getattr(module, "__file__", None)
    if path is None or path.startswith(("/dev/", "/proc/")):  # means another file in each process
        return None
    return "path", sendable(os.path.normpath(os.path.join(_FOLDER or "", path)))


class _Main:
    """The main program, and what its source says about importing it."""

    def __init__(self, module: types.ModuleType) -> None:
        # Not kept alive: at the end of a program its objects are deleted while their module's names are still there.
        self.module = weakref.ref(module)
        self.source = MainSource(b"")
        self.found: dict[str, weakref.ref[Any]] = {}  # objects that other processes find under their names
        place = _place_of(module)
        if place is not None and not getattr(sys, "ps1", None):
            with suppress(OSError, AttributeError):
                self.source = MainSource(Path(str(module.__file__)).read_bytes())
        self.place = place if self.source.is_guarded else None  # how other processes import it, if they may

    def has(self, obj: object, name: str) -> bool:
        """Return whether a process that imports the program has that object under that name."""
        first, *rest = name.split(".")
        if not self.source.is_guarded or "<locals>" in rest or first in self.source.bound_here:
            return False
        found: object = self.module()
        for part in (first, *rest):
            found = getattr(found, part, None)
        if found is obj:
            self.found[name] = weakref.ref(obj)
        return found is obj


_main: _Main | None = None
send_from(lambda: _this_main().source.is_guarded, lambda obj: _reduce_special(obj, True))


def _this_main() -> _Main:
    global _main
    module = sys.modules["__main__"]
    if _main is None or _main.module() is not module:
        _main = _Main(module)
    return _main


def main_for_others() -> tuple[str, str] | None:
    """Return how another process imports the main program; None if it may not: it is no file that tests its `__name__`.
    Raises RuntimeError while it is being imported."""
    cpython.check_not_importing_main()
    return _this_main().place


def import_hint() -> str:
    """Return a clause for the error of processes that end at their start with an exit code: the import of the main
    program may be the cause, if they do that."""
    if not _this_main().source.is_guarded:
        return ""
    return (
        "; such a process imports the main program: keep what starts processes, or runs the program, under "
        'if __name__ == "__main__":'
    )


def _is_found_there(obj: types.FunctionType | type) -> bool:
    """Return whether a process that imported the main program has the same function or class."""
    main, name = _this_main(), obj.__qualname__
    known = main.found.get(name)
    return (known is not None and known() is obj) or main.has(obj, name)


def reduce_unfound(pickler: ForkingPickler, obj: object) -> object:
    """Reduce a function or class of the main program by value where needed, for multiprocessing's own pickler."""
    if isinstance(obj, (types.FunctionType, type)) and obj.__module__ in _MAIN and not _is_found_there(obj):
        return loads, (dumps(obj),)
    return NotImplemented


def dumps_call(
    target: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    buffers: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> bytes:
    """Return a call to be made in another process as bytes; see dumps()."""
    try:
        return dumps((target, args, kwargs), buffers)
    except Exception as error:
        raise explained_call(target, args, kwargs, error) from None
