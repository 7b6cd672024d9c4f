"""What the agent itself knows of its node at one moment."""

from __future__ import annotations

import functools
from pathlib import Path

from dragon import _core
from dragon.agent.services import Services
from dragon.infrastructure.facts import FIRST_PUID
from dragon.infrastructure.metrics import Lifetime
from dragon.infrastructure.structs import msgspec
from dragon.runtime.folder import Owner, started_at
from dragon.runtime.protocol.run import Known
from dragon.runtime.run_info import RunInfo


class SeenGroup(msgspec.Struct, frozen=True):
    """A process group of the run."""

    name: str
    live: int
    restarts: int


class SeenShard(msgspec.Struct, frozen=True):
    """A shard of a dictionary. Sizes are in bytes."""

    dictionary: str
    manager: int
    used: int
    limit: int
    keys: int


class Seen(msgspec.Struct, frozen=True):
    """The state of the node. Sizes are in bytes; `parked` has offsets of objects, and the operations that wait."""

    processes: list[Known] = []  # the run's processes that are alive
    groups: list[SeenGroup] = []
    shards: list[SeenShard] = []
    parked: list[tuple[int, str]] = []
    arena_used: int = 0
    arena_limit: int = 1
    history: int = 0


def see(services: Services, history: int, level: int) -> Seen:
    """Return what is measured at that level. `history` is the size of the history of metrics."""
    usage = _core.usage()
    head = head_of(services.run.folder)
    heads = [Known(FIRST_PUID, head.pid, "head", parent=0, group=0, record=(0, 0, 0))] if head is not None else []
    seen = Seen(
        processes=[*heads, *services.registry.living()],
        arena_used=usage["in_use"],
        arena_limit=usage["limit"],
        history=history,
    )
    if level < 4:
        return seen
    parked = services.wire.parked() if services.wire is not None else ()
    return msgspec.structs.replace(
        seen,
        groups=[
            SeenGroup(g.name, g.live, sum(m.restarts for m in g.members)) for g in services.groups.present.values()
        ],
        shards=[SeenShard(*usage) for usage in services.shards.usages()],
        parked=[(offset, what) for _, _, what, offset, *_ in parked],
    )


@functools.cache
def head_of(folder: Path) -> Owner | None:
    """Return the program that started its run itself. None: the run was started first, and then its program."""
    info = RunInfo.read(folder)
    return None if info.front_end is not None or info.owner == info.agent else info.owner


def lifetimes(services: Services, since: float) -> list[Lifetime]:
    """Return the processes that are alive, or have ended since `since` (seconds since 1970)."""
    node, host = services.run.node, services.host_name
    head = head_of(services.run.folder)
    found = []
    if head is not None:
        found.append(Lifetime(node, host, FIRST_PUID, head.pid, "head", 0, 0, started_at(head)))
    found += [
        Lifetime(node, host, p.puid, p.pid, p.name, p.parent, p.group, p.started, p.ended, p.code, p.terminated)
        for p in services.registry.all()
        if p.ended is None or p.ended >= since
    ]
    return found
