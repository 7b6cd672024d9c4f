"""Begins the next epoch while the trainer still takes the last batches of the current one."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torchloader.loader.crew import Crew
from torchloader.loader.iteration import Iteration, Loader
from torchloader.loader.order import SampleOrder

__all__ = ["Ahead"]


class _Loader(Loader, Protocol):
    dataset: Any


class _Promise(NamedTuple):
    """The inputs that determine the order of an epoch."""

    epoch: int
    seed: int
    length: int


class Ahead:
    """At most one iteration that is begun before its iter() call.

    Only the loader's own order (`SampleOrder`) is drawn early, since it depends on nothing but epoch, seed and dataset
    length; a sampler of the program may depend on anything.
    """

    def __init__(self) -> None:
        self._begun: tuple[Iteration, int, _Promise] | None = None

    def begin(self, loader: _Loader, epoch: int) -> None:
        """Begin the epoch after `epoch`, so that idle workers make its first batches. Called once all batches of
        `epoch` are requested."""
        order = loader._order
        number = None
        if self._begun is None and isinstance(order, SampleOrder):
            number = loader._crew.open_ahead()
        if number is not None:
            iteration = Iteration(loader, epoch + 1, 0, None, number)
            self._begun = iteration, number, _Promise(epoch + 1, order.seed, len(loader.dataset))
            iteration.begin_ahead()

    def take(self, loader: _Loader, crew: Crew, epoch: int, position: Any, before: int | None) -> Iteration | None:
        """Return the iteration that was begun early if it matches the request and the dataset is unchanged,
        else None."""
        if self._begun is None:
            return None
        (iteration, number, promise), self._begun = self._begun, None
        now = _Promise(epoch, loader._order.seed, len(loader.dataset))
        if promise == now and not position and before is None and crew.take_up(number):
            iteration.take_up(loader)
            return iteration
        iteration.leave()
        return None
