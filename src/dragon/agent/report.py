"""What an agent says of itself when somebody asks what the run waits for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dragon.runtime.inspection import GroupState, Pending, Report, Task

if TYPE_CHECKING:
    from dragon.agent.clients import Client
    from dragon.agent.server import Agent

__all__ = ["report"]


def report(agent: Agent) -> Report:
    """The processes and groups of this node, and what the agent itself has not done yet."""
    now = agent.loop.time()
    cluster = agent.cluster
    return Report(
        zygote=agent.zygote,
        processes=[(known.puid, known.pid, known.name, known.record[0]) for known in agent.registry.living()],
        groups=[
            GroupState(group.name, len(group.members), group.live, group.failure, group.words._name()[0])
            for group in agent.groups.all()
        ],
        starting=agent.spawner.unanswered,
        untaken=agent.spawner.waiting,
        asked=[
            Pending(str(client.pid), now - client.since, _request(client, agent)) for client in agent.clients.pending
        ],
        parked=[
            Pending(f"node {node} process {pid}", now - since, what, offset)
            for (node, pid), what, offset, since in (cluster.guests.waiting() if cluster is not None else ())
        ],
        lost=dict(cluster.lost) if cluster is not None else {},
        tasks=[_task(task) for task in asyncio.all_tasks(agent.loop)],
    )


def _request(client: Client, agent: Agent) -> str:
    assert client.request is not None
    operation, arguments = client.request.operation, client.request.arguments
    if operation == "remote.operate" and agent.cluster is not None:
        node = arguments["name"][2] >> 8
        return f"{arguments['kind']}.{arguments['method']} of an object on node {node} ({agent.cluster.host(node)})"
    return operation


def _task(task: asyncio.Task[Any]) -> Task:
    # The line that it waits at is in the innermost of the coroutines that wait for each other.
    inner: Any = task.get_coro()
    name, where = "", ""
    while getattr(inner, "cr_frame", None) is not None:
        name, where = inner.__qualname__, f"{inner.cr_frame.f_code.co_filename}:{inner.cr_frame.f_lineno}"
        inner = inner.cr_await
    return Task(name, where)
