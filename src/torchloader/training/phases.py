"""Measures the phases of an iteration; on a GPU without making the program wait for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from torchloader.training.traces import PHASES


class _Mark(Protocol):
    """A point in the work of a device, like torch.cuda.Event."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class _Moment:
    """A point in the work of a CPU, where calls are synchronous."""

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Do nothing, as the CPU's work is complete."""

    def elapsed_time(self, end_event: _Moment) -> float:
        """Return the milliseconds until `end_event`."""
        return 1000 * (end_event.seconds - self.seconds)


@dataclass
class Iteration:
    """One iteration: the seconds it waited for data, its number, its marks by phase, its loss."""

    waited: float
    number: int = 0
    marks: list[tuple[str, _Mark, _Mark]] = field(default_factory=list)
    loss: Tensor | float | None = None

    @property
    def over(self) -> bool:
        """Whether the device has completed it."""
        return all(end.query() for _, _, end in self.marks)

    def seconds(self) -> list[float]:
        """Return the seconds of each of PHASES; waits for the device."""
        found = dict.fromkeys(PHASES, 0.0)
        found["dataloading"] = self.waited
        for phase, start, end in self.marks:
            end.synchronize()
            found[phase] += start.elapsed_time(end) / 1000
        return list(found.values())


class Phases:
    """The iterations of a rank that are in progress or not yet recorded."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self._current = Iteration(0.0)
        self._over: deque[Iteration] = deque()

    def begin(self, waited: float) -> None:
        """Begin an iteration, for whose data the program waited `waited` seconds."""
        self._current = Iteration(waited)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Measure the device's work in the block as that phase; several blocks of a phase are added.

        Raises ValueError for an unknown phase.
        """
        if phase not in PHASES[1:]:
            raise ValueError(f"there is no phase {phase!r}: there are {', '.join(PHASES[1:])}")
        start, end = self._mark(), self._mark()
        start.record()
        yield
        end.record()
        self._current.marks.append((phase, start, end))

    def record(self, loss: Tensor | float) -> None:
        """Set the loss of the present iteration."""
        self._current.loss = loss.detach() if isinstance(loss, Tensor) else loss

    def end(self, number: int) -> None:
        """End the present iteration; the device may not have completed it."""
        self._current.number = number
        self._over.append(self._current)

    def done(self, wait: bool = False) -> Iterator[Iteration]:
        """Yield the iterations that the device has completed, each once and in order; with `wait` all of them."""
        while self._over and (wait or self._over[0].over):
            yield self._over.popleft()

    def _mark(self) -> _Mark:
        return torch.cuda.Event(enable_timing=True) if self._gpu else _Moment()  # type: ignore[no-untyped-call]
