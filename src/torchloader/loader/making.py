"""Makes a batch: from the samples of a map-style dataset, or from a stream of an iterable-style one."""

from __future__ import annotations

import hashlib
import inspect
import sys
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import islice
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, Self

from dragon.serialization import OnNode, dumps, loads
from torchloader.loader import options, randomness
from torchloader.loader.messages import Outcome
from torchloader.loader.options import is_iterable_style
from torchloader.loader.order import Indices
from torchloader.loader.randomness import mix, number_of, seed_all
from torchloader.loader.streams import Progress, Share, Start, StreamBatch, Task

if TYPE_CHECKING:
    from torch.utils.data._utils.worker import WorkerInfo

    from torchloader.loader.exchange import Membership

END = object()


def current_share() -> tuple[int, int]:
    """Return the number of the stream, or of PyTorch's worker, that reads in this process, and the number of all."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    info = None if worker is None else worker.get_worker_info()
    if info is not None:
        return info.id, info.num_workers
    return options.share or (0, 1)


class Source:
    """The samples of a dataset from a position on; of a map-style one, this stream's part. Its iterator saves the
    position if it has torchdata's protocol Stateful, otherwise the dataset does if it has it."""

    def __init__(self, dataset: Any, state: dict[str, Any] | None = None) -> None:
        self._dataset, state = dataset, state or {}
        self._is_over = bool(state.get("over"))
        if "dataset" in state:
            dataset.load_state_dict(state["dataset"])  # before iter() is called
        is_items = not is_iterable_style(dataset) and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        self._iterator: Any = _Items(dataset) if is_items else iter(dataset)
        if "iterator" in state:
            self._iterator.load_state_dict(state["iterator"])
        keepers = ("iterator", self._iterator), ("dataset", self._dataset)
        self._stateful = next(
            (each for each in keepers if _has(each[1], "state_dict") and _has(each[1], "load_state_dict", {})), None
        )
        self.is_stateful = self._stateful is not None  # whether the position can be saved

    def next(self) -> object:
        return next(iter(self.some(1)), END)

    def some(self, count: int) -> list[Any]:
        """Return the next samples, fewer at the end."""
        if self._is_over:
            return []
        samples = list(islice(self._iterator, count))
        self._is_over = len(samples) < count
        return samples

    def state(self) -> dict[str, Any]:
        """Return the position, for another Source of the same dataset. Raises TypeError if it cannot be saved."""
        if self._stateful is None:
            raise TypeError(
                f"{type(self._dataset).__name__} has no state_dict() and load_state_dict(), nor its iterator"
            )
        name, keeper = self._stateful
        return {name: keeper.state_dict(), "over": self._is_over}


def _has(value: object, name: str, *arguments: object) -> bool:
    """Return whether it has a method for these arguments: state_dict() of MosaicML's datasets needs others."""
    method = getattr(value, name, None)
    try:
        return callable(method) and inspect.signature(method).bind(*arguments) is not None
    except TypeError:
        return False
    except ValueError:  # a function in C that has no signature
        return True


class _Items:
    """The samples of a map-style dataset in order; with n streams every n-th of them."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._position, self._step = current_share()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> object:
        if self._position >= len(self._dataset):
            raise StopIteration
        position = self._position
        self._position += self._step
        return self._dataset[position]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position = state["position"]


class Maker:
    """Makes batches: always the same one from the same seed, epoch and indices, in any process."""

    is_map_style = True

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any] | None,
        worker_init_fn: Callable[[int], None] | None,
        batched: bool,
        seed: int,
    ) -> None:
        self.dataset, self.collate_fn, self.worker_init_fn = dataset, collate_fn, worker_init_fn
        self.seed, self.batched = seed, batched
        self._known: tuple[tuple[int, int] | None, int, int] = None, 0, 0
        self._info: WorkerInfo | None = None  # that get_worker_info() returns
        self._share: Share | None = None
        self._running: dict[tuple[int, int], _Running] = {}  # the streams of an iterable-style dataset
        self.membership: Membership | None = None  # where its batches are shared with other loaders
        self.origin: OnNode | None = None  # what it was loaded from, where that is there once for all workers

    def make(self, task: Task) -> Outcome:
        """Return the batch of a task, or the error that was raised."""
        known, before = (self.seed, task.epoch), randomness.base
        if self._known[0] != known:  # which is the same for most batches after another
            of_epoch = mix(*known)
            self._known = known, of_epoch, mix(of_epoch)
        randomness.base = self._known[1]
        try:
            return self._made(task)
        finally:
            randomness.base = before

    def _made(self, task: Task) -> Outcome:
        indices = task.indices
        samples = len(indices) if isinstance(indices, list) else 1
        try:
            with self.as_worker():
                # Not for each sample, as that takes 8 µs.
                numbers = map(number_of, indices[:1] if self.batched else [indices])
                seed = mix(*numbers, after=self._known[2]) >> 1  # PyTorch's seeds have 63 bits
                seed_all(seed)
                if self._info is not None:
                    object.__setattr__(self._info, "seed", seed)  # its class is frozen
                return Outcome(self.collate(self._fetch(indices)), None, samples)
        except Exception as error:
            return Outcome(None, error, samples)

    def collate(self, samples: object) -> object:
        if self.collate_fn is None:
            return (_collate() if self.batched else default_collate(False))(samples)
        return self.collate_fn(samples)

    def forget(self, iteration: int) -> None:
        self._running = {key: each for key, each in self._running.items() if key[0] != iteration}

    def release(self, iteration: int, stream: int) -> None:
        self._running.pop((iteration, stream), None)

    def _fetch(self, indices: Indices) -> object:
        dataset = self.dataset
        if not self.batched:
            return dataset[indices]
        if getattr(dataset, "__getitems__", None):
            return dataset.__getitems__(indices)
        return [dataset[index] for index in indices]

    def another(self) -> Self:
        """Return an unused copy that shares nothing with this object."""
        made: Self = loads(dumps(self)) if self.origin is None else self.origin.load()
        return made

    def be_worker(self, number: int, workers: int, seed: int) -> None:
        """Seed the generators, call worker_init_fn, and set what get_worker_info() returns in the user's functions."""
        self._share = Share(number, workers)
        if sys.modules.get("torch") is not None:  # None where the program wants it not to be imported
            from torch.utils.data._utils.worker import WorkerInfo

            if options.is_worker:
                _collate_in_own_memory()
            self._info = WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=self.dataset)
        if self.worker_init_fn is not None:
            with self.as_worker():
                seed_all(seed)
                self.worker_init_fn(number)

    def as_worker(self) -> AbstractContextManager[None]:
        """Within the block, let get_worker_info() return this worker's information."""
        is_plain = self._share is None and self._info is None and options.share is None
        return _NOTHING if is_plain else self._as_worker()

    @contextmanager
    def _as_worker(self) -> Iterator[None]:
        options.share, share = self._share, options.share
        if self._info is not None:
            from torch.utils.data._utils import worker

            worker._worker_info, info = self._info, worker._worker_info
        try:
            yield
        finally:
            options.share = share
            if self._info is not None:
                worker._worker_info = info


_NOTHING = nullcontext()


@cache
def _collate_in_own_memory() -> None:
    """Make default_collate stack tensors in a worker as elsewhere: not in PyTorch's shared memory, but in its own."""
    from torch import Tensor
    from torch.utils.data._utils import collate, worker

    collate_tensors = collate.default_collate_fn_map[Tensor]

    def collated(*args: object, **options: object) -> object:
        info, worker._worker_info = worker._worker_info, None
        try:
            return collate_tensors(*args, **options)
        finally:
            worker._worker_info = info

    collate.default_collate_fn_map[Tensor] = collated
    _stacks.append(collated)


_stacks: list[object] = []  # what is registered for tensors and does what torch.stack() does


@cache
def default_collate(batched: bool) -> Callable[[Any], Any]:
    """Return PyTorch's default function that makes a batch of samples, or converts a single one."""
    try:
        from torch.utils.data import default_collate as collate
        from torch.utils.data import default_convert as convert
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("without PyTorch (pip install torch) a loader needs a collate_fn") from error
    return collate if batched else convert


@cache
def _collate() -> Callable[[Any], Any]:
    """Return PyTorch's default_collate(), which takes less time for tensors, whole numbers and tuples of them."""
    plain = default_collate(True)
    from torch import Tensor, frombuffer, int64, stack, strided
    from torch.utils.data._utils.collate import collate_int_fn, collate_tensor_fn, default_collate_fn_map

    _stacks.append(collate_tensor_fn)

    def column(samples: list[Any] | tuple[Any, ...]) -> object:
        kind = type(samples[0])
        if kind is Tensor and default_collate_fn_map[Tensor] in _stacks:
            is_plain = samples[0].layout is strided and not samples[0].is_nested
            return stack(samples) if is_plain else plain(samples)
        if kind is int and default_collate_fn_map.get(int) is collate_int_fn:
            try:
                return frombuffer(array("q", samples), dtype=int64)  # four times as fast as torch.tensor()
            except (OverflowError, TypeError):
                pass  # other numbers follow
        return plain(samples)

    def collate(samples: list[Any]) -> object:
        if type(samples[0]) is not tuple:
            return column(samples)
        try:
            columns = list(zip(*samples, strict=True))
        except (TypeError, ValueError):  # samples of different lengths, or of none, which PyTorch reports
            return plain(samples)
        return [column(each) for each in columns]

    return collate


_COMPARED_BYTES = 1 << 16  # of each array of a sample


class StreamMaker(Maker):
    """Makes batches of the streams of an iterable-style dataset, the same ones however often a stream moves."""

    is_map_style = False

    def __init__(
        self,
        dataset: Iterable[Any],
        collate_fn: Callable[[Any], Any] | None,
        worker_init_fn: Callable[[int], None] | None,
        batch_size: int | None,
        drop_last: bool,
        seed: int,
        snapshot_every: int,
    ) -> None:
        super().__init__(dataset, collate_fn, worker_init_fn, batch_size is not None, seed)
        self.batch_size, self.drop_last, self.snapshot_every = batch_size, drop_last, snapshot_every

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_running": {}}

    def _made(self, task: Task) -> Outcome:
        assert isinstance(task.indices, StreamBatch)
        key = task.iteration, task.indices.stream
        if task.start is not None:
            self._running = {kept: each for kept, each in self._running.items() if kept[0] in task.start.live}
            self._running[key] = _Running(self, task.epoch, task.start)
        return self._running[key].make(task.indices.number)


class _DiffersError(RuntimeError):
    """Raised if a batch differs from when it was read before. `digest` is that of the batch, if it was compared."""

    def __init__(self, text: str, digest: str) -> None:
        super().__init__(text)
        self.digest = digest

    def __reduce__(self) -> tuple[type[RuntimeError], tuple[str]]:
        return RuntimeError, (str(self),)


class _Running:
    """One stream. The generators are seeded from seed, epoch and stream at its beginning, and before each batch also
    with its number, so reading it again draws the same numbers. A state is handed on together with a digest of the
    batch after it. Whoever continues the stream makes that batch again, and compares it. If it differs, the stream is
    read again from its beginning: the states of some datasets leave out what they hold in buffers. But if the state
    gives another batch each time, samples are never the same, and the stream goes on from the state."""

    def __init__(self, maker: StreamMaker, epoch: int, start: Start) -> None:
        self._given_maker, self._copies, self._share = maker, start.copies, start.share
        self._seed = mix(maker.seed, epoch, start.share.number) >> 1
        self._prefix = mix(self._seed)
        self._maker, self._progress = maker, start.progress
        self._source: Source | None = None
        self._exhausted = False  # the source is
        self._latest: bytes | None = None  # the state after the last batch, until the next one is made

    def make(self, number: int) -> Outcome:
        """Return a batch, an error of the dataset, or neither if the stream has ended."""
        if self._progress.ended:
            return Outcome(None, None, 0, self._progress)
        source, self._source = self._source, None  # an interrupt leaves it in the middle of a batch
        if source is None:
            try:
                source = self._open()
            except Exception as error:  # which ends the stream, while after another one the iterator is used again
                error.add_note(f"stream {self._share.number} could not be begun at batch {number} and ends here")
                self._progress = self._progress._replace(batches=number + 1, ended=True)
                return Outcome(None, error, 0, self._progress)
        assert number >= self._progress.batches
        with self._maker.as_worker():
            # Another process has made these meanwhile, which had them in hand when the stream was taken up here.
            for skipped in range(self._progress.batches, number):
                self._make(source, skipped, is_wanted=False)
            outcome = self._make(source, number)
        if not self._progress.ended:
            self._source = source
        return outcome

    def _open(self) -> Source:
        reached, given = self._progress, self._given_maker
        if reached.state is not None:
            try:
                return self._opened(self._copy())
            except Exception as error:
                digest = error.digest if isinstance(error, _DiffersError) else ""
                if digest and self._digest_again() not in ("", digest):
                    # The samples are others each time, wherever they are read from: only the position matters.
                    self._progress = reached._replace(digest="")
                else:
                    warnings.warn(
                        f"{type(given.dataset).__name__} does not continue from its state_dict() as before "
                        f"({type(error).__name__}: {error}), so its streams are read again from their beginning",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                    self._progress = reached._replace(saved=0, state=None, digest="", is_exact=False)
        return self._opened(given.another() if self._copies else given)

    def _digest_again(self) -> str:
        """Return the digest of the batch after the state in another copy of the dataset; "" if it is as before."""
        try:
            self._opened(self._given_maker.another())
        except _DiffersError as error:
            return error.digest
        return ""

    def _copy(self) -> StreamMaker:
        """Return a copy of the maker, as the trainer's own dataset would keep the state for later epochs; or the maker,
        if it is the trainer's and cannot be copied."""
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
            for number in range(reached.saved, reached.batches):
                self._compare(source, number)
        return source

    def _compare(self, source: Source, number: int) -> None:
        """Read a batch that was read before. Raises _DiffersError if it differs from then."""
        reached, digest = self._progress, ""
        try:
            samples = self._fetch(source, number)
        except Exception:
            if number not in reached.failed:
                raise
            return
        if samples is END:
            now = "it ended"
        elif number in reached.failed:
            now = "it did not raise"
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

    def _make(self, source: Source, number: int, is_wanted: bool = True) -> Outcome:
        try:
            samples = self._fetch(source, number)
        except Exception as error:
            self._progress = self._progress._replace(failed=(*self._progress.failed, number))
            self._reach(source, number, None, 0)
            return Outcome(None, error, 0, self._progress)
        if samples is END:
            self._progress = self._progress._replace(ended=True)
            return Outcome(None, None, 0, self._progress)
        count = len(samples) if self._maker.batched else 1
        raised, batch = self._reach(source, number, samples, count), None
        if is_wanted and raised is None:
            try:
                batch = self._maker.collate(samples)
            except Exception as error:
                raised = error
        return Outcome(batch, raised, count, self._progress)

    def _reach(self, source: Source, number: int, samples: object, count: int) -> Exception | None:
        """Note that a batch was read; `samples` are None if the dataset raised an error."""
        reached = self._progress
        if self._latest is not None:
            digest = "" if samples is None else self._digest(samples)
            reached = reached._replace(saved=number, state=self._latest, digest=digest)
            self._latest = None
        saved, ended = reached[2:5], reached.ended or self._exhausted
        # _replace() takes twice as long.
        self._progress = Progress(number + 1, reached.samples + count, *saved, ended, reached.digest, reached.is_exact)
        is_due = (number + 1) % self._maker.snapshot_every == 0 and not self._exhausted
        if is_due and source.is_stateful and reached.is_exact:
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

    def _fetch(self, source: Source, number: int) -> Any:
        """Return the samples of the next batch, or the next sample without batches; END at the end."""
        maker = self._maker
        if self._exhausted:
            return END
        seed_all(mix(number, after=self._prefix) >> 1)
        if maker.batch_size is None:
            return source.next()
        samples = source.some(maker.batch_size)
        self._exhausted = len(samples) < maker.batch_size
        return END if not samples or (maker.drop_last and self._exhausted) else samples
