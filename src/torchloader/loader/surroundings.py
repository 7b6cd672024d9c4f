"""What kind of process this is, and whose part of a dataset is being read in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["inherited", "is_worker", "share", "sharing"]

is_worker = False  # a loading worker sets it before it imports the modules of its dataset

inherited: Any = None  # what a worker that was forked from its trainer has from it

share: tuple[int, int] | None = None  # the number of the worker, or stream, and how many there are


@contextmanager
def sharing(given: tuple[int, int] | None) -> Iterator[None]:
    """In the block this is the share."""
    global share
    share, before = given, share
    try:
        yield
    finally:
        share = before
