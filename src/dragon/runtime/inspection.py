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
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Self, TypeVar, cast

from dragon import _core
from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.infrastructure.messages import encode
from dragon.infrastructure.private import connect_within
from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.request import Request, decode_reply, encode_request

if TYPE_CHECKING:
    from dragon._core import _Wait


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
    of the process that holds a lock, `place` where the object was made."""

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
    """The state of an agent, as it reports it. `processes` are (puid, pid, name, offset of the record); `starting`
    counts processes that were requested from the zygote, `untaken` those of them whose request it has not read; `asked`
    are pending requests of processes of this node, `parked` those of other nodes' processes."""

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
    """Return the reply of the agent of a run that this process need not belong to."""
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
        """Open the socket."""
        try:
            self._remove_left_behind()
            self._socket.bind(str(self._path))
        except OSError as error:
            self._socket.close()
            raise InquiryError(f"its processes cannot be asked: {error.strerror}") from error
        return self

    def __exit__(self, *raised: object) -> None:
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
        """Return stacks by process id: of the expected processes, and of others that reply before all of these have."""
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


_MOST_NAMES = 4
_ELSEWHERE = "a process of another node"


class Wait(msgspec.Struct):
    """What a thread waits for. `thread` is Python's number of the thread, 0 if unknown."""

    thread: int
    seconds: float
    text: str


class Names:
    """The names of a node's processes, by process id, and descriptions of shared words, by their offset in the arena.
    Processes of other nodes act through the agent: an object that the agent holds is held by one of them."""

    def __init__(self, processes: Mapping[int, str], report: Report | None, agent: int = 0) -> None:
        self.processes = processes
        self.agent = agent
        self.words: dict[int, str] = {}
        if report is not None:
            for group in report.groups:
                self.words[group.words] = f"for group {group.name} ({group.live} of {group.members} members running)"
            for puid, _, name, record in report.processes:
                self.words[record] = f"for the end of {name} (puid {puid})"

    def holder(self, pid: int) -> str:
        """Return words that say which process holds a lock."""
        if pid == 0:
            return "which nobody holds now"
        if pid == self.agent:
            return f"held by {_ELSEWHERE}"
        return f"held by {self.processes.get(pid, 'a process')} (pid {pid})"

    def of(self, pid: int) -> str:
        """Return the name of a process."""
        return _ELSEWHERE if pid == self.agent else self.processes.get(pid, f"pid {pid}")


def waits_of(noted: Iterable[_Wait], report: Report | None, names: Names) -> Iterator[tuple[int, Wait]]:
    """Yield what processes of a node wait for, by process id: in shared memory, and for replies of the agent."""
    for wait in noted:
        if wait["pid"] != names.agent:
            yield wait["pid"], Wait(wait["thread"], round(wait["seconds"], 1), describe(wait, names))
    for asked in report.asked if report is not None else ():
        yield int(asked.who), Wait(0, round(asked.seconds, 1), describe_asked(asked))


def describe(wait: _Wait, names: Names, waiting: Collection[int] = ()) -> str:
    """Return the words that follow "waits"."""
    kind, purpose = wait["kind"], wait["purpose"]
    which = _object(kind, wait["offset"], wait["place"])
    if kind == "Lock":
        return f"to acquire {which}, {names.holder(wait.get('holder', 0))}"
    if kind == "Words":
        return names.words.get(wait["offset"]) or f"for a change of {which}"
    what = {
        "Channel": _channel(purpose, which, wait.get("size", 0), wait.get("capacity", 0)),
        "Semaphore": f"to acquire {which}, whose value is {wait.get('value')}",
        "Event": f"for {which} to be set",
        "Condition": f"to be notified by {which}",
    }.get(kind)
    return f"{what}; {_others(wait, names, waiting)}" if what else "for something that is gone by now"


def describe_asked(asked: Pending) -> str:
    """Return the words that follow "waits" for a pending request of a process to its agent."""
    return f"for the agent to answer: {asked.what}"


def describe_parked(parked: Pending, names: Names) -> str:
    """Return the words that follow "waits" for a process of another node that waits for an object of this one."""
    kind, _, method = parked.what.partition(".")
    which = _object(kind, parked.offset, parked.place)
    if parked.what == "Lock.acquire":
        return f"to acquire {which}, {names.holder(parked.holder)}"
    return names.words.get(parked.offset) or f"for {method} of {which}"


def _object(kind: str, offset: int, place: str) -> str:
    """Return words for an object: where the program made it, or its place in memory if the runtime made it."""
    noun = {"Channel": "queue" if place else "channel", "Words": "shared words"}.get(kind, kind.lower())
    return f"the {noun} made at {place}" if place else f"{noun} {offset:#x}"


def _channel(purpose: str, which: str, size: int, capacity: int) -> str:
    holds = f"holds {size}" + (f" of {capacity}" if capacity else "")
    return {"put": f"to put into {which}, which {holds}", "join": f"for what was put into {which} to be done"}.get(
        purpose, f"for something in {which}, which " + (holds if size else "is empty")
    )


def _others(wait: _Wait, names: Names, waiting: Collection[int]) -> str:
    """Return words that say which other processes could end the wait."""
    pids = [pid for pid in dict.fromkeys(wait["attached"]) if pid != wait["pid"] and pid not in waiting]
    others = [names.of(pid) for pid in pids]
    if not others:
        return "no other process has it now"
    rest = f" and {len(others) - _MOST_NAMES} more" if len(others) > _MOST_NAMES else ""
    return f"{', '.join(others[:_MOST_NAMES])}{rest} {'has' if len(others) == 1 else 'have'} it too"
