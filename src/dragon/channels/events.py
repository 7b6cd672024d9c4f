"""The events and results of poll(), and options of dragonhpc that have no effect."""

from __future__ import annotations

import enum

from dragon.rc import DragonError as Code

__all__ = ["ChannelFlags", "EventType", "FlowControl", "LockType", "OwnershipOnSend", "PollResult"]


class EventType(enum.IntEnum):
    """The events that poll() waits for. Those of barriers and semaphores are not supported: dragon.native has both.

    Attributes:
        POLLNOTHING: do not wait.
        POLLIN: there is a message.
        POLLOUT: there is room for a message.
        POLLINOUT: there is a message, or room for one; always true.
        POLLEMPTY: there is no message.
        POLLFULL: there is no room for a message.
        POLLSIZE: return the number of messages.
        POLLRESET: drop all messages.
    """

    POLLNOTHING = 0
    POLLIN = 1
    POLLOUT = 2
    POLLINOUT = 3
    POLLEMPTY = 4
    POLLFULL = 5
    POLLSIZE = 6
    POLLRESET = 7


class FlowControl(enum.IntEnum):
    """Options of dragonhpc that have no effect.

    Attributes:
        NO_FLOW_CONTROL: has no effect.
        RESOURCES_FLOW_CONTROL: has no effect.
        MEMORY_FLOW_CONTROL: has no effect.
        MSGS_FLOW_CONTROL: has no effect.
    """

    NO_FLOW_CONTROL = 0
    RESOURCES_FLOW_CONTROL = 1
    MEMORY_FLOW_CONTROL = 2
    MSGS_FLOW_CONTROL = 3


class LockType(enum.IntEnum):
    """Options of dragonhpc that have no effect.

    Attributes:
        FIFO: has no effect.
        LITE: has no effect.
        GREEDY: has no effect.
    """

    FIFO = 0
    LITE = 1
    GREEDY = 2


class ChannelFlags(enum.IntEnum):
    """Options of dragonhpc that have no effect.

    Attributes:
        NO_FLAGS: has no effect.
        MASQUERADE_AS_REMOTE: has no effect.
    """

    NO_FLAGS = 0
    MASQUERADE_AS_REMOTE = 1


class OwnershipOnSend(enum.IntEnum):
    """Whether the sender keeps a message after send(), which copies it in both cases.

    Attributes:
        copy_on_send: the sender keeps the message.
        transfer_ownership_on_send: send() destroys the message.
    """

    copy_on_send = 0
    transfer_ownership_on_send = 1


class PollResult:
    """The result of a poll().

    Attributes:
        value: the value that poll() returned, as a number; None before.
        rc: SUCCESS, or TIMEOUT if poll() returned False; None before.
    """

    def __init__(self, value: int | None = None, rc: Code | None = None) -> None:
        self.value, self.rc = value, rc

    def __repr__(self) -> str:
        return f"PollResult(value={self.value}, rc={self.rc})"
