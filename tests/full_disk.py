"""Simulate a full disk during a block."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["at_most"]


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Limit the size of files, as a full disk would. Python ignores the signal SIGXFSZ."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
