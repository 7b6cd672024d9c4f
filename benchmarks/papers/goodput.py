"""Fit the profiles of Pollux's applications to the measurements that its authors published.

    PYTHONPATH=benchmarks/papers python benchmarks/papers/goodput.py tests/torchloader/traces/pollux

The folder has a folder for each application, as `simulator/traces` of petuum/adaptdl: `placements.csv` or
`scalability.csv` with the seconds of iterations, and `validation-BATCH.csv` with the statistics of gradients. The
parameters are those that make the squared logarithmic error of the seconds of all iterations smallest, as in section
4.1 of Pollux (OSDI 2021). The noise scale of a stage is the geometric mean over its rows.

Each line printed is JSON: the parameters of an application, as in `torchloader_papers.traces`, and the root
mean square of the relative error.
"""

import csv
import json
import math
import sys
from pathlib import Path

from scipy.optimize import least_squares

# Of each: the initial batch, the file with the statistics of gradients, and the largest number of stages.
APPLICATIONS = {
    "cifar10": (128, "validation-1024.csv"),
    "deepspeech2": (20, "validation-160.csv"),
    "bert": (12, "validation-96.csv"),
    "yolov3": (8, "validation-32.csv"),
    "imagenet": (200, "validation-800.csv"),
    "ncf": (256, "validation-16384.csv"),
}
# How often each row of a file counts. What tests/torchloader/traces/README.md says was derived is three rows for the
# sizes with which ImageNet is trained, beside eighty for smaller ones.
FILES = {"placements.csv": 1, "scalability.csv": 1, "derived.csv": 16}
STAGES = 24
LOCAL = 0.3  # of the seconds over several nodes, to synchronize on one: the mean of the others, with four devices


def rows(path):
    """Yield the nodes, the devices, the samples of a device and the seconds of each measurement."""
    with path.open() as file:
        for row in csv.DictReader(file):
            if "placement" in row:
                nodes, devices = len(row["placement"]), sum(map(int, row["placement"]))
            else:
                nodes, devices = int(row["num_nodes"]), int(row["num_replicas"])
            yield nodes, devices, float(row["local_bsz"]), float(row["step_time"])
            if "placement" not in row and "sync_time" in row:  # one device was not measured: without synchronization
                yield 1, 1, float(row["local_bsz"]), float(row["step_time"]) - float(row["sync_time"])


def iteration(parameters, nodes, devices, batch):
    """Return the seconds of an iteration, as `torchloader_papers.goodput` without accumulation."""
    constant, each, local, local_each, spread, spread_each, overlap = parameters
    gradient = constant + each * batch
    if devices == 1:
        return gradient
    wait = local + local_each * (devices - 2) if nodes == 1 else spread + spread_each * (devices - 2)
    return (gradient**overlap + wait**overlap) ** (1 / overlap)


def fitted(measured):
    """Return the parameters, and the relative error."""

    def errors(parameters):
        return [math.log(iteration(parameters, *row[:3]) / row[3]) for row in measured]

    shortest = min(row[3] for row in measured)
    start = [shortest / 2, shortest / 2 / measured[0][2], 0.01, 0.01, 0.1, 0.01, 2.0]
    found = least_squares(errors, start, bounds=([1e-6] * 6 + [1.0], [10.0] * 6 + [10.0]), xtol=1e-12, ftol=1e-12)
    return list(found.x), math.sqrt(sum(error * error for error in found.fun) / len(measured))


def stages(path, initial):
    """Return the ends of stages and the noise scale in each."""
    with path.open() as file:
        table = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    step = max(1, math.ceil(len(table) / STAGES))
    found = []
    for first in range(0, len(table), step):
        part = table[first : first + step]
        noise = initial * math.exp(sum(math.log(row["grad_var"] / row["grad_sqr"]) for row in part) / len(part))
        found.append((round(part[-1]["progress"]), float(f"{noise:.3g}")))
    return found


def main():
    folder = Path(sys.argv[1])
    for name, (initial, validation) in APPLICATIONS.items():
        told = {"application": name}
        paths = [folder / name / file for file in FILES]
        measured = [row for path in paths if path.exists() for row in FILES[path.name] * list(rows(path))]
        if measured:
            parameters, error = fitted(measured)
            if not any(row[0] == 1 and row[1] > 1 for row in measured):  # several devices on a node were not measured
                parameters[2:4] = [LOCAL * each for each in parameters[4:6]]
            told["parameters"] = [float(f"{each:.3g}") for each in parameters]
            told["relative error"] = round(error, 3)
        print(json.dumps({**told, "stages": stages(folder / name / validation, initial)}))


if __name__ == "__main__":
    main()
