"""What of a job the time of an iteration depends on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

__all__ = ["COLUMNS", "Features"]

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
    """A model and how it is trained.

    Args:
        devices: how many train it together.
        batch: samples of one device in an iteration.
        parameters: of the model.
        ordinary, pointwise, depthwise: operations of its convolutions of each kind, per sample.
        other: operations of all else, per sample.

    Raises ValueError for what cannot be: no device, an empty batch, no parameter, a negative count.
    """

    devices: int
    batch: float
    parameters: float
    ordinary: float = 0.0
    pointwise: float = 0.0
    depthwise: float = 0.0
    other: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 0.0 if name in ("ordinary", "pointwise", "depthwise", "other") else 1e-9
            if not (math.isfinite(value) and value >= least):
                raise ValueError(f"{name} must be {'positive' if least else 'zero or more'}, not {value}")

    def row(self) -> tuple[float, ...]:
        """The terms of the model of an iteration's time, in the order of `COLUMNS`."""
        counts = (self.parameters, self.ordinary, self.pointwise, self.depthwise, self.other)
        per_sample = (self.batch * count for count in counts)
        return ((self.devices - 1) * self.parameters, self.parameters, *per_sample)
