"""What poll() waits for and finds, and options without meaning here."""

from __future__ import annotations

import enum

from dragon.rc import DragonError as Code

__all__ = ["ChannelFlags", "EventType", "FlowControl", "LockType", "OwnershipOnSend", "PollResult"]


class EventType(enum.IntEnum):
    """What poll() waits for. Those of barriers and semaphores are not offered: dragon.native has both."""

    POLLNOTHING = 0
    POLLIN = 1
    POLLOUT = 2
    POLLINOUT = 3
    POLLEMPTY = 4
    POLLFULL = 5
    POLLSIZE = 6
    POLLRESET = 7


class FlowControl(enum.IntEnum):
    """Taken and unused."""

    NO_FLOW_CONTROL = 0
    RESOURCES_FLOW_CONTROL = 1
    MEMORY_FLOW_CONTROL = 2
    MSGS_FLOW_CONTROL = 3


class LockType(enum.IntEnum):
    """Taken and unused."""

    FIFO = 0
    LITE = 1
    GREEDY = 2


class ChannelFlags(enum.IntEnum):
    """Taken and unused."""

    NO_FLAGS = 0
    MASQUERADE_AS_REMOTE = 1


class OwnershipOnSend(enum.IntEnum):
    """Whether send() leaves the message to its sender: it is copied in both cases."""

    copy_on_send = 0
    transfer_ownership_on_send = 1


class PollResult:
    """What poll() found: a value, and its code."""

    def __init__(self, value: int | None = None, rc: Code | None = None) -> None:
        self.value, self.rc = value, rc

    def __repr__(self) -> str:
        return f"PollResult(value={self.value}, rc={self.rc})"
