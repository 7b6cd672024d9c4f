"""Faults that seeds have found, each as a scenario of its own, and what no seed draws."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import pytest

from dragon.agent.groups import Group
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Spawn
from dragon.infrastructure.start_request import RECORD_WORDS
from dragon.launcher.frontend import Options
from dragon.runtime.handle import Words
from dragon.runtime.protocol.groups import CreateGroup, GroupSettings, StartGroup
from dragon.runtime.protocol.request import Caller
from dragon.runtime.protocol.run import StartElsewhere
from simulation.cluster import Node, Simulation
from simulation.loop import Process
from simulation.network import Network, Socket
from simulation.runs import start, until


def scenario(steps: Callable[[Simulation], Awaitable[None]]) -> None:
    """Run a simulation of three nodes, on which `steps` are done once it has started."""

    async def work(simulation: Simulation) -> None:
        assert await start(simulation)
        await steps(simulation)

    simulation = Simulation(1, 3, Options())
    simulation.run(work)
    assert simulation.failures == []


async def make_group(node: Node, on: int, seconds: float, **settings: Any) -> Group:
    """Return a group of one process on another node, which is being started."""
    chosen: dict[str, Any] = {"name": "", "restart": False, "ignore_error_on_exit": False, "walltime": None}
    template = Spawn(executable="sleep", arguments=[str(seconds), "3", ""])
    request = CreateGroup(GroupSettings(**{**chosen, **settings}), [template], [(1, 0, on, [], {})])

    async def make() -> Group:
        made: Any = node.cluster.do(request, Caller(node.index))
        node.cluster.do(StartGroup(made.number), Caller(node.index))
        group = node.cluster._services.groups.find(made.number)
        while not group.live:
            await asyncio.sleep(0)
        return group

    group: Group = await node.process.main.task(make())
    return group


def test_the_walltime_ends_a_group_whose_members_are_about_to_be_restarted() -> None:
    async def steps(simulation: Simulation) -> None:
        group = await make_group(simulation.nodes[0], 1, 0.0, restart=True, walltime=10.5)
        assert not await until(lambda: not group.live, 10.0)  # it ends at once, and is started once a second
        assert await until(lambda: not group.live, 3.0)

    scenario(steps)


def test_processes_whose_start_was_not_acknowledged_do_not_stay() -> None:
    async def steps(simulation: Simulation) -> None:
        first, other = simulation.nodes[:2]
        group = await make_group(first, 1, 0.1)
        assert await until(lambda: not group.live, 5.0)  # the nodes are connected
        simulation.network.cut(other.host, first.host)  # so the answer does not arrive
        group = await make_group(first, 1, 1000)
        assert await until(lambda: bool(other.zygote.living), 3.0)
        assert await until(lambda: not group.live, 20.0)
        assert "connection to node 1 (node-1) broke" in group.failure
        simulation.network.mend(other.host, first.host)
        assert await until(lambda: not other.zygote.living, 20.0)

    scenario(steps)


def test_a_process_whose_start_was_not_acknowledged_does_not_stay() -> None:
    async def steps(simulation: Simulation) -> None:
        first, other = simulation.nodes[:2]
        group = await make_group(first, 1, 0.1)
        assert await until(lambda: not group.live, 5.0)
        simulation.network.cut(other.host, first.host)
        record = Words(RECORD_WORDS)
        (head,) = (spawn.puid for spawn in first.zygote.living.values())
        arguments = {"arguments": ["1000", "0", ""], "node": 1, "record": record._name(), "parent": head}
        starting: Any = first.cluster.do(StartElsewhere(Spawn(executable="sleep", **arguments)), Caller(0))
        assert await until(lambda: bool(other.zygote.living), 3.0)
        with pytest.raises(NodeLostError):
            await starting
        simulation.network.mend(other.host, first.host)
        assert await until(lambda: not other.zygote.living, 20.0)

    scenario(steps)


def test_a_replayed_greeting_is_refused() -> None:
    said: list[bytes] = []
    send = Network.send

    def record(network: Network, end: Socket, piece: Any) -> None:
        assert end.peer is not None
        if end.host.name == "node-1" and end.peer.host.name == "front":
            said.append(piece)
        send(network, end, piece)

    async def steps(simulation: Simulation) -> None:
        stranger = Process(simulation.loop, "stranger")
        end = Socket(simulation.network, simulation.network.host("stranger", "10.0.3.1"), stranger)
        await simulation.network.connect(end, "10.0.1.1", 9000)
        hello, join = said[:2]
        await simulation.loop.sock_sendall(end, hello)
        heard = [await simulation.loop.sock_recv(end, 1) for _ in range(2)]
        assert b"Challenge" in heard[1]
        await simulation.loop.sock_sendall(end, join)
        assert await until(end.is_readable, 10.0)
        assert end.is_at_end or end.error is not None
        await asyncio.sleep(20)
        assert simulation.front_end is not None
        assert list(simulation.front_end.alive) == [0, 1, 2]
        assert any("did not know the secret of this run" in event for event in simulation.trace)

    with mock.patch.object(Network, "send", record):
        scenario(steps)
