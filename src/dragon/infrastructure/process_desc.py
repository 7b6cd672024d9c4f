"""The description of a process of the run."""

from __future__ import annotations

import enum
from multiprocessing.connection import Connection

from dragon.infrastructure.policy import Policy
from dragon.infrastructure.structs import msgspec


class ProcessOptions(msgspec.Struct):
    """Options of dragonhpc without effect: every process can use the runtime."""

    make_inf_channels: bool = False
    mode: object = None
    argdata: object = None


class ProcessDescriptor(msgspec.Struct):
    """A process."""

    class State(enum.IntEnum):
        """Whether it exists; PENDING is not used."""

        PENDING, ACTIVE, DEAD = 1, 2, 3

    p_uid: int
    pid: int  # on its node
    name: str
    p_p_uid: int  # of its creator; 0 for the head process
    group: int = 0  # the number of its group; 0 for none
    node: int = 0  # the index of its node
    h_uid: int = 0  # the host id of its node; 0 if that is lost
    record: tuple[int, int, int] | None = None  # in shared memory; None if the run did not start it
    ecode: int | None = None  # negative for a signal; None while it runs
    live_children: set[int] = set()  # their puids, in the result of query()
    policy: Policy | None = None  # as its creator passed it, in the result of create(), as are those of pipes:
    stdin_conn: Connection | None = None
    stdout_conn: Connection | None = None
    stderr_conn: Connection | None = None

    @property
    def state(self) -> State:
        """Whether it runs."""
        return self.State.ACTIVE if self.ecode is None else self.State.DEAD
