"""Operation counts of a model."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counts"]


@dataclass(frozen=True, slots=True)
class Counts:
    """A model's parameters, and the operations of one sample's forward pass by their kind.

    A multiplication and an addition are two operations. `pointwise` convolutions have a kernel of one element,
    `depthwise` ones a filter per channel, `ordinary` ones are the others; `other` are matrix products outside of
    convolutions, and attention.
    """

    parameters: int
    ordinary: int = 0
    pointwise: int = 0
    depthwise: int = 0
    other: int = 0

    @property
    def operations(self) -> int:
        """The operations of all kinds together."""
        return self.ordinary + self.pointwise + self.depthwise + self.other
