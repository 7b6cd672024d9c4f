"""The front end's decisions about a run: who is lost, and which nodes keep a replicated shard. All are numbered, in one
sequence; a node hears of those that concern it in their order."""

from __future__ import annotations

from collections.abc import Collection

from dragon.runtime.protocol.front_end import Proposal

__all__ = ["Decisions"]


class Decisions:
    """Makes and numbers them; `last` is the number of the last one."""

    def __init__(self) -> None:
        self.last = 0
        self._last_loss = 0
        self._shards: dict[tuple[str, int], int] = {}

    def lose(self) -> int:
        """A node is lost: the number of that decision."""
        self.last = self._last_loss = self.last + 1
        return self.last

    def decide(self, proposal: Proposal, alive: Collection[int]) -> int | None:
        """The number of the decision for a proposal, None where the proposal is out of date: who made it does not know
        yet of a decision, which is on its way there."""
        shard = proposal.number, proposal.manager
        if proposal.epoch < self._shards.get(shard, 0) or proposal.seen < self._last_loss:
            return None
        if not set(proposal.holders) <= set(alive):
            return None
        self.last += 1
        self._shards[shard] = self.last
        return self.last
