"""How a job that is submitted to a running workload gets along with those that are there."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import replace

from torchloader.inputs.job import Job

__all__ = ["unlike"]


def unlike(job: Job, there: Mapping[str, Job], ended: Collection[str]) -> Job:
    """The job under a name that no other has, with a number after its own where that is taken. A place for its ranks to
    meet that another job has which has not ended is left out; one is found when it starts."""
    candidates = itertools.chain([job.name], map(f"{job.name}-{{}}".format, itertools.count(2)))
    name = next(each for each in candidates if each not in there)
    places = {(each.master, each.port) for other, each in there.items() if other not in ended}
    return replace(job, name=name, port=0 if (job.master, job.port) in places else job.port)
