"""The records of all processes that the run started on this node."""

from __future__ import annotations

import asyncio
import errno
import os
import signal as signals
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from dragon import _core
from dragon.agent.processes.parents import parent_of
from dragon.control_groups import MemoryKills
from dragon.infrastructure.messages import decoder_of
from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.infrastructure.system import what_to_raise
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import SignalProcess
from dragon.runtime.protocol.run import Known
from dragon.runtime.rpc import serves


class _Event(msgspec.Struct, tag_field="event", frozen=True):
    """An event of a process, by its puid; `group` is the number of its group, or 0."""

    puid: int
    group: int


class Stream(_Event, tag="stream", frozen=True):
    """Standard stream `number` of a process that is being started. `descriptors` is the number of descriptors that come
    with it: the agent's end, and the target to forward to. `channel` is that of the reader."""

    name: str
    number: int
    channel: Name | None
    descriptors: int


class Started(_Event, tag="started", frozen=True):
    """A process has started, requested by the one with the puid `parent`; `time` is in nanoseconds since 1970."""

    pid: int
    name: str
    parent: int
    record: Name
    time: int


class Failed(_Event, tag="failed", frozen=True):
    """A process could not be started: the text of an error, and its number."""

    text: str
    error: int


class Exited(_Event, tag="exited", frozen=True):
    """A process has ended; a negative code is a signal. With `leaves` the processes that it started continue. `signals`
    has a bit for each signal that processes of its node have sent it through the runtime, from signal 1 on. `time` is
    in nanoseconds since 1970."""

    code: int
    signals: int
    leaves: int
    time: int


class Synchronised(msgspec.Struct, tag_field="event", tag="synchronised", frozen=True):
    """The zygote has sent all events up to the SYNCHRONISE request."""


Event = Stream | Started | Failed | Exited

# Decodes the events of a message of the zygote. Raises msgspec.MsgspecError for unknown ones.
decode_events: Callable[[bytes], list[Event | Synchronised]] = decoder_of(list[Event | Synchronised]).decode


log = runtime_log("agent")

_MOST_ENDED = 16_384  # ended processes that are kept, some 0.7 KB each
_KILL_DELAY_S = 5.0  # seconds between SIGTERM and SIGKILL
_KILLED = "process %s (puid %d, pid %d) was killed, and %s. Run fewer processes on the node, or request more memory"


@dataclass
class _Asked:
    """A process that is to be started, and the signals to send it afterwards."""

    parent: int
    group: int
    name: str
    signals: list[int] = field(default_factory=list)


class Registry:
    """The processes by puid. Ended ones are kept, up to a limit, and the oldest removed first."""

    def __init__(self, node: int, zygote: int) -> None:
        self._node = node
        self._zygote = zygote
        self._processes: OrderedDict[int, Known] = OrderedDict()
        self._living: dict[int, Known] = {}
        self._ended = 0
        self._awaited: dict[int, list[asyncio.Future[int]]] = {}
        self._asked: dict[int, _Asked] = {}
        self.memory_kills = MemoryKills()
        self._sent: dict[int, int] = {}  # to live processes: a bit for each signal, from signal 1 on

    def asked(self, puid: int, parent: int = 0, group: int = 0, name: str = "") -> None:
        self._asked[puid] = _Asked(parent, group, name)

    def started(self, event: Started) -> None:
        puid, names, started = event.puid, (event.name, event.parent, event.group, event.record), event.time / 1e9
        known = Known(puid, event.pid, *names, self._node, started=started)
        self._processes[event.puid] = self._living[event.puid] = known
        asked = self._asked.pop(event.puid, None)
        for number in asked.signals if asked is not None else ():
            self._send(known, number)

    def failed(self, event: Failed) -> None:
        self._asked.pop(event.puid, None)
        for future in self._awaited.pop(event.puid, ()):
            if not future.done():
                failure = OSError(event.text + what_to_raise(event.error))
                failure.errno = event.error
                future.set_exception(failure)

    def exited(self, event: Exited) -> None:
        known = self._processes.get(event.puid)
        if known is not None:
            known.code, known.ended = event.code, event.time / 1e9
            # A shell adds 128 to the signal that ended its program.
            number = -event.code if event.code < 0 else event.code - 128
            sent = event.signals | self._sent.pop(event.puid, 0)
            known.terminated = number > 0 and bool(sent >> (number - 1) & 1)
            self._living.pop(event.puid, None)
            self._ended += 1
            if event.code == -signals.SIGKILL and not known.terminated and (reason := self.memory_kills.explain()):
                log.warning(_KILLED, known.name, known.puid, known.pid, reason)
        for future in self._awaited.pop(event.puid, ()):
            if not future.done():
                future.set_result(event.code)
        while self._ended > _MOST_ENDED:
            oldest = next(p for p, k in self._processes.items() if k.code is not None)
            del self._processes[oldest]
            self._ended -= 1

    def all(self) -> list[Known]:
        return list(self._processes.values())

    def living(self) -> list[Known]:
        return list(self._living.values())

    def present(self) -> list[int]:
        """Return the puids of all processes that have not ended, including those that are to be started."""
        return [*self._asked, *self._living]

    def in_groups(self) -> dict[int, int]:
        """Return the groups of those that are members of one, by puid."""
        return {puid: one.group for puid, one in self._present() if one.group}

    def members(self, group: int, names: list[str]) -> list[int]:
        """Return the puids of members of a group that have these names."""
        return [puid for puid, one in self._present() if one.group == group and one.name in names]

    def _present(self) -> Iterator[tuple[int, Known | _Asked]]:
        yield from self._asked.items()
        yield from self._living.items()

    # ---- requests

    def query(self, puid: int) -> Known:
        if puid not in self._processes:
            raise LookupError(f"the run has no process {puid!r}")
        return self._processes[puid]

    def named(self, name: str) -> list[Known]:
        """Return the process that last had a name, if any."""
        return [known for known in reversed(self._processes.values()) if known.name == name][:1]

    def kill(self, puid: int, number: int = signals.SIGKILL) -> None:
        """Send a signal to a process; if it is being started, afterwards. Does nothing if it has ended."""
        if puid not in self._asked:
            self.query(puid)
        self.signal(puid, number)

    @serves(SignalProcess)
    def signal(self, puid: int, number: int) -> None:
        """Send a signal to the process of a puid. Does nothing if it has ended, could not be started, or is unknown."""
        if puid in self._asked:
            self._asked[puid].signals.append(number)
            return
        known = self._living.get(puid)
        if known is not None:
            self._send(known, number)

    def signal_all(self, puids: Iterable[int], number: int) -> None:
        for puid in puids:
            self.signal(puid, number)

    def _send(self, known: Known, number: int) -> None:
        """Send a signal to a process, but not to another process that has got its process id since."""
        if number:
            self._sent[known.puid] = self._sent.get(known.puid, 0) | 1 << (number - 1)
        with suppress(ProcessLookupError):
            try:
                handle = _core.open_process(known.pid)
                try:
                    if parent_of(known.pid) == self._zygote:
                        _core.signal_process(handle, known.pid, number)
                finally:
                    os.close(handle)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                os.kill(known.pid, number)  # without free descriptors the process cannot be checked

    def end_started_by(self, creator: int, killed: bool) -> None:
        """End the processes that one of another node had started here; with SIGTERM first unless it was killed."""
        those = [puid for puid, one in self._present() if one.parent == creator]
        self.signal_all(those, signals.SIGKILL if killed else signals.SIGTERM)
        if those and not killed:
            asyncio.get_running_loop().call_later(_KILL_DELAY_S, self.signal_all, those, signals.SIGKILL)

    def end_of(self, puid: int) -> asyncio.Future[int]:
        """Return a future of the exit code of a process. Raises LookupError."""
        known = self.query(puid)
        if known.code is None:
            return self.await_end(known.puid)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(known.code)
        return future

    def await_end(self, puid: int) -> asyncio.Future[int]:
        """Return a future of the exit code of a process that is about to be started; OSError if it cannot be."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(puid, []).append(future)
        return future
