"""Simulate runs of the control plane from seeds, and report what is found; see docs/development.md.

PYTHONPATH=.:tests python -m simulation --seeds 10000
PYTHONPATH=.:tests python -m simulation --seed 4711 --last 200
"""

from __future__ import annotations

import argparse
import sys
import time

from simulation.runs import report, simulate


def main() -> int:
    """Simulate, and return the exit code: 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to simulate (default: 300)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--seed", type=int, help="simulate this one only, and print its trace")
    parser.add_argument("--last", type=int, default=40, help="how many events of a trace are printed (default: 40)")
    given = parser.parse_args()
    if given.seed is not None:
        simulation = simulate(given.seed)
        print("\n".join([*simulation.trace[-given.last :], *report(given.seed, simulation, 0)]))
        return bool(simulation.failures)
    found, begun = 0, time.monotonic()
    for number in range(given.seeds):
        seed = given.first + number
        simulation = simulate(seed)
        if simulation.failures:
            found += 1
            print("\n".join(report(seed, simulation, given.last)), flush=True)
        if number % 1000 == 999:
            print(f"{number + 1} seeds in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    print(f"{given.seeds} seeds, of which {found} found something, in {time.monotonic() - begun:.0f} s")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
