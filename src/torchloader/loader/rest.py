"""The rest of an epoch of a map-style dataset: which of its batches the trainer has not received. Starts no process.

If batches are given in order, a position describes it. Otherwise the trainer may have batches after one that it does
not have yet: then there are gaps, at most as many as there are batches in flight.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torchloader.loader.checks import check_number
from torchloader.loader.order import Indices, Order
from torchloader.loader.samplers import digest

__all__ = ["Gaps", "Part", "Rest", "standing_of", "tell"]

# Of an epoch: from one position to another.
Part = tuple[int, int]


class Gaps(NamedTuple):
    """The position of a trainer with in_order=False: it has all samples before `position`, and the parts `beyond` after
    it."""

    position: int
    beyond: tuple[Part, ...]


class Rest:
    """The batches that the trainer does not have, in order, and its position as it receives them in any order."""

    def __init__(
        self, order: Order, epoch: int, standing: int | Gaps, before: int | None, in_order: bool, has_digest: bool
    ) -> None:
        """Args:
        order: the order of the epoch's batches.
        epoch: its number.
        standing: the position of the trainer at first.
        before: the digest of the samples before that, if known.
        in_order: whether the trainer receives batches in order, unless there are gaps already.
        has_digest: whether a digest is to be computed."""
        self._is_gapped = isinstance(standing, Gaps) or not in_order
        position, beyond = standing if isinstance(standing, Gaps) else (standing, ())
        self._beyond: tuple[Part, ...] = beyond
        self._had = self._beyond  # before this iteration
        self._batches = order.batches(epoch, position, before)
        self._drawn = position
        self._digest = before or 0
        self._has_digest = has_digest
        self._open: dict[int, int] = {}  # drawn and not given, by the first position: the digest of what is before

    def draw(self) -> tuple[Indices, Part] | None:
        """Return the next batch that the trainer does not have, and its part of the epoch; None at the end. Raises what
        a sampler raises."""
        for indices, end in self._batches:
            start, before = self._drawn, self._digest
            self._drawn = end
            if self._has_digest:
                self._digest = digest(indices if isinstance(indices, list) else [indices], before)
            if not any(first <= start < last for first, last in self._had):
                self._open[start] = before
                return indices, (start, end)
        return None

    def give(self, part: Part) -> int | Gaps:
        """Note that the trainer receives a drawn batch. Returns its new position."""
        del self._open[part[0]]
        position = next(iter(self._open), self._drawn)
        if not self._is_gapped:
            return position
        self._beyond = _joined([*self._beyond, part], position)
        return Gaps(position, self._beyond)

    @property
    def digest(self) -> int:
        """The digest of the samples before the trainer's position."""
        return next(iter(self._open.values()), self._digest)


def _joined(parts: Iterable[Part], position: int) -> tuple[Part, ...]:
    """Return the parts after `position`, sorted, with adjacent ones joined."""
    joined: list[Part] = []
    for start, end in sorted(parts):
        first = max(start, position)
        if joined and joined[-1][1] == first:
            joined[-1] = joined[-1][0], end
        elif first < end:
            joined.append((first, end))
    return tuple(joined)


def tell(standing: int | Gaps, batch: int, place: tuple[int, int]) -> dict[str, Any]:
    """Return a position in the form of state_dict().

    `batch` is by how much a full batch advances the position, `place` is (rank, world size). With several ranks the
    place is included even without gaps, as other ranks may have some.
    """
    if not isinstance(standing, Gaps):
        return {"position": standing}
    position, beyond = standing
    if not beyond and place[1] == 1:
        return {"position": position}
    given = [list(part) for part in beyond]
    return {"position": position, "beyond": {"given": given, "batch": batch, **_named(place)}}


def standing_of(state: dict[str, Any], batch: int, place: tuple[int, int]) -> int | Gaps:
    """Return the position from the form that tell() returns.

    Raises TypeError or ValueError if the state is not valid, ValueError if it does not fit a loader of that batch and
    place.
    """
    check_number(0, position=state["position"])
    position, beyond = int(state["position"]), state.get("beyond")
    if beyond is None:
        return position
    told, own = beyond["rank"], beyond["world_size"]
    if own > 1 and (told, own) != place:
        raise ValueError(
            f"the state is of rank {told} of {own}, which got its batches in an order of its own (in_order=False), "
            f"this is rank {place[0]} of {place[1]}: save the state of each rank, and load it on the same one"
        )
    if beyond["given"] and beyond["batch"] != batch:
        raise ValueError(
            f"the state has batches of {beyond['batch']} samples that were given out of turn (in_order=False), this "
            f"loader makes batches of {batch}, over all ranks: go on with the batch_size, or the batches, of before"
        )
    return Gaps(position, tuple((int(start), int(end)) for start, end in beyond["given"]))


def _named(place: tuple[int, int]) -> dict[str, int]:
    return {"rank": place[0], "world_size": place[1]}
