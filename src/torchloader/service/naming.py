"""Gives a job that is submitted to a running workload a name and port that no other job has."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import replace

from torchloader.inputs.job import Job

__all__ = ["unlike"]


def unlike(job: Job, there: Mapping[str, Job], ended: Collection[str]) -> Job:
    """Return the job under a unique name, with a number appended if its own is taken.

    If another job that has not ended has its address for ranks to meet, the port is removed; one is chosen when it
    starts.
    """
    candidates = itertools.chain([job.name], map(f"{job.name}-{{}}".format, itertools.count(2)))
    name = next(each for each in candidates if each not in there)
    places = {(each.master, each.port) for other, each in there.items() if other not in ended}
    return replace(job, name=name, port=0 if (job.master, job.port) in places else job.port)
