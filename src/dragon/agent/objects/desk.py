"""The desk of a node: the channel in which its processes put operations on objects, for those that a run of one node
needs: what event loops wait for."""

from __future__ import annotations

from dragon import _core
from dragon.agent.objects.peers import Peers
from dragon.runtime.protocol.objects import OpenDesk
from dragon.runtime.protocol.request import Handler

__all__ = ["Desk"]


class Desk:
    """The desk, open from the beginning in a run of several nodes; `peers` are None if the run has only one."""

    def __init__(self, peers: Peers | None) -> None:
        self.wire = peers.links.wire if peers is not None else None
        if self.wire is not None:
            self.wire.open_desk()

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [OpenDesk.served_by(lambda r: self._open())]

    def _open(self) -> None:
        if self.wire is None:
            self.wire = _core.Wire(0)
            self.wire.open_desk()

    def look_at_all(self) -> None:
        """Look at all that is waited for."""
        if self.wire is not None:
            self.wire.look_at_all()
