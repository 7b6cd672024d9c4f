"""Joins the run, and gives a program the bytes that its creator passed to it.

No setup is needed: the first use of any object joins the run, or starts one.
"""

from __future__ import annotations

from dragon.infrastructure.errors import NotSupportedError
from dragon.native.process import argument_data
from dragon.runtime.run import this_run

__all__ = ["connect_as_external", "connect_to_infrastructure", "disconnect_infrastructure"]


def connect_to_infrastructure(force: bool = False) -> None:
    """Join the run, or start one if the program belongs to none. May be called again."""
    this_run()


def connect_as_external(params: object) -> None:
    """Raise NotSupportedError: dragon.workflows.runtime.attach() joins a run that another program started."""
    raise NotSupportedError("use dragon.workflows.runtime.attach() to join a run that another program started")


def disconnect_infrastructure() -> None:
    """Do nothing: a program leaves its run when it ends."""


def __getattr__(name: str) -> bytes | None:
    if name == "_ARG_PAYLOAD":
        return argument_data()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
