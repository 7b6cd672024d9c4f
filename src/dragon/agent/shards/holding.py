"""The replicas of a shard, as of a decision of the front end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from dragon.shards.operations import Tag
from dragon.shards.shard import Shard

__all__ = ["Copies", "Holding", "Whose"]

# The dictionary's number and the manager.
Whose = tuple[str, int]


class Holding(NamedTuple):
    """The replicas of a shard by a decision of the front end, the primary first; each tells the next one."""

    epoch: int
    holders: list[int]

    def before(self, node: int) -> int | None:
        """Return the replica from which `node` receives operations; None for the primary."""
        at = self.holders.index(node)
        return self.holders[at - 1] if at else None

    def behind(self, node: int) -> int | None:
        """Return the next replica, to which `node` forwards operations; None for the last one."""
        return next(iter(self.holders[self.holders.index(node) + 1 :]), None)

    def without(self, node: int, epoch: int) -> Holding:
        """Return the replicas after the loss of a node."""
        return Holding(epoch, [holder for holder in self.holders if holder != node])


class Copies(Protocol):
    """The replicas on this node, and their holders."""

    def holding(self, whose: Whose) -> Holding:
        """Return the holders of a replicated shard. Raises LookupError if this node is none of them."""

    def hold_since(self, whose: Whose, holding: Holding) -> None:
        """Replace the holders of a shard by those of a later decision."""

    def teacher(self, whose: Whose) -> tuple[int, Tag] | None:
        """Return the node that sends this node its copy, and its tag, while the copy is incomplete; else None."""

    def copy_of(self, whose: Whose) -> Shard | None:
        """Return this node's copy of a shard; None if it has no valid one."""

    def held(self) -> Iterator[tuple[Whose, Shard]]:
        """Yield every valid copy on this node, with its shard."""
