"""Pickles in files: read where whoever reads said so, refused otherwise, because reading one can run any program."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from dragon.infrastructure.errors import DragonError

__all__ = ["PickleRefusedError", "loader"]


class PickleRefusedError(DragonError):
    """A file holds a pickle, and nobody said that it can be trusted."""


def loader(allowed: bool, where: object) -> Callable[..., Any]:
    """What reads pickles of a file: pickle.loads where it is allowed, else something that raises PickleRefusedError."""

    def refuse(data: Any, **options: Any) -> Any:
        raise PickleRefusedError(
            f"{where} holds pickled objects, and reading those can run any program: allow it (--allow-pickle) "
            "if you trust whoever wrote the file"
        )

    return pickle.loads if allowed else refuse
