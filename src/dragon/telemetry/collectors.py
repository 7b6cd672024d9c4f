"""Processes that measure something periodically on every node, or with every GPU."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from dragon.infrastructure import variables
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.metrics import METRICS
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.telemetry import StateOfRun
from dragon.telemetry.analysis import AnalysisClient
from dragon.telemetry.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from dragon.native.event import Event
    from dragon.native.process_group import ProcessGroup

_BLOCK = bytes(2**20)
_BLOCKS = 16


def checked_rate(seconds: float) -> float:
    """Return the seconds between measurements. Raises ValueError if they are too few."""
    if not seconds >= variables.SHORTEST_PERIOD:
        raise ValueError(f"collection_rate={seconds}: the shortest is {variables.SHORTEST_PERIOD} s")
    return seconds


class CollectorGroup:
    """One process on each node that calls `collector_test` every `collection_rate` seconds, and adds the result to a
    metric of the run. With `per_gpu` there is one process for each GPU, which sees only this GPU and adds the tag
    `gpu`.

    A subclass overrides `collector_test` to measure something else, and `generate_policies` to run elsewhere.
    `collector_args` are passed to `collector_test`. As a context manager it starts and stops. Raises ValueError for the
    name of a metric that the runtime measures, and for a rate that is too short.

    Examples:
        >>> import os
        >>> from dragon.telemetry import CollectorGroup, Telemetry
        >>> class FreeSpace(CollectorGroup):
        ...     @staticmethod
        ...     def collector_test(collector_args):
        ...         return os.statvfs(collector_args).f_bavail
        >>> Telemetry().start(1)
        >>> with FreeSpace("free_blocks", collection_rate=1, collector_args="/tmp"):
        ...     pass  # the program's work
    """

    def __init__(
        self,
        metric_name: str = "user-cg",
        per_gpu: bool = False,
        collection_rate: float = 3,
        collector_args: object = None,
    ) -> None:
        if metric_name in METRICS:
            raise ValueError(f"metric {metric_name!r} is one that the runtime measures; give yours another name")
        self._metric_name = metric_name
        self._per_gpu = per_gpu
        self._collection_rate = checked_rate(collection_rate)
        self._collector_args = collector_args
        self._group: ProcessGroup | None = None
        self._stopping: Event | None = None

    @staticmethod
    def collector_test(collector_args: object) -> float:
        """Return the measured value: by default the seconds that a CPU takes for the SHA-256 of 16 MiB."""
        begin = time.perf_counter()
        digest = hashlib.sha256()
        for _ in range(_BLOCKS):
            digest.update(_BLOCK)
        return time.perf_counter() - begin

    def generate_policies(self) -> list[Policy]:
        """Return a policy for each collector, which places it. Raises PolicyError for collectors of GPUs if there are
        none."""
        from dragon.native.machine import System

        if not self._per_gpu:
            return System().hostname_policies()
        policies = System().gpu_policies()
        if not policies:
            raise PolicyError(
                f"{type(self).__name__} measures GPUs, and no node of the run has one that it may use; "
                "CollectorGroup(per_gpu=False) measures nodes"
            )
        return policies

    def start(self) -> None:
        """Start the collectors. Raises RuntimeError if they run already or telemetry is not enabled, PolicyError if
        they cannot be placed."""
        from dragon.native.event import Event
        from dragon.native.process_group import ProcessGroup
        from dragon.native.template import ProcessTemplate

        if self._group is not None:
            raise RuntimeError(f"the collectors of {self._metric_name!r} run already; stop() ends them")
        AnalysisClient().connect()
        policies = self.generate_policies()
        stopping = Event()
        # A failing collector is often what the user looks for, and must not end those on the other nodes.
        group = ProcessGroup(ignore_error_on_exit=True, name=self._metric_name)
        for policy in policies:
            told = self._metric_name, _tags(policy), self._collection_rate
            arguments = (self.collector_test, self._collector_args, *told, stopping)
            group.add_process(1, ProcessTemplate(_collect, arguments, policy=policy))
        group.init()
        group.start()
        self._group, self._stopping = group, stopping

    def stop(self, patience: float = 5.0) -> None:
        """Let the collectors end after their present measurement; those that take longer than `patience` seconds are
        killed.

        Raises DragonUserCodeError, with the nodes, if collectors failed. Does nothing if they do not run.
        """
        from dragon.native.process_group import DragonUserCodeError

        if self._group is None or self._stopping is None:
            return
        group, stopping, self._group, self._stopping = self._group, self._stopping, None, None
        stopping.set()
        try:
            with suppress(TimeoutError):  # close() ends those with a long measurement
                group.join(patience)
            failed = {puid: code for puid, code in group.exit_status if code}
        finally:
            group.close()
            stopping.destroy()
        if failed:
            names = ask(StateOfRun()).hosts  # including lost nodes
            hosts = sorted({names[node_of_puid(puid)] for puid in failed})
            raise DragonUserCodeError(
                f"collectors of {self._metric_name!r} failed on {', '.join(hosts)}, with exit codes "
                f"{sorted(set(failed.values()))}; what they raised, if anything, is on stderr"
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def _tags(policy: Policy) -> dict[str, str]:
    gpus = ",".join(map(str, policy.gpu_affinity))
    return {"gpu": gpus} if gpus else {}


def _collect(
    test: Callable[[Any], float], args: object, metric: str, tags: dict[str, str], rate: float, stopping: Event
) -> None:
    """Measure until `stopping` is set: the main function of a collector."""
    telemetry = Telemetry()
    while True:
        begin = time.monotonic()
        telemetry.add_data(metric, test(args), tags=tags)
        if stopping.wait(max(0.0, begin + rate - time.monotonic())):
            return
