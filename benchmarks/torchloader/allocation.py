"""Measure how long it takes to share cores among jobs.

    python benchmarks/torchloader/allocation.py

Each line printed is JSON: {"name": ..., "value": ..., "unit": ..., "better": "lower"}. Times are the best of several.
The tests compare the result with exact solutions.
"""

import json
import math
import random
import time

from torchloader.allocation.catalogue import policy
from torchloader.allocation.problem import Demand
from torchloader.prediction.curve import Curve

JOBS, CORES, TIMES = 1000, 10_000, 9
SETTINGS = {
    "one node, one device each": (1, [1], 0.0),
    "100 nodes, one device each": (100, [1], 0.0),
    "100 nodes, 1 to 4 devices": (100, [1, 2, 4], 0.0),
    "100 nodes, 1 to 4 devices on up to 4 nodes": (100, [1, 2, 4], 0.2),
}


def problem(nodes, steps, spread):
    chance = random.Random(1)
    names = [f"node{number:03}" for number in range(nodes)]
    demands = []
    for number in range(JOBS):
        where = chance.sample(names, chance.choice([2, 4]) if nodes > 1 and chance.random() < spread else 1)
        ceiling = chance.uniform(50, 2000)
        curve = Curve(ceiling, chance.uniform(2, 30) / ceiling, 0.2 * chance.random() / ceiling)
        demands.append(Demand(f"job{number:04}", dict.fromkeys(where, chance.choice(steps)), curve))
    return demands, dict.fromkeys(names, CORES // nodes)


def say(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit, "better": "lower"}), flush=True)


def main():
    for setting, arguments in SETTINGS.items():
        demands, cores = problem(*arguments)
        for name in ("proportional", "waa-fill", "even"):
            share, best = policy(name), math.inf
            for _ in range(TIMES):
                start = time.perf_counter()
                share(demands, cores)
                best = min(best, time.perf_counter() - start)
            say(f"{name}: {JOBS} jobs, {CORES} cores, {setting}", round(best * 1e3, 1), "ms")


if __name__ == "__main__":
    main()
