"""The messages between an application master and the ranks of its applications, as JSON over queues of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

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


class Leaves(_Message, frozen=True):
    """The rank leaves. If it paused, the checkpoint after that many iterations is on disk."""

    rank: int
    iteration: int
    how: Literal["paused", "cancelled", "finished"]


class Failed(_Message, frozen=True):
    """The program raised an error; `text` is the traceback."""

    rank: int
    text: str


Order = Resize | Pause | Cancel
Report = Started | Progress | Resized | Leaves | Failed

encode = msgspec.json.encode
# Both raise msgspec.ValidationError for an invalid message.
decode_order: Callable[[bytes], Order] = msgspec.json.Decoder(Order).decode
decode_report: Callable[[bytes], Report] = msgspec.json.Decoder(Report).decode
