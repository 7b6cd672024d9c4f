"""What a run tells whoever looks at it from outside: the agent of itself, waiting processes of their threads.

A process that waits in the runtime looks once a second whether somebody asks, and then sends the stacks of its threads
to the socket `doctor` in the run's folder. That takes no signal, no debugger and no right to trace.
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

__all__ = [
    "Frame",
    "GroupState",
    "Inquiry",
    "InquiryError",
    "Pending",
    "Report",
    "Task",
    "Thread",
    "answer",
    "ask_agent",
]

_Answer = TypeVar("_Answer")

_SOCKET = "doctor"
_LARGEST_DATAGRAM = 2**18
# An answer is one datagram, and the kernel takes some 200 KiB.
_MOST_THREADS, _MOST_FRAMES = 24, 50
_SEND_WITHIN = 0.5


class Frame(msgspec.Struct, array_like=True):
    """A call on a stack."""

    function: str
    file: str
    line: int


class Thread(msgspec.Struct, array_like=True):
    """A thread of Python's and its calls, the outermost first."""

    ident: int
    name: str
    frames: list[Frame]


class Stacks(msgspec.Struct, array_like=True):
    """A process's answer."""

    pid: int
    threads: list[Thread]


class GroupState(msgspec.Struct, array_like=True):
    """A process group, and the offset of the words through which it is followed."""

    name: str
    members: int
    live: int
    failure: str
    words: int


class Pending(msgspec.Struct, array_like=True):
    """An operation that an agent has not answered yet, and of which object of this node it is, if of any.

    `node` is where the other side is: of what is asked for, or of the process `pid` that asked. `holder` is the process
    id of who has a lock.
    """

    who: str
    seconds: float
    what: str
    offset: int = 0
    node: int = 0
    pid: int = 0
    holder: int = 0


class Task(msgspec.Struct, array_like=True):
    """A task of an agent, and the line that it is at."""

    name: str
    where: str


class Report(msgspec.Struct):
    """What an agent says of itself.

    `processes` are (puid, pid, name, offset of the record); `starting` counts those that the zygote was asked for,
    `untaken` of them it has not even read; `asked` is what processes of this node wait for, `parked` what those of
    others do.
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
    """Nobody can be asked; the message says why."""


# ---- in a process of the run


def answer(folder: Path) -> None:
    """Send the stacks of this process's threads to whoever asks the run of that folder."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [
        Thread(ident, names.get(ident, ""), _frames(frame)) for ident, frame in list(sys._current_frames().items())
    ]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(_SEND_WITHIN)
        try:
            channel.sendto(encode(Stacks(os.getpid(), threads[:_MOST_THREADS])), str(folder / _SOCKET))
        except OSError:
            return  # who asked is gone, or has no time


def _frames(innermost: FrameType | None) -> list[Frame]:
    frame = innermost
    while frame is not None and frame.f_globals.get("__name__") in (__name__, "dragon.runtime.run"):
        frame = frame.f_back  # what sends the answer
    result: list[Frame] = []
    while frame is not None and len(result) < _MOST_FRAMES:
        code = frame.f_code
        file = code.co_filename if code.co_filename.startswith("<") else os.path.abspath(code.co_filename)
        result.insert(0, Frame(code.co_qualname, file, frame.f_lineno))
        frame = frame.f_back
    return result


# ---- outside of it


def ask_agent(folder: Path, request: Request[_Answer], timeout: float) -> _Answer:
    """The answer of the agent of a run that this process need not belong to.

    Raises TimeoutError where it does not answer in time, RunEndedError where it is gone, RuntimeError where it cannot.
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
    return cast(_Answer, reply.value)  # without an error there is one


class Inquiry:
    """Asks the waiting processes of the run in `folder`, whose arena this process has opened."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self) -> Self:
        """Raises InquiryError where somebody else asks at this moment, or the run is gone."""
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
        """Remove what a killed one left."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(str(self._path))
            except ConnectionRefusedError:
                self._path.unlink(missing_ok=True)
            except FileNotFoundError:
                return

    def collect(self, expected: Collection[int], patience: float) -> dict[int, list[Thread]]:
        """Stacks by process id: of those that are expected, and of others that answer before these have."""
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
