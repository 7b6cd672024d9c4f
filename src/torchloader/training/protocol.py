"""The messages between an application master and the ranks of its applications, as JSON over queues of the run."""

from __future__ import annotations

from typing import Annotated

import msgspec


class _Message(msgspec.Struct, frozen=True, tag=True):
    """An order or a report; the name of its class is its tag."""


class Resize(_Message, frozen=True):
    """Use `workers` loading workers; `away` has the node of each that runs on another node."""

    workers: Annotated[int, msgspec.Meta(ge=0)]
    reason: str = ""
    away: tuple[str, ...] = ()

    def for_rank(self, place: int, ranks: int) -> Resize:
        """Return a rank's part of the order for all ranks on a node, by its index among them."""
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
    """What the rank did since the previous report."""

    rank: int
    iteration: int  # iterations completed in total, including those before a pause
    samples: int  # trained on
    waiting: float  # seconds in which it waited for data
    computing: float  # and in which it did not
    workers: int  # loading workers that take batches now
    service: float | None = None  # seconds of a worker's time per sample; None if none was made
    loss: float | None = None  # the loss of the last iteration, if the program records it


class Resized(_Message, frozen=True):
    """`workers` workers take batches now, `seconds` after the order was received."""

    rank: int
    workers: int
    seconds: float


class Paused(_Message, frozen=True):
    """The checkpoint after that many iterations is on disk, and the rank leaves."""

    rank: int
    iteration: int


class Cancelled(_Message, frozen=True):
    """The rank leaves because of a Cancel order."""

    rank: int
    iteration: int


class Finished(_Message, frozen=True):
    """The program has ended."""

    rank: int
    iteration: int


class Failed(_Message, frozen=True):
    """The program raised an error; `text` is the traceback."""

    rank: int
    text: str


Order = Resize | Pause | Cancel
Report = Started | Progress | Resized | Paused | Cancelled | Finished | Failed

_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_reports: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(message: Order | Report) -> bytes:
    return msgspec.json.encode(message)


def decode_order(data: bytes) -> Order:
    """Decode an order. Raises msgspec.ValidationError if it is invalid."""
    return _orders.decode(data)


def decode_report(data: bytes) -> Report:
    """Decode a report. Raises msgspec.ValidationError if it is invalid."""
    return _reports.decode(data)
