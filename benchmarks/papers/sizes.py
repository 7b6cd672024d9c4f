"""Compare the sizes that are chosen for jobs with the best of all placements, and measure how long choosing takes.

    PYTHONPATH=benchmarks/papers python benchmarks/papers/sizes.py

Each line printed is JSON: {"name": ..., "value": ..., "unit": ..., "better": "lower"}. The problems are random: one to
three of Pollux's applications, at any progress, on two nodes of four devices. A placement gives each job any devices of
both nodes, but at most one job has devices of both.
"""

import itertools
import json
import math
import random
import time
from dataclasses import replace

from torchloader_papers.resizing import planned
from torchloader_papers.sizes import SIZES, Option
from torchloader_papers.traces import PROFILES

from torchloader.scheduling.application import Application, Spec

PROBLEMS = 300
NODES = {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3)}
MANY = {f"node{number}": (0, 1, 2, 3) for number in range(16)}


def placements(jobs):
    each = list(itertools.product(range(5), repeat=2))
    for chosen in itertools.product(each, repeat=jobs):
        if all(sum(on) <= 4 for on in zip(*chosen, strict=True)) and sum(a > 0 and b > 0 for a, b in chosen) <= 1:
            yield chosen


def problem(chance, jobs):
    found = {}
    for number in range(jobs):
        profile = PROFILES[chance.choice(sorted(PROFILES))]
        profile = replace(profile, fixed=profile.largest)
        spec = Spec(f"job{number}", "", 1, profile.initial, math.ceil(profile.length), profile=profile)
        progress = chance.uniform(0, 0.95) * profile.length
        found[spec.name] = Application(spec, progress=progress, most=chance.choice((1, 2, 4)))
    return found


def excess(sizing, applications):
    """Return by which part the costs of the chosen sizes exceed those of the best placement."""
    share = Option(8 // len(applications), False, False)
    limits = {name: min(each.spec.profile.most, sizing.limit(each)) for name, each in applications.items()}

    def cost(chosen):
        """Return the sum of costs; `chosen` has the numbers of devices on each node."""
        total = 0.0
        for (name, each), on in zip(applications.items(), chosen, strict=True):
            if sum(on) > limits[name]:
                return math.inf
            option = Option(sum(on), min(on) > 0, False)
            total += sizing.cost(0.0, each, each.spec.profile, option, share) if sum(on) else sizing.unserved
        return total

    plan = planned(0.0, applications, NODES, sizing)
    ours = [tuple(len(plan.get(name, {}).get(node, ())) for node in NODES) for name in applications]
    return cost(ours) / min(map(cost, placements(len(applications)))) - 1


def say(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit, "better": "lower"}), flush=True)


def main():
    for name in ("pollux", "optimus"):  # by sia, waiting jobs get one device at first
        chance, sizing = random.Random(1), SIZES[name](30.0)
        found = [100 * excess(sizing, problem(chance, chance.randint(1, 3))) for _ in range(PROBLEMS)]
        say(f"{name}: costs above the best placement, mean", round(sum(found) / len(found), 1), "%")
        say(f"{name}: costs above the best placement, largest", round(max(found), 1), "%")
        jobs = problem(random.Random(2), 60)
        planned(0.0, jobs, MANY, sizing)  # so that goodputs are known
        start = time.perf_counter()
        planned(0.0, jobs, MANY, sizing)
        say(f"{name}: 60 jobs on 64 devices", round((time.perf_counter() - start) * 1e3, 1), "ms")


if __name__ == "__main__":
    main()
