"""What processes of this node ask of objects on other nodes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar

from dragon import _core
from dragon.agent.objects.peers import Peers
from dragon.agent.wire.responses import Answer, then, value_of
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.messages import Name, as_name
from dragon.runtime.handle import Channel
from dragon.runtime.remote import node_of

__all__ = ["RemoteObjects"]


class RemoteObjects:
    """The way of this node's processes to objects of others. `caller` is always the id of the process that asks."""

    OPERATIONS: ClassVar[set[str]] = {"operate", "outbox", "why_gone", "why_lost", "announce", "close_at_end", "make"}

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._links = peers.links
        self._loop = asyncio.get_running_loop()
        # Is told of an operation when it is over: who asked, the node, what, and when that was.
        self.on_operated: Callable[[int, int, str, float], None] | None = None
        self._contacts: dict[int, set[int]] = {}  # by process id: the nodes that know it
        self._ends: dict[int, int] = {}  # by process id: what can be read once it has ended
        self._inboxes: dict[tuple[int, Name], Channel] = {}

    def operate(self, caller: int, descriptors: list[int], **arguments: Any) -> asyncio.Future[Any]:
        """An operation on an object of another node: whether it was done, and its result."""
        for name in arguments.pop("released"):
            self._peers.outboxes.left(caller, as_name(name))
            if node_of(name) not in self._peers.lost:
                self._links.notify(node_of(name), "release", {"pid": caller, "name": name})
        node, payload = node_of(arguments["name"]), arguments.pop("payload")
        self._peers.outboxes.flush()
        if arguments["method"] == "_release":
            self._peers.outboxes.left(caller, as_name(arguments["name"]))
        self._note_contact(caller, node)
        inbox, outgoing = arguments.pop("inbox", None), arguments.pop("outgoing", None)
        if outgoing is not None:
            kind, loan = self._channel_of(caller, as_name(outgoing))._get_parts(0)
            arguments["given"], payload = [kind, *arguments["given"]], memoryview(loan)
        future = self._links.call(node, "object", {"pid": caller, **arguments}, payload)
        if (tell := self.on_operated) is not None:
            name, start = f"{arguments['kind']}.{arguments['method']}", time.time()
            future.add_done_callback(lambda _: tell(caller, node, name, start))
        if inbox is None:
            return then(future, value_of)
        return then(future, lambda answer: self._deliver(caller, as_name(inbox), answer))

    def _deliver(self, caller: int, inbox: Name, answer: Answer) -> Any:
        """A message for a process: with the reply, or if it is large, through its channel for that."""
        (done, kind), data = answer
        if not isinstance(data, _core.Loan):
            return done, (kind, data)
        self._channel_of(caller, inbox)._put_loan(kind, data)
        return done, None

    def _channel_of(self, caller: int, name: Name) -> Channel:
        """The channel through which a process and this agent exchange large messages."""
        channel = self._inboxes.get((caller, name))
        if channel is None:
            channel = self._inboxes[caller, name] = Channel._attached(name)
        return channel

    def outbox(self, caller: int, descriptors: list[int], name: Any) -> Name:
        """A channel of this node from which messages go on to one of another node."""
        if node_of(name) in self._peers.lost:
            raise NodeLostError(f"{self._links.host(node_of(name))} is gone: {self._peers.lost[node_of(name)]}")
        self._note_contact(caller, node_of(name))
        return self._peers.outboxes.open(caller, as_name(name))

    def make(
        self, caller: int, descriptors: list[int], node: int, kind: str, given: list[Any], options: dict[str, Any]
    ) -> asyncio.Future[Name]:
        """Make an object on another node; it lives until the caller is attached."""
        request = {"node": self._peers.index, "kind": kind, "given": given, "options": options}
        return then(self._links.call(node, "make", request), value_of)

    def why_gone(self, caller: int, descriptors: list[int], outbox: Any) -> asyncio.Future[tuple[str, str]]:
        """Class and text of the error by which messages in an outbox were lost; empty if none were."""
        return self._peers.outboxes.why_gone(as_name(outbox))

    def why_lost(self, caller: int, descriptors: list[int], name: Any) -> tuple[str, str]:
        """Class and text of the error by which messages to a channel of this node were lost; empty if none were."""
        return self._peers.flows.why_lost(as_name(name))

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
        """A process has ended: the nodes that know it are told, before anybody can tell them of its exit code."""
        nodes = self._contacts.pop(caller, None)
        if nodes is None:
            return  # it used nothing of other nodes, or they were told
        fd = self._ends.pop(caller, -1)
        if fd >= 0:
            self._loop.remove_reader(fd)
            os.close(fd)
        self._peers.outboxes.left(caller)
        for key in [key for key in self._inboxes if key[0] == caller]:
            del self._inboxes[key]
        for node in nodes:
            self._links.notify(node, "left", {"pid": caller})

    def announce(self, caller: int, descriptors: list[int], names: list[Any]) -> asyncio.Future[None]:
        """Objects of other nodes live until a process that the caller starts has attached to them."""
        return asyncio.ensure_future(self._peers.announce(self._peers.index, [as_name(name) for name in names]))

    def close_at_end(self, caller: int, descriptors: list[int], puid: int) -> None:
        """Close a descriptor when a process of another node has ended, or is lost."""
        mine = [os.dup(fd) for fd in descriptors]

        def ended(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                future.exception()
            for fd in mine:
                os.close(fd)

        self._peers.ask(node_of_puid(puid), "registry.end_of", {"identifier": puid}).add_done_callback(ended)
