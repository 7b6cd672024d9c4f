"""What becomes of the handles in what is pickled.

Pickling a handle announces it, so that the object lives until the reader is attached. To a new process, which is
attached before it runs, the names are given instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["announce", "announcing", "attachments", "collected", "mention", "mentions"]

_state = threading.local()


@contextmanager
def collected() -> Iterator[list[tuple[Any, Callable[[], None]]]]:
    """Names of the handles that are pickled in the block; a failed attempt leaves none."""
    outer = getattr(_state, "names", None)
    names: list[tuple[Any, Callable[[], None]]] = []
    _state.names = names
    try:
        yield names
    finally:
        _state.names = outer


def announce(name: Any, send: Callable[[], None]) -> None:
    """Tell whoever collects attachments of a handle that is sent, or keep its object alive by `send`."""
    take = getattr(_state, "attachments", None)
    if take is None:
        send()
    else:
        take(name, send)


def mention(name: tuple[int, int, int], send: Callable[[], None]) -> None:
    """A handle of this name is being pickled; `send` keeps its object alive until the reader is attached."""
    names = getattr(_state, "names", None)
    if names is None:
        announce(name, send)
    else:
        names.append((name, send))


@contextmanager
def attachments() -> Iterator[list[tuple[int, int, int]]]:
    """What is pickled in the block is for one new process: the objects that it must be attached to."""
    targets: list[tuple[int, int, int]] = []
    with _announced_to(lambda name, send: targets.append(name)):
        yield targets


@contextmanager
def mentions() -> Iterator[list[tuple[Any, Callable[[], None]]]]:
    """What is pickled in the block is kept: the arguments with which to call mention() whenever it is sent. Their
    objects live as long as those are kept."""
    kept: list[tuple[Any, Callable[[], None]]] = []
    with _announced_to(lambda name, send: kept.append((name, send))):
        yield kept


@contextmanager
def _announced_to(take: Callable[[Any, Callable[[], None]], None]) -> Iterator[None]:
    outer = getattr(_state, "attachments", None)
    _state.attachments = take
    try:
        yield
    finally:
        _state.attachments = outer


@contextmanager
def announcing() -> Iterator[None]:
    """What is pickled in the block is for a message, also while something is pickled for a new process."""
    take, _state.attachments = getattr(_state, "attachments", None), None
    try:
        yield
    finally:
        _state.attachments = take
