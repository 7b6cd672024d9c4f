"""What an application master and the ranks of its applications say to each other, as JSON over queues of the run."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = [
    "Cancel",
    "Cancelled",
    "Failed",
    "Finished",
    "Order",
    "Pause",
    "Paused",
    "Progress",
    "Report",
    "Resize",
    "Resized",
    "Started",
    "decode_order",
    "decode_report",
    "encode",
]


class _Message(msgspec.Struct, frozen=True, tag=True):
    """An order or a report; its class's name is its tag."""


class Resize(_Message, frozen=True):
    """Have `workers` loading workers, for that reason; for each that is on another node, `away` names that."""

    workers: Annotated[int, msgspec.Meta(ge=0)]
    reason: str = ""
    away: tuple[str, ...] = ()

    def for_rank(self, place: int, ranks: int) -> Resize:
        """The part of a rank in the order for all on a node, by its place among them."""
        return msgspec.structs.replace(self, away=self.away[place::ranks])


class Pause(_Message, frozen=True):
    """Save a checkpoint after the next iteration that all ranks agree on, and leave."""


class Cancel(_Message, frozen=True):
    """Leave after the next iteration that all ranks agree on."""


class Started(_Message, frozen=True):
    """The rank is about to train, from that iteration on."""

    rank: int
    iteration: int
    workers: int


class Progress(_Message, frozen=True):
    """What the rank did since the report before.

    Args:
        iteration: how many it has done in all, those before a pause too.
        samples: trained on since the report before.
        waiting, computing: seconds since the report before that it waited for data, and that it did not.
        workers: loading workers that take batches now.
        service: seconds of a worker's time that a sample took, since the report before; None where none was made.
        shared: seconds of what all workers share that a sample takes; None where that is not known.
        loss: of the last iteration, where the program tells it.
    """

    rank: int
    iteration: int
    samples: int
    waiting: float
    computing: float
    workers: int
    service: float | None = None
    shared: float | None = None
    loss: float | None = None


class Resized(_Message, frozen=True):
    """So many workers take batches now, `seconds` after the order came."""

    rank: int
    workers: int
    seconds: float


class Paused(_Message, frozen=True):
    """The checkpoint after that many iterations is on disk, and the rank leaves."""

    rank: int
    iteration: int


class Cancelled(_Message, frozen=True):
    """The rank leaves as it was told."""

    rank: int
    iteration: int


class Finished(_Message, frozen=True):
    """The program has come to its end."""

    rank: int
    iteration: int


class Failed(_Message, frozen=True):
    """The program raised; `text` is the traceback."""

    rank: int
    text: str


Order = Resize | Pause | Cancel
Report = Started | Progress | Resized | Paused | Cancelled | Finished | Failed

_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_reports: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(message: Order | Report) -> bytes:
    """As it goes through a queue."""
    return msgspec.json.encode(message)


def decode_order(data: bytes) -> Order:
    """Raises msgspec.ValidationError for what is no order."""
    return _orders.decode(data)


def decode_report(data: bytes) -> Report:
    """Raises msgspec.ValidationError for what is no report."""
    return _reports.decode(data)
