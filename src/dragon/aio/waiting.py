"""Makes a task wait for an object of the run: through the agent, or through a file descriptor of a channel of this
node."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dragon import _core
from dragon.runtime.async_client import ask
from dragon.runtime.copies import refresh, write_back
from dragon.runtime.handle import Channel
from dragon.runtime.protocol.objects import Operate, Operation, WaitHere
from dragon.runtime.remote import node_of
from dragon.runtime.run import this_run

__all__ = ["is_here", "readable", "turn_of", "wait"]

_MOST_BELLS = 128  # channels of a process that are awaited through their own descriptors, which is faster
_BRIEFLY_S = 5e-5  # seconds for which the whole loop blocks, for a message that is likely to arrive at once
_MOST_PASSED = 64  # waits, at most, that do without this while messages do not arrive at once


def is_here(handle: Any) -> bool:
    """Return whether an object is on this node, so that reading its state takes microseconds."""
    return node_of(handle._name()) == this_run().node


async def wait(
    handle: Any,
    kind: str,
    method: str,
    *given: Any,
    owner: int = 0,
    late: Callable[[tuple[bool, Any]], object] | None = None,
) -> Any:
    """Wait until that method of an object of that kind succeeds, and return its result. Raises what it raises.

    Locks are acquired for `owner`, in place of this thread. If the caller is cancelled, `late` is called with the
    outcome of a method that succeeded nevertheless.
    """
    operation = Operation(handle._name(), kind, method, given, None, owner or threading.get_ident())
    if is_here(handle):
        _, value = await ask(WaitHere(operation, _core.myself()), late)
        return value
    write_back()
    _, value = await ask(Operate(operation), late)
    refresh()
    return value


_Turns = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakValueDictionary[Any, asyncio.Lock]]


class _Mine(threading.local):
    """The state of a thread: for each of its loops the lock of each object whose turns its tasks take."""

    passed = 0  # waits that are left until one blocks the loop briefly again
    to_pass = 1  # the value for `passed` after a brief wait without a message

    def __init__(self) -> None:
        self.turns: _Turns = weakref.WeakKeyDictionary()


_mine = _Mine()
_bells: set[tuple[int, int]] = set()


def turn_of(handle: Any, what: str) -> asyncio.Lock:
    """Return the lock that tasks of this loop hold while they perform the operation `what` on an object.

    So only one of many waiting tasks waits outside of the loop, and they are served in the order in which they came.
    """
    turns = _mine.turns.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    name = handle._name()
    key = (*name[:2], node_of(name), what)  # objects of several nodes may have the same offset
    turn = turns.get(key)
    if turn is None:
        turn = turns[key] = asyncio.Lock()
    return turn


async def readable(channel: Channel) -> None:
    """Wait until a channel has an object to get, or no writer is left."""
    if not is_here(channel):
        await wait(channel, "Channel", "_wait_readable")
        return
    if _comes_at_once(channel):
        return
    if not _may_ring(channel._name()[:2]):
        await wait(channel, "Channel", "_wait_readable")
        return
    loop = asyncio.get_running_loop()
    rung: asyncio.Future[None] = loop.create_future()
    bell = channel._fileno()
    loop.add_reader(bell, _ring, rung)
    try:
        await rung
    finally:
        loop.remove_reader(bell)


def _may_ring(name: tuple[int, int]) -> bool:
    """Return whether a channel is one of those that are awaited through their own descriptors."""
    if name not in _bells:
        if len(_bells) >= _MOST_BELLS:
            # Of a copy, as loops of other threads add some meanwhile.
            _bells.difference_update([each for each in list(_bells) if not _core.exists(*each)])
        if len(_bells) >= _MOST_BELLS:
            return False
        _bells.add(name)
    return True


def _comes_at_once(channel: Channel) -> bool:
    """Return whether an object arrives within microseconds, blocking the loop for that long.

    If two processes answer each other at once, a turn of the event loop would take longer. While nothing arrives, this
    is tried less and less often.
    """
    if _mine.passed > 0:
        _mine.passed -= 1
        return False
    if channel._wait_readable(_BRIEFLY_S):
        _mine.to_pass = 1
        return True
    _mine.passed, _mine.to_pass = _mine.to_pass, min(2 * _mine.to_pass, _MOST_PASSED)
    return False


def _ring(rung: asyncio.Future[None]) -> None:
    if not rung.done():
        rung.set_result(None)
