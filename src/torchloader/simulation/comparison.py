"""Compares policies over several workloads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchloader.simulation.result import Result

# Of Student's distribution, for 95 % on both sides, by degrees of freedom.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the half width of its 95 % confidence interval; None for a single value."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Return the interval from equally weighted values."""
        mean = math.fsum(values) / len(values)
        if len(values) == 1:
            return cls(mean, None)
        degrees = len(values) - 1
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / degrees)
        quantile = _T[degrees - 1] if degrees <= len(_T) else 2.09
        return cls(mean, quantile * deviation / math.sqrt(len(values)))


@dataclass(frozen=True, slots=True)
class Row:
    """A policy's results over all workloads.

    Args:
        policy: its name.
        completion, makespan: mean seconds, as in `Result`.
        busy: the fraction of the time for which devices were held in which they computed.
        lost: hours for which devices were held and did not compute.
        unfair: the largest finish-time fairness of a workload's jobs, as in `Result.unfairness`.
        resizes: changes of workers per job.
        shorter, sooner: by which fraction completion and makespan are below those of the reference policy, workload by
            workload.
        worst: the smallest of `shorter` over the workloads.
    """

    policy: str
    completion: Interval
    makespan: Interval
    busy: Interval
    lost: Interval
    unfair: Interval
    resizes: float
    shorter: Interval
    sooner: Interval
    worst: float


def compare(results: Sequence[Sequence[Result]], against: int, devices: int) -> list[Row]:
    """Return a row for each policy.

    Args:
        results: for each policy, the results of the same workloads in the same order.
        against: the index of the reference policy.
        devices: the number of devices of the cluster.
    """
    rows = []
    for own in results:
        pairs = list(zip(own, results[against], strict=True))
        shorter = [1 - ours.mean_completion / theirs.mean_completion for ours, theirs in pairs]
        rows.append(
            Row(
                own[0].policy,
                Interval.of([each.mean_completion for each in own]),
                Interval.of([each.makespan for each in own]),
                Interval.of([each.busy for each in own]),
                Interval.of([each.lost_device_hours for each in own]),
                Interval.of([max(each.unfairness(devices)) for each in own]),
                sum(job.resizes for each in own for job in each.jobs) / sum(len(each.jobs) for each in own),
                Interval.of(shorter),
                Interval.of([1 - ours.makespan / theirs.makespan for ours, theirs in pairs]),
                min(shorter),
            )
        )
    return rows


def table(rows: Sequence[Row], against: str) -> str:
    """Format the rows as text."""
    header = ["policy", "completion, s", "makespan, s", "busy, %", "GPU h lost", "unfair", "changes a job"]
    header += ["completion", "worst", "makespan"]
    lines = [header]
    for row in rows:
        same = row.policy == against
        lines.append(
            [
                row.policy,
                _number(row.completion),
                _number(row.makespan),
                _number(row.busy, 100),
                _number(row.lost),
                f"{row.unfair.mean:.1f}",
                f"{row.resizes:.1f}",
                "-" if same else _percent(row.shorter),
                "-" if same else _signed(-row.worst),
                "-" if same else _percent(row.sooner),
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


def _number(interval: Interval, times: float = 1.0) -> str:
    mean = round(interval.mean * times) + 0  # + 0, so that there is no -0
    return f"{mean:,}" + ("" if interval.half is None else f" ± {interval.half * times:,.0f}")


def _signed(part: float) -> str:
    return f"{round(100 * part, 1) + 0.0:+.1f} %"  # + 0.0, so that there is no -0.0


def _percent(interval: Interval) -> str:
    return _signed(-interval.mean) + ("" if interval.half is None else f" ± {100 * interval.half:.1f}")
