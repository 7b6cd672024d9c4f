"""An agent before it is needed.

Many programs end soon, and ask nothing of the agent. So it imports what it needs for requests when the first one comes,
or after a while: until then it competes with no process of the program, and the end of the run waits for no import.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from contextlib import suppress
from typing import NamedTuple, NoReturn

from dragon import _core
from dragon.agent.processes.parents import TRACKER_ENDS_WITHIN_S, ZYGOTE_ENDS_WITHIN_S, end_orphans, start_tracker
from dragon.infrastructure import variables
from dragon.infrastructure.signals import ENDING
from dragon.runtime.folder import Owner, is_alive, remove_ended, remove_folder
from dragon.runtime.run import Run
from dragon.signals import heeded

_IDLE_S = 0.5  # seconds
_MOST_EVENTS = 100
_LARGEST_EVENT = 64 * 1024
_REQUEST_WITHIN_S = 0.1  # seconds
_HEAD, _LARGEST_PEEK = 4, 64  # bytes: the length of a request, and more than any that is served here has
_CREDENTIALS = struct.Struct("iII")  # process id, user, group


class Early(NamedTuple):
    """What came before the agent served: connections of processes, packets of events of the zygote with descriptors,
    and trackers of shared memory, each with the process that it is for, its pipe and its stderr. `owner` is the process
    whose end is the run's end."""

    owner: Owner
    connections: list[socket.socket]
    events: list[tuple[bytes, list[int]]]
    trackers: list[tuple[int, list[int]]]


def measures() -> bool:
    """Return whether telemetry is wanted, which begins with the run."""
    try:
        return variables.telemetry_level() > 0
    except ValueError:
        return True  # which the agent reports


def ends_early(early: Early, requests: socket.socket, events: socket.socket) -> bool:
    """Wait until the agent is needed, or the run ends. Returns whether it ends and the agent is not needed for that."""
    from dragon.infrastructure.messages import encode  # these are not imported before the zygote is forked
    from dragon.runtime.protocol.processes import KeepTracker
    from dragon.runtime.protocol.run import EndRun

    # The two requests that are served here. The latter has no reply.
    end, keep_tracker = encode(EndRun()), encode(KeepTracker(0))[:-1]
    try:
        owner_ends = _core.open_process(early.owner.pid)
    except ProcessLookupError:
        return True
    asked_to_end = _core.signal_descriptor(heeded(ENDING), [])
    watched = select.poll()
    for fd in (requests.fileno(), events.fileno(), owner_ends, asked_to_end):
        watched.register(fd, select.POLLIN)
    ends, needed, until = not is_alive(early.owner), False, time.monotonic() + _IDLE_S
    while not (ends or needed or time.monotonic() > until):
        for fd, event in watched.poll(_IDLE_S * 1000):
            if fd == owner_ends:
                ends = True
            elif fd == requests.fileno():
                connection, _ = requests.accept()
                pid, request = _asked(connection)
                if request.startswith(keep_tracker):
                    early.trackers.append((pid, socket.recv_fds(connection, _LARGEST_PEEK, 2)[1]))
                    watched.register(early.trackers[-1][1][0], select.POLLIN)
                    connection.close()
                    continue
                early.connections.append(connection)
                ends, needed = ends or request == end, needed or request != end
            elif fd == events.fileno():
                data, descriptors, _, _ = socket.recv_fds(events, _LARGEST_EVENT, 8)
                early.events.extend([(data, descriptors)] if data else [])
                needed |= not data or bool(descriptors) or len(early.events) > _MOST_EVENTS
            elif event & select.POLLIN:
                needed = True  # for a tracker that has got a message, or a signal
            else:
                watched.unregister(fd)  # all writers of a tracker's pipe have closed it
    os.close(owner_ends)
    os.close(asked_to_end)
    return ends and not needed


def _asked(connection: socket.socket) -> tuple[int, bytes]:
    """Return the sender of a connection's first request, and the request, which is still to be read; b"" for another
    user's, and for one that does not come soon."""
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != os.getuid() or not _is_ready(connection.fileno(), _REQUEST_WITHIN_S):
        return pid, b""
    return pid, connection.recv(_LARGEST_PEEK, socket.MSG_PEEK)[_HEAD:]


def _is_ready(fd: int, within: float) -> bool:
    watched = select.poll()
    watched.register(fd, select.POLLIN)
    return any(event & select.POLLIN for _, event in watched.poll(within * 1000))


def leave(run: Run, zygote: int, events: socket.socket, early: Early) -> NoReturn:
    """End a run that did not need its agent."""
    from dragon.infrastructure.messages import FAREWELL

    with suppress(OSError):  # the zygote has ended already
        events.send(FAREWELL)
    events.close()
    with suppress(ProcessLookupError):
        if not _is_ready(_core.open_process(zygote), ZYGOTE_ENDS_WITHIN_S + variables.grace()):
            os.kill(zygote, signal.SIGKILL)
    end_orphans(zygote)
    for _, (reading, errors) in early.trackers:
        if _is_ready(reading, 0):
            _is_ready(_core.open_process(start_tracker(reading, errors)), TRACKER_ENDS_WITHIN_S)
    remove_folder(run.folder)
    remove_ended()
    os._exit(0)
