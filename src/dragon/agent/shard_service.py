"""Operations of other nodes' processes on this node's shards.

A thread does them, one after another, so that a shard whose writer is stopped keeps no agent from its work. Requests
come through a channel and answers go through one of the asking thread's, both by way of the outboxes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from dragon import _core
from dragon.infrastructure.ddict_errors import DDictError
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log
from dragon.runtime.records import Record
from dragon.runtime.remote import node_of
from dragon.runtime.shard import MISSING, Shard, Stored

if TYPE_CHECKING:
    from dragon.agent.outboxes import Outboxes

__all__ = ["ShardService"]

log = runtime_log("shards")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
# Called once, with a value and buffers.
Answer = Callable[[Any, list[Any]], None]
Operation = Callable[[Shard, list[Any], list[Any], Answer], None]


class ShardService:
    """The thread and its channel. `shard` finds a shard of this node."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        outboxes: Outboxes,
        shard: Callable[[str, int], Shard],
    ) -> None:
        self._loop = loop
        self._outboxes = outboxes
        self._shard = shard
        self._requests = Channel()
        self.name: Name = self._requests._name()
        self._answers: dict[Name, Channel] = {}
        self._inboxes: dict[tuple[int, int], set[Name]] = {}
        threading.Thread(target=self._serve, name="shards", daemon=True).start()

    def client_left(self, node: int, pid: int) -> None:
        """A process of another node has ended: nothing is sent to it any more."""
        for name in self._inboxes.pop((node, pid), ()):
            self._answers.pop(name, None)
            self._outboxes.left(os.getpid(), name)

    def _serve(self) -> None:
        while True:
            request, buffers = self._requests._get_frames(None)
            try:
                number, inbox, pid, dictionary, manager, operation, arguments = _decode(request)
            except (msgspec.MsgspecError, ValueError):
                log.exception("a request to a shard makes no sense")
                continue
            name: Name = (inbox[0], inbox[1], inbox[2])

            def answer(value: Any, found: list[Any], number: int = number, pid: int = pid, name: Name = name) -> None:
                self._answer(pid, name, _encode((number, value, None)), found)

            try:
                shard = self._shard(dictionary, manager)
                _OPERATIONS[operation](shard, arguments, buffers, answer)
            except Exception as error:
                text = error.text if isinstance(error, DDictError) else str(error)
                self._answer(pid, name, _encode((number, None, (type(error).__name__, text))), [])
            del buffers

    def _answer(self, pid: int, name: Name, head: bytes, buffers: list[Any]) -> None:
        for _ in range(2):
            channel = self._answers.get(name) or self._way_to(pid, name)
            try:
                channel._put_frames(head, buffers, None)
                return
            except _core.DestroyedError:
                self._answers.pop(name, None)  # its process is gone, or the connection broke and is there again
        log.debug("nobody waits for an answer any more")

    def _way_to(self, pid: int, name: Name) -> Channel:
        async def open_it() -> Name:
            self._inboxes.setdefault((node_of(name), pid), set()).add(name)
            return self._outboxes.open(os.getpid(), name)

        outbox = asyncio.run_coroutine_threadsafe(open_it(), self._loop).result()
        channel = self._answers[name] = Channel._attached(outbox)
        return channel


def _read(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    key, checkpoint, exact, newer = arguments
    seen = shard.changed_since() if newer else 0

    def take(stored: Stored) -> None:
        # Sent from the shard's own memory, which is valid here.
        answer((_described(stored), seen), _blobs(stored))

    if shard.read(key, checkpoint, take, exact) is MISSING:
        answer((None, seen), [])


def _described(stored: Stored) -> Any:
    return stored.flags, stored.checkpoint, stored.head


def _blobs(stored: Stored) -> list[Any]:
    return [blob[0] if len(blob) == 1 else b"".join(blob) for blob in stored.blobs]


def _put(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    key, head, checkpoint, flags = arguments
    shard.put(key, Record(head, buffers), checkpoint, flags)
    answer(None, [])


def _put_many(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    records, checkpoint, flags = arguments
    start, several = 0, []
    for key, head, count in records:
        several.append((key, Record(head, buffers[start : start + count])))
        start += count
    shard.put_many(several, checkpoint, flags)
    answer(None, [])


def _pop(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    key, checkpoint, wanted = arguments
    if not wanted:
        answer(None if shard.pop(key, checkpoint) is MISSING else True, [])
        return
    found = shard.pop(key, checkpoint, lambda stored: (_described(stored), [bytes(b) for b in _blobs(stored)]))
    if found is MISSING:
        answer(None, [])
    else:
        answer(*found)


def _state(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    answer((shard.oldest, shard.newest, shard.is_frozen), [])


def _plain(method: str) -> Operation:
    def do(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
        answer(getattr(shard, method)(*arguments), [])

    return do


_OPERATIONS: dict[str, Operation] = {
    "read": _read,
    "put": _put,
    "put_many": _put_many,
    "pop": _pop,
    "state": _state,
    **{
        name: _plain(name)
        for name in ("contains", "keys", "count", "add", "clear", "freeze", "usage", "note_writer", "writers")
    },
}
