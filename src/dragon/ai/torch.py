"""A PyTorch dataset whose samples are in a distributed dictionary."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dragon.data.ddict import DDICT_MIN_SIZE, DDict, DDictFullError
from dragon.data.ddict.shards import Pending
from dragon.runtime.nodes import run_nodes
from dragon.shards.records import encode_value

try:
    from torch.utils.data import Dataset
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("dragon.ai.torch needs PyTorch: pip install torch", name="torch") from error

__all__ = ["DragonDataset"]

_UNDER_WAY = 64  # samples that were sent and not acknowledged yet, at most
_LOOKED_AT = 16  # samples from which the size of all is estimated
_BESIDE = 8192  # bytes that a sample takes in addition to its own, at most


class DragonDataset(Dataset[Any]):
    """Samples in the memory of the run's nodes, for the workers of any number of data loaders on any node.

    Args:
        dataset: a DDict that has the samples; or a dataset, a sequence or any iterable, whose samples are put into a
            new dictionary.
        dataset_keys: the keys of the samples, in order. Default: for an existing DDict all its keys (sorted if they are
            all numbers or all strings); otherwise the numbers from 0.
        dragon_dict_args: the arguments of DDict, as a mapping or a dataclass. Default: one manager on each node and, if
            the number of samples is known, twice the memory estimated from some of them.

    Attributes:
        dragon_dict: the dictionary.

    It can be sent to any process, where it reads the same memory. Samples of one batch are read with few requests.
    stop() destroys a dictionary that was made for the dataset.

    Raises ValueError if the numbers of keys and samples differ, DDictFullError if `total_mem` is too small, and the
    exceptions of DDict.
    """

    def __init__(
        self,
        dataset: DDict | Iterable[Any] | Sequence[Any] | Dataset[Any],
        *,
        dataset_keys: Iterable[Any] | None = None,
        dragon_dict_args: object = None,
    ) -> None:
        self._made = not isinstance(dataset, DDict)
        if isinstance(dataset, DDict):
            if dragon_dict_args is not None:
                raise ValueError("dragon_dict_args are for a new dictionary, but the given one exists")
            self.dragon_dict = dataset
            self._keys: Sequence[Any] = _in_order(dataset) if dataset_keys is None else list(dataset_keys)
            return
        if not hasattr(dataset, "__getitem__") and not isinstance(dataset, Iterable):
            raise TypeError(f"dataset must be a DDict, a dataset, a sequence or an iterable, not {dataset!r}")
        keys = None if dataset_keys is None else list(dataset_keys)
        size = _length(dataset)
        if keys is not None and size is not None and len(keys) != size:
            raise ValueError(f"there are {len(keys)} keys for {size} samples")
        self.dragon_dict = DDict(**_arguments(dragon_dict_args, dataset, size))
        try:
            self._keys = _put_all(self.dragon_dict, _samples(dataset, size), keys)
        except BaseException as error:
            self.dragon_dict.destroy()
            if isinstance(error, DDictFullError):
                error.add_note('pass a larger dragon_dict_args={"total_mem": bytes, ...}')
            raise

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Any:
        return self.dragon_dict[self._keys[index]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples; data loaders call this for a batch."""
        return self.dragon_dict.get_many(self._keys[index] for index in indices)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": False}  # only the process that made the dictionary destroys it

    @property
    def keys(self) -> Sequence[Any]:
        """The keys of the samples, in order."""
        return self._keys

    def stop(self) -> None:
        """Destroy the dictionary if it was made for this dataset; an existing one that was passed is left alone."""
        if self._made:
            self.dragon_dict.destroy()


def _in_order(ddict: DDict) -> list[Any]:
    """Return all keys, sorted if they are all numbers or all strings, so that the order does not depend on their
    managers."""
    keys = list(ddict)
    plain = all(isinstance(key, (int, float)) for key in keys) or all(isinstance(key, str) for key in keys)
    return sorted(keys) if plain else keys


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def _samples(dataset: Any, size: int | None) -> Iterator[Any]:
    # Iterating over a PyTorch dataset need not end.
    if size is not None and hasattr(dataset, "__getitem__") and not isinstance(dataset, Mapping):
        return (dataset[index] for index in range(size))
    return iter(dataset)


def _arguments(given: object, dataset: object, size: int | None) -> dict[str, Any]:
    """Return the arguments for a new dictionary."""
    if given is not None and not isinstance(given, Mapping):
        if not dataclasses.is_dataclass(given) or isinstance(given, type):
            raise TypeError(f"dragon_dict_args must be a mapping or a dataclass of what DDict takes, not {given!r}")
        given = dataclasses.asdict(given)
    arguments = dict(given or {})
    if "managers_per_node" not in arguments and "policy" not in arguments:
        arguments.setdefault("n_nodes", len(run_nodes()))
    if "total_mem" not in arguments:
        managers = (arguments.get("managers_per_node") or 1) * (arguments.get("n_nodes") or 1)
        arguments["total_mem"] = _guessed_memory(dataset, size) + managers * DDICT_MIN_SIZE
    return arguments


def _guessed_memory(dataset: object, size: int | None) -> int:
    if size is None or not hasattr(dataset, "__getitem__") or isinstance(dataset, Mapping):
        raise ValueError('the memory of the samples cannot be estimated: pass dragon_dict_args={"total_mem": bytes}')
    looked_at = range(0, size, max(1, size // _LOOKED_AT))
    largest = max((encode_value(dataset[index]).size for index in looked_at), default=0)
    return 2 * size * (largest + _BESIDE)


def _put_all(ddict: DDict, samples: Iterator[Any], keys: list[Any] | None) -> Sequence[Any]:
    """Put samples, several at a time, and return their keys."""
    count = 0
    under_way: deque[Pending] = deque()
    for sample in samples:
        if keys is not None and count == len(keys):
            raise ValueError(f"there are {count} keys, and more samples")
        # Each is sent at once, not batched: the producer of the samples may reuse the memory for the next one.
        under_way.append(ddict.begin_put(count if keys is None else keys[count], sample))
        count += 1
        if len(under_way) == _UNDER_WAY:
            under_way.popleft().result()
    for one in under_way:
        one.result()
    if keys is not None and count < len(keys):
        raise ValueError(f"there are {len(keys)} keys for {count} samples")
    return range(count) if keys is None else keys
