"""Awaitable queues, locks, processes, results and dictionaries of a run, for programs with an event loop.

Each class wraps an existing object of `dragon.native`, or of `multiprocessing` with the start method "dragon", and
awaits where its methods would block. A wait needs no thread and does not poll. A wrapper belongs to one event loop; any
number of its tasks may use it. Use asyncio.timeout() for timeouts; a task that is cancelled loses no message, and keeps
no lock.
"""

from dragon.aio.objects import Barrier, Condition, Dict, Event, Lock, Queue, Semaphore, recv, send
from dragon.aio.waiting import join, result, results

__all__ = [
    "Barrier",
    "Condition",
    "Dict",
    "Event",
    "Lock",
    "Queue",
    "Semaphore",
    "join",
    "recv",
    "result",
    "results",
    "send",
]
