"""Requests about a run as a whole."""

from __future__ import annotations

from dragon.infrastructure.structs import msgspec
from dragon.runtime.inspection import Report
from dragon.runtime.protocol.request import OfAll, Request


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
