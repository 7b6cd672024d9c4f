"""What is asked about processes."""

from __future__ import annotations

from signal import SIGKILL

import msgspec

from dragon.infrastructure.messages import Name, Spawn
from dragon.runtime.protocol.request import BetweenAgents, OfAll, OfProcess, Request

__all__ = [
    "AwaitEnd",
    "EndStartedBy",
    "FindProcess",
    "GiveTrackerBack",
    "KeepTracker",
    "KillProcess",
    "Known",
    "ListProcesses",
    "StartElsewhere",
]


class Known(msgspec.Struct):
    """A process: its ids, its place in shared memory while it lives, its exit code afterwards.

    Times are in seconds since 1970. It is `terminated` if it ended by a signal that was asked for.
    """

    puid: int
    pid: int
    name: str
    parent: int
    group: int
    record: Name
    node: int = 0
    code: int | None = None
    started: float = 0.0
    ended: float | None = None
    terminated: bool = False


class ListProcesses(OfAll[Known], tag="registry.processes", frozen=True):
    """Every process, ended ones too."""


class FindProcess(OfProcess[Known], tag="registry.query", frozen=True):
    """What is known of a process; of those of one name, one that runs before one that has ended. Raises LookupError."""


class KillProcess(OfProcess[None], tag="registry.kill", frozen=True):
    """Send a signal. Raises LookupError."""

    number: int = SIGKILL


class AwaitEnd(OfProcess[int], tag="registry.end_of", frozen=True):
    """The exit code of a process, once it has ended. Raises LookupError."""


class EndStartedBy(BetweenAgents[None], tag="registry.end_started_by", frozen=True):
    """End what a process of another node, which has ended, had started on yours: killed if that was, else asked
    before."""

    creator: int
    killed: bool


class StartElsewhere(Request[list[tuple[int, Name]]], tag="processes.start", frozen=True):
    """Start a process on another node; its puid and the name of its record."""

    spawn: Spawn


class KeepTracker(Request[None], tag="trackers.keep", frozen=True):
    """Start Python's tracker of shared memory for a process, once its pipe, the first descriptor, has something to
    read; the second is where it complains."""

    process: int


class GiveTrackerBack(Request[bool], tag="trackers.give_back", frozen=True):
    """Forget a tracker that was never told anything, by the inode of its pipe; whether it is such a one."""

    pipe: int
