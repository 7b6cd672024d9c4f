"""Which nodes keep a shard, and since which decision of the front end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from dragon.shards.shard import Shard

__all__ = ["Copies", "Holding", "Tag", "Whose"]

# The dictionary's number and the manager.
Whose = tuple[str, int]


class Tag(NamedTuple):
    """Says when a message about a shard was meant: the decision by which its sender knew the holders, and, for a node
    that is given a copy and does not count yet, which giving it is (else 0)."""

    epoch: int
    fill: int = 0


class Holding(NamedTuple):
    """The holders of a shard, the one that decides first, by the front end's decision of a number. What a holder does,
    it has the one behind it do."""

    epoch: int
    holders: list[int]

    def before(self, node: int) -> int | None:
        """The holder from which that one takes what is to be done."""
        at = self.holders.index(node)
        return self.holders[at - 1] if at else None

    def behind(self, node: int) -> int | None:
        """The holder to which that one passes it on."""
        return next(iter(self.holders[self.holders.index(node) + 1 :]), None)

    def without(self, node: int, epoch: int) -> Holding:
        """The holders after a loss."""
        return Holding(epoch, [holder for holder in self.holders if holder != node])


class Copies(Protocol):
    """What this node knows of who holds what."""

    def holding(self, whose: Whose) -> Holding:
        """Return the holders of a replicated shard. Raises LookupError where this node is none of them."""

    def hold_since(self, whose: Whose, holding: Holding) -> None:
        """Replace the holders of a shard by those of a later decision."""

    def teacher(self, whose: Whose) -> tuple[int, Tag] | None:
        """Return the node that gives this one its copy, and the tag of that, while the copy is not complete; else
        None."""

    def copy_of(self, whose: Whose) -> Shard | None:
        """Return this node's copy of a shard, None where it has no valid one."""

    def held(self) -> Iterator[tuple[Whose, Shard]]:
        """Yield every valid copy on this node, with the shard that it is of."""
