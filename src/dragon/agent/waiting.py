"""What processes of this node wait for, by object, and what processes of other nodes wait for here."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

from dragon import _core
from dragon.agent.clients import Asked
from dragon.agent.report import report
from dragon.agent.services import Services
from dragon.agent.telemetry.seen import head_of
from dragon.infrastructure.facts import FIRST_PUID
from dragon.infrastructure.waits import NodeWaits, Waited, Waiter
from dragon.runtime.waits import Names, describe, describe_asked, describe_parked

__all__ = ["waiting"]

_LEAST_S = 1.0  # seconds; shorter waits are part of any program's work
_MOST_OBJECTS, _MOST_WAITERS = 50, 8


def waiting(services: Services, zygote: int, asking: Iterable[Asked]) -> list[NodeWaits]:
    """Return what has been waited for here for at least a second, longest first. `asking`: requests without an
    answer."""
    said, node, me = report(services, zygote, asking), services.run.node, os.getpid()
    puids = {pid: (puid, name) for puid, pid, name, _ in said.processes}
    head = head_of(services.run.folder)
    if head is not None:
        puids[head.pid] = FIRST_PUID, "head"
    names = Names({pid: name for pid, (_, name) in puids.items()}, said, me)
    noted = [wait for wait in _core.waits() if wait["pid"] != me]
    by_object = defaultdict(list)
    for wait in noted:
        by_object[wait["offset"], wait["kind"], wait["purpose"]].append(wait)

    def waiter(pid: int, seconds: float, at: int = node) -> Waiter:
        puid, name = puids.get(pid, (0, "")) if at == node else (0, "")
        return Waiter(at, pid, puid, name, round(seconds, 1))

    found: dict[tuple[int, str], list[Waiter]] = defaultdict(list)
    for waits in by_object.values():
        longest = max(waits, key=lambda wait: wait["seconds"])
        text = describe(longest, names, {wait["pid"] for wait in waits})
        found[node, text] += [waiter(wait["pid"], wait["seconds"]) for wait in waits]
    for asked in said.asked:
        found[asked.node, describe_asked(asked)].append(waiter(int(asked.who), asked.seconds))
    for parked in said.parked:
        found[node, describe_parked(parked, names)].append(waiter(parked.pid, parked.seconds, parked.node))
    own = [one for waiters in found.values() for one in waiters if one.puid]
    return [
        NodeWaits(
            node,
            services.host_name,
            len({one.pid for one in own}),
            min((one.seconds for one in own), default=0.0),
            _longest(found),
        )
    ]


def _longest(found: dict[tuple[int, str], list[Waiter]]) -> list[Waited]:
    result = []
    for (node, text), waiters in found.items():
        long = sorted((one for one in waiters if one.seconds >= _LEAST_S), key=lambda one: -one.seconds)
        if long:
            result.append(Waited(node, text, len(long), long[:_MOST_WAITERS]))
    return sorted(result, key=lambda waited: -waited.waiters[0].seconds)[:_MOST_OBJECTS]
