"""Processes that measure something periodically on every node, or with every GPU, and threads that examine the recent
values of a metric, and report series that stand out."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from statistics import median_low
from typing import TYPE_CHECKING, Any, Self

from dragon.infrastructure import variables
from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.metrics import METRICS
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.runtime.agent_client import ask
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.telemetry import StateOfRun
from dragon.telemetry.analysis import AnalysisClient
from dragon.telemetry.telemetry import Telemetry

if TYPE_CHECKING:
    from dragon.native.event import Event
    from dragon.native.process_group import ProcessGroup

log = runtime_log("telemetry")

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
            gpus = ",".join(map(str, policy.gpu_affinity))
            told = self._metric_name, {"gpu": gpus} if gpus else {}, self._collection_rate
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


_PERIODS_CHECKED = 10  # collection periods that are examined
_SPREAD = 3 * 1.4826  # times the median deviation: three standard deviations where values are normally distributed


def standing_out(
    data: Sequence[dict[str, Any]], *, ratio: float = 1.25, lowest: bool = False, least_values: int = 3
) -> list[dict[str, Any]]:
    """Return the records of `data` (from AnalysisClient.get_data()) whose values are much higher than the others'.

    A record is represented by the median of its values; the usual value is the median of all records. A record stands
    out if it exceeds the usual value by the factor `ratio`, and by more than the spread among the records explains;
    with `lowest`, if it is below the usual value divided by `ratio`. Of two records one may stand out, a single one
    never does, and records with fewer than `least_values` values are ignored. Raises ValueError for a ratio that is not
    above 1.
    """
    if not ratio > 1:
        raise ValueError(f"ratio={ratio}: it must be above 1; 1.25 means a quarter more than usual")
    values = [[value for value in record["dps"].values() if not math.isnan(value)] for record in data]
    # With the sign reversed, low values stand out as high ones do.
    side = -1 if lowest else 1
    known = [
        (side * median_low(found), record)
        for record, found in zip(data, values, strict=True)
        if len(found) >= max(1, least_values)
    ]
    if not known:
        return []
    usual = median_low([value for value, _ in known])
    spread = median_low([abs(value - usual) for value, _ in known])
    allowed = max((1 - 1 / ratio if lowest else ratio - 1) * abs(usual), _SPREAD * spread)
    return [record for value, record in known if value - usual > allowed]


class Detector:
    """Finds the nodes or GPUs that stand out in a metric, which may be a program's own or one that the runtime
    measures.

    detect() examines it once. Between start() and stop() a thread examines it every `collection_rate` seconds, and
    passes what stands out to report(); as a context manager it starts and stops. `tags` select series as in
    AnalysisClient.get_data(), and `sacred_nodes` are hosts that are never reported. `analysis_args` are passed to
    analyze_data(): by default options of its rule. A subclass may override it with another rule. Raises ValueError for
    a rate that is too short, TypeError if `sacred_nodes` is a string, NotSupportedError for `restartable_ddicts`.

    Examples:
        >>> from dragon.telemetry import Detector, Telemetry
        >>> Telemetry().start(1)
        >>> for rank, seconds in enumerate([0.5, 0.5, 0.5, 0.9] * 3):
        ...     Telemetry().add_data("step_seconds", seconds, tags={"rank": rank % 4})
        >>> [record["tags"]["rank"] for record in Detector("step_seconds").detect()]
        ['3']
    """

    def __init__(
        self,
        metric_name: str = "user-cg",
        collection_rate: float = 3,
        sacred_nodes: Iterable[str] | None = None,
        restartable_ddicts: Iterable[Any] | None = None,
        tags: Mapping[str, object] | None = None,
        analysis_args: object = None,
    ) -> None:
        if isinstance(sacred_nodes, str):
            raise TypeError(f"sacred_nodes is a list of host names, not {sacred_nodes!r}")
        if restartable_ddicts:
            raise NotSupportedError(
                "restartable_ddicts: a run is not restarted without its slow nodes, so its dictionaries stay; "
                "DDict(persister_class=PosixCheckpointPersister, persist_freq=1) writes one to files"
            )
        self._metric_name = metric_name
        self._collection_rate = checked_rate(collection_rate)
        self._sacred_nodes = frozenset(sacred_nodes or ())
        self._chosen_tags = tags
        self._analysis_args = analysis_args
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._told: set[tuple[tuple[str, str], ...]] = set()

    @staticmethod
    def analyze_data(data: list[dict[str, Any]], analysis_args: Any) -> list[dict[str, Any]]:
        """Return the records that stand out. `data` is what AnalysisClient.get_data() returns, with every value.

        By default these are records whose median is much higher than that of the others. `analysis_args` may change the
        rule: `{"ratio": 1.25, "lowest": False, "least_values": 3}` means at least a quarter more than usual, by at
        least three values; with `"lowest": True` lower records are found.
        """
        return standing_out(data, **(analysis_args or {}))

    def detect(self) -> list[dict[str, Any]]:
        """Return the records that stand out now, in the last ten times `collection_rate` seconds."""
        since = time.time() - _PERIODS_CHECKED * self._collection_rate
        data = AnalysisClient().get_data(self._metric_name, self._chosen_tags, since, interval=0)
        found = self.analyze_data(data, self._analysis_args)
        return [record for record in found if record["tags"]["host"] not in self._sacred_nodes]

    def slow_hosts(self) -> list[str]:
        """Return the hosts of the records that stand out now."""
        return sorted({record["tags"]["host"] for record in self.detect()})

    def report(self, found: list[dict[str, Any]]) -> None:
        """Called with the records that stand out, whenever there are any. Logs each of them once; a subclass may react
        to them."""
        for record in found:
            tags = tuple(sorted(record["tags"].items()))
            if tags not in self._told:
                self._told.add(tags)
                told = ", ".join(f"{name} {value}" for name, value in tags)
                newest = list(record["dps"].values())[-1]
                log.warning("metric %s stands out on %s: it is %g", self._metric_name, told, newest)

    def trigger_restart(self, *args: object, **kwargs: object) -> None:
        """Raise NotSupportedError."""
        raise NotSupportedError(
            "a run is not restarted without its slow nodes; place processes on the others: "
            "[policy for policy in System().hostname_policies() if policy.host_name not in detector.slow_hosts()]"
        )

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if it runs already, or telemetry is not enabled."""
        if self._thread is not None:
            raise RuntimeError(f"the detector of {self._metric_name!r} runs already; stop() ends it")
        AnalysisClient().connect()
        self._ending.clear()
        self._told.clear()
        self._thread = threading.Thread(target=self._look, name=f"detector of {self._metric_name}", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ending.wait(self._collection_rate):
            try:
                found = self.detect()
                if found:
                    self.report(found)
            except Exception as error:
                log.error("the detector of %s ends: %s: %s", self._metric_name, type(error).__name__, error)
                self._failure = error
                return

    def stop(self) -> None:
        """Stop the thread. Raises the error of analyze_data() or report() that ended it, if any. Does nothing if it
        does not run."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ending.set()
        if thread is not threading.current_thread():  # report() may call stop()
            thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


class CollectorDetectorGroup(CollectorGroup, Detector):
    """A CollectorGroup with a Detector of its metric: `collector_test` measures, `analyze_data` decides, and
    slow_hosts() returns the slow nodes. Its arguments are those of both.

    Examples:
        >>> from dragon.telemetry import CollectorDetectorGroup, Telemetry
        >>> Telemetry().start(1)
        >>> with CollectorDetectorGroup("hash_seconds", collection_rate=1) as group:
        ...     group.slow_hosts()  # of one node none is slower than the others
        []
    """

    def __init__(
        self,
        metric_name: str = "user-cdg",
        per_gpu: bool = False,
        collection_rate: float = 3,
        sacred_nodes: Iterable[str] | None = None,
        restartable_ddicts: Iterable[Any] | None = None,
        tags: Mapping[str, object] | None = None,
        collector_args: object = None,
        analysis_args: object = None,
    ) -> None:
        CollectorGroup.__init__(self, metric_name, per_gpu, collection_rate, collector_args)
        Detector.__init__(self, metric_name, collection_rate, sacred_nodes, restartable_ddicts, tags, analysis_args)

    def start(self) -> None:
        """Start the collectors and the detector. Raises what either raises."""
        CollectorGroup.start(self)
        Detector.start(self)

    def stop(self, patience: float = 5.0) -> None:
        """Stop the detector and the collectors. Raises what either raises."""
        try:
            Detector.stop(self)
        finally:
            CollectorGroup.stop(self, patience)


class SlowGPUDetector(CollectorDetectorGroup):
    """Multiplies matrices on every GPU of the run, and reports those that take much longer than usual. The metric is
    `gpu_test_seconds`.

    It needs PyTorch. A GPU that is busy meanwhile is slower too, so use it before the program's own work.
    `collector_args` may set the work, `{"size": 4096, "repeats": 10}`; `analysis_args` are those of
    Detector.analyze_data().

    Examples:
        >>> import time
        >>> from dragon.native.machine import System
        >>> from dragon.telemetry import SlowGPUDetector, Telemetry
        >>> Telemetry().start(1)
        >>> if System().gpu_policies():
        ...     with SlowGPUDetector(collection_rate=1) as detector:
        ...         time.sleep(10)
        ...         slow = detector.slow_hosts()
    """

    def __init__(
        self,
        collection_rate: float = 3,
        restartable_ddicts: Iterable[Any] | None = None,
        analysis_args: object = None,
        collector_args: object = None,
    ) -> None:
        super().__init__(
            "gpu_test_seconds",
            per_gpu=True,
            collection_rate=collection_rate,
            restartable_ddicts=restartable_ddicts,
            analysis_args=analysis_args,
            collector_args=collector_args,
        )

    @staticmethod
    def collector_test(collector_args: Any) -> float:
        """Return the seconds that the GPU takes for multiplications of square matrices, after an uncounted
        first one."""
        return _multiplication_seconds(**(collector_args or {}))

    def start(self) -> None:
        """Start the collectors and the detector. Raises PolicyError without a GPU, ImportError without PyTorch, and
        what CollectorDetectorGroup.start() raises."""
        self.generate_policies()
        own_test = type(self).collector_test is not SlowGPUDetector.collector_test
        if not own_test and importlib.util.find_spec("torch") is None:
            raise ImportError(
                "SlowGPUDetector computes with PyTorch, which is not installed: pip install torch, "
                "or override collector_test"
            )
        super().start()


def _multiplication_seconds(size: int = 4096, repeats: int = 10, device: str = "cuda") -> float:
    import torch

    left, right = (torch.rand(size, size, device=device) for _ in range(2))
    product = left @ right
    product[0, 0].item()  # waits until the device has completed its queue
    begin = time.perf_counter()
    for _ in range(repeats):
        torch.mm(left, right, out=product)
    product[0, 0].item()
    return time.perf_counter() - begin
