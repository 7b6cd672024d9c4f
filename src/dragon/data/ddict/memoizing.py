"""Caches results of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from dragon.shards.shard import MISSING

__all__ = ["memoized"]

P = ParamSpec("P")
R = TypeVar("R")


def memoized(function: Callable[P, R], look: Callable[[Any], Any], keep: Callable[[Any, Any], None]) -> Callable[P, R]:
    """Return a function that looks its result up, by its name and arguments, before it computes it.

    `look(key)` returns the cached result or MISSING; `keep(key, result)` caches a result. Raises TypeError for a
    function without a name of its own, such as a lambda.
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
