"""Requests about a run as a whole."""

from __future__ import annotations

import msgspec

from dragon.infrastructure.waits import NodeWaits
from dragon.runtime.inspection import Report
from dragon.runtime.protocol.request import OfAll, Request


class EndRun(Request[None], tag="end", frozen=True):
    """End the run, on all nodes."""


class LostNode(msgspec.Struct, frozen=True):
    """A node that was part of the run, and why it no longer is."""

    host_name: str
    host_id: int
    reason: str


class LostNodes(Request[list[LostNode]], tag="lost", frozen=True):
    """Return the nodes that the run has lost."""


class ReportYourself(Request[Report], tag="report", frozen=True):
    """Return the agent's state and its pending work."""


class Waits(OfAll[NodeWaits], tag="waits", frozen=True):
    """Return what processes of each node wait for."""


class AskSeveral(Request[None], tag="several", frozen=True):
    """Accept several pending requests over this connection from now on, each with a number; see encode_numbered()."""
