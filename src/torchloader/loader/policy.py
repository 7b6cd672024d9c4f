"""How the workers of a loader are started, how long they stay, and with which priority."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

from torchloader.loader.checks import check_number

__all__ = ["NICE", "WorkerPolicy"]

NICE = "TORCHLOADER_NICE"  # the variable that says it for loaders that were told nothing
_LOWEST = 19


class WorkerPolicy:
    """Whether workers are forked from the trainer, and whether they stay from one epoch to the next.

    The context given to the loader decides how workers start; without one, the start method of multiprocessing, as in
    PyTorch's DataLoader: "fork" forks them, with any other method they are new processes of the run. The start method
    may be set after the loader is made, so it is read until fix() is called, when the first worker is needed.

    New processes stay by default, as they can get a changed dataset. Forked workers keep the trainer's state at their
    fork, so they stay only if persistent_workers is True.

    `nice` is by how much their priority is below the trainer's; None takes TORCHLOADER_NICE, else 0. Raises ValueError
    if it is not from 0 to 19.
    """

    def __init__(self, context: Any, persistent: bool | None, nice: int | None = None) -> None:
        self._context, self._persistent = context, persistent
        self.nice = _checked(nice)
        self._forks: bool | None = None

    @property
    def forks(self) -> bool:
        """Whether workers are forked."""
        return _method_of(self._context) == "fork" if self._forks is None else self._forks

    def fix(self) -> None:
        """Keep the present start method for all workers."""
        self._forks = self.forks

    @property
    def stays(self) -> bool:
        """Whether workers stay from one epoch to the next."""
        return bool(self._persistent) if self.forks else self._persistent is not False


def _checked(nice: int | None) -> int:
    if nice is not None:
        check_number(0, nice=nice)
        if nice > _LOWEST:
            raise ValueError(f"nice must be at most {_LOWEST}, not {nice}")
        return nice
    text = os.environ.get(NICE, "0")
    if not text.isdigit() or int(text) > _LOWEST:
        raise ValueError(f"{NICE} must be a whole number from 0 to {_LOWEST}, not {text!r}")
    return int(text)


def _method_of(context: Any) -> str:
    if isinstance(context, str):
        return context
    if context is not None:
        return str(context.get_start_method())
    # With get_start_method() alone asking would fix the program's start method.
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
