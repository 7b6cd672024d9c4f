"""The command line of a job's ranks."""

from __future__ import annotations

import sys

from torchloader.inputs.job import Job
from torchloader.service.settings import Settings

__all__ = ["command_of"]


def command_of(job: Job, settings: Settings) -> tuple[str, ...]:
    """Return the job's own script and arguments, or the arguments of torchloader.training.train for its network."""
    if job.script:
        return (sys.executable, job.script, *job.arguments)
    told = {
        "arch": job.arch,
        "depth": job.depth,
        "batch": job.batch,
        "start-iter": job.start_iter,
        "start-epoch": job.start_epoch,
        "end-iter": job.end_iter,
        "end-epoch": job.end_epoch,
        "device": settings.device,
        "dataset": job.dataset,
    }
    options = [text for name, value in told.items() if value != "" for text in (f"--{name}", str(value))]
    return (*options, *settings.options)
