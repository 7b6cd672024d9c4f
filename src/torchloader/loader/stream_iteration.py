"""One epoch of an iterable-style dataset, batch by batch."""

from __future__ import annotations

import warnings
from typing import Any

from torchloader.loader.iteration import Iteration, Loader
from torchloader.loader.outcome import Outcome
from torchloader.loader.streams import Place, StreamBatch, StreamOrder, Turns

__all__ = ["StreamIteration"]


class StreamIteration(Iteration):
    """A batch of each stream in turn, or whichever comes first of them; or what is left of the streams."""

    def __init__(self, loader: Loader, epoch: int, place: Place) -> None:
        order: StreamOrder = loader._order
        streams = len(place.progress)
        shares = [order.share(stream, streams) for stream in range(streams)]
        self._turns, self._order, self._batches = Turns(place, loader.in_order), order, 0
        self._begin(loader, epoch, loader._crew.open_streams(place, shares))

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
        """See Iteration. The batches of a stream come in turn."""
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
