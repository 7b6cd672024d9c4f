"""What the control plane costs at each place in runs of several sizes: counted, so that no other load matters.

PYTHONPATH=.:tests python -m simulation.growth [NODES ...]
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable
from types import FrameType
from typing import Any

from dragon.infrastructure.messages import Spawn
from dragon.launcher.frontend import Options
from dragon.runtime.protocol.groups import CreateGroup, GroupSettings, StartGroup
from dragon.runtime.protocol.objects import CreateNamedObject
from dragon.runtime.protocol.request import Caller
from simulation.cluster import Simulation
from simulation.runs import Everywhere, Handlers, Work, start, until

Costs = dict[str, dict[str, dict[str, int]]]  # by operation, place and what is counted


class Meter:
    """Counts pieces and bytes on the network, and calls of Python functions, of each operation of a simulated run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._calls: Counter[str] = Counter()
        self.costs: Costs = {}

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._calls[self._simulation.loop.running.name] += 1

    async def measure(self, operation: str, work: Awaitable[object], idle: float = 1.0) -> None:
        """Count until `work` is done and so many simulated seconds have passed."""
        hosts = self._simulation.network.hosts.values()
        for host in hosts:
            host.pieces = host.bytes = 0
        self._calls.clear()
        sys.setprofile(self._note)
        try:
            await work
            await asyncio.sleep(idle)
        finally:
            sys.setprofile(None)
        counts = {
            host.name: {"pieces": host.pieces, "bytes": host.bytes, "calls": self._calls[host.name]} for host in hosts
        }
        front = counts.pop("front")
        busiest = {what: max(each[what] for each in counts.values()) for what in front}
        middle = {what: sorted(each[what] for each in counts.values())[len(counts) // 2] for what in front}
        self.costs[operation] = {"front end": front, "busiest node": busiest, "median node": middle}


async def _operations(simulation: Simulation, meter: Meter) -> None:
    await meter.measure("start", start(simulation))
    for node in simulation.nodes:
        node.cluster._services.table.serve(Handlers(Work(simulation), node))
    first, last = simulation.nodes[0].cluster, simulation.nodes[-1]
    caller = Caller(0)

    def do(request: Any) -> Awaitable[object]:
        return first.do(request, caller)  # type: ignore[return-value]

    await do(Everywhere())  # connects the first node with all others
    await meter.measure("ask all", do(Everywhere()))
    settings = GroupSettings(name="", restart=False, ignore_error_on_exit=False, walltime=None)
    places = [(1, 0, index, [], {}) for index in range(len(simulation.nodes))]
    made: Any = do(CreateGroup(settings, [Spawn(executable="sleep", arguments=["20", "0", ""])], places))
    await meter.measure("start a group", do(StartGroup(made.number)))
    await meter.measure("end a group", asyncio.sleep(20))
    thing = CreateNamedObject("thing", "", last.index, b"", [])
    named: Any = last.cluster.do(thing, Caller(last.index))
    await meter.measure("name an object", named)
    last.kill()
    await meter.measure("lose a node", asyncio.sleep(10))
    for node in simulation.nodes:
        for pid in node.zygote.heads():
            node.zygote.exit(pid, 0)
    over = until(lambda: simulation.front.dead and not any(node.lives for node in simulation.nodes), 60)
    await meter.measure("end", over)
    assert not any(node.lives for node in simulation.nodes)


def measured(count: int) -> Costs:
    """Return what each operation costs in a run of so many nodes."""
    simulation = Simulation(1, count, Options(resilient=True))
    simulation.network.latency = 0.0002
    meter = Meter(simulation)
    simulation.run(lambda simulation: _operations(simulation, meter))
    assert not simulation.failures
    return meter.costs


def main(sizes: list[int]) -> None:
    """Print a table: at each place, of each operation, the pieces, bytes and calls of Python functions."""
    every = {size: measured(size) for size in sizes}
    print("| operation | place |", *(f"{size:,} nodes: pieces, bytes, calls |" for size in sizes))
    print("|---|---|" + "---|" * len(sizes))
    for operation, places in every[sizes[0]].items():
        for place in places:
            cells = (", ".join(f"{n:,}" for n in every[size][operation][place].values()) for size in sizes)
            print("|", operation, "|", place, "|", *(f"{cell} |" for cell in cells))


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [32, 128, 1024])
