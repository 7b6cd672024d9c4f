"""Starts processes: sends a request to the node's zygote, and follows the process through a record in shared memory."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from dragon import _core
from dragon.infrastructure import messages
from dragon.infrastructure.errors import RunEndedError
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.messages import UNNAMED, Spawn, default_name
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
from dragon.runtime.agent_client import Unwanted, ask
from dragon.runtime.announcing import attachments
from dragon.runtime.handle import Words
from dragon.runtime.interpreter import describe
from dragon.runtime.protocol.objects import Announce, CloseAtEnd
from dragon.runtime.protocol.processes import AwaitEnd, KillProcess, StartElsewhere
from dragon.runtime.run import Run, identity, is_open, next_puid, this_run

# The indices of the words of a process's record.
STATUS, PID, CODE, ERROR = range(4)
SIGNALS = ERROR
"""In the record of a started process, which has no error: bit n - 1 is set if it was sent signal n."""
ASKED, RUNNING, EXITED, FAILED = range(4)
RECORD_WORDS = 4

# The code of a process that could not be started: the number of a stream whose file cannot be opened, or this one for
# the working folder.
_FOLDER = 3

# Bytes; a larger payload is put into the arena.
LARGEST_PAYLOAD = 48 * 1024

_LARGEST_DATAGRAM = 64 * 1024  # bytes
_BESIDE = b"\xc0"  # a datagram that says that the request is in the last descriptor

# The zygote has ended, found by this or an earlier send.
_NOBODY_THERE = (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTCONN)

_LONGEST_POLL_S = 2_000_000  # seconds; poll() takes milliseconds, in 32 bits
_NOTED_WITHIN_S = 5.0  # seconds from the end of a process to its code


class Started:
    """A process that was started, in the process that started it."""

    _pidfd: int | None = None
    _close = staticmethod(os.close)  # still available when the interpreter has cleared the module at its end

    def __init__(self, puid: int, record: Words, name: str) -> None:
        self.puid = puid
        self.record = record
        self.name = name
        self.pid = record[PID]
        self._look()

    def _look(self) -> None:
        try:
            self._pidfd = _core.open_process(self.pid)
        except ProcessLookupError:
            pass  # it has ended already

    def __reduce__(self) -> Any:
        return started, (self.puid, self.record, self.name)  # the descriptor is this process's own

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
        """Wait for the process to end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            noted = self.record.wait(STATUS, RUNNING, timeout)
            if noted is None and self._pidfd is not None and self._has_ended():
                # The sentinel may become readable before the zygote has stored the exit code.
                noted = self.record.wait(STATUS, RUNNING, _NOTED_WITHIN_S)
            if noted is None:
                return None
        except _core.DestroyedError:
            # The run ended before the process's end was recorded.
            return self._code_without_record()
        return code_of(self.puid, self.record, deadline)

    def _code_without_record(self) -> int | None:
        return -9 if self._has_ended() else None

    def _has_ended(self, timeout: float | None = 0) -> bool:
        ended = select.poll()
        ended.register(self.sentinel, select.POLLIN)
        return bool(ended.poll(None if timeout is None else min(max(timeout, 0), _LONGEST_POLL_S) * 1000))

    def signal(self, number: int) -> None:
        """Send a signal. Does nothing if the process or the run has ended."""
        try:
            if self._pidfd is not None and self.record[STATUS] == RUNNING:
                if number:
                    self.record[SIGNALS] |= 1 << (number - 1)
                _core.signal_process(self._pidfd, self.pid, number)
        except (ProcessLookupError, _core.DestroyedError):
            pass


class StartedElsewhere(Started):
    """A process that was started on another node. Its methods raise NodeLostError if that node is lost."""

    def _look(self) -> None:
        """Do nothing: no local descriptor shows the end of the process."""

    @property
    def sentinel(self) -> int:
        """A file descriptor that becomes readable when the process ends, or its node is lost."""
        if self._pidfd is None:
            self._pidfd, writing = os.pipe()
            try:
                ask(CloseAtEnd(self.puid), [writing])
            finally:
                os.close(writing)
        return self._pidfd

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the process to end. Returns its exit code, negative for a signal, or None after `timeout`
        seconds."""
        # With a sentinel the other node need not be asked. The standard library looks at all children at each start.
        if self._pidfd is None:
            return super().wait(timeout)
        return super().wait(timeout) if self._has_ended(timeout) else None

    def signal(self, number: int) -> None:
        """Send a signal. Does nothing if the process has ended."""
        ask(KillProcess(self.puid, number))


def started(puid: int, record: Words, name: str) -> Started:
    """Return a process that runs already, from its puid, record and name."""
    return (Started if node_of_puid(puid) == this_run().node else StartedElsewhere)(puid, record, name)


def code_of(puid: int, record: Words, deadline: float | None) -> int | None:
    """Return the exit code of a process that has ended, negative for a signal. What a process of another node has put
    into queues is there then. Returns None if that takes until `deadline`, in seconds of time.monotonic()."""
    if node_of_puid(puid) != this_run().node:
        try:
            return ask(AwaitEnd(puid), deadline=deadline)
        except Unwanted:
            return None
        except LookupError:
            pass  # it is no longer known there, as so many have ended since
    code = record[CODE]
    return code - 2**64 if code >= 2**63 else code


def new_puid() -> int:
    """Return a new puid for a process of this node."""
    return next_puid(this_run().node)


def environment_changes(run: Run, changes: dict[str, str] | None = None) -> dict[str, str | None]:
    """Return the changes that turn the zygote's environment into this process's, with `changes` on top."""
    raw = os.environ._data  # type: ignore[attr-defined]
    if run.environment_seen[0] != raw:
        ours, base = dict(os.environ), run.base_environment
        difference: dict[str, str | None] = _sendable({k: v for k, v in ours.items() if base.get(k) != v})
        difference.update(dict.fromkeys(all_sendable(base.keys() - ours.keys())))
        run.environment_seen = (dict(raw), difference)
    return {**run.environment_seen[1], **_sendable(changes or {})}


def _sendable(variables: dict[str, str]) -> dict[str, str | None]:
    return dict(zip(all_sendable(variables), all_sendable(variables.values()), strict=True)) if variables else {}


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


def prepare_call(request: Spawn, entry: str, write: Callable[[], bytes]) -> None:
    """Make a request run Python: `entry`, a function of the runtime, gets what `write()` returns."""
    with attachments() as names:
        payload = write()
    request.entry = entry
    if serialization.main_is_importable():
        main = serialization.main_module()
        request.main = main and (main[0], sendable(main[1]))
    request.surroundings = describe(request.environment)
    request.attached += names
    if len(payload) <= LARGEST_PAYLOAD:
        request.payload = payload
    else:
        memory = Words(-(-len(payload) // 8))
        memoryview(memory)[: len(payload)] = payload
        request.payload_in, request.payload_size = memory._name(), len(payload)
        _keep[memory._name()] = memory


# Large payloads of pending requests.
_keep: dict[tuple[int, int, int], Words] = {}


def start(request: Spawn, extra_descriptors: Sequence[int] = ()) -> Started:
    """Request a process and wait until it runs. Raises OSError if that fails, RunEndedError if the run has ended."""
    run = this_run()
    request.parent = identity().puid
    if request.node != run.node:
        return _start_elsewhere(run, request)
    foreign = [name for name in request.attached if name[2] >> 8 != run.node]
    if foreign:
        ask(Announce(foreign))
        request.attached = [name for name in request.attached if name[2] >> 8 == run.node]
    record = Words._attached(request.record)
    try:
        with standard_streams() as streams:
            _send(run, request, [*streams, *extra_descriptors])
        _await_start(run, record, request)
    finally:
        if request.payload_in is not None:
            _keep.pop(request.payload_in)
    return Started(request.puid, record, request.name)


def _start_elsewhere(run: Run, request: Spawn) -> Started:
    if request.name == default_name(request.kind, request.puid):
        request.name = ""  # the other node assigns the puid, from which the default name is made
    try:
        with standard_streams() as streams:
            ((request.puid, request.record),) = ask(StartElsewhere(request), streams)
    finally:
        if request.payload_in is not None:
            _keep.pop(request.payload_in)
    request.name = request.name or default_name(request.kind, request.puid)
    record = Words._attached(request.record)
    _await_start(run, record, request)
    return StartedElsewhere(request.puid, record, request.name)


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


def _send(run: Run, request: Spawn, descriptors: list[int]) -> None:
    try:
        send_request(run.zygote_socket(), messages.encode(request), descriptors)
    except OSError as error:
        if error.errno not in _NOBODY_THERE or is_of_handler(error):
            raise
        run.check()
        raise RunEndedError(f"the run in {run.folder} has ended; nothing can be started any more") from error


@contextmanager
def standard_streams() -> Iterator[list[int]]:
    """Yield descriptors 0, 1 and 2 of this process, with /dev/null in place of those that are closed."""
    streams = list(range(3))
    if all(map(is_open, streams)):
        yield streams
        return
    with open(os.devnull, "r+") as null:
        yield [fd if is_open(fd) else null.fileno() for fd in streams]


def _await_start(run: Run, record: Words, request: Spawn) -> None:
    while record.wait(STATUS, ASKED, 1.0) is None:
        run.check()
    if record[STATUS] == FAILED:
        error = record[ERROR]
        lacking = _lacking(request, record[CODE])
        what = os.strerror(error)
        if lacking == restored(request.executable):
            what = why_not_executed(lacking, error)
        raise OSError(error, f"cannot start {request.name}: {what}{what_to_raise(error)}", lacking)


def _lacking(request: Spawn, code: int) -> str:
    """Return the path that could not be opened, from the code of a process that could not be started."""
    if code == _FOLDER:
        return restored(request.folder)
    return restored(request.streams[code].path) if code else restored(request.executable) or request.name


def new_request(name: str, umask: int = -1, *, kind: str = UNNAMED, folder: str, **fields: Any) -> tuple[Spawn, Words]:
    """Return a request with a new puid, this process's limits and signals, and its umask if that is -1; and the
    record. Without a name the process is named by its kind and its puid."""
    puid = new_puid()
    record = Words(RECORD_WORDS)
    umask = umask if umask >= 0 else _core.current_umask()
    limits, signals = _core.current_limits(), _core.current_signals()
    name = readable(name) or default_name(kind, puid)
    fields |= {"umask": umask, "limits": limits, "signals": signals, "folder": sendable(folder)}
    request = Spawn(puid=puid, record=record._name(), name=name, kind=kind, **fields)
    return request, record
