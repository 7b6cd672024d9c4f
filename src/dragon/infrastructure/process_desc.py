"""The description of a process of the run."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from dragon.infrastructure.policy import Policy


class ProcessOptions(msgspec.Struct):
    """Options of dragonhpc that have no effect: every process can use the runtime."""

    make_inf_channels: bool = False
    mode: Any = None
    argdata: Any = None


class ProcessDescriptor(msgspec.Struct):
    """A process.

    Attributes:
        p_uid: its puid.
        pid: its process id on its node.
        name: its name.
        p_p_uid: the puid of its creator; 0 for the head process.
        group: the number of its group; 0 for none.
        node: the index of its node.
        h_uid: the host id of its node; 0 if that is lost.
        record: the name of its record in shared memory; None for a process that the run did not start.
        ecode: its exit code, negative for a signal; None while it runs.
        live_children: the puids of its live children, in the result of query(); else empty.
        policy: the policy that its creator passed, in the result of create(); else None.
        stdin_conn, stdout_conn, stderr_conn: the connections of streams that are a PIPE, in the result of create().
    """

    class State(enum.IntEnum):
        """The state of a process; PENDING is not used."""

        PENDING, ACTIVE, DEAD = 1, 2, 3

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
