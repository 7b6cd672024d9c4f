"""How a task waits for an object of the run: by way of the agent, or by the descriptor of a channel of this node."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dragon import _core
from dragon.runtime.async_client import ask
from dragon.runtime.handle import Channel
from dragon.runtime.protocol.objects import Operate, Operation, WaitHere
from dragon.runtime.remote import node_of
from dragon.runtime.run import this_run

__all__ = ["is_here", "readable", "turn_of", "wait"]

_MOST_BELLS = 128  # channels of a process that are waited for by descriptors of their own, which is faster
_BRIEFLY_S = 5e-5  # seconds for which the whole loop waits for what is likely to come at once
_MOST_PASSED = 64  # waits that are not begun so while nothing comes at once


def is_here(handle: Any) -> bool:
    """Whether an object lies on this node, so that a look at it takes microseconds."""
    return node_of(handle._name()) == this_run().node


async def wait(
    handle: Any, kind: str, method: str, *given: Any, late: Callable[[tuple[bool, Any]], object] | None = None
) -> Any:
    """Wait until that method of an object of that kind is done; its result. Raises what it raises.

    `late` is called with what was done although this was cancelled.
    """
    operation = Operation(handle._name(), kind, method, given, None, threading.get_ident())
    request = WaitHere(operation, _core.myself()) if is_here(handle) else Operate(operation)
    _, value = await ask(request, late)
    return value


class _Mine(threading.local):
    """Of a thread: its loop, whose turn it is with each object there, and the channels that have bells."""

    loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
    turns: weakref.WeakValueDictionary[Any, asyncio.Lock]
    passed = 0  # waits until one begins briefly again
    to_pass = 1  # after one in which nothing came


_mine = _Mine()
_bells: set[tuple[int, int]] = set()


def turn_of(handle: Any, what: str) -> asyncio.Lock:
    """What the tasks of this loop hold by turns while they do that with an object: of many that wait one waits outside
    the loop, and they are served in the order in which they came."""
    loop = asyncio.get_running_loop()
    if _mine.loop is None or _mine.loop() is not loop:
        _mine.loop, _mine.turns = weakref.ref(loop), weakref.WeakValueDictionary()
    name = handle._name()
    key = (*name[:2], node_of(name), what)  # objects of several nodes may have the same offset
    turn = _mine.turns.get(key)
    if turn is None:
        turn = _mine.turns[key] = asyncio.Lock()
    return turn


async def readable(channel: Channel) -> None:
    """Wait until there is something to get from a channel, or nobody is left who could put something into it."""
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
    """Whether a channel is one of those that have a descriptor of their own."""
    if name not in _bells:
        if len(_bells) >= _MOST_BELLS:
            _bells.intersection_update([each for each in _bells if _core.exists(*each)])
        if len(_bells) >= _MOST_BELLS:
            return False
        _bells.add(name)
    return True


def _comes_at_once(channel: Channel) -> bool:
    """Whether there is something to get within microseconds, as where two processes answer each other, for which a turn
    of the event loop would take longer. It is tried less and less often while nothing comes."""
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
