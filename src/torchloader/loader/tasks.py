"""The request for a batch, as it is sent to a worker."""

from __future__ import annotations

from typing import NamedTuple

from torchloader.loader.order import Indices
from torchloader.loader.streams import Start, StreamBatch

__all__ = ["Task"]


class Task(NamedTuple):
    """A batch to make, of these samples or of a stream. `start` is where the worker continues the stream; None if it
    has it already."""

    iteration: int
    number: int
    epoch: int
    indices: Indices | StreamBatch
    dataset: int = -1  # number of the dataset's snapshot
    start: Start | None = None

    @property
    def samples(self) -> str:
        """The samples of the batch, as text for messages."""
        return str(self.indices) if isinstance(self.indices, StreamBatch) else f"the samples {self.indices}"
