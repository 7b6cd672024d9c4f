"""Measure the same with several versions of Python, by turns, and print each relative to the first.

    python benchmarks/versions.py [--rounds 7] PYTHON PYTHON...

Each PYTHON is the interpreter of a virtual environment with this project installed. Shown are medians over the rounds.
A program is one that puts a message into a queue and gets it, from its start to its end.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import time

MICRO = pathlib.Path(__file__).with_name("micro.py")
PROGRAM = "from dragon.native import Queue; queue = Queue(); queue.put(1); queue.get()"
PROGRAMS = 5  # of which the median is taken in each round
NAMES = ["queue_round_trip", "start_rate", "pool"]


def version(python):
    command = [python, "-c", "import sys; print(sys.version.split()[0])"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def program(python):
    """Return the milliseconds that a short program takes."""
    took = []
    for _ in range(PROGRAMS):
        start = time.perf_counter()
        subprocess.run([python, "-c", PROGRAM], check=True)
        took.append((time.perf_counter() - start) * 1e3)
    return {"name": "a program", "value": statistics.median(took), "unit": "ms", "better": "lower"}


def measured(python):
    done = subprocess.run([python, "-m", "dragon", MICRO, *NAMES], check=True, capture_output=True, text=True)
    return [program(python), *(json.loads(line) for line in done.stdout.splitlines())]


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rounds", type=int, default=7)
parser.add_argument("pythons", nargs="+", metavar="PYTHON")
args = parser.parse_args()
found, facts = {}, {}
for number in range(args.rounds):
    for python in args.pythons if number % 2 == 0 else args.pythons[::-1]:
        for row in measured(python):
            found.setdefault(row["name"], {}).setdefault(python, []).append(row["value"])
            facts[row["name"]] = row
print(f"{'':32}" + "".join(f"{version(python):>16}" for python in args.pythons))
for name, by_python in found.items():
    first, *_ = medians = [statistics.median(by_python[python]) for python in args.pythons]
    lower = facts[name]["better"] == "lower"
    cells = "".join(f"{value:10.2f}{(value / first if lower else first / value):6.2f}" for value in medians)
    print(f"{name:32}{cells}  {facts[name]['unit']}, and the time relative to the first")
