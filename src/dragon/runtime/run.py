"""The run that this process belongs to: found, or started at the first use.

A process that a run started belongs to it. Any other process starts a run of its own, which ends with the process.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

from dragon import _core, cpython
from dragon.infrastructure import variables
from dragon.infrastructure.errors import NotSupportedError, RunEndedError
from dragon.infrastructure.facts import FIRST_PUID, PUID_NODE_SHIFT
from dragon.infrastructure.private import connect_within
from dragon.infrastructure.signals import hold_signals, release_signals
from dragon.infrastructure.system import restored
from dragon.runtime import folder as run_folder
from dragon.runtime.agent_start import take_agent

ARENA = 3
"""The descriptor with the arena in an agent that has its settings."""
_GUEST = "guest"  # the name of a process that has joined a run which did not start it
_AGENT_STARTS_WITHIN_S = 30.0  # seconds
_AGENT_ENDS_WITHIN_S = 17.0  # seconds, besides the grace of processes
WRITING = "writing"  # a file in the run's folder while an agent that ends still writes


class Identity(NamedTuple):
    """This process within its run. `puid` and `name` are its own, `parent` is the puid of its creator, `group` the
    number of its group; 0 for none."""

    puid: int = 0
    name: str = ""
    parent: int = 0
    group: int = 0


class _ZygoteSocket(socket.socket):
    """A socket that is closed with the process that made it, without the warning for unclosed sockets."""

    def __del__(self) -> None:
        self.close()


class Run:
    """A run as one of its processes sees it. `owner_pid` is set in the process whose end ends the run."""

    def __init__(
        self, folder: Path, agent: run_folder.Owner, owner_pid: int = 0, label: str = "", node: int = 0
    ) -> None:
        self.folder = folder
        self.agent = agent
        self.owner_pid = owner_pid
        self.label = label
        self.node = node  # index of the node this process is on
        self.base_environment = dict(os.environ)
        # The environment when it was last compared with the base, and the difference.
        self.environment_seen: tuple[dict[bytes, bytes], dict[str, str | None]] = ({}, {})
        self.before_end: list[Callable[[], None]] = []  # called before this process ends the run
        self._zygotes: dict[int, socket.socket] = {}  # by the pid of their maker: a forked child has its parent's too

    def zygote_socket(self) -> socket.socket:
        """Return this process's socket for start requests, one datagram each."""
        own = os.getpid()
        known = self._zygotes.get(own)
        if known is None:
            self.close(besides=own)
            made = _ZygoteSocket(socket.AF_UNIX, socket.SOCK_DGRAM)
            connect_within(self.folder, "zygote", made)
            known = self._zygotes.setdefault(own, made)
            if known is not made:
                made.close()
        return known

    def close(self, besides: int = 0) -> None:
        """Close the sockets for start requests, except that of one process; the next request opens a new one."""
        for pid in self._zygotes.copy():
            if pid != besides and (one := self._zygotes.pop(pid, None)) is not None:
                one.close()

    def tell(self, request: bytes, descriptors: Iterable[int]) -> None:
        """Send the agent a request without waiting for the reply, which comes late from one that is still starting."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connect_within(self.folder, "agent", connection)
                socket.send_fds(connection, [request], list(descriptors))
        except OSError as error:
            self.check()
            raise RunEndedError(f"the agent of the run in {self.folder} cannot be asked: {error}") from error

    def is_alive(self) -> bool:
        """Return whether the agent is alive."""
        return run_folder.is_alive(self.agent)

    def check(self) -> None:
        """Raise RunEndedError unless the agent is alive."""
        if not self.is_alive():
            raise RunEndedError(f"the run in {self.folder} has ended: its agent (pid {self.agent.pid}) is gone")


class ProcessLock:
    """A reentrant lock between this process's threads. A forked child has a new one, which is free: the thread that
    holds the parent's does not exist in the child to release it."""

    _all: ClassVar[weakref.WeakSet[ProcessLock]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._renew()
        self._all.add(self)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    @classmethod
    def renew_all(cls) -> None:
        """Replace all locks by free ones, in a child."""
        for lock in list(cls._all):
            lock._renew()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


# Before a main program is imported: a later hook is taken for one of the program's, with which the zygote must not be
# forked.
os.register_at_fork(after_in_child=ProcessLock.renew_all)

_lock = ProcessLock()
_run: Run | None = None
_identity = Identity()


def in_run() -> bool:
    """Return whether this process belongs to a run already. Starts none."""
    return _run is not None or variables.RUN in os.environ


def current_run() -> Run | None:
    """Return the run that this process has joined or started; None if there is none. Starts none."""
    return _run


def identity() -> Identity:
    """Return this process within its run, which is started if there is none."""
    if _run is None:
        this_run()
    return _identity


def this_run() -> Run:
    """Return the run of this process, which is joined or started if needed."""
    run = _run
    if run is not None:
        return run
    with _lock:
        if _run is not None:
            return _run
        place = os.environ.get(variables.RUN)
        return join_run(Path(place)) if place else start_run()


def start_run(label: str = "", command: str = "") -> Run:
    """Start a run on this machine that ends when this process does. The arena is made here, so that its objects can be
    used at once; the agent starts in the background, and earlier if the caller had time to call start_agent()."""
    if not sys.platform.startswith("linux"):
        raise RunEndedError(f"the runtime needs Linux; this is {sys.platform}")
    run_folder.sweep()
    held = hold_signals()  # so that an agent that was started is also ended
    try:
        pid, connection = take_agent()
        with connection:
            folder = run_folder.make_folder()
            try:
                agent = _set_up(folder, label, command, pid, connection)
            except BaseException:
                run_folder.remove_folder(folder)
                raise
        started = Run(folder, agent, os.getpid(), label)
        _enter(started, Identity(puid=next_puid(0), name="head"))
        _run_end(started).at_exit()
    finally:
        release_signals(held)
    return started


def _set_up(folder: Path, label: str, command: str, pid: int, connection: socket.socket) -> run_folder.Owner:
    """Make the arena of a run in that folder, and send its agent the settings."""
    _core.create_arena(variables.arena_limit())
    with suppress(ValueError, MemoryError):  # the agent reports both
        # Recorded at once, if the agent will collect them: the first tasks may end before it runs.
        if variables.telemetry_level() >= variables.TRACING_LEVEL:
            _core.trace(True)
    owner = run_folder.this_process()
    settings = {
        "folder": str(folder),
        "owner": [owner.pid, owner.start_time],
        "label": label,
        "idle": not command,  # a program that was started by `dragon` has yet to be executed, and the agent has time
    }
    agent_socket, zygote_socket = bind_sockets(folder)
    with agent_socket, zygote_socket:
        descriptors = [_core.arena_fd(), agent_socket.fileno(), zygote_socket.fileno()]
        try:
            socket.send_fds(connection, [json.dumps(settings).encode()], descriptors)
        except ConnectionError as error:
            raise RunEndedError(f"the run cannot start: its agent (pid {pid}) has ended") from error
    agent = run_folder.Owner(pid, run_folder.process_start_time(pid) or 0)
    from dragon.runtime.run_info import FrontEnd, RunInfo  # msgspec, while the agent starts

    info = RunInfo(
        owner=owner,
        agent=agent,
        arena_fd=ARENA,
        command=os.fsencode(command or " ".join(sys.argv)).decode(errors="replace"),
        started=time.time(),
        front_end=FrontEnd(owner, run_folder.this_machine()) if command else None,
    )
    try:
        info.write(folder)
    except OSError:
        os.kill(pid, signal.SIGKILL)  # it would report errors about the folder, which the caller removes
        raise
    return agent


def bind_sockets(folder: Path) -> tuple[socket.socket, socket.socket]:
    """Return the listening sockets of a run's agent and zygote, which serve them once they have started."""
    agent_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    zygote_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    agent_socket.bind(str(folder / "agent"))
    agent_socket.listen(128)
    zygote_socket.bind(str(folder / "zygote"))
    return agent_socket, zygote_socket


def join_run(folder: Path) -> Run:
    """Make this process a member of a run of this machine."""
    of, me, agent, arena_fd, node = json.loads(os.environ.get(variables.PROCESS, "[0, 0, 0, 0, 0]"))
    if of != str(folder):  # a process that no run started, or another one
        from dragon.runtime.run_info import RunInfo

        info = RunInfo.read(folder)
        me, agent, arena_fd, node = None, info.agent, info.arena_fd, info.node
    joined = Run(folder, run_folder.Owner(*agent), node=node)
    joined.check()
    try:
        arena = arena_of(joined.agent, arena_fd)
    except PermissionError:
        raise NotSupportedError(
            f"the run in {folder} is closed to this process, which has other rights than its agent (pid "
            f"{joined.agent.pid}), as in a container that was started inside the run: start the run in the container"
        ) from None
    _core.open_arena(arena)
    if me:
        identity, slot, changed = me
        known = Identity(*identity)
        # Child processes inherit the variable, but only one process can have the slot; the others get new ones.
        _core.take_slot(slot)
        joined.base_environment = _without(_environment_at_start(), map(restored, changed))
        _enter(joined, known)
    else:
        joined.base_environment = _environment_at_start()
        _enter(joined, Identity(puid=next_puid(node), name=_GUEST))
    _core.leave_arena_at_exit()
    return joined


def arena_of(agent: run_folder.Owner, number: int) -> int:
    """Return a new descriptor of an agent's arena, which has that number there. Waits while the agent starts. Raises
    OSError."""
    until = time.monotonic() + _AGENT_STARTS_WITHIN_S
    while True:
        try:
            return os.open(f"/proc/{agent.pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            # ENXIO: a socket, as it has not got its arena yet
            if error.errno != errno.ENXIO or not run_folder.is_alive(agent):
                raise
            if time.monotonic() > until:
                raise TimeoutError(
                    f"the agent (pid {agent.pid}) has not started in {_AGENT_STARTS_WITHIN_S:g} s"
                ) from error
            time.sleep(0.002)


def _environment_at_start() -> dict[str, str]:
    """Return the environment with which this program was started, without its own changes."""
    pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)


def _without(environment: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the environment without the variables that were set for this program, which count as its changes."""
    changed = set(names)
    kept = {name: value for name, value in environment.items() if name not in changed}
    return {**kept, **dict.fromkeys(changed - environment.keys(), "")}


def leave() -> None:
    """Detach this process, which no run started, from its run; it cannot use the run's objects any more."""
    global _run, _identity
    with _lock:
        _core.leave_arena()
        _core.close_arena()
        if _run is not None:
            _run.close()
        _run, _identity = None, Identity()


def frame(name: str, *fields: object) -> bytes:
    """Return the frame of a request to an agent, by the name of its class in dragon.runtime.protocol."""
    body = _core.pack((name, *fields))
    return len(body).to_bytes(4, "little") + body


def next_puid(node: int) -> int:
    """Return a new puid for a process on that node, which must be this one."""
    return FIRST_PUID + (node << PUID_NODE_SHIFT) + _core.next_number()


def _enter(run: Run, me: Identity) -> None:
    global _run, _identity
    _core.set_bell_folder(str(run.folder))
    _core.set_node(run.node)
    _core.on_inquiry(_report)
    cpython.place_temporary_folder(_make_temporary_folder)
    _run, _identity = run, me


def _make_temporary_folder() -> str | None:
    if _run is None or _identity.name == _GUEST:
        return None  # a guest may outlive the run
    return run_folder.make_temporary_folder(_run.folder)


def _report() -> None:
    from dragon.runtime import inspection  # imported late: only `dragon doctor` needs it

    if _run is not None:
        inspection.answer(_run.folder)


def become(me: Identity) -> None:
    """Set the identity of this process, which was just forked from the zygote."""
    global _identity
    _identity = me


def _run_end(run: Run) -> _core.RunEnd:
    return _core.RunEnd(
        agent=run.agent.pid,
        address=str(run.folder / "agent"),
        request=frame("EndRun"),
        busy=str(run.folder / WRITING),
        folders=[str(folder) for folder in run_folder.folders_of(run.folder)],
        within=_AGENT_ENDS_WITHIN_S + variables.grace(),
    )


def end() -> None:
    """End the run if this process owns it: its processes are stopped and its files removed."""
    global _run
    run = _run
    if run is None or run.owner_pid != os.getpid():
        return
    for prepare in run.before_end:
        prepare()
    with _lock:
        _core.close_arena()
        run.close()
        _run = None
        _core.forget_run_end()
        _run_end(run).now()


def serve(run: Run) -> None:
    """Set up this process as the run's agent, or as the zygote that it becomes."""
    _enter(run, Identity(name="agent"))


def belong(run: Run, node: int, label: str, environment: dict[str, str]) -> None:
    """Set the node of this process, an agent or its zygote, in a run of several nodes."""
    os.environ.update(environment)
    run.node, run.label = node, label
    run.base_environment = dict(os.environ)
    run.environment_seen = ({}, {})
    _core.set_node(node)
