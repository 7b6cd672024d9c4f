"""What the processes of a running cluster say to each other, over queues of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchloader.inputs.job import Job
from torchloader.training.protocol import Order, Report

__all__ = [
    "AllSubmitted",
    "Asked",
    "Ended",
    "Introduce",
    "Joined",
    "Kill",
    "Launch",
    "Rank",
    "Said",
    "Submitted",
    "Tell",
]


# ---- to an application master


@dataclass(frozen=True, slots=True)
class Introduce:
    """Say which node this is and what runs there."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of an application: its number among all, and the device that it trains on; None for the CPU."""

    number: int
    device: int | None


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the ranks of an application that belong on this node.

    Args:
        application: its name. attempt: counts its starts, so that what is said of an earlier one is not taken for this.
        command: the program and its arguments; or with `ours` what torchloader.training.train is told.
        ranks: those of this node. world_size: how many there are on all nodes.
        master, port: where they meet.
        workers: loading workers of each rank.
        away: the nodes of those of all its ranks here that are on another one; None where workers may not be.
        folder: for traces, checkpoints and what the ranks write.
        environment: variables that the job asks for.
    """

    application: str
    attempt: int
    command: tuple[str, ...]
    ours: bool
    ranks: tuple[Rank, ...]
    world_size: int
    master: str
    port: int
    workers: int
    folder: str
    environment: Mapping[str, str] = field(default_factory=dict)
    away: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """Give an order to all ranks of an application on this node."""

    application: str
    order: Order


@dataclass(frozen=True, slots=True)
class Kill:
    """End all ranks of an application on this node; `cancelled` says that somebody asked for that."""

    application: str
    reason: str
    cancelled: bool = False


# ---- to the master


@dataclass(frozen=True, slots=True)
class Joined:
    """A node is there, with what it has, and the latest attempts of the applications that were started on it.

    Args:
        node: its host name. address: where others reach it.
        cores: CPUs that the run may use. gpus: their numbers. memory: in bytes.
        incarnation: of its application master, unlike that of any before it.
        running: attempt by application.
        ended: what has been told already, maybe to a master that is no more.
    """

    node: str
    incarnation: str
    address: str
    cores: int
    gpus: tuple[int, ...]
    memory: int
    running: Mapping[str, int]
    ended: tuple[Ended, ...] = ()

    def has(self, application: str, attempt: int) -> bool:
        """Whether ranks of this attempt run here, or have ended."""
        if self.running.get(application) == attempt:
            return True
        return any((each.application, each.attempt) == (application, attempt) for each in self.ended)


@dataclass(frozen=True, slots=True)
class Said:
    """A rank reported."""

    application: str
    attempt: int
    node: str
    report: Report


@dataclass(frozen=True, slots=True)
class Ended:
    """All ranks of an application on a node have ended.

    Args:
        codes: exit codes by rank; negative for a signal.
        left: by rank, how it said that it leaves.
        cause: why the first that failed did.
        killed: whether a signal that did not come from torchloader ended one.
        cancelled: whether they were ended because somebody asked for it.
    """

    application: str
    attempt: int
    node: str
    codes: Mapping[int, int]
    left: Mapping[int, Report]
    cause: str
    killed: bool
    cancelled: bool


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job arrives."""

    job: Job


@dataclass(frozen=True, slots=True)
class AllSubmitted:
    """The workload has these jobs and no more: when all applications have ended, so does the master.

    One that does not know them all waits for the next submitter: the master before it took jobs and did not note them.
    """

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """A command: what is asked, of which application, with what. The answer is JSON, for the queue of that name.

    The queue itself is gone with the process that asks, which a master would learn where it takes this.
    """

    question: str
    application: str
    value: Any
    answer: bytes
