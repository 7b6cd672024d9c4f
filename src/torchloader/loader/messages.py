"""The outcome of a task, as a worker sends it to the trainer, and what making a batch costs.

An outcome is packed separately from the message that carries it, so a trainer that cannot unpack it still knows which
batch it is.
"""

from __future__ import annotations

import os
import pickle
import time
import traceback
from typing import NamedTuple

from dragon.serialization import dumps, loads
from torchloader.loader.streams import Progress

_FULL = "; it is full of batches that were made ahead: lower prefetch_factor, num_workers or batch_size"


class Outcome(NamedTuple):
    """A batch, or the error that was raised; neither if a stream has ended. For a stream also its progress."""

    batch: object
    error: BaseException | None
    samples: int = 1
    progress: Progress | None = None

    @property
    def is_end(self) -> bool:
        return self.progress is not None and self.progress.ended and self.samples == 0 and self.error is None


class Packed(NamedTuple):
    """A pickled outcome with its arrays as separate buffers. For an error also its text and traceback."""

    data: bytes
    buffers: list[pickle.PickleBuffer]
    text: str
    traceback: str


def pack(outcome: Outcome) -> Packed:
    """Pack a batch, or the error that was raised; if the batch cannot be pickled, pack that error."""
    if isinstance(outcome.error, Exception):
        return pack_error(outcome.error)
    buffers: list[pickle.PickleBuffer] = []
    try:
        # With copies of tensors in shared memory or on a GPU, which could only be received while their worker lives.
        return Packed(dumps(Outcome(outcome.batch, None), buffers.append, lasting=True), buffers, "", "")
    except Exception as error:  # whatever pickling it raises
        return pack_unsent(error)


def pack_unsent(error: Exception) -> Packed:
    remedy = _FULL if isinstance(error, MemoryError) else ""
    return pack_error(RuntimeError(f"what a loading worker made cannot be sent: {_line(error)}{remedy}"))


def pack_error(error: Exception) -> Packed:
    """Pack an error; one that cannot be pickled is replaced by a RuntimeError with its text."""
    text, trace = _line(error), "".join(traceback.format_exception(error)).rstrip()
    try:
        data = dumps(Outcome(None, error), lasting=True)
    except Exception as unsent:  # whatever pickling it raises
        data = dumps(Outcome(None, RuntimeError(f"{text} (this error cannot be sent: {_line(unsent)})")))
    return Packed(data, [], text, trace)


def unpack(packed: Packed) -> Outcome:
    """Return the outcome; if it cannot be rebuilt, one with a RuntimeError."""
    outcome: Outcome
    try:
        outcome = loads(packed.data, list(packed.buffers))
    except Exception as error:  # whatever rebuilding it raises
        text = f"what a loading worker made cannot be rebuilt: {_line(error)}"
        if packed.text:
            text = f"{packed.text} (this error cannot be rebuilt: {_line(error)})"
        outcome = Outcome(None, RuntimeError(text).with_traceback(error.__traceback__))
    if outcome.error is not None and packed.traceback:
        outcome.error.add_note(f"in a loading worker:\n{packed.traceback}")
    return outcome


def _line(error: Exception) -> str:
    return traceback.format_exception_only(error)[0].strip()


_SCHEDULING = "/proc/thread-self/schedstat"  # nanoseconds on a core, nanoseconds of waiting for one, slices


class Effort(NamedTuple):
    """Elapsed seconds, seconds of CPU time, and seconds in which the process was runnable but had no core."""

    seconds: float = 0.0
    cpu: float = 0.0
    delayed: float = 0.0

    def plus(self, other: Effort) -> Effort:
        return Effort(self.seconds + other.seconds, self.cpu + other.cpu, self.delayed + other.delayed)

    def since(self, other: Effort) -> Effort:
        return Effort(self.seconds - other.seconds, self.cpu - other.cpu, self.delayed - other.delayed)

    @property
    def alone(self) -> float:
        """The seconds that it would have taken with a free core at any time."""
        return max(self.cpu, self.seconds - self.delayed)


class Meter:
    """Reads the clocks of the thread that made it. `delayed` is 0 where the kernel does not account for it."""

    def __init__(self) -> None:
        try:
            self._scheduling = os.open(_SCHEDULING, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._scheduling = -1

    def now(self) -> Effort:
        """Return the clocks of this moment; use the difference of two readings."""
        delayed = 0.0
        if self._scheduling >= 0:
            delayed = int(os.pread(self._scheduling, 80, 0).split()[1]) * 1e-9
        return Effort(time.perf_counter(), time.process_time(), delayed)
