"""`torchloader report`: reconstructs runs from their event logs and measurements, and writes a page and figures."""

from __future__ import annotations

import argparse
import csv
import html
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dragon.commands import Parser, need
from dragon.files import write_bytes
from torchloader.scheduling.application import ENDED, HOLDING, Application, State
from torchloader.scheduling.log import Event, Records, read
from torchloader.service.attempt import PACE
from torchloader.service.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Span:
    """A period of an application in one state, in seconds; if the state continues, `end` is the last known time."""

    state: State
    start: float
    end: float
    reason: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A measurement over about a second: samples/s over all devices, and the fraction of time spent waiting."""

    time: float
    samples: float
    waiting: float
    iteration: int


@dataclass
class Life:
    """The history of one application."""

    name: str
    spans: list[Span] = field(default_factory=list)
    workers: list[tuple[float, int]] = field(default_factory=list)  # over all devices, from a time on
    pace: list[Moment] = field(default_factory=list)
    devices: int = 1
    batch: int = 1
    iterations: float = 0.0

    @property
    def arrival(self) -> float:
        return self.spans[0].start

    @property
    def end(self) -> float:
        """When it ended, or the last known time, in seconds."""
        return self.spans[-1].start if self.spans[-1].state in ENDED else self.spans[-1].end

    @property
    def seconds(self) -> float:
        return self.end - self.arrival

    @property
    def throughput(self) -> float:
        """Samples per second while it held devices."""
        held = sum(span.end - span.start for span in self.spans if span.state in HOLDING)
        return self.iterations * self.batch / held if held > 0 else 0.0

    @property
    def busy(self) -> float | None:
        """The fraction of its training time in which it did not wait for data; None if nothing was measured."""
        return 1 - sum(each.waiting for each in self.pace) / len(self.pace) if self.pace else None


@dataclass(frozen=True, slots=True)
class Summary:
    """The key figures of a run."""

    jobs: int  # applications
    failed: int  # applications that failed
    completion: float  # mean seconds from an application's arrival to its end
    makespan: float  # seconds from the first arrival to the last end
    throughput: float  # samples per second over all applications
    busy: float | None  # fraction of time in which devices computed; None if nothing was measured
    resizes: int  # changes of the number of workers


@dataclass
class History:
    """The history of a run."""

    name: str
    lives: dict[str, Life]

    @property
    def end(self) -> float:
        return max((life.spans[-1].end for life in self.lives.values()), default=0.0)

    @property
    def summary(self) -> Summary:
        lives = list(self.lives.values())
        makespan = max((life.end for life in lives), default=0.0) - min((life.arrival for life in lives), default=0.0)
        samples = sum(life.iterations * life.batch for life in lives)
        busy = [life.busy for life in lives if life.busy is not None]
        return Summary(
            jobs=len(lives),
            failed=sum(life.spans[-1].state is State.FAILED for life in lives),
            completion=sum(life.seconds for life in lives) / max(1, len(lives)),
            makespan=makespan,
            throughput=samples / makespan if makespan > 0 else 0.0,
            busy=sum(busy) / len(busy) if busy else None,
            resizes=sum(span.state is State.RESIZING for life in lives for span in life.spans),
        )


def history(folder: Path) -> History:
    """Read the run whose files are in a folder. Raises OSError if they cannot be read, LogError for a damaged log."""
    lives: dict[str, Life] = {}
    events, records, moments = read(Settings.log(folder)), Records(), list(_moments(folder / PACE))
    last = max([0.0, *(event.time for event in events), *(moment.time for _, moment in moments)])
    for event in events:
        records.again(event)
        _note(lives.setdefault(event.application, Life(event.application)), event, records[event.application], last)
    for name, moment in moments:
        if name in lives:
            lives[name].pace.append(moment)
            lives[name].iterations = max(lives[name].iterations, moment.iteration)
    try:
        settings = Settings.load(folder)
    except FileNotFoundError:
        return History(folder.name, lives)
    return History(f"{settings.scheduler}, mode {settings.mode} ({folder.name})", lives)


def _note(life: Life, event: Event, record: Application, last: float) -> None:
    life.devices, life.batch = record.spec.size, record.spec.batch
    life.iterations = max(life.iterations, record.progress)
    if event.after is not event.before:
        life.spans[-1:] = [replace(before, end=event.time) for before in life.spans[-1:]]
        life.spans.append(Span(event.after, event.time, event.time if event.after in ENDED else last, event.reason))
    workers = record.workers * record.size
    if workers != (life.workers[-1][1] if life.workers else 0):
        life.workers.append((event.time, workers))


def _moments(path: Path) -> Iterator[tuple[str, Moment]]:
    if not path.exists():
        return
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["loss"] is not None:  # else a full disk or a crash has torn the row
                measured = float(row["time"]), float(row["samples_per_second"]), float(row["waiting"])
                yield row["application"], Moment(*measured, int(row["iteration"]))


_COLOURS = {
    State.QUEUED: "#d9d9d9",
    State.STARTING: "#fdd49e",
    State.RUNNING: "#5aa469",
    State.RESIZING: "#2b6cb0",
    State.PAUSING: "#f6ad55",
    State.PAUSED: "#f0e2b6",
    State.RESUMING: "#fdd49e",
}
_ENDS = {State.FINISHED: ("o", "#22543d"), State.FAILED: ("X", "#c53030"), State.CANCELLED: ("s", "#718096")}


def pyplot() -> ModuleType:
    """Return matplotlib.pyplot with the Agg backend, which draws into files. Raises ModuleNotFoundError."""
    need("a picture", "matplotlib", "plots")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def overview(run: History) -> Figure:
    """Draw one run: the states, workers and throughput of each application. Raises ModuleNotFoundError."""
    plots = pyplot()
    lives = list(run.lives.values())
    figure: Figure
    height = 1.4 + 0.35 * len(lives)
    figure, (schedule, workers, pace) = plots.subplots(
        3, 1, figsize=(10, height + 5), sharex=True, height_ratios=[height, 2.2, 2.2], layout="constrained"
    )
    for place, life in enumerate(lives):
        for span in life.spans:
            if span.state in _COLOURS:
                width = max(span.end - span.start, run.end / 500)
                schedule.barh(place, width, left=span.start, color=_COLOURS[span.state], height=0.7)
            else:
                marker, colour = _ENDS[span.state]
                schedule.plot(span.start, place, marker, color=colour, markersize=7)
    schedule.set_yticks(range(len(lives)), [life.name for life in lives])
    schedule.invert_yaxis()
    schedule.set_title(run.name, loc="left")
    handles = [plots.Rectangle((0, 0), 1, 1, color=colour) for colour in _COLOURS.values()]
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.02)}
    schedule.legend(handles, list(_COLOURS), ncols=7, fontsize="x-small", **below)
    times = sorted({0.0, run.end, *(time for life in lives for time, _ in life.workers)})
    stacks = [[_at(life.workers, time) for time in times] for life in lives]
    if lives:
        workers.stackplot(times, stacks, labels=[life.name for life in lives], step="post")
    workers.set_ylabel("loading workers")
    for life in lives:
        pace.plot([each.time for each in life.pace], [each.samples for each in life.pace], label=life.name, linewidth=1)
    pace.set_ylabel("samples/s")
    pace.set_ylim(bottom=0)
    pace.set_xlabel("seconds")
    if any(life.pace for life in lives):
        pace.legend(fontsize="x-small", loc="upper right")
    return figure


def comparison(runs: Sequence[History]) -> Figure:
    plots = pyplot()
    summaries = [run.summary for run in runs]
    figure: Figure
    figure, axes = plots.subplots(1, 3, figsize=(10, 1.2 + 0.4 * len(runs)), sharey=True, layout="constrained")
    for axis, title, values in (
        (axes[0], "throughput, samples/s", [each.throughput for each in summaries]),
        (axes[1], "mean time of a job, s", [each.completion for each in summaries]),
        (axes[2], "makespan, s", [each.makespan for each in summaries]),
    ):
        bars = axis.barh(range(len(runs)), values, color="#5aa469")
        axis.bar_label(bars, fmt="%.1f", padding=3, fontsize="small")
        axis.set_title(title, fontsize="medium", loc="left")
        axis.margins(x=0.2)
    axes[0].set_yticks(range(len(runs)), [run.name for run in runs])
    axes[0].invert_yaxis()
    return figure


def _at(steps: Sequence[tuple[float, int]], time: float) -> int:
    return next((workers for since, workers in reversed(steps) if since <= time), 0)


_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68em; margin: 2em auto; padding: 0 1em; color: #1a202c }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .25em .9em; border-bottom: 1px solid #e2e8f0 }
td { text-align: right; font-variant-numeric: tabular-nums } td:first-child, td:last-child, th { text-align: left }
svg { max-width: 100%; height: auto } pre { white-space: pre-wrap; margin: 0; font-size: 12px }
"""


def page(runs: Sequence[History]) -> str:
    """Return the report as HTML. Raises ModuleNotFoundError without matplotlib."""
    parts = ["<h1>torchloader</h1>"]
    if len(runs) > 1:
        parts += [_svg(comparison(runs)), _summaries(runs)]
    for run in runs:
        parts += [f"<h2>{html.escape(run.name)}</h2>", _svg(overview(run)), _lives(run)]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>torchloader</title><style>{_STYLE}</style>'
    return head + "\n".join(parts) + "</html>\n"


def _svg(figure: Figure) -> str:
    from matplotlib import pyplot

    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _summaries(runs: Sequence[History]) -> str:
    head = ("run", "jobs", "failed", "samples/s", "computing", "mean time, s", "makespan, s", "resizes")
    rows = []
    for run in runs:
        all_jobs = run.summary
        counts = f"{all_jobs.jobs}", f"{all_jobs.failed}", f"{all_jobs.throughput:.1f}", _percent(all_jobs.busy)
        times = f"{all_jobs.completion:.1f}", f"{all_jobs.makespan:.1f}"
        rows.append((run.name, *counts, *times, f"{all_jobs.resizes}"))
    return _table(head, rows)


def _lives(run: History) -> str:
    head = ("application", "arrival, s", "time, s", "iterations", "samples/s", "computing", "end")
    rows = []
    for life in run.lives.values():
        numbers = f"{life.arrival:.1f}", f"{life.seconds:.1f}", f"{life.iterations:.0f}", f"{life.throughput:.1f}"
        rows.append((life.name, *numbers, _percent(life.busy), f"{life.spans[-1].state}: {life.spans[-1].reason}"))
    return _table(head, rows)


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{fraction:.0%}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cell(text: str) -> str:
        return f"<pre>{html.escape(text)}</pre>" if "\n" in text else html.escape(text)

    lines = ["".join(f"<th>{html.escape(each)}</th>" for each in head)]
    lines += ["".join(f"<td>{cell(each)}</td>" for each in row) for row in rows]
    return "\n".join(["<table>", *(f"<tr>{line}</tr>" for line in lines), "</table>"])


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="torchloader report",
        description="Write a page and figures of a run: schedule, workers over time, throughput. With several "
        "folders, also a comparison of them. A run that has not ended is shown up to now.",
        epilog="torchloader report even/ proportional/ --out comparison",
        allow_abbrev=False,
    )
    folders = "the folder of a `torchloader run`, or of `simulate --out`"
    result.add_argument("folders", nargs="+", metavar="FOLDER", help=folders)
    result.add_argument("--out", metavar="DIR", help="where to write it (default: the first folder)")
    return result


def main(words: Sequence[str]) -> int:
    arguments = parser().parse_args(list(words))
    out = Path(arguments.out or arguments.folders[0])
    runs = [history(Path(folder)) for folder in arguments.folders]
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / "report.html", page(runs).encode())
    pictures = [
        (f"schedule-{number}.png" if len(runs) > 1 else "schedule.png", overview(run))
        for number, run in enumerate(runs, 1)
    ]
    if len(runs) > 1:
        pictures.append(("comparison.png", comparison(runs)))
    for name, figure in pictures:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150)
        write_bytes(out / name, picture.getvalue())
    print("\n".join(str(out / name) for name in ["report.html", *(name for name, _ in pictures)]))
    return 0
