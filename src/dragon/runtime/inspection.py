"""Tells processes outside of a run about it: the agent reports its state, waiting processes the stacks of their
threads.

A process that waits in the runtime checks once a second whether stacks are requested, and then sends them to the socket
`doctor` in the run's folder. That needs no signal, no debugger and no right to trace.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self, TypeVar, cast

import msgspec

from dragon import _core
from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.infrastructure.messages import encode
from dragon.infrastructure.private import connect_within
from dragon.runtime.protocol.request import Request, decode_reply, encode_request

_Answer = TypeVar("_Answer")

_SOCKET = "doctor"
_LARGEST_DATAGRAM = 2**18
# A reply is one datagram, for which the kernel's limit is about 200 KiB.
_MOST_THREADS, _MOST_FRAMES = 24, 50
_SEND_WITHIN = 0.5  # seconds


class Frame(msgspec.Struct, array_like=True):
    """A frame of a stack."""

    function: str
    file: str
    line: int


class Thread(msgspec.Struct, array_like=True):
    """A Python thread and its frames, the outermost first."""

    ident: int
    name: str
    frames: list[Frame]


class Stacks(msgspec.Struct, array_like=True):
    """The reply of a process."""

    pid: int
    threads: list[Thread]


class GroupState(msgspec.Struct, array_like=True):
    """The state of a process group, and the offset in the arena of its shared words."""

    name: str
    members: int
    live: int
    failure: str
    words: int


class Pending(msgspec.Struct, array_like=True):
    """A request that an agent has not answered yet, and the offset of the object of this node that it is about, or 0.

    `node` is the other side: the node of the target, or of the process `pid` that sent the request. `holder` is the pid
    of the process that holds a lock, `place` where the object was made.
    """

    who: str
    seconds: float
    what: str
    offset: int = 0
    node: int = 0
    pid: int = 0
    holder: int = 0
    place: str = ""


class Task(msgspec.Struct, array_like=True):
    """An asyncio task of an agent, and its current line."""

    name: str
    where: str


class Report(msgspec.Struct):
    """The state of an agent, as it reports it.

    `processes` are (puid, pid, name, offset of the record); `starting` counts processes that were requested from the
    zygote, `untaken` those of them whose request it has not read; `asked` are pending requests of processes of this
    node, `parked` those of other nodes' processes.
    """

    zygote: int
    processes: list[tuple[int, int, str, int]]
    groups: list[GroupState]
    starting: int
    untaken: int
    asked: list[Pending]
    parked: list[Pending]
    lost: dict[int, str]
    tasks: list[Task]


class InquiryError(DragonError):
    """The processes cannot be asked for their stacks; the message says why."""


# ---- in a process of the run


def answer(folder: Path) -> None:
    """Send the stacks of this process's threads to the process that inspects the run of that folder."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [
        Thread(ident, names.get(ident, ""), _frames(frame)) for ident, frame in list(sys._current_frames().items())
    ]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(_SEND_WITHIN)
        try:
            channel.sendto(encode(Stacks(os.getpid(), threads[:_MOST_THREADS])), str(folder / _SOCKET))
        except OSError:
            return  # the inspecting process has ended, or is busy


def _frames(innermost: FrameType | None) -> list[Frame]:
    frame = innermost
    while frame is not None and frame.f_globals.get("__name__") in (__name__, "dragon.runtime.run"):
        frame = frame.f_back  # skip the frames that send the reply
    result: list[Frame] = []
    while frame is not None and len(result) < _MOST_FRAMES:
        code = frame.f_code
        file = code.co_filename if code.co_filename.startswith("<") else os.path.abspath(code.co_filename)
        result.insert(0, Frame(code.co_qualname, file, frame.f_lineno))
        frame = frame.f_back
    return result


# ---- outside of the run


def ask_agent(folder: Path, request: Request[_Answer], timeout: float) -> _Answer:
    """Return the reply of the agent of a run that this process need not belong to.

    Raises TimeoutError after `timeout` seconds, RunEndedError if the agent has ended, RuntimeError for an error reply.
    """
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(timeout)
        try:
            connect_within(folder, "agent", channel)
            channel.sendall(encode_request(request))
            data = bytearray()
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "little"):
                channel.settimeout(max(deadline - time.monotonic(), 0.001))
                part = channel.recv(1 << 16)
                if not part:
                    raise EOFError("the connection was closed")
                data += part
        except TimeoutError:
            raise
        except (OSError, EOFError) as error:
            raise RunEndedError(f"the agent of the run in {folder} is gone: {error}") from error
    reply = decode_reply(request, data[4:])
    if reply.error is not None:
        raise RuntimeError(f"{reply.error[0]}: {reply.error[1]}")
    return cast(_Answer, reply.value)  # a reply without an error has a value


class Inquiry:
    """Requests the stacks of the waiting processes of the run in `folder`, whose arena this process has opened."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self) -> Self:
        """Open the socket. Raises InquiryError if another process inspects the run at the moment, or the run
        has ended."""
        try:
            self._remove_left_behind()
            self._socket.bind(str(self._path))
        except OSError as error:
            self._socket.close()
            raise InquiryError(f"its processes cannot be asked: {error.strerror}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _remove_left_behind(self) -> None:
        """Remove the socket of an inspecting process that was killed."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(str(self._path))
            except ConnectionRefusedError:
                self._path.unlink(missing_ok=True)
            except FileNotFoundError:
                return

    def collect(self, expected: Collection[int], patience: float) -> dict[int, list[Thread]]:
        """Return stacks by process id: of the expected processes, and of others that reply before all of these have.

        Waits at most `patience` seconds.
        """
        _core.inquire(patience)
        deadline = time.monotonic() + patience
        result: dict[int, list[Thread]] = {}
        while not set(expected) <= result.keys() and (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                stacks = msgspec.msgpack.decode(self._socket.recv(_LARGEST_DATAGRAM), type=Stacks)
            except TimeoutError:
                break
            result[stacks.pid] = stacks.threads
        return result
