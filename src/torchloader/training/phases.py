"""What an iteration's time goes to, on a GPU without making the program wait for it."""

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

__all__ = ["Iteration", "Phases"]


class _Mark(Protocol):
    """A moment in what a device does."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class _Moment:
    """The same on a CPU, where what was called is done."""

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """It is."""

    def elapsed_time(self, end_event: _Moment) -> float:
        """Milliseconds until then."""
        return 1000 * (end_event.seconds - self.seconds)


@dataclass
class Iteration:
    """One iteration: its number, the seconds it waited for data, its marks by phase, its loss."""

    waited: float
    number: int = 0
    marks: list[tuple[str, _Mark, _Mark]] = field(default_factory=list)
    loss: Tensor | float | None = None

    @property
    def over(self) -> bool:
        """Whether the device has done all of it."""
        return all(end.query() for _, _, end in self.marks)

    def seconds(self) -> list[float]:
        """Of each of PHASES; waits for the device."""
        found = dict.fromkeys(PHASES, 0.0)
        found["dataloading"] = self.waited
        for phase, start, end in self.marks:
            end.synchronize()
            found[phase] += start.elapsed_time(end) / 1000
        return list(found.values())


class Phases:
    """The iterations of a rank that are under way or not yet written."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self._current = Iteration(0.0)
        self._over: deque[Iteration] = deque()

    def begin(self, waited: float) -> None:
        """An iteration begins with data for which the program waited that long."""
        self._current = Iteration(waited)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """What the block has the device do is that phase; blocks of one phase add up.

        Raises ValueError for a phase that there is not.
        """
        if phase not in PHASES[1:]:
            raise ValueError(f"there is no phase {phase!r}: there are {', '.join(PHASES[1:])}")
        start, end = self._mark(), self._mark()
        start.record()
        yield
        end.record()
        self._current.marks.append((phase, start, end))

    def record(self, loss: Tensor | float) -> None:
        """Note the loss of the iteration under way."""
        self._current.loss = loss.detach() if isinstance(loss, Tensor) else loss

    def end(self, number: int) -> None:
        """The iteration under way is over for the program, though perhaps not for the device."""
        self._current.number = number
        self._over.append(self._current)

    def done(self, wait: bool = False) -> Iterator[Iteration]:
        """The iterations that the device has done, each once and in order; with `wait` all of them."""
        while self._over and (wait or self._over[0].over):
            yield self._over.popleft()

    def _mark(self) -> _Mark:
        return torch.cuda.Event(enable_timing=True) if self._gpu else _Moment()  # type: ignore[no-untyped-call]
