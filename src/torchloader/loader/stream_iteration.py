"""The iteration over one epoch of an iterable-style dataset."""

from __future__ import annotations

import warnings
from typing import Any

from torchloader.loader.iteration import Iteration, Loader
from torchloader.loader.outcome import Outcome
from torchloader.loader.streams import Place, StreamBatch, StreamOrder, Turns

__all__ = ["StreamIteration"]


class StreamIteration(Iteration):
    """One epoch of the streams, or the rest of it: a batch of each in turn, or in the order in which they are ready."""

    def __init__(self, loader: Loader, epoch: int, place: Place) -> None:
        order: StreamOrder = loader._order
        streams = len(place.progress)
        shares = [order.share(stream, streams) for stream in range(streams)]
        self._turns, self._order, self._batches = Turns(place, loader.in_order), order, 0
        self._begin(loader, epoch, loader._crew.open_streams(place, shares))

    def __len__(self) -> int:
        raise TypeError("an iterator over an iterable-style dataset has no length: use len(loader)")

    def __next__(self) -> Any:
        waited = 0.0
        while True:
            made, _, seconds = self._take()
            waited += seconds
            if made.is_end:
                continue
            if self._over and not self._ahead:
                self._loader._note_last(self._epoch, self._choices)
            batch = self._batch_of(made)
            self._loader._note_position(self._epoch, self._turns.place, 0)
            self._warn_of_length()
            self._loader._note(made.samples, waited, self._elapsed() - waited)
            return batch

    def _following(self) -> tuple[Any, StreamBatch] | None:
        following = self._turns.ask()
        return None if following is None else (following, following)

    def _note_taken(self, asked: StreamBatch, made: Outcome) -> None:
        if made.progress is not None:
            self._turns.note(asked.stream, made.progress)

    def _overtaking(self) -> list[int]:
        """Return the first requested batch of each stream, since those of one stream stay in order."""
        first: dict[int, int] = {}
        for number, asked in self._ahead.items():
            first.setdefault(asked.stream, number)
        return list(first.values())

    def _warn_of_length(self) -> None:
        self._batches += 1
        told = self._order.told_length
        if told is not None and self._batches > told:
            warnings.warn(
                f"the dataset's length was {told} when len(loader) was asked for, and there are more batches: "
                "does its __iter__() give each worker (torch.utils.data.get_worker_info()) its own part?",
                stacklevel=3,
            )
