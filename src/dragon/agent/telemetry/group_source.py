"""What the agent counts itself: the members of process groups, and the size of its history."""

from __future__ import annotations

from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.metrics import Sample, tags_of

__all__ = ["GroupSource"]


class GroupSource:
    """The process groups that this agent follows, and its history."""

    name = "the groups"

    def read(self, seen: Seen) -> list[Sample]:
        """Return the number of live members and of restarts of each group, and the size of the history."""
        samples = [Sample("db_size", seen.history)]
        for group in seen.groups:
            samples.append(Sample("group_live", group.live, tags_of(group=group.name)))
            samples.append(Sample("group_restarts", group.restarts, tags_of(group=group.name)))
        return samples
