"""The workers of a crew as it knows them, and what it says when they fail."""

from __future__ import annotations

from dataclasses import dataclass, field

from dragon.native.event import Event
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.signals import name_of

__all__ = ["LoadingError", "Member", "Tally", "told_end"]


class LoadingError(RuntimeError):
    """Batches cannot be made: workers end at their start, or over one batch again and again."""


@dataclass(eq=False)
class Member:
    """A loading worker, from before its start until it is gone."""

    number: int
    slot: int
    tasks: Queue
    leave: Event
    process: Process | None = None
    datasets: set[int] = field(default_factory=set)  # numbers of the snapshots that it has
    ready: bool = False
    leaving: bool = False


@dataclass
class Tally:
    """What the workers have done so far: batches, and seconds of their time."""

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    died: int = 0


def told_end(code: int | None) -> str:
    """How a process ended, in words."""
    return name_of(-code) if code is not None and code < 0 else f"exit code {code}"
