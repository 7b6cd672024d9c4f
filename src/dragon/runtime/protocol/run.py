"""What is asked about a run as a whole."""

from __future__ import annotations

from dragon.infrastructure.waits import NodeWaits
from dragon.runtime.inspection import Report
from dragon.runtime.protocol.request import OfAll, Request

__all__ = ["AskSeveral", "EndRun", "ReportYourself", "Waits"]


class EndRun(Request[None], tag="end", frozen=True):
    """End the run, on all nodes."""


class ReportYourself(Request[Report], tag="report", frozen=True):
    """Say what this agent knows and has not done yet."""


class Waits(OfAll[NodeWaits], tag="waits", frozen=True):
    """What processes of each node wait for."""


class AskSeveral(Request[None], tag="several", frozen=True):
    """Take several requests at a time over this connection from now on, each with a number; see encode_numbered()."""
