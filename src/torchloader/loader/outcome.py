"""What a worker's work came to, as it goes to the trainer.

It is packed apart from the message that carries it: a trainer that cannot unpack it still knows which batch it is.
"""

from __future__ import annotations

import pickle
import traceback
from typing import Any, NamedTuple

from dragon.serialization import dumps, loads
from torchloader.loader.streams import Progress

__all__ = ["Outcome", "Packed", "pack", "pack_error", "pack_unsent", "unpack"]


class Outcome(NamedTuple):
    """A batch, or the error that came instead; neither where a stream has ended. Of a stream's batch also how far the
    stream has got with it."""

    batch: Any
    error: BaseException | None
    samples: int = 1
    progress: Progress | None = None

    @property
    def is_end(self) -> bool:
        """Whether there is no batch, as the stream has ended."""
        return self.progress is not None and self.progress.ended and self.samples == 0 and self.error is None


class Packed(NamedTuple):
    """An outcome as bytes, with its arrays beside them. Of an error also its text and its traceback's."""

    data: bytes
    buffers: list[pickle.PickleBuffer]
    text: str
    traceback: str


def pack(batch: Any) -> Packed:
    """A batch; one that cannot be pickled is an error."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        return Packed(dumps(Outcome(batch, None), buffers.append), buffers, "", "")
    except Exception as error:  # whatever pickling it raises
        return pack_unsent(error)


def pack_unsent(error: Exception) -> Packed:
    """The error that comes instead of a batch that cannot be sent."""
    return pack_error(RuntimeError(f"what a loading worker made cannot be sent: {_line(error)}"))


def pack_error(error: Exception) -> Packed:
    """An error; one that cannot be pickled is told in words."""
    text, told = _line(error), "".join(traceback.format_exception(error)).rstrip()
    try:
        data = dumps(Outcome(None, error))
    except Exception as unsent:  # whatever pickling it raises
        data = dumps(Outcome(None, RuntimeError(f"{text} (this error cannot be sent: {_line(unsent)})")))
    return Packed(data, [], text, told)


def unpack(packed: Packed) -> Outcome:
    """What was packed; what cannot be rebuilt is an error."""
    outcome: Outcome
    try:
        outcome = loads(packed.data, list(packed.buffers))
    except Exception as error:  # whatever rebuilding it raises
        told = f"what a loading worker made cannot be rebuilt: {_line(error)}"
        if packed.text:
            told = f"{packed.text} (this error cannot be rebuilt: {_line(error)})"
        outcome = Outcome(None, RuntimeError(told).with_traceback(error.__traceback__))
    if outcome.error is not None and packed.traceback:
        outcome.error.add_note(f"in a loading worker:\n{packed.traceback}")
    return outcome


def _line(error: Exception) -> str:
    return traceback.format_exception_only(error)[0].strip()
