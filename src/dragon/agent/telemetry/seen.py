"""What the agent itself knows of its node at one moment."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dragon import _core
from dragon.infrastructure.facts import FIRST_PUID
from dragon.runtime.folder import Owner, RunInfo

if TYPE_CHECKING:
    from dragon.agent.server import Agent

__all__ = ["Seen", "SeenGroup", "SeenProcess", "head_of", "see"]


class SeenProcess(msgspec.Struct, frozen=True):
    """A live process of the run."""

    puid: int
    pid: int
    name: str


class SeenGroup(msgspec.Struct, frozen=True):
    """A process group of the run."""

    name: str
    live: int
    restarts: int


class Seen(msgspec.Struct, frozen=True):
    """What there is on the node. Sizes are in bytes."""

    processes: list[SeenProcess]
    groups: list[SeenGroup]
    arena_used: int
    arena_limit: int
    history: int


def see(agent: Agent, history: int) -> Seen:
    """Look, where the history of metrics has that size."""
    usage = _core.usage()
    head = head_of(agent.run.folder)
    heads = [SeenProcess(FIRST_PUID, head.pid, "head")] if head is not None else []
    return Seen(
        processes=[*heads, *(SeenProcess(p.puid, p.pid, p.name) for p in agent.registry.living())],
        groups=[SeenGroup(g.name, g.live, sum(m.restarts for m in g.members)) for g in agent.groups.all()],
        arena_used=usage["in_use"],
        arena_limit=usage["limit"],
        history=history,
    )


@functools.cache
def head_of(folder: Path) -> Owner | None:
    """The program that started its run itself, if one did; any other the run has started."""
    info = RunInfo.read(folder)
    return None if info.front_end is not None or info.owner == info.agent else info.owner
