"""A dataset that is being iterated, whose place can be saved where it offers that."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torchloader.loader import surroundings
from torchloader.loader.checks import is_iterable_style

__all__ = ["END", "Source", "current_share"]

END = object()


def current_share() -> tuple[int, int]:
    """The number of the stream, or of PyTorch's worker, that reads here, and how many there are."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    info = None if worker is None else worker.get_worker_info()
    if info is not None:
        return info.id, info.num_workers
    return surroundings.share or (0, 1)


class Source:
    """The samples of a dataset from a place on; of a map-style one this stream's part.

    An iterator with torchdata's protocol Stateful, state_dict() and load_state_dict(), keeps its place, or the dataset
    with it, which then is told its place before its iter().
    """

    def __init__(self, dataset: Any, state: dict[str, Any] | None = None) -> None:
        self._dataset, state = dataset, state or {}
        self._is_over = bool(state.get("over"))
        if "dataset" in state:
            dataset.load_state_dict(state["dataset"])
        self._iterator: Any = _Items(dataset) if _is_map_style(dataset) else iter(dataset)
        if "iterator" in state:
            self._iterator.load_state_dict(state["iterator"])

    def next(self) -> Any:
        """The next sample, END where there is none."""
        if not self._is_over:
            sample = next(self._iterator, END)
            self._is_over = sample is END
            return sample
        return END

    @property
    def is_stateful(self) -> bool:
        """Whether its place can be saved."""
        return _is_stateful(self._iterator) or _is_stateful(self._dataset)

    def state(self) -> dict[str, Any]:
        """Its place, for another one of the same dataset."""
        for name, keeper in (("iterator", self._iterator), ("dataset", self._dataset)):
            if _is_stateful(keeper):
                return {name: keeper.state_dict(), "over": self._is_over}
        raise TypeError(f"{type(self._dataset).__name__} has no state_dict() and load_state_dict(), nor its iterator")


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _is_map_style(dataset: Any) -> bool:
    return not is_iterable_style(dataset) and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


class _Items:
    """The samples of a map-style dataset in turn, every n-th of them in n streams."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._position, self._step = current_share()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._position >= len(self._dataset):
            raise StopIteration
        position = self._position
        self._position += self._step
        return self._dataset[position]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position = state["position"]
