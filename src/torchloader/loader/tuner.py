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
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from dragon.native.machine import Node
from torchloader.allocation.budget import Budget, cores_of_node
from torchloader.loader.crew import Crew, Tally
from torchloader.loader.messages import Effort
from torchloader.loader.options import check_workers
from torchloader.prediction.curve import SAME, sufficient

_log = logging.getLogger(__name__)


class Limit(StrEnum):
    """The reason why there are no more workers."""

    SEARCH = "another number is tried next"
    NEED = "more are not needed"
    GAIN = "more bring nothing"
    MOST = "max_workers allows no more"
    CORES = "the cores of the node allow no more"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of num_workers="auto", and the last measurement."""

    workers: int  # the number of workers that was measured
    step: float  # seconds that the trainer computes per batch
    service: float  # seconds of a worker per batch
    share: float  # the fraction of these that is CPU time, from 0 to 1
    waiting: float  # the fraction of its time that the trainer waits, from 0 to 1
    limit: Limit  # the reason why there are no more workers

    def __str__(self) -> str:
        step, service = (f"{seconds * 1e3:.3g} ms" for seconds in (self.step, self.service))
        return (
            f"{self.workers} loading worker{'s' * (self.workers != 1)}: the trainer computes {step} a batch and waits "
            f"{self.waiting:.0%} of its time, a worker takes {service} a batch ({self.share:.0%} of it CPU time); "
            f"{self.limit}"
        )


_LEAST = 1e-9  # seconds


@dataclass(slots=True)
class Look:
    """A measurement over some batches with a constant number of workers."""

    workers: int  # workers that took batches
    batches: int  # batches that the trainer received
    waited: float  # seconds that the trainer waited for them
    computed: float  # seconds of the trainer between them
    trainer_cpu: float = 0.0  # seconds of CPU time of the trainer meanwhile
    made: int = 0  # batches that workers made meanwhile
    effort: Effort = field(default=Effort())  # what these took the workers

    seconds: float = field(init=False)  # of the measurement
    rate: float = field(init=False)  # batches per second
    waiting: float = field(init=False)  # the fraction of its time in which the trainer waited, from 0 to 1
    step: float = field(init=False)  # seconds that the trainer computes per batch
    service: float = field(init=False)  # seconds of one worker per batch, if a core is free
    cpu: float = field(init=False)  # seconds of a worker's CPU time per batch
    share: float = field(init=False)  # of a core that a busy worker uses if cores are free: nearly 0 if it waits
    busy: float = field(init=False)  # average number of busy workers, with those that wait for a core (Little's law)

    def __post_init__(self) -> None:
        made = max(1, self.made)
        self.seconds = self.waited + self.computed
        self.rate, self.waiting = (each / max(_LEAST, self.seconds) for each in (self.batches, self.waited))
        self.step = self.computed / max(1, self.batches)
        self.service, self.cpu = self.effort.alone / made, self.effort.cpu / made
        self.share = self.cpu / self.service if self.service > 0 else 1.0
        self.busy = self.rate * self.effort.seconds / made

    def demand(self, cores: float) -> float:
        """Return the average number of busy workers, by Little's law, if batches came as fast as they can be used."""
        # They are used no faster than the trainer computes, and made no faster than the cores allow on which workers
        # and trainer compute (the bottleneck law): more workers than that bring nothing.
        of_cores = (self.cpu + self.trainer_cpu / max(1, self.batches)) / cores
        return self.service / max(_LEAST, self.step, of_cores)


_WAITING = 0.03  # the fraction of its time that a trainer may wait: more workers could not bring more than that
_SPARE = 0.5  # times the square root of the workers that are busy, which is how much their number varies
_STEP = 1.5  # from a number that does not suffice to the next that is tried, where nothing says more
_LEAP = 8  # times as many at once, at most: the more are tried, the more a wrong measurement costs
_SHARED = 1.2  # times as long as with few workers takes a batch where these share something
_DRIFT = 1.5  # times as fast, or slow, twice in a row: what was known does not hold any more


class Search:
    """The numbers of workers that were tried, and the choice of the next."""

    def __init__(self) -> None:
        self.rates: dict[int, float] = {}  # batches per second with each
        self._looks: dict[int, tuple[float, float, bool]] = {}  # the last, the seconds of a worker, and if it waited
        self._drifts = (0, 0)  # the direction, and how often in a row

    def observe(self, look: Look) -> bool:
        """Add a measurement. Returns True if it contradicts the earlier ones, which are then discarded."""
        now = look.rate, look.service or 1.0, look.waiting > _WAITING
        before, drifted = self._looks.get(look.workers), False
        if before is None:
            self._drifts = 0, 0
        else:
            direction = _direction(now[0] / before[0]) or -_direction(now[1] / before[1])
            is_same = direction != 0 and direction == self._drifts[0]
            self._drifts = direction, self._drifts[1] + 1 if is_same else abs(direction)
            if self._drifts[1] >= 2:
                self.forget()
                drifted = True
            elif direction:
                return False  # a hiccup, unless the next look says the same
        self._drop_contradicted(look.workers, now[1])
        known = self.rates.get(look.workers)
        self.rates[look.workers] = look.rate if known is None else (known + look.rate) / 2
        self._looks[look.workers] = now
        return drifted

    def forget(self, workers: int | None = None) -> None:
        """Discard all measurements, except that with `workers`."""
        kept = self.rates.keys() & {workers}
        self.rates = {number: rate for number, rate in self.rates.items() if number in kept}
        self._looks = {number: look for number, look in self._looks.items() if number in kept}
        self._drifts = 0, 0

    def _drop_contradicted(self, workers: int, service: float) -> None:
        """Discard measurements where a batch took longer with fewer workers, or less time with more."""
        # Workers that share something never speed each other up, so the storage must have changed.
        for number, (_, before, _) in list(self._looks.items()):
            fewest, most = (before, service) if number < workers else (service, before)
            if number != workers and fewest > _DRIFT * most:
                del self._looks[number], self.rates[number]

    def next(self, look: Look, cores: float, limit: int) -> int:
        """Return the number of workers to use after this observed measurement: another to try, or the result."""
        if look.workers > limit:
            return limit
        if self._drifts[1]:
            return look.workers  # until it is clear whether what is known still holds
        if look.waiting <= _WAITING:
            return self._fewer(look.workers, _staffed(look.busy))
        least = math.ceil(look.demand(cores) - 1e-9)
        found, largest = sufficient(self.rates), max(self.rates)
        if found < look.workers <= least and not self._shares(look):
            # Which nothing but other programs explains: these workers do not hold each other up.
            found = look.workers
        if found == largest and found == look.workers:
            if found < limit:
                return min(limit, _LEAP * found, max(_staffed(look.demand(cores)), math.ceil(_STEP * found)))
            return found
        return min(limit, self._narrowed(found, least))

    def _fewer(self, workers: int, demand: int) -> int:
        """Return the number that the trainer needs when it does not wait, but none that is known to be insufficient."""
        enough = (1 - SAME) * self.rates.get(workers, 0.0)
        fewer = [number for number, (_, _, waited) in self._looks.items() if waited and number < workers]
        scarce = max((number for number in fewer if self.rates[number] < enough), default=0)
        return min(workers, max(demand, scarce + 1))

    def _shares(self, look: Look) -> bool:
        """Return whether workers compete for something: a batch takes longer than with the fewest that were tried."""
        _, least, _ = self._looks[min(self._looks)]
        return look.service > _SHARED * least

    def _narrowed(self, found: int, demand: int) -> int:
        """Return a number from the next smaller one that was tried, exclusive, to the smallest sufficient one."""
        scarce = max((number for number in self.rates if number < found), default=0)
        if not scarce:
            return max(1, min(found, demand))
        # Below the knee the rate grows in proportion to the workers, so it is there.
        knee = math.ceil(scarce * self.rates[found] / self.rates[scarce] - 1e-9)
        return min(found, max(scarce + 1, knee))


def _staffed(busy: float) -> int:
    """Return how many workers are needed for `busy` to be busy on average: the square-root staffing rule."""
    return max(1, math.ceil(busy + _SPARE * math.sqrt(busy) - 1e-9))


def _direction(ratio: float) -> int:
    """Return 1 for an increase beyond noise, -1 for a decrease beyond it, else 0."""
    return int(ratio > _DRIFT) - int(ratio < 1 / _DRIFT)


AUTO = "TORCHLOADER_AUTO"

_BATCHES = 8  # of a look, at least, and 2 for each worker
_FEWEST, _MOSTLY = 3, 0.5  # batches that suffice, one for each worker, if that fraction of the time was waited
_SHORTEST_S, _LONGEST_S = 0.5, 2.0  # seconds of a look, after a change, and when nothing has changed for long
_PATIENCE_S = 20.0, 600.0  # seconds after which a number is looked for anew: at first, and at most
_FOR_EACH_CORE = 8  # workers: those that wait for a storage take little of one
_NEEDED = 0.03  # the fraction of its time that a trainer that waits for more is held up


class Tuner:
    """Chooses the number of workers of one loader. `cpu_clock` returns the seconds of CPU time of the trainer."""

    def __init__(self, at_most: int, budget: Budget, cpu_clock: Callable[[], float] = time.process_time) -> None:
        self._at_most, self._budget, self._cpu_clock = at_most, budget, cpu_clock
        self._search = Search()
        self._wanted = 1
        self._shortest = _SHORTEST_S
        self._kept, self._patience = 0.0, _PATIENCE_S[0]  # seconds for which the number was kept, and is to be
        self._logged: int | None = None
        self._epoch = 0
        self._cpu_before = cpu_clock()
        self.tuning: Tuning | None = None
        self._size, self._window, self._arrived, self._skip = 0, 0, False, 0
        self._is_closed = False
        self._begin(Tally(), False)

    def _begin(self, tally: Tally, at_start: bool) -> None:
        self._batches, self._waited, self._computed, self._cpu = 0, 0.0, 0.0, 0.0
        self._made, self._effort = tally.batches, tally.effort
        self._from_start, self._epochs = at_start, 0

    def note(self, crew: Crew, waited: float, computed: float) -> None:
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

    def _is_there(self, crew: Crew) -> bool:
        """Return whether measurements now reflect the present number of workers: not before all are ready, nor for
        batches requested before that. Where workers leave at the end of each epoch, to wait for them belongs to it."""
        if crew.size != self._size:
            self._size, self._arrived = crew.size, False
        if not self._arrived and crew.ready == self._size:
            self._arrived, self._skip = True, max(self._window, crew.window) + 1
            self._window = crew.window
        self._skip = max(0, self._skip - 1)
        return self._arrived and not self._skip

    def _begin_epoch(self, crew: Crew) -> None:
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

    def _decide(self, crew: Crew) -> None:
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
            self._log()
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

    def _fit(self, crew: Crew, size: int) -> None:
        if size != crew.size and not self._is_closed:
            crew.resize(size)

    def _log(self) -> None:
        if self.tuning is not None and self.tuning.workers != self._logged:
            self._logged = self.tuning.workers
            _log.info('num_workers="auto": %s', self.tuning)

    def close(self) -> None:
        self._is_closed = True
        self._budget.close()


def by_environment(workers: int, streams: int | None, is_streaming: bool) -> tuple[int | Literal["auto"], int | None]:
    """Return the numbers of workers and streams for those that the program gives: "auto" with TORCHLOADER_AUTO=1."""
    check_workers(num_workers=workers)
    text = os.environ.get(AUTO, "")
    if text not in ("", "0", "1"):
        raise ValueError(
            f'{AUTO} must be 1, with which loaders choose their number of workers as num_workers="auto" does, or 0, '
            f"not {text!r}"
        )
    if text != "1" or not workers or "TORCHLOADER_WORKERS" in os.environ:  # then the scheduler chooses
        return workers, streams
    return "auto", workers if is_streaming and streams is None else streams  # on which its batches depend


def tuner_of(max_workers: int | None, streams: int | None, nodes: Collection[str | None]) -> Tuner:
    others = {name for name in nodes if name is not None}
    cores = float(sum(Node(name).num_cpus for name in others))
    if None in nodes:
        cores += cores_of_node()
    budget = Budget(cores, None) if others else Budget(cores)
    at_most = max_workers or math.ceil(_FOR_EACH_CORE * cores)
    return Tuner(at_most if streams is None else min(at_most, max(1, streams)), budget)
