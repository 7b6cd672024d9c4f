"""Which samples make up which batch, which depends only on the seed and the epoch.

A position counts what an epoch has given so far over all ranks: samples, or batches if a batch sampler makes them. With
the same global batch size, an epoch continued at a position gives the same samples with any number of ranks.
"""

from __future__ import annotations

import random
import sys
import warnings
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from torchloader.loader.options import check_number
from torchloader.loader.randomness import SamplerRandomState, mix, number_of

if TYPE_CHECKING:
    from torch import Generator

_SHARED_SEED = 0  # as that of torch.utils.data.DistributedSampler


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return (rank, world size). Raises TypeError or ValueError if they are not valid."""
    check_number(**{name: value for name, value in (("rank", rank), ("world_size", world_size)) if value is not None})
    if rank is None and world_size is not None and world_size > 1:
        raise ValueError(f"world_size={world_size} needs rank=: without, every rank would get the samples of rank 0")
    rank, world_size = rank or 0, 1 if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size}")
    return int(rank), int(world_size)


def seed_of(seed: int | None, generator: Generator | None, world_size: int) -> int:
    """Return the seed of a loader. Raises ValueError if ranks might have different ones."""
    if seed is not None:
        return int(seed)
    if world_size > 1:
        if generator is not None:
            raise ValueError(
                f"with world_size={world_size} all ranks must shuffle alike, and the seeds of their generators may "
                "differ: pass seed= (the same on all ranks) instead of generator="
            )
        return _SHARED_SEED
    source = sys.modules.get("torch") if generator is None else generator
    return 0 if source is None else int(source.initial_seed())


def distributed_place() -> tuple[int, int]:
    """Return (rank, world size) of torch.distributed; (0, 1) if it is not initialized."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def warn_of_ranks() -> bool:
    """Warn if torch.distributed has several ranks, for a loader without rank and world_size. Returns whether it has."""
    _, world_size = distributed_place()
    if world_size < 2:
        return False
    warnings.warn(
        f"torch.distributed has {world_size} ranks, and this loader gives every rank all samples: pass rank= and "
        "world_size= (or a DistributedSampler) to share them, world_size=1 if every rank is to have all",
        stacklevel=4,
    )
    return True


# ---- the state of a sampler

_DEEPEST = 4


def digest(indices: Iterable[Any], before: int = 0) -> int:
    """Return a checksum of samples in their order, continued from `before`, the checksum of the preceding samples."""
    return zlib.crc32(b"".join(b"%d," % number_of(index) for index in indices), before)


def state_of(sampler: object) -> dict[str, Any]:
    """Return, for JSON, the states of a sampler's generators, nested ones included, and the epochs it was set to."""
    return {path: held.epoch if path.endswith(".epoch") else generator_state(held) for path, held in _sources(sampler)}


def restore(sampler: object, state: dict[str, Any]) -> None:
    """Restore what state_of() returned. Raises ValueError for the state of another kind of sampler."""
    sources = dict(_sources(sampler))
    if sources.keys() != state.keys():
        raise ValueError(
            f"the state is of a sampler with {sorted(state)}, this one has {sorted(sources)}: give the loader the "
            "sampler that it had"
        )
    for path, held in sources.items():
        if path.endswith(".epoch"):
            held.set_epoch(state[path])
        else:
            set_generator_state(held, state[path])


def rank_of(sampler: object) -> int:
    """Return the rank of a sampler, or of a nested one; or else that in torch.distributed."""
    ranks = (one.rank for _, one in _samplers(sampler, "sampler", 0) if isinstance(vars(one).get("rank"), int))
    return next(ranks, distributed_place()[0])


def _samplers(sampler: object, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the path and object of a sampler and of those in its attributes."""
    fields = getattr(sampler, "__dict__", None)
    if not isinstance(fields, dict) or depth > _DEEPEST:
        return
    yield path, sampler
    for name, value in sorted(fields.items()):
        if not _is_generator(value) and hasattr(type(value), "__iter__") and not hasattr(type(value), "__getitem__"):
            yield from _samplers(value, f"{path}.{name}", depth + 1)


def _sources(sampler: object) -> Iterator[tuple[str, Any]]:
    """Yield the path and object of each generator, and of each sampler with an epoch."""
    for path, one in _samplers(sampler, "sampler", 0):
        if hasattr(one, "set_epoch") and isinstance(vars(one).get("epoch"), int):
            yield f"{path}.epoch", one
        for name, value in sorted(vars(one).items()):
            if _is_generator(value):
                yield f"{path}.{name}", value


def _is_generator(value: object) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        isinstance(value, random.Random)
        or (torch is not None and isinstance(value, torch.Generator))
        or (numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState)))
    )


def generator_state(generator: Any) -> object:
    """Return the state of a generator of Python, NumPy or PyTorch, for JSON."""
    if isinstance(generator, random.Random):
        return _plain(generator.getstate())
    if hasattr(generator, "bit_generator"):
        return _plain(generator.bit_generator.state)
    state = generator.get_state()
    # A tuple is of numpy.random.RandomState.
    return _plain(state) if isinstance(state, tuple) else state.numpy().tobytes().hex()


def set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate((state[0], tuple(map(int, state[1])), state[2]))
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    elif isinstance(state, str):
        generator.set_state(sys.modules["torch"].frombuffer(bytearray.fromhex(state), dtype=sys.modules["torch"].uint8))
    else:
        generator.set_state(tuple(state) if isinstance(state, list) else state)


def _plain(state: object) -> object:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, tuple):
        return [_plain(each) for each in state]
    return state.tolist() if hasattr(state, "tolist") else state


# ---- the order

OTHER_STYLE = (
    "the state is of a loader of another style of dataset: a map-style one has a number as its position, an "
    "iterable-style one its streams"
)

# Of one batch; a single index where samples are not batched.
Indices = list[Any] | Any

# Taken from a sampler before the program's random state is set back. An endless batch sampler, which looks at the
# epoch whenever it begins anew, must not be far ahead.
_INDICES_AT_ONCE, _BATCHES_AT_ONCE = 256, 4
_ORDER = 0x6F72646572  # what the random numbers are for


Part = tuple[int, int]  # of an epoch: from one position to another


class Gaps(NamedTuple):
    """The position of a trainer with in_order=False: all samples before `position`, and the parts `beyond` after it."""

    position: int
    beyond: tuple[Part, ...]


class MapOrder:
    """What the orders of a map-style dataset share. `source` has the samples; `whole` is by how much a full batch, of
    all ranks, advances the position."""

    def __init__(
        self,
        source: Any,
        seed: int,
        batch: int | None,
        drop_last: bool,
        rank: int = 0,
        world_size: int = 1,
        *,
        shuffle: bool = False,
        gives_batches: bool = False,
    ) -> None:
        self._source, self.seed, self._batch, self._drop_last = source, seed, batch, drop_last
        self.shuffle, self.gives_batches = shuffle, gives_batches
        self.rank, self.world_size = rank, world_size
        self.whole = (batch or 1) * world_size

    def __len__(self) -> int:
        length = len(self._source)
        return length // self.whole if self._drop_last else -(-length // self.whole)

    def batches(self, epoch: int, position: int, before: int | None = None) -> Iterator[tuple[Indices, int]]:
        """Yield the batches from a position on, each with the position after it."""
        raise NotImplementedError

    def _place(self) -> tuple[int, int]:
        return (self.rank, self.world_size) if self.world_size > 1 else distributed_place()

    def state_of(self, position: object) -> dict[str, Any]:
        if not isinstance(position, Gaps):
            return {"position": position}
        rank, world_size = self._place()
        given = [list(part) for part in position.beyond]
        if not given and world_size == 1:  # of several ranks others may have gaps
            return {"position": position.position}
        beyond = {"given": given, "batch": self.whole, "rank": rank, "world_size": world_size}
        return {"position": position.position, "beyond": beyond}

    def place(self, state: dict[str, Any]) -> int | Gaps:
        """Return the position from what state_of() returned. Raises ValueError if it does not fit this loader."""
        if isinstance(state["position"], dict):
            raise ValueError(OTHER_STYLE)
        check_number(0, position=state["position"])
        position, beyond = int(state["position"]), state.get("beyond")
        if beyond is None:
            return position
        place, (rank, world_size) = self._place(), (beyond["rank"], beyond["world_size"])
        if world_size > 1 and (rank, world_size) != place:
            raise ValueError(
                f"the state is of rank {rank} of {world_size}, which got its batches in an order of its own "
                f"(in_order=False), this is rank {place[0]} of {place[1]}: save the state of "
                "each rank, and load it on the same one"
            )
        if beyond["given"] and beyond["batch"] != self.whole:
            raise ValueError(
                f"the state has batches of {beyond['batch']} samples that were given out of turn (in_order=False), "
                f"this loader makes batches of {self.whole}, over all ranks: go on with the batch_size, or the "
                "batches, of before"
            )
        return Gaps(position, tuple((int(start), int(end)) for start, end in beyond["given"]))


class SampleOrder(MapOrder):
    """All samples in order, or shuffled; each rank has its part of each global batch.

    The last global batch may be smaller: it is divided evenly, or dropped. If it has fewer samples than there are
    ranks, it is filled with the first samples of the epoch, so that all ranks have equally many batches.
    """

    @property
    def samples(self) -> int:
        whole, rest = divmod(len(self._source), self.whole)
        each, more = divmod(max(rest, self.world_size), self.world_size)
        last = 0 if self._drop_last or not rest else each + (self.rank < more)
        return whole * (self._batch or 1) + last

    def batches(self, epoch: int, position: int, before: int | None = None) -> Iterator[tuple[Indices, int]]:
        length = len(self._source)
        if not self.shuffle:
            return self._parts(range(length), position)
        import numpy

        order = numpy.random.default_rng([mix(self.seed, _ORDER), epoch]).permutation(length)
        return self._parts(order, position)  # type: ignore[arg-type]

    def _parts(self, indices: Sequence[int], position: int) -> Iterator[tuple[Indices, int]]:
        first = [int(index) for index in indices[: self.world_size]]
        while position < len(indices):
            part = indices[position : position + self.whole]
            if self._drop_last and len(part) < self.whole:
                return
            position += len(part)
            mine = list(part) if isinstance(part, range) else part.tolist()  # type: ignore[attr-defined]
            if self.world_size > 1:
                mine = self._part(mine, first)
            yield (mine if self._batch is not None else mine[0]), position

    def _part(self, samples: list[int], first: list[int]) -> list[int]:
        missing = self.world_size - len(samples)
        if missing > 0:
            samples = samples + (first * (missing // len(first) + 1))[:missing]
        each, more = divmod(len(samples), self.world_size)
        start = self.rank * each + min(self.rank, more)
        return samples[start : start + each + (self.rank < more)]


class SamplerOrder(MapOrder):
    """The indices that the user's sampler gives, or the batches of a batch sampler (`gives_batches`). Random numbers
    that it draws depend on seed and epoch; the program's random state is kept."""

    def batches(self, epoch: int, position: int, before: int | None = None) -> Iterator[tuple[Indices, int]]:
        """Yield the batches from a position on, each with the position after it. Raises ValueError if the sampler gives
        other samples before the position than those of the digest `before`."""
        source = self._rest(epoch, position, before)
        while some := list(islice(source, self.whole)):
            if self._drop_last and len(some) < self.whole:
                return
            position += len(some)
            yield list(some[0]) if self.gives_batches else some if self._batch is not None else some[0], position

    def _drawn(self, epoch: int) -> Iterator[Any]:
        stream = SamplerRandomState(mix(self.seed, _ORDER, epoch))
        with stream:
            # The iterator of some begins anew at each iter(), and islice() has one.
            source = (each for each in self._source)
        while True:
            with stream:
                some = list(islice(source, _BATCHES_AT_ONCE if self.gives_batches else _INDICES_AT_ONCE))
            if not some:
                return
            yield from some

    def _rest(self, epoch: int, position: int, before: int | None) -> Iterator[Any]:
        source = self._drawn(epoch)
        skipped = islice(source, position)
        if before is None:
            deque(skipped, maxlen=0)
        elif digest(chain.from_iterable(skipped) if self.gives_batches else skipped) != before:
            raise ValueError(
                f"the sampler begins epoch {epoch} with other samples than it had given when the state was saved: "
                "what it draws must depend on the program's random numbers, on torch, numpy or random generators that "
                "are its attributes, or on set_epoch() alone"
            )
        return source
