"""Matches the requirements of a job with the nodes and their GPUs, and describes its start."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from dragon.native.machine import System
from torchloader.inputs.job import Job
from torchloader.scheduling.application import Application, Node, Spec, names
from torchloader.scheduling.placement import devices_by_kind
from torchloader.service.messages import Joined, Launch
from torchloader.service.settings import Settings

_DRIVER = Path("/proc/driver/nvidia/gpus")


def model(driver: Path = _DRIVER) -> str:
    """Return the name of this node's GPUs by NVIDIA's driver, such as "Tesla V100-SXM2-16GB"; "" if it is not one
    name."""
    names: set[str] = set()
    try:
        for file in driver.glob("*/information"):
            names |= {name.strip() for name in re.findall(r"^Model:(.*)$", file.read_text(), re.MULTILINE)}
    except OSError:
        return ""
    return names.pop() if len(names) == 1 else ""


def kind_named(gpu: str, kinds: Collection[str]) -> str:
    """Return which of `kinds` a GPU is of: the first that is a word of its name, as v100 is of "Tesla V100-SXM2-16GB";
    else the whole name. If no job names a kind, all GPUs count as of one, which is ""."""
    for kind in kinds:
        if re.search(rf"(?<![a-z0-9]){re.escape(kind.lower())}(?![a-z0-9])", gpu.lower()):
            return kind
    return gpu if kinds else ""


_ENDLESS = 10**6  # iterations, if the data determines the end


class LackingError(ValueError):
    """Raised if the nodes lack what a job needs; says what, and what to do."""


def nodes_of(
    joined: Mapping[str, Joined],
    settings: Settings,
    highest: int,
    lent: Callable[[str], int],
    kinds: Collection[str] = (),
) -> dict[str, Node]:
    """Return the nodes as the scheduler sees them. On CPUs a device is a process: as many as there are cores, or up to
    the `highest` index that a job names."""
    found = {}
    for name, node in sorted(joined.items()):
        slots = max(node.cores, settings.cores, highest + 1) if settings.device == "cpu" else 0
        kind = "" if slots else kind_named(node.gpu, kinds)
        found[name] = Node(settings.cores or node.cores, tuple(range(slots)) if slots else node.gpus, lent(name), kind)
    return found


def highest_of(job: Job) -> int:
    """Return the highest index of a device that a job names; 0 if it names none."""
    return max((index for indices in job.devices.by_node for index in indices), default=0)


def shortened(job: Job, settings: Settings) -> Job:
    """Return the job with no more iterations than the run allows."""
    most = settings.iterations
    if not most or (job.iterations is not None and job.iterations <= most):
        return job
    return replace(job, end_epoch=job.start_epoch, end_iter=job.start_iter + most)


def spec_of(job: Job, devices: dict[str, tuple[int, ...]] | int) -> Spec:
    """Return the job as the scheduler sees it, on these devices, or on this number."""
    settings: dict[str, str | int | float | bool | None] = {"job": msgspec.json.encode(job).decode()}
    return replace(job.spec(devices, job.iterations or _ENDLESS), settings=settings)


def job_of(spec: Spec) -> Job:
    """Return the job from which spec_of() made the spec."""
    return msgspec.json.decode(str(spec.settings["job"]), type=Job)


def devices_of(job: Job, nodes: Mapping[str, Node], settings: Settings) -> dict[str, tuple[int, ...]] | int:
    """Return the devices that the job trains on, by node, or their number."""
    wanted = job.devices
    if wanted.anywhere:
        spec = spec_of(job, wanted.anywhere)
        there = {kind: count for kind, count in devices_by_kind(nodes).items() if spec.runs_on(kind)}
        if wanted.anywhere > max(there.values(), default=0):
            kinds = f" of kind {' or '.join(job.speeds)}" if job.speeds else " of one kind" if len(there) > 1 else ""
            raise _lacking([_count(wanted.anywhere, "device") + kinds], nodes, settings)
        return wanted.anywhere
    needs = []
    if len(wanted.by_node) > len(nodes):
        needs.append(_count(len(wanted.by_node), "node"))
    hosts = _hosts(job, nodes, settings)
    needs += [f"the host {host}" for host in hosts if host not in nodes]
    names = [*hosts, *(name for name in nodes if name not in hosts)]
    placement = dict(zip(names, wanted.by_node, strict=False))
    for name, indices in placement.items():
        devices = nodes[name].devices if name in nodes else _common(nodes)
        if missing := sorted(set(indices) - set(devices)):
            needs.append(f"GPU {', '.join(map(str, missing))} of {name}")
    if job.speeds and not needs:
        spec, chosen = spec_of(job, placement), {nodes[name].kind for name in placement}
        if len(chosen) > 1 or not all(spec.runs_on(kind) for kind in chosen):
            needs.append(f"devices of one kind, which is {' or '.join(job.speeds)}")
    if needs:
        raise _lacking(needs, nodes, settings)
    return placement


def _hosts(job: Job, nodes: Mapping[str, Node], settings: Settings) -> list[str]:
    """Return the nodes that the job names; none in a rehearsal, where names stand for any node."""
    named = job.devices.nodes or ((job.master,) if job.master not in ("", "localhost", "127.0.0.1") else ())
    return [] if settings.rehearse and not set(named) <= nodes.keys() else list(named)


def _common(nodes: Mapping[str, Node]) -> tuple[int, ...]:
    """Return the devices that all nodes have, which a missing node is assumed to have too."""
    return tuple(sorted(set.intersection(*(set(node.devices) for node in nodes.values())))) if nodes else ()


def _lacking(needs: list[str], nodes: Mapping[str, Node], settings: Settings) -> LackingError:
    there = ", ".join(
        f"{name} with {_count(len(node.devices), 'device')}{f' of kind {node.kind}' if node.kind else ''}"
        for name, node in nodes.items()
    )
    advice = "" if settings.rehearse else "; to try it on this machine: --device cpu --rehearse"
    return LackingError(f"it needs {', '.join(needs)}; the run has {_count(len(nodes), 'node')} ({there}){advice}")


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def free_cores(nodes: Mapping[str, Node], records: Iterable[Application]) -> dict[str, int]:
    free = {name: node.cores for name, node in nodes.items()}
    for record in records:
        for node, cores in record.cores.items():
            if node in free:
                free[node] -= cores
    return free


def sharers(record: Application, records: Iterable[Application]) -> int:
    """Return how many applications use its most used device."""
    holding = [each.placement for each in records if each.holds]
    mine = [(node, device) for node, devices in record.placement.items() for device in devices]
    return max(sum(device in placement.get(node, ()) for placement in holding) for node, device in mine)


def absent(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names) - {policy.host_name for policy in System().hostname_policies()}


def command_of(job: Job, settings: Settings) -> tuple[str, ...]:
    """Return the job's own script and arguments, or the arguments of torchloader.training.train for its network."""
    if job.script:
        return (sys.executable, job.script, *job.arguments)
    values = {
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
    options = [text for name, value in values.items() if value != "" for text in (f"--{name}", str(value))]
    return (*options, *settings.options)


_PORTS = range(20000, 32768)  # for ranks to meet if a job names none; below the kernel's ephemeral ports


def launches(record: Application, joined: Mapping[str, Joined], settings: Settings) -> dict[str, Launch]:
    """Return the order for each node of the placement."""
    job, placement = job_of(record.spec), record.placement
    port = job.port or secrets.choice(_PORTS)
    alone = len(placement) == 1 or settings.rehearse
    address = "127.0.0.1" if alone else joined[next(iter(placement))].address
    numbers = itertools.count()
    orders: dict[str, Launch] = {}
    for node, devices in placement.items():
        ranks = {next(numbers): None if settings.device == "cpu" else device for device in devices}
        away = names(record.away, node) if settings.anywhere else None
        meeting, folder = (record.size, address, port), os.path.abspath(job.output_folder)
        start = record.spec.name, record.starts, command_of(job, settings), not job.script
        orders[node] = Launch(*start, ranks, *meeting, record.workers, folder, dict(job.environment), away)
    return orders
