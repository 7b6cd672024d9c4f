"""The groups that a node follows, wherever their members run."""

from __future__ import annotations

from dragon.agent.groups.group import Group
from dragon.agent.groups.group_jobs import Home
from dragon.infrastructure.facts import PUID_NODE_SHIFT
from dragon.runtime.protocol import groups
from dragon.runtime.protocol.agents import MemberEvent
from dragon.runtime.protocol.request import Caller, Handler


class Groups:
    """All groups that were created on this node; their members may be on others."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.present: dict[int, Group] = {}  # those that were not closed, by number
        self._last = 0

    def all(self) -> list[Group]:
        """Return every group that was not closed."""
        return list(self.present.values())

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [
            groups.CreateGroup.served_for(self.create),
            groups.StartGroup.served_by(lambda r: self._group(r.number).start()),
            groups.SignalGroup.served_by(lambda r: self._group(r.number).signal(r.which)),
            groups.StopGroup.served_by(lambda r: self._group(r.number).stop(r.patience)),
            groups.StopRestart.served_by(lambda r: self._group(r.number).stop_restart()),
            groups.IsGroupEnding.served_by(lambda r: r.number not in self.present or self.present[r.number].ending),
            groups.GroupStatus.served_by(lambda r: self._group(r.number).status()),
            groups.MemberStream.served_by(lambda r: self._group(r.number).stream(r.puid, r.stream)),
            groups.EndInput.served_by(self.end_input),
            groups.CloseGroup.served_by(lambda r: self.close(r.number)),
        ]

    def create(self, wanted: groups.CreateGroup, caller: Caller) -> groups.MadeGroup:
        """Create a group, whose creator's streams are sent along."""
        self._last += 1
        number = (self._home.node << PUID_NODE_SHIFT) + self._last
        group = self.present[number] = Group(number, wanted, caller.descriptors, self._home)
        return groups.MadeGroup(number, group.words._name())

    def _group(self, number: int) -> Group:
        group = self.present.get(number)
        if group is None:
            raise LookupError("the group was closed")
        return group

    def end_input(self, wanted: groups.EndInput) -> None:
        """Close our end of a member's standard input, if the group exists."""
        if wanted.number in self.present:
            self.present[wanted.number].end_input(wanted.puid)

    def close(self, number: int) -> None:
        """Remove a group, and kill its live members."""
        group = self.present.pop(number, None)
        if group is not None:
            group.close()

    def close_all(self) -> None:
        """Close all groups."""
        for number in list(self.present):
            self.close(number)

    def on_event(self, event: MemberEvent) -> None:
        """Handle the end of a member, or that it could not be started."""
        group = self.present.get(event.group)
        if group is not None:
            group.on_event(event)

    def node_lost(self, node: int, reason: str) -> None:
        """Handle the loss of the members on a node."""
        for group in self.all():
            group.node_lost(node, reason)
