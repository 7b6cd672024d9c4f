"""What the agent itself knows of its node at one moment."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from dragon import _core
from dragon.agent.services import Services
from dragon.infrastructure.facts import FIRST_PUID
from dragon.infrastructure.metrics import Lifetime, Sample, tags_of
from dragon.infrastructure.structs import msgspec
from dragon.runtime.folder import Owner, started_at
from dragon.runtime.protocol.run import Known
from dragon.runtime.run_info import RunInfo


class Seen(msgspec.Struct, frozen=True):
    """The state of the node. Sizes are in bytes; `parked` has offsets of objects, and the operations that wait."""

    processes: list[Known] = []  # the run's processes that are alive
    samples: list[Sample] = []  # what is measured without a source
    parked: list[tuple[int, str]] = []
    arena_used: int = 0
    arena_limit: int = 1


def see(services: Services, history: int, level: int) -> Seen:
    """Return what is measured at that level. `history` is the size of the history of metrics in bytes."""
    usage = _core.usage()
    head = head_of(services.run.folder)
    heads = [Known(FIRST_PUID, head.pid, "head", parent=0, group=0, record=(0, 0, 0))] if head is not None else []
    processes = [*heads, *services.registry.living()]
    if level < 4:
        return Seen(processes, arena_used=usage["in_use"], arena_limit=usage["limit"])
    parked = services.wire.parked() if services.wire is not None else ()
    waiting = [(offset, what) for _, _, what, offset, *_ in parked]
    samples = [Sample("db_size", history), *_of_groups(services), *_of_dictionaries(services)]
    return Seen(processes, samples, waiting, usage["in_use"], usage["limit"])


def _of_groups(services: Services) -> Iterator[Sample]:
    """Yield the number of live members and of restarts of each group that this agent follows."""
    for group in services.groups.present.values():
        tags = tags_of(group=group.name)
        yield Sample("group_live", group.live, tags)
        yield Sample("group_restarts", sum(member.restarts for member in group.members), tags)


def _of_dictionaries(services: Services) -> Iterator[Sample]:
    """Yield the used and allowed bytes and the number of keys of each shard on this node, including copies."""
    for dictionary, manager, used, limit, keys in services.shards.usages():
        tags = tags_of(dictionary=dictionary, manager=manager)
        yield Sample("dictionary_bytes", used, tags)
        yield Sample("dictionary_limit", limit, tags)
        yield Sample("dictionary_keys", keys, tags)


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
