"""Iterable-style datasets for the tests of the loader. They need no PyTorch."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from torchloader.streaming import shard

Sample = tuple[int, float, float]


class Numbers:
    """Numbers, of which each stream has a part."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        return shard(range(self.length))


class Noisy(Numbers):
    """Samples that show the random state in which they were made. The dataset has no state to restore, so it is read
    again.
    """

    def __iter__(self) -> Iterator[Sample]:
        for number in super().__iter__():
            yield number, random.random(), float(np.random.rand())


class StatefulIterator(Noisy):
    """The same samples, with an iterator that keeps its position."""

    def __iter__(self) -> Iterator[Sample]:
        return _Stateful(list(Numbers.__iter__(self)))


class _Stateful:
    def __init__(self, numbers: list[int]) -> None:
        self.numbers, self.given = numbers, 0

    def __iter__(self) -> Iterator[Sample]:
        return self

    def __next__(self) -> Sample:
        if self.given == len(self.numbers):
            raise StopIteration
        self.given += 1
        return self.numbers[self.given - 1], random.random(), float(np.random.rand())

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


class StatefulDataset(Noisy):
    """The same samples, with a dataset that itself keeps its position."""

    given = 0

    def __iter__(self) -> Iterator[Sample]:
        numbers = list(Numbers.__iter__(self))
        while self.given < len(numbers):
            self.given += 1
            yield numbers[self.given - 1], random.random(), float(np.random.rand())

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


class Restarting(Noisy):
    """The same samples, with a dataset whose every iteration begins where a loaded state says, as Hugging Face's do."""

    begins = given = 0

    def __iter__(self) -> Iterator[Sample]:
        self.given = self.begins
        for number in list(Numbers.__iter__(self))[self.begins :]:
            self.given += 1
            yield number, random.random(), float(np.random.rand())

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begins = state["given"]


class Buffered(Noisy):
    """The same samples, with a dataset whose state leaves out what it has read ahead, as shuffle() of Hugging Face's
    datasets does."""

    read = 0

    def __iter__(self) -> Iterator[Sample]:
        numbers, buffer = list(Numbers.__iter__(self)), list[int]()
        while self.read < len(numbers) or buffer:
            while self.read < len(numbers) and len(buffer) < 5:
                buffer.append(numbers[self.read])
                self.read += 1
            yield buffer.pop(0), random.random(), float(np.random.rand())

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]


class Unloadable(StatefulDataset):
    """The same samples, with a state that cannot be loaded."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise IndexError("list index out of range")


class Unseeded(StatefulDataset):
    """Samples with random bytes that cannot be seeded: they differ each time, and only their numbers are the same."""

    def __iter__(self) -> Iterator[Any]:
        for number, *_ in super().__iter__():
            with open(self.file, "a", encoding="utf-8") as log:
                log.write(f"{number}\n")
            yield number, os.urandom(8)

    def __init__(self, length: int, file: str) -> None:
        super().__init__(length)
        self.file = file


class OtherProtocol(Noisy):
    """The same samples, with methods of the protocol's names that need other arguments, as MosaicML's datasets have."""

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        return {"given": num_samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Remembering(StatefulIterator):
    """A dataset that records what is read from it."""

    def __init__(self, length: int, file: str) -> None:
        super().__init__(length)
        self.file = file

    def __iter__(self) -> Iterator[Sample]:
        return _Remembering(list(Numbers.__iter__(self)), self.file)


class _Remembering(_Stateful):
    def __init__(self, numbers: list[int], file: str) -> None:
        super().__init__(numbers)
        self.file = file

    def __next__(self) -> Sample:
        sample = super().__next__()
        with open(self.file, "a", encoding="utf-8") as log:
            log.write(f"{sample[0]}\n")
        return sample


class Failing(Numbers):
    """A dataset of which one sample cannot be read, while the samples after it can."""

    def __iter__(self) -> Iterator[Any]:
        return _Failing(super().__iter__())


class _Failing:
    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        number = next(self.numbers)
        if number == 7:
            raise OSError(5, "the disk is gone")
        return number


class NotBegun(Numbers):
    """A dataset that cannot be read at all in one stream."""

    def __iter__(self) -> Iterator[Any]:
        numbers = list(super().__iter__())
        if 1 in numbers:
            raise OSError(2, "no such shard")
        return iter(numbers)


class Deadly(Numbers):
    """A dataset of which one sample ends the process that reads it."""

    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            if number == 7:
                os._exit(9)
            yield number


class Changing(Numbers):
    """Samples that show what the program has set, and how often the dataset was read before."""

    content: Any = 0
    reads = 0

    def __iter__(self) -> Iterator[Any]:
        self.reads += 1
        for number in super().__iter__():
            yield number, self.content, self.reads


class Interrupted(Numbers):
    """A dataset that interrupts the program once while a sample is read, as a user would."""

    interrupts: ClassVar = [17]

    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            if number in self.interrupts:
                self.interrupts.remove(number)
                raise KeyboardInterrupt
            yield number


class FailingLater(Numbers):
    """Samples that can be read until a file exists."""

    def __init__(self, length: int, file: str) -> None:
        super().__init__(length)
        self.file = file

    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            if os.path.exists(self.file):
                raise OSError(5, "the disk is gone")
            yield number
