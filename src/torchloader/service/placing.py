"""What a job needs of the nodes there are, and what they lack for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from torchloader.inputs.job import Job
from torchloader.scheduling.actions import Node
from torchloader.scheduling.application import Spec
from torchloader.service.messages import Joined
from torchloader.service.settings import Settings

__all__ = ["LackingError", "devices_of", "job_of", "nodes_of", "shortened", "spec_of"]

_ENDLESS = 10**6  # iterations, where only the data decides


class LackingError(ValueError):
    """The nodes lack what a job needs; says what, and what to do."""


def nodes_of(joined: Mapping[str, Joined], settings: Settings, highest: int) -> dict[str, Node]:
    """The nodes as the scheduler sees them. On CPUs a device is a process: as many as there are cores, or up to the
    `highest` index that a job names."""
    found = {}
    for name, node in sorted(joined.items()):
        slots = max(node.cores, highest + 1) if settings.device == "cpu" else 0
        found[name] = Node(settings.cores or node.cores, tuple(range(slots)) if slots else node.gpus)
    return found


def shortened(job: Job, settings: Settings) -> Job:
    """With no more iterations than the run allows."""
    most = settings.iterations
    if not most or (job.iterations is not None and job.iterations <= most):
        return job
    return replace(job, end_epoch=job.start_epoch, end_iter=job.start_iter + most)


def spec_of(job: Job, devices: dict[str, tuple[int, ...]] | int) -> Spec:
    """The job as the scheduler sees it, on these devices, or on so many."""
    return Spec(
        name=job.name,
        arch=f"{job.arch}-{job.depth}" if job.arch else job.script,
        devices=devices,
        batch=job.batch,
        iterations=job.iterations or _ENDLESS,
        workers=job.workers,
        weight=job.weight,
        minimum=job.minimum,
        maximum=job.maximum,
        arrival=job.arrival,
        settings={"job": msgspec.json.encode(job).decode()},
    )


def job_of(spec: Spec) -> Job:
    """The job that spec_of() got."""
    return msgspec.json.decode(str(spec.settings["job"]), type=Job)


def devices_of(job: Job, nodes: Mapping[str, Node], settings: Settings) -> dict[str, tuple[int, ...]] | int:
    """The devices that it is to train on, by node, or how many. Raises LackingError."""
    wanted = job.devices
    advice = "" if settings.rehearse else "; to try it on this machine: --device cpu --rehearse"
    if wanted.anywhere:
        there = sum(len(node.devices) for node in nodes.values())
        if wanted.anywhere > there:
            raise LackingError(f"it needs {wanted.anywhere} devices, the run has {there}{advice}")
        return wanted.anywhere
    if len(wanted.by_node) > len(nodes):
        raise LackingError(f"it needs {_count(len(wanted.by_node), 'node')}, the run has {_listed(nodes)}{advice}")
    names = _names(job, nodes, settings, advice)
    for name, indices in zip(names, wanted.by_node, strict=True):
        missing = sorted(set(indices) - set(nodes[name].devices))
        if missing:
            gpus = _count(len(nodes[name].devices), "GPU")
            raise LackingError(f"it needs GPU {', '.join(map(str, missing))} of {name}, which has {gpus}{advice}")
    return dict(zip(names, wanted.by_node, strict=True))


def _names(job: Job, nodes: Mapping[str, Node], settings: Settings, advice: str) -> list[str]:
    """The nodes that it is to run on: those that it names, else from the one where its ranks meet on."""
    there = list(nodes)
    named = job.devices.nodes
    if settings.rehearse and not (named and set(named) <= set(there)):
        return there[: len(job.devices.by_node)]
    local = {"", "localhost", "127.0.0.1"}
    for host in job.devices.nodes or (() if job.master in local else (job.master,)):
        if host not in nodes:
            raise LackingError(f"it needs the host {host}, the run has {_listed(nodes)}{advice}")
    if job.devices.nodes:
        return list(job.devices.nodes)
    first = [job.master] if job.master in nodes else []
    return [*first, *(name for name in there if name not in first)][: len(job.devices.by_node)]


def _listed(nodes: Mapping[str, Node]) -> str:
    return f"{_count(len(nodes), 'node')} ({', '.join(nodes)})"


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
