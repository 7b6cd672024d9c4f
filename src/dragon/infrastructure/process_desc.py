"""What is known of a process of the run."""

from __future__ import annotations

import enum

import msgspec

__all__ = ["ProcessDescriptor"]


class ProcessDescriptor(msgspec.Struct):
    """A process: its id in the run, its id on its node, its name, its creator, its exit code once it has ended."""

    class State(enum.IntEnum):
        """PENDING is asked for, ACTIVE runs, DEAD has ended."""

        PENDING = 1
        ACTIVE = 2
        DEAD = 3

    p_uid: int
    pid: int
    name: str
    p_p_uid: int
    group: int = 0
    node: int = 0
    record: tuple[int, int, int] | None = None
    ecode: int | None = None

    @property
    def state(self) -> State:
        """Whether it runs."""
        return self.State.ACTIVE if self.ecode is None else self.State.DEAD
