"""Datasets for the tests of the loader. They need no PyTorch."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import numpy as np

from torchloader.loader.forks import Fork


def pid_of(process: Any) -> int:
    """Return the process id of a loading worker, forked or not."""
    pid: int = process.pid if isinstance(process, Fork) else process._started.pid
    return pid


def kill_a_worker(loader: Any, which: int) -> None:
    """Kill one of the ready workers with SIGKILL."""
    pids = [
        pid_of(worker.process) for worker in list(loader._crew._workers.values()) if worker.ready and worker.process
    ]
    if pids:
        try:
            os.kill(pids[which % len(pids)], signal.SIGKILL)
        except ProcessLookupError:
            return  # an earlier kill is not noticed yet


class Noisy:
    """Samples that show the random state in which they were made."""

    def __init__(self, length: int, latency: float = 0.0) -> None:
        self.length, self.latency = length, latency

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        time.sleep(self.latency)
        return index, random.random(), float(np.random.rand())


class Failing(Noisy):
    """A dataset of which one sample cannot be read."""

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        if index == 7:
            raise OSError(5, "the disk is gone", "sample-7.jpg")
        return super().__getitem__(index)


class RunningDry(Noisy):
    """A dataset of which one sample raises StopIteration."""

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return super().__getitem__(next(iter([] if index == 7 else [index])))


class Deadly(Noisy):
    """A dataset of which one sample kills the process that reads it."""

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        if index == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class DeadlyOnce(Noisy):
    """A dataset of which one sample kills the process that reads it while a file exists."""

    def __init__(self, length: int, file: str) -> None:
        super().__init__(length)
        self.file = file

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        if index == 7 and os.path.exists(self.file):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Unreadable(Noisy):
    """A dataset that workers cannot deserialize."""

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("the file of this dataset is not there")


class SlowToOpen(Noisy):
    """A dataset that is slow to deserialize in each process."""

    def __setstate__(self, state: Any) -> None:
        time.sleep(1.0)
        self.__dict__.update(state)


class ByKey:
    """A dataset whose samples have names instead of numbers."""

    def __getitem__(self, key: str) -> tuple[str, float]:
        return key, random.random()


class TwoArguments(Exception):
    """An error that pickle cannot rebuild, because it passes one argument instead of two."""

    def __init__(self, index: int, length: int) -> None:
        super().__init__(f"{index} of {length}")


class FailingInTwoArguments(Noisy):
    """A dataset of which one sample raises an error that cannot be rebuilt."""

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        if index == 7:
            raise TwoArguments(index, self.length)
        return super().__getitem__(index)


class UnreadableInTwoArguments(Noisy):
    """A dataset that workers cannot deserialize, with an error that cannot be rebuilt."""

    def __setstate__(self, state: Any) -> None:
        raise TwoArguments(1, 2)


def not_here() -> None:
    raise LookupError("such a sample is not rebuilt")


class Unrebuildable:
    """An object that can be pickled but not unpickled."""

    def __reduce__(self) -> Any:
        return not_here, ()


class HoldingUnrebuildable(Noisy):
    """A dataset of which one sample can be pickled but not unpickled."""

    def __getitem__(self, index: int) -> Any:
        return (index, Unrebuildable()) if index == 7 else super().__getitem__(index)


class Changing(Noisy):
    """A dataset whose samples show an attribute that the program has set."""

    content: Any = 0

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.latency)
        return index, self.content


class Holding(Noisy):
    """A dataset whose samples are sums of an array or tensor, which may be shared with other processes."""

    content: Any = None

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.latency)
        return index, self.content.sum().item()


class Asking(Noisy):
    """A dataset whose samples show the length of a queue."""

    queue: Any = None

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.latency)
        return index, self.queue.size()


calls = 0


def be_slow(worker: int) -> None:
    """Delay the start of a worker."""
    time.sleep(1.0)


def count_call(worker: int) -> None:
    """Count the calls of this function in a worker, as its start function."""
    global calls
    calls += 1


class Counting(Changing):
    """A dataset whose samples show how often the worker's start function was called."""

    def __getitem__(self, index: int) -> Any:
        return index, calls


class Large:
    """A dataset whose samples show the sum of all, and how many bytes of one kind the reading process has."""

    kind = "Anonymous"

    def __init__(self, size: int, writes: bool = False) -> None:
        self.numbers, self.writes = np.zeros(size, np.uint8), writes

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        total = int(self.numbers.sum())
        if self.writes:
            self.numbers[index] = 1
        with open("/proc/self/smaps_rollup") as file:
            told = next(line for line in file if line.startswith(f"{self.kind}:"))
        return total, int(told.split()[1]) * 1024


class Stored(Noisy):
    """Samples of a storage that becomes fast once a file exists."""

    def __init__(self, length: int, slow: float, fast: float, file: str) -> None:
        super().__init__(length, slow)
        self.fast, self.file = fast, file

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        time.sleep(self.fast if os.path.exists(self.file) else self.latency)
        return index


class Computing(Noisy):
    """A dataset whose samples take a given number of seconds of CPU."""

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        end = time.thread_time() + self.latency
        while time.thread_time() < end:
            pass
        return index


class NativeThreads:
    """Samples that are the number of threads in which this process's linear algebra computes."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        import threadpoolctl

        return max(each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas")
