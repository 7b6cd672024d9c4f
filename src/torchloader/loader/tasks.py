"""What is to be done for a batch, as it goes to a worker."""

from __future__ import annotations

from typing import NamedTuple

from torchloader.loader.order import Indices
from torchloader.loader.streams import Start, StreamBatch

__all__ = ["Task"]


class Task(NamedTuple):
    """A batch to be made: of these samples, or of a stream. `start` is where who makes it takes up the stream, None
    where it goes on with it."""

    iteration: int
    number: int
    epoch: int
    indices: Indices | StreamBatch
    dataset: int = -1  # number of the dataset's snapshot
    start: Start | None = None

    @property
    def samples(self) -> str:
        """Of which samples it is, in words."""
        return str(self.indices) if isinstance(self.indices, StreamBatch) else f"the samples {self.indices}"
