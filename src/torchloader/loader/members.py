"""The workers of a crew as it knows them, and what it says when they fail."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakMethod

from dragon.infrastructure.policy import Policy
from dragon.native.event import Event
from dragon.native.machine import current
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.native.value import Value
from torchloader.loader.effort import Effort
from torchloader.loader.forks import Fork, Template

__all__ = ["LoadingError", "Member", "Tally", "compared", "heard", "start_each", "started"]


class LoadingError(RuntimeError):
    """Batches cannot be made: workers end at their start, or over one batch again and again."""


@dataclass(eq=False)
class Member:
    """A loading worker, from before its start until it is gone."""

    number: int
    slot: int
    tasks: Queue
    leave: Event
    node: str | None = None  # that it is to be on; None: the trainer's
    process: Process | Fork | None = None
    datasets: set[int] = field(default_factory=set)  # numbers of the snapshots that it has
    is_first: bool = False  # started as an iteration began, which waits for it
    takes: bool = False  # batches
    ready: bool = False
    leaving: bool = False

    def arguments(self, workers: int, nice: int, results: Queue, floor: Value) -> tuple[Any, ...]:
        """What it is called with, as one of so many workers, whose priority is so much lower."""
        orders = (os.getpid(), self.leave, floor) if self.node is None else None
        return self.number, (self.slot, workers), nice, self.tasks, results, orders


def compared(
    workers: Iterable[Member], nodes: Sequence[str | None], size: int
) -> tuple[list[str | None], list[Member]]:
    """Return the nodes that lack a worker, and the workers that are too many, the newest first.

    Args:
        workers: those that there are; those that leave do not count.
        nodes: that they are to be on, by turns; None is the trainer's.
        size: how many they are to be.
    """
    wanted = Counter(nodes[slot % len(nodes)] for slot in range(size))
    surplus = []
    for worker in sorted((each for each in workers if not each.leaving), key=lambda each: each.number):
        if wanted[worker.node]:
            wanted[worker.node] -= 1
        else:
            surplus.append(worker)
    return list(wanted.elements()), surplus[::-1]


@dataclass
class Tally:
    """What the workers have done so far: batches, and what these took."""

    batches: int = 0
    samples: int = 0
    effort: Effort = field(default=Effort())
    died: int = 0
    shared: int = 0

    def note(self, effort: Effort, samples: int, is_shared: bool = False) -> None:
        """A batch was made, or taken from another loader's workers."""
        self.batches += 1
        self.shared += is_shared
        self.samples += samples
        self.effort = self.effort.plus(effort)


def started(
    target: Callable[..., None], arguments: tuple[Any, ...], template: Template | None, node: str | None = None
) -> Process | Fork:
    """A process that calls the function, on this node or the named one, forked from the template where there is one.
    Raises OSError where the system starts none, NodeLostError where the node is lost, LoadingError where the template
    has ended."""
    if template is not None:
        try:
            return template.start(target, arguments)
        except ChildProcessError as error:
            raise LoadingError(str(error)) from None
    place = Policy(placement=Policy.Placement.HOST_NAME, host_name=node or current().hostname)
    process = Process(target, arguments, policy=place)
    process.start()
    return process


def start_each(starts: SimpleQueue[Member | None], start: WeakMethod[Callable[[Member], None]]) -> None:
    """Start the workers that are put there, until there is None. While it waits it keeps no dataset alive: to free a
    large tensor in a thread when the interpreter has finished ends the process with SIGABRT."""
    while (worker := starts.get()) is not None:
        method = start()
        if method is not None:
            method(worker)
        del method, worker


def heard(results: Queue, timeout: float) -> Iterator[Any]:
    """The messages that are there, after so many seconds at most."""
    try:
        yield results.get(timeout=timeout) if timeout else results.get_nowait()
        while True:
            yield results.get_nowait()
    except Empty:
        return
