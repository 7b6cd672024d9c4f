"""Processes of the run by name or puid, as their agents know them."""

from __future__ import annotations

import os
import signal
import time

from dragon import _core
from dragon.infrastructure.errors import ProcessError
from dragon.infrastructure.facts import FIRST_PUID
from dragon.infrastructure.process_desc import ProcessDescriptor
from dragon.infrastructure.start_request import CODE, EXITED, RUNNING, STATUS
from dragon.runtime.agent_client import Unwanted, ask
from dragon.runtime.arguments import checked_signal
from dragon.runtime.handle import Words
from dragon.runtime.nodes import own_node, run_nodes
from dragon.runtime.protocol.run import AwaitEnd, FindNamedProcesses, FindProcess, KillProcess, Known, ListProcesses
from dragon.runtime.run import identity, this_run


def children_of(puid: int) -> list[int]:
    """Return the puids of the processes that a process started."""
    return [known.puid for known in ask(ListProcesses()) if known.parent == puid]


def look_up(identifier: int | str) -> ProcessDescriptor:
    """Return the process of that puid or name, also if it has ended, without its children."""
    try:
        known = _find(identifier)
    except LookupError as error:
        me, node = identity(), own_node()  # a head process or guest belongs to the run but was not started by it
        if identifier in (me.puid, me.name):
            return ProcessDescriptor(me.puid, os.getpid(), me.name, p_p_uid=0, node=node.index, h_uid=node.h_uid)
        if identifier in (FIRST_PUID, "head"):
            return ProcessDescriptor(FIRST_PUID, this_run().owner_pid, "head", p_p_uid=0, h_uid=_host_id(0))
        raise ProcessError(str(error)) from None
    return ProcessDescriptor(
        p_uid=known.puid,
        pid=known.pid,
        name=known.name,
        p_p_uid=known.parent,
        group=known.group,
        node=known.node,
        h_uid=_host_id(known.node),
        record=known.record,
        ecode=known.code,
    )


def _find(identifier: int | str) -> Known:
    """Return a process; of several with the same name, one that runs is preferred. Raises LookupError."""
    if isinstance(identifier, int):
        return ask(FindProcess(identifier))
    found = ask(FindNamedProcesses(identifier))
    if not found:
        raise LookupError(f"the run has no process {identifier!r}")
    return max(found, key=lambda known: (known.code is None, known.started))


def _host_id(index: int) -> int:
    return next((node.h_uid for node in run_nodes() if node.index == index), 0)


def kill(identifier: int | str, sig: int = signal.SIGKILL, hide_stderr: bool = False) -> None:
    """Send a signal to a process; does nothing if it has ended. Raises ProcessError if there is no such process."""
    number = checked_signal(sig)
    try:
        ask(KillProcess(identifier if isinstance(identifier, int) else _find(identifier).puid, number))
    except LookupError as error:
        raise ProcessError(str(error)) from None


def join(identifier: int | str, timeout: float | None = None) -> int | None:
    """Wait for a process to end. Returns its exit code, or None after `timeout` seconds."""
    known = look_up(identifier)
    if known.p_uid == identity().puid:
        raise ProcessError("a process cannot wait for its own end")
    if known.ecode is not None:
        return known.ecode
    if known.record is None:
        raise ProcessError(f"{known.name} was not started by the run and cannot be waited for")
    try:
        record = Words._attached(known.record)
    except _core.DestroyedError:
        return join(identifier, timeout)  # the process ended between the two steps
    deadline = None if timeout is None else time.monotonic() + timeout
    if record.wait(STATUS, RUNNING, timeout) is None or record[STATUS] != EXITED:
        return None
    if known.node != this_run().node:  # what it has put into queues is there then
        try:
            return ask(AwaitEnd(known.p_uid), deadline=deadline)
        except Unwanted:
            return None
        except LookupError:
            pass  # it is no longer known there, as so many have ended since
    code = record[CODE]
    return code - 2**64 if code >= 2**63 else code
