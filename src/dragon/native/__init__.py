"""The native API: processes, groups, queues, pools and synchronisation, with control of placement."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dragon.lazy_modules import submodule

if TYPE_CHECKING:
    from dragon.native.array import Array
    from dragon.native.barrier import Barrier
    from dragon.native.condition import Condition
    from dragon.native.event import Event
    from dragon.native.lock import Lock, RLock
    from dragon.native.machine import cpu_count
    from dragon.native.pool import Pool
    from dragon.native.process import Popen, Process
    from dragon.native.queue import Queue
    from dragon.native.semaphore import BoundedSemaphore, Semaphore
    from dragon.native.value import Value

__all__ = [
    "Array",
    "Barrier",
    "BoundedSemaphore",
    "Condition",
    "Event",
    "Lock",
    "Pool",
    "Popen",
    "Process",
    "Queue",
    "RLock",
    "Semaphore",
    "Value",
    "cpu_count",
]

_MODULES = {"Popen": "process", "RLock": "lock", "BoundedSemaphore": "semaphore", "cpu_count": "machine"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        return submodule(__name__, name)
    return getattr(importlib.import_module(f"dragon.native.{_MODULES.get(name, name.lower())}"), name)
