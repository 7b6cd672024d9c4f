"""An iteration over a dataset, whose position can be saved if the dataset supports it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from torchloader.loader import surroundings
from torchloader.loader.checks import is_iterable_style

__all__ = ["END", "Source", "current_share"]

END = object()


def current_share() -> tuple[int, int]:
    """Return the number of the stream, or of PyTorch's worker, that reads in this process, and the number of all."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    info = None if worker is None else worker.get_worker_info()
    if info is not None:
        return info.id, info.num_workers
    return surroundings.share or (0, 1)


class Source:
    """The samples of a dataset from a position on; of a map-style one, this stream's part.

    If the iterator has torchdata's protocol Stateful (state_dict() and load_state_dict()), it saves its position;
    otherwise the dataset does if it has it. The dataset's state is loaded before iter() is called.
    """

    def __init__(self, dataset: Any, state: dict[str, Any] | None = None) -> None:
        self._dataset, state = dataset, state or {}
        self._is_over = bool(state.get("over"))
        if "dataset" in state:
            dataset.load_state_dict(state["dataset"])
        self._iterator: Any = _Items(dataset) if _is_map_style(dataset) else iter(dataset)
        if "iterator" in state:
            self._iterator.load_state_dict(state["iterator"])
        keepers = ("iterator", self._iterator), ("dataset", self._dataset)
        self._keeper = next(((name, keeper) for name, keeper in keepers if _is_stateful(keeper)), None)

    def next(self) -> Any:
        """Return the next sample, or END."""
        if not self._is_over:
            sample = next(self._iterator, END)
            self._is_over = sample is END
            return sample
        return END

    @property
    def is_stateful(self) -> bool:
        """Whether the position can be saved."""
        return self._keeper is not None

    def state(self) -> dict[str, Any]:
        """Return the position, for another Source of the same dataset. Raises TypeError if it cannot be saved."""
        if self._keeper is None:
            raise TypeError(
                f"{type(self._dataset).__name__} has no state_dict() and load_state_dict(), nor its iterator"
            )
        name, keeper = self._keeper
        return {name: keeper.state_dict(), "over": self._is_over}


def _is_stateful(value: Any) -> bool:
    return _takes(getattr(value, "state_dict", None)) and _takes(getattr(value, "load_state_dict", None), {})


def _takes(method: Any, *arguments: object) -> bool:
    """Return whether it can be called with these arguments: state_dict() of MosaicML's datasets, for one, needs others
    than those of the protocol."""
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a function in C that does not tell its parameters
        return callable(method)
    return True


def _is_map_style(dataset: Any) -> bool:
    return not is_iterable_style(dataset) and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


class _Items:
    """The samples of a map-style dataset in order; with n streams every n-th of them."""

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
