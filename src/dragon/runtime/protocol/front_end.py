"""The messages between the front end of a run over several nodes and its agents.

How an agent joins is described in `dragon.control`. An agent sends only a bounded number of bytes of output that Shown
has not acknowledged (`output_window` of the settings). So a terminal that is slow or stopped blocks the writers and
does not fill the front end's memory.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import msgspec

from dragon.infrastructure.membership import Member, Membership
from dragon.infrastructure.messages import decoder_of

NOTHING = msgspec.Raw(b"\xc0")


class Message(msgspec.Struct, frozen=True, array_like=True):
    """The base class of the messages."""


# ---- joining


class Challenge(Message, tag="challenge", frozen=True):
    """The front end's first message."""

    nonce: bytes


class Join(Message, tag="join", frozen=True):
    """An agent's reply to Challenge. Index and member are read only if the version is the same."""

    nonce: bytes
    proof: bytes
    version: str
    index: Any
    member: Any


class Refused(Message, tag="refused", frozen=True):
    """The agent may not join the run, for that reason."""

    reason: str


class Joined(Message, tag="joined", frozen=True):
    """The agent has joined, and waits for the other nodes. `seat` is the number by which it resumes its connection."""

    seat: int


class Welcome(Message, tag="membership", frozen=True):
    """All nodes have joined."""

    membership: Membership


# ---- both ways


class Received(Message, tag="received", frozen=True):
    """The sender has received `count` messages over this connection and those before it; this message is not counted.
    The other side keeps those that come after them, in case the connection breaks."""

    count: int


# ---- after a connection has broken


class Resume(Message, tag="resume", frozen=True):
    """The reply to Challenge of an agent whose connection broke. `seat` is as in Joined, `count` as in Received."""

    nonce: bytes
    proof: bytes
    seat: int
    count: int


class Resumed(Message, tag="resumed", frozen=True):
    """The connection replaces the broken one. `count` is as in Received."""

    count: int


# ---- to an agent


class StartHead(Message, tag="start_head", frozen=True):
    """Start the head process, which ignores the `signals` that the front end ignores. For the first node only."""

    executable: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    signals: list[int] = []


class SignalHead(Message, tag="signal", frozen=True):
    """Send a signal to the head process."""

    number: int


class Input(Message, tag="input", frozen=True):
    """The next piece of the front end's standard input, empty at its end; the reply to WantsInput."""

    data: bytes


class Shown(Message, tag="written", frozen=True):
    """`count` more bytes of this agent's output have been written to the terminal."""

    count: int


class NodeLost(Message, tag="lost", frozen=True):
    """A node is lost, by the decision with the number `epoch`."""

    index: int
    host_name: str
    reason: str
    epoch: int


class Decided(Message, tag="decided", frozen=True):
    """A replicated shard has these holders, by the decision with the number `epoch`."""

    number: str
    manager: int
    holders: list[int]
    epoch: int


class TellMembers(Message, tag="members", frozen=True):
    """The nodes of the run, in reply to AskMembers."""

    members: list[Member]


class Question(Message, tag="ask", frozen=True):
    """Handle a request as if a process had sent it."""

    number: int
    request: msgspec.Raw


class Clear(Message, tag="clear", frozen=True):
    """End every process on this node, then send Cleared: the head process is to be restarted."""


class End(Message, tag="end", frozen=True):
    """End everything on this node, then send Bye."""


# ---- from an agent


class Wrote(Message, tag="output", frozen=True):
    """Output of a process to descriptor 1 or 2."""

    number: int
    data: bytes


class Log(Message, tag="log", frozen=True):
    """A line to show to the user."""

    text: str


class WantsInput(Message, tag="read", frozen=True):
    """The head process's standard input has room."""


class HeadExited(Message, tag="head_exited", frozen=True):
    """The head process ended with that exit code (negative: by a signal), or could not be started."""

    code: int
    error: str = ""


class Answered(Message, tag="answer", frozen=True):
    """The reply to the Question with that number, or the error."""

    number: int
    value: msgspec.Raw
    error: str = ""


class Cleared(Message, tag="cleared", frozen=True):
    """No process of the run is left on this node."""


class AskMembers(Message, tag="ask_members", frozen=True):
    """Request the members: the node that was to send them is lost."""


class Proposal(Message, tag="propose", frozen=True):
    """Propose other holders for a replicated shard. `epoch` is the decision that gave it the holders `before`, `seen`
    the last loss that the node has received."""

    number: str
    manager: int
    epoch: int
    seen: int
    before: list[int]
    holders: list[int]


class Ending(Message, tag="end_run", frozen=True):
    """A process of this node asks to end the run."""


class Writing(Message, tag="writing", frozen=True):
    """Pending writes take some time; Bye follows when they are done."""


class Bye(Message, tag="bye", frozen=True):
    """Everything on this node has ended, and the connection closes."""


@functools.cache
def _decoder() -> msgspec.msgpack.Decoder[Message]:
    return decoder_of(functools.reduce(operator.or_, Message.__subclasses__()))


def decode_message(body: bytes) -> Message:
    """Return a message, which refers to `body`. Raises msgspec.MsgspecError for anything else."""
    return _decoder().decode(body)
