"""The features of a job that determine the time of an iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass

# GoogLeNet has one form, which workloads call depth 1.
DEPTHS: dict[str, tuple[int, ...]] = {"resnet": (10, 18, 34, 50, 101, 152), "vgg": (11, 13, 16, 19), "googlenet": (1,)}


def known(arch: str, depth: int) -> bool:
    """Return whether the network exists with this depth."""
    return depth in DEPTHS.get(arch, ())


@dataclass(frozen=True, slots=True)
class Counts:
    """A model's parameters, and the operations of one sample's forward pass by their kind. A multiplication and an
    addition are two operations. `pointwise` convolutions have a kernel of one element, `depthwise` ones a filter per
    channel, `ordinary` ones are the others; `other` are matrix products outside of convolutions, and attention."""

    parameters: int
    ordinary: int = 0
    pointwise: int = 0
    depthwise: int = 0
    other: int = 0

    @property
    def operations(self) -> int:
        """The operations of all kinds together."""
        return self.ordinary + self.pointwise + self.depthwise + self.other


COLUMNS = (
    "communication",
    "parameters",
    "batch * parameters",
    "batch * ordinary",
    "batch * pointwise",
    "batch * depthwise",
    "batch * other",
)


@dataclass(frozen=True, slots=True)
class Features:
    """A model and how it is trained."""

    devices: int  # the number of devices that train it together
    batch: float  # samples of one device in an iteration
    counts: Counts  # the operation counts of the model

    def __post_init__(self) -> None:
        for name, value in (("devices", self.devices), ("batch", self.batch), ("parameters", self.counts.parameters)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive, not {value}")

    def row(self) -> tuple[float, ...]:
        """Return the terms of the linear model of an iteration's time, in the order of `COLUMNS`."""
        counts = self.counts
        kinds = (counts.parameters, counts.ordinary, counts.pointwise, counts.depthwise, counts.other)
        per_sample = (self.batch * count for count in kinds)
        return ((self.devices - 1) * counts.parameters, counts.parameters, *per_sample)
