"""Chooses a loader's number of workers while it is used: the smallest with which the trainer hardly waits.

It measures some batches with one number of workers, gets the next number from the search, and from the node's budget
how many of them it may have. The result is kept; it is searched for again when measurements contradict it, and
otherwise ever less often.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Collection
from typing import Literal, Protocol

from dragon.native.machine import Node
from torchloader.loader.budget import Budget, cores_of_node
from torchloader.loader.checks import check_workers
from torchloader.loader.look import Look
from torchloader.loader.members import Tally
from torchloader.loader.search import Search
from torchloader.loader.tuning import Limit, Tuning

__all__ = ["AUTO", "Resizable", "Tuner", "by_environment", "tuner_of"]

AUTO = "TORCHLOADER_AUTO"

_BATCHES = 8  # of a look, at least, and 2 for each worker
_FEWEST, _MOSTLY = 3, 0.5  # batches that suffice, one for each worker, if that fraction of the time was waited
_SHORTEST_S, _LONGEST_S = 0.5, 2.0  # seconds of a look, after a change, and when nothing has changed for long
_PATIENCE_S = 20.0, 600.0  # seconds after which a number is looked for anew: at first, and at most
_FOR_EACH_CORE = 8  # workers: those that wait for a storage take little of one
_NEEDED = 0.03  # the fraction of its time that a trainer that waits for more is held up

_log = logging.getLogger(__name__)


class Resizable(Protocol):
    """A set of workers whose number can be changed: a crew."""

    tally: Tally
    size: int

    @property
    def ready(self) -> int:
        """The number of workers that take batches now."""

    @property
    def window(self) -> int:
        """The number of batches that may be requested before the first of them is taken."""

    @property
    def begun(self) -> int:
        """The number of iterations that have begun so far."""

    def resize(self, size: int) -> None:
        """Set the number of workers."""


class Tuner:
    """Chooses the number of workers of one loader.

    Args:
        at_most: the largest number of workers.
        budget: the loader's share of the node's cores.
        cpu_clock: returns the seconds of CPU time of the trainer.
    """

    def __init__(self, at_most: int, budget: Budget, cpu_clock: Callable[[], float] = time.process_time) -> None:
        self._at_most, self._budget, self._cpu_clock = at_most, budget, cpu_clock
        self._search = Search()
        self._wanted = 1
        self._shortest = _SHORTEST_S
        self._kept, self._patience = 0.0, _PATIENCE_S[0]  # seconds for which the number was kept, and is to be
        self._told: int | None = None
        self._epoch = 0
        self._cpu_before = cpu_clock()
        self.tuning: Tuning | None = None
        self._size, self._window, self._arrived, self._skip = 0, 0, False, 0
        self._is_closed = False
        self._begin(Tally(), False)

    def _begin(self, tally: Tally, at_start: bool) -> None:
        """Begin a measurement."""
        self._batches, self._waited, self._computed, self._cpu = 0, 0.0, 0.0, 0.0
        self._made, self._effort = tally.batches, tally.effort
        self._from_start, self._epochs = at_start, 0

    def note(self, crew: Resizable, waited: float, computed: float) -> None:
        """Note a batch, for which the trainer waited `waited` seconds after it had computed for `computed` seconds."""
        now = self._cpu_clock()
        cpu, self._cpu_before = now - self._cpu_before, now
        if self._budget.is_due:
            self._fit(crew, self._budget.renew())
        if crew.begun != self._epoch:
            self._epoch, cpu = crew.begun, 0.0  # what the program did between two epochs is not of a batch
            self._begin_epoch(crew)
        if not self._is_there(crew):
            self._begin(crew.tally, False)
            return
        self._batches += 1
        self._waited += waited
        self._computed += computed
        self._cpu += cpu
        if self._is_clear or (self._is_long(1) and (not self._epochs or self._is_long(4))):
            self._decide(crew)

    def _is_there(self, crew: Resizable) -> bool:
        """Return whether measurements now reflect the present number of workers.

        They do not before all workers are ready, nor for batches requested before that. Where workers leave at the end
        of each epoch, waiting for them belongs to the epoch.
        """
        if crew.size != self._size:
            self._size, self._arrived = crew.size, False
        if not self._arrived and crew.ready == self._size:
            self._arrived, self._skip = True, max(self._window, crew.window) + 1
            self._window = crew.window
        self._skip = max(0, self._skip - 1)
        return self._arrived and not self._skip

    def _begin_epoch(self, crew: Resizable) -> None:
        """Begin an epoch. As an epoch begins with waiting, a measurement of short epochs includes only whole ones."""
        self._skip = 0  # no batch is left of the last one
        if not self._from_start:
            self._begin(crew.tally, True)
        elif self._is_long(1):
            self._decide(crew)
            self._from_start = True
        else:
            self._epochs += 1

    @property
    def _is_clear(self) -> bool:
        """Whether the trainer mostly waits for slow batches, so that more workers are needed, however many exactly."""
        seconds = self._waited + self._computed
        is_slow = self._batches >= max(_FEWEST, self._size) and seconds >= 2 * self._shortest
        return is_slow and not self._epochs and self._waited > _MOSTLY * seconds

    def _is_long(self, times: int) -> bool:
        enough = self._batches >= times * max(_BATCHES, 2 * self._size)
        return enough and self._waited + self._computed >= times * self._shortest

    def _decide(self, crew: Resizable) -> None:
        made = crew.tally.batches - self._made
        effort = crew.tally.effort.since(self._effort)
        look = Look(self._size, self._batches, self._waited, self._computed, self._cpu, made, effort)
        if self._search.observe(look):
            self._patience = _PATIENCE_S[0]
        self._kept += look.seconds
        if self._kept > self._patience:
            self._kept, self._patience = 0.0, min(_PATIENCE_S[1], 2 * self._patience)
            self._search.forget(self._size)
        self._wanted = self._search.next(look, self._budget.cores, self._at_most)
        granted = self._budget.ask(self._wanted, look.share, look.seconds / look.batches)
        self.tuning = Tuning(
            look.workers, look.step, look.service, look.share, look.waiting, self._limit(look, granted)
        )
        if granted == self._size:
            self._shortest = min(_LONGEST_S, 2 * self._shortest)
            self._tell()
        else:
            self._shortest, self._kept = _SHORTEST_S, 0.0
        self._fit(crew, granted)
        self._begin(crew.tally, False)

    def _limit(self, look: Look, granted: int) -> Limit:
        if granted != look.workers:
            return Limit.SEARCH
        if look.waiting <= _NEEDED:
            return Limit.NEED
        if granted < self._wanted:
            return Limit.CORES
        return Limit.MOST if granted >= self._at_most else Limit.GAIN

    def _fit(self, crew: Resizable, size: int) -> None:
        if size != crew.size and not self._is_closed:
            crew.resize(size)

    def _tell(self) -> None:
        if self.tuning is not None and self.tuning.workers != self._told:
            self._told = self.tuning.workers
            _log.info('num_workers="auto": %s', self.tuning)

    def close(self) -> None:
        """Stop choosing, and release the cores."""
        self._is_closed = True
        self._budget.close()


def by_environment(workers: int, streams: int | None, is_streaming: bool) -> tuple[int | Literal["auto"], int | None]:
    """Return the numbers of workers and streams of a loader to which the program gave these: "auto" with workers if
    TORCHLOADER_AUTO is 1, except in jobs of torchloader, where the scheduler chooses.

    Raises TypeError or ValueError for a number that cannot be one of workers, ValueError if the variable is not 0 or 1.
    """
    check_workers(num_workers=workers)
    text = os.environ.get(AUTO, "")
    if text not in ("", "0", "1"):
        raise ValueError(
            f'{AUTO} must be 1, with which loaders choose their number of workers as num_workers="auto" does, or 0, '
            f"not {text!r}"
        )
    if text != "1" or not workers or "TORCHLOADER_WORKERS" in os.environ:
        return workers, streams
    return "auto", workers if is_streaming and streams is None else streams  # on which its batches depend


def tuner_of(max_workers: int | None, streams: int | None, nodes: Collection[str | None]) -> Tuner:
    """Return the tuner of a loader.

    Args:
        max_workers: the largest number of workers; None for eight per core.
        streams: the number of streams, which also limits the workers; None for a map-style dataset.
        nodes: those of the workers; None is the trainer's. Cores of other nodes are not shared with other loaders.
    """
    others = {name for name in nodes if name is not None}
    cores = float(sum(Node(name).num_cpus for name in others))
    if None in nodes:
        cores += cores_of_node()
    budget = Budget(cores, None) if others else Budget(cores)
    at_most = max_workers or math.ceil(_FOR_EACH_CORE * cores)
    return Tuner(at_most if streams is None else min(at_most, max(1, streams)), budget)
