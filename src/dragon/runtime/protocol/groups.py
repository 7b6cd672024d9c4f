"""Requests about groups of processes, which agents follow."""

from __future__ import annotations

from dragon.infrastructure.messages import Spawn
from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.request import OfNumber, Request

# Members with the same place: (their number, index of their template, node, CPUs, changes of the environment).
Places = tuple[int, int, int, list[int], dict[str, str]]


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a group. `walltime` is in seconds; `creator` is the puid of the process that makes the group.
    `pmi` is how its members find each other as ranks of an MPI job, or "" if they do not; `mpi_library` is the name of
    the library that they use, `pmix_library` the path of libpmix, `launcher` the site's launcher if that starts the
    ranks."""

    name: str
    restart: bool
    ignore_error_on_exit: bool
    walltime: float | None
    creator: int = 0
    pmi: str = ""
    mpi_library: str = ""
    launcher: str = ""
    pmix_library: str = ""


class MadeGroup(msgspec.Struct, frozen=True):
    """A new group, and its shared words, from which processes read its state."""

    number: int
    words: Name


class Status(msgspec.Struct, frozen=True):
    """The state of a group: puids of its live members, (puid, exit code) of those that ended, and its failure."""

    live: list[int]
    ended: list[tuple[int, int]]
    failure: str
    failed_codes: list[int]


class CreateGroup(Request[MadeGroup]):
    """Make a group. `templates` are requests without a place, `places` are in the order of ranks. The descriptors of
    the creator's standard streams are sent with the request."""

    settings: GroupSettings
    templates: list[Spawn]
    places: list[Places]


class StartGroup(OfNumber[list[int]]):
    """Start all members. Replies with their puids in order."""


class SignalGroup(OfNumber[None]):
    """Send a signal to every live member."""

    which: int


class StopGroup(OfNumber[None]):
    """Interrupt, then terminate, then kill the members, `patience` seconds apart."""

    patience: float


class StopRestart(OfNumber[None]):
    """Stop restarting members that end."""


class IsGroupEnding(OfNumber[bool]):
    """Return whether the members of the group are being ended, or were ended when it was closed."""


class GroupStatus(OfNumber[Status]):
    """Return the state of the group."""


class MemberStream(OfNumber[Name | None]):
    """Return the channel of a member's standard stream; None if that is not a PIPE."""

    puid: int
    stream: int


class EndInput(OfNumber[None]):
    """Close the group's end of a member's standard input."""

    puid: int


class CloseGroup(OfNumber[None]):
    """Release the group; members that are alive are killed."""
