"""The start method "dragon": multiprocessing's context with the classes of the runtime in place of its own.

Importing this module registers the start method in multiprocessing's table and list, makes the modules `queues`, `pool`
and `managers` attributes of the package, and changes nothing else. When it is first requested, the factory methods of
the default context are redirected to the context of the chosen start method, so that `multiprocessing.Queue()` is a
queue of the run after `set_start_method("dragon")`, and else the standard one. The functions themselves are changed,
because programs may hold them already: a program with `from multiprocessing import Queue`, and torch, which has all
names of multiprocessing.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context as mp_context
import types
from collections.abc import Callable
from multiprocessing import spawn as mp_spawn
from typing import Any

from dragon import cpython
from dragon.lazy_modules import LaterModule
from dragon.mpbridge.process import NAME, DragonProcess, begin, show_heap

__all__ = ["DragonContext", "DragonProcess", "dispatch", "install"]


class DragonContext(mp_context.BaseContext):
    """The context that `multiprocessing.get_context("dragon")` returns."""

    _name = NAME
    Process = DragonProcess  # the class of processes

    def get_context(self, method: str | None = None) -> Any:
        """Return this context, or the one of another start method; as multiprocessing's."""
        return self if method in (None, NAME) else super().get_context(method)

    def _check_available(self) -> None:
        """Redirect the factories; multiprocessing calls this when the start method is requested or chosen."""
        _redirect_factories()

    def cpu_count(self) -> int:
        """Return the number of CPUs that the run may use on all nodes together."""
        from dragon.native.machine import cpu_count

        return cpu_count()

    def Queue(self, maxsize: int = 0) -> Any:
        """Return a queue for at most `maxsize` objects (0: no limit), as multiprocessing's."""
        from dragon.mpbridge.queues import Queue

        return Queue(maxsize, ctx=self)

    def JoinableQueue(self, maxsize: int = 0) -> Any:
        """Return a queue with `task_done()` and `join()`, as multiprocessing's."""
        from dragon.mpbridge.queues import JoinableQueue

        return JoinableQueue(maxsize, ctx=self)

    def SimpleQueue(self) -> Any:
        """Return a queue with `get()`, `put()` and `empty()` only, as multiprocessing's."""
        from dragon.mpbridge.queues import SimpleQueue

        return SimpleQueue(ctx=self)

    def Pipe(self, duplex: bool = True) -> Any:
        """Return the two connections of a pipe; one way only, receiver first, without `duplex`."""
        from dragon.runtime.connection import Pipe

        return Pipe(duplex)

    def Manager(self) -> Any:
        """Start a server process for shared objects and return its manager, as multiprocessing's."""
        from dragon.mpbridge.managers import new_manager

        return new_manager(self.get_context())

    def Lock(self) -> Any:
        """Return a lock that any process may release, as multiprocessing's."""
        from dragon.mpbridge import standard_queues  # noqa: F401  a queue of the standard library may be being made
        from dragon.mpbridge.synchronize import Lock

        return Lock(ctx=self)

    def RLock(self) -> Any:
        """Return a lock that its holder may acquire again, as multiprocessing's."""
        from dragon.mpbridge.synchronize import RLock

        return RLock(ctx=self)

    def Semaphore(self, value: int = 1) -> Any:
        """Return a semaphore that begins at `value`, as multiprocessing's."""
        from dragon.mpbridge.synchronize import Semaphore

        return Semaphore(value, ctx=self)

    def BoundedSemaphore(self, value: int = 1) -> Any:
        """Return a semaphore that never exceeds its first value, as multiprocessing's."""
        from dragon.mpbridge.synchronize import BoundedSemaphore

        return BoundedSemaphore(value, ctx=self)

    def Condition(self, lock: object = None) -> Any:
        """Return a condition with `lock`, or with a new RLock; as multiprocessing's."""
        from dragon.mpbridge.synchronize import Condition

        return Condition(lock, ctx=self)

    def Event(self) -> Any:
        """Return a flag that processes set and wait for, as multiprocessing's."""
        from dragon.mpbridge.synchronize import Event

        return Event(ctx=self)

    def Barrier(self, parties: int, action: Callable[[], Any] | None = None, timeout: float | None = None) -> Any:
        """Return a barrier for `parties` processes, with a timeout in seconds; as multiprocessing's."""
        from dragon.mpbridge.synchronize import Barrier

        return Barrier(parties, action, timeout, ctx=self)

    def Pool(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Any = (),
        maxtasksperchild: int | None = None,
    ) -> Any:
        """Return a pool of `processes` workers, by default one for each CPU of the run; else as multiprocessing's."""
        begin()
        from dragon.mpbridge.pool import Pool

        return Pool(processes, initializer, initargs, maxtasksperchild, context=self)

    def RawValue(self, typecode_or_type: object, *args: object) -> Any:
        """Return a ctypes object in shared memory without a lock, as multiprocessing's."""
        from dragon.mpbridge.sharedctypes import RawValue

        return RawValue(typecode_or_type, *args)

    def RawArray(self, typecode_or_type: object, size_or_initializer: object) -> Any:
        """Return a ctypes array in shared memory without a lock, as multiprocessing's."""
        from dragon.mpbridge.sharedctypes import RawArray

        return RawArray(typecode_or_type, size_or_initializer)

    def Value(self, typecode_or_type: object, *args: object, lock: object = True) -> Any:
        """Return a ctypes object in shared memory, with a lock unless `lock` is False; as multiprocessing's."""
        from dragon.mpbridge.sharedctypes import Value

        return Value(typecode_or_type, *args, lock=lock, ctx=self)

    def Array(self, typecode_or_type: object, size_or_initializer: object, *, lock: object = True) -> Any:
        """Return a ctypes array in shared memory, with a lock unless `lock` is False; as multiprocessing's."""
        from dragon.mpbridge.sharedctypes import Array

        return Array(typecode_or_type, size_or_initializer, lock=lock, ctx=self)


_DISPATCHED = (
    *("Queue", "JoinableQueue", "SimpleQueue", "Pipe", "Manager", "Lock", "RLock", "Semaphore"),
    *("BoundedSemaphore", "Condition", "Event", "Barrier", "Pool", "RawValue", "RawArray", "Value", "Array"),
    *("cpu_count",),
)


def install() -> None:
    """Make "dragon" a start method of multiprocessing."""
    if NAME in cpython.start_methods():
        return
    cpython.start_methods()[NAME] = DragonContext()
    _redirect(mp_context.DefaultContext.get_all_start_methods)
    # Programs find these modules without importing them, for example in annotations, as dragonhpc imports them.
    for name in ("managers", "pool", "queues"):
        if not hasattr(multiprocessing, name):
            setattr(multiprocessing, name, LaterModule(f"multiprocessing.{name}"))


def _redirect_factories() -> None:
    if mp_spawn.get_start_method is _start_method_for_spawn:  # type: ignore[attr-defined]
        return
    for name in _DISPATCHED:
        _redirect(getattr(mp_context.BaseContext, name))
    # The children of "spawn" and "forkserver" set this start method before this package can be imported, and their own
    # soon after. Reading it must not fix the start method, as get_start_method() does.
    mp_spawn.get_start_method = _start_method_for_spawn  # type: ignore[attr-defined]


def _start_method_for_spawn(allow_none: bool = True) -> str | None:  # called with an argument from Python 3.14 on
    name = multiprocessing.get_start_method(allow_none=True)
    return "spawn" if name == NAME else name


_standard: dict[str, Callable[..., Any]] = {}


def _redirect(function: Any) -> None:
    """Redirect calls of a function of multiprocessing to dispatch(), also for programs that hold the function
    already."""
    name = function.__name__
    _standard[name] = function.__wrapped__ = _copy(function)
    function.__code__, function.__defaults__, function.__kwdefaults__ = _call.__code__, None, {"_name": name}


def _copy(function: Any) -> Callable[..., Any]:
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _call(self: object, *args: object, _name: str, **kwargs: object) -> Any:
    # This becomes the code of functions of multiprocessing, so it cannot use names of this module.
    from dragon.mpbridge.context import dispatch

    return dispatch(_name, self, args, kwargs)


def dispatch(name: str, context: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a factory of the chosen context, in place of a redirected function of multiprocessing's contexts."""
    if name == "get_all_start_methods":
        return [*_standard[name](context), NAME]
    chosen = getattr(context, "_actual_context", None)
    if isinstance(chosen, DragonContext):
        if name != "cpu_count":
            begin()
        show_heap()
        return getattr(chosen, name)(*args, **kwargs)
    return _standard[name](context, *args, **kwargs)
