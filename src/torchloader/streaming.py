"""Building blocks of iterable-style datasets: a worker's part of the items, a shuffle buffer, a mix of several
datasets.

They read iterable-style datasets, which divide their samples among workers themselves, and map-style ones (including
lists and ranges), of which each worker gets its part. They can save their position (torchdata's protocol Stateful) if
the datasets that they read can, so that a loader continues them in another process without reading anything again.
Their random numbers are derived from `seed`, the epoch and the stream; without `seed` from the random state that
ElasticDataLoader sets for the epoch and the stream.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TypeVar

from torchloader.loader.base import Streaming
from torchloader.loader.making import END, Source, current_share
from torchloader.loader.options import check_number
from torchloader.loader.randomness import mix

__all__ = ["RandomMix", "ShuffleBuffer", "shard"]

Item = TypeVar("Item")

_WHOLE = float(1 << 64)


def shard(items: Iterable[Item]) -> Iterator[Item]:
    """Return this stream's part of the items: every n-th, of n streams. For use in an __iter__(), also with PyTorch's
    DataLoader; outside a worker all items."""
    number, streams = current_share()
    return islice(items, number, None, streams)


class _Dice:
    """Random numbers whose state is a number."""

    def __init__(self, seed: int, drawn: int = 0) -> None:
        self.seed, self.drawn = seed, drawn

    def state(self) -> dict[str, int]:
        return {"seed": self.seed, "drawn": self.drawn}

    def roll(self) -> int:
        """Return a random number of 64 bits."""
        self.drawn += 1
        return mix(self.seed, self.drawn)


class _Drawing(Streaming):
    """A dataset that draws random numbers."""

    def __init__(self, seed: int | None) -> None:
        if seed is not None:
            check_number(seed=seed)
        self.seed, self._epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose random numbers the next iter() draws. Has no effect without a `seed`."""
        check_number(0, epoch=epoch)
        self._epoch = epoch

    def _dice(self) -> _Dice:
        if self.seed is None:
            return _Dice(random.getrandbits(64))
        return _Dice(mix(self.seed, self._epoch, current_share()[0]))


class ShuffleBuffer(_Drawing):
    """The samples of a dataset, each chosen at random from a buffer of `buffer_size` samples.

    A state includes the samples in the buffer: if it is large, pass snapshot_every_n_steps to the loader, or shuffle
    something small, such as file names, and read the files afterwards.

    Args:
        dataset: what to read, iterable-style or map-style.
        buffer_size: the number of samples in the buffer.
        seed: the seed of the random numbers; None for the random state of the loader.

    Examples:
        >>> from torchloader.streaming import ShuffleBuffer
        >>> samples = list(ShuffleBuffer(range(100), buffer_size=10, seed=0))
        >>> samples != sorted(samples), sorted(samples) == list(range(100))
        (True, True)
    """

    def __init__(self, dataset: Iterable[Any], buffer_size: int = 1000, seed: int | None = None) -> None:
        super().__init__(seed)
        check_number(1, buffer_size=buffer_size)
        self.dataset, self.buffer_size = dataset, buffer_size

    def __iter__(self) -> Iterator[Any]:
        source = Source(self.dataset)
        kind = _StatefulShuffled if source.is_stateful else _Shuffled
        return kind(self.dataset, source, self.buffer_size, self._dice())


class _Shuffled:
    def __init__(self, dataset: Iterable[Any], source: Source, size: int, dice: _Dice) -> None:
        self._dataset, self._source, self._size, self._dice = dataset, source, size, dice
        self._buffer: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> object:
        buffer = self._buffer
        while len(buffer) < self._size and (sample := self._source.next()) is not END:
            buffer.append(sample)
        if not buffer:
            raise StopIteration
        place = self._dice.roll() % len(buffer)
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        return buffer.pop()


class _StatefulShuffled(_Shuffled):
    def state_dict(self) -> dict[str, Any]:
        return {**self._dice.state(), "buffer": list(self._buffer), "source": self._source.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._dice = _Dice(state["seed"], state["drawn"])
        self._buffer, self._source = list(state["buffer"]), Source(self._dataset, state["source"])


class RandomMix(_Drawing):
    """Samples of several datasets; the dataset of each sample is drawn at random by the weights.

    Args:
        datasets: what to read, iterable-style or map-style.
        weights: the relative frequency of each dataset; equal by default.
        seed: the seed of the random numbers; None for the random state of the loader.
        stop_criteria: as in torchdata. "ALL_DATASETS_EXHAUSTED" continues with the others when one has ended, so that
            each sample is given once; "FIRST_DATASET_EXHAUSTED" ends there, which keeps the proportions.

    Raises ValueError without datasets, for weights that are not positive or not one for each dataset, and for another
    stop_criteria.

    Examples:
        >>> from torchloader.streaming import RandomMix
        >>> sorted(RandomMix([range(3), range(10, 12)], weights=[0.9, 0.1], seed=0))
        [0, 1, 2, 10, 11]
    """

    def __init__(
        self,
        datasets: Sequence[Iterable[Any]],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_criteria: Literal["ALL_DATASETS_EXHAUSTED", "FIRST_DATASET_EXHAUSTED"] = "ALL_DATASETS_EXHAUSTED",
    ) -> None:
        super().__init__(seed)
        self.datasets = list(datasets)
        self.weights = [1.0] * len(self.datasets) if weights is None else [float(weight) for weight in weights]
        self.stop_criteria = stop_criteria
        if not self.datasets:
            raise ValueError("datasets must not be empty: there is nothing to mix")
        if len(self.weights) != len(self.datasets):
            raise ValueError(f"weights must be as many as the {len(self.datasets)} datasets, not {len(self.weights)}")
        if not all(0 < weight < float("inf") for weight in self.weights):
            raise ValueError(f"weights must be positive numbers, not {self.weights}")
        if stop_criteria not in ("ALL_DATASETS_EXHAUSTED", "FIRST_DATASET_EXHAUSTED"):
            raise ValueError(
                f"stop_criteria must be ALL_DATASETS_EXHAUSTED or FIRST_DATASET_EXHAUSTED, not {stop_criteria!r}"
            )

    def __iter__(self) -> Iterator[Any]:
        sources = [Source(dataset) for dataset in self.datasets]
        kind = _StatefulMixed if all(source.is_stateful for source in sources) else _Mixed
        return kind(self, sources, self._dice())


class _Mixed:
    def __init__(self, mix: RandomMix, sources: list[Source], dice: _Dice) -> None:
        self._mix, self._sources, self._dice = mix, sources, dice
        self._left = list(range(len(sources)))  # numbers of datasets that go on

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> object:
        while self._left:
            number = self._drawn()
            sample = self._sources[number].next()
            if sample is not END:
                return sample
            self._left = [each for each in self._left if each != number]
            if self._mix.stop_criteria == "FIRST_DATASET_EXHAUSTED":
                self._left = []
        raise StopIteration

    def _drawn(self) -> int:
        weights = self._mix.weights
        rest = self._dice.roll() / _WHOLE * sum(weights[number] for number in self._left)
        for number in self._left:
            rest -= weights[number]
            if rest < 0:
                return number
        return self._left[-1]


class _StatefulMixed(_Mixed):
    def state_dict(self) -> dict[str, Any]:
        return {**self._dice.state(), "left": self._left, "sources": [source.state() for source in self._sources]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pairs = zip(self._mix.datasets, state["sources"], strict=True)
        self._sources = [Source(dataset, saved) for dataset, saved in pairs]
        self._dice, self._left = _Dice(state["seed"], state["drawn"]), list(state["left"])
