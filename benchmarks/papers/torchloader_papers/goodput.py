"""How fast a job trains with a number of devices and a size of batch, and how much a sample of a large batch is worth.

From Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning (OSDI 2021), section 3: goodput is the
samples per second, times the statistical efficiency of the batch relative to the initial one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Application, Spec
from torchloader.simulation.workload import Job

__all__ = ["Chosen", "Linear", "Profile", "SizedJob", "Stage", "profile_of", "sized"]

_STEP = 2**0.25  # between the sizes of batches that are compared


@dataclass(frozen=True, slots=True)
class Linear:
    """Seconds that grow linearly: `constant + each * number`."""

    constant: float
    each: float

    def at(self, number: float) -> float:
        """Return the seconds for a number."""
        return self.constant + self.each * number


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a training.

    Args:
        until: the progress at which it ends, in iterations of the initial batch.
        noise: the gradient noise scale in it, in samples: far below it, a larger batch costs nothing in efficiency.
    """

    until: float
    noise: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """A size of batch, with what it gives.

    Args:
        batch: samples of an iteration, over all devices.
        throughput: samples per second, over all devices.
        goodput: samples per second that are worth as much as those of the initial batch.
    """

    batch: float
    throughput: float
    goodput: float


@dataclass(frozen=True)
class Profile:
    """What determines the goodput of a job.

    Args:
        gradient: the seconds of a device for the gradient of so many samples (T_grad).
        local: the seconds to synchronize on one node, for the number of devices beyond two (T_sync).
        nodes: the same over several nodes.
        overlap: how much both happen at the same time (gamma), from 1, one after the other, to infinity, entirely.
        initial: the initial batch, over all devices (M0).
        fixed: the batch with which it trains if nothing adapts it.
        largest: the largest batch over all devices.
        fitting: the largest batch of a device; for more, gradients are accumulated.
        most: the largest number of devices.
        stages: the noise scale over the training, which is as long as the last stage.

    Raises ValueError, with the values, if these do not fit together.
    """

    gradient: Linear
    local: Linear
    nodes: Linear
    overlap: float
    initial: int
    fixed: int
    largest: int
    fitting: int
    most: int
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.initial <= self.fixed <= self.largest:
            batches = f"{self.initial}, {self.fixed} and {self.largest}"
            raise ValueError(f"the initial, the fixed and the largest batch must rise from 1, not {batches}")
        if self.fitting < 1 or self.most < 1 or self.overlap < 1:
            given = f"{self.fitting}, {self.most} and {self.overlap}"
            raise ValueError(f"the batch of a device, the devices and the overlap must be at least 1, not {given}")
        ends = [stage.until for stage in self.stages]
        if not ends or any(low >= high for low, high in zip([0.0, *ends], ends, strict=False)):
            raise ValueError(f"the stages of a training must end one after the other, not at {ends}")

    @property
    def length(self) -> float:
        """The iterations of the initial batch that the training takes."""
        return self.stages[-1].until

    def stage(self, progress: float) -> Stage:
        """Return the stage at a progress, in iterations of the initial batch."""
        return self.stages[self._place(progress)]

    def synchronization(self, devices: int, spread: bool) -> float:
        """Return the seconds to synchronize (T_sync).

        Args:
            devices: the number of devices; a single one does not synchronize.
            spread: whether they are on several nodes.
        """
        if devices == 1:
            return 0.0
        return (self.nodes if spread else self.local).at(devices - 2)

    def iteration(self, devices: int, spread: bool, batch: float) -> float:
        """Return the seconds of an iteration with a batch over all devices.

        A batch that does not fit into the devices is computed in several passes, of which only the last synchronizes.
        """
        own = batch / devices
        passes = max(1, math.ceil(own / self.fitting - 1e-9))
        gradient = self.gradient.at(own / passes)
        wait = self.synchronization(devices, spread)
        longer, shorter = max(gradient, wait), min(gradient, wait)
        # The root of a sum of powers, without powers that overflow.
        last = longer * math.pow(1 + math.pow(shorter / longer, self.overlap), 1 / self.overlap)
        return (passes - 1) * gradient + last

    def efficiency(self, batch: float, noise: float) -> float:
        """Return what a sample of a batch is worth, relative to one of the initial batch."""
        return (noise + self.initial) / (noise + batch)

    def chosen(self, devices: int, spread: bool, progress: float, adapts: bool) -> Chosen:
        """Return the batch with which the job trains, and its goodput.

        Args:
            devices, spread: as in `synchronization`.
            progress: iterations of the initial batch that are done.
            adapts: whether the batch is the one of the highest goodput. Otherwise it is the fixed one, or one sample
                for each device if that is more.
        """
        return self._chosen(devices, spread, adapts)[self._place(progress)]

    def seconds(self, devices: int, spread: bool, progress: float = 0.0, adapts: bool = False) -> float:
        """Return the seconds that the rest of the training takes; arguments as in `chosen`."""
        place = self._place(progress)
        found = self._chosen(devices, spread, adapts)
        rest = self._rest.get((devices, spread, adapts))
        if rest is None:
            rest = [0.0]  # after the last stage, and before that for each stage from its end
            for stage, low, each in zip(self.stages[:0:-1], self.stages[-2::-1], found[:0:-1], strict=True):
                rest.append(rest[-1] + (stage.until - low.until) * self.initial / each.goodput)
            rest.reverse()
            self._rest[devices, spread, adapts] = rest
        left = max(0.0, self.stages[place].until - progress)
        return left * self.initial / found[place].goodput + rest[place]

    @cached_property
    def _known(self) -> dict[tuple[int, bool, bool], list[Chosen]]:
        """What was chosen before: schedulers ask for the same again and again."""
        return {}

    @cached_property
    def _rest(self) -> dict[tuple[int, bool, bool], list[float]]:
        """The seconds that remain after each stage, as far as they were asked for."""
        return {}

    def _place(self, progress: float) -> int:
        return min(bisect_right(self.stages, progress, key=lambda stage: stage.until), len(self.stages) - 1)

    def _chosen(self, devices: int, spread: bool, adapts: bool) -> list[Chosen]:
        """Return what is chosen in each stage."""
        known = self._known.get((devices, spread, adapts))
        if known is None:
            batches = self._batches(devices) if adapts else [float(max(self.fixed, devices))]
            speeds = [(batch, batch / self.iteration(devices, spread, batch)) for batch in batches]
            known = [
                max(
                    (Chosen(batch, speed, speed * self.efficiency(batch, stage.noise)) for batch, speed in speeds),
                    key=lambda each: (each.goodput, -each.batch),
                )
                for stage in self.stages
            ]
            self._known[devices, spread, adapts] = known
        return known

    def _batches(self, devices: int) -> list[float]:
        """Return the sizes of batches that are compared, with those that just fill the devices, often the best."""
        least, most = float(max(self.initial, devices)), float(max(self.largest, devices))
        sizes = [least]
        while sizes[-1] * _STEP < most:
            sizes.append(sizes[-1] * _STEP)
        full = [float(self.fitting * devices * passes) for passes in (1, 2, 3, 4)]
        return [*sizes, most, *(batch for batch in full if least <= batch <= most)]


_SETTING = "goodput"  # of a Spec: the profile as JSON, which so is in event logs, too


@lru_cache
def _decoded(text: str) -> Profile:
    return msgspec.json.decode(text, type=Profile)


def profile_of(spec: Spec) -> Profile | None:
    """Return the profile of a job; None if it has none."""
    text = spec.settings.get(_SETTING)
    return None if text is None else _decoded(str(text))


@dataclass(frozen=True, slots=True)
class SizedJob(Job):
    """A job whose profile determines how fast it trains on how many devices; its curve is a bound for the samples of a
    device. Make one by `sized`.

    Args:
        adapts: whether it trains with the best batch, and not with the fixed one.
    """

    adapts: bool = False

    @property
    def profile(self) -> Profile:
        """The profile."""
        found = profile_of(self.spec)
        assert found is not None, f"{self.spec.name} has no profile"
        return found

    @property
    def shortest(self) -> float:
        """The seconds that it would take on one node, with the devices and the batch that it was submitted with."""
        return self.profile.seconds(self.spec.size, spread=False)

    def stage(self, done: float) -> float:
        """Return the iteration at which the noise scale changes."""
        return self.profile.stage(done).until

    def rate(self, record: Application, curve: Curve, done: float) -> tuple[float, float]:
        """Return its iterations of the initial batch per second, and the part of the time in which devices compute."""
        chosen = self.profile.chosen(record.size, len(record.placement) > 1, done, self.adapts)
        most = chosen.throughput / record.size
        rate = min(curve.throughput(record.workers), most)
        worth = chosen.goodput / chosen.throughput
        return rate * worth * record.size / record.spec.batch, rate / most


def sized(profile: Profile, curve: Curve, name: str, **more: Any) -> SizedJob:
    """Return a job of a profile: its batch is the initial one, of which an iteration is one.

    Args:
        profile: the profile.
        curve: a bound for the samples of a device.
        name: the name.
        more: arguments of `Spec`.
    """
    settings = {_SETTING: msgspec.json.encode(profile).decode()}
    spec = Spec(name, batch=profile.initial, iterations=math.ceil(profile.length), settings=settings, **more)
    return SizedJob(spec, curve)
