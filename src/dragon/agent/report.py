"""The report of an agent on itself, for tools that show what the run waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from dragon.agent.clients import Asked
from dragon.agent.objects.peers import Peers
from dragon.agent.services import Services
from dragon.runtime.inspection import GroupState, Pending, Report, Task
from dragon.runtime.protocol.objects import Operate, WaitHere
from dragon.runtime.protocol.request import tag_of
from dragon.runtime.remote import node_of

__all__ = ["report"]


def report(services: Services, zygote: int, asking: Iterable[Asked]) -> Report:
    """Return the processes and groups of this node, and the pending work of the agent. `asking` are requests without an
    answer."""
    now, peers = services.loop.time(), services.peers
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
            Pending(str(asked.pid), now - asked.since, _request(asked, peers), node=_node_of(asked, services.run.node))
            for asked in asking
        ],
        parked=[
            Pending(f"node {node} process {pid}", now - since, what, offset, node, pid, holder)
            for (node, pid), what, offset, since, holder in (peers.guests.waiting() if peers is not None else ())
        ],
        lost=dict(peers.lost) if peers is not None else {},
        tasks=[_task(task) for task in asyncio.all_tasks(services.loop)],
    )


def _request(asked: Asked, peers: Peers | None) -> str:
    match asked.request:
        case Operate(operation=operation) if peers is not None:
            node = node_of(operation.name)
            return f"{operation.kind}.{operation.method} of an object on node {node} ({peers.host(node)})"
        case WaitHere(operation=operation):
            return f"{operation.kind}.{operation.method} of an object of this node"
    return tag_of(type(asked.request))


def _node_of(asked: Asked, own: int) -> int:
    """Return the node of the object that the request waits for, or this node."""
    return node_of(asked.request.operation.name) if isinstance(asked.request, Operate) else own


def _task(task: asyncio.Task[Any]) -> Task:
    # The innermost of the coroutines that await each other has the line at which the task waits.
    inner: Any = task.get_coro()
    name, where = "", ""
    while getattr(inner, "cr_frame", None) is not None:
        name, where = inner.__qualname__, f"{inner.cr_frame.f_code.co_filename}:{inner.cr_frame.f_lineno}"
        inner = inner.cr_await
    return Task(name, where)
