"""Submits the jobs of a workload at their arrival times."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from dragon.native.queue import Queue
from torchloader.inputs.job import Job
from torchloader.service.messages import AllSubmitted, Submitted

__all__ = ["submit"]


def submit(jobs: Sequence[Job], began: float, master: Queue) -> None:
    """Put each job into the master's inbox `job.arrival` seconds after `began` (Unix time), then report that these were
    all.

    A restarted submitter submits all jobs again; the master ignores those that it has.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for job in sorted(jobs, key=lambda each: each.arrival):
        time.sleep(max(0.0, began + job.arrival - time.time()))
        master.put(Submitted(job))
    master.put(AllSubmitted(frozenset(job.name for job in jobs)))
