"""How a process asks for what shards of another node are to do: requests through its agent's outbox, answers through a
channel of the thread's own."""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any

import msgspec

from dragon import _core
from dragon.infrastructure.ddict_errors import DDictTimeoutError
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Name
from dragon.runtime.agent_client import ask, error_named
from dragon.runtime.handle import Channel
from dragon.runtime.nodes import node_at
from dragon.runtime.run import this_run

__all__ = ["Conduit", "conduit_to"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_LOOK_EVERY = 0.5  # seconds between looks whether the other node is still there


class Conduit:
    """This thread's way to the shards of another node. Answers come in any order."""

    def __init__(self, node: int) -> None:
        service = ask("shards.service", node=node)
        self.node = node
        self.requests = Channel._attached((service[0], service[1], service[2]))
        self.answers = Channel()
        self.name: Name = self.answers._name()
        self.pid = os.getpid()
        self._last = 0
        self._arrived: dict[int, tuple[Any, Any, list[Any]]] = {}
        self._given_up: set[int] = set()

    def send(self, number: str, manager: int, operation: str, arguments: tuple[Any, ...], buffers: list[Any]) -> int:
        self._last += 1
        head = _encode((self._last, self.name, self.pid, number, manager, operation, arguments))
        self._put(head, buffers)
        return self._last

    def _put(self, head: bytes, buffers: list[Any]) -> None:
        if self.node == this_run().node:
            self.requests._put_frames(head, buffers, None)
            return
        outbox = self.requests._outbox()  # type: ignore[attr-defined]
        try:
            outbox._put_frames(head, buffers, None)
        except _core.DestroyedError:
            self.requests._lose_outbox(outbox)  # type: ignore[attr-defined]  # raises what is known of it
            self.requests._outbox()._put_frames(head, buffers, None)  # type: ignore[attr-defined]

    def receive(self, number: int, deadline: float | None) -> tuple[Any, list[Any]]:
        while number not in self._arrived:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                self._given_up.add(number)
                raise DDictTimeoutError(f"node {self.node} did not answer in time")
            try:
                wait = _LOOK_EVERY if remaining is None else min(remaining, _LOOK_EVERY)
                head, buffers = self.answers._get_frames(wait)
            except queue.Empty:
                self._look()
                continue
            which, value, error = _decode(head)
            if which in self._given_up:
                self._given_up.discard(which)
            else:
                self._arrived[which] = value, error, buffers
        value, error, buffers = self._arrived.pop(number)
        if error is not None:
            raise error_named(*error)
        return value, buffers

    def _look(self) -> None:
        _check_node(self.node)


def _check_node(node: int) -> None:
    """Raises NodeLostError where the run has that node no more."""
    try:
        node_at(node)
    except LookupError:
        raise NodeLostError(f"node {node}, which holds this part of the dictionary, is gone") from None


_local = threading.local()


def conduit_to(node: int) -> Conduit:
    run = str(this_run().folder), os.getpid()
    if getattr(_local, "run", None) != run:
        _local.run, _local.conduits = run, {}
    conduits: dict[int, Conduit] = _local.conduits
    if node not in conduits:
        _check_node(node)
        conduits[node] = Conduit(node)
    return conduits[node]
