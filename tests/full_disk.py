"""A disk without room, for a block's time."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["at_most"]


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Files can be no larger, as on a disk that is full. Python ignores the signal that would tell."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
