"""The start method "dragon": multiprocessing's context with the classes of the runtime in place of its own.

Importing this module registers the start method in multiprocessing's table and list, makes the modules `queues`, `pool`
and `managers` attributes of the package, and changes nothing else. When it is first requested, the factory methods of
the default context are redirected to the context of the chosen start method, so that `multiprocessing.Queue()` is a
queue of the run after `set_start_method("dragon")`, and else the standard one. The functions themselves are changed,
because programs may hold them already: a program with `from multiprocessing import Queue`, and torch, which has all
names of multiprocessing.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import multiprocessing
import multiprocessing.context as mp_context
import types
from collections.abc import Callable
from multiprocessing import spawn as mp_spawn

from dragon import cpython
from dragon.lazy_modules import LaterModule
from dragon.mpbridge.process import NAME, DragonProcess, begin, show_heap

TYPE_CHECKING = False  # see dragon/__init__.py
if TYPE_CHECKING:
    from typing import Any

    from dragon.mpbridge.pool import Pool
    from dragon.runtime.connection import Connection


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

    def Pipe(self, duplex: bool = True) -> tuple[Connection, Connection]:
        """Return the two connections of a pipe; one way only, receiver first, without `duplex`."""
        from dragon.runtime.connection import Pipe

        return Pipe(duplex)

    def Pool(self, *args: Any, **options: Any) -> Pool:
        """Return a pool of `processes` workers, by default one for each CPU of the run; else as multiprocessing's."""
        begin()
        from dragon.mpbridge.pool import Pool

        return Pool(*args, **options, context=self)  # type: ignore[misc]


# The other factories, by the module that has what they call.
_FACTORIES = {
    "managers": ("Manager",),
    "queues": ("Queue", "JoinableQueue", "SimpleQueue"),
    "sharedctypes": ("RawValue", "RawArray", "Value", "Array"),
    "synchronize": ("Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Event", "Barrier"),
}


def _factory(module: str, name: str) -> object:
    @functools.wraps(getattr(mp_context.BaseContext, name))
    def make(self: DragonContext, *args: object, **options: object) -> object:
        return getattr(importlib.import_module(f"dragon.mpbridge.{module}"), name)(*args, **options, ctx=self)

    return make


for _module, _names in _FACTORIES.items():
    for _name in _names:
        setattr(DragonContext, _name, _factory(_module, _name))

_DISPATCHED = (*itertools.chain(*_FACTORIES.values()), "Pipe", "Pool", "cpu_count")


def install() -> None:
    """Make "dragon" a start method of multiprocessing."""
    if NAME in cpython.start_methods():
        return
    cpython.start_methods()[NAME] = DragonContext()
    _redirect(mp_context.DefaultContext.get_all_start_methods)  # type: ignore[arg-type]
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


def _redirect(function: types.FunctionType) -> None:
    """Redirect calls of a function of multiprocessing to dispatch(), also for programs that hold it already."""
    name = function.__name__
    _standard[name] = function.__wrapped__ = _copy(function)  # type: ignore[attr-defined]
    function.__code__, function.__defaults__, function.__kwdefaults__ = _call.__code__, None, {"_name": name}


def _copy(function: types.FunctionType) -> Callable[..., Any]:
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _call(self: object, *args: object, _name: str, **kwargs: object) -> object:
    # This becomes the code of functions of multiprocessing, so it cannot use names of this module.
    from dragon.mpbridge.context import dispatch

    return dispatch(_name, self, args, kwargs)


def dispatch(name: str, context: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
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
