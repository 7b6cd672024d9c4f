"""Makes the orders that start the ranks of an application."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping

from torchloader.inputs.job import Job
from torchloader.scheduling.application import Application
from torchloader.scheduling.spreading import names
from torchloader.service.messages import Joined, Launch, Rank
from torchloader.service.placing import job_of
from torchloader.service.settings import Settings


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


_PORTS = range(20000, 32768)  # for ranks to meet if a job names none; below the kernel's ephemeral ports


def launches(record: Application, joined: Mapping[str, Joined], settings: Settings) -> dict[str, Launch]:
    """Return the order for each node of the placement. The first node has rank 0, whose address the ranks use
    to meet."""
    job, placement = job_of(record.spec), record.placement
    port = job.port or secrets.choice(_PORTS)
    alone = len(placement) == 1 or settings.rehearse
    address = "127.0.0.1" if alone else joined[next(iter(placement))].address
    orders: dict[str, Launch] = {}
    taken = 0
    for node, devices in placement.items():
        cpu = settings.device == "cpu"
        ranks = tuple(Rank(taken + place, None if cpu else device) for place, device in enumerate(devices))
        taken += len(devices)
        orders[node] = Launch(
            record.spec.name,
            record.starts,
            command_of(job, settings),
            not job.script,
            ranks,
            sum(map(len, placement.values())),
            address,
            port,
            record.workers,
            os.path.abspath(job.output_folder),
            dict(job.environment),
            names(record.away, node) if settings.anywhere else None,
        )
    return orders
