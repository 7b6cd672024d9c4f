"""What the agent itself knows of its node at one moment."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dragon import _core
from dragon.infrastructure.facts import FIRST_PUID
from dragon.runtime.folder import RunInfo

if TYPE_CHECKING:
    from dragon.agent.server import Agent

__all__ = ["Seen", "SeenGroup", "SeenProcess", "see"]


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
    return Seen(
        processes=[*_head(agent.run.folder), *(SeenProcess(p.puid, p.pid, p.name) for p in agent.registry.living())],
        groups=[SeenGroup(g.name, g.live, sum(m.restarts for m in g.members)) for g in agent.groups.all()],
        arena_used=usage["in_use"],
        arena_limit=usage["limit"],
        history=history,
    )


@functools.cache
def _head(folder: Path) -> list[SeenProcess]:
    """The program that started its run itself, if one did; any other the run has started."""
    info = RunInfo.read(folder)
    if info.front_end is not None or info.owner == info.agent:
        return []
    return [SeenProcess(FIRST_PUID, info.owner.pid, "head")]
