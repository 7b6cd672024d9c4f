"""An agent before it is needed.

Most programs ask nothing of the agent. So it imports what it needs for requests when the first one comes: until then it
competes with no process of the program, has half the memory, and the end of the run waits for no import. The agent of a
program that `dragon` starts imports it at once, while the program's interpreter starts, but one module after another:
the end waits for one of them at most.
"""

from __future__ import annotations

import importlib
import itertools
import os
import select
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from dragon import _core
from dragon.agent.processes import parents
from dragon.control_groups import MemoryKills
from dragon.infrastructure import variables
from dragon.infrastructure.signals import ENDING
from dragon.runtime.folder import Owner, hold, is_alive, remove_ended, remove_folder
from dragon.runtime.run import Run, frame
from dragon.signals import heeded

_SWEEP_EVERY_S = 10.0  # seconds
# What serves requests, in pieces of a few milliseconds each.
_SERVING = (
    *("concurrent.futures", "ssl", "inspect", "asyncio", "uvloop", "dragon.infrastructure.structs"),
    *("dragon.runtime.protocol.agents", "dragon.agent.output.streams", "dragon.agent.mpi.jobs"),
    *("dragon.agent.processes.starting", "dragon.agent.groups", "dragon.agent.services", "dragon.agent.server"),
    "dragon.agent.life",
)
_MOST_EVENTS = 100
_LARGEST_EVENT = 64 * 1024
_REQUEST_WITHIN_S = 0.1  # seconds
_HEAD, _LARGEST_PEEK = 4, 64  # bytes: the length of a request, and more than any that is served here has
_END_RUN, _KEEP_TRACKER = frame("EndRun")[_HEAD:], frame("KeepTracker", 0)[_HEAD:-9]  # without the process
_CREDENTIALS = struct.Struct("iII")  # process id, user, group


class Early:
    """Waits until the agent is needed or the run ends, and has what came meanwhile: connections of processes, packets
    of events of the zygote with descriptors, and trackers of shared memory, each with the process that it is for, its
    pipe and its stderr; and the processes that the kernel has killed for lack of memory since. `owner` is the process
    whose end is the run's end."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self.owner = owner
        self.memory_kills = MemoryKills()
        self._held = hold(folder)
        self.connections: list[socket.socket] = []
        self.events: list[tuple[bytes, list[int]]] = []
        self.trackers: list[tuple[int, list[int]]] = []
        self._watched = select.poll()
        self._ends = not is_alive(owner)
        self._needed = False

    def ends(self, requests: socket.socket, events: socket.socket, idle: bool) -> bool:
        """Wait; if not `idle`, import meanwhile what serves requests. Returns whether the run ends and the agent is not
        needed for that."""
        try:
            owner_ends = _core.open_process(self.owner.pid)
        except ProcessLookupError:
            return True
        signalled = _core.signal_descriptor(heeded(ENDING), [])
        for fd in (requests.fileno(), events.fileno(), owner_ends, signalled):
            self._watched.register(fd, select.POLLIN)
        for module in itertools.chain(() if idle else _SERVING, itertools.repeat("")):
            if self._ends or self._needed:
                break
            if module:
                importlib.import_module(module)
            elif _core.reap_dead():  # of processes that the zygote did not start
                self._needed = True
            for fd, event in self._watched.poll(0 if module else _SWEEP_EVERY_S * 1000):
                if fd == requests.fileno():
                    self._accept(requests)
                elif fd == events.fileno():
                    self._read(events)
                elif fd == owner_ends:
                    self._ends = True
                elif event & select.POLLIN:
                    self._needed = True  # for a tracker that has got a message, or a signal
                else:
                    self._forget_tracker(fd)  # all writers of its pipe have closed it
        os.close(owner_ends)
        os.close(signalled)
        return self._ends and not self._needed

    def _accept(self, requests: socket.socket) -> None:
        """Take a connection, and serve the two requests that are known here: of which one has no reply, and the other
        is answered by the end of this process."""
        try:
            connection, _ = requests.accept()
        except OSError:  # without a free descriptor it stays, and the agent reports that
            self._needed = True
            return
        pid, request = _asked(connection)
        if request.startswith(_KEEP_TRACKER):
            self._keep_tracker(pid, connection)
            return
        self.connections.append(connection)
        if request == _END_RUN:
            self._ends = True
        else:
            self._needed = True

    def _keep_tracker(self, pid: int, connection: socket.socket) -> None:
        _, descriptors, _, _ = socket.recv_fds(connection, _LARGEST_PEEK, 2)
        connection.close()
        if len(descriptors) == 2:
            self.trackers.append((pid, descriptors))
            self._watched.register(descriptors[0], select.POLLIN)
        else:  # there was no room for them; the process notices it, and asks for another tracker
            for each in descriptors:
                os.close(each)

    def _forget_tracker(self, pipe: int) -> None:
        """Close the descriptors of an unused tracker: its stderr may be a pipe that somebody reads to the end."""
        self._watched.unregister(pipe)
        for tracker in [one for one in self.trackers if one[1][0] == pipe]:
            self.trackers.remove(tracker)
            for each in tracker[1]:
                os.close(each)

    def _read(self, events: socket.socket) -> None:
        data, descriptors, _, _ = socket.recv_fds(events, _LARGEST_EVENT, 8)
        if data:
            self.events.append((data, descriptors))
        self._needed |= not data or bool(descriptors) or len(self.events) > _MOST_EVENTS


def measures() -> bool:
    """Return whether telemetry is wanted, or views of the run, which begin with it."""
    try:
        views = os.environ.get(variables.TELEMETRY_PORT) or variables.dashboard() or variables.otlp()
        return bool(views or variables.telemetry_level())
    except ValueError:
        return True  # which the agent reports


def _asked(connection: socket.socket) -> tuple[int, bytes]:
    """Return the sender of a connection's first request, and the request, which is still to be read; b"" for another
    user's, and for one that does not come soon."""
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != os.getuid() or not parents.is_ready(connection.fileno(), _REQUEST_WITHIN_S):
        return pid, b""
    return pid, connection.recv(_LARGEST_PEEK, socket.MSG_PEEK)[_HEAD:]


def leave(run: Run, zygote: int, events: socket.socket, early: Early) -> NoReturn:
    """End a run that did not need its agent."""
    with suppress(OSError):  # the zygote has ended already
        events.send(parents.FAREWELL)
    events.close()
    with suppress(ProcessLookupError):
        if not parents.is_ready(_core.open_process(zygote), parents.ZYGOTE_ENDS_WITHIN_S + variables.grace()):
            os.kill(zygote, signal.SIGKILL)
    parents.end_orphans(zygote)
    for _, (reading, errors) in early.trackers:
        if parents.is_ready(reading, 0):
            parents.is_ready(_core.open_process(parents.start_tracker(reading, errors)), parents.TRACKER_ENDS_WITHIN_S)
    remove_folder(run.folder)
    remove_ended()
    os._exit(0)
