"""Results of functions, kept for those who call them again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from dragon.shards.shard import MISSING

__all__ = ["memoized"]

P = ParamSpec("P")
R = TypeVar("R")


def memoized(function: Callable[P, R], look: Callable[[Any], Any], keep: Callable[[Any, Any], None]) -> Callable[P, R]:
    """A function that looks for its result, by its name and arguments, before it computes it.

    `look` returns what is kept under a key, or MISSING; `keep` keeps a result under a key. Raises TypeError for what
    has no name of its own, as a lambda.
    """
    if not callable(function) or getattr(function, "__name__", "<lambda>") == "<lambda>":
        raise TypeError(f"memoize() keeps results by the name of a function, and {function!r} has none: use def")
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def remembered(*args: P.args, **kwargs: P.kwargs) -> R:
        key = ("memoize", name, args, tuple(sorted(kwargs.items())))
        found = look(key)
        if found is MISSING:
            found = function(*args, **kwargs)
            keep(key, found)
        result: R = found
        return result

    return remembered
