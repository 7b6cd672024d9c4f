"""Joins the run, and gives a program the bytes that its creator passed to it.

No setup is needed: the first use of any object joins the run, or starts one.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from dragon import _core
from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.messages import as_name
from dragon.infrastructure.variables import ARGUMENT_DATA
from dragon.native.queue import Empty, Queue
from dragon.runtime.run import this_run

__all__ = ["connect_as_external", "connect_to_infrastructure", "disconnect_infrastructure"]


def connect_to_infrastructure(force: bool = False) -> None:
    """Join the run, or start one if the program belongs to none. May be called again. `force` has no effect."""
    this_run()


def connect_as_external(params: object) -> None:
    """Raise NotSupportedError: dragon.workflows.runtime.attach() joins a run that another program started."""
    raise NotSupportedError("use dragon.workflows.runtime.attach() to join a run that another program started")


def disconnect_infrastructure() -> None:
    """Do nothing: a program leaves its run when it ends."""


def __getattr__(name: str) -> Any:
    if name == "_ARG_PAYLOAD":
        return _argument_data()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _argument_data() -> bytes | None:
    """Return the bytes that create_with_argdata() passed to this program; None if there are none."""
    text = os.environ.get(ARGUMENT_DATA)
    if text is None:
        return None
    try:
        data: bytes = Queue._attached(as_name([int(part) for part in text.split(",")]), False).get_nowait()
    except (_core.DestroyedError, Empty):
        return None  # the bytes were for the process that started this one
    return data
