"""Provides Python's tracker of shared memory to all processes of a node.

They must share it from their start on: the own tracker of a process that only attached to shared memory would remove it
at that process's end. Few programs use it, so the agent starts it when a process first sends something to it.
"""

from __future__ import annotations

import os
import select

from dragon import _core
from dragon.infrastructure import cpython
from dragon.infrastructure.errors import RunEndedError
from dragon.runtime.agent_client import ask, tell
from dragon.runtime.protocol.processes import GiveTrackerBack, KeepTracker
from dragon.runtime.run import this_run
from dragon.runtime.spawning import standard_streams

__all__ = ["tracker_descriptor"]

_TRACKER = cpython.resource_tracker()


def tracker_descriptor() -> int:
    """Return the descriptor of this process's tracker. Raises RunEndedError if there is none, and no agent to
    start it."""
    with _TRACKER._lock:
        if _TRACKER._fd is not None and _is_broken(_TRACKER._fd):
            _leave()
        if _TRACKER._fd is None:
            _TRACKER._fd = _new_tracker()
        return int(_TRACKER._fd)


def _is_broken(pipe: int) -> bool:
    events = select.poll()
    events.register(pipe, 0)
    return bool(events.poll(0))


def _new_tracker() -> int:
    reading, writing = os.pipe()
    try:
        with standard_streams() as (_, _, errors):
            tell(KeepTracker(os.getpid()), [reading, errors])
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    run = this_run()
    if run.owner_pid == os.getpid():
        run.before_end.append(_give_back)
        _core.set_tracker(writing)
    if not hasattr(
        _TRACKER, "_stop_locked"
    ):  # later releases of Python 3.12, and 3.13, support other processes' trackers
        _TRACKER._stop = _stop
    return writing


def _give_back() -> None:
    """Release the tracker if it is unused, because the run ends before this process, which then starts its own if
    needed."""
    with _TRACKER._lock:
        if _TRACKER._fd is None:
            return
        try:
            unused = ask(GiveTrackerBack(os.fstat(_TRACKER._fd).st_ino))
        except RunEndedError:
            return
        if unused:
            _leave()


def _leave() -> None:
    _core.set_tracker(-1)
    os.close(_TRACKER._fd)
    _TRACKER._fd = _TRACKER._pid = None


def _stop() -> None:
    """Stop using the tracker; multiprocessing calls this at the end of its own tests. Older versions would wait for the
    tracker, which is the agent's child."""
    if _TRACKER._fd is not None and _TRACKER._pid is None:
        _leave()
    else:
        type(_TRACKER)._stop(_TRACKER)
