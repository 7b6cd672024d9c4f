"""`torchloader profile`: measures how fast a job trains with how many loading workers."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragon.commands import Parser, at_least
from dragon.files import write_bytes
from dragon.infrastructure.errors import DragonError
from dragon.runs import scratch_folder
from dragon.signals import end_with_parent, heeded, leave
from torchloader.cli.main import positive
from torchloader.cli.masters import send
from torchloader.cli.report import pyplot
from torchloader.inputs.workload import read
from torchloader.prediction.curve import Curve, sufficient
from torchloader.prediction.measured import Interval, Measured
from torchloader.service.messages import GetStatus, NoMasterError, ResizeApplication

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 40  # characters of the longest bar
_BLOCKS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement with a number of workers per device."""

    workers: int  # workers per device
    samples: float  # samples per second and device
    waiting: float  # the fraction of time that the device waited for data
    seconds: float  # the length of the measurement


def chosen(points: Sequence[Point]) -> int:
    """Return the smallest measured number of workers that suffices: none was faster by more than noise."""
    return sufficient({each.workers: each.samples for each in points})


def drawn(points: Sequence[Point], curve: Curve, encoding: str = "utf-8") -> str:
    """Return a table with a bar for each rate, and a mark at the chosen number. `encoding` is that of the output."""
    most, found = max(each.samples for each in points), chosen(points)
    lines = ["  ".join(cell.rjust(9) for cell in ("workers", "samples/s", "waiting", "fitted"))]
    for each in points:
        row = f"{each.workers:9}  {each.samples:9.1f}  {each.waiting:9.0%}  {curve.throughput(each.workers):9.1f}"
        mark = "  <- enough" if each.workers == found else ""
        lines.append(f"{row}  {_bar(each.samples / most if most else 0.0, encoding)}{mark}")
    return "\n".join(lines)


def summary(points: Sequence[Point], curve: Curve) -> str:
    found = chosen(points)
    enough = curve.enough(found)
    line = (
        f"a device computes {curve.ceiling:.1f} samples/s; a sample takes {curve.service * 1e3:.2f} ms of a worker and "
        f"{curve.shared * 1e3:.2f} ms of what they share; {found} worker{'s are' if found != 1 else ' is'} enough"
    )
    return f"{line}, and by the fitted curve {enough}" if enough < found else line


def picture(points: Sequence[Point], curve: Curve) -> Figure:
    """Draw the rates against the workers, with the fitted curve and the chosen number. Raises ModuleNotFoundError."""
    figure: Figure
    figure, axis = pyplot().subplots(figsize=(7, 4.2), layout="constrained")
    most, found = max(each.workers for each in points), chosen(points)
    numbers = [1 + (most - 1) * step / 200 for step in range(201)]
    axis.plot(numbers, [curve.throughput(number) for number in numbers], color="#2b6cb0", label="fitted curve")
    tried, rates = [each.workers for each in points], [each.samples for each in points]
    axis.plot(tried, rates, "o", color="#5aa469", label="measured")
    axis.axvline(found, color="#c53030", linestyle="--", linewidth=1, label=f"enough: {found}")
    axis.set_xlabel("loading workers per device")
    axis.set_ylabel("samples/s per device")
    axis.set_ylim(bottom=0)
    axis.set_xticks(tried)
    axis.legend(loc="lower right")
    return figure


def _bar(part: float, encoding: str) -> str:
    eighths = round(8 * _WIDTH * part)
    try:
        _BLOCKS.encode(encoding)
    except UnicodeEncodeError:
        return "#" * round(eighths / 8)
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()


_EPILOG = """\
The job runs for the time of the sweep, with --mode 1, and is then cancelled. Give it more iterations than that needs.

examples:
  torchloader profile job.toml --device cpu --workers 1 2 4 8
  torchloader profile jobs.csv --name resnet-10-1 --seconds 30 --out resnet.json --plot resnet.png
"""
_PICTURES = (".png", ".svg", ".pdf")
_TRAIN_TIMEOUT_S = 120.0  # seconds for a job to train, and for workers to be there


class SweepError(DragonError):
    """Raised if the job cannot be measured; says why."""


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="torchloader profile",
        description="Run a job with several numbers of loading workers in turn, and show how fast it trains with each.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = result.add_argument
    add("jobs", metavar="FILE", help="a workload's CSV, or jobs in TOML or YAML")
    add("--name", help="the name of the job in the file (default: its first)")
    workers = "workers per device (default 1 2 4 8)"
    add("--workers", type=at_least(1), nargs="+", default=[1, 2, 4, 8], metavar="N", help=workers)
    add("--seconds", type=positive(), default=10.0, metavar="S", help="seconds for each of them (default 10)")
    add("--device", default="cuda", choices=["cuda", "cpu"], help="what to train on (default cuda)")
    add("--rehearse", action="store_true", help="simulate the nodes that the job requests")
    add("--out", type=_file, metavar="FILE", help="write the measurements as JSON")
    add("--plot", type=_picture, metavar="FILE", help="draw the curve into a .png, .svg or .pdf as well")
    return result


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code, 1 if the job could not be measured."""
    arguments = parser().parse_args(list(words))
    if arguments.plot:
        pyplot()  # so that it fails before the measurement where there is none
    with scratch_folder() as scratch:
        points = _sweep(arguments, scratch)
    curve = _fit(points)
    print(drawn(points, curve, sys.stdout.encoding))
    print(summary(points, curve))
    measured = [asdict(each) for each in points]
    found = {"version": 1, "curve": asdict(curve), "measured": measured, "enough": chosen(points)}
    if arguments.out:
        write_bytes(arguments.out, json.dumps(found, indent=2).encode())
    if arguments.plot:
        image = io.BytesIO()
        picture(points, curve).savefig(image, format=arguments.plot.suffix[1:], dpi=150)
        write_bytes(arguments.plot, image.getvalue())
    return 0


def _file(text: str) -> Path:
    """Return a path that can be written, as far as can be checked before the measurement."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written")
    return path


def _picture(text: str) -> Path:
    if Path(text).suffix not in _PICTURES:
        raise argparse.ArgumentTypeError(f"{text} must end with one of {' '.join(_PICTURES)}")
    return _file(text)


def _sweep(arguments: argparse.Namespace, scratch: Path) -> list[Point]:
    workload = read(arguments.jobs)
    for mistake in workload.errors:
        print(f"torchloader: {mistake.message}", file=sys.stderr)
    if not workload.jobs:
        raise SweepError(f"{arguments.jobs} has no job that can be run")
    job = next((each for each in workload.jobs if arguments.name in (None, each.name)), None)
    if job is None:
        there = ", ".join(each.name for each in workload.jobs)
        raise SweepError(f"{arguments.jobs} has no job {arguments.name}; there are: {there}")
    cores = max(arguments.workers) * max(map(len, job.devices.by_node), default=job.devices.count)
    options = ["--device", arguments.device, "--mode", "1", "--cores", str(max(cores, job.workers)), "--hold"]
    command = [sys.executable, "-m", "torchloader", "run", arguments.jobs, "--only", job.name, "--folder", str(scratch)]
    for number in heeded((signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)):
        signal.signal(number, leave)
    with (scratch / "output").open("w") as output:
        run = subprocess.Popen(
            [*command, *options, *(["--rehearse"] if arguments.rehearse else [])],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # If this process is killed, the run must end too. end_with_parent() takes no lock, so it is safe here.
            preexec_fn=end_with_parent,  # noqa: PLW1509
        )
    try:
        return _measured(job.name, arguments, run, scratch)
    finally:
        run.terminate()
        run.wait()


def _measured(name: str, arguments: argparse.Namespace, run: subprocess.Popen[bytes], scratch: Path) -> list[Point]:
    points = []
    for count in sorted(set(arguments.workers)):
        state = _await_state(run, scratch)
        if state["workers"] != count:
            answer = send(str(run.pid), ResizeApplication(name, count))
            if "error" in answer:
                raise SweepError(answer["error"])
            _await_state(run, scratch)
        time.sleep(min(2.0, arguments.seconds))  # until batches of the previous workers are used up
        looks: list[dict[str, Any]] = []
        end = time.monotonic() + arguments.seconds
        while not looks or time.monotonic() < end:
            time.sleep(1.0)
            looks.append(_await_state(run, scratch))
        samples = statistics.mean(each["samples_per_second"] for each in looks) / looks[0]["devices"]
        point = Point(count, samples, statistics.mean(each["waiting"] for each in looks), arguments.seconds)
        print(f"{count} workers: {samples:.1f} samples/s", file=sys.stderr, flush=True)
        points.append(point)
    return points


def _await_state(run: subprocess.Popen[bytes], scratch: Path) -> dict[str, Any]:
    """Return the job's status once it trains with the workers that it was given. Raises SweepError."""
    end = time.monotonic() + _TRAIN_TIMEOUT_S
    while time.monotonic() < end:
        if run.poll() is not None:
            output = (scratch / "output").read_text().strip()
            raise SweepError(f"the run ended: {output or f'exit code {run.returncode}, and no output'}")
        try:
            found = send(str(run.pid), GetStatus())["applications"]
        except NoMasterError:
            found = []
        if found and found[0]["state"] == "running" and found[0]["samples_per_second"] > 0:
            state: dict[str, Any] = found[0]
            return state
        if found and found[0]["state"] in ("failed", "finished", "cancelled"):
            raise SweepError(f"the job {found[0]['name']} is {found[0]['state']}: {found[0]['reason']}")
        time.sleep(0.2)
    raise SweepError(f"the job did not train in {_TRAIN_TIMEOUT_S:.0f} s: {(scratch / 'output').read_text().strip()}")


def _fit(points: Sequence[Point]) -> Curve:
    measured = Measured(forgetting=1.0)
    for point in points:
        measured.observe(
            Interval(point.workers, point.samples * point.seconds, point.seconds, point.waiting * point.seconds)
        )
    return measured.curve()
