"""Policies beside each other on jobs that really train: throughput of all jobs, each against what it does alone.

    python benchmarks/torchloader/live.py mix       four jobs on five devices; the storage of one of them is slow
    python benchmarks/torchloader/live.py jpeg      real decoding of JPEGs, for which two cores do not suffice
    python benchmarks/torchloader/live.py seed      resnet-10, vgg-11 and googlenet-1, computed on the CPU
    python benchmarks/torchloader/live.py gpu       four jobs share one GPU; the storage of one of them is slow
    python benchmarks/torchloader/live.py busy      three jobs compute on one GPU all the time, one of them loads slowly

Each policy runs in turn, then each again (--repeats). A run is looked at for --seconds from the moment when all its
jobs train, so that what a policy needs to find out counts, and once more without the first seconds. A job's
normalised throughput is its samples per second against those of its step time on one device: jobs on five devices that
never wait come to 5. Where a step takes what it takes a job is measured against its median with `even`. Given are
medians, and the 95 % interval of the mean by Student's t; gains are paired by repeat.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from torchloader.cli.report import Life, history
from torchloader.scheduling.application import State

SETTLING = 18.0  # seconds: a batch of the slow storage takes 2.6 s, and its pipeline must be filled again
STOPPING = (signal.SIGINT, signal.SIGTERM)
POLICIES = ("proportional", "even", "waa-trim", "waa-fill")
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}  # by number of repeats


@dataclass(frozen=True)
class Mix:
    """Jobs, as name, network, devices and dataset; seconds of a step of `batch` samples per device, 0 for the time that
    it takes; the workers to share; whether all jobs train on the first GPU; further options of the program that trains.
    """

    jobs: tuple[tuple[str, str, int, str], ...]
    step: float
    batch: int
    workers: int
    on_gpu: bool = False
    options: tuple[str, ...] = ()


MIXES = {
    "mix": Mix(
        jobs=(
            ("light-1", "resnet-10", 1, "latency:0.012"),
            ("light-2", "resnet-10", 1, "latency:0.012"),
            ("light-3", "resnet-10", 1, "latency:0.012"),
            ("heavy", "resnet-10", 2, "latency:0.33"),
        ),
        step=0.5,
        batch=8,
        workers=16,
    ),
    "seed": Mix(
        jobs=tuple((name, name, 2, "images") for name in ("resnet-10", "vgg-11", "googlenet-1")),
        step=0,
        batch=8,
        workers=12,
    ),
    "gpu": Mix(
        jobs=(
            ("light-1", "resnet-10", 1, "latency:0.012"),
            ("light-2", "resnet-10", 1, "latency:0.012"),
            ("light-3", "resnet-10", 1, "latency:0.012"),
            ("heavy", "resnet-10", 1, "latency:0.33"),
        ),
        step=0.5,
        batch=8,
        workers=10,
        on_gpu=True,
    ),
    "busy": Mix(
        jobs=(
            ("light-1", "resnet-50", 1, "latency:0.004"),
            ("light-2", "resnet-50", 1, "latency:0.004"),
            ("heavy", "resnet-50", 1, "latency:0.05"),
        ),
        step=0,
        batch=64,
        workers=24,
        on_gpu=True,
        options=("--image-size", "64"),
    ),
}


def workload(mix: Mix, folder: Path) -> Path:
    """Write the mix as a job file, with more iterations than a run waits for."""
    text = "".join(
        f'[[jobs]]\nname = "{name}"\narch = "{network.partition("-")[0]}"\ndepth = {network.partition("-")[2]}\n'
        f'dataset = "{dataset}"\n'
        f"devices = {'[[0]]' if mix.on_gpu else devices}\nbatch = {mix.batch * devices}\nport = {29600 + place}\n"
        f"workers = {mix.workers // len(mix.jobs)}\nepochs = 1000000\n"
        f'output_folder = "{folder}/out"\n\n'
        for place, (name, network, devices, dataset) in enumerate(mix.jobs)
    )
    path = folder / "jobs.toml"
    path.write_text(text)
    return path


def measured(mix: Mix, policy: str, seconds: float) -> dict[str, dict[str, float]]:
    """Return the normalised throughput of each job, that is the number of devices it kept busy: over the whole time,
    and settled.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        device = "cuda" if mix.on_gpu else "cpu"
        told = ["run", str(workload(mix, folder)), "--device", device, "--cores", str(mix.workers), "--policy", policy]
        step = ["--step-time", str(mix.step)] if mix.step else []
        options = ["--folder", str(folder / "run"), "--", *step, "--samples", "100000", *mix.options]
        run = subprocess.Popen(
            [sys.executable, "-m", "torchloader", *told, *options],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            start = await_all(folder / "run", len(mix.jobs), run)
            time.sleep(seconds + 2)
        finally:
            run.terminate()
            run.wait()
        lives = history(folder / "run").lives
        return {
            what: {name: devices_busy(life, mix.step, start + skip, start + seconds) for name, life in lives.items()}
            for what, skip in (("whole", 0.0), ("settled", SETTLING))
        }


def devices_busy(life: Life, step: float, start: float, end: float) -> float:
    """Return the number of busy devices of a job between two times; without a step time, a number proportional to
    it.
    """
    window = [each for each in life.pace if start <= each.time <= end]
    first, last = window[0], window[-1]
    return (last.iteration - first.iteration) / (last.time - first.time) * (step or 1) * life.devices


def await_all(folder: Path, jobs: int, run: subprocess.Popen[bytes]) -> float:
    """Return the time at which all jobs were training, on the clock of the run."""
    while True:
        time.sleep(0.5)
        if run.poll() is not None:
            sys.exit("the run ended")
        if not (folder / "events.jsonl").exists():
            continue
        lives = history(folder).lives
        begun = [span.start for life in lives.values() for span in life.spans if span.state is State.RUNNING]
        running = {name for name, life in lives.items() if any(span.state is State.RUNNING for span in life.spans)}
        if len(running) == jobs:
            return max(begun)


def interval(values: list[float]) -> str:
    """Return the median, and the 95 % interval of the mean."""
    mean, half = statistics.mean(values), 0.0
    if len(values) > 1:
        half = T95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.median(values):6.3f}  ({mean - half:.3f} to {mean + half:.3f})"


def stop(signum: int, frame: FrameType | None) -> NoReturn:
    """End the process, and with it the run and its folders; further signals meanwhile do not prevent that."""
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + signum)


def main() -> None:
    """Run the benchmark, and print the table."""
    for each in STOPPING:
        signal.signal(each, stop)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mix", choices=[*MIXES, "jpeg"], help="what the jobs are; gpu and busy need a GPU")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--out", metavar="FILE", help="write all figures as JSON")
    arguments = parser.parse_args()
    if arguments.mix in ("seed", "busy") and "even" not in arguments.policies:
        parser.error(f"the jobs of {arguments.mix} are measured against what they do with the policy even")
    with tempfile.TemporaryDirectory() as scratch:
        mix = MIXES[arguments.mix] if arguments.mix in MIXES else jpeg_mix(Path(scratch))
        runs: dict[str, list[dict[str, dict[str, float]]]] = {policy: [] for policy in arguments.policies}
        for repeat in range(arguments.repeats):
            for policy in arguments.policies:
                found = measured(mix, policy, arguments.seconds)
                runs[policy].append(found)
                told = ", ".join(f"{name} {value:.2f}" for name, value in found["settled"].items())
                whole = sum(found["whole"].values())
                print(f"{repeat + 1}: {policy:<14} {whole:.3f}, settled {told}", file=sys.stderr, flush=True)
    print(f"{mix.workers} workers, {arguments.repeats} repeats of {arguments.seconds:.0f} s")
    for what, title in (("whole", "from the first second"), ("settled", f"after {SETTLING:.0f} s")):
        print(f"{title:<22} {'devices busy':<28} gain over even")
        usual = {name: 1.0 for name, *_ in mix.jobs}
        if not mix.step:
            usual = {name: statistics.median(each[what][name] for each in runs["even"]) for name in usual}
        totals = {
            policy: [sum(value / usual[name] for name, value in each[what].items()) for each in found]
            for policy, found in runs.items()
        }
        for policy, values in totals.items():
            gains = [mine / even - 1 for mine, even in zip(values, totals.get("even", values), strict=True)]
            print(f"{policy:<22} {interval(values):<28} {interval(gains)}")
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(runs, indent=1))


def jpeg_mix(folder: Path) -> Mix:
    """Make two jobs with large JPEGs and two with small ones: decoding needs more than two cores."""
    from jpegs import make_jpegs

    for name, size in (("large", 2560), ("small", 48)):
        make_jpegs(folder / name, 64, size)
    names = [f"{name}-{number}" for name in ("small", "large") for number in (1, 2)]
    jobs = tuple((name, "resnet-10", 1, f"jpeg:{folder / name.partition('-')[0]}") for name in names)
    return Mix(jobs=jobs, step=0.3, batch=8, workers=12)


if __name__ == "__main__":
    main()
