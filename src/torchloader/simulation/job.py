"""A job of a simulation: its specification and its true speed."""

from __future__ import annotations

from dataclasses import dataclass

from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Spec

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a simulation.

    Args:
        spec: what is submitted.
        curve: the true speed of a device of speed 1.
        believed: the curve that the scheduler uses, if it differs.
    """

    spec: Spec
    curve: Curve
    believed: Curve | None = None

    @property
    def shortest(self) -> float:
        """The seconds that it would take on devices of speed 1 if it never waited for devices or data. With a profile,
        these are on one node, with the number of devices and the batch that it was submitted with."""
        if self.spec.profile is not None:
            return self.spec.profile.seconds(self.spec.size, spread=False)
        return self.spec.iterations * self.spec.batch / (self.spec.size * self.curve.ceiling)
