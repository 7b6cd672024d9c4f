"""Learns a job's curve from the reports of its ranks."""

from __future__ import annotations

from torchloader.prediction.curve import Belief, Curve, Guess
from torchloader.prediction.measured import Interval, Measured
from torchloader.training.protocol import Progress

_NEWS = 0.1  # relative change of the ceiling or the loading rate that is reported to the scheduler
_SURE = 3  # intervals before anything is reported
_HARDLY = 0.02  # fraction of a worker's time per sample by which each other worker delays it


class Learning:
    """The curve of one application, over all its starts."""

    def __init__(self) -> None:
        self._measured: Measured | None = None
        self._intervals = 0
        self._workers: dict[int, int] = {}
        self._told: Curve | None = None

    def observe(self, report: Progress) -> None:
        """Add a rank's report. An interval in which the number of workers changed is ignored."""
        seconds = report.waiting + report.computing
        steady = self._workers.get(report.rank) == report.workers
        self._workers[report.rank] = report.workers
        if not steady or report.workers < 1 or seconds <= 0 or report.samples <= 0:
            return
        if self._measured is None:
            self._measured = Measured(_guess(report))
        self._measured.observe(
            Interval(report.workers, report.samples, seconds, min(report.waiting, seconds), report.service)
        )
        self._intervals += 1

    def news(self, sharers: int) -> Curve | None:
        """Return the curve of a device that is not shared, if it is known and differs from the last one returned, else
        None."""
        if self._measured is None or self._intervals < _SURE or not self._measured.known:
            return None
        curve = self._measured.curve()
        alone = Curve(curve.ceiling * max(1, sharers), curve.service, curve.shared)
        if self._told is not None and not _differs(self._told, alone):
            return None
        self._told = alone
        return alone


def _guess(report: Progress) -> Guess | None:
    """Return a vague prior from one report, with hardly any contention among workers. Without it a line through similar
    numbers of workers would be arbitrary elsewhere."""
    if report.service is None or report.computing <= 0:
        return None
    compute, service = report.computing / report.samples, report.service
    return Guess(Belief(compute, compute**2), Belief(service, service**2), Belief(0.0, (_HARDLY * service) ** 2))


def _differs(one: Curve, other: Curve) -> bool:
    pairs = [(one.ceiling, other.ceiling), (one.loading(1), other.loading(1)), (one.loading(8), other.loading(8))]
    return any(abs(before - after) > _NEWS * before for before, after in pairs)
