"""No schedule of resizes, killed workers and resumptions changes a batch of the elastic loader.

python benchmarks/torchloader/exactness.py                                         10,000 schedules
dragon --nodes 3 benchmarks/torchloader/exactness.py --schedules 500 --iterable    the same, with workers on any node
dragon --nodes 4 benchmarks/torchloader/exactness.py --schedules 20 --lose-nodes   and nodes are lost, three in each run
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

sys.modules["torch"] = None  # type: ignore[assignment]  # nothing here needs it, and every worker would import it

import numpy as np

from dragon.infrastructure.errors import NodeLostError, ProcessError
from dragon.native.machine import System
from dragon.runtime.run import this_run
from torchloader import ElasticDataLoader
from torchloader.loader.forks import Fork
from torchloader.streaming import shard

DEEDS = "resize", "resize", "kill", "resume"


class Noisy:
    """Samples that show the random state in which they were made."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, random.random(), float(np.random.rand())


class NoisyStream:
    """The same samples as an iterable-style dataset, of which each stream has a part."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[tuple[int, float, float]]:
        for index in shard(range(self.length)):
            yield index, random.random(), float(np.random.rand())


def exactness(schedules: int, seed: int, is_iterable: bool, loses_nodes: bool) -> None:
    """Compare one epoch for each schedule of up to five resizes, kills, resumptions and, with `loses_nodes`, losses of
    nodes with an undisturbed epoch.
    """
    dataset: Any = NoisyStream(80) if is_iterable else Noisy(80)
    options: dict[str, Any] = {"batch_size": 4, "seed": 1, "collate_fn": list}
    options |= {"streams": 3} if is_iterable else {"shuffle": True}
    expected = list(ElasticDataLoader(dataset, **options))
    nodes = [policy.host_name for policy in System().hostname_policies()]
    agents = agents_of_others(nodes) if loses_nodes else {}
    deeds = [*DEEDS, "lose"] if agents else DEEDS
    placed: dict[str, Any] = {"multiprocessing_context": "fork"} if len(nodes) == 1 else {"workers_on": nodes[1:]}
    dice, start, done = random.Random(seed), time.perf_counter(), Counter[str]()
    with ElasticDataLoader(dataset, num_workers=2, persistent_workers=True, **placed, **options) as loader:
        for number in range(1, schedules + 1):
            loader.set_epoch(0)
            at = {dice.randrange(20): dice.choice(deeds) for _ in range(dice.randrange(6))}
            batches, given = iter(loader), []
            while (batch := next(batches, None)) is not None:
                given.append(batch)
                deed = at.get(len(given) - 1)
                if deed == "resize":
                    moved = dice.sample(nodes, dice.randint(1, len(nodes)))
                    loader.resize(dice.randrange(5), **({} if len(nodes) == 1 else {"workers_on": moved}))
                elif deed == "resume":
                    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
                    batches = iter(loader)
                if deed == "lose":
                    done[deed] += lose_one(agents, nodes, dice)
                else:
                    done[deed or ""] += kill_one(loader, dice) if deed == "kill" else 1
            if given != expected:
                sys.exit(f"schedule {number} of seed {seed} changed a batch: {at}")
            if number % 500 == 0 or number == schedules:
                print(
                    f"{number} schedules on {len(nodes)} nodes, {done['resize']} resizes, {done['kill']} kills, "
                    f"{done['resume']} resumptions, {done['lose']} nodes lost: every batch as it was "
                    f"({time.perf_counter() - start:.0f} s)",
                    flush=True,
                )


def agents_of_others(nodes: list[str]) -> dict[str, int]:
    """Return the process ids of the agents of this run, but for the trainer's node, by the name of the node."""
    told = subprocess.run([sys.executable, "-m", "dragon", "ps", "--json"], check=True, capture_output=True)
    mine = this_run().agent.pid
    (agents,) = (
        {node["node"]: node["agent"] for node in run["nodes"]}
        for run in json.loads(told.stdout)
        if any(node["agent"] == mine for node in run["nodes"])
    )
    return {nodes[node]: agent for node, agent in agents.items() if agent != mine}


def lose_one(agents: dict[str, int], nodes: list[str], dice: random.Random) -> int:
    """Kill the agent of a node, with which the node is lost. Returns the number of lost nodes."""
    if not agents:
        return 0
    lost = dice.choice(sorted(agents))
    os.kill(agents.pop(lost), signal.SIGKILL)
    nodes.remove(lost)
    return 1


def kill_one(loader: ElasticDataLoader, dice: random.Random) -> int:
    """Kill a worker that is ready, with SIGKILL. Returns the number of killed workers."""
    ready = [worker.process for worker in list(loader._crew._workers.values()) if worker.ready and worker.process]
    if not ready:
        return 0
    process = dice.choice(ready)
    try:
        if isinstance(process, Fork):
            os.kill(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except (ProcessLookupError, ProcessError, NodeLostError):  # an earlier kill or loss has not been noticed yet
        return 0
    return 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="of the schedules (default: 1)")
    parser.add_argument("--iterable", action="store_true", help="an iterable-style dataset, of three streams")
    parser.add_argument("--lose-nodes", action="store_true", help="kill agents too, of a run of several nodes")
    arguments = parser.parse_args()
    exactness(arguments.schedules, arguments.seed, arguments.iterable, arguments.lose_nodes)
