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
    """Put each job into the master's inbox `job.arrival` seconds after `began` (Unix time), then say that it was all.

    A submitter that is started again with the jobs that are left begins where the one before it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for job in sorted(jobs, key=lambda each: each.arrival):
        time.sleep(max(0.0, began + job.arrival - time.time()))
        master.put(Submitted(job))
    master.put(AllSubmitted(frozenset(job.name for job in jobs)))
