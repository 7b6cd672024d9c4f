"""Fits priors to the event logs of finished runs, and predicts the curves of jobs that have never run."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from torchloader.inputs.job import Job
from torchloader.prediction.curve import Curve
from torchloader.prediction.prior import Counts, Features, Prior, Row, fit
from torchloader.scheduling.log import replay
from torchloader.training.models import build


def count(model: nn.Module, sample: Sequence[int] = (3, 224, 224), dtype: torch.dtype | None = None) -> Counts:
    """Count for one sample of that shape, without computing anything: on PyTorch's "meta" device."""
    shadow = copy.deepcopy(model).to("meta").eval()
    kinds: Counter[str] = Counter()

    def convolution(
        inputs: Sequence[int],
        weight: Sequence[int],
        bias: object,
        stride: object,
        padding: object,
        dilation: object,
        transposed: bool,
        output_padding: object,
        groups: int,
        *,
        out_shape: Sequence[int],
    ) -> int:
        positions = math.prod((inputs if transposed else out_shape)[2:])
        operations = 2 * inputs[0] * positions * math.prod(weight)
        kinds[_kind(weight, groups)] += operations
        return operations

    mapping = {torch.ops.aten.convolution: convolution}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        shadow(torch.empty(1, *sample, device="meta", dtype=dtype))
    return Counts(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        ordinary=kinds["ordinary"],
        pointwise=kinds["pointwise"],
        depthwise=kinds["depthwise"],
        other=counter.get_total_flops() - kinds.total(),
    )


def _kind(weight: Sequence[int], groups: int) -> str:
    if groups > 1 and weight[1] == 1:
        return "depthwise"
    return "pointwise" if all(side == 1 for side in weight[2:]) else "ordinary"


_CLASSES = 10


@cache
def _counts(arch: str, depth: int, image_size: int) -> Counts:
    return count(build(arch, depth, _CLASSES, image_size), (3, image_size, image_size))


def _features(job: Job, image_size: int) -> Features:
    devices = job.devices.count
    return Features(devices, job.batch / devices, _counts(job.arch, job.depth, image_size))


def fitted(logs: Iterable[tuple[Path, int]]) -> Prior:
    """Fit a prior to event logs of runs, each with the image size of its jobs."""
    rows = [row for path, image_size in logs for row in _rows(path, image_size)]
    return fit(rows, {"torch": str(torch.__version__)})


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
