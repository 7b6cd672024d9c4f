"""What is asked about groups: of processes, which agents follow, and of those that programs put together by name."""

from __future__ import annotations

import msgspec

from dragon.infrastructure.messages import Name, Spawn
from dragon.runtime.protocol.request import OfAll, OfNumber, Request, Where

__all__ = [
    "AddMembers",
    "CloseGroup",
    "CreateGroup",
    "CreateNamedGroup",
    "EndInput",
    "FindNamedGroup",
    "FindNumberedGroup",
    "ForgetNamedGroup",
    "GroupSettings",
    "GroupStatus",
    "IsGroupEnding",
    "ListNamedGroups",
    "MadeGroup",
    "MemberStream",
    "NamedGroup",
    "Places",
    "RemoveMembers",
    "SignalGroup",
    "StartGroup",
    "Status",
    "StopGroup",
    "StopRestart",
]

# ---- those that agents follow

# Members with one place: how many, the index of their template, node, CPUs, and changes of the environment.
Places = tuple[int, int, int, list[int], dict[str, str]]


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a group is to behave. `creator` is the puid of the process that makes it.

    `pmi` is how its members find each other as ranks of an MPI job, if they do; `mpi_library` the name of the library
    that they use, `pmix_library` the path of libpmix, `launcher` the site's, where that starts the ranks.
    """

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
    """A new group, and the shared words through which it is followed."""

    number: int
    words: Name


class Status(msgspec.Struct, frozen=True):
    """A group: the puids of its members that live, puid and exit code of those that ended, and its failure."""

    live: list[int]
    ended: list[tuple[int, int]]
    failure: str
    failed_codes: list[int]


class CreateGroup(Request[MadeGroup], tag="groups.create", frozen=True):
    """Make a group. `templates` are requests without a place, `places` in the order of ranks; with it go the standard
    streams of its creator."""

    settings: GroupSettings
    templates: list[Spawn]
    places: list[Places]


class StartGroup(OfNumber[list[int]], tag="groups.start", frozen=True):
    """Start all members; their puids in order."""


class SignalGroup(OfNumber[None], tag="groups.signal", frozen=True):
    """Send a signal to every live member."""

    which: int


class StopGroup(OfNumber[None], tag="groups.stop", frozen=True):
    """Interrupt, then terminate, then kill, with `patience` seconds between the steps."""

    patience: float


class StopRestart(OfNumber[None], tag="groups.stop_restart", frozen=True):
    """Let members that end from now on stay ended."""


class IsGroupEnding(OfNumber[bool], tag="groups.is_ending", frozen=True):
    """Whether the members of the group are told to end, or were when it was closed."""


class GroupStatus(OfNumber[Status], tag="groups.status", frozen=True):
    """How it is going."""


class MemberStream(OfNumber[Name | None], tag="groups.stream", frozen=True):
    """The channel of a member's standard stream, if that is a PIPE."""

    puid: int
    stream: int


class EndInput(OfNumber[None], tag="groups.end_input", frozen=True):
    """Close the group's end of a member's standard input."""

    puid: int


class CloseGroup(OfNumber[None], tag="groups.close", frozen=True):
    """Forget the group; what still lives is killed."""


# ---- those that programs put together


class NamedGroup(msgspec.Struct):
    """The puids of its members, those that were made together in one list."""

    number: int
    name: str
    sets: list[list[int]]


class CreateNamedGroup(Request[NamedGroup], tag="named_groups.create", frozen=True):
    """Make one. An empty name becomes one that no other has."""

    name: str
    sets: list[list[int]]


class FindNamedGroup(Request[NamedGroup], tag="named_groups.query", frozen=True):
    """The one of that name. Raises LookupError."""

    name: str

    def place(self) -> int | Where:
        """The agent that has a group of that name."""
        return Where.NAMED


class FindNumberedGroup(OfNumber[NamedGroup], tag="named_groups.numbered", frozen=True):
    """The one of that number. Raises LookupError."""


class ListNamedGroups(OfAll[int], tag="named_groups.numbers", frozen=True):
    """The numbers of all."""


class AddMembers(OfNumber[None], tag="named_groups.add", frozen=True):
    """Have further members. Raises LookupError."""

    sets: list[list[int]]


class RemoveMembers(OfNumber[None], tag="named_groups.remove", frozen=True):
    """Have these members no longer. Raises LookupError."""

    members: list[int]


class ForgetNamedGroup(OfNumber[None], tag="named_groups.forget", frozen=True):
    """There is no such group any more; its members are left alone."""
