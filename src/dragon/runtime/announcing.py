"""Tracks the handles in pickled objects.

Pickling a handle announces it, so that the object exists until the reader is attached. A new process is attached before
it runs, so for it the names of the handles are collected instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Send = Callable[[], None]
Mention = tuple[Any, Send]


class _State(threading.local):
    names: list[Mention] | None = None  # the handles pickled in this attempt: a failed one announces none
    attachments: Callable[[Any, Send], None] | None = None


state = _State()


class announcing:
    """A context manager whose block pickles for a message, even while an object is pickled for a new process."""

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        self._outer, state.attachments = state.attachments, None

    def __exit__(self, *raised: object) -> None:
        state.attachments = self._outer


def announce(name: object, send: Send) -> None:
    """Pass a handle that is sent to the collector of attachments; without one, keep its object alive by `send`."""
    take = state.attachments
    if take is None:
        send()
    else:
        take(name, send)


def mention(name: tuple[int, int, int], send: Send) -> None:
    """Note that a handle of this name is being pickled; `send` keeps its object alive until the reader is attached."""
    names = state.names
    if names is None:
        announce(name, send)
    else:
        names.append((name, send))


class mentions:
    """A context manager that collects the arguments with which mention() is called each time the object pickled in the
    block is sent."""

    __slots__ = ("_outer",)

    def __enter__(self) -> list[Mention]:
        kept: list[Mention] = []
        self._outer, state.attachments = state.attachments, lambda name, send: kept.append((name, send))
        return kept

    def __exit__(self, *raised: object) -> None:
        state.attachments = self._outer
