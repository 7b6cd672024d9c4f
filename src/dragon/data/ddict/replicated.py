"""A shard with replicas, as a client uses it.

Reads use the replica of the own node, writes are sent to the primary. When nodes are lost the client finds the new
primary and retries.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Self

from dragon.data.ddict.shards import LocalShard, Note, Pending, RemoteShard
from dragon.infrastructure.ddict_errors import DDictError, DDictMovedError
from dragon.infrastructure.errors import DestroyedError, NodeLostError
from dragon.infrastructure.generic import V
from dragon.runtime.agent_client import ask
from dragon.runtime.handle import Words
from dragon.runtime.nodes import run_nodes
from dragon.runtime.protocol.shards import OwnCopy, Settings, ShardHolders
from dragon.runtime.run import this_run
from dragon.shards.operations import WRITES, Identity


class _Session(threading.local):
    """The writes of one thread."""

    _pid = 0

    def begin(self, write: _Persistent) -> Identity:
        """Return the identity of the next write. It says up to which write no reply is needed any more."""
        if self._pid != os.getpid():
            self._pid, self._name, self._last = os.getpid(), os.urandom(8), 0
            self._open: weakref.WeakValueDictionary[int, _Persistent] = weakref.WeakValueDictionary()  # in order
        self._last += 1
        first = next(iter(self._open.keys()), self._last)
        self._open[self._last] = write
        return self._name, self._last, first - 1


_session = _Session()

_FAILOVER_TIMEOUT_S = 30.0  # seconds within which a new primary must be found
_FAILOVER_POLL_S = 0.05  # seconds between two attempts
_READS = frozenset({"value", "values", "contains", "part", "size"})  # what the replica of this node can answer


class ReplicatedShard(RemoteShard):
    """A shard with replicas. It has the methods of the other shards."""

    def __init__(self, number: str, settings: Settings) -> None:
        super().__init__(number, settings)
        self._holders = settings.holders
        here = this_run().node
        own = ask(OwnCopy(here, number, settings.manager)) if here in self._holders else None
        self.local = None if own is None else LocalShard.attached(number, own)

    def within(self, timeout: float | None, note: Note | None = None) -> Self:
        """Do the same as in the base class, also for this node's replica."""
        limited = super().within(timeout, note)
        limited.local = self.local and self.local.within(timeout, note)
        return limited

    @property
    def where(self) -> str:
        """The name of the shard in messages."""
        return f"manager {self.settings.manager} on nodes {', '.join(map(str, self._holders))}"

    def close(self) -> None:
        """Close the shard's memory in this process."""
        super().close()
        if self.local is not None:
            self.local.close()

    def value(self, key: bytes, checkpoint: int) -> object:
        """Return the value of a key, or MISSING."""
        return self._read("value", key, checkpoint)

    def contains(self, key: bytes, checkpoint: int) -> bool:
        """Return whether the key exists."""
        return bool(self._read("contains", key, checkpoint))

    def begin(self, method: str, *arguments: object) -> Pending:
        """Send a request to call a method of the shard, or call it of this node's replica."""
        if method in _READS:
            pending: Pending = self._read("begin", method, *arguments)
            return pending
        return super().begin(method, *arguments)

    def _read(self, method: str, *arguments: object) -> Any:
        if self.local is not None and not self.settings.linearizable:
            try:
                return getattr(self.local, method)(*arguments)
            except DestroyedError:
                self.local = None  # this node's copy is no longer a valid replica; the primary is asked below
        return getattr(super(), method)(*arguments)

    def holders(self) -> list[int]:
        """Return the nodes that hold the shard, the primary's first."""
        self.look_for_holders(time.monotonic() + _FAILOVER_TIMEOUT_S)
        return self._holders

    def changing_words(self) -> Words | None:
        """Return words of which the first changes with every change; None if this node has no replica."""
        return self.local.changing_words() if self.local is not None else None

    def _begin(self, method: str, arguments: list[Any], buffers: list[Any]) -> Pending:
        newest = method not in WRITES and self.settings.linearizable

        def begin(identity: Identity | None) -> Pending:
            return self._send(self._holders[0], method, arguments, buffers, identity, newest)

        return _Persistent(self, begin, method in WRITES)

    def look_for_holders(self, deadline: float) -> None:
        """Find the nodes that hold the shard now. Raises DDictError if no node holds it, or after `deadline`."""
        while True:
            living = {node.index for node in run_nodes()}
            known = [holder for holder in self._holders if holder in living]
            for node in [*known, *sorted(living - set(known))]:
                try:
                    found = ask(ShardHolders(node, self.number, self.settings.manager))
                except (LookupError, NodeLostError):
                    continue
                if found and found[0] in living:
                    self._holders = found
                    return
                known += [holder for holder in found if holder in living]  # one of them is about to become the primary
            if not known:
                raise DDictError(
                    f"all nodes that held manager {self.settings.manager} are lost: "
                    f"{', '.join(map(str, self._holders))}; its keys are lost",
                    "LOST",
                )
            if time.monotonic() > deadline:
                raise DDictError(
                    f"no node took over manager {self.settings.manager} within {_FAILOVER_TIMEOUT_S:g} s", "TIMEOUT"
                )
            time.sleep(_FAILOVER_POLL_S)


class _Persistent(Pending[V]):
    """A pending operation, retried at a new primary, which keeps the reply meanwhile: a write is done once."""

    def __init__(self, shard: ReplicatedShard, begin: Callable[[Identity | None], Pending[V]], writes: bool) -> None:
        self._shard, self._begin = shard, begin
        self._identity = _session.begin(self) if writes else None
        self._pending = self._try()

    def _try(self) -> Pending[V] | None:
        try:
            return self._begin(self._identity)
        except NodeLostError:
            return None

    def result(self, timeout: float | None = None) -> V:
        deadline = time.monotonic() + (_FAILOVER_TIMEOUT_S if timeout is None else timeout)
        while True:
            if self._pending is not None:
                try:
                    return self._pending.result(timeout)
                except (DDictMovedError, DestroyedError, NodeLostError) as error:
                    if isinstance(error, DestroyedError) and not self._was_moved():
                        raise
            self._shard.look_for_holders(deadline)
            time.sleep(_FAILOVER_POLL_S / 10)
            self._pending = self._try()
            if time.monotonic() > deadline:
                raise DDictError(f"{self._shard.where} did not answer in time", "TIMEOUT")

    def _was_moved(self) -> bool:
        """Return whether the shard is held by other nodes, and was not destroyed."""
        try:
            self._shard.look_for_holders(time.monotonic())
        except DDictError:
            return False
        return True
