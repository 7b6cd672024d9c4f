"""Converts objects to bytes as the runtime sends them: with lambdas and functions of the main program, large buffers
outside of the pickle, and handles that keep their objects alive."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from dragon.runtime.node_memory import NodeMemory, Parts, Place, SnapshotGoneError
from dragon.runtime.picklers import UNSENDABLE, Mention
from dragon.runtime.picklers import explained as _explained
from dragon.runtime.serialization import dumps, import_hint, loads, mention, mentions

__all__ = [
    "UNSENDABLE",
    "NodeSnapshot",
    "OnNode",
    "Snapshot",
    "SnapshotGoneError",
    "dumps",
    "explained",
    "import_hint",
    "loads",
    "snapshot_on_node",
]

_LARGE = 1 << 20  # bytes from which a snapshot is stored only once on a node


class _Pickled(NamedTuple):
    """A pickled object, with its large buffers as they are in memory, and its handles."""

    data: bytes
    buffers: list[memoryview]
    handles: list[Mention]

    @property
    def parts(self) -> list[memoryview]:
        return [memoryview(self.data), *self.buffers]

    @property
    def size(self) -> int:
        return sum(part.nbytes for part in self.parts)


def _pickled(value: object) -> _Pickled:
    buffers: list[pickle.PickleBuffer] = []
    with mentions() as handles:
        data = dumps(value, buffers.append)
    return _Pickled(data, [buffer.raw() for buffer in buffers], handles)


class Snapshot:
    """The present state of an object. Each process to which the snapshot is sent gets the object.

    Raises the exceptions of pickling (UNSENDABLE). Objects of a run that it refers to exist as long as the snapshot.
    """

    def __init__(self, value: object) -> None:
        self._take(_pickled(value))

    def _take(self, pickled: _Pickled) -> None:
        self._data, self._handles = pickled.data, pickled.handles
        self._buffers: list[bytearray | memoryview] = [bytearray(buffer) for buffer in pickled.buffers]

    def same_as(self, other: object) -> bool:
        """Return whether `other` is a snapshot of an object in the same state."""
        return isinstance(other, Snapshot) and self._data == other._data and self._buffers == other._buffers

    def is_of(self, value: object) -> bool:
        """Return whether an object is in the state of the snapshot. Raises the exceptions of pickling."""
        pickled = _pickled(value)
        return self._data == pickled.data and self._buffers == pickled.buffers

    def __reduce__(self) -> tuple[object, ...]:
        for name, send in self._handles:
            mention(name, send)
        return loads, (self._data, [pickle.PickleBuffer(buffer) for buffer in self._buffers])


class NodeSnapshot:
    """A snapshot that is stored once in the memory of this node. A process of the node to which it is sent gets an
    OnNode."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        """Take the parts() of a snapshot, such as one of another node. Raises OSError if the system has no memory for
        them."""
        self._memory = NodeMemory(parts)

    def parts(self) -> list[memoryview]:
        """Return the bytes of which it consists. They are there as long as the views are."""
        return Parts(self._memory.place).views()

    def same_as(self, other: object) -> bool:
        """Return whether `other` is a NodeSnapshot of an object in the same state."""
        if self is other:
            return True
        return isinstance(other, NodeSnapshot) and self._memory.has(Parts(other._memory.place).views())

    def is_of(self, value: object) -> bool:
        """Return whether an object is in the state of the snapshot. Raises the exceptions of pickling."""
        pickled = _pickled(value)
        return not pickled.handles and self._memory.has(pickled.parts)

    def for_other_nodes(self) -> Snapshot:
        """Return a Snapshot for processes of other nodes, each of which gets a copy."""
        data, *buffers = self.parts()
        snapshot = Snapshot.__new__(Snapshot)
        snapshot._data, snapshot._handles, snapshot._buffers = bytes(data), [], [*buffers]
        return snapshot

    def __reduce__(self) -> tuple[object, ...]:
        return OnNode, (self._memory.place,)


class OnNode:
    """A reference to an object in the memory of this node."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._parts: Parts | None = None

    def load(self) -> Any:
        """Return a new object from the snapshot.

        Its arrays and tensors use the shared memory until they are written to: then that page is copied. Raises
        SnapshotGoneError if the snapshot was released before the first load.
        """
        if self._parts is None:
            self._parts = Parts(self._place)
        data, *buffers = self._parts.views()
        return loads(data, buffers)

    def __reduce__(self) -> tuple[object, ...]:
        return OnNode, (self._place,)


def snapshot_on_node(value: object) -> Snapshot | NodeSnapshot:
    """Return a snapshot for processes of this node, which is stored only once if it is large (1 MiB) and has no
    handles.

    Raises the exceptions of pickling. Warns if the system has no memory to store it once; then each process gets a
    copy.
    """
    pickled = _pickled(value)
    if not pickled.handles and pickled.size >= _LARGE:
        try:
            return NodeSnapshot(pickled.parts)
        except OSError as error:
            warnings.warn(
                f"{pickled.size / 2**20:.0f} MiB cannot be shared by the processes of this node ({error}), each gets a "
                "copy: have fewer processes, or raise the limit (ulimit -f, the memory of the container)",
                RuntimeWarning,
                stacklevel=2,
            )
    snapshot = Snapshot.__new__(Snapshot)
    snapshot._take(pickled)
    return snapshot


def explained(error: Exception, parts: dict[str, Any]) -> Exception:
    """Return the error of pickling with the part that cannot be sent. `parts` are the parts by the names that the user
    knows."""
    reason = error.__context__ if isinstance(error.__context__, Exception) else error
    return _explained(parts, reason, dumps, parts)
