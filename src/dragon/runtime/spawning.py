"""Starts processes, by a request to the node's zygote, and follows them, by a record in shared memory.

What asks an agent is imported for that: most programs do not need it.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from dragon import _core
from dragon.infrastructure.errors import NodeLostError, RunEndedError
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.start_request import (
    ASKED,
    CODE,
    ERROR,
    FAILED,
    LOST,
    PID,
    RECORD_WORDS,
    RUNNING,
    SIGNALS,
    STATUS,
    StartRequest,
    default_name,
)
from dragon.infrastructure.system import (
    all_sendable,
    is_of_handler,
    readable,
    restored,
    sendable,
    what_to_raise,
    why_not_executed,
)
from dragon.runtime import serialization
from dragon.runtime.agent_start import is_open
from dragon.runtime.handle import Words
from dragon.runtime.interpreter import describe
from dragon.runtime.run import Run, identity, next_puid, this_run
from dragon.runtime.serialization import mentions

# The code of a process that could not be started: the number of a stream whose file cannot be opened, or this one for
# the working folder.
_FOLDER = 3

# Bytes; a larger payload is put into the arena.
LARGEST_PAYLOAD = 48 * 1024

_LARGEST_DATAGRAM = 64 * 1024  # bytes
_BESIDE = b"\xc0"  # a datagram that says that the request is in the last descriptor

# The zygote has ended, found by this or an earlier send.
_NOBODY_THERE = (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTCONN)

_NOTED_WITHIN_S = 5.0  # seconds from the end of a process to its code


class Started:
    """A process that was started, in the process that started it."""

    _pidfd: int | None = None
    _close = staticmethod(os.close)  # still available when the interpreter has cleared the module at its end

    def __init__(self, puid: int, record: _core.Words, name: str, pid: int) -> None:
        self.puid, self.record, self.name, self.pid = puid, record, name, pid
        if type(self) is Started:
            with suppress(ProcessLookupError):  # it has ended already
                self._pidfd = _core.open_process(pid)

    def __reduce__(self) -> tuple[object, ...]:
        # The descriptor is this process's own.
        return started, (self.puid, Words._attached(self.record._name()), self.name, self.pid)

    def __del__(self) -> None:
        if self._pidfd is not None:
            self._close(self._pidfd)

    @property
    def sentinel(self) -> int:
        """A file descriptor that becomes readable when the process ends."""
        if self._pidfd is None:
            self._pidfd = os.eventfd(1)  # the process had ended already
        return self._pidfd

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end. Returns the code, negative for a signal, or None after `timeout`. Raises NodeLostError."""
        try:
            noted = self.record.wait(STATUS, RUNNING, timeout)
            if noted is None and self._pidfd is not None and self._has_ended():
                # The sentinel may become readable before the exit code is stored.
                noted = self.record.wait(STATUS, RUNNING, _NOTED_WITHIN_S)
            if noted is None:
                return None
            if self.record[STATUS] == LOST:
                from dragon.runtime.agent_client import ask
                from dragon.runtime.protocol.run import AwaitEnd

                return ask(AwaitEnd(self.puid))
        except _core.DestroyedError:
            # The run ended before the process's end was recorded.
            return -9 if self._has_ended() else None
        code = self.record[CODE]
        return code - 2**64 if code >= 2**63 else code

    def _has_ended(self) -> bool:
        ended = select.poll()
        ended.register(self.sentinel, select.POLLIN)
        return bool(ended.poll(0))

    # A worker of a pool has the methods of multiprocessing's processes. They do nothing where its node is lost.

    def join(self, timeout: float | None = None) -> int | None:
        """Do the same as wait()."""
        return self.wait(timeout)

    @property
    def exitcode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self.wait(0)

    def is_alive(self) -> bool:
        """Return whether the process runs; False where its node is lost."""
        with suppress(NodeLostError):
            return self.wait(0) is None
        return False

    def terminate(self) -> None:
        """Send SIGTERM."""
        with suppress(NodeLostError):
            self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        with suppress(NodeLostError):
            self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal. Does nothing if the process or the run has ended."""
        with suppress(ProcessLookupError, _core.DestroyedError):
            if self._pidfd is not None and self.record[STATUS] == RUNNING:
                if number:
                    self.record[SIGNALS] |= 1 << (number - 1)
                _core.signal_process(self._pidfd, self.pid, number)


class StartedElsewhere(Started):
    """A process that was started on another node. The agent of its creator's node stores its end in the record."""

    @property
    def sentinel(self) -> int:
        """A file descriptor that becomes readable when the process ends, or its node is lost."""
        if self._pidfd is None:
            from dragon.runtime.agent_client import ask
            from dragon.runtime.protocol.objects import CloseAtEnd

            self._pidfd, writing = os.pipe()
            try:
                ask(CloseAtEnd(self.record._name()), [writing])
            finally:
                os.close(writing)
        return self._pidfd

    def signal(self, number: int) -> None:
        """Send a signal. Does nothing if the process has ended."""
        from dragon.runtime.agent_client import ask
        from dragon.runtime.protocol.run import KillProcess

        ask(KillProcess(self.puid, number))


def started(puid: int, record: Words, name: str, pid: int) -> Started:
    """Return a process that runs already, from what its creator knows of it."""
    here = this_run().node == node_of_puid(puid) == record._name()[2] >> 8
    return (Started if here else StartedElsewhere)(puid, record, name, pid)


def environment_changes(run: Run, changes: dict[str, str] | None = None) -> dict[str, str | None]:
    """Return the changes that turn the zygote's environment into this process's, with `changes` on top."""
    raw = os.environ._data  # type: ignore[attr-defined]
    if run.environment_seen[0] != raw:
        ours, base = dict(os.environ), run.base_environment
        difference: dict[str, str | None] = _sendable({k: v for k, v in ours.items() if base.get(k) != v})
        difference.update(dict.fromkeys(all_sendable(base.keys() - ours.keys())))
        run.environment_seen = (dict(raw), difference)
    return {**run.environment_seen[1], **_sendable(changes)} if changes else run.environment_seen[1].copy()


def _sendable(variables: dict[str, str]) -> dict[str, str | None]:
    return dict(zip(all_sendable(variables), all_sendable(variables.values()), strict=True))


def current_folder(local: bool = True) -> str:
    """Return a path of this process's working folder that other processes can use. A folder that was removed is still
    available to processes of this node if `local`; otherwise raises FileNotFoundError."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        if not local:
            raise FileNotFoundError(
                errno.ENOENT, "the working directory was removed; go to another one (os.chdir)"
            ) from None
    return f"/proc/{os.getpid()}/cwd"


def prepare_call(request: StartRequest, entry: str, write: Callable[[], bytes]) -> None:
    """Make a request run Python: `entry`, a function of the runtime, gets what `write()` returns."""
    with mentions() as handles:
        payload = write()
    request.entry, request.main = entry, serialization.main_for_others()
    request.surroundings = describe(request.environment)
    for name, _ in handles:
        request.attached.append(name)
    if len(payload) <= LARGEST_PAYLOAD:
        request.payload = payload
    else:
        memory = Words(-(-len(payload) // 8))
        memoryview(memory)[: len(payload)] = payload
        request.payload_in, request.payload_size = memory._name(), len(payload)
        _keep[memory._name()] = memory


# Large payloads of pending requests.
_keep: dict[tuple[int, int, int], Words] = {}


def start(request: StartRequest, extra_descriptors: Sequence[int] = ()) -> Started:
    """Request a process and wait until it runs. Raises OSError if that fails, RunEndedError if the run has ended."""
    run = this_run()
    record = _core.Words(RECORD_WORDS)
    request.record, request.parent = record._name(), identity().puid
    try:
        with standard_streams() as streams:
            if request.node != run.node:
                record[STATUS] = RUNNING  # until this node's agent stores its end
                from dragon.infrastructure.messages import Spawn
                from dragon.runtime.agent_client import ask
                from dragon.runtime.protocol.run import StartElsewhere

                started = ask(StartElsewhere(Spawn(**vars(request))), streams)
                request.puid, (status, record[PID], code, error) = started
            else:
                _start_here(run, request, [*streams, *extra_descriptors])
                while record.wait(STATUS, ASKED, 1.0) is None:
                    run.check()
                status, code, error = record[STATUS], record[CODE], record[ERROR]
    finally:
        if request.payload_in is not None:
            _keep.pop(request.payload_in)
    request.name = request.name or default_name(request.kind, request.puid)
    if status == FAILED:
        raise _failure(request, code, error)
    kind = Started if request.node == run.node else StartedElsewhere
    return kind(request.puid, record, request.name, record[PID])


def _start_here(run: Run, request: StartRequest, descriptors: list[int]) -> None:
    request.puid = next_puid(run.node)
    request.name = request.name or default_name(request.kind, request.puid)
    if request.attached:
        foreign = [name for name in request.attached if name[2] >> 8 != run.node]
        if foreign:
            from dragon.runtime.agent_client import ask
            from dragon.runtime.protocol.objects import Announce

            ask(Announce(foreign))
            request.attached = [name for name in request.attached if name[2] >> 8 == run.node]
    try:
        send_request(run.zygote_socket(), request.encode(), descriptors)
    except OSError as error:
        if error.errno not in _NOBODY_THERE or is_of_handler(error):
            raise
        run.check()
        raise RunEndedError(f"the run in {run.folder} has ended; nothing can be started any more") from error


def send_request(zygote: socket.socket, request: bytes, descriptors: Sequence[int]) -> None:
    """Send an encoded start request. One that is too large for a datagram is sent as a file in memory."""
    if len(request) <= _LARGEST_DATAGRAM:
        socket.send_fds(zygote, [request], descriptors)
        return
    with in_memory(request) as memory:
        socket.send_fds(zygote, [_BESIDE], [*descriptors, memory.fileno()])


def in_memory(request: bytes) -> IO[bytes]:
    """Return a file without a name that holds a request, positioned at its beginning."""
    memory = os.fdopen(_core.anonymous_memory("request"), "w+b")
    memory.write(request)
    memory.seek(0)
    return memory


@contextmanager
def standard_streams() -> Iterator[list[int]]:
    """Yield descriptors 0, 1 and 2 of this process, with /dev/null in place of those that are closed."""
    try:
        for fd in range(3):
            os.fstat(fd)
    except OSError:
        with open(os.devnull, "r+") as null:
            yield [fd if is_open(fd) else null.fileno() for fd in range(3)]
    else:
        yield [0, 1, 2]


def _failure(request: StartRequest, code: int, number: int) -> OSError:
    """Return why a process could not be started, from the words of its record."""
    if code == _FOLDER:
        lacking = restored(request.folder)
    elif code:
        lacking = restored(request.streams[code].path)
    else:
        lacking = restored(request.executable) or request.name
    what = os.strerror(number)
    if lacking == restored(request.executable):
        what = why_not_executed(lacking, number)
    return OSError(number, f"cannot start {request.name}: {what}{what_to_raise(number)}", lacking)


def new_request(name: str, umask: int = -1, *, folder: str, **fields: object) -> StartRequest:
    """Return a request with this process's limits and signals, and its umask if that is -1. Without a name the process
    is named by its kind and its puid."""
    return StartRequest(
        name=name and readable(name),
        umask=umask if umask >= 0 else _core.current_umask(),
        limits=_core.current_limits(),
        signals=_core.current_signals(),
        folder=folder if folder.isascii() else sendable(folder),
        **fields,
    )
