"""Decides which worker reads which stream: one at a time, which has its iterator. Starts no process."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

from torchloader.loader.streams import Assignments, Key, Progress, Share, Start, StreamBatch
from torchloader.loader.tasks import Task

__all__ = ["HERE", "Stream", "StreamAssignments"]

# Of a batch: which iteration over the loader, and which stream of it.
Stream = tuple[int, int]

HERE = -1  # the trainer as a worker


class StreamAssignments(Assignments[Task]):
    """Batches of streams. All batches of a stream are made by one worker, in order.

    Another worker continues it when no other has a batch of it in flight, from the progress that came with its last
    batch. As that takes time, and is exact only if the dataset's state is, streams wait for their workers: none gets
    more than its part if all expected workers take batches. A new worker gets streams from workers that have at least
    two more.
    """

    is_plain = False

    def __init__(self, prefetch: int) -> None:
        super().__init__(prefetch)
        self._progress: dict[Stream, Progress] = {}
        self._shares: dict[Stream, Share] = {}
        self._owners: dict[Stream, int] = {}  # of streams that go on: who is to have them
        self._running: dict[Stream, int] = {}  # who has their iterators
        self._staying: set[int] = set()
        self._released: list[tuple[int, Stream]] = []

    def begin(self, iteration: int, progress: tuple[Progress, ...], shares: list[Share], stays: bool) -> None:
        """Register the streams of an iteration. With `stays` the trainer reads them to the end."""
        for stream, (reached, share) in enumerate(zip(progress, shares, strict=True)):
            self._progress[iteration, stream], self._shares[iteration, stream] = reached, share
        if stays:
            self._staying.add(iteration)

    def is_here(self, key: Key) -> bool:
        """Return whether only the trainer may make this batch."""
        return key[0] in self._staying

    def window(self, workers: int = 0) -> int:
        """Return how many batches may be requested ahead; workers beyond the number of streams do not count."""
        return self.prefetch * max(1, min(max(workers, self.workers), len(self._progress)))

    def join(self, worker: int) -> None:
        """Let a worker take batches, and give it its part of the streams."""
        super().join(worker)
        while len(self._held) > 1 and self._owners:
            owned = Counter(dict.fromkeys(self._held, 0))
            owned.update(owner for owner in self._owners.values() if owner in self._held)
            most = max(self._held, key=lambda each: (owned[each], -each))
            to_be_given = sum(self._owners.get(stream) not in self._held for stream in self._going())
            if owned[most] - owned[worker] - to_be_given < 2:
                return
            stream = max(each for each, owner in self._owners.items() if owner == most)
            self._owners[stream] = worker

    def made(self, worker: int, key: Key, progress: Progress | None = None) -> bool:
        """Note that a worker has made a batch, and the stream's progress. Return whether the batch is still wanted and
        was not made before."""
        task = self._wanted.get(key)
        is_first = super().made(worker, key)
        if is_first and task is not None and progress is not None:
            stream = _stream_of(task)
            if progress.ended:
                self._owners.pop(stream, None)
            if progress.batches >= self._progress[stream].batches:
                self._progress[stream] = progress
        return is_first

    def drop(self, iteration: int) -> None:
        """Discard all batches and streams of an iteration."""
        super().drop(iteration)
        self._staying.discard(iteration)
        kept: dict[Stream, Progress] | dict[Stream, Share] | dict[Stream, int]
        for kept in (self._progress, self._shares, self._owners, self._running):
            for stream in [stream for stream in kept if stream[0] == iteration]:
                del kept[stream]

    def hand_out(self) -> Iterator[tuple[int, Key, Task]]:
        """Yield (worker, key, task) for each batch to send now: to the worker that has its stream, or continues it."""
        later = []
        try:
            while self._waiting and self._held:
                key = heapq.heappop(self._waiting)
                task = self._wanted.get(key)
                if task is None:
                    continue
                worker = self._worker_for(_stream_of(task))
                if worker is None:
                    later.append(key)
                    continue
                self._held[worker][key] = None
                yield worker, key, self.started(worker, task)
        finally:
            for key in later:
                heapq.heappush(self._waiting, key)

    def started(self, worker: int, task: Task) -> Task:
        """Return the task with the start of the stream, unless the worker has the stream already."""
        stream = _stream_of(task)
        before = self._running.get(stream)
        if before == worker:
            return task
        if before is not None and before in self._held:
            self._released.append((before, stream))
        self._running[stream] = worker
        live = frozenset(iteration for iteration, _ in self._progress)
        return task._replace(
            start=Start(self._progress[stream], self._shares[stream], live, stream[0] not in self._staying)
        )

    def released(self) -> list[tuple[int, Stream]]:
        """Return (worker, stream) for each stream that another worker took over since the last call."""
        released, self._released = self._released, []
        return released

    def _worker_for(self, stream: Stream) -> int | None:
        if stream[0] in self._staying:
            return None
        owner = self._owners.get(stream)
        if owner is None or owner not in self._held:
            owned = Counter(self._owners.values())
            owner = min(self._held, key=lambda each: (owned[each], each))
            if owned[owner] >= self._part():
                return None
            self._owners[stream] = owner
        return owner if self._holders(stream) <= {owner} else None

    def _part(self) -> int:
        """Return the most streams that a worker has if all expected workers have equally many."""
        return max(1, -(-len(self._going()) // max(1, self.expected, self.workers)))

    def _going(self) -> list[Stream]:
        """Return the streams that workers read and that have not ended."""
        return [each for each, reached in self._progress.items() if not reached.ended and each[0] not in self._staying]

    def _holders(self, stream: Stream) -> set[int]:
        return {
            worker
            for workers in (self._held, self._leaving)
            for worker, held in workers.items()
            if any(key in self._wanted and _stream_of(self._wanted[key]) == stream for key in held)
        }


def _stream_of(task: Task) -> Stream:
    assert isinstance(task.indices, StreamBatch)
    return task.iteration, task.indices.stream
