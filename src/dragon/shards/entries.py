"""What a shard has in its memory: records, their flags, and which manager holds which."""

from __future__ import annotations

from typing import Any, NamedTuple

from dragon.runtime.protocol.shards import Settings
from dragon.shards.records import place_of

__all__ = ["BROADCAST", "PERSISTENT", "Settings", "Stored", "places_of"]

# Flags of a record, as in the core.
PERSISTENT, BROADCAST = 2, 4


class Stored(NamedTuple):
    """A record in a shard, valid during its transaction."""

    flags: int
    checkpoint: int
    key: bytes
    head: bytes
    blobs: list[list[Any]]  # the pieces of each blob

    @property
    def size(self) -> int:
        """The size of the record in bytes, without the key."""
        return len(self.head) + sum(len(piece) for blob in self.blobs for piece in blob)


def places_of(key: bytes, flags: int, manager: int, before: int, now: int) -> list[int]:
    """Return which of `now` managers hold a record that `manager`, one of `before`, held.

    With equal numbers it is the same manager. Otherwise the copies of a broadcast are placed with all managers that do
    not have the key itself, a key that was put through manager() stays with its manager if that exists, and any other
    key is placed by its hash.
    """
    if before == now:
        return [manager]
    place = place_of(key, now)
    if flags & BROADCAST:
        return [other for other in range(now) if other != place]
    chosen = place_of(key, before) != manager
    return [manager if chosen and manager < now else place]
