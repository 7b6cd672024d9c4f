"""Copies of the dataset on other nodes: one in the memory of each node, whatever number of workers it has."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from queue import Empty

from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.policy import Policy
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.serialization import NodeSnapshot, OnNode, Snapshot

__all__ = ["NodeCopies"]

_LOOK_AFTER_HOLDER_S = 0.5  # seconds


class NodeCopies:
    """The copies of a loader's snapshots on other nodes. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[str, _Holder] = {}

    def content(self, node: str, number: int, snapshot: NodeSnapshot, needed: set[int]) -> OnNode | Snapshot:
        """Return what a worker on a node is sent of a snapshot, after the node has got its copy if it has none.

        If the node cannot hold one, as its holder ends twice or has no memory for it, the worker is sent a copy of its
        own.

        Args:
            node: its name.
            number: the snapshot's.
            snapshot: the one on this node.
            needed: the numbers of the snapshots that are still needed; copies of others are freed.
        """
        with self._lock:
            try:
                try:
                    copy = self._holder(node).copy(number, snapshot, needed)
                except ChildProcessError:  # it was killed, which is known only now
                    copy = self._holder(node).copy(number, snapshot, needed)
            except (NodeLostError, OSError):  # to start a worker there says what is wrong
                copy = None
        return copy or snapshot.for_other_nodes()

    def _holder(self, node: str) -> _Holder:
        holder = self._holders.get(node)
        if holder is None or not holder.is_alive:
            holder = self._holders[node] = _Holder(node)
        return holder

    def close(self) -> None:
        """Free all copies. Processes that have loaded one keep its memory."""
        with self._lock:
            for holder in self._holders.values():
                holder.end()
            self._holders.clear()


class _Holder:
    """The process on a node whose memory the copies are. Raises OSError and NodeLostError if it cannot be started."""

    def __init__(self, node: str) -> None:
        self._orders, self._replies = Queue(0), Queue(0)
        self._copies: dict[int, OnNode | None] = {}
        place = Policy(placement=Policy.Placement.HOST_NAME, host_name=node)
        self._process = Process(_hold, (self._orders, self._replies), policy=place, _kind="dataset")
        self._process.start()

    @property
    def is_alive(self) -> bool:
        """Whether its copies are there. Raises NodeLostError."""
        return bool(self._process.is_alive)

    def copy(self, number: int, snapshot: NodeSnapshot, needed: set[int]) -> OnNode | None:
        """Return the copy of a snapshot, None if the node has no memory for it. Raises NodeLostError, and
        ChildProcessError if the process ends meanwhile."""
        if number not in self._copies:
            parts = [pickle.PickleBuffer(part) for part in snapshot.parts()]
            self._orders.put((number, needed, parts))
            self._copies = {kept: copy for kept, copy in self._copies.items() if kept in needed}
            self._copies[number] = self._reply(number)
        return self._copies[number]

    def _reply(self, number: int) -> OnNode | None:
        while True:
            try:
                of, copy = self._replies.get(timeout=_LOOK_AFTER_HOLDER_S)
                if of == number:  # else Ctrl-C has interrupted who waited for it
                    return copy  # type: ignore[no-any-return]
            except Empty:
                if not self.is_alive:
                    raise ChildProcessError("the holder of a node's copies has ended") from None

    def end(self) -> None:
        """Have it end."""
        self._orders.put(None)


def _hold(orders: Queue, replies: Queue) -> None:
    """Keep copies, until None comes. The run ends this process with its trainer."""
    copies: dict[int, NodeSnapshot] = {}
    order: tuple[int, set[int], Sequence[bytes | bytearray | memoryview]] | None
    while (order := orders.get()) is not None:
        number, needed, parts = order
        copies = {kept: copy for kept, copy in copies.items() if kept in needed}
        try:
            copies[number] = NodeSnapshot([memoryview(part) for part in parts])
        except OSError:
            replies.put((number, None))
        else:
            replies.put((number, copies[number]))
        del order, parts
