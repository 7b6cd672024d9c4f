"""The iterations over one epoch of a loader."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import util as mp_util
from typing import Any, NamedTuple, NoReturn, Protocol, Self

from torchloader.loader.crew import Crew
from torchloader.loader.messages import Outcome
from torchloader.loader.options import check_number
from torchloader.loader.order import Indices, Order, digest
from torchloader.loader.randomness import mix
from torchloader.loader.streams import Place, StreamBatch, StreamOrder, Turns

# Of an epoch: from one position to another.
Part = tuple[int, int]


class Gaps(NamedTuple):
    """The position of a trainer with in_order=False: it has all samples before `position`, and the parts `beyond` after
    it."""

    position: int
    beyond: tuple[Part, ...]


class Rest:
    """The batches that the trainer does not have, in order, and its position as it receives them in any order."""

    def __init__(
        self, order: Order, epoch: int, standing: int | Gaps, before: int | None, in_order: bool, has_digest: bool
    ) -> None:
        """Args:
        order: the order of the epoch's batches.
        epoch: its number.
        standing: the position of the trainer at first.
        before: the digest of the samples before that, if known.
        in_order: whether the trainer receives batches in order, unless there are gaps already.
        has_digest: whether a digest is to be computed."""
        self._is_gapped = isinstance(standing, Gaps) or not in_order
        position, beyond = standing if isinstance(standing, Gaps) else (standing, ())
        self._beyond: tuple[Part, ...] = beyond
        self._had = self._beyond  # before this iteration
        self._batches = order.batches(epoch, position, before)
        self._drawn = position
        self._digest = before or 0
        self._has_digest = has_digest
        self._open: dict[int, int] = {}  # drawn and not given, by the first position: the digest of what is before

    def draw(self) -> tuple[Indices, Part] | None:
        """Return the next batch that the trainer does not have, and its part of the epoch; None at the end."""
        for indices, end in self._batches:
            start, before = self._drawn, self._digest
            self._drawn = end
            if self._has_digest:
                self._digest = digest(indices if isinstance(indices, list) else [indices], before)
            if not self._had or not any(first <= start < last for first, last in self._had):
                self._open[start] = before
                return indices, (start, end)
        return None

    def give(self, part: Part) -> int | Gaps:
        """Note that the trainer receives a drawn batch. Returns its new position."""
        del self._open[part[0]]
        position = next(iter(self._open), self._drawn)
        if not self._is_gapped:
            return position
        self._beyond = _joined([*self._beyond, part], position)
        return Gaps(position, self._beyond)

    @property
    def digest(self) -> int:
        """The digest of the samples before the trainer's position."""
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


def tell(standing: int | Gaps, batch: int, place: tuple[int, int]) -> dict[str, Any]:
    """Return a position in the form of state_dict().

    `batch` is by how much a full batch advances the position, `place` is (rank, world size). With several ranks the
    place is included even without gaps, as other ranks may have some.
    """
    if not isinstance(standing, Gaps):
        return {"position": standing}
    position, beyond = standing
    if not beyond and place[1] == 1:
        return {"position": position}
    given = [list(part) for part in beyond]
    return {"position": position, "beyond": {"given": given, "batch": batch, **_named(place)}}


def standing_of(state: dict[str, Any], batch: int, place: tuple[int, int]) -> int | Gaps:
    """Return the position from the form that tell() returns."""
    check_number(0, position=state["position"])
    position, beyond = int(state["position"]), state.get("beyond")
    if beyond is None:
        return position
    told, own = beyond["rank"], beyond["world_size"]
    if own > 1 and (told, own) != place:
        raise ValueError(
            f"the state is of rank {told} of {own}, which got its batches in an order of its own (in_order=False), "
            f"this is rank {place[0]} of {place[1]}: save the state of each rank, and load it on the same one"
        )
    if beyond["given"] and beyond["batch"] != batch:
        raise ValueError(
            f"the state has batches of {beyond['batch']} samples that were given out of turn (in_order=False), this "
            f"loader makes batches of {batch}, over all ranks: go on with the batch_size, or the batches, of before"
        )
    return Gaps(position, tuple((int(start), int(end)) for start, end in beyond["given"]))


def _named(place: tuple[int, int]) -> dict[str, int]:
    return {"rank": place[0], "world_size": place[1]}


Pin = Callable[[Any], Any]


def pinner() -> Pin | None:
    """Return the function that copies a batch into page-locked memory for the current GPU; None if PyTorch has no
    GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory


class Pinning:
    """Pins the batches of an iteration with `pin`; the next one in a thread while the program uses the current one."""

    def __init__(self, pin: Pin) -> None:
        self._pin = pin
        self._thread = ThreadPoolExecutor(1, "torchloader-pin", initializer=_use_same_gpu, initargs=(_current_gpu(),))
        self._next: tuple[int, Future[Any]] | None = None

    def begin(self, number: int, batch: Any) -> None:
        """Start to pin the batch of that number, which is used next."""
        self._next = number, self._thread.submit(self._pin, batch)

    @property
    def number(self) -> int | None:
        """The number of the batch that is being pinned ahead, or None."""
        return None if self._next is None else self._next[0]

    def pinned(self, number: int, batch: Any) -> Any:
        """Return the pinned batch of that number. Raises what pinning raises."""
        begun, self._next = self._next, None
        return begun[1].result() if begun is not None and begun[0] == number else self._pin(batch)

    def close(self) -> None:
        """End the thread; a batch that is being pinned is dropped."""
        self._thread.shutdown(wait=False)


def _current_gpu() -> int | None:
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else None


def _use_same_gpu(index: int | None) -> None:
    if index is not None:
        sys.modules["torch"].cuda.set_device(index)


class Loader(Protocol):
    """What an iteration reads of its loader, and the notifications that it sends."""

    pin_memory: bool
    in_order: bool
    _crew: Crew
    _order: Any
    _own_sampler: Any
    _choices: int

    @property
    def seed(self) -> int:
        """The seed of the order and the random numbers."""

    @property
    def rank(self) -> int:
        """The rank whose samples it loads."""

    def _note(self, samples: int, waited: float, computed: float) -> None: ...

    def _note_position(self, epoch: int, position: Any, digest: int) -> None: ...

    def _note_last(self, epoch: int, choices: int) -> None: ...

    def _note_end(self, epoch: int) -> None: ...


class Iteration:
    """One epoch of a map-style dataset, or the rest of it."""

    _is_sampled = False

    def __init__(self, loader: Loader, epoch: int, standing: int | Gaps, before: int | None) -> None:
        self._is_sampled = loader._own_sampler is not None
        self._rest = Rest(loader._order, epoch, standing, before, loader.in_order, self._is_sampled)
        position = standing.position if isinstance(standing, Gaps) else standing
        entropy = mix(loader.seed, epoch, position, loader.rank)
        self._begin(loader, epoch, loader._crew.open(entropy))

    def _begin(self, loader: Loader, epoch: int, number: int) -> None:
        self._loader, self._epoch = loader, epoch
        self._crew, self._number = loader._crew, number
        self._alone = self._crew.size == 0
        self._in_order = loader.in_order
        self._asked = self._given = 0
        self._last = -1  # the number of the batch that was given last
        self._ahead: dict[int, Any] = {}
        self._next: tuple[Any, Any] | None = None  # what follows, where nothing is asked for ahead
        self._over = False
        self._error: Exception | None = None  # that came before the first batch was asked for
        self._choices = loader._choices
        self._before = time.perf_counter()
        pin = pinner() if loader.pin_memory else None
        self._pinning = Pinning(pin) if pin is not None else None
        self._finalizer = mp_util.Finalize(self, _finish, (self._crew, self._number, self._pinning))

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._loader._order)

    def __next__(self) -> Any:
        made, (_, part), waited = self._take()
        standing = self._rest.give(part)
        if self._over and not self._ahead and self._next is None:
            self._loader._note_last(self._epoch, self._choices)
        batch = self._batch_of(made)
        self._loader._note_position(self._epoch, standing, self._rest.digest)
        self._loader._note(made.samples, waited, self._elapsed() - waited)
        return batch

    def begin(self) -> None:
        """Request the first batches from the workers that are ready. An error of the sampler is raised with the first
        batch."""
        if self._crew.size:
            try:
                self._ask()
            except Exception as error:
                self._error = error

    def _take(self) -> tuple[Outcome, Any, float]:
        """Return the next outcome, what was requested for it, and the seconds of waiting."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        if not self._ahead and self._crew.is_bare(self._number):
            return self._take_here()
        self._ask()
        if not self._ahead:
            self._end()
        self._last, made, waited = self._crew.take(self._number, self._next_ones(), self._alone)
        self._alone = self._alone and not self._crew.ready
        asked = self._ahead.pop(self._last)
        self._given += 1
        self._note_taken(asked, made)
        self._ask()
        return made, asked, waited

    def _take_here(self) -> tuple[Outcome, Any, float]:
        """Do what _take() does where there are no workers."""
        drawn = self._draw()
        if drawn is None:
            self._end()
        asked, indices = drawn
        self._last = self._asked
        self._asked += 1
        self._given += 1
        made, waited = self._crew.make_here(self._number, self._last, self._epoch_of(asked), indices)
        self._note_taken(asked, made)
        self._next = self._draw()
        return made, asked, waited

    def _next_ones(self) -> list[int]:
        """Return the numbers of the batches of which the first that is ready is given next."""
        pinned = None if self._pinning is None else self._pinning.number
        if pinned is not None:
            return [pinned]
        return self._overtaking() if not self._in_order else [next(iter(self._ahead))]

    def _overtaking(self) -> list[int]:
        """Return these numbers for in_order=False."""
        return list(self._ahead)

    def _draw(self) -> tuple[Any, Any] | None:
        following, self._next = self._next, None
        if following is None and not self._over:
            following = self._following()
            self._over = following is None
        return following

    def _end(self) -> NoReturn:
        self._finalizer()
        self._loader._note_last(self._epoch, self._choices)
        self._loader._note_end(self._epoch)
        raise StopIteration

    def _note_taken(self, asked: Any, made: Outcome) -> None:
        """Called with each taken outcome, before another batch is requested."""

    def _batch_of(self, made: Outcome) -> Any:
        if isinstance(made.error, StopIteration):  # which would end the epoch here, without a word
            raise RuntimeError("the dataset raised StopIteration") from made.error
        if made.error is not None:
            raise made.error
        if self._pinning is None:
            return made.batch
        batch = self._pinning.pinned(self._last, made.batch)
        following = self._crew.look(self._number, self._next_ones()) if self._ahead else None
        if following is not None and following[1].error is None and not following[1].is_end:
            self._pinning.begin(following[0], following[1].batch)
        return batch

    def _elapsed(self) -> float:
        """Return the seconds since the last batch was given."""
        before, self._before = self._before, time.perf_counter()
        return self._before - before

    def _ask(self) -> None:
        while self._asked - self._given < self._crew.window:
            following = self._draw()
            if following is None:
                return
            asked, indices = following
            self._ahead[self._asked] = asked
            self._crew.want(self._number, self._asked, self._epoch_of(asked), indices)
            self._asked += 1

    def _epoch_of(self, asked: Any) -> int:
        """Return what the random numbers of a batch depend on besides its indices: the epoch, and for a sampler that
        may give an index again the position."""
        return mix(self._epoch, asked[1][0]) if self._is_sampled else self._epoch

    def _following(self) -> tuple[Any, Indices | StreamBatch] | None:
        """Return what to remember of the next batch, and its samples; None at the end."""
        following: tuple[Indices, Part] | None = self._rest.draw()
        return None if following is None else (following, following[0])


class StreamIteration(Iteration):
    """One epoch of the streams, or the rest of it: a batch of each in turn, or in the order in which they are ready."""

    def __init__(self, loader: Loader, epoch: int, place: Place) -> None:
        order: StreamOrder = loader._order
        streams = len(place.progress)
        shares = [order.share(stream, streams) for stream in range(streams)]
        self._turns, self._order, self._batches = Turns(place, loader.in_order), order, 0
        self._begin(loader, epoch, loader._crew.open_streams(place, shares))

    def __len__(self) -> int:
        raise TypeError("an iterator over an iterable-style dataset has no length: use len(loader)")

    def __next__(self) -> Any:
        waited = 0.0
        while True:
            made, _, seconds = self._take()
            waited += seconds
            if made.is_end:
                continue
            if self._over and not self._ahead and self._next is None:
                self._loader._note_last(self._epoch, self._choices)
            batch = self._batch_of(made)
            self._loader._note_position(self._epoch, self._turns.place, 0)
            self._warn_of_length()
            self._loader._note(made.samples, waited, self._elapsed() - waited)
            return batch

    def _following(self) -> tuple[Any, StreamBatch] | None:
        following = self._turns.ask()
        return None if following is None else (following, following)

    def _note_taken(self, asked: StreamBatch, made: Outcome) -> None:
        if made.progress is not None:
            self._turns.note(asked.stream, made.progress)

    def _overtaking(self) -> list[int]:
        """Return the first requested batch of each stream, since those of one stream stay in order."""
        first: dict[int, int] = {}
        for number, asked in self._ahead.items():
            first.setdefault(asked.stream, number)
        return list(first.values())

    def _warn_of_length(self) -> None:
        self._batches += 1
        told = self._order.told_length
        if told is not None and self._batches > told:
            warnings.warn(
                f"the dataset's length was {told} when len(loader) was asked for, and there are more batches: "
                "does its __iter__() give each worker (torch.utils.data.get_worker_info()) its own part?",
                stacklevel=3,
            )


def _finish(crew: Crew, number: int, pinning: Pinning | None) -> None:
    crew.finish(number)
    if pinning is not None:
        pinning.close()
