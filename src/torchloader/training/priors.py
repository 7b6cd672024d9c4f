"""Fits priors to the event logs of finished runs, and predicts the curves of jobs that have never run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec
import torch

from torchloader.inputs.job import Job
from torchloader.prediction.counts import Counts
from torchloader.prediction.curve import Curve
from torchloader.prediction.features import Features
from torchloader.prediction.prior import Prior, Row, fit
from torchloader.scheduling.log import replay
from torchloader.training.counting import count
from torchloader.training.models import build

__all__ = ["curves_for", "fitted"]

_CLASSES = 10


@cache
def _counts(arch: str, depth: int, image_size: int) -> Counts:
    return count(build(arch, depth, _CLASSES, image_size), (3, image_size, image_size))


def _features(job: Job, image_size: int) -> Features:
    devices = job.devices.count
    return Features(devices, job.batch / devices, _counts(job.arch, job.depth, image_size))


def fitted(logs: Iterable[tuple[Path, int]]) -> Prior:
    """Fit a prior to event logs of runs, each with the image size of its jobs, using each network whose curve was
    measured.

    Raises ValueError if fewer than two kinds of networks were measured, LogError for a damaged log, OSError for one
    that cannot be read.
    """
    rows = [row for path, image_size in logs for row in _rows(path, image_size)]
    return fit(rows, {"torch": torch.__version__})


def _rows(path: Path, image_size: int) -> Iterator[Row]:
    for record in replay(path).values():
        job = msgspec.json.decode(str(record.spec.settings["job"]), type=Job)
        if record.curve is None or not job.arch:
            continue
        features = _features(job, image_size)
        seconds = features.batch / record.curve.ceiling
        yield Row(f"{job.arch}-{job.depth}", features, seconds, record.curve.service, record.curve.shared)


def curves_for(jobs: Sequence[Job], prior: Prior, image_size: int) -> dict[str, Curve]:
    """Return the curves that a prior predicts for those jobs that name a network, by job name."""
    found = {}
    for job in jobs:
        if job.arch:
            guess = prior.guess(_features(job, image_size))
            found[job.name] = Curve(1 / guess.compute.mean, guess.service.mean, guess.shared.mean)
    return found
