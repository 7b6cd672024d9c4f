"""Run micro.py on this project, on dragonhpc and on the stdlib, in turn, and print the ratios.

    python benchmarks/side_by_side.py --ours DIR --peer DIR [--rounds 3] [NAME...]

DIR is the bin folder of a virtual environment: one with this project installed, one with dragonhpc and numpy from PyPI.
A ratio over 1 means that this project is ahead of the best of the others by that factor. Medians over the rounds.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess

here = pathlib.Path(__file__).parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--ours", required=True)
parser.add_argument("--peer")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("names", nargs="*")
args = parser.parse_args()


def run(bin_dir, *command):
    env = dict(os.environ, PATH=f"{bin_dir}:{os.environ['PATH']}")
    try:
        done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        print("timed out:", *command)
        return []
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not rows:
        print("nothing measured:", *command, done.stderr[-500:])
    return rows


script = str(here / "micro.py")
sides = {"ours": (args.ours, "dragon", "-s", script), "stdlib": (args.ours, "python", script, "--stdlib")}
if args.peer:
    sides["dragonhpc"] = (args.peer, "dragon", "-s", script)
results, facts = {}, {}
for _ in range(args.rounds):
    for side, (bin_dir, *command) in sides.items():
        for row in run(bin_dir, *command, *args.names):
            results.setdefault(row["name"], {}).setdefault(side, []).append(row["value"])
            facts[row["name"]] = row
print(f"{'':34}" + "".join(f"{side:>14}" for side in sides) + f"{'ratio':>10}  unit")
for name, by_side in results.items():
    median = {side: statistics.median(values) for side, values in by_side.items()}
    others = [v for side, v in median.items() if side != "ours"]
    ratio = ""
    if "ours" in median and others:
        lower = facts[name]["better"] == "lower"
        best = min(others) if lower else max(others)
        ratio = f"{best / median['ours'] if lower else median['ours'] / best:.2f}"
    cells = "".join(f"{median[s]:14.2f}" if s in median else f"{'-':>14}" for s in sides)
    print(f"{name:34}{cells}{ratio:>10}  {facts[name]['unit']}")
