"""Process-wide state: whether this is a loading worker, what it inherited, and which part of a dataset it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

is_worker = False  # a loading worker sets it before it imports the modules of its dataset

inherited: Any = None  # what a worker that was forked from its trainer has from it

share: tuple[int, int] | None = None  # the number of the worker, or stream, and how many there are


@contextmanager
def sharing(given: tuple[int, int] | None) -> Iterator[None]:
    """Within the block, set `share`."""
    global share
    share, before = given, share
    try:
        yield
    finally:
        share = before
