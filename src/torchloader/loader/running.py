"""Streams as they run in one process: each has its own dataset, iterator and progress."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any

from dragon.serialization import dumps, loads
from torchloader.loader.making import Maker
from torchloader.loader.outcome import Outcome
from torchloader.loader.randomness import mix, seed_all
from torchloader.loader.source import END, Source
from torchloader.loader.streams import Start, StreamBatch
from torchloader.loader.tasks import Task

__all__ = ["StreamMaker"]

_COMPARED_BYTES = 1 << 16  # of each array of a sample


class StreamMaker(Maker):
    """Makes batches of the streams of an iterable-style dataset: the same ones from the same seed and epoch, in any
    process and however often a stream moves."""

    is_map_style = False

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any] | None,
        worker_init_fn: Callable[[int], None] | None,
        batch_size: int | None,
        drop_last: bool,
        seed: int,
        snapshot_every: int,
    ) -> None:
        super().__init__(dataset, collate_fn, worker_init_fn, batch_size is not None, seed)
        self.batch_size, self.drop_last, self.snapshot_every = batch_size, drop_last, snapshot_every
        self._running: dict[tuple[int, int], _Running] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_running": {}}

    def make(self, task: Task) -> Outcome:
        """Return the outcome of a task, which begins or continues a stream."""
        assert isinstance(task.indices, StreamBatch)
        key = task.iteration, task.indices.stream
        if task.start is not None:
            self._running = {kept: each for kept, each in self._running.items() if kept[0] in task.start.live}
            self._running[key] = _Running(self, task.epoch, task.start)
        return self._running[key].make(task.indices.number)

    def forget(self, iteration: int) -> None:
        """Release the streams of an iteration."""
        self._running = {key: each for key, each in self._running.items() if key[0] != iteration}

    def release(self, iteration: int, stream: int) -> None:
        """Release a stream that another process continues."""
        self._running.pop((iteration, stream), None)


class _DiffersError(RuntimeError):
    """Raised if a batch differs from when it was read before. `digest` is that of the batch, if it was compared."""

    def __init__(self, text: str, digest: str) -> None:
        super().__init__(text)
        self.digest = digest

    def __reduce__(self) -> tuple[type[RuntimeError], tuple[str]]:
        return RuntimeError, (str(self),)


class _Running:
    """One stream. The generators are seeded from seed, epoch and stream at its beginning, and before each batch also
    with its number, so reading it again draws the same numbers.

    A state is handed on together with a digest of the batch after it. Whoever continues the stream makes that batch
    again, and compares it. If it differs, the stream is read again from its beginning: the states of some datasets
    leave out what they hold in buffers. But if the state gives another batch each time, samples are never the same, and
    the stream goes on from the state.
    """

    def __init__(self, maker: StreamMaker, epoch: int, start: Start) -> None:
        self._given_maker, self._copies, self._share = maker, start.copies, start.share
        self._seed = mix(maker.seed, epoch, start.share.number) >> 1
        self._maker, self._progress = maker, start.progress
        self._source: Source | None = None
        self._exhausted = False  # the source is
        self._latest: bytes | None = None  # the state after the last batch, until the next one is made

    def make(self, number: int) -> Outcome:
        """Return a batch, or an outcome without one if the stream has ended.

        An error of the dataset is returned instead of a batch, and the iterator is used again afterwards. An error
        while the stream is begun or continued ends it.
        """
        if self._progress.ended:
            return Outcome(None, None, 0, self._progress)
        source, self._source = self._source, None  # an interrupt leaves it in the middle of a batch
        if source is None:
            try:
                source = self._open()
            except Exception as error:
                error.add_note(f"stream {self._share.number} could not be begun at batch {number} and ends here")
                self._progress = self._progress._replace(batches=number + 1, ended=True)
                return Outcome(None, error, 0, self._progress)
        assert number >= self._progress.batches
        with self._maker.as_worker():
            # Another process has made these meanwhile, which had them in hand when the stream was taken up here.
            for skipped in range(self._progress.batches, number):
                self._skip(source, skipped)
            outcome = self._make(source, number)
        if not self._progress.ended:
            self._source = source
        return outcome

    def _open(self) -> Source:
        """Return the samples that follow the batches so far."""
        reached = self._progress
        if reached.state is not None:
            try:
                return self._opened(self._copy())
            except _DiffersError as error:
                if error.digest and self._digest_again() not in ("", error.digest):
                    # The samples are others each time, wherever they are read from: only the position matters.
                    self._progress = reached._replace(digest="")
                else:
                    self._give_up_state(error)
            except Exception as error:
                self._give_up_state(error)
        return self._opened(self._given_maker.another() if self._copies else self._given_maker)

    def _digest_again(self) -> str:
        """Return the digest of the batch after the state in another copy of the dataset; "" if it is as before."""
        try:
            self._opened(self._given_maker.another())
        except _DiffersError as error:
            return error.digest
        return ""

    def _give_up_state(self, error: Exception) -> None:
        """Warn, and read the stream from its beginning from now on."""
        warnings.warn(
            f"{type(self._given_maker.dataset).__name__} does not continue from its state_dict() as before "
            f"({type(error).__name__}: {error}), so its streams are read again from their beginning",
            RuntimeWarning,
            stacklevel=2,
        )
        self._progress = self._progress._replace(saved=0, state=None, digest="", is_exact=False)

    def _copy(self) -> StreamMaker:
        """Return a copy of the maker to continue from a state, which the trainer's own dataset would keep for later
        epochs; the maker itself if it is the trainer's and cannot be copied."""
        try:
            return self._given_maker.another()
        except Exception:
            if self._copies:
                raise
            return self._given_maker

    def _opened(self, maker: StreamMaker) -> Source:
        # Streams of one process must not share what their datasets keep in attributes.
        self._maker = maker
        reached, self._exhausted = self._progress, False
        seed_all(self._seed)
        if self._share.streams:
            maker.be_worker(*self._share, self._seed)
        state = None if reached.state is None else loads(reached.state)
        with maker.as_worker():
            source = Source(maker.dataset, state)
            for skipped in range(reached.saved, reached.batches):
                self._skip(source, skipped)
        return source

    def _skip(self, source: Source, number: int) -> None:
        """Read a batch without returning it. Raises RuntimeError if it was read before and differs from then."""
        reached = self._progress
        try:
            samples = self._fetch(source, number)
        except Exception:
            if number >= reached.batches:
                self._progress = reached._replace(batches=number + 1, failed=(*reached.failed, number))
            elif number not in reached.failed:
                raise
            return
        if number >= reached.batches:
            if samples is not END:
                self._reach(source, number, samples)
            return
        digest = ""
        if samples is END or number in reached.failed:
            now = "it ended" if samples is END else "it did not raise"
        elif number == reached.saved and reached.digest not in ("", digest := self._digest(samples)):
            now = "others came"
        else:
            return
        raise _DiffersError(
            f"the dataset gives other samples when it is read again: {now} at batch {number} of stream "
            f"{self._share.number}, unlike before. What its __iter__() gives must depend on the dataset, "
            "get_worker_info() and the program's random numbers alone, or it needs state_dict() and "
            "load_state_dict()",
            digest,
        )

    def _make(self, source: Source, number: int) -> Outcome:
        raised: Exception | None
        try:
            samples = self._fetch(source, number)
        except Exception as error:
            raised, before = error, self._progress
            self._progress = before._replace(failed=(*before.failed, number))
            self._reach(source, number, None)
            return Outcome(None, raised, 0, self._progress)
        if samples is END:
            self._progress = self._progress._replace(ended=True)
            return Outcome(None, None, 0, self._progress)
        raised = self._reach(source, number, samples)
        try:
            batch = self._maker.collate(samples)
        except Exception as error:
            raised = error
        return Outcome(batch if raised is None else None, raised, self._count(samples), self._progress)

    def _reach(self, source: Source, number: int, samples: Any) -> Exception | None:
        """Note that a batch was read; `samples` are None if the dataset raised an error. Returns the error if the state
        after it cannot be saved."""
        count, reached = 0 if samples is None else self._count(samples), self._progress
        if self._latest is not None:
            digest = "" if samples is None else self._digest(samples)
            reached = reached._replace(saved=number, state=self._latest, digest=digest)
            self._latest = None
        self._progress = reached._replace(
            batches=number + 1, samples=reached.samples + count, ended=reached.ended or self._exhausted
        )
        if self._exhausted or not (source.is_stateful and reached.is_exact):
            return None
        if (number + 1) % self._maker.snapshot_every == 0:
            try:
                self._latest = dumps(source.state(), lasting=True)
            except Exception as error:
                return error
        return None

    def _digest(self, samples: Any) -> str:
        """Return a digest of the first and last sample; an empty one if they cannot be pickled."""
        ends, buffers = (samples[0], samples[-1]) if self._maker.batched else samples, list[PickleBuffer]()
        try:
            data = dumps(ends, buffers.append, lasting=True)
        except Exception:  # whatever pickling it raises: only the batch has to be sent
            return ""
        digest = hashlib.blake2b(data, digest_size=8)
        for buffer in buffers:
            digest.update(buffer.raw()[:_COMPARED_BYTES])
        return digest.hexdigest()

    def _count(self, samples: Any) -> int:
        return len(samples) if self._maker.batched else 1

    def _fetch(self, source: Source, number: int) -> Any:
        """Return the samples of the next batch, or the next sample without batches; END at the end."""
        maker = self._maker
        if self._exhausted:
            return END
        seed_all(mix(self._seed, number) >> 1)
        if maker.batch_size is None:
            return source.next()
        samples: list[Any] = []
        while len(samples) < maker.batch_size and not self._exhausted:
            sample = source.next()
            if sample is END:
                self._exhausted = True
            else:
                samples.append(sample)
        is_short = len(samples) < maker.batch_size
        return END if not samples or (maker.drop_last and is_short) else samples
