"""The next epoch, begun while the trainer has the last batches of one."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torchloader.loader.crew import Crew
from torchloader.loader.iteration import Iteration, Loader
from torchloader.loader.order import SampleOrder

__all__ = ["Ahead"]


class _Loader(Loader, Protocol):
    dataset: Any


class _Promise(NamedTuple):
    """What the order of an epoch depends on."""

    epoch: int
    seed: int
    length: int


class Ahead:
    """At most one iteration that is begun before its iter(). Only the loader's own order, which depends on nothing but
    its promise, is drawn so early: a sampler of the program's may look at anything."""

    def __init__(self) -> None:
        self._begun: tuple[Iteration, int, _Promise] | None = None

    def begin(self, loader: _Loader, epoch: int) -> None:
        """All batches of an epoch are asked for: workers that have nothing to do begin with the next one."""
        order = loader._order
        number = None
        if self._begun is None and isinstance(order, SampleOrder):
            number = loader._crew.open_ahead()
        if number is not None:
            iteration = Iteration(loader, epoch + 1, 0, None, number)
            self._begun = iteration, number, _Promise(epoch + 1, order.seed, len(loader.dataset))
            iteration.begin_ahead()

    def take(self, loader: _Loader, crew: Crew, epoch: int, position: Any, before: int | None) -> Iteration | None:
        """The one that is begun, where it is what is asked for now and the dataset is what it was."""
        if self._begun is None:
            return None
        (iteration, number, promise), self._begun = self._begun, None
        now = _Promise(epoch, loader._order.seed, len(loader.dataset))
        if promise == now and not position and before is None and crew.take_up(number):
            iteration.take_up(loader)
            return iteration
        iteration.leave()
        return None
