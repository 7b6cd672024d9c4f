"""Which samples make up which batch. This depends only on the seed and the epoch.

A position counts what an epoch has given so far over all ranks: samples, or batches if a batch sampler makes them. With
the same global batch size, an epoch continued at a position gives the same samples with any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import chain, islice
from typing import Any, Protocol

from torchloader.loader.randomness import Stream, mix
from torchloader.loader.samplers import digest

__all__ = ["BatchSamplerOrder", "Indices", "Order", "SampleOrder", "SamplerOrder"]

# Of one batch; a single index where samples are not batched.
Indices = list[Any] | Any

# Taken from a sampler before the program's random state is set back. An endless batch sampler, which looks at the
# epoch whenever it begins anew, must not be far ahead.
_INDICES_AT_ONCE, _BATCHES_AT_ONCE = 256, 4
_ORDER = 0x6F72646572  # what the random numbers are for


class Order(Protocol):
    """The batches of an epoch."""

    seed: int

    @property
    def whole(self) -> int:
        """By how much a full batch of all ranks advances the position."""

    def batches(self, epoch: int, position: int, before: int | None = None) -> Iterator[tuple[Indices, int]]:
        """Yield the batches of this rank from a position on, each with the position after it.

        `before` is the digest of the samples before the position; ValueError if the sampler gives other ones now.
        """

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch. Raises TypeError if a sampler has no length."""


class SampleOrder:
    """All samples in order, or shuffled; each rank has its part of each global batch.

    The last global batch may be smaller: it is divided evenly, or dropped. If it has fewer samples than there are
    ranks, it is filled with the first samples of the epoch, so that all ranks have equally many batches.
    """

    def __init__(
        self, dataset: Sized, shuffle: bool, seed: int, batch: int | None, drop_last: bool, rank: int, world_size: int
    ) -> None:
        self._dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self._batch, self._drop_last = batch, drop_last
        self.rank, self.world_size = rank, world_size

    @property
    def whole(self) -> int:
        """By how much a full batch of all ranks advances the position."""
        return (self._batch or 1) * self.world_size

    def __len__(self) -> int:
        length = len(self._dataset)
        return length // self.whole if self._drop_last else -(-length // self.whole)

    @property
    def samples(self) -> int:
        """The number of samples of this rank in an epoch."""
        whole, rest = divmod(len(self._dataset), self.whole)
        if self._drop_last or not rest:
            return whole * (self._batch or 1)
        each, more = divmod(max(rest, self.world_size), self.world_size)
        return whole * (self._batch or 1) + each + (self.rank < more)

    def _indices(self, epoch: int) -> Any:
        length = len(self._dataset)
        if not self.shuffle:
            return range(length)
        import numpy

        return numpy.random.default_rng([mix(self.seed, _ORDER), epoch]).permutation(length)

    def batches(self, epoch: int, position: int, before: int | None = None) -> Iterator[tuple[Indices, int]]:
        """Yield the batches of this rank from a position on, each with the position after it. Uses the present length
        of the dataset."""
        return self._parts(self._indices(epoch), position)

    def _parts(self, indices: Any, position: int) -> Iterator[tuple[Indices, int]]:
        whole = [int(index) for index in indices[: self.world_size]]
        while position < len(indices):
            part = indices[position : position + self.whole]
            if self._drop_last and len(part) < self.whole:
                return
            position += len(part)
            mine = self._part(list(part) if isinstance(part, range) else part.tolist(), whole)
            yield (mine if self._batch is not None else mine[0]), position

    def _part(self, samples: list[int], filling: list[int]) -> list[int]:
        missing = self.world_size - len(samples)
        if missing > 0:
            samples = samples + (filling * (missing // len(filling) + 1))[:missing]
        each, more = divmod(len(samples), self.world_size)
        start = self.rank * each + min(self.rank, more)
        return samples[start : start + each + (self.rank < more)]


class _Sampled:
    """The indices that the user's sampler gives. Random numbers that it draws depend on seed and epoch; the program's
    random state is kept."""

    _at_once = _INDICES_AT_ONCE

    def __init__(self, sampler: Iterable[Any], seed: int) -> None:
        self._sampler, self.seed = sampler, seed

    def _drawn(self, epoch: int) -> Iterator[Any]:
        stream = Stream(mix(self.seed, _ORDER, epoch))
        with stream:
            # The iterator of some begins anew at each iter(), and islice() has one.
            source = (each for each in self._sampler)
        while True:
            with stream:
                some = list(islice(source, self._at_once))
            if not some:
                return
            yield from some

    def _rest(self, epoch: int, position: int, before: int | None) -> Iterator[Any]:
        source = self._drawn(epoch)
        skipped = islice(source, position)
        if before is None:
            for _ in skipped:
                pass
        elif self._digest(skipped) != before:
            raise ValueError(
                f"the sampler begins epoch {epoch} with other samples than it had given when the state was saved: "
                "what it draws must depend on the program's random numbers, on torch, numpy or random generators that "
                "are its attributes, or on set_epoch() alone"
            )
        return source

    def _digest(self, drawn: Iterable[Any]) -> int:
        return digest(drawn)


class SamplerOrder(_Sampled):
    """The indices of a sampler, in batches."""

    def __init__(self, sampler: Iterable[Any], seed: int, batch: int | None, drop_last: bool) -> None:
        super().__init__(sampler, seed)
        self._batch, self._drop_last = batch, drop_last

    @property
    def whole(self) -> int:
        """By how much a full batch advances the position."""
        return self._batch or 1

    def __len__(self) -> int:
        length, batch = len(self._sampler), self._batch or 1  # type: ignore[arg-type]
        return length // batch if self._drop_last else -(-length // batch)

    def batches(self, epoch: int, position: int, before: int | None = None) -> Iterator[tuple[Indices, int]]:
        """Yield the batches from a position on; see `Order.batches`."""
        source = self._rest(epoch, position, before)
        while some := list(islice(source, self._batch or 1)):
            if self._drop_last and len(some) < (self._batch or 1):
                return
            position += len(some)
            yield (some if self._batch is not None else some[0]), position


class BatchSamplerOrder(_Sampled):
    """The batches of a batch sampler."""

    whole = 1
    _at_once = _BATCHES_AT_ONCE

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def batches(self, epoch: int, position: int, before: int | None = None) -> Iterator[tuple[Indices, int]]:
        """Yield the batches from a position on; see `Order.batches`."""
        for batch in self._rest(epoch, position, before):
            position += 1
            yield list(batch), position

    def _digest(self, drawn: Iterable[Any]) -> int:
        return digest(chain.from_iterable(drawn))
