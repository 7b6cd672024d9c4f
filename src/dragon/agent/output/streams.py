"""Standard streams that are not simply inherited: connected to channels, labelled, or with their end kept.

A process's output is read as it arrives; lines stay whole, and in order within a process.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dragon import _core
from dragon.agent.output.sinks import (
    DistantChannel,
    FrontEndWindow,
    Sink,
    Tails,
    ToChannel,
    ToDescriptor,
    ToFrontEnd,
    ToNode,
)
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.start_request import Name
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import WriteFor
from dragon.runtime.protocol.request import Caller
from dragon.runtime.remote import node_of
from dragon.runtime.rpc import RemoteError, serves_for

if TYPE_CHECKING:  # the agent of a run of one node has no use for them, and starts sooner without
    from dragon.agent.wire.links import Links

log = runtime_log("agent")

_CHUNK = 64 * 1024
_LONGEST_LINE = 64 * 1024
_NAMES = {0: "stdin", 1: "stdout", 2: "stderr"}


class Streams:
    """All streams that pass through the agent."""

    def __init__(self, label: str, node: int, host_name: str) -> None:
        self.label = label
        self.loop = asyncio.get_running_loop()
        self._node = node
        self._host_name = host_name
        self.readers: dict[tuple[int, int], Reader] = {}  # by puid and number
        self._descriptors: set[ToDescriptor] = set()
        self._inputs: set[asyncio.Task[None]] = set()
        self.errors = Tails()  # stderr of members of groups
        self.outputs = Tails()  # both streams of all processes
        self._front_end: dict[int, ToFrontEnd] = {}  # by the number of the stream
        self._links: Links  # in a run of several nodes
        self._to_front_end: dict[tuple[int, int], int] = {}  # the inodes of the pipes from where output goes there
        self._kept: dict[tuple[int, Name], _Kept] = {}  # by node and name
        self._last_kept = 0

    def reach_out(self, window: FrontEndWindow, links: Links) -> None:
        """Set the connections to the front end and to other nodes, in a run of several nodes."""
        self._front_end, self._links = window.sinks, links

    def add(self, puid: int, name: str, number: int, channel: Name | None, group: int, descriptors: list[int]) -> None:
        """Add a stream of a process that is being started."""
        kept = channel if channel is not None and channel[1] < 0 else None
        channel = None if kept else channel
        elsewhere = channel is not None and node_of(channel) != self._node
        if not descriptors:
            log.error("too many open files: %s of %s is lost; raise the hard limit (ulimit -Hn)", _NAMES[number], name)
            if channel is not None and not elsewhere:
                ToChannel(channel).close()
            return
        if number == 0:
            if channel is not None:
                source = DistantChannel(self._links, channel) if elsewhere else _OwnChannel(channel)
                self._pass_input(descriptors[0], source)
            return
        label, tails = b"", []
        if channel is not None:
            sink: Sink = ToNode(self._links, channel) if elsewhere else ToChannel(channel)
        else:
            sink = self._target(puid, number, descriptors, kept)
            tails = [self.outputs, self.errors] if group and number == 2 else [self.outputs]
            if self.label:
                where = f"{self._host_name} {puid} {name} {_NAMES[number]}" if self.label == "verbose" else name
                label = f"[{where}] ".encode()
        self.readers[puid, number] = Reader(self, (puid, number), descriptors[0], sink, label, tails)

    def _pass_input(self, fd: int, channel: _OwnChannel | DistantChannel) -> None:
        task = self.loop.create_task(_pass_input(fd, channel))
        self._inputs.add(task)
        task.add_done_callback(self._inputs.discard)

    def _target(self, puid: int, number: int, descriptors: list[int], kept: Name | None) -> Sink:
        if len(descriptors) > 1:
            return self._to_descriptor(descriptors[1])
        if kept is not None:
            return ToNode(self._links, kept)
        self._to_front_end[puid, number] = os.fstat(descriptors[0]).st_ino
        return self._front_end[number]

    def _to_descriptor(self, fd: int) -> ToDescriptor:
        target = ToDescriptor(fd, self._descriptors.discard)
        self._descriptors.add(target)
        return target

    def keep(self, descriptors: Sequence[int], node: int, processes: int) -> list[Name | None]:
        """Keep a creator's stdin, stdout and stderr for `processes` on another node, which inherit them."""
        names: list[Name | None] = [None]
        for fd in descriptors[1:3]:
            if os.fstat(fd).st_ino in self._to_front_end.values():
                names.append(None)
                continue
            self._last_kept += 1
            name = self._last_kept, -1, self._node << 8
            self._kept[node, name] = _Kept(self._to_descriptor(os.dup(fd)), processes)
            names.append(name)
        return names

    @serves_for(WriteFor)
    def _write(self, caller: Caller, name: Name, data: bytes | None) -> asyncio.Future[None] | None:
        key = caller.node, name
        kept = self._kept.get(key)
        if kept is None and data == b"":
            with suppress(_core.DestroyedError):  # its reader is gone
                kept = self._kept[key] = _Kept(ToChannel(name), 0)
        if kept is None:
            return None
        if data == b"":
            kept.processes += 1
        elif data is None:
            kept.processes -= 1
            if not kept.processes:
                self._kept.pop(key).sink.close()
        else:
            kept.sink.write(data)
            if kept.sink.is_full:
                written: asyncio.Future[None] = self.loop.create_future()
                kept.sink.when_there_is_room(partial(_complete, written))
                return written
        return None

    def node_lost(self, node: int) -> None:
        for key in [key for key in self._kept if key[0] == node]:
            self._kept.pop(key).sink.close()

    def done(self, key: tuple[int, int]) -> None:
        self.readers.pop(key, None)
        self._to_front_end.pop(key, None)

    def drain(self) -> None:
        """Forward the remaining output of all processes, at the end of the run."""
        for reader in list(self.readers.values()):
            reader.read_rest()
        for descriptor in list(self._descriptors):
            descriptor.finish()


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass
class _Kept:
    """Where a number of processes on another node write to."""

    sink: ToDescriptor | ToChannel
    processes: int


class Reader:
    """Reads one pipe until its end. Keeps its last output in all of `tails`; puts the label before every line."""

    def __init__(
        self, streams: Streams, key: tuple[int, int], fd: int, sink: Sink, label: bytes, tails: list[Tails]
    ) -> None:
        self.streams, self.loop, self.key = streams, streams.loop, key
        self.fd, self.sink, self.label, self.tails = fd, sink, label, tails
        self.by_line = bool(label) or sink.by_line
        self.patience = None if label else sink.patience
        self.rest = b""
        self.draining = False
        self.timer: asyncio.TimerHandle | None = None
        os.set_blocking(fd, False)
        self.loop.add_reader(fd, self.on_readable)

    def on_readable(self) -> bool:
        """Read what has arrived. Returns False at the end, or when there is nothing."""
        if self.sink.is_full and not self.draining:
            self.loop.remove_reader(self.fd)
            self.sink.when_there_is_room(self.resume)
            return False
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        if not self.by_line:
            self.write(data)
            return True
        whole, newline, rest = (self.rest + data).rpartition(b"\n")
        self.rest = rest
        if newline:
            self.write(whole + newline)
        if len(self.rest) > _LONGEST_LINE:
            self.pass_rest()
        elif self.rest and self.patience is not None and self.timer is None:
            self.timer = self.loop.call_later(self.patience, self.lose_patience, self.rest)
        return True

    def write(self, data: bytes) -> None:
        for tails in self.tails:
            tails.add(self.key[0], data)
        if self.label:
            data = b"".join(self.label + line for line in data.splitlines(keepends=True))
        self.sink.write(data)

    def lose_patience(self, beginning: bytes) -> None:
        """Forward an incomplete line if nothing was added to it meanwhile, and nothing could have been."""
        self.timer = None
        if self.fd < 0 or self.on_readable() or not self.rest:
            return
        if self.rest == beginning and not self.sink.is_full:
            self.pass_rest()
        elif self.timer is None and self.patience is not None:
            self.timer = self.loop.call_later(self.patience, self.lose_patience, self.rest)

    def pass_rest(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        rest, self.rest = self.rest, b""
        if rest:
            self.write(rest)

    def resume(self) -> None:
        if self.fd >= 0:
            self.loop.add_reader(self.fd, self.on_readable)

    def catch_up(self) -> None:
        """Read what an ended process has left: no more than a pipe can hold, as another process may go on writing."""
        self.draining = True
        for _ in range(2):
            if not self.on_readable():
                break
        self.draining = False
        if self.rest:
            self.pass_rest()

    def read_rest(self) -> None:
        self.draining = True
        while self.on_readable():
            pass
        self.close()

    def close(self) -> None:
        if self.fd < 0:
            return
        if self.rest:
            self.pass_rest()
        self.loop.remove_reader(self.fd)
        os.close(self.fd)
        self.fd = -1
        self.sink.close()
        self.streams.done(self.key)


class _OwnChannel:
    """A channel of this node, with the interface of DistantChannel."""

    def __init__(self, name: Name) -> None:
        self._channel = Channel._attached(name)

    async def get(self) -> Any:
        """Return the next object. Raises EOFError, and DestroyedError, if there will be none."""
        loop, bell = asyncio.get_running_loop(), self._channel._fileno()
        while True:
            try:
                return self._channel.get(block=False)
            except (queue.Empty, _core.LockedError):
                await ready(loop.add_reader, loop.remove_reader, bell)

    def close(self) -> None:
        self._channel._close()


async def ready(add: Callable[..., None], remove: Callable[..., object], fd: int | socket.socket) -> None:
    """Wait until a descriptor is ready."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(fd, _complete, done)
    try:
        await done
    finally:
        remove(fd)


async def ended(pid: int) -> None:
    """Wait until a process has ended, which is still to be reaped if it is a child."""
    try:
        process = _core.open_process(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    try:
        await ready(loop.add_reader, loop.remove_reader, process)
    finally:
        os.close(process)


async def write_all(fd: int, data: bytes) -> None:
    """Write to a descriptor that does not block."""
    loop = asyncio.get_running_loop()
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            await ready(loop.add_writer, loop.remove_writer, fd)


async def _pass_input(fd: int, channel: _OwnChannel | DistantChannel) -> None:
    """Write what arrives on a channel to a process's stdin, until either end is closed."""
    os.set_blocking(fd, False)
    try:
        while True:
            message = await channel.get()
            if isinstance(message, str):
                message = message.encode()
            if isinstance(message, bytes | bytearray | memoryview):
                await write_all(fd, bytes(message))
            else:
                kind = type(message).__name__
                log.warning("a process gets str and bytes on its stdin; an object of type %s is left out", kind)
    except (EOFError, OSError, NodeLostError, RemoteError, _core.DestroyedError) as error:
        log.debug("the input of a process has ended: %r", error)
    finally:
        os.close(fd)
        channel.close()
