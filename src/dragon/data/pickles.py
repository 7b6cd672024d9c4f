"""Loads pickles from files only if the reader allowed it, because loading a pickle can run any program."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from dragon.infrastructure.errors import DragonError


class PickleRefusedError(DragonError):
    """A file holds a pickle, and the reader did not allow pickles."""


def loader(allowed: bool, where: object) -> Callable[..., Any]:
    """Return pickle.loads if pickles are allowed, else a function that raises PickleRefusedError. `where` names the
    file."""

    def refuse(data: Any, **options: Any) -> Any:
        raise PickleRefusedError(
            f"{where} has pickled objects, and loading those can run any program: allow it (--allow-pickle) "
            "if you trust the author of the file"
        )

    return pickle.loads if allowed else refuse
