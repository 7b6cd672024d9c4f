"""Decides which batch of which stream comes next. Starts no process.

A stream is what one worker of PyTorch's DataLoader makes of an iterable-style dataset. The number of streams is fixed
for an epoch and independent of the workers: the trainer takes a batch of each in turn and skips those that have ended,
so the order of batches is the same for every number of workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dragon.serialization import dumps, loads
from torchloader.loader.options import check_number


class StreamBatch(NamedTuple):
    """A batch, by its stream and its number there."""

    stream: int
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of stream {self.stream}"


class Progress(NamedTuple):
    """The progress of a stream.

    Attributes:
        batches: batches that were made.
        samples: samples that were made.
        saved: the number of batches after which its state was saved.
        state: the pickled state; None if the stream has none and is read again from its beginning.
        failed: the batches for which the dataset raised an error.
        ended: whether it has no more batches.
        digest: that of the first batch after the state; empty if it was not made, or is not known.
        is_exact: whether no state of the stream was found to differ from what was read.
    """

    batches: int = 0
    samples: int = 0
    saved: int = 0
    state: bytes | None = None
    failed: tuple[int, ...] = ()
    ended: bool = False
    digest: str = ""
    is_exact: bool = True


class Share(NamedTuple):
    """What get_worker_info() returns in a stream: its number and the number of streams. With 0 streams it
    returns None."""

    number: int
    streams: int


class Start(NamedTuple):
    """Where a worker continues a stream, and the iterations whose streams it may keep.

    `copies` means that other streams use the dataset too, so the worker must copy it.
    """

    progress: Progress
    share: Share
    live: frozenset[int]
    copies: bool


class Place(NamedTuple):
    """The position of a trainer in an epoch: the progress of each stream, and the stream whose turn it is."""

    progress: tuple[Progress, ...]
    turn: int


class Turns:
    """The batches of an epoch from a place on, in the order in which the trainer takes them.

    Without `in_order`, the next batch is of a stream with the fewest pending ones, so that a slow stream does not use
    the places of all others.
    """

    def __init__(self, place: Place, in_order: bool = True) -> None:
        self._in_order = in_order
        self._asked = [progress.batches for progress in place.progress]
        self._next = place.turn
        self._progress = list(place.progress)
        self._turn = place.turn

    def ask(self) -> StreamBatch | None:
        """Return the next batch to make; None if all streams have ended."""
        streams = len(self._progress)
        turns = *range(self._next, streams), *range(self._next)
        going = [stream for stream in turns if not self._progress[stream].ended]
        if not going:
            return None
        stream = going[0] if self._in_order else min(going, key=self._pending)
        self._next = (stream + 1) % streams
        self._asked[stream] += 1
        return StreamBatch(stream, self._asked[stream] - 1)

    def _pending(self, stream: int) -> int:
        """Return the number of batches that are requested and not taken."""
        return self._asked[stream] - self._progress[stream].batches

    def note(self, stream: int, progress: Progress) -> None:
        """Note that the trainer has received the next batch of a stream, or that the stream has ended."""
        self._progress[stream] = progress
        self._turn = (stream + 1) % len(self._progress)

    @property
    def place(self) -> Place:
        """The position of the trainer."""
        return Place(tuple(self._progress), self._turn)


class StreamOrder:
    """The streams that a loader makes of an iterable-style dataset.

    With several ranks they are numbered across all ranks, so that a dataset that divides its samples among workers
    divides them among ranks as well.
    """

    shuffle = False

    def __init__(
        self, dataset: Any, seed: int, batch: int | None, drop_last: bool, streams: int, rank: int, world_size: int
    ) -> None:
        self._dataset, self.seed, self._batch, self._drop_last = dataset, seed, batch, drop_last
        self.streams, self._rank, self._world_size = streams, rank, world_size
        self.told_length: int | None = None

    def __len__(self) -> int:
        """Return the number of batches if the dataset's length is that of all streams together."""
        length = self.told_length = len(self._dataset)
        batch = self._batch or 1
        return length // batch if self._drop_last else -(-length // batch)

    def beginning(self) -> Place:
        """Return the place of a trainer before its first batch."""
        return Place((Progress(),) * max(1, self.streams), 0)

    def share(self, stream: int, streams: int) -> Share:
        """Return what get_worker_info() returns in a stream, when this rank has `streams`."""
        if self.streams == 0 and streams == 1:
            return Share(self._rank, 0 if self._world_size == 1 else self._world_size)
        return Share(stream * self._world_size + self._rank, streams * self._world_size)

    def tell(self, place: Place) -> dict[str, Any]:
        """Return a place in the form of state_dict()."""
        told = [
            {
                "batches": each.batches,
                "samples": each.samples,
                "saved": each.saved,
                "state": None if each.state is None else loads(each.state),
                "failed": list(each.failed),
                "ended": each.ended,
                "digest": each.digest,
                "is_exact": each.is_exact,
            }
            for each in place.progress
        ]
        own = {"batch_size": self._batch, "rank": self._rank, "world_size": self._world_size}
        return {**own, "shared": self.streams > 0, "turn": place.turn, "streams": told}

    def place(self, told: dict[str, Any]) -> Place:
        """Return the place from the form that tell() returns. Raises ValueError if it does not fit this loader."""
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
            state = None if each["state"] is None else dumps(each["state"], lasting=True)
            counts = each["batches"], each["samples"], each["saved"]
            known = each.get("digest", ""), each.get("is_exact", True)  # older states have neither
            streams.append(Progress(*counts, state, tuple(each["failed"]), each["ended"], *known))
        return Place(tuple(streams), told["turn"])
