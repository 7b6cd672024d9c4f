"""One epoch of a loader, batch by batch."""

from __future__ import annotations

import sys
import time
from multiprocessing import util as mp_util
from typing import Any, Protocol, Self

from torchloader.loader.crew import Crew
from torchloader.loader.order import Indices, Order

__all__ = ["Iteration"]


class _Loader(Protocol):
    """What an iteration needs of its loader, and tells it."""

    pin_memory: bool
    _crew: Crew
    _order: Order
    _choices: int

    def _note(self, samples: int, waited: float, computed: float) -> None: ...

    def _note_position(self, epoch: int, position: int, indices: Indices) -> None: ...

    def _note_last(self, epoch: int, choices: int) -> None: ...

    def _note_end(self, epoch: int) -> None: ...


class Iteration:
    """One epoch, or what is left of it."""

    def __init__(self, loader: _Loader, epoch: int, position: int, before: int | None) -> None:
        self._loader, self._epoch = loader, epoch
        self._crew = loader._crew
        self._source = loader._order.batches(epoch, position, before)
        self._number = self._crew.open()
        self._alone = self._crew.size == 0
        self._asked = self._given = 0
        self._ahead: dict[int, tuple[Indices, int]] = {}
        self._over = False
        self._choices = loader._choices
        self._before = time.perf_counter()
        self._finalizer = mp_util.Finalize(self, self._crew.finish, (self._number,))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        loader, crew = self._loader, self._crew
        self._ask()
        if not self._ahead:
            self._finalizer()
            loader._note_last(self._epoch, self._choices)
            loader._note_end(self._epoch)
            raise StopIteration
        made, waited = crew.take(self._number, self._given, self._alone)
        self._alone = self._alone and not crew.ready
        indices, position = self._ahead.pop(self._given)
        self._given += 1
        self._ask()
        if self._over and not self._ahead:
            loader._note_last(self._epoch, self._choices)
        if isinstance(made.error, StopIteration):  # which would end the epoch here, without a word
            raise RuntimeError("the dataset raised StopIteration") from made.error
        if made.error is not None:
            raise made.error
        batch = _pinned(made.batch) if loader.pin_memory else made.batch
        loader._note_position(self._epoch, position, indices)
        loader._note(len(indices) if isinstance(indices, list) else 1, waited, self._elapsed() - waited)
        return batch

    def _elapsed(self) -> float:
        """Seconds since the batch before this one."""
        before, self._before = self._before, time.perf_counter()
        return self._before - before

    def _ask(self) -> None:
        while not self._over and self._asked - self._given < self._crew.window:
            following = next(self._source, None)
            if following is None:
                self._over = True
                return
            self._ahead[self._asked] = following
            self._crew.want(self._number, self._asked, self._epoch, following[0])
            self._asked += 1


def _pinned(batch: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return batch
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)  # type: ignore[no-untyped-call]
