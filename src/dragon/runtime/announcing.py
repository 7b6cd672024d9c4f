"""What becomes of the handles in what is pickled.

Pickling a handle announces it, so that the object lives until the reader is attached. To a new process, which is
attached before it runs, the names are given instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Mention", "announce", "announcing", "attachments", "collected", "mention", "mentions"]

Send = Callable[[], None]
Mention = tuple[Any, Send]


class _State(threading.local):
    names: list[Mention] | None = None
    attachments: Callable[[Any, Send], None] | None = None


_state = _State()


# Every message passes through these two: a class takes a third of the time of a generator.


class collected:
    """Names of the handles that are pickled in the block; a failed attempt leaves none."""

    __slots__ = ("_outer",)

    def __enter__(self) -> list[Mention]:
        names: list[Mention] = []
        self._outer, _state.names = _state.names, names
        return names

    def __exit__(self, *raised: object) -> None:
        _state.names = self._outer


class announcing:
    """What is pickled in the block is for a message, also while something is pickled for a new process."""

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        self._outer, _state.attachments = _state.attachments, None

    def __exit__(self, *raised: object) -> None:
        _state.attachments = self._outer


def announce(name: Any, send: Send) -> None:
    """Tell whoever collects attachments of a handle that is sent, or keep its object alive by `send`."""
    take = _state.attachments
    if take is None:
        send()
    else:
        take(name, send)


def mention(name: tuple[int, int, int], send: Send) -> None:
    """A handle of this name is being pickled; `send` keeps its object alive until the reader is attached."""
    names = _state.names
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
def mentions() -> Iterator[list[Mention]]:
    """What is pickled in the block is kept: the arguments with which to call mention() whenever it is sent. Their
    objects live as long as those are kept."""
    kept: list[Mention] = []
    with _announced_to(lambda name, send: kept.append((name, send))):
        yield kept


@contextmanager
def _announced_to(take: Callable[[Any, Send], None]) -> Iterator[None]:
    outer = _state.attachments
    _state.attachments = take
    try:
        yield
    finally:
        _state.attachments = outer
