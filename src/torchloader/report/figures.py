"""Figures of runs, with matplotlib: schedule, workers, throughput, and a comparison of policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchloader.report.history import History
from torchloader.scheduling.application import State

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


class MissingError(ModuleNotFoundError):
    """Raised if matplotlib is not installed; its text says how to install it."""


def pyplot() -> Any:
    """Return matplotlib.pyplot with the Agg backend, which draws into files. Raises MissingError."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise MissingError("pictures need matplotlib: pip install 'dragon-runtime[plots]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def overview(run: History) -> Any:
    """Draw one run: the states, workers and throughput of each application. Raises MissingError."""
    plots = pyplot()
    lives = list(run.lives.values())
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
    schedule.legend(
        handles, list(_COLOURS), ncols=7, fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.02)
    )
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


def comparison(runs: Sequence[History]) -> Any:
    """Draw several runs side by side. Raises MissingError."""
    plots = pyplot()
    summaries = [run.summary for run in runs]
    figure, axes = plots.subplots(1, 3, figsize=(10, 1.2 + 0.4 * len(runs)), sharey=True, layout="constrained")
    names = [run.name for run in runs]
    for axis, title, values in (
        (axes[0], "throughput, samples/s", [each.throughput for each in summaries]),
        (axes[1], "mean time of a job, s", [each.completion for each in summaries]),
        (axes[2], "makespan, s", [each.makespan for each in summaries]),
    ):
        bars = axis.barh(range(len(runs)), values, color="#5aa469")
        axis.bar_label(bars, fmt="%.1f", padding=3, fontsize="small")
        axis.set_title(title, fontsize="medium", loc="left")
        axis.margins(x=0.2)
    axes[0].set_yticks(range(len(runs)), names)
    axes[0].invert_yaxis()
    return figure


def _at(steps: Sequence[tuple[float, int]], time: float) -> int:
    value = 0
    for since, workers in steps:
        if since > time:
            break
        value = workers
    return value
