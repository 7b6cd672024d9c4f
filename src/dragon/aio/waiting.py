"""Makes a task wait for an object of the run: through the desk of the agent, or through a file descriptor of a channel
of this node."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dragon import _core
from dragon.infrastructure.errors import RunEndedError
from dragon.runtime.agent_client import ask
from dragon.runtime.copies import refresh, write_back
from dragon.runtime.handle import Channel
from dragon.runtime.protocol.objects import OpenDesk
from dragon.runtime.remote import node_of
from dragon.runtime.run import this_run

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
    if is_here(handle):
        if not _core.desk()[0]:
            ask(OpenDesk())
        return await _line().perform(handle, f"{kind}.{method}", given, owner, late)
    write_back()
    value = await _line().perform(handle, f"{kind}.{method}", given, owner, late)
    refresh()
    return value


_Late = Callable[[tuple[bool, Any]], object]


class _Line:
    """The operations that one event loop waits for. A forked child makes its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.key = (os.getpid(), this_run().folder)
        self._line = _core.Line()
        self._asked: dict[int, tuple[asyncio.Future[Any], _Late | None]] = {}
        self.is_lost = False  # the agent has ended
        self._agent = _core.open_process(this_run().agent.pid)
        loop.add_reader(self._line.fileno(), self._take)
        loop.add_reader(self._agent, self._lose)

    def __del__(self) -> None:
        if hasattr(self, "_agent"):
            os.close(self._agent)

    async def perform(self, handle: Any, operation: str, given: tuple[int, ...], owner: int, late: _Late | None) -> Any:
        what = _core.OPERATIONS[operation]
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = self._line.ask(what, handle._name(), given, owner)
        self._asked[number] = answer, late
        try:
            return await answer
        except asyncio.CancelledError:
            if number in self._asked:
                self._line.cancel(number)
            elif late is not None and not answer.cancelled() and answer.exception() is None:
                late((True, answer.result()))  # the answer arrived just before this task was cancelled
            raise

    def _take(self) -> None:
        for number, cancelled, value, error in self._line.take():
            answer, late = self._asked.pop(number)
            if answer.done():
                if not cancelled and error is None and late is not None:
                    late((True, value))
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)

    def _lose(self) -> None:
        asyncio.get_running_loop().remove_reader(self._agent)
        self.is_lost = True
        asked, self._asked = self._asked, {}
        for answer, _ in asked.values():
            if not answer.done():
                answer.set_exception(RunEndedError(f"the agent of the run in {self.key[1]} has ended"))


def _line() -> _Line:
    loop = asyncio.get_running_loop()
    known = _mine.lines.get(loop)
    if known is None or known.key != (os.getpid(), this_run().folder) or known.is_lost:
        try:
            known = _mine.lines[loop] = _Line(loop)
        except ProcessLookupError:
            this_run().check()
            raise RunEndedError("the agent of the run has ended") from None
    return known


_Turns = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakValueDictionary[Any, asyncio.Lock]]


class _Mine(threading.local):
    """The state of a thread: for each of its loops the lock of each object whose turns its tasks take."""

    passed = 0  # waits that are left until one blocks the loop briefly again
    to_pass = 1  # the value for `passed` after a brief wait without a message

    def __init__(self) -> None:
        self.turns: _Turns = weakref.WeakKeyDictionary()
        self.lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = weakref.WeakKeyDictionary()


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
        await wait(channel, "Channel", "wait_readable")
        return
    if _comes_at_once(channel):
        return
    if not _may_ring(channel._name()[:2]):
        await wait(channel, "Channel", "wait_readable")
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
    """Return whether an object arrives within microseconds, blocking the loop for that long. If two processes answer
    each other at once, a turn of the event loop would take longer. While nothing arrives, this is tried less and less
    often."""
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
