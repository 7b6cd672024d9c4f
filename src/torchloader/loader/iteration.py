"""The iterations over one epoch of a loader."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing import util as mp_util
from typing import Any, Generic, NoReturn, Self, TypeVar

from torchloader.loader.crew import Crew
from torchloader.loader.messages import Outcome
from torchloader.loader.order import Gaps, Indices, MapOrder, Part, digest
from torchloader.loader.randomness import mix
from torchloader.loader.streams import Place, StreamOrder, Task, Turns

Batch = TypeVar("Batch")
Position = int | Gaps | Place  # the last in the streams of an iterable-style dataset


class Rest:
    """The batches of a map-style dataset that the trainer does not have, in order, and its position as it receives them
    in any order. The digest, that of the samples before its position, is computed only `with_digest`."""

    def __init__(
        self, order: MapOrder, epoch: int, standing: int | Gaps, before: int | None, in_order: bool, with_digest: bool
    ) -> None:
        """`before` is the digest of the samples before `standing`, if known."""
        self._is_gapped = isinstance(standing, Gaps) or not in_order
        self._position, self._beyond = standing if isinstance(standing, Gaps) else Gaps(standing, ())
        self._had = self._beyond  # before this iteration
        self._batches = order.batches(epoch, self._position, before)
        self._drawn, self._digest, self._with_digest = self._position, before or 0, with_digest
        self._open: dict[int, int] = {}  # drawn and not given, by the first position: the digest of what is before

    def draw(self) -> tuple[Indices, Part] | None:
        """Return the next batch that the trainer does not have, and its part of the epoch; None at the end."""
        for indices, end in self._batches:
            start, before = self._drawn, self._digest
            self._drawn = end
            if self._with_digest:
                self._digest = digest(indices if isinstance(indices, list) else [indices], before)
            if not self._had or not any(first <= start < last for first, last in self._had):
                self._open[start] = before
                return indices, (start, end)
        return None

    def give(self, part: Part, _: object = None) -> None:
        del self._open[part[0]]
        self._position = next(iter(self._open), self._drawn)
        if self._is_gapped:
            self._beyond = _joined([*self._beyond, part], self._position)

    def overtaking(self, pending: Iterable[int]) -> list[int]:
        """Return the pending batches of which any may be given next."""
        return list(pending)

    @property
    def position(self) -> int | Gaps:
        return Gaps(self._position, self._beyond) if self._is_gapped else self._position

    @property
    def digest(self) -> int:
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


Pin = Callable[[Any], Any]


def pinner() -> Pin | None:
    """Return the function that copies a batch into page-locked memory for the current GPU; None without a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory


class Pinning:
    """Pins the batches of an iteration with `pin`; the next one in a thread while the program uses the current one."""

    def __init__(self, pin: Pin) -> None:
        self._pin = pin
        torch = sys.modules.get("torch")
        use_same_gpu: Callable[[], None] | None = None
        if torch is not None and torch.cuda.is_available():
            use_same_gpu = partial(torch.cuda.set_device, torch.cuda.current_device())
        self._thread = ThreadPoolExecutor(1, "torchloader-pin", initializer=use_same_gpu)
        self._next: Future[Any] | None = None
        self.number: int | None = None  # of the batch that is being pinned ahead

    def begin(self, number: int, batch: object) -> None:
        """Start to pin the batch of that number, which is used next."""
        self.number, self._next = number, self._thread.submit(self._pin, batch)

    def pinned(self, number: int, batch: object) -> Any:
        """Return the pinned batch of that number. Raises what pinning raises."""
        begun, self._next, of, self.number = self._next, None, self.number, None
        return begun.result() if begun is not None and of == number else self._pin(batch)

    def close(self) -> None:
        """End the thread; a batch that is being pinned is dropped."""
        self._thread.shutdown(wait=False)


class Iteration(Generic[Batch]):
    """One epoch of an ElasticDataLoader, whose module imports this one, or the rest of it."""

    _rest: Rest | Turns

    def __init__(self, loader: Any, epoch: int, standing: Position, before: int | None) -> None:
        self._loader, self._epoch, self._order = loader, epoch, loader._order
        self._crew, self._in_order, self._choices = loader._crew, loader.in_order, loader._choices
        self._is_sampled = loader._own_sampler is not None
        self._streams: StreamOrder | None = None
        if isinstance(self._order, StreamOrder):
            self._streams = self._order
            place = standing if isinstance(standing, Place) else self._order.beginning()
            streams = len(place.progress)
            self._rest = Turns(place, self._in_order)
            shares = [self._order.share(stream, streams) for stream in range(streams)]
            self._number = self._crew.open(0, place, shares)
        else:
            assert not isinstance(standing, Place)
            self._rest = Rest(self._order, epoch, standing, before, self._in_order, self._is_sampled)
            position = standing.position if isinstance(standing, Gaps) else standing
            self._number = self._crew.open(mix(loader.seed, epoch, position, loader.rank))
        self._alone = self._crew.size == 0
        self._asked = self._given = self._batches = 0
        self._last = -1  # the number of the batch that was given last
        self._ahead: dict[int, Any] = {}
        self._next: tuple[Any, Any] | None = None  # what follows, where nothing is asked for ahead
        self._over = False
        self._error: Exception | None = None  # that came before the first batch was asked for
        self._before = time.perf_counter()
        pin = pinner() if loader.pin_memory else None
        self._pinning = Pinning(pin) if pin is not None else None
        self._finalizer = mp_util.Finalize(self, _finish, (self._crew, self._number, self._pinning))

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        if self._streams is not None:
            raise TypeError("an iterator over an iterable-style dataset has no length: use len(loader)")
        return len(self._order)

    def __next__(self) -> Batch:
        made, waited = self._take()
        while made.progress is not None and made.progress.ended and made.is_end:
            made, seconds = self._take()
            waited += seconds
        loader = self._loader
        if self._over and not self._ahead and self._next is None:
            loader._note_last(self._epoch, self._choices)
        batch = self._batch_of(made)
        if self._streams is not None:
            self._warn_of_length(self._streams.length)
        loader._note_position(self._epoch, self._rest.position, self._rest.digest if self._is_sampled else 0)
        before, self._before = self._before, time.perf_counter()
        loader._note(made.samples, waited, self._before - before - waited)
        return batch

    def _warn_of_length(self, length: int | None) -> None:
        self._batches += 1
        if length is not None and self._batches > length:
            warnings.warn(
                f"the dataset's length was {length} when len(loader) was asked for, and there are more batches: "
                "does its __iter__() give each worker (torch.utils.data.get_worker_info()) its own part?",
                stacklevel=3,
            )

    def begin(self) -> None:
        """Request the first batches. An error of the sampler is raised with the first batch."""
        if self._crew.size:
            try:
                self._ask()
            except Exception as error:
                self._error = error

    def _take(self) -> tuple[Outcome, float]:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if not self._ahead and self._crew.is_bare(self._number):
            return self._take_here()
        self._ask()
        if not self._ahead:
            self._end()
        numbers, timeout = self._next_ones(), self._loader.timeout
        self._last, made, waited = self._crew.take(self._number, numbers, self._alone, timeout)
        self._alone = self._alone and not self._crew.ready
        self._given += 1
        self._rest.give(self._ahead.pop(self._last), made.progress)
        self._ask()
        return made, waited

    def _take_here(self) -> tuple[Outcome, float]:
        """Do what _take() does where there are no workers."""
        drawn = self._draw()
        if drawn is None:
            self._end()
        indices, part = drawn
        self._last = self._asked
        self._asked = self._given = self._asked + 1
        made, waited = self._crew.make_here(Task(self._number, self._last, self._epoch_of(part), indices))
        self._rest.give(part, made.progress)
        self._next = self._draw()
        return made, waited

    def _next_ones(self) -> list[int]:
        """Return the numbers of the batches of which the first that is ready is given next."""
        if self._pinning is not None and self._pinning.number is not None:
            return [self._pinning.number]
        return [next(iter(self._ahead))] if self._in_order else self._rest.overtaking(self._ahead)

    def _draw(self) -> tuple[Any, Any] | None:
        following, self._next = self._next, None
        if following is None and not self._over:
            following = self._rest.draw()
            self._over = following is None
        return following

    def _end(self) -> NoReturn:
        self._finalizer()
        self._loader._note_last(self._epoch, self._choices)
        self._loader._note_end(self._epoch)
        raise StopIteration

    def _batch_of(self, made: Outcome) -> Batch:
        if isinstance(made.error, StopIteration):  # which would end the epoch here, and look like its end
            raise RuntimeError("the dataset raised StopIteration") from made.error
        if made.error is not None:
            raise made.error
        if self._pinning is None:
            return made.batch  # type: ignore[return-value]
        batch: Batch = self._pinning.pinned(self._last, made.batch)
        following = self._crew.look(self._number, self._next_ones()) if self._ahead else None
        if following is not None and following[1].error is None and not following[1].is_end:
            self._pinning.begin(following[0], following[1].batch)
        return batch

    def _ask(self) -> None:
        while self._asked - self._given < self._crew.window:
            following = self._draw()
            if following is None:
                return
            indices, part = following
            self._ahead[self._asked] = part
            self._crew.want(Task(self._number, self._asked, self._epoch_of(part), indices))
            self._asked += 1

    def _epoch_of(self, part: tuple[int, ...]) -> int:
        """Return the epoch for random numbers; with a sampler, which may repeat an index, also of the position."""
        return mix(self._epoch, part[0]) if self._is_sampled else self._epoch


def _finish(crew: Crew, number: int, pinning: Pinning | None) -> None:
    crew.finish(number)
    if pinning is not None:
        pinning.close()
