"""The report of an agent on itself, with what each process waits for, for tools that show what the run waits for."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from dragon import _core
from dragon.agent.clients import Asked
from dragon.agent.services import Services
from dragon.agent.telemetry.seen import head_of
from dragon.infrastructure.facts import FIRST_PUID
from dragon.infrastructure.waits import NodeWaits, Waited, Waiter
from dragon.runtime.inspection import GroupState, Pending, Report, Task
from dragon.runtime.protocol.request import tag_of
from dragon.runtime.waits import Names, describe, describe_asked, describe_parked

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


def report(services: Services, zygote: int, asking: Iterable[Asked]) -> Report:
    """Return the processes and groups of this node, and the pending work of the agent. `asking` are requests without an
    answer."""
    now, peers, wire = services.loop.time(), services.peers, services.desk.wire
    return Report(
        zygote=zygote,
        processes=[(known.puid, known.pid, known.name, known.record[0]) for known in services.registry.living()],
        groups=[
            GroupState(group.name, len(group.members), group.live, group.failure, group.words._name()[0])
            for group in services.groups.all()
        ],
        starting=services.spawner.unanswered,
        untaken=services.spawner.waiting,
        asked=[
            *(
                Pending(str(one.pid), now - one.since, tag_of(type(one.request)), node=services.run.node)
                for one in asking
            ),
            *(
                Pending(str(pid), seconds, f"{what} of an object {_where(node, services)}", node=node)
                for pid, node, what, seconds in (wire.pending() if wire is not None else ())
            ),
        ],
        parked=[
            Pending(f"node {node} process {pid}", seconds, what, offset, node, pid, holder, _core.place_of(offset))
            for node, pid, what, offset, seconds, holder in (wire.parked() if wire is not None else ())
            if node != services.run.node
        ],
        lost=dict(peers.lost) if peers is not None else {},
        tasks=[_task(task) for task in asyncio.all_tasks(services.loop)],
    )


def _where(node: int, services: Services) -> str:
    if services.peers is None or node == services.run.node:
        return "of this node"
    return f"on node {node} ({services.peers.host(node)})"


def _task(task: asyncio.Task[Any]) -> Task:
    # The innermost of the coroutines that await each other has the line at which the task waits.
    inner: Any = task.get_coro()
    name, where = "", ""
    while getattr(inner, "cr_frame", None) is not None:
        name, where = inner.__qualname__, f"{inner.cr_frame.f_code.co_filename}:{inner.cr_frame.f_lineno}"
        inner = inner.cr_await
    return Task(name, where)
