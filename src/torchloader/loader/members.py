"""The records that a loader keeps of its workers, and how it starts them."""

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
    """Raised when batches cannot be made: workers end when they start, or repeatedly while making one batch."""


@dataclass(eq=False)
class Member:
    """A loading worker, from before its start until it has ended."""

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
        """Return the arguments of work() for this worker, as one of `workers`."""
        orders = (os.getpid(), self.leave, floor) if self.node is None else None
        return self.number, (self.slot, workers), nice, self.tasks, results, orders


def compared(
    workers: Iterable[Member], nodes: Sequence[str | None], size: int
) -> tuple[list[str | None], list[Member]]:
    """Return the nodes that lack a worker (once per missing worker), and the surplus workers, the newest first.

    Args:
        workers: the present workers; those that are leaving do not count.
        nodes: those that they are to be spread over in turn; None is the trainer's.
        size: the wanted number of workers.
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
    """What the workers have done so far: batches, and their cost."""

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    delayed: float = 0.0
    died: int = 0
    shared: int = 0

    @property
    def effort(self) -> Effort:
        """The cost of all batches."""
        return Effort(self.seconds, self.cpu, self.delayed)

    def note(self, effort: tuple[float, float, float], samples: int, is_shared: bool = False) -> None:
        """Count a batch that was made, or taken from another loader's workers."""
        self.batches += 1
        self.shared += is_shared
        self.samples += samples
        self.seconds += effort[0]
        self.cpu += effort[1]
        self.delayed += effort[2]


def started(
    target: Callable[..., None], arguments: tuple[Any, ...], template: Template | None, node: str | None = None
) -> Process | Fork:
    """Start a process that calls `target`, forked from the template if there is one, else on the named node or this
    one.

    Raises OSError if it cannot be started, NodeLostError if the node is lost, LoadingError if the template has ended.
    """
    if template is not None:
        try:
            return template.start(target, arguments)
        except ChildProcessError as error:
            raise LoadingError(str(error)) from None
    place = Policy(placement=Policy.Placement.HOST_NAME, host_name=node or current().hostname)
    process = Process(target, arguments, policy=place, _kind="loading_worker")
    process.start()
    return process


def start_each(starts: SimpleQueue[Member | None], start: WeakMethod[Callable[[Member], None]]) -> None:
    """Start the workers that are put into the queue, until it yields None.

    Keeps no dataset alive while it waits: freeing a large tensor in a thread after the interpreter has finished ends
    the process with SIGABRT.
    """
    while (worker := starts.get()) is not None:
        method = start()
        if method is not None:
            method(worker)
        del method, worker


def heard(results: Queue, timeout: float) -> Iterator[Any]:
    """Yield the messages that have arrived, waiting at most `timeout` seconds for the first."""
    try:
        yield results.get(timeout=timeout) if timeout else results.get_nowait()
        while True:
            yield results.get_nowait()
    except Empty:
        return
