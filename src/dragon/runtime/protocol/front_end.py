"""What the front end of a run over several nodes and an agent say to each other.

How an agent joins is in `dragon.control`. An agent sends output ahead of Shown by a bounded number of bytes
only (`output_window` of the settings), so a terminal that is slow or stopped holds the writers back and never fills the
front end's memory.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from dragon.infrastructure.membership import Member, Membership
from dragon.infrastructure.messages import decoder_of

__all__ = [
    "NOTHING",
    "Answered",
    "AskMembers",
    "Bye",
    "Challenge",
    "Clear",
    "Cleared",
    "Decided",
    "End",
    "Ending",
    "HeadExited",
    "Input",
    "Join",
    "Log",
    "Message",
    "NodeLost",
    "Proposal",
    "Question",
    "Refused",
    "Shown",
    "SignalHead",
    "StartHead",
    "TellMembers",
    "WantsInput",
    "Welcome",
    "Writing",
    "Wrote",
    "decode_message",
]


NOTHING = msgspec.Raw(b"\xc0")


class Message(msgspec.Struct, frozen=True, array_like=True):
    """One of them."""


# ---- to join


class Challenge(Message, tag="challenge", frozen=True):
    """What the front end says first."""

    nonce: bytes


class Join(Message, tag="join", frozen=True):
    """An agent's answer. Index and member are looked at once the version is known to be the same."""

    nonce: bytes
    proof: bytes
    version: str
    index: Any
    member: Any


class Refused(Message, tag="refused", frozen=True):
    """The agent does not belong to the run, for that reason."""

    reason: str


class Welcome(Message, tag="membership", frozen=True):
    """All nodes are there."""

    membership: Membership


# ---- to an agent


class StartHead(Message, tag="start_head", frozen=True):
    """Start the head process, which ignores the `signals` that the front end does. For the first node only."""

    executable: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    signals: list[int] = []


class SignalHead(Message, tag="signal", frozen=True):
    """Send the head process a signal."""

    number: int


class Input(Message, tag="input", frozen=True):
    """The next piece of the front end's standard input, empty at its end; it follows WantsInput."""

    data: bytes


class Shown(Message, tag="written", frozen=True):
    """So many more bytes of this agent's output have been shown."""

    count: int


class NodeLost(Message, tag="lost", frozen=True):
    """A node is gone, by the decision of that number."""

    index: int
    host_name: str
    reason: str
    epoch: int


class Decided(Message, tag="decided", frozen=True):
    """A replicated shard has these holders, by the decision of that number."""

    number: str
    manager: int
    holders: list[int]
    epoch: int


class TellMembers(Message, tag="members", frozen=True):
    """The nodes of the run, to one that asked."""

    members: list[Member]


class Question(Message, tag="ask", frozen=True):
    """Answer a request as if a process had asked it."""

    number: int
    request: msgspec.Raw


class Clear(Message, tag="clear", frozen=True):
    """End every process on this node, then say Cleared: the head process is to be started again."""


class End(Message, tag="end", frozen=True):
    """End everything on this node, then say Bye."""


# ---- from an agent


class Wrote(Message, tag="output", frozen=True):
    """What a process wrote to descriptor 1 or 2."""

    number: int
    data: bytes


class Log(Message, tag="log", frozen=True):
    """A line for the user to see."""

    text: str


class WantsInput(Message, tag="read", frozen=True):
    """The head process's standard input has room."""


class HeadExited(Message, tag="head_exited", frozen=True):
    """The head process ended (negative: by a signal), or could not be started."""

    code: int
    error: str = ""


class Answered(Message, tag="answer", frozen=True):
    """The answer to the question of that number, or the error."""

    number: int
    value: msgspec.Raw
    error: str = ""


class Cleared(Message, tag="cleared", frozen=True):
    """No process of the run is left on this node."""


class AskMembers(Message, tag="ask_members", frozen=True):
    """The node that was to tell the members is gone."""


class Proposal(Message, tag="propose", frozen=True):
    """A replicated shard should have other holders. `epoch` is the decision by which it has those of `before`, `seen`
    the last loss that the node knows of."""

    number: str
    manager: int
    epoch: int
    seen: int
    before: list[int]
    holders: list[int]


class Ending(Message, tag="end_run", frozen=True):
    """Somebody on this node wants the run to end."""


class Writing(Message, tag="writing", frozen=True):
    """What is due to be written takes its time; Bye comes once it is done."""


class Bye(Message, tag="bye", frozen=True):
    """Everything on this node has ended, and the connection closes."""


@functools.cache
def _decoder() -> msgspec.msgpack.Decoder[Message]:
    return decoder_of(
        Answered
        | AskMembers
        | Bye
        | Challenge
        | Clear
        | Cleared
        | Decided
        | End
        | Ending
        | HeadExited
        | Input
        | Join
        | Log
        | NodeLost
        | Proposal
        | Question
        | Refused
        | Shown
        | SignalHead
        | StartHead
        | TellMembers
        | WantsInput
        | Welcome
        | Writing
        | Wrote
    )


def decode_message(body: bytes) -> Message:
    """A message, which keeps `body`. Raises msgspec.MsgspecError for anything else."""
    return _decoder().decode(body)
