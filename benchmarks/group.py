"""A group of Python functions on one node and over four simulated ones, by turns.

    python benchmarks/group.py [--size 200] [--goes 5] [--nodes 4]

Two rates: until the last member is in its function, all others still being there, and, for members that return at
once, until the last one has ended and the group knows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup

STAY = 1.2  # seconds, more than it takes to start all members


def arrive(path: str) -> None:
    """Record the time in one write, and stay until all other members have begun."""
    with open(path, "ab", buffering=0) as file:
        file.write(b"%.6f\n" % time.monotonic())
    time.sleep(STAY)


def nothing() -> None:
    """Return at once."""


def run(size: int, template: ProcessTemplate) -> float:
    """Run a group; return the time at which it was started."""
    group = ProcessGroup()
    group.add_process(size, template)
    group.init()
    began = time.monotonic()
    group.start()
    group.join()
    group.close()
    return began


def starting(size: int) -> float:
    """Return the members per second until all have begun."""
    with tempfile.NamedTemporaryFile() as file:
        began = run(size, ProcessTemplate(arrive, (file.name,)))
        arrivals = [float(line) for line in file.read().splitlines()]
    if len(arrivals) != size or max(arrivals) > min(arrivals) + STAY:
        raise SystemExit(f"of {size} members only some were there at once: this machine is too busy to measure that")
    return size / (max(arrivals) - began)


def ending(size: int) -> float:
    """Return the members per second from the start until all have ended."""
    began = run(size, ProcessTemplate(nothing))
    return size / (time.monotonic() - began)


def measure(size: int) -> None:
    """Return the medians of both rates, after one warm-up run; a head process prints this."""
    for rate in (starting, ending):
        rate(size)
        print(statistics.median(rate(size) for _ in range(5)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=200, help="members of the group")
    parser.add_argument("--goes", type=int, default=5, help="turns of each, of which the middle one is printed")
    parser.add_argument("--nodes", type=int, default=4, help="simulated nodes")
    arguments = parser.parse_args()
    sides: dict[str, list[str]] = {"one node": [], f"{arguments.nodes} nodes": ["--nodes", str(arguments.nodes)]}
    rates: dict[str, list[list[float]]] = {side: [] for side in sides}
    for _ in range(arguments.goes):
        for side, options in sides.items():
            command = [sys.executable, "-m", "dragon", *options, __file__]
            done = subprocess.run(
                command, env={**os.environ, "GROUP_SIZE": str(arguments.size)}, stdout=subprocess.PIPE, check=True
            )
            rates[side].append([float(line) for line in done.stdout.split()])
    one, several = ([statistics.median(each) for each in zip(*rates[side], strict=True)] for side in sides)
    for what, ours, beside in zip(("until all are there", "until all have ended"), several, one, strict=True):
        print(f"{what}: {ours:.0f}/s on {arguments.nodes} nodes, {beside:.0f}/s on one: {ours / beside:.2f}")


if __name__ == "__main__":
    if "GROUP_SIZE" in os.environ:
        measure(int(os.environ["GROUP_SIZE"]))
    else:
        main()
