"""Makes the jobs of a simulation from workload files and from event logs of live runs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace

from torchloader.inputs.job import Devices
from torchloader.inputs.job import Job as Written
from torchloader.prediction.curve import Curve
from torchloader.scheduling.actions import Node
from torchloader.scheduling.application import Spec
from torchloader.scheduling.log import replay
from torchloader.scheduling.states import State
from torchloader.simulation.job import Job

__all__ = ["jobs_of_log", "jobs_of_workload", "nodes_for"]

# Samples per second of the networks that workloads name, typical of older GPUs; _SERVICE is the seconds in which a core
# decodes and augments a photograph.
_CEILINGS = {
    "resnet-10": 1800.0,
    "resnet-18": 1200.0,
    "resnet-34": 700.0,
    "resnet-50": 380.0,
    "resnet-101": 220.0,
    "resnet-152": 150.0,
    "vgg-11": 450.0,
    "vgg-13": 300.0,
    "vgg-16": 230.0,
    "vgg-19": 190.0,
    "googlenet-1": 900.0,
}
_SERVICE = 0.008


def nodes_for(jobs: Sequence[Job], count: int, cores: int, devices: int) -> dict[str, Node]:
    """Return nodes that have all hosts and device indexes that jobs name, and at least `count` nodes with `devices`
    devices.

    Args:
        jobs: the jobs of the simulation.
        count: the least number of nodes.
        cores: cores of each node for loading.
        devices: the least number of devices of each node.
    """
    named = [job.spec.devices for job in jobs if not isinstance(job.spec.devices, int)]
    names = {name for placement in named for name in placement}
    fresh = (name for name in map("node{}".format, itertools.count()) if name not in names)
    names |= set(itertools.islice(fresh, max(0, count - len(names))))
    indexes = [index for placement in named for each in placement.values() for index in each]
    return {
        name: Node(cores, tuple(range(max([devices, *(index + 1 for index in indexes)])))) for name in sorted(names)
    }


def jobs_of_workload(jobs: Sequence[Written]) -> list[Job]:
    """Return the jobs of a workload file, each with a typical speed of its network. Nodes without a name are node0,
    node1 ...

    Raises ValueError, with the job's name, if its network is unknown, or only its data determines its end.
    """
    found = []
    for job in jobs:
        arch = f"{job.arch}-{job.depth}" if job.arch else job.script
        if arch not in _CEILINGS:
            raise ValueError(f"job {job.name!r}: it is not known how fast {arch} trains; run it, and simulate its log")
        if job.iterations is None:
            raise ValueError(f"job {job.name!r}: its end_iter is 0, so only its data says when it ends; give end_iter")
        spec = Spec(
            job.name,
            arch,
            _devices(job.devices),
            job.batch,
            job.iterations,
            job.workers,
            job.weight,
            job.minimum,
            job.maximum,
            job.arrival,
        )
        found.append(Job(spec, Curve(_CEILINGS[arch], _SERVICE)))
    return found


def _devices(devices: Devices) -> dict[str, tuple[int, ...]] | int:
    if devices.anywhere:
        return devices.anywhere
    names = devices.nodes or tuple(f"node{number}" for number in range(len(devices.by_node)))
    return dict(zip(names, devices.by_node, strict=True))


def jobs_of_log(path: str | os.PathLike[str]) -> list[Job]:
    """Return the jobs of a live run, each with the curve that was measured last. Those that never ran are left out.

    Raises LogError for an invalid log, OSError if it cannot be read, and ValueError if no curve was measured.
    """
    jobs = []
    for each in replay(path).values():
        if each.curve is not None:
            # If only the data determined its end, the end is known now.
            ended = max(1, round(each.progress)) if each.state is State.FINISHED else each.spec.iterations
            jobs.append(Job(replace(each.spec, iterations=ended), each.curve))
    if not jobs:
        raise ValueError(f"{path}: no job ran for so long that its throughput was measured")
    return jobs
