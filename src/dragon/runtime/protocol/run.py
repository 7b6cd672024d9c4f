"""Requests about a run as a whole, and about its processes."""

from __future__ import annotations

from signal import SIGKILL
from typing import ClassVar

from dragon.infrastructure.messages import Spawn
from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.inspection import Report
from dragon.runtime.protocol.request import BetweenAgents, OfAll, OfProcess, Request


class Known(msgspec.Struct):
    """What an agent knows of a process: its ids, its record in shared memory while it is alive, its exit code
    afterwards. Times are in seconds since 1970. `terminated` says whether it ended by a signal that was requested."""

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


class ListProcesses(OfAll[Known]):
    """Return every process, also those that have ended."""


class FindProcess(OfProcess[Known]):
    """Return a process. Raises LookupError."""

    repeatable: ClassVar[bool] = True


class FindNamedProcesses(OfAll[Known]):
    """Return the process of each node that last had that name."""

    name: str


class KillProcess(OfProcess[None]):
    """Send a signal to a process. Raises LookupError."""

    number: int = SIGKILL


class AwaitEnd(OfProcess[int]):
    """Wait for a process to end, and return its exit code. Raises LookupError."""

    repeatable: ClassVar[bool] = True


class EndStartedBy(BetweenAgents[None]):
    """End the receiving node's processes that an ended process of another node had started; by SIGKILL if `killed`."""

    creator: int
    killed: bool


class StartElsewhere(Request[tuple[int, list[int]]]):
    """Start a process on another node. Replies with its puid and its record's words; see `spawn.record`."""

    spawn: Spawn


class KeepTracker(Request[None]):
    """Start Python's tracker of shared memory once data arrives on its pipe, which is sent along with its stderr."""

    process: int


class GiveTrackerBack(Request[bool]):
    """Forget an unused tracker, by the inode of its pipe. Replies with whether it was unused."""

    pipe: int


class Waiter(msgspec.Struct, frozen=True):
    """A thread that waits. `puid` is 0 and the name empty if the run did not start the process."""

    node: int
    pid: int
    puid: int
    name: str
    seconds: float


class Waited(msgspec.Struct, frozen=True):
    """An object of a node that `count` threads wait for, those that wait longest as `waiters`; it "waits" `text`."""

    node: int
    text: str
    count: int
    waiters: list[Waiter]


class NodeWaits(msgspec.Struct, frozen=True):
    """All waits on a node. `processes` is the number of the node's processes that wait, however shortly, and `seconds`
    the shortest time that any of their waiting threads has waited so far."""

    node: int
    host: str
    processes: int
    seconds: float
    objects: list[Waited]


class EndRun(Request[None]):
    """End the run, on all nodes."""


class LostNode(msgspec.Struct, frozen=True):
    """A node that was part of the run, and why it no longer is."""

    host_name: str
    host_id: int
    reason: str


class LostNodes(Request[list[LostNode]]):
    """Return the nodes that the run has lost."""


class ReportYourself(Request[Report]):
    """Return the agent's state and its pending work."""


class Waits(OfAll[NodeWaits]):
    """Return what processes of each node wait for."""
