"""The options of a loader: their checks, how its workers start, and on which nodes."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.context import BaseContext
from numbers import Integral
from typing import Any

from dragon.native.machine import System, current

is_worker = False  # a loading worker sets it before it imports the modules of its dataset

inherited: object = None  # what a worker that was forked from its trainer has from it

share: tuple[int, int] | None = None  # the number of the worker, or stream, and how many there are

NICE = "TORCHLOADER_NICE"  # for loaders without the option
_LOWEST = 19


def check_number(least: int | None = None, kind: str = "a whole number", /, **parameters: object) -> None:
    """Raise TypeError for a parameter that is not a whole number, ValueError for one below `least`."""
    for name, value in parameters.items():
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise TypeError(f"{name} must be {kind}, not {value!r}")
        if least is not None and int(value) < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")


def check_workers(**parameters: object) -> None:
    check_number(0, 'a whole number, or "auto" at the start', **parameters)


def check_timeout(timeout: object) -> None:
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout must not be negative, not {timeout}")


def is_iterable_style(dataset: object) -> bool:
    """Return whether the dataset decides the order of its samples."""
    # An iterable-style dataset of PyTorch has the __getitem__ of all its datasets.
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(dataset, torch_data.IterableDataset):
        return True
    return isinstance(dataset, Iterable) and not isinstance(dataset, Iterator) and not hasattr(dataset, "__getitem__")


def check_options(given: Mapping[str, Any], is_streaming: bool, workers: object, world_size: int) -> None:
    """Raise TypeError for a constructor argument of a wrong type, ValueError for arguments that exclude each other."""
    one = dict.fromkeys(("batch_size", "max_workers", "prefetch_factor", "snapshot_every_n_steps"), 1)
    for name, least in {**one, "streams": 0, "seed": None}.items():
        if given[name] is not None:
            check_number(least, **{name: given[name]})
    check_timeout(given["timeout"])
    if given["generator"] is not None and not hasattr(given["generator"], "initial_seed"):
        raise TypeError(f"generator must be a torch.Generator, not {given['generator']!r}")
    (_check_streams if is_streaming else _check_order)(given, workers, world_size)
    if given["batch_size"] is None and given["drop_last"]:
        raise ValueError("without batches (batch_size=None) there is no last one to drop")
    if workers == 0:
        if given["prefetch_factor"] is not None:
            raise ValueError("prefetch_factor needs num_workers > 0: without workers nothing is loaded ahead")
        for name in ("persistent_workers", "multiprocessing_context"):
            if given[name] not in (None, False):
                raise ValueError(f"{name} needs num_workers > 0")
    context, methods = given["multiprocessing_context"], multiprocessing.get_all_start_methods()
    if not isinstance(context, (str, BaseContext, type(None))):
        raise TypeError(f"multiprocessing_context must be a start method of {methods} or a context, not {context!r}")
    if context is not None and _method_of(context) not in methods:
        raise ValueError(f"multiprocessing_context must be one of {methods}, not {context!r}")


def _check_streams(given: Mapping[str, Any], workers: object, _: int) -> None:
    for name in ("shuffle", "sampler", "batch_sampler"):
        if given[name] is not None and given[name] is not False:
            raise ValueError(
                f"an iterable-style dataset decides the order itself: give it without {name}={given[name]!r}"
            )
    if workers == "auto" and given["streams"] is None:
        raise ValueError(
            'num_workers="auto" needs streams= with an iterable-style dataset: its batches depend on the number of '
            "streams, which is at most the number of workers that have something to do"
        )


def _check_order(given: Mapping[str, Any], _: object, world_size: int) -> None:
    dataset, sampler, batch_sampler = given["dataset"], given["sampler"], given["batch_sampler"]
    has_sampler = sampler is not None or batch_sampler is not None
    if not hasattr(dataset, "__getitem__") or not (hasattr(dataset, "__len__") or has_sampler):
        raise TypeError(
            f"{type(dataset).__name__} is no dataset: it needs __getitem__() and __len__(), or an __iter__() that "
            "begins anew each time"
        )
    if given["streams"] is not None or given["snapshot_every_n_steps"] != 1:
        raise ValueError("streams and snapshot_every_n_steps are for iterable-style datasets, this one is map-style")
    if world_size > 1 and has_sampler:
        raise ValueError("a sampler shares the samples among ranks itself: give it without rank and world_size")
    for name, one in ("sampler", sampler), ("batch_sampler", batch_sampler):
        if one is not None and not isinstance(one, Iterable) and not hasattr(one, "__getitem__"):
            raise TypeError(f"{name} must give one index or batch of indices after another, not {one!r}")
    if sampler is not None and given["shuffle"]:
        raise ValueError("a sampler decides the order: give it without shuffle")
    others = given["batch_size"] != 1 or given["shuffle"] or sampler is not None or given["drop_last"]
    if batch_sampler is not None and others:
        raise ValueError("a batch_sampler decides everything: give it without batch_size, shuffle, sampler, drop_last")


class WorkerPolicy:
    """Whether workers are forked from the trainer, and whether they stay from one epoch to the next.

    New processes stay by default, as they can get a changed dataset. Forked workers keep the trainer's state at their
    fork, so they stay only if persistent_workers is True. `nice` is by how much their priority is below the trainer's.
    """

    def __init__(self, context: str | BaseContext | None, persistent: bool | None, nice: int | None = None) -> None:
        self._context, self._persistent = context, persistent
        self._forks: bool | None = None
        text, name = (os.environ.get(NICE, "0"), NICE) if nice is None else (str(nice), "nice")
        if nice is not None:
            check_number(nice=nice)
        if not text.isdigit() or int(text) > _LOWEST:
            raise ValueError(f"{name} must be a whole number from 0 to {_LOWEST}, not {text!r}")
        self.nice = int(text)

    @property
    def forks(self) -> bool:
        """Whether workers are forked. The program may set the start method until fix() is called."""
        return _method_of(self._context) == "fork" if self._forks is None else self._forks

    def fix(self) -> None:
        self._forks = self.forks

    @property
    def stays(self) -> bool:
        return bool(self._persistent) if self.forks else self._persistent is not False


def _method_of(context: str | BaseContext | None) -> str:
    if isinstance(context, str):
        return context
    if context is not None:
        return str(context.get_start_method())
    # With get_start_method() alone asking would fix the program's start method.
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def nodes_for(workers_on: str | Sequence[str] | None, context: object) -> list[str | None]:
    """Return the nodes for the workers of a loader by name, None for the trainer's own node."""
    if workers_on is None:
        return [None]
    names = [workers_on] if isinstance(workers_on, str) else workers_on
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"workers_on must be the name of a node, or several, not {workers_on!r}")
    if context is not None:
        raise ValueError(
            f"workers_on={workers_on!r} goes without multiprocessing_context: workers of other nodes are new processes"
        )
    known = [policy.host_name for policy in System().hostname_policies()]
    here = current().hostname
    for name in names:
        if name not in known:
            raise ValueError(f"workers_on names node {name!r}; this run has {', '.join(known)} (this is {here})")
    return [None if name == here else name for name in names]
