"""Which batch of which stream comes next, and how far each stream has got. No process here.

A stream is what one worker of PyTorch's DataLoader makes of an iterable-style dataset. How many there are is fixed for
an epoch, whatever becomes of the workers: the trainer takes a batch of each in turn and passes over those that have
ended, so the order of batches is the same for every number of workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dragon.serialization import dumps, loads
from torchloader.loader.checks import check_number

__all__ = ["Place", "Progress", "Share", "Start", "StreamBatch", "StreamOrder", "Turns"]


class StreamBatch(NamedTuple):
    """A batch by its number in its stream."""

    stream: int
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of stream {self.stream}"


class Progress(NamedTuple):
    """How far a stream has got: so many batches and samples were made of it. After `saved` batches its state, pickled,
    was `state`; None where it keeps none, and is made again from its beginning. Of the batches since then the dataset
    has raised at `failed`."""

    batches: int = 0
    samples: int = 0
    saved: int = 0
    state: bytes | None = None
    failed: tuple[int, ...] = ()
    ended: bool = False


class Share(NamedTuple):
    """What get_worker_info() tells a stream: its number and how many there are. Of 0 streams it tells nothing."""

    number: int
    streams: int


class Start(NamedTuple):
    """Where a worker takes up a stream, and the iterations whose streams it may still have. `copies` says that the
    dataset is not this stream's alone."""

    progress: Progress
    share: Share
    live: frozenset[int]
    copies: bool


class Place(NamedTuple):
    """Where a trainer stands in an epoch: how far it has got in each stream, and which one has the next batch."""

    progress: tuple[Progress, ...]
    turn: int


class Turns:
    """The batches of an epoch from a place on, in the order in which the trainer takes them.

    Where it takes them as they come (not `in_order`), the next one is of a stream of which the fewest are asked for:
    those of a slow stream do not take up the places of all others.
    """

    def __init__(self, place: Place, in_order: bool = True) -> None:
        self._in_order = in_order
        self._asked = [progress.batches for progress in place.progress]
        self._next = place.turn
        self._progress = list(place.progress)
        self._turn = place.turn

    def ask(self) -> StreamBatch | None:
        """The next batch to be made, None where all streams have ended."""
        streams = len(self._progress)
        turns = (each % streams for each in range(self._next, self._next + streams))
        going = [stream for stream in turns if not self._progress[stream].ended]
        if not going:
            return None
        stream = going[0] if self._in_order else min(going, key=self._pending)
        self._next = (stream + 1) % streams
        self._asked[stream] += 1
        return StreamBatch(stream, self._asked[stream] - 1)

    def _pending(self, stream: int) -> int:
        """Batches that are asked for and not taken."""
        return self._asked[stream] - self._progress[stream].batches

    def note(self, stream: int, progress: Progress) -> None:
        """The trainer has got the next batch of a stream, or found that the stream has ended."""
        self._progress[stream] = progress
        self._turn = (stream + 1) % len(self._progress)

    @property
    def place(self) -> Place:
        """Where the trainer stands."""
        return Place(tuple(self._progress), self._turn)


class StreamOrder:
    """The streams that a loader makes of an iterable-style dataset. With several ranks they are numbered through all of
    them, so that a dataset that shares its samples among workers shares them among ranks as well."""

    shuffle = False

    def __init__(
        self, dataset: Any, seed: int, batch: int | None, drop_last: bool, streams: int, rank: int, world_size: int
    ) -> None:
        self._dataset, self.seed, self._batch, self._drop_last = dataset, seed, batch, drop_last
        self.streams, self._rank, self._world_size = streams, rank, world_size
        self.told_length: int | None = None

    def __len__(self) -> int:
        """Batches, if the dataset's length is that of all its streams. Raises TypeError where it has none."""
        length = self.told_length = len(self._dataset)
        batch = self._batch or 1
        return length // batch if self._drop_last else -(-length // batch)

    def beginning(self) -> Place:
        """The place of a trainer before its first batch."""
        return Place((Progress(),) * max(1, self.streams), 0)

    def share(self, stream: int, streams: int) -> Share:
        """What a stream, of so many on this rank, is told of itself."""
        if self.streams == 0 and streams == 1:
            return Share(self._rank, 0 if self._world_size == 1 else self._world_size)
        return Share(stream * self._world_size + self._rank, streams * self._world_size)

    def tell(self, place: Place) -> dict[str, Any]:
        """A place, for a state_dict()."""
        told = [
            {
                "batches": each.batches,
                "samples": each.samples,
                "saved": each.saved,
                "state": None if each.state is None else loads(each.state),
                "failed": list(each.failed),
                "ended": each.ended,
            }
            for each in place.progress
        ]
        own = {"batch_size": self._batch, "rank": self._rank, "world_size": self._world_size}
        return {**own, "shared": self.streams > 0, "turn": place.turn, "streams": told}

    def place(self, told: dict[str, Any]) -> Place:
        """The place of which tell() told. Raises ValueError where it is not of such a loader."""
        own = {"batch_size": self._batch, "rank": self._rank, "world_size": self._world_size}
        for name, value in (*own.items(), ("shared", self.streams > 0)):
            if told.get(name) != value:
                raise ValueError(
                    f"the state is of a loader with {name}={told.get(name)}, this one has {name}={value}: what a "
                    "stream gives in the middle of an epoch depends on it"
                )
        if not told.get("streams") or told.get("turn") not in range(len(told["streams"])):
            raise ValueError("this is not the state of an ElasticDataLoader: its position has no streams, or no turn")
        streams = []
        for each in told["streams"]:
            check_number(0, batches=each["batches"], samples=each["samples"], saved=each["saved"])
            state = None if each["state"] is None else dumps(each["state"])
            counts = each["batches"], each["samples"], each["saved"]
            streams.append(Progress(*counts, state, tuple(each["failed"]), each["ended"]))
        return Place(tuple(streams), told["turn"])
