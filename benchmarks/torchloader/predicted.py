"""The simulator beside live runs that it was not fitted to.

python benchmarks/torchloader/predicted.py [--runs 5] [--jobs 6] [--cores 10]

Four kinds of jobs are profiled, each alone (`torchloader profile`). Then workloads are drawn by chance, which jobs come
when and how long they train; each is predicted by the simulator from the profiles, and run. Jobs load by sleeping, so
that a machine with few cores can run them. Once measured are the seconds from a launch to the first iteration, and from
there until the scheduler knows the job's curve.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from torchloader.allocation.catalogue import policy
from torchloader.cli.report import Life, history
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Node, Spec, State
from torchloader.scheduling.log import read
from torchloader.scheduling.scheduler import Scheduler
from torchloader.service.settings import LOG
from torchloader.simulation.result import Result
from torchloader.simulation.simulator import Interval, simulate
from torchloader.simulation.workload import Job

_BATCH = 8
_INTERVAL = 2.0  # seconds for which `torchloader run` does not change a job again after a change

TRAINER = """
import sys, time
from torchloader.training.session import Session

class Samples:
    def __init__(self, latency):
        self.latency = latency

    def __len__(self):
        return 10**7

    def __getitem__(self, index):
        time.sleep(self.latency)
        return index

if __name__ == "__main__":
    iterations, latency, step = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    with Session.join() as session:
        loader = session.loader(Samples(latency), 8, collate_fn=list)
        for _ in session.steps(loader, until=iterations):
            time.sleep(step)
"""


@dataclass(frozen=True)
class Kind:
    """A kind of job: seconds to load a sample and to compute an iteration, and the number of workers that it
    requests.
    """

    name: str
    latency: float
    step: float
    asked: int


KINDS = (
    Kind("light", 0.004, 0.100, 2),
    Kind("medium", 0.020, 0.050, 4),
    Kind("heavy", 0.060, 0.060, 4),
    Kind("balanced", 0.030, 0.120, 2),
)


@dataclass(frozen=True)
class Drawn:
    """A job of a workload."""

    name: str
    kind: Kind
    arrival: float
    iterations: int

    def toml(self) -> str:
        """Return jobs as a file that `torchloader run` reads."""
        told = json.dumps([str(self.iterations), str(self.kind.latency), str(self.kind.step)])
        return (
            f'[[jobs]]\nname = "{self.name}"\nscript = "train.py"\narguments = {told}\nbatch = {_BATCH}\n'
            f"iterations = {self.iterations}\nworkers = {self.kind.asked}\narrival = {self.arrival:.3f}\n"
            'output_folder = "out"\n'
        )


def torchloader(folder: Path, *words: str) -> None:
    """Run the command in a folder. If it fails, print its output and raise CalledProcessError."""
    done = subprocess.run(
        [sys.executable, "-m", "torchloader", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        done.check_returncode()


def profile(folder: Path, kind: Kind) -> Curve:
    """Measure how fast a kind trains alone."""
    (folder / "one.toml").write_text(Drawn(kind.name, kind, 0.0, 10**6).toml())
    numbers = ["1", "2", "4", "8", "12"]
    torchloader(
        folder, "profile", "one.toml", "--device", "cpu", "--seconds", "6", "--out", "one.json", "--workers", *numbers
    )
    told = json.loads((folder / "one.json").read_text())["curve"]
    return Curve(told["ceiling"], told["service"], told["shared"])


def starting(life: Life) -> float:
    """Return the seconds from the launch to the first iteration."""
    return sum(span.end - span.start for span in life.spans if span.state is State.STARTING)


def drawn(jobs: int, seed: int, curves: dict[str, Curve]) -> list[Drawn]:
    """Draw a workload: jobs that would take 10 to 30 seconds each if they never waited."""
    chance, now, made = random.Random(seed), 0.0, []
    for number in range(jobs):
        kind = chance.choice(KINDS)
        iterations = round(chance.uniform(10, 30) * curves[kind.name].ceiling / _BATCH)
        made.append(Drawn(f"{kind.name}-{number}", kind, now, iterations))
        now += chance.expovariate(1 / 6)
    return made


def learning(folder: Path) -> float:
    """Return the seconds from the first iteration until the scheduler knows how fast the job trains."""
    events = read(folder / "run" / LOG)
    began = next(event.time for event in events if event.after is State.RUNNING)
    return next(event.time for event in events if "curve" in event.details) - began


def predicted(jobs: list[Drawn], curves: dict[str, Curve], cores: int, start: float, learn: float) -> Result:
    """Return the times that the simulator predicts."""
    nodes = {"node": Node(cores, tuple(range(max(cores, os.cpu_count() or 1))))}
    simulated = [
        Job(
            Spec(each.name, each.kind.name, 1, _BATCH, each.iterations, each.kind.asked, arrival=each.arrival),
            curves[each.kind.name],
        )
        for each in jobs
    ]
    return simulate(simulated, nodes, Scheduler(policy("proportional"), interval=_INTERVAL), start=start, learn=learn)


def live(folder: Path, jobs: list[Drawn], cores: int) -> dict[str, Life]:
    """Run the jobs; return what happened to each."""
    (folder / "jobs.toml").write_text("".join(each.toml() for each in jobs))
    torchloader(folder, "run", "jobs.toml", "--device", "cpu", "--cores", str(cores), "--folder", "run")
    return history(folder / "run").lives


def error(told: float, was: float) -> float:
    """Return the relative error."""
    return told / was - 1


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--cores", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first workload")
    arguments = parser.parse_args()
    if arguments.runs < 2:
        _refuse("--runs must be at least 2, for an interval")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAINER)
        curves = {kind.name: profile(folder, kind) for kind in KINDS}
        for kind, curve in curves.items():
            print(
                f"{kind}: computes {curve.ceiling:.1f} samples/s, a sample takes {curve.service * 1e3:.2f} ms",
                flush=True,
            )
        alone = folder / "alone"
        alone.mkdir()
        (alone / "train.py").write_text(TRAINER)
        start = starting(live(alone, [Drawn("start", KINDS[0], 0.0, 120)], arguments.cores)["start"])
        learn = learning(alone)
        print(f"a start takes {start:.1f} s, and what a job needs is known after {learn:.1f} s")
        means, makespans, each_job = [], [], []
        for number in range(arguments.runs):
            place = folder / str(number)
            place.mkdir()
            (place / "train.py").write_text(TRAINER)
            jobs = drawn(arguments.jobs, arguments.seed + number, curves)
            said = predicted(jobs, curves, arguments.cores, start, learn)
            lives = live(place, jobs, arguments.cores)
            first = min(life.arrival for life in lives.values())
            seconds = {each: life.seconds for each, life in lives.items()}
            errors = [error(job.completion, seconds[job.name]) for job in said.jobs]
            means.append(error(said.mean_completion, statistics.mean(seconds.values())))
            makespans.append(error(said.makespan, max(life.end for life in lives.values()) - first))
            each_job += errors
            print(
                f"run {number}: mean completion {means[-1]:+.1%}, makespan {makespans[-1]:+.1%}, "
                f"the worst job {max(errors, key=abs):+.1%}",
                flush=True,
            )
        for what, found in (("mean completion", means), ("makespan", makespans)):
            interval = Interval.of(found)
            print(f"{what}: simulated to live {interval.mean:+.1%} ± {interval.half or math.nan:.1%}")
        absolute = statistics.mean(map(abs, each_job))
        print(f"of {len(each_job)} jobs: {absolute:.1%} on average, {max(map(abs, each_job)):.1%} at most")


def _refuse(why: str) -> NoReturn:
    print(f"predicted.py: {why}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
