"""The requests between the front end of a run over several nodes and its agents.

An agent sends only a bounded number of bytes of output that Shown has not acknowledged (`output_window` of the
settings). So a terminal that is slow or stopped blocks the writers and does not fill the front end's memory.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from dragon.runtime.protocol.request import Request

Answer_co = TypeVar("Answer_co", covariant=True)


class OfFrontEnd(Request[Answer_co], Generic[Answer_co]):
    """A request that only the front end sends to an agent."""


class StartHead(OfFrontEnd[None]):
    """Start the head process, which ignores the `signals` that the front end ignores. For the first node only."""

    executable: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    signals: list[int]


class SignalHead(OfFrontEnd[None]):
    """Send a signal to the head process."""

    number: int


class Input(OfFrontEnd[None]):
    """The next piece of the front end's standard input, empty at its end; follows WantsInput."""

    data: bytes


class Shown(OfFrontEnd[None]):
    """`count` more bytes of this agent's output have been written to the terminal."""

    count: int


class NodeLost(OfFrontEnd[None]):
    """A node is lost, by the decision with the number `epoch`."""

    index: int
    host_name: str
    reason: str
    epoch: int


class Decided(OfFrontEnd[None]):
    """A replicated shard has these holders, by the decision with the number `epoch`."""

    number: str
    manager: int
    holders: list[int]
    epoch: int


class Clear(OfFrontEnd[None]):
    """End every process on this node, before the head process is restarted. Replies once they have ended."""


# ---- from an agent; besides, it sends Members and EndRun


class Wrote(Request[None]):
    """Output of a process to descriptor 1 or 2."""

    number: int
    data: bytes


class WantsInput(Request[None]):
    """The head process's standard input has room."""


class HeadExited(Request[None]):
    """The head process ended with that exit code (negative: by a signal), or could not be started."""

    code: int
    error: str = ""


class Proposal(Request[None]):
    """Propose other holders for a replicated shard. `epoch` is the decision that gave it the holders `before`, `seen`
    the last loss that the node has received."""

    number: str
    manager: int
    epoch: int
    seen: int
    before: list[int]
    holders: list[int]


class Writing(Request[None]):
    """Pending writes take some time; Bye follows when they are done."""


class Bye(Request[None]):
    """Everything on this node has ended, and the connection closes."""
