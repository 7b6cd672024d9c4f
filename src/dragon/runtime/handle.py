"""Handles: Python objects that name a shared object, and can be sent to any process of the run."""

from __future__ import annotations

import functools
import json
import os
import sys
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dragon import _core
from dragon.infrastructure import variables
from dragon.runtime import serialization  # noqa: F401  it sets the pickler of channels
from dragon.runtime.nodes import run_nodes
from dragon.runtime.run import current_run, join_run, this_run
from dragon.runtime.serialization import mention

if TYPE_CHECKING:
    from dragon.infrastructure.policy import Policy


# The frames of these packages are not the program's.
_LIBRARIES = {"dragon", "torchloader", "multiprocessing", "concurrent"}


def serialized(*parts: object) -> str:
    """Return what serialize() of an object gives: its name and more, as JSON."""
    return json.dumps(parts, separators=(",", ":"))


def read_serialized(data: str | bytes, kind: object, what: str) -> Any:
    """Return what serialize() of a `what` wrote, decoded as `kind`. Raises ValueError for anything else."""
    from dragon.infrastructure.structs import msgspec  # not imported before: few processes need it

    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{data!r} is not what serialize() of a {what} gave: {error}") from None


def node_of_memory(m_uid: object) -> int:
    """Return the index of the node whose memory `m_uid` means, None being that of node_for_objects()."""
    if m_uid is None:
        return node_for_objects()
    for node in run_nodes():
        if node.index == m_uid:
            return node.index
    raise ValueError(
        f"m_uid={m_uid!r} is the memory of no node: facts.default_pool_muid_from_index(index) gives a node's"
    )


def node_for_objects(policy: Policy | None = None) -> int:
    """Return the node of new objects: that of `policy`, of the thread's `with` block, or its own."""
    policies = sys.modules.get("dragon.infrastructure.policy")  # not imported: each module makes every fork slower
    in_block = variables.POLICY in os.environ if policies is None else policies.Policy.is_in_block()
    if policy is None and not in_block:
        return this_run().node
    from dragon.runtime.placement import named_node

    node = named_node(policy)
    return this_run().node if node is None else node.index


class Handle:
    """The common part of all handles. A subclass lists it before its `_core` class among the bases. An object exists
    while a process is attached to it, or a message carries a handle of it."""

    _core_class: ClassVar[Any]
    _local_class: ClassVar[type[Any] | None] = None  # the class of handles on the object's own node

    def __init__(self, *args: object, **kwargs: object) -> None:
        this_run()
        self._core_class.__init__(self, *args, **kwargs)

    def _make_on(self, node: int, *arguments: object, **options: object) -> None:
        """Make a new object on that node and become a handle of it, as __init__() does on this node."""
        place = place_in_program()
        if node == this_run().node:
            self._core_class.__init__(self, *arguments, **options)
            self._core_class._made_at(self, place)
            return
        from dragon.runtime.agent_client import ask
        from dragon.runtime.protocol.objects import MakeObject

        name = ask(MakeObject(node, self._core_class.__name__, arguments, options, place))
        here: type = type(self)
        self.__class__ = _remote_class(here)
        self._open(name)  # type: ignore[attr-defined]

    @classmethod
    def _on(cls, node: int, *arguments: object, **options: object) -> Self:
        """Return a handle of a new object on that node. Raises NodeLostError."""
        handle = cls.__new__(cls)
        handle._make_on(node, *arguments, **options)
        return handle

    def __reduce__(self) -> tuple[object, ...]:
        name = self._name()  # type: ignore[attr-defined]
        mention(name, self._send)  # type: ignore[attr-defined]
        popen = get_spawning_popen()
        # A process of another start method belongs to no run yet.
        folder = str(this_run().folder) if popen is not None and popen.method != "dragon" else None
        return _restore, (self._local_class or type(self), name, self._state(), folder)

    def _state(self) -> object:
        """Return what a copy in another process needs in addition to the name."""
        return None

    def _set_state(self, state: object) -> None:
        """Set the copy's state from the value of _state()."""

    @classmethod
    def _attached(cls, name: tuple[int, int, int], state: object = None) -> Self:
        """Return a handle of an existing object. Raises DestroyedError if it does not exist any more."""
        if name[2] >> 8 != this_run().node:
            local: type = cls
            remote = _remote_class(local)
            handle: Self = remote.__new__(remote)  # type: ignore[call-overload]
            handle._open(name)  # type: ignore[attr-defined]
        else:
            handle = cls.__new__(cls)
            cls._core_class.__init__(handle, name)
        handle._set_state(state)
        return handle


def place_in_program() -> str:
    """Return the file and line of the program that are about to make an object; empty if there are none."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    if frame is None:
        return ""
    file = frame.f_code.co_filename.rpartition("/")[2].encode(errors="replace").decode()  # it may not be Unicode
    return f"{file}:{frame.f_lineno}"


@functools.cache
def _remote_class(local: type) -> type[Any]:
    """Return the class of handles of remote objects that corresponds to `local`, of which it is a subclass."""
    from dragon.runtime.remote import REMOTE  # not needed by programs of one node

    assert issubclass(local, Handle)
    remote = REMOTE[local._core_class]
    # Methods that a local class overrides take precedence over the remote ones.
    changed = {
        name: vars(cls)[name]
        for cls in reversed(local.__mro__)
        if issubclass(cls, Handle) and cls.__module__ != Handle.__module__
        for name in vars(cls).keys() & set(dir(remote)) - {"__module__", "__doc__"}
    }
    contents = {**changed, "_local_class": local, "_operations": remote, "__module__": local.__module__}
    return type(local.__name__, (remote, local), contents)


def _restore(cls: type[Handle], name: tuple[int, int, int], state: object, folder: str | None = None) -> Handle:
    if folder is not None and current_run() is None:
        join_run(Path(folder))
    return cls._attached(name, state)


class Channel(Handle, _core.Channel):
    """A FIFO queue of objects that any process of the run can put into and get from."""

    _core_class = _core.Channel
    _operations: ClassVar[Any] = _core.Channel  # the remote class for an object of another node

    def qsize(self) -> int:
        """Return the number of objects in it at the moment."""
        return self._size()

    def empty(self) -> bool:
        """Return whether it has no objects at the moment."""
        return self._size() == 0

    def full(self) -> bool:
        """Return whether put() would wait at the moment."""
        return self._full()


class Lock(Handle, _core.Lock):
    """A lock of processes, on any node."""

    _core_class = _core.Lock


class Semaphore(Handle, _core.Semaphore):
    """A semaphore of processes, on any node."""

    _core_class = _core.Semaphore
    _acquire = _core.Semaphore.acquire


class Event(Handle, _core.Event):
    """A flag that processes set and wait for, on any node."""

    _core_class = _core.Event


class Condition(Handle, _core.Condition):
    """A condition that processes wait for and notify, on any node."""

    _core_class = _core.Condition


class Words(Handle, _core.Words):
    """An array of 64-bit words that processes set, add to and wait on, on any node."""

    _core_class = _core.Words
