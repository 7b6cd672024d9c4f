"""The front end's decisions about a run: which nodes are lost, and which nodes hold a replicated shard.

All decisions are numbered in one sequence. Each node receives those that concern it, in order.
"""

from __future__ import annotations

from collections.abc import Collection

from dragon.runtime.protocol.front_end import Proposal


class Decisions:
    """Makes and numbers the decisions; `last` is the number of the last one."""

    def __init__(self) -> None:
        self.last = 0
        self._last_loss = 0
        self._shards: dict[tuple[str, int], int] = {}

    def lose(self) -> int:
        """Decide that a node is lost. Returns the number of the decision."""
        self.last = self._last_loss = self.last + 1
        return self.last

    def decide(self, proposal: Proposal, alive: Collection[int]) -> int | None:
        """Decide on a proposal. Returns the number of the decision, or None if the proposal is out of date: its author
        has not received an earlier decision yet."""
        shard = proposal.number, proposal.manager
        if proposal.epoch < self._shards.get(shard, 0) or proposal.seen < self._last_loss:
            return None
        if not set(proposal.holders) <= set(alive):
            return None
        self.last += 1
        self._shards[shard] = self.last
        return self.last
