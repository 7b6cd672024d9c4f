"""What is known of a process of the run."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from dragon.infrastructure.policy import Policy

__all__ = ["ProcessDescriptor", "ProcessOptions"]


class ProcessOptions(msgspec.Struct):
    """Taken where programs give it, and without meaning here: every process can reach the runtime."""

    make_inf_channels: bool = False
    mode: Any = None
    argdata: Any = None


class ProcessDescriptor(msgspec.Struct):
    """A process: its id in the run, its id on its node, its name, its creator, the index and the host id (0 where it is
    lost) of its node, its exit code once it has ended, and the ids of the processes that it started and that live.

    Whoever created it has the policy that it gave, and the connections of standard streams that are a PIPE.
    """

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
    h_uid: int = 0
    record: tuple[int, int, int] | None = None
    ecode: int | None = None
    live_children: set[int] = set()
    policy: Policy | None = None
    stdin_conn: Any = None
    stdout_conn: Any = None
    stderr_conn: Any = None

    @property
    def state(self) -> State:
        """Whether it runs."""
        return self.State.ACTIVE if self.ecode is None else self.State.DEAD
