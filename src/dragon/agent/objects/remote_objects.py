"""Operations of this node's processes on objects of other nodes."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dragon import _core
from dragon.agent.objects.peers import Peers
from dragon.agent.wire.responses import Answer, then, value_of
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import Act, Left, MakeFor, Released
from dragon.runtime.protocol.objects import (
    Announce,
    CloseAtEnd,
    MakeObject,
    OpenOutbox,
    OpenProxy,
    Operate,
    Operation,
    WhyGone,
    WhyLost,
)
from dragon.runtime.protocol.processes import AwaitEnd
from dragon.runtime.protocol.request import Handler, decode_answer
from dragon.runtime.remote import node_of

__all__ = ["RemoteObjects"]

log = runtime_log("objects")

_RETRY_S = 1.0  # seconds until a node is asked again that could not be reached


class RemoteObjects:
    """Forwards operations of this node's processes to other nodes. `caller` is always the id of the requesting
    process."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._links = peers.links
        self._loop = asyncio.get_running_loop()
        # Called after an operation with the process id, the node, the operation, and when it began.
        self.on_operated: Callable[[int, int, str, float], None] | None = None
        self._contacts: dict[int, set[int]] = {}  # by process id: the nodes that it has contacted
        self._ends: dict[int, int] = {}  # by process id: a pidfd, which is readable once it has ended
        self._inboxes: dict[tuple[int, Name], Channel] = {}

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [
            Operate.served_for(lambda r, caller: self.operate(r, caller.pid)),
            OpenOutbox.served_for(lambda r, caller: self.outbox(caller.pid, r.name, r.droppable)),
            OpenProxy.served_for(lambda r, caller: self.proxy(caller.pid, r.name)),
            WhyGone.served_by(lambda r: self._peers.outboxes.why_gone(r.outbox)),
            WhyLost.served_by(lambda r: self._peers.flows.why_lost(r.name)),
            Announce.served_by(lambda r: asyncio.ensure_future(self._peers.announce(self._peers.index, r.names))),
            CloseAtEnd.served_for(lambda r, caller: self.close_at_end(caller.descriptors, r.puid)),
            MakeObject.served_by(self.make),
        ]

    def operate(self, request: Operate, caller: int) -> asyncio.Future[tuple[bool, Any]]:
        """Execute an operation on an object of another node. Returns a future of whether it was done, and its
        result."""
        for name in request.released:
            if node_of(name) == self._peers.index:
                self._peers.outboxes.dropped(caller, name)
                self._peers.proxies.dropped(caller, name)
            elif node_of(name) not in self._peers.lost:
                self._links.notify(node_of(name), Released(caller, name))
        operation = request.operation
        payload: bytes | memoryview = request.payload
        name, node = operation.name, node_of(operation.name)
        self._peers.outboxes.flush()
        self._note_contact(caller, node)
        if request.outgoing is not None:
            kind, loan = self._channel_of(caller, request.outgoing)._get_parts(0)
            operation = msgspec.structs.replace(operation, given=(kind, *operation.given))
            payload = memoryview(loan)
        act = Act(caller, operation)
        undo = self._undo(caller, operation)
        future = self._links.call(node, act, payload, undo)
        if (tell := self.on_operated) is not None:
            what, start = f"{operation.kind}.{operation.method}", time.time()
            future.add_done_callback(lambda _: tell(caller, node, what, start))
        inbox = request.inbox
        if inbox is None:
            answer = then(future, value_of)
        else:
            answer = then(future, lambda given: self._deliver(caller, inbox, decode_answer(act, given[0]), given[1]))
        if undo is not None:
            answer.add_done_callback(functools.partial(_undo_late, undo, future))
        return answer

    def _undo(self, caller: int, operation: Operation) -> Callable[[Answer], None] | None:
        """Return a function that undoes an operation that was done although it was cancelled, so that no lock stays
        acquired and no message is lost; None if not needed."""
        is_get = operation.method == "get" and operation.doing is None
        if operation.method != "acquire" and not is_get:
            return None

        def undo(answer: Answer) -> None:
            done, kind = decode_answer(Act(caller, operation), answer[0])
            if not done:
                return
            by, payload = caller, memoryview(b"")
            if is_get:
                reverse = msgspec.structs.replace(operation, method="_put_back", given=(kind,), timeout=0)
                payload = memoryview(answer[1])
            else:
                reverse = msgspec.structs.replace(operation, method="release", given=(), timeout=0)
            if caller not in self._contacts:
                if operation.kind == "Lock":
                    return  # its end, which that node was notified of, has released the lock: another may hold it now
                by = 0
            future = self._links.call(node_of(operation.name), Act(by, reverse), payload)
            future.add_done_callback(_note_failure)

        return undo

    def _deliver(self, caller: int, inbox: Name, answer: tuple[bool, int], data: Any) -> tuple[bool, Any]:
        """Deliver a message to a process: with the reply, or if it is large, through its channel for such messages."""
        done, kind = answer
        if not isinstance(data, _core.Loan):
            return done, (kind, data)
        self._channel_of(caller, inbox)._put_loan(kind, data)
        return done, None

    def _channel_of(self, caller: int, name: Name) -> Channel:
        """Return the channel through which a process and this agent exchange large messages."""
        channel = self._inboxes.get((caller, name))
        if channel is None:
            channel = self._inboxes[caller, name] = Channel._attached(name)
        return channel

    def outbox(self, caller: int, name: Name, droppable: bool) -> Name:
        """Return a channel of this node whose messages are forwarded to a channel of another node. Raises
        NodeLostError. See OpenFlow for `droppable`."""
        self._check_not_lost(node_of(name))
        self._note_contact(caller, node_of(name))
        return self._peers.outboxes.open(caller, name, droppable)

    def proxy(self, caller: int, name: Name) -> asyncio.Future[Name]:
        """Return a future of a channel of this node that can be read while a channel of another node can. Raises
        NodeLostError."""
        self._check_not_lost(node_of(name))
        self._note_contact(caller, node_of(name))
        return self._peers.proxies.open(caller, name)

    def _check_not_lost(self, node: int) -> None:
        if node in self._peers.lost:
            raise NodeLostError(f"{self._links.host(node)} is lost: {self._peers.lost[node]}")

    def make(self, wanted: MakeObject) -> asyncio.Future[Name]:
        """Create an object on another node; it stays alive until the caller has attached to it."""
        return self._peers.ask(wanted.node, MakeFor(wanted.kind, wanted.given, wanted.options, wanted.made_at))

    def _note_contact(self, caller: int, node: int) -> None:
        nodes = self._contacts.get(caller)
        if nodes is None:
            nodes = self._contacts[caller] = set()
            try:
                self._ends[caller] = _core.open_process(caller)
            except ProcessLookupError:
                self._loop.call_soon(self.left, caller)
            else:
                self._loop.add_reader(self._ends[caller], self.left, caller)
        nodes.add(node)

    def left(self, caller: int) -> None:
        """Notify the nodes that a process has contacted of its end, before its exit code can be reported."""
        nodes = self._contacts.pop(caller, None)
        if nodes is None:
            return  # it used nothing of other nodes, or they were notified already
        fd = self._ends.pop(caller, -1)
        if fd >= 0:
            self._loop.remove_reader(fd)
            os.close(fd)
        self._peers.outboxes.left(caller)
        self._peers.proxies.left(caller)
        for key in [key for key in self._inboxes if key[0] == caller]:
            del self._inboxes[key]
        for node in nodes:
            self._links.notify(node, Left(caller))

    def under_way(self, caller: int) -> list[asyncio.Future[None]]:
        """Return futures that are done once all messages of a process that has left have arrived, or are lost."""
        return self._peers.outboxes.under_way(caller)

    def close_at_end(self, descriptors: Sequence[int], puid: int) -> None:
        """Close descriptors when a process of another node has ended, or is lost."""
        mine, node = [os.dup(fd) for fd in descriptors], node_of_puid(puid)

        def ask() -> None:
            self._peers.ask(node, AwaitEnd(puid)).add_done_callback(ended)

        def ended(future: asyncio.Future[int]) -> None:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, NodeLostError) and node not in self._peers.lost:
                self._loop.call_later(_RETRY_S, ask)  # it cannot be reached now, but may still run
                return
            for fd in mine:
                os.close(fd)

        ask()


def _note_failure(undone: asyncio.Future[Answer]) -> None:
    error = None if undone.cancelled() else undone.exception()
    if isinstance(error, MemoryError):  # else the object is lost, or destroyed, and nobody waits for it
        log.warning("a message for a process that was interrupted is lost: %s", error)


def _undo_late(undo: Callable[[Answer], None], given: asyncio.Future[Answer], taken: asyncio.Future[object]) -> None:
    """Undo an operation that was done just before its requester cancelled it."""
    if taken.cancelled() and given.done() and not given.cancelled() and given.exception() is None:
        undo(given.result())
