"""Decides which batch comes next, of which stream, and which worker makes it. Starts no process.

A stream is what one worker of PyTorch's DataLoader makes of an iterable-style dataset. The number of streams is fixed
for an epoch and independent of the workers: the trainer takes a batch of each in turn and skips those that have ended,
so the order of batches is the same for every number of workers.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Literal, NamedTuple

from dragon.serialization import dumps, loads
from torchloader.loader.options import check_number
from torchloader.loader.order import OTHER_STYLE, Indices


class StreamBatch(NamedTuple):
    """A batch, by its stream and its number there."""

    stream: int
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of stream {self.stream}"


class Progress(NamedTuple):
    """The progress of a stream."""

    batches: int = 0  # batches that were made
    samples: int = 0  # samples that were made
    saved: int = 0  # the number of batches after which its state was saved
    state: bytes | None = None  # the pickled state; None if the stream has none and is read again from its beginning
    failed: tuple[int, ...] = ()  # the batches for which the dataset raised an error
    ended: bool = False  # whether it has no more batches
    digest: str = ""  # that of the first batch after the state; empty if it was not made, or is not known
    is_exact: bool = True  # whether no state of the stream was found to differ from what was read


class Share(NamedTuple):
    """What get_worker_info() returns in a stream; with 0 streams it returns None."""

    number: int
    streams: int


class Start(NamedTuple):
    """Where a worker continues a stream."""

    progress: Progress
    share: Share
    live: frozenset[int]  # the iterations whose streams it may keep
    copies: bool  # whether other streams use the dataset too, so that the worker must copy it


class Place(NamedTuple):
    """The position of a trainer in an epoch: the progress of each stream, and the stream whose turn it is."""

    progress: tuple[Progress, ...]
    turn: int


class Turns:
    """The batches of an epoch of streams from a place on, in the order in which the trainer takes them. Without
    `in_order`, the next is of a stream with the fewest pending ones, so that no slow stream uses up all places."""

    def __init__(self, place: Place, in_order: bool = True) -> None:
        self._in_order, self.digest = in_order, 0  # streams have no sampler
        self._asked = [progress.batches for progress in place.progress]
        self._progress, self._next, self._turn = list(place.progress), place.turn, place.turn

    def draw(self) -> tuple[StreamBatch, StreamBatch] | None:
        """Return the next batch to make, twice, as its samples and its part of the epoch; None at the end."""
        streams, stream = len(self._progress), self._next
        going = [each for each in range(streams) if not self._progress[each].ended]
        if not going:
            return None
        if not self._in_order:
            stream = min(
                going, key=lambda each: (self._asked[each] - self._progress[each].batches, (each - stream) % streams)
            )
        while self._progress[stream].ended:
            stream = (stream + 1) % streams
        self._next = (stream + 1) % streams
        batch = StreamBatch(stream, self._asked[stream])
        self._asked[stream] += 1
        return batch, batch

    def give(self, batch: StreamBatch, progress: Progress | None) -> None:
        """Note that the trainer has received the next batch of a stream, or that the stream has ended."""
        if progress is not None:
            self._progress[batch.stream] = progress
            self._turn = (batch.stream + 1) % len(self._progress)

    def overtaking(self, pending: dict[int, StreamBatch]) -> list[int]:
        """Return the first pending batch of each stream, since those of one stream stay in order."""
        first: dict[int, int] = {}
        for number, batch in pending.items():
            first.setdefault(batch.stream, number)
        return list(first.values())

    @property
    def position(self) -> Place:
        return Place(tuple(self._progress), self._turn)


class StreamOrder:
    """The streams that a loader makes of an iterable-style dataset. They are numbered across all ranks, so that a
    dataset that divides its samples among workers divides them among ranks as well."""

    shuffle = gives_batches = False

    def __init__(
        self, dataset: Sized, seed: int, batch: int | None, drop_last: bool, streams: int, rank: int, world_size: int
    ) -> None:
        self._dataset, self.seed, self._batch, self._drop_last = dataset, seed, batch, drop_last
        self.streams, self._rank, self._world_size = streams, rank, world_size
        self._own = {"batch_size": batch, "rank": rank, "world_size": world_size, "shared": streams > 0}
        self.length: int | None = None  # when it was asked for

    def __len__(self) -> int:
        """Return the number of batches if the dataset's length is that of all streams together."""
        length = self.length = len(self._dataset)
        batch = self._batch or 1
        return length // batch if self._drop_last else -(-length // batch)

    def beginning(self) -> Place:
        return Place((Progress(),) * max(1, self.streams), 0)

    def share(self, stream: int, streams: int) -> Share:
        """Return what get_worker_info() returns in a stream, when this rank has `streams`."""
        if self.streams == 0 and streams == 1:
            return Share(self._rank, 0 if self._world_size == 1 else self._world_size)
        return Share(stream * self._world_size + self._rank, streams * self._world_size)

    def state_of(self, place: object) -> dict[str, Any]:
        """Return a place for state_dict(); 0 is the beginning."""
        if not isinstance(place, Place):
            return {"position": 0}
        streams = [
            {**each._asdict(), "state": None if each.state is None else loads(each.state), "failed": list(each.failed)}
            for each in place.progress
        ]
        return {"position": {**self._own, "turn": place.turn, "streams": streams}}

    def place(self, state: dict[str, Any]) -> Place | Literal[0]:
        """Return the place from what state_of() returned. Raises ValueError if it does not fit this loader."""
        position = state["position"]
        if position == 0:
            return 0
        if not isinstance(position, dict):
            raise ValueError(OTHER_STYLE)
        for name, value in self._own.items():
            if position.get(name) != value:
                raise ValueError(
                    f"the state is of a loader with {name}={position.get(name)}, this one has {name}={value}: what a "
                    "stream gives in the middle of an epoch depends on it"
                )
        if not position.get("streams") or position.get("turn") not in range(len(position["streams"])):
            raise ValueError("this is not the state of an ElasticDataLoader: its position has no streams, or no turn")
        streams = []
        for each in position["streams"]:
            check_number(0, batches=each["batches"], samples=each["samples"], saved=each["saved"])
            pickled = None if each["state"] is None else dumps(each["state"], lasting=True)
            streams.append(Progress(**{**each, "state": pickled, "failed": tuple(each["failed"])}))
        return Place(tuple(streams), position["turn"])


# Which iteration over the loader, and which batch, or stream, of it.
Key = tuple[int, int]
Stream = tuple[int, int]

HERE = -1  # the trainer as a worker


class Task(NamedTuple):
    """A batch to make, of these samples or of a stream."""

    iteration: int
    number: int
    epoch: int
    indices: Indices | StreamBatch
    dataset: int = -1  # number of the dataset's snapshot
    start: Start | None = None  # where the worker continues the stream; None if it has it already

    @property
    def samples(self) -> str:
        return str(self.indices) if isinstance(self.indices, StreamBatch) else f"the samples {self.indices}"

    @property
    def stream(self) -> Stream | None:
        """The stream; None for a map-style dataset."""
        return (self.iteration, self.indices.stream) if isinstance(self.indices, StreamBatch) else None


class Assignments:
    """Pending batches and the workers that make them, in the order in which each received them.

    Batches of a map-style dataset go to any worker, at most `prefetch` at a time. Those of a stream are made by one
    worker, in order. Another one continues it when no other has a batch of it in flight, from the progress that came
    with its last batch. As that takes time, and is exact only if the dataset's state is, streams wait for their
    workers: none gets more than its part if all expected workers take batches. A new worker gets streams from workers
    that have at least two more.
    """

    def __init__(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self.expected = 0  # workers that take batches, or will soon
        self._wanted: dict[Key, Task] = {}
        self._waiting: list[Key] = []  # a heap: older batches first, also those that come back
        self._held: dict[int, dict[Key, None]] = {}
        self._leaving: dict[int, dict[Key, None]] = {}
        self._deaths: Counter[Key] = Counter()
        self._progress: dict[Stream, Progress] = {}
        self._shares: dict[Stream, Share] = {}
        self._owners: dict[Stream, int] = {}  # of streams that go on: who is to have them
        self._running: dict[Stream, int] = {}  # who has their iterators
        self._staying: set[int] = set()  # iterations whose streams the trainer reads to the end
        self._released: list[tuple[int, Stream]] = []

    @property
    def workers(self) -> int:
        return len(self._held)

    def window(self, workers: int = 0) -> int:
        """Return how many batches may be requested before the first is taken, with so many expected workers."""
        most = max(workers, self.workers)  # those beyond the number of streams have nothing to do
        return self.prefetch * max(1, min(most, len(self._progress)) if self._progress else most)

    def begin(self, iteration: int, progress: tuple[Progress, ...], shares: Sequence[Share], stays: bool) -> None:
        """Register the streams of an iteration. With `stays` the trainer reads them to the end."""
        for stream, (reached, share) in enumerate(zip(progress, shares, strict=True)):
            self._progress[iteration, stream], self._shares[iteration, stream] = reached, share
        if stays:
            self._staying.add(iteration)

    def is_here(self, iteration: int) -> bool:
        """Return whether only the trainer may make the batches of an iteration."""
        return iteration in self._staying

    def want(self, key: Key, task: Task) -> None:
        self._wanted[key] = task
        heapq.heappush(self._waiting, key)

    def task(self, key: Key) -> Task | None:
        """Return the task of a batch; None if it is already made or no longer wanted."""
        return self._wanted.get(key)

    def join(self, worker: int) -> None:
        """Let a worker take batches from now on, if it does not yet, and give it its part of the streams."""
        if worker in self._held:
            return
        self._held[worker] = {}
        while len(self._held) > 1 and self._owners:
            owned = Counter(dict.fromkeys(self._held, 0))
            owned.update(owner for owner in self._owners.values() if owner in self._held)
            most = max(self._held, key=lambda each: (owned[each], -each))
            to_be_given = sum(self._owners.get(stream) not in self._held for stream in self._going())
            if owned[most] - owned[worker] - to_be_given < 2:
                return
            self._owners[max(each for each, owner in self._owners.items() if owner == most)] = worker

    def leave(self, worker: int) -> None:
        """Let a worker finish the batch that it is making, and return its other batches to the queue."""
        held = self._held.pop(worker, {})
        in_hand = next(iter(held), None)
        self._leaving[worker] = {} if in_hand is None else {in_hand: None}
        self._return(key for key in held if key != in_hand)

    def gone(self, worker: int, died: bool, most: int = 3) -> Key | None:
        """Return an ended worker's batches to the queue, and the key of one that has ended `most` workers, if any."""
        held = self._held.pop(worker, None)
        if held is None:
            held = self._leaving.pop(worker, {})
        self._return(held)
        in_hand = next((key for key in held if key in self._wanted), None)
        if not died or in_hand is None:
            return None
        self._deaths[in_hand] += 1
        return in_hand if self._deaths[in_hand] >= most else None

    def made(self, worker: int, key: Key, progress: Progress | None = None) -> bool:
        """Note that a worker has made a batch, and the progress of its stream. Return whether the batch is needed."""
        for workers in (self._held, self._leaving):
            if worker in workers:
                workers[worker].pop(key, None)
        self._deaths.pop(key, None)
        task = self._wanted.pop(key, None)
        if task is not None and progress is not None and (stream := task.stream) is not None:
            if progress.ended:
                self._owners.pop(stream, None)
            if progress.batches >= self._progress[stream].batches:
                self._progress[stream] = progress
        return task is not None

    def drop(self, iteration: int) -> None:
        # A worker skips a batch that it has not begun, and reports nothing.
        streams = self._progress, self._shares, self._owners, self._running
        tables: list[dict[Key, Any]] = [self._wanted, *streams, *self._held.values(), *self._leaving.values()]
        for table in tables:
            for key in [key for key in table if key[0] == iteration]:
                del table[key]
                self._deaths.pop(key, None)
        self._staying.discard(iteration)

    def hand_out(self) -> Iterator[tuple[int, Key, Task]]:
        """Yield (worker, key, task) for each batch to send now, the oldest first."""
        later = []
        try:
            while self._waiting and self._held:
                key = heapq.heappop(self._waiting)
                task = self._wanted.get(key)
                if task is None:
                    continue
                stream = task.stream
                worker = self._idlest() if stream is None else self._worker_for(stream)
                if worker is None:
                    later.append(key)
                    if stream is None:
                        return  # nor is there one for the others
                    continue
                self._held[worker][key] = None
                yield worker, key, self.started(worker, task)
        finally:
            for key in later:
                heapq.heappush(self._waiting, key)

    def started(self, worker: int, task: Task) -> Task:
        """Return the task as it is sent to the worker: with the start of the stream, unless it has that already."""
        stream = task.stream
        before = self._running.get(stream) if stream is not None else worker
        if stream is None or before == worker:
            return task
        if before is not None and before in self._held:
            self._released.append((before, stream))
        self._running[stream] = worker
        live = frozenset(iteration for iteration, _ in self._progress)
        copies = stream[0] not in self._staying
        return task._replace(start=Start(self._progress[stream], self._shares[stream], live, copies))

    def released(self) -> list[tuple[int, Stream]]:
        """Return (worker, stream) for each stream that another worker took over since the last call."""
        released, self._released = self._released, []
        return released

    def _idlest(self) -> int | None:
        worker = min(self._held, key=lambda each: (len(self._held[each]), each))
        return worker if len(self._held[worker]) < self.prefetch else None

    def _worker_for(self, stream: Stream) -> int | None:
        if stream[0] in self._staying:
            return None
        owner = self._owners.get(stream)
        if owner is None or owner not in self._held:
            owned = Counter(self._owners.values())
            owner = min(self._held, key=lambda each: (owned[each], each))
            if owned[owner] >= max(1, -(-len(self._going()) // max(1, self.expected, self.workers))):
                return None
            self._owners[stream] = owner
        # Who has a batch of it in flight has to give that back first.
        others = (held for workers in (self._held, self._leaving) for one, held in workers.items() if one != owner)
        in_flight = (self._wanted[key].stream for held in others for key in held if key in self._wanted)
        return None if stream in in_flight else owner

    def _going(self) -> list[Stream]:
        """Return the streams that workers read and that have not ended."""
        return [each for each, reached in self._progress.items() if not reached.ended and each[0] not in self._staying]

    def _return(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key in self._wanted:
                heapq.heappush(self._waiting, key)
